"""The simulated engine as a process of its own, started and measured as a real one would be."""

import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import forked
from servetune.engines import engine
from servetune.servers import free_port
from servetune.store import read_journal

MODEL = "Qwen/Qwen3-4B"
SERVE = f"{shlex.quote(sys.executable)} -m servetune.cli.serve_simulated"
SPEED = 2.0
DRAFTS = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}']


def tune(servetune, command, *more, server_args="max_num_seqs=8", client="max_concurrency=8"):
    return servetune(
        "tune",
        "--model",
        MODEL,
        "--gpu",
        "L4",
        "--server-cmd",
        f"{SERVE} {{model}} --gpu L4 --port {{port}} {command}",
        "--server-args",
        server_args,
        "--client-args",
        f"{client};num_prompts=24;random_input_len=200;random_output_len=24",
        "--output-json",
        "q.json",
        *more,
    )


def records_of(folder):
    return read_journal(folder / "q.jsonl")


@pytest.mark.slow
@pytest.mark.timed
def test_what_tune_measures_over_http_is_what_the_simulator_says(servetune, tmp_path):
    done = tune(
        servetune,
        f"--speed {SPEED}",
        # A server composes ahead as vLLM does on a GPU, the simulator not in a closed loop, whose
        # fitted waits hold that: said here, so that both do the same.
        server_args="max_num_batched_tokens=[256,2048];async_scheduling=False",
        # Lengths differ: users of equal requests end in the same instant of virtual time, and
        # share a step there that they cannot share over sockets.
        client="max_concurrency=[3,8];random_range_ratio=0.5",
    )
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path)
    assert len(records) == 4
    for record in records:
        assert record.status == "ok"
        assert record.simulated
        assert record.results["simulated_speed"] == SPEED
        measured, simulated = record.results, record.predicted
        log = (tmp_path / record.server_log).read_text()
        assert "SIMULATED" in log
        if "behind its own clock" in log or measured["instrument"]["loop_lag_p99_s"] > 0.01:
            pytest.skip("this machine is too busy to keep a clock by")
        assert measured["completed"] == 24
        assert measured["total_output_tokens"] == simulated["total_output_tokens"]
        assert measured["server"]["output_tokens"] == simulated["total_output_tokens"]
        # Later by up to 1 ms of asyncio's timers and the sockets' own time; the mean TTFT also
        # by luck, as which step a request just catches is decided by less than that.
        for name, least, most in (("mean_ttft_ms", 0.85, 1.25), ("mean_tpot_ms", 0.98, 1.05)):
            ratio = measured[name] * SPEED / simulated[name]
            assert least <= ratio <= most, (name, ratio)
        ratio = measured["output_throughput"] / SPEED / simulated["output_throughput"]
        assert 0.93 <= ratio <= 1.02


@pytest.mark.timed
def test_it_stands_in_for_the_vllm_executable(servetune, tmp_path):
    shim = tmp_path / "vllm"
    shim.write_text(f'#!/bin/sh\nexec {SERVE} "$@" --gpu L4 --speed 20\n')
    shim.chmod(0o755)
    done = servetune(
        *("tune", "--model", MODEL, "--gpu", "L4", "--vllm-executable", shim),
        *("--server-args", "max_num_seqs=[1,8];enable_prefix_caching=false"),
        *("--client-args", "max_concurrency=8;num_prompts=16;random_output_len=32"),
        *("--output-json", "q.json"),
    )
    assert done.returncode == 0, done.stderr
    one, eight = records_of(tmp_path)
    assert one.cmd.endswith("--max-num-seqs=1 --no-enable-prefix-caching")
    assert one.results["server"]["max_running_count"] <= 1
    assert eight.results["output_throughput"] > 2 * one.results["output_throughput"]
    assert one.results["server"]["prefix_queries_tokens"] == 0


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        slow("--oom-at-start", "out_of_memory", "GPU is out of memory"),
        ("--oom-at-concurrency 4", "out_of_memory", "GPU is out of memory"),
        ("--die-after 0.3", "died", "dies after 0.3 s, as asked for"),
        slow("--no-such-argument", "unknown_argument", "--no-such-argument"),
        slow("-tp 3", "died", "tensor_parallel"),
        ("--max-model-len 100000", "died", "max_model_len 100000"),
    ],
)
def test_a_fault_becomes_a_failed_record_that_says_which(servetune, tmp_path, command, kind, words):
    done = tune(servetune, command)
    assert done.returncode == 3
    (record,) = records_of(tmp_path)
    assert record.failure.kind == kind, record.failure
    assert words in record.failure.reason


def test_requests_that_fail_on_demand_are_counted_by_the_client(servetune, tmp_path):
    done = tune(
        servetune,
        "--speed 20 --error-rate 0.2 --truncate-rate 0.2 --seed 3",
        "--max-error-rate",
        "1",
        client="max_concurrency=8;warmup_requests=6",
    )
    assert done.returncode == 0, done.stderr
    (record,) = records_of(tmp_path)
    outcomes = {failure["outcome"] for failure in record.results["failures"]}
    assert outcomes == {"http_status", "truncated"}
    assert record.results["completed"] + record.results["failed"] == 24


class Server:
    """A process of its own, told to stop when the test is over."""

    def __init__(self, *words):
        self.port = free_port()
        self.process = forked.Process(
            [*shlex.split(SERVE), MODEL, "--gpu", "L4", "--port", str(self.port), *words],
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def await_line(self, words):
        for line in self.process.stderr:
            if words in line:
                return
        raise AssertionError(f"it ended without saying {words}")


def test_a_slow_start_keeps_the_port_closed_until_then():
    before_s = time.monotonic()
    with Server("--slow-start", "1.0") as server:
        server.await_line("with faults on demand: slow_start_s=1.0")
        with pytest.raises(ConnectionRefusedError):
            server.get("/health")
        server.await_line("listening on")
        assert time.monotonic() - before_s >= 1.0
        assert server.get("/health")[0] == 200


def test_copies_of_both_kinds_stand_behind_one_address():
    with Server("--num-gpus", "3", "--replicas", "2", "--prefill-replicas", "1") as server:
        server.await_line("TP1 x2 prefill x1 on 3x L4")
        server.await_line("listening on")
        told = server.get("/metrics")[1].decode()
    ranks = {line.split('"')[1] for line in told.splitlines() if "num_requests_running{" in line}
    assert ranks == {"0", "1", "2"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(number):
    with Server("--served-model-name", "a", "b", "--max-num-batched-tokens", "4k") as server:
        server.await_line("listening on")
        told = json.loads(server.get("/v1/models")[1])
        assert [model["id"] for model in told["data"]] == ["a", "b"]
        os.kill(server.process.pid, number)
        assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speed", "0"], "--speed"),
        (["--error-rate", "1.5"], "--error-rate"),
        (["--error-rate", "0.7", "--stall-rate", "0.7"], "more than 1 together"),
        (["--max-num-seqs", "many"], "argument --max-num-seqs: invalid int value: 'many'"),
        (["--max-num-seq", "4"], "did you mean --max-num-seqs"),
        (["--uds", "/tmp/x"], "--uds is not simulated"),
        (["--scheduling-policy", "priority", *DRAFTS], "drafted tokens are not simulated with"),
        (["--kv-link", "network"], "needs separate copies for prompts"),
    ],
)
def test_bad_words_are_refused_before_anything_starts(words, said):
    done = ended(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "listening" not in done.stderr


def ended(*words):
    return forked.run([*shlex.split(SERVE), MODEL, "--gpu", "L4", *words], timeout=60)


@pytest.mark.parametrize(
    ("words", "said", "kind"),
    [
        (
            ["--max-num-batched-tokens", "32", "--max-num-seqs", "64"],
            "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)",
            "unknown",
        ),
        (
            ["--max-num-batched-tokens", "1024", "--no-enable-chunked-prefill"],
            "max_num_batched_tokens (1024) is smaller than max_model_len (40960)",
            "budget_below_context",
        ),
        (["--block-size", "7"], "block_size 7 is not supported", "block_size_unsupported"),
        (
            ["--num-gpu-blocks-override", "10"],
            "max seq len (40960) is larger than the maximum number of tokens that can be stored",
            "context_exceeds_cache",
        ),
        (["-tp", "3"], "32 attention heads do not divide by tensor_parallel 3", "unknown"),
        (["--max-num-seqs", "0"], "max_num_seqs must be 1 or more, got 0", "unknown"),
    ],
)
def test_a_plan_that_vllm_refuses_ends_the_process_as_vllm_ends(words, said, kind):
    done = ended(*words)
    assert done.returncode == 1
    assert "ValueError: " in done.stderr
    assert said in done.stderr
    assert "listening" not in done.stderr
    assert engine("vllm").explain(done.stderr, 1).kind == kind
