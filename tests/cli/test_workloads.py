"""`servetune workloads` in this process."""

import json

import pytest

from servetune.workload.presets import preset, preset_names
from servetune.workload.traces import trace_in
from servetune.workload.workload import read_workload

LOG = "".join(
    json.dumps({"timestamp": 700 * i, "input_length": 100 + i % 90, "output_length": 5 + i % 20,
                "hash_ids": []}) + "\n"
    for i in range(300)
)  # fmt: skip


@pytest.fixture
def run(called):
    def ran(*words, code=0):
        done = called("workloads", *words)
        assert done.returncode == code, done.stderr
        return done.stdout

    return ran


def test_the_list_has_every_workload_and_those_of_a_folder(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("[[part]]\ninput_tokens = 30\noutput_tokens = 4\n")
    (tmp_path / "bad.toml").write_text("[[part")
    monkeypatch.setenv("SERVETUNE_WORKLOADS", str(tmp_path))
    rows = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert set(rows) == {*preset_names(), "mine", "bad"}
    assert rows["multi_turn_chat"]["concurrency"] == 10
    assert rows["multi_turn_chat"]["input_tokens"] == pytest.approx(550, rel=0.01)
    assert rows["agent_tool_calling"]["stream"] is False
    assert rows["mine"]["input_tokens"] == 30
    assert "not TOML" in rows["bad"]["error"]
    assert "conversation in several turns" in run("list")


def test_show_says_what_each_setting_means_and_how_it_is_used(run):
    text = run("show", "qwen3_walkthrough")
    assert "e2e_latency:p99<=60s;request_throughput>=5" in text
    assert "servetune bench http://localhost:8000 --workload qwen3_walkthrough -c 32,64,128" in text
    settings = json.loads(run("show", "rag_document_qa", "--json"))["settings"]
    assert all(each["meaning"] for each in settings)
    assert any(each["key"] == "part[1].documents.pool" for each in settings)


def test_validate_tells_all_and_fails(run, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text("api = 3\n[[part]]\ninput_tokens = 0\noutput_tokens = 5\n")
    told = run("validate", path, code=2)
    assert "w.toml:1: api:" in told
    assert "w.toml:3: part[1].input_tokens:" in told
    path.write_text("[[part]]\ninput_tokens = 9\noutput_tokens = 5\n")
    assert "is a workload" in run("validate", path)


def test_sample_shows_turns_and_words_only_when_asked(run):
    rows = json.loads(run("sample", "multi_turn_chat", "-n", "5", "--rate", "2", "--json"))
    assert [row["turn"] for row in rows] == [0, 1, 2, 3, 0]
    first, second = rows[:2]
    assert second["shared_tokens"] == first["input_tokens"] + first["output_tokens"]
    assert first["text"] is None
    said = json.loads(run("sample", "shared_system_prompt", "-n", "2", "--text", "--json"))
    assert said[0]["text"].startswith("system: ")


def test_a_sample_is_a_trace_that_reads_back_equal(run, tmp_path):
    out = tmp_path / "t.jsonl"
    run("sample", "shared_system_prompt", "--rate", "3", "-n", "40", "--out", out)
    trace = trace_in(str(out))
    requests = preset("shared_system_prompt").requests()
    assert len(trace.pairs) == 40
    assert {pieces[0][1] for pieces in trace.prefixes()} == {200}
    assert {tokens for tokens, _ in trace.pairs} <= {r.input_tokens for r in requests} | set(
        range(250, 351)
    )


def test_simulate_replays_a_sample_with_what_its_prompts_share(called, tmp_path):
    out = tmp_path / "t.jsonl"
    called("workloads", "sample", "shared_system_prompt", "--rate", "3", "-n", "40", "--out", out)
    done = called(
        "simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--trace", out, "--json",
        "--server-args", "enable_prefix_caching=true",
    )  # fmt: skip
    results = json.loads(done.stdout)["results"]
    assert results["completed"] == 40
    assert results["server"]["cached_fraction"] > 0.5


def test_fit_writes_a_workload_that_simulate_uses(called, run, tmp_path):
    log, out = tmp_path / "log.jsonl", tmp_path / "mine.toml"
    log.write_text(LOG + "{broken\n")
    told = run("fit", log, "--out", out)
    assert "300 requests" in told
    assert "read as mooncake" in told
    assert "unreadable 1 lines" in told
    assert read_workload(out).request_count == 300
    done = called(
        "simulate",
        "--model",
        "Qwen/Qwen3-4B",
        "--gpu",
        "L4",
        "--workload",
        out,
        "-n",
        "50",
        "--json",
    )
    assert json.loads(done.stdout)["results"]["completed"] == 50
    assert called("workloads", "fit", log).returncode == 2  # --out is needed
    few = called("workloads", "fit", log, "--out", out, "--since", "200")
    assert few.returncode == 2
    assert "too few" in few.stderr
    bad = called("workloads", "fit", log, "--out", out, "--since", "soon")
    assert "error: --since 'soon' is no time" in bad.stderr
