"""Servers that fail, each a real process: what the run makes of it, and what the journal says."""

import shlex
import subprocess
import sys

import pytest
from guards import await_line

from servetune.servers.drain import MOST_BYTES
from servetune.servers.ports import free_port


def starts(done):
    return done.stderr.count("\nstarting ") + done.stderr.startswith("starting ")


def test_a_server_that_exits_at_once_is_started_twice_and_called_broken(sweep):
    done = sweep.run(
        sweep.server("moody.py", "--moods exits-spring"), client="max_concurrency=[2,4]"
    )
    assert done.returncode == 3
    assert starts(done) == 2
    one, other = sweep.records()
    for record in (one, other):
        assert "RuntimeError: the spring gave way" in record.failure.reason
        assert "exit code 1 before it was ready" in record.failure.reason
    assert [attempt["of"] for attempt in one.provenance["attempts"]] == ["start", "start"]


def test_a_server_that_fails_in_another_way_each_time_is_flaky_and_gets_its_chance(sweep):
    done = sweep.run(sweep.server("moody.py", "--moods exits-spring,exits-latch,fine"))
    assert done.returncode == 0, done.stderr
    assert starts(done) == 3
    [record] = sweep.records()
    assert record.status == "ok"
    first, second = record.provenance["attempts"]
    assert "spring" in first["reason"]
    assert "latch" in second["reason"]
    assert first["server_log"] != second["server_log"]


def test_retries_are_as_many_as_were_asked_for(sweep):
    done = sweep.run(
        sweep.server("moody.py", "--moods exits-spring,exits-latch,fine"), "--retries", 0
    )
    assert done.returncode == 3
    assert starts(done) == 1
    [record] = sweep.records()
    assert "spring" in record.failure.reason


def test_a_server_that_dies_in_the_middle_of_load_costs_no_trial(sweep):
    done = sweep.run(
        sweep.server("moody.py", "--moods dies,fine"), client="max_concurrency=[2,4];num_prompts=20"
    )
    assert done.returncode == 0, done.stderr
    assert starts(done) == 2
    records = sweep.records()
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(record.results["completed"] == 20 for record in records)
    [attempt] = records[0].provenance["attempts"]
    assert attempt["of"] == "trial"
    assert attempt["kind"] == "died"
    assert "attempts" not in records[1].provenance


def test_a_trial_that_breaks_every_server_is_broken_and_the_others_are_measured(sweep):
    done = sweep.run(
        # An answer takes a tenth of a second: four of six users meet on a busy machine.
        f"{sweep.simulated} --oom-at-concurrency 4 --speed 1",
        client="max_concurrency=[2,6,3];num_prompts=24",
        output_len=64,
    )
    assert done.returncode == 3
    two, six, three = sweep.records()
    assert (two.status, six.status, three.status) == ("ok", "failed", "ok")
    assert six.failure.kind == "out_of_memory"
    assert len(six.provenance["attempts"]) == 1
    assert starts(done) == 3


@pytest.mark.slow
def test_a_configuration_that_keeps_failing_is_quarantined(sweep):
    done = sweep.run(
        # An answer takes a tenth of a second: users meet on a busy machine.
        f"{sweep.simulated} --oom-at-concurrency 4 --speed 1",
        client="max_concurrency=[2,5,6,7,8];num_prompts=24",
        output_len=64,
        server_args="max_num_seqs=[8,2]",
    )
    assert done.returncode == 3
    wide, narrow = sweep.records()[:5], sweep.records()[5:]
    kinds = [record.failure.kind if record.failure else None for record in wide]
    assert kinds == [None, "out_of_memory", "out_of_memory", "quarantined", "quarantined"]
    assert "2 trials in a row broke the server" in wide[-1].failure.reason
    assert all(record.status == "ok" for record in narrow), "another configuration is not blamed"


def test_memory_that_runs_out_at_start_is_named(sweep):
    done = sweep.run(sweep.server("greedy.py", "at-start"))
    assert done.returncode == 3
    [record] = sweep.records()
    assert record.failure.kind == "out_of_memory"
    assert "MemoryError" in record.failure.log_tail


def test_memory_that_runs_out_under_load_is_named(sweep):
    done = sweep.run(
        sweep.server("greedy.py", "under-load"),
        client="max_concurrency=[2];num_prompts=60",
    )
    assert done.returncode == 3
    [record] = sweep.records()
    assert record.failure.kind == "out_of_memory"
    assert record.failure.reason.startswith("vllm ended with exit code 1")


def test_a_share_of_errors_is_counted_and_the_trial_stands(sweep):
    done = sweep.run(
        f"{sweep.simulated} --error-rate 0.2 --seed 3",
        "--max-error-rate",
        0.5,
        client="num_prompts=50",
    )
    assert done.returncode == 0, done.stderr
    [record] = sweep.records()
    results = record.results
    assert results["completed"] + results["failed"] == 50
    assert 2 <= results["failed"] <= 25
    [reason] = results["failures"]
    assert reason["outcome"] == "http_status"


def test_streams_that_stall_end_at_the_time_limit(sweep):
    done = sweep.run(
        f"{sweep.simulated} --stall-rate 0.2 --seed 3",
        *("--request-timeout", 1.5, "--max-error-rate", 0.5),
        client="num_prompts=30",
    )
    assert done.returncode == 0, done.stderr
    [record] = sweep.records()
    assert record.results["completed"] + record.results["failed"] == 30
    assert {reason["outcome"] for reason in record.results["failures"]} == {"timeout"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hang_health", "ready_after_s"])
def test_a_server_that_takes_the_port_and_is_never_healthy_is_left(sweep, way):
    value = "true" if way == "hang_health" else "600"
    done = sweep.run(sweep.fake, "--server-timeout", 8, server_args=f"{way}={value}")
    assert done.returncode == 3
    [record] = sweep.records()
    assert record.failure.kind == "not_ready"
    assert "/health" in record.failure.reason


def test_a_foreign_server_that_takes_the_port_is_neither_measured_nor_ended(sweep):
    port = free_port()
    silent = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(600)' {{port}}"
    run = sweep.begin(silent, "--port", port)
    await_line(run, "starting ")
    words = [sys.executable, "-m", "servetune.testing.fake_server", "--port", str(port)]
    foreign = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        _, said = run.communicate(timeout=120)
        assert run.returncode == 3, said
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
    [record] = sweep.records()
    assert record.failure.kind == "port_busy"
    assert str(port) in record.failure.reason


def test_answers_of_another_length_than_asked_are_reported(sweep):
    done = sweep.run(
        sweep.server("short.py"),
        *("--max-wrong-length", 1),
        client="num_prompts=6;max_concurrency=2",
    )
    assert done.returncode == 0, done.stderr
    [record] = sweep.records()
    assert record.results["completed"] == 6
    assert record.results["wrong_length"]["count"] == 6
    assert "! 6 answers have another length than asked, such as request" in done.stderr
    assert "asked 8 tokens, got 5" in done.stderr


def test_a_setting_that_the_server_took_otherwise_is_reported(sweep):
    done = sweep.run(
        sweep.server("short.py"),
        *("--max-wrong-length", 1),
        client="num_prompts=6;max_concurrency=2",
    )
    assert "note: max_num_seqs=8 was asked, and the server took 4" in done.stderr
    [record] = sweep.records()
    assert record.results["startup"]["taken_otherwise"] == {
        "max_num_seqs": {"asked": 8, "taken": 4}
    }


@pytest.mark.slow
def test_a_server_that_writes_megabytes_with_every_request_is_measured_all_the_same(sweep):
    done = sweep.run(sweep.server("blabber.py"), client="num_prompts=40;max_concurrency=4")
    assert done.returncode == 0, done.stderr
    [record] = sweep.records()
    assert record.results["completed"] == 40
    log = sweep.folder / record.server_log
    assert 1 << 20 < log.stat().st_size <= MOST_BYTES
    assert log.read_text().startswith("listening on")
