"""`servetune bench` against servers on real sockets, as a process and through click."""

import csv
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from click.testing import CliRunner

from servetune import api
from servetune.cli.main import cli
from servetune.errors import StoreError
from servetune.store import RequestLog, read_journal, read_requests
from servetune.workload.presets import preset_names

SMALL = ("--input-tokens", "20", "--output-tokens", "4")
COMMAND = (sys.executable, "-W", "error", "-m", "servetune", "bench")


def run(*options, code=0):
    """What one run printed; through click, in this process."""
    done = CliRunner().invoke(cli, ["bench", *map(str, options)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == code, done.output
    return done.stdout


def record(*options, code=0):
    """The record of one run, as `--json` tells it."""
    return json.loads(run(*options, "--json", code=code))


def results(*options, code=0):
    return record(*options, code=code)["results"]


# levels


def test_levels_are_a_table_with_the_knee_and_as_data_a_list(fake, tmp_path):
    server = fake(ttft_s=0.01)
    load = (server.url, *SMALL, "-c", "1,3", "-n", 6, "--constraints", "ttft:p99<=1us")
    printed = run(*load, "--out", tmp_path / "o", code=1)
    assert re.search(r"users +tok/s +req/s +TTFT p50", printed)
    assert re.search(r"^ +3 .* MISSED", printed, re.MULTILINE)
    assert "knee: " in printed
    assert "no level is within ttft:p99<=" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert len(read_journal(tmp_path / "o" / "bench.jsonl")) == 2
    told = json.loads(run(*load, "--json", code=1))
    assert [each["config"]["client_args"]["max_concurrency"] for each in told] == [1, 3]


def test_an_interrupted_level_ends_the_run_and_all_before_is_kept(fake, tmp_path):
    server = fake(ttft_s=0.05)
    words = [*COMMAND, server.url, *SMALL, "-c", "1,2,3", "-n", "40", "--out", str(tmp_path / "o")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "o" / "1-users" / "bench.html").is_file():
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "INTERRUPTED at 2: " in printed
    assert "1 of 3 levels did not run" in printed
    first, second = read_journal(tmp_path / "o" / "bench.jsonl")
    assert first.results.completed == 40
    assert second.results["interrupted"] is True


# when requests leave


def test_a_closed_loop_sends_what_was_asked_and_no_more_at_once(fake):
    server = fake(ttft_s=0.03)
    said = results(server.url, *SMALL, "-c", 3, "-n", 20, "--warmup", 2)
    assert said["completed"] == 20
    assert said["total_input_tokens"] == 400
    assert said["total_output_tokens"] == 80
    assert len(server.truths) == 22
    assert server.peak_running_count == 3


@pytest.mark.parametrize(
    "arrivals",
    [
        ("--rate", 100, "--arrivals", "gamma"),
        ("--arrivals", "kind=mmpp,rates_per_s=[50,200],dwell_s=[0.1,0.1]"),
        ("--arrivals", f"kind=scheduled,times_s={[i / 100 for i in range(12)]}".replace(" ", "")),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (
                ("--rate", 100),
                ("--rate", 100, "--arrivals", "constant"),
                ("--arrivals", "kind=gamma,rate_per_s=100,burstiness=0.5"),
                ("--arrivals", "kind=piecewise,steps=[(0.1,50),(1,200)]"),
                ("--arrivals", "kind=ramp,from_per_s=50,to_per_s=200,over_s=1"),
                ("--arrivals", "kind=sine,mean_per_s=100,amplitude_per_s=50,period_s=1"),
            )
        ),
    ],
)
def test_an_open_loop_takes_every_law_of_arrivals(fake, tmp_path, arrivals):
    server = fake()
    # Of another seed two gamma bursts can be due at once, to the clock's last digit.
    seeded = ("--seed", 7, *arrivals)
    said = results(server.url, *SMALL, "-n", 12, *seeded, "--out", tmp_path)
    assert said["completed"] == 12
    assert said["saturation"]["saturated"] is False
    due_s = [line["due_s"] for line in lines(tmp_path / "bench.requests.jsonl")]
    assert due_s == sorted(due_s)
    assert len(set(due_s)) == 12


def test_an_open_loop_has_no_more_in_flight_than_it_may(fake):
    server = fake(ttft_s=0.02)
    said = results(server.url, *SMALL, "-n", 12, "--rate", 500, "-c", 2)
    assert server.peak_running_count == 2
    assert said["wait_before_send_ms"]["max"] > 20
    assert said["mean_e2e_latency_ms"] > said["mean_e2e_from_sent_ms"]


def test_after_the_duration_nothing_leaves_and_all_that_left_is_counted(fake):
    server = fake(ttft_s=0.05)
    told = record(server.url, *SMALL, "-c", 4, "--duration", 0.6, "--warmup", 0)
    said = told["results"]
    assert said["ended_reason"] == "0.6 s were over"
    assert said["completed"] == len(server.truths)
    assert said["failed"] == 0
    assert said["duration"] >= 0.6
    assert told["status"] == "ok"


def test_what_is_still_in_flight_after_the_grace_is_cancelled(fake):
    server = fake(itl_s=10)
    said = results(
        server.url, *SMALL, "-c", 2, "--duration", 0.4, "--grace", 0.1, "--warmup", 0, code=3
    )
    assert said["completed"] == 0
    assert {one["outcome"] for one in said["failures"]} == {"cancelled"}
    assert len(server.truths) == said["failed"] == 2


def test_a_closed_loop_that_runs_out_of_requests_says_so(fake):
    server = fake()
    said = results(server.url, *SMALL, "-c", 2, "-n", 10, "--duration", 60)
    assert said["ended_reason"] == "all 10 requests were answered before 60 s were over"


@pytest.mark.timed
def test_an_open_loop_of_a_duration_sends_what_is_due_within_it(fake):
    server = fake()
    said = results(
        server.url, *SMALL, "--rate", 50, "--arrivals", "constant", "--duration", 0.5,
        "--warmup", 0,
    )  # fmt: skip
    assert said["completed"] == len(server.truths)
    assert 20 <= said["completed"] <= 26
    assert not said["not_sent"]


def test_a_run_ends_once_a_metric_is_known_and_names_it(fake):
    server = fake(ttft_s=0.002)
    said = results(server.url, *SMALL, "-c", 4, "--until", "output_throughput±80%")
    assert said["ended_reason"] == "output_throughput±80% was reached"
    assert said["until"]["reached"] is True
    assert 100 <= said["completed"] < 20_000


def test_a_run_that_ends_before_it_knows_enough_says_so(fake):
    server = fake(ttft_s=0.001)
    printed = run(server.url, *SMALL, "-c", 4, "-n", 120, "--until", "ttft:p99±0.0001%")
    assert "NOT REACHED: ttft:p99±0.0001%" in printed


def test_saturation_is_detected_early(fake):
    server = fake(ttft_s=0.1, max_num_seqs=1)
    told = record(server.url, *SMALL, "--rate", 40, "-n", 2000, "--grace", 0, "--duration", 300)
    said = told["results"]
    assert said["saturation"]["saturated"] is True
    assert said["ended_reason"].startswith("saturated: ")
    assert len(server.truths) < 1000


def test_users_of_a_closed_loop_think_between_an_answer_and_the_next_question(fake):
    server = fake()
    results(server.url, *SMALL, "-c", 1, "-n", 4, "--think-time", 0.2, "--warmup", 0)
    received_s = [truth.received_s for truth in server.truths]
    gaps_s = [b - a for a, b in itertools.pairwise(received_s)]
    assert len(gaps_s) == 3
    assert min(gaps_s) >= 0.2


def test_an_open_loop_waits_for_the_last_user_that_thinks(fake):
    turns = ("--turns", 3, "--turn-tokens", 10, "--think-time", 0.1)
    said = results(fake().url, *SMALL, *turns, "-n", 3, "--rate", 100, "--warmup", 0)
    assert (said["completed"], said["not_sent"]) == (3, 0)


# what is asked


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "name",
    [
        name if i % 4 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(preset_names())
    ],
)
def test_every_workload_that_comes_along_can_be_sent(fake, name):
    server = fake()
    said = results(server.url, "--workload", name, "-n", 6, "-c", 3)
    assert said["completed"] == 6
    assert said["dataset_name"] == name


def test_a_workload_of_ones_own(fake, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'request_count = 7\n[[part]]\ninput_tokens = 30\noutput_tokens = "uniform:min=2,max=5"\n'
    )
    said = results(fake().url, "--workload", tmp_path / "mine.toml")
    assert said["completed"] == 7
    assert said["total_input_tokens"] == 210
    assert 14 <= said["total_output_tokens"] <= 35


MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]}
{"timestamp": 100, "input_length": 1536, "output_length": 4, "hash_ids": [7, 8, 10]}
{"timestamp": 200, "input_length": 600, "output_length": 2, "hash_ids": [11, 12]}
"""


def test_a_trace_keeps_its_times_lengths_and_what_prompts_share(fake, tmp_path):
    server, trace = fake(), tmp_path / "t.jsonl"
    trace.write_text(MOONCAKE)
    run(server.url, "--trace", trace, "--warmup", 0, "--out", tmp_path / "out", "--time-scale", 2)
    sent = lines(tmp_path / "out" / "bench.requests.jsonl")
    assert [one["due_s"] for one in sent] == pytest.approx([0.0, 0.2, 0.4], abs=1e-6)
    assert [one["output_tokens"] for one in sent] == [3, 4, 2]
    first, second, third = (body["prompt"] for body in server.bodies)
    assert [len(first), len(second), len(third)] == [1100, 1536, 600]
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:1100]
    assert third[:512] not in (first[:512], second[:512])


def test_what_a_run_left_can_be_replayed(fake, tmp_path):
    server = fake()
    run(server.url, *SMALL, "-n", 5, "--rate", 100, "--out", tmp_path / "out")
    said = results(server.url, "--trace", tmp_path / "out" / "bench.requests.jsonl")
    assert (said["completed"], said["total_input_tokens"]) == (5, 100)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.jsonl", '{"q": "one two", "n": 3}\n{"q": "four five six", "n": 4}\n'),
        ("d.json", '[{"q": "one two", "n": 3}, {"q": "four five six", "n": 4}]'),
        ("d.csv", 'q,n\none two,3\n"four five six",4\n'),
    ],
)
def test_data_sets_of_each_form(fake, tmp_path, name, text):
    server, path = fake(), tmp_path / name
    path.write_text(text)
    said = results(
        server.url, "--dataset", path, "--prompt-column", "q", "--output-column", "n", "-n", 2,
        "--warmup", 0, "-c", 1,
    )  # fmt: skip
    assert sorted(body["prompt"] for body in server.bodies) == ["four five six", "one two"]
    assert sorted(body["max_tokens"] for body in server.bodies) == [3, 4]
    assert said["total_output_tokens"] == 7
    assert said["dataset_name"] == "d"


def test_conversations_carry_the_answers_back(fake):
    server = fake()
    said = results(
        server.url, *SMALL, "--turns", 3, "--turn-tokens", 10, "-n", 3, "-c", 1, "--warmup", 0
    )
    assert said["completed"] == 3
    first, second, third = (body["messages"] for body in server.bodies)
    assert [len(first), len(second), len(third)] == [1, 3, 5]
    assert second[:1] == first
    assert third[:3] == second
    assert second[1] == {"role": "assistant", "content": " 0 1 2 3"}


def test_a_shared_prefix_is_the_same_tokens_and_the_rest_is_not(fake):
    server = fake()
    results(
        server.url, "--input-tokens", 60, "--output-tokens", 2, "--shared-prefix", 40, "-n", 6,
        "--prefixes", 2, "--warmup", 0, "--seed", 1,
    )  # fmt: skip
    prompts = [body["prompt"] for body in server.bodies]
    assert {len(prompt) for prompt in prompts} == {60}
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 2
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 6


def test_requests_are_spread_over_adapters_by_weight(fake):
    server = fake(model="a")
    results(
        server.url,
        *SMALL,
        "--lora",
        "a=1",
        "--lora",
        "b=3",
        "-n",
        8,
        "-c",
        1,
        "--warmup",
        0,
        code=3,
    )
    asked = [body["model"] for body in server.bodies]
    assert (asked.count("a"), asked.count("b")) == (2, 6)


@pytest.mark.timed
@pytest.mark.parametrize("routing", ["round-robin", "least_outstanding"])
def test_several_servers_share_the_load(fake, routing):
    servers = [fake(ttft_s=0.01), fake(ttft_s=0.01)]
    told = record(
        servers[0].url, servers[1].url + "/v1", *SMALL, "-n", 10, "-c", 2, "--routing", routing,
        "--warmup", 0,
    )  # fmt: skip
    assert told["results"]["completed"] == 10
    assert [len(server.truths) for server in servers] == [5, 5]
    assert told["metadata"]["urls"] == [server.url for server in servers]


def test_whole_answers_have_no_first_token_and_say_so(fake):
    server = fake(ttft_s=0.01)
    printed = run(server.url, *SMALL, "--no-stream", "-n", 5)
    assert not any(body["stream"] for body in server.bodies)
    assert not re.search("TTFT|TPOT|ITL", printed)
    assert "of median E2E latency" in printed


def test_what_goes_along_with_each_body(fake):
    server = fake()
    run(
        server.url, *SMALL, "-n", 1, "--warmup", 0, "--extra-body", '{"top_k": 1, "seed": null}',
        "--min-tokens", "--temperature", 0.5,
    )  # fmt: skip
    body = server.bodies[0]
    assert (body["top_k"], body["min_tokens"], body["temperature"]) == (1, 4, 0.5)
    assert body["ignore_eos"] is True
    run(server.url, *SMALL, "-n", 1, "--warmup", 0, "--stop-at-eos")
    assert "ignore_eos" not in server.bodies[1]


def test_a_server_that_only_chats_is_asked_to_chat(chat_alone, servetune):
    url = f"http://127.0.0.1:{chat_alone.server_port}"
    done = servetune("bench", url, *SMALL, "-n", "3", "--json", "--stop-at-eos")
    assert done.returncode == 0, done.stderr
    assert "requests go to /v1/chat/completions" in done.stderr
    told = json.loads(done.stdout)
    assert told["results"]["completed"] == 3
    assert told["results"]["backend"] == "chat"
    assert told["metadata"]["model_tag"] == "talker"


def test_a_route_that_was_named_and_is_not_there_is_not_replaced(chat_alone, servetune):
    url = f"http://127.0.0.1:{chat_alone.server_port}"
    done = servetune("bench", url, *SMALL, "-n", "3", "--api", "completions")
    assert done.returncode == 3
    assert done.stderr.startswith("error: the server refused the first request with status 404")
    assert "--api says which route is asked" in done.stderr
    assert {path for path, _, _ in chat_alone.seen} == {"/v1/completions"}


# failures


def test_failures_are_counted_by_kind_with_a_sample(fake):
    server = fake(fail_share=0.5)
    printed = run(server.url, *SMALL, "-n", 40, "--warmup", 0, code=3)
    found = re.search(r"FAILED (\d+) x HTTP 500 Internal Server Error: (.*)", printed)
    assert "told to fail" in found[2]
    failed = sum(truth.fault == "fail" for truth in server.truths)
    assert int(found[1]) == failed > 0
    assert f"{40 - failed} of 40 answered" in printed
    assert f"FAILED: {failed} of 40 requests failed, more than 5% (--max-error-rate)" in printed
    assert "FAILED:" not in run(server.url, *SMALL, "-n", 40, "--max-error-rate", 1)


def test_failures_in_a_row_end_the_run(fake):
    server = fake(fail_share=1.0)
    told = record(
        server.url, *SMALL, "-n", 500, "-c", 1, "--max-failures", 5, "--warmup", 0, code=3
    )
    assert told["results"]["aborted_reason"].endswith("requests failed one after another")
    assert len(server.truths) == 5
    assert told["status"] == "failed"
    assert "failed one after another" in told["failure"]["reason"]


def test_a_share_of_failures_ends_the_run(fake):
    server = fake(fail_share=0.5, ttft_s=0.002)
    said = results(
        server.url, *SMALL, "-n", 3000, "-c", 2, "--max-error-rate", 0.2, "--warmup", 0, code=3
    )
    assert re.fullmatch(r"\d+ of the last 100 requests failed", said["aborted_reason"])
    assert said["completed"] > 0
    assert len(server.truths) < 3000


def test_a_server_that_dies_half_way_leaves_what_was_measured(fake, tmp_path):
    server = fake(die_after_answers=50, ttft_s=0.01)
    out = tmp_path / "out"
    options = (
        server.url, *SMALL, "-n", 5000, "-c", 2, "--max-failures", 10, "--out", out, "--warmup", 0
    )  # fmt: skip
    said = results(*options, code=3)
    assert 0 < said["completed"] <= 51
    assert {one["outcome"] for one in said["failures"]} & {"refused", "disconnected"}
    assert said["mean_ttft_ms"] > 10
    assert read_journal(out / "bench.jsonl")[0].results["completed"] == said["completed"]
    assert (out / "bench.html").exists()


def test_a_run_that_is_killed_leaves_what_was_measured(fake, tmp_path):
    server = fake(ttft_s=0.005)
    out = tmp_path / "out"
    words = (*COMMAND, server.url, *SMALL, "-n", "100000", "-c", "2", "--out", str(out))
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        requests = out / "bench.requests.jsonl"
        deadline_s = time.monotonic() + 60
        while not (requests.exists() and requests.read_bytes().count(b"\n") > 500):
            assert time.monotonic() < deadline_s
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    kept, admitted_s = read_requests(requests)
    assert len(kept) == len(admitted_s) > 500
    assert all(one.outcome == "ok" and len(one.chunk_times_s) == 4 for one in kept)
    (left,) = read_journal(out / "bench.jsonl")
    assert left.results["interrupted"] is True
    assert left.results["completed"] > 50
    assert left.results["not_sent"] > 90_000
    assert left.results["output_throughput"] > 0
    done = CliRunner().invoke(cli, ["report", str(out / "bench.jsonl")], standalone_mode=False)
    assert done.exception is None, done.output
    again = CliRunner().invoke(cli, ["bench", *words[5:]], standalone_mode=False)
    assert "exists already" in str(again.exception)


def test_a_disk_that_is_full_costs_the_files_of_a_run_in_progress_and_not_the_run(
    fake, tmp_path, monkeypatch
):
    def full(*_):
        raise StoreError("cannot write: no space left")

    server, out = fake(ttft_s=0.01), tmp_path / "out"
    monkeypatch.setattr(RequestLog, "add", full)
    done = api.bench(server.url, concurrency=1, requests=200, output_tokens="4", out=out)
    assert done.record.results["completed"] == 200
    assert len(read_requests(out / "bench.requests.jsonl")[0]) == 200


def test_a_level_whose_answers_are_cut_is_not_the_largest(fake):
    load = (fake().url, *SMALL, "-c", "1,2", "-n", 4, "--constraints", "ttft:p99<=9s")
    assert "largest within ttft:p99<=9s: 2" in run(*load)
    printed = run(*load, "--extra-body", '{"max_tokens": 3}', code=1)
    assert "no level is within ttft:p99<=9s" in printed
    assert "NOT COMPARED at 1: 4 of 4 answers have another length" in printed


def test_an_answer_of_another_length_is_reported_and_fails_if_it_must_not_be(fake):
    server = fake(silent_every=2)
    said = results(server.url, *SMALL, "-n", 4)
    assert said["failed"] == 0
    assert said["wrong_length"]["count"] == 0
    short = json.dumps({"max_tokens": 3})
    said = results(server.url, *SMALL, "-n", 4, "--extra-body", short)
    assert (said["failed"], said["wrong_length"]["count"]) == (0, 4)
    printed = run(server.url, *SMALL, "-n", 4, "--extra-body", short)
    assert "4 answers do not have the requested length" in printed
    said = results(server.url, *SMALL, "-n", 4, "--extra-body", short, "--strict-length", code=3)
    assert said["failed"] == 4


# what is told


def test_the_json_is_the_journals_record(fake, tmp_path):
    told = record(fake().url, *SMALL, "-n", 5, "--out", tmp_path)
    (kept,) = read_journal(tmp_path / "bench.jsonl")
    assert told == msgspec.to_builtins(kept)


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("vllm", r"^median_ttft_ms +[\d.]+"),
        ("aiperf", r"^time_to_first_token +avg [\d.]+, p50 [\d.]+, p90 [\d.]+, p99 [\d.]+ ms"),
        ("guidellm", r"^time_to_first_token_ms\.successful +mean [\d.]+, p50 [\d.]+, p90"),
    ],
)
def test_the_figures_as_another_tool_names_them(fake, tool, line):
    server = fake(ttft_s=0.005)
    said = results(server.url, *SMALL, "-n", 5, "--compat", tool)
    assert said["compat"][tool]
    printed = run(server.url, *SMALL, "-n", 5, "--compat", tool)
    assert f"as {tool} defines and names them" in printed
    assert re.search(line, printed, re.MULTILINE)


def test_goodput_and_limits_are_judged(fake):
    server = fake(ttft_s=0.05)
    printed = run(
        server.url, *SMALL, "-n", 6, "--slo", "ttft<10ms", "--constraints",
        "ttft:p99<=10ms;e2e_latency:p50<60s;output_throughput>1", code=1,
    )  # fmt: skip
    assert re.search(r"goodput +0 requests/s within limits, 0.0% of the requests", printed)
    assert re.search(r"MISSES ttft:p99<=10ms: \d", printed)
    assert "holds e2e_latency:p50<60s" in printed or "holds e2e_latency:median<60s" in printed
    assert "holds output_throughput" in printed


def test_every_form_of_the_requests_says_the_same(fake, tmp_path):
    server = fake(ttft_s=0.01, itl_s=0.002, fail_share=0.2)
    run(server.url, *SMALL, "-n", 20, "--rate", 100, "--warmup", 0, "--out", tmp_path, code=3)
    told = lines(tmp_path / "bench.requests.jsonl")
    with (tmp_path / "bench.requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(told) == len(rows) == 20
    assert any(one["outcome"] != "ok" for one in told)
    for one, row in zip(told, rows, strict=True):
        assert (str(one["index"]), one["outcome"]) == (row["index"], row["outcome"])
        assert (str(one["output_tokens"]), str(one["input_tokens"])) == (
            row["output_tokens"],
            row["input_tokens"],
        )
        for name in ("due_s", "sent_s", "end_s", "first_token_s"):
            assert (row[name] or None) == (None if one[name] is None else repr(one[name]))
        times_s = one.get("token_times_s") or []
        assert len(times_s) == (4 if one["outcome"] == "ok" else 0)
        assert times_s[:1] == ([] if one["first_token_s"] is None else [one["first_token_s"]])


def test_parquet_says_the_same(fake, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    server = fake(ttft_s=0.01, tokens_per_chunk=3, fail_share=0.2)
    run(server.url, *SMALL, "-n", 20, "--warmup", 0, "--out", tmp_path, code=3)
    told = lines(tmp_path / "bench.requests.jsonl")
    rows = parquet.read_table(tmp_path / "bench.requests.parquet").to_pylist()
    assert len(rows) == 20
    for one, row in zip(told, rows, strict=True):
        assert list(one.get("token_times_s") or []) == row["chunk_times_s"]
        for name in ("index", "due_s", "sent_s", "end_s", "first_token_s", "outcome"):
            assert one[name] == row[name]
        assert sum(row["chunk_tokens"]) == one["output_tokens"]


def test_without_pyarrow_there_is_a_note_and_no_parquet(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("servetune.api.benchmark.has_parquet", lambda: False)
    run(fake().url, *SMALL, "-n", 2, "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bench.html",
        "bench.json",
        "bench.jsonl",
        "bench.requests.csv",
        "bench.requests.jsonl",
        "bench.server.json",
        "bench.toml",
    ]


def test_a_dry_run_sends_nothing_and_shows_no_key(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_TEST_KEY", "sk-planted-1234")
    server = fake()
    printed = run(
        server.url, *SMALL, "--model", "fake", "--dry-run", "--api-key-env", "BENCH_TEST_KEY",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert "POST /v1/completions" in printed
    assert "Authorization: Bearer $BENCH_TEST_KEY" in printed
    assert "100 requests; nothing was sent" in printed
    assert "sk-planted" not in printed
    assert server.connection_count == 0
    assert not (tmp_path / "out").exists()


def test_a_key_goes_to_the_server_and_nowhere_else(chat_alone, tmp_path):
    key = "sk-planted-5678"
    url = f"http://127.0.0.1:{chat_alone.server_port}"
    process = subprocess.Popen(
        [
            *COMMAND, url, *SMALL, "-n", "60", "--api", "chat", "--api-key-env", "BENCH_TEST_KEY",
            "--out", tmp_path / "out", "-c", "1", "--think-time", "0.01",
        ],
        env={**os.environ, "BENCH_TEST_KEY": key},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    deadline_s = time.monotonic() + 30
    while len(chat_alone.seen) < 10 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    printed = "".join(process.communicate(timeout=60))
    assert "servetune.traffic" in listed.stdout or "servetune bench" in listed.stdout
    assert process.returncode == 0, printed
    assert {headers["Authorization"] for _, headers, _ in chat_alone.seen} == {f"Bearer {key}"}
    assert key not in listed.stdout
    assert key not in printed
    for path in (tmp_path / "out").iterdir():
        assert key.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("warmup", ["0", "1"])
def test_a_server_that_repeats_the_key_tells_nobody(chat_alone, servetune, tmp_path, warmup):
    chat_alone.repeats_key = True
    done = servetune(
        "bench", f"http://127.0.0.1:{chat_alone.server_port}", *SMALL, "-n", "3", "--api", "chat",
        "--api-key-env", "BENCH_TEST_KEY", "--out", "out", "--warmup", warmup,
        env={**os.environ, "BENCH_TEST_KEY": "sk-planted-9999"},
    )  # fmt: skip
    assert done.returncode == 3
    printed = done.stdout + done.stderr
    assert "not Bearer $BENCH_TEST_KEY more" in printed
    assert "\x1b" not in printed
    assert "sk-planted" not in printed
    if warmup == "1":
        assert "hint: name the environment variable" in printed
    for path in tmp_path.rglob("bench.*"):
        assert b"sk-planted" not in path.read_bytes(), path


def test_trace_headers_name_one_run(chat_alone):
    url = f"http://127.0.0.1:{chat_alone.server_port}"
    run(url, *SMALL, "-n", 3, "--api", "chat", "--trace-headers", "--warmup", 0)
    parents = [headers.get("traceparent", "") for _, headers, _ in chat_alone.seen]
    found = [re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01", each) for each in parents]
    assert all(found)
    assert len({match[0] for match in found}) == 3


def test_interrupting_a_run_leaves_what_was_measured(fake, tmp_path):
    server = fake(ttft_s=0.02, itl_s=0.005)
    process = subprocess.Popen(
        [*COMMAND, server.url, *SMALL, "-n", "5000", "-c", "2", "--out", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 30
    while len(server.truths) < 10 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of its processes
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "INTERRUPTED: results up to the interruption" in printed
    assert "Traceback" not in errors
    (kept,) = read_journal(tmp_path / "out" / "bench.jsonl")
    assert kept.results["interrupted"] is True
    assert 0 < kept.results["completed"] < 5000
    assert {path.suffix for path in (tmp_path / "out").iterdir()} >= {".jsonl", ".csv", ".html"}


def test_interrupting_the_warm_up_leaves_a_record_of_nothing(fake, tmp_path):
    server = fake(ttft_s=60)
    process = subprocess.Popen(
        [*COMMAND, server.url, *SMALL, "-n", "5", "--out", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 30
    while not server.running_count and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "5 requests were not sent" in printed
    assert read_journal(tmp_path / "out" / "bench.jsonl")[0].status == "failed"


def test_a_simulated_server_is_said_to_be_one(servetune, tmp_path):
    engine = subprocess.Popen(
        [
            sys.executable, "-m", "servetune", "simulate", "--serve", "--model", "Qwen/Qwen3-4B",
            "--gpu", "L4", "--port", "0", "--speed", "20",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        url = _url_of(engine)
        done = servetune(
            "bench", url, "--input-tokens", "50", "--output-tokens", "8", "-n", "6", "-c", "2",
            "--out", "out",
        )  # fmt: skip
    finally:
        engine.terminate()
        engine.communicate(timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SIMULATED: the server simulates an engine, 20 times as fast")
    (kept,) = read_journal(tmp_path / "out" / "bench.jsonl")
    assert kept.simulated
    assert kept.results["simulated_speed"] == 20


def _url_of(engine):
    """Where it listens, once it answers."""
    said = ""
    for line in engine.stdout:
        said += line
        match = re.search(r"http://[\w.]+:\d+", line)
        if match:
            break
    else:
        raise AssertionError(said)
    host, _, port = match[0].removeprefix("http://").partition(":")
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            connection = http.client.HTTPConnection(host, int(port), timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return match[0]
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError(said)


def test_the_exit_code_says_whether_the_limits_hold(fake):
    server = fake(ttft_s=0.02)
    run(server.url, *SMALL, "-n", 3, "--constraints", "ttft:p99<=60s", code=0)
    run(server.url, *SMALL, "-n", 3, "--constraints", "ttft:p99<=20ms", code=1)


def test_the_page_speaks_of_what_a_client_can_see(fake, tmp_path):
    run(fake().url, *SMALL, "-n", 3, "--rate", 100, "--out", tmp_path)
    page = (tmp_path / "bench.html").read_text()
    assert '"seen_by_client":true' in page.replace(" ", "")
    assert '"simulated":true' not in page.replace(" ", "")
