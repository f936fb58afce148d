"""The load generators' benchmark: its server sends what it says, and each client counts it."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "loadgen"
NAMES = (
    *("compiled", "watched", "clients", "rival_clients", "shapes", "targets", "word_tokenizer"),
    "rivals",
)
MANY_SHAPES = (
    "one token a write, no usage",
    pytest.param("five tokens a chunk, usage on every chunk", marks=pytest.mark.slow),
    "CRLF, cut anywhere",
    pytest.param("words like protocol, no usage, cut anywhere", marks=pytest.mark.slow),
    pytest.param("reasoning and tool calls", marks=pytest.mark.slow),
    pytest.param("ended by the connection", marks=pytest.mark.slow),
    pytest.param("all at once", marks=pytest.mark.slow),
)
#: The command's senders are the library's client; the command shows what both count.
IN_SECONDS = (
    *("servetune", "bare uvloop", "C reader"),
    pytest.param("servetune library", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules, imported as its own script would."""
    sys.path.insert(0, str(FOLDER))
    try:
        found = {name: importlib.import_module(name) for name in NAMES}
        if found["compiled"].compiler() is None:
            pytest.skip("no C compiler")
        yield found
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def cores():
    return sorted(os.sched_getaffinity(0))


def load(bench, **changed):
    fields = {"concurrency": 4, "requests": 12, "input_tokens": 8, "output_tokens": 23}
    return bench["clients"].Load(**{**fields, **changed})


def client_named(bench, name):
    client = bench["clients"].CLIENTS[name]
    if reason := client.missing():
        pytest.skip(reason)
    return client


def run(bench, name, options, tmp_path, cores, asked):
    """What one client said, and the server's truth."""
    client = client_named(bench, name)
    with bench["watched"].serving(options, cores[-1]) as server:
        place = bench["clients"].Place(server.port, tmp_path, tmp_path)
        command = client.command(asked, place)
        seen = bench["watched"].watch(command, cores[0], cwd=tmp_path, limit_s=60)
        assert seen.exit_code == 0, seen.last_line
        return client.report(place, seen.output), server.stop(), seen


def test_programs_compile_without_a_warning(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench["compiled"], "FLAGS", ("-O2", "-Wall", "-Wextra", "-Werror"))
    for name in ("server", "reader"):
        assert bench["compiled"].program(name, tmp_path).exists()


@pytest.mark.parametrize("name", IN_SECONDS)
@pytest.mark.parametrize("shape", MANY_SHAPES)
def test_each_client_counts_what_was_sent(bench, name, shape, cores, tmp_path):
    client = client_named(bench, name)
    options = bench["shapes"].SHAPES[shape]
    words = bench["word_tokenizer"].word_tokenizer(tmp_path / "tokenizer")
    counted = bench["shapes"].counted(client, options, cores, words, load(bench))
    assert counted == "exact"


def test_the_truth_has_every_token_at_its_time(bench, tmp_path, cores):
    asked = load(bench)
    options = ("--ttft-us", "20000", "--itl-us", "2000")
    report, truth, seen = run(bench, "C reader", options, tmp_path, cores, asked)
    assert report.completed == len(truth.arrived_s) == asked.requests
    assert report.tokens == truth.tokens == asked.requests * asked.output_tokens
    for arrived_s, sent_s in zip(truth.arrived_s, truth.sent_s, strict=True):
        due_s = arrived_s + 0.020 + 0.002 * np.arange(asked.output_tokens)
        assert (sent_s >= due_s).all()  # late on a busy machine, never early
        assert (np.diff(sent_s) >= 0).all()
    assert seen.started_s < truth.arrived_s[0] < truth.last_sent_s < seen.ended_s


def test_no_client_can_have_tokens_before_they_were_sent(bench, tmp_path, cores):
    asked = load(bench, concurrency=1)
    report, truth, _ = run(bench, "C reader", ("--ttft-us", "10000"), tmp_path, cores, asked)
    assert report.ttft_ms["mean"] >= truth.ttft_ms.mean()


def test_several_chunks_leave_in_one_write(bench, tmp_path, cores):
    options = ("--chunks-per-write", "8", "--tokens-per-chunk", "2", "--itl-us", "100")
    _, truth, _ = run(bench, "C reader", options, tmp_path, cores, load(bench, output_tokens=40))
    for sent_s in truth.sent_s:
        assert len(np.unique(sent_s)) <= 3  # 40 tokens, 16 in a write


def test_a_client_that_takes_too_long_is_ended_with_all_its_processes(bench, tmp_path, cores):
    command = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    seen = bench["watched"].watch(command, cores[0], cwd=tmp_path, limit_s=0.2)
    assert seen.exit_code is None
    state = Path(f"/proc/{seen.output.strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_cpu_time_of_a_client_and_its_children_is_seen(bench, tmp_path, cores):
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    command = ["sh", "-c", f"{sys.executable} -c '{burn}'; true"]
    seen = bench["watched"].watch(command, cores[0], cwd=tmp_path, limit_s=60)
    assert seen.cpu_between_s(seen.started_s, seen.ended_s) >= 0.3


def test_the_whole_comparison_prints_a_row_for_each_client(bench, monkeypatch, capsys, cores):
    if len(cores) < 2:
        pytest.skip("one core")
    rivals = bench["rivals"]
    small = rivals.Scenario("few", (), load(bench))
    monkeypatch.setattr(rivals, "SCENARIOS", {"few": small})
    command = ["rivals.py", "--scenarios", "few", "--clients", "servetune library", "C reader"]
    monkeypatch.setattr(sys, "argv", [*command, "--repeat", "1"])
    try:
        assert rivals.main() == 0
    finally:
        os.sched_setaffinity(0, set(cores))
    table = capsys.readouterr().out
    rows = [line for line in table.splitlines() if line.startswith("| C reader |")]
    assert len(rows) == 2  # its own, and what ours is beside it
    assert "| agree |" in rows[0]


def test_the_tokenizer_has_each_word_of_the_server_as_one_token(bench, tmp_path):
    words = set(bench["word_tokenizer"].SERVER_WORDS)
    told = (FOLDER / "says.h").read_text()
    plain = told[told.index("PLAIN_WORDS[]") : told.index("TRICKY_WORDS[]")]
    report = {word.strip() for word in plain.split('"')[1::2]}
    assert report
    assert report <= words


def test_a_target_is_judged_beside_the_client_of_the_same_run(bench):
    verdicts = bench["targets"].verdicts
    ours = {
        "tokens_per_s": 250_000.0, "cpu_s_per_million": 12.0, "peak_mb": 50.0,
        "first_request_s": 0.4, "ttft_p50_ms": 50.4, "ttft_p99_ms": 51.0,
        "true_ttft_p50_ms": 50.1,
    }  # fmt: skip
    bare = {**ours, "cpu_s_per_million": 10.0}
    lean = {**ours, "ttft_p50_ms": 50.0}
    told = verdicts("steady", ours, {"bare uvloop": bare, "C reader": lean})
    assert [line.split(":")[0] for line in told] == [
        "- reached", "- **missed**", "- reached", "- reached",
    ]  # fmt: skip
    assert told[0].startswith("- reached: 1.2 times")
    assert len(verdicts("steady", ours, {})) == 1  # nobody to compare with: only the start
    assert verdicts("fast", {**ours, "tokens_per_s": 1e5}, {})[0].startswith("- **missed**")
