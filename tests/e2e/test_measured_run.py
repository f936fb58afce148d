"""The whole thread against real server processes: servetune's own fake server, with faults."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked
from servetune.store import read_journal

FAKE = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"


@pytest.fixture
def tune(servetune, tiny):
    """`servetune tune` against the fake server, with a tiny model's configuration."""

    def run(server_args, *more, client="max_concurrency=[2,4];num_prompts=12", **options):
        return servetune(*arguments(server_args, client), *more, **options)

    return run


def arguments(server_args, client):
    return (
        "tune",
        "--engine",
        "vllm",
        "--model",
        "tiny",
        "--server-cmd",
        FAKE,
        "--server-args",
        server_args,
        "--client-args",
        f"{client};random_input_len=16;random_output_len=8",
        "--output-json",
        "q.json",
    )


def leftovers(folder):
    """Processes whose working folder is the test's: servers that outlived their run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append((int(entry.name), (entry / "cmdline").read_bytes()))
        except OSError:
            continue
    return found


def await_leftovers_gone(folder, within_s=15):
    deadline_s = time.monotonic() + within_s
    while leftovers(folder) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert leftovers(folder) == []


def records_of(folder):
    return read_journal(folder / "q.jsonl")


def test_a_server_starts_once_per_server_configuration(tune, tmp_path):
    done = tune("max_num_seqs=[2,8]")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\nready after") == 2
    records = records_of(tmp_path)
    assert [r.status for r in records] == ["ok"] * 4
    assert all(r.simulated is False for r in records)
    assert all(r.results["completed"] == 12 for r in records)
    assert {r.config.server_cmd_args[0] for r in records} == {
        "--max-num-seqs=2",
        "--max-num-seqs=8",
    }
    for record in records:
        assert "listening" in (tmp_path / record.server_log).read_text()
        assert record.provenance["started_at"] <= record.provenance["ended_at"]
    await_leftovers_gone(tmp_path)


def test_two_trials_on_one_server_do_not_share_prompts(tune, tmp_path):
    assert tune("max_num_seqs=8").returncode == 0
    for record in records_of(tmp_path):
        assert record.results["server"]["prefix_hits_tokens"] == 0


@pytest.mark.slow
def test_a_server_that_dies_under_load_is_a_failed_record_and_the_sweep_goes_on(tune, tmp_path):
    done = tune("die_at_request=[8,1000000]")
    assert done.returncode == 3
    dying, living = records_of(tmp_path)[:2], records_of(tmp_path)[2:]
    for record in dying:
        assert record.status == "failed"
        assert record.failure.reason
    assert [r.status for r in living] == ["ok", "ok"]
    await_leftovers_gone(tmp_path)


@pytest.mark.slow
def test_a_server_that_never_gets_ready_is_a_failed_record_with_its_log(tune, tmp_path):
    done = tune("ready_after_s=[60,0]", "--server-timeout", "8")
    assert done.returncode == 3
    waiting = records_of(tmp_path)[:2]
    assert [r.failure.kind for r in waiting] == ["not_ready"] * 2
    assert "listening" in waiting[0].failure.log_tail
    assert [r.status for r in records_of(tmp_path)[2:]] == ["ok", "ok"]
    await_leftovers_gone(tmp_path)


def test_a_server_that_refuses_its_arguments_is_a_failed_record_with_its_words(tune, tmp_path):
    done = tune("no_such_argument=[1];max_num_seqs=[4]")
    assert done.returncode == 3
    assert all("no-such-argument" in r.failure.log_tail for r in records_of(tmp_path))


def test_failed_requests_are_counted(tune, tmp_path):
    done = tune("fail_share=0.5", client="max_concurrency=2;num_prompts=40;warmup_requests=8")
    assert done.returncode == 3, done.stderr  # more failures than --max-error-rate
    (record,) = records_of(tmp_path)
    results = record.results
    assert results["completed"] + results["failed"] == 40
    assert 5 <= results["failed"] <= 35
    assert results["failures"][0]["outcome"] == "http_status"
    assert results["error_rate"] == pytest.approx(results["failed"] / 40)


def start(tmp_path, server_args, client):
    return forked.Process(
        [*forked.COMMAND, *arguments(server_args, client)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_lines(journal, count):
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if journal.exists() and journal.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the journal did not grow")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_stops_the_server_and_says_how_to_go_on(tmp_path, servetune, tiny, stop):
    process = start(tmp_path, "itl_s=0.05", "max_concurrency=[1,2,4];num_prompts=10")
    await_lines(tmp_path / "q.jsonl", 1)
    time.sleep(0.3)
    process.send_signal(stop)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in said
    await_leftovers_gone(tmp_path)
    done = servetune(*arguments("itl_s=0.05", "max_concurrency=[1,2,4];num_prompts=10"), "--resume")
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path)
    assert [r.config.client_args["max_concurrency"] for r in records] == [1, 2, 4]
    assert len({r.key for r in records}) == len(records) == 3


@pytest.mark.slow
def test_kill_9_leaves_no_server_and_resume_runs_only_what_is_missing(tmp_path, servetune, tiny):
    sweep = ("max_num_seqs=[2,8];itl_s=0.03", "max_concurrency=[2,4];num_prompts=12")
    process = start(tmp_path, *sweep)
    await_lines(tmp_path / "q.jsonl", 1)
    time.sleep(0.2)
    process.kill()
    process.communicate(timeout=30)
    await_leftovers_gone(tmp_path)
    kept = {r.key: r for r in records_of(tmp_path)}
    done = servetune(*arguments(*sweep), "--resume")
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path)
    assert len(records) == 4
    for record in records:
        assert kept.get(record.key, record) == record


def test_an_engine_that_is_not_installed_is_reported_before_anything_starts(
    servetune, tmp_path, tiny
):
    environment = {k: v for k, v in os.environ.items() if k != "SERVETUNE_VLLM"}
    done = servetune(
        "tune",
        "--model",
        "tiny",
        "--output-json",
        "q.json",
        env={**environment, "PATH": "/nowhere"},
    )
    assert done.returncode == 3
    assert "not installed" in done.stderr
    assert "pip install vllm" in done.stderr
    assert not (tmp_path / "q.jsonl").exists()
