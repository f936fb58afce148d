"""Real runs that are followed, told to stop, killed, and whose pages are killed."""

import contextlib
import json
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest
from pages_client import first

from servetune.store import read_journal

SIMULATED = (
    *("tune", "--engine", "simulated", "--model", "tiny", "--gpu", "L4", "--num-gpus", "1"),
    *("--server-args", "max_num_seqs=[8,16,32,64,128,256]", "-c", "64"),
    *("--client-args", "num_prompts=10000;random_input_len=64;random_output_len=96"),
    *("--output-json", "results/q.json"),
)
FAKE = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"


def measured(prompts):
    """Words of a study of two trials, whose requests take a tenth of a second each."""
    load = f"num_prompts={prompts};max_concurrency=1;random_input_len=16;random_output_len=4"
    return (
        *("tune", "--engine", "vllm", "--model", "tiny", "--server-cmd", f"{FAKE} --ttft-s 0.1"),
        *("--server-args", "max_num_seqs=[2]", "--client-args", load),
        *("--output-json", "results/q.json"),
    )


def keys(tmp_path):
    return [record.key for record in read_journal(tmp_path / "results" / "q.jsonl")]


def only_run(pages):
    [row] = pages.rows(bool).values()
    return row


def measuring(status):
    return status["stage"] == "measuring"


def test_a_study_is_followed_and_goes_on_when_its_pages_are_killed(
    command, pages_process, tmp_path
):
    server, pages = pages_process("ui", "results")
    study = command(*SIMULATED)
    row = only_run(pages)
    assert row["standing"] == "running"
    with pages.events(f"/runs/{row['key']}/events") as events:
        _, status = first(events, "status", lambda status: status["label"])
        assert status["label"].startswith("max_num_seqs=")
        assert (status["stage"], status["of"]) == ("simulating", 6)
        version, some = first(events, "page", lambda page: page["trials"])
        assert 0 < len(some["trials"]) < 6, "the study goes on"
        server.send_signal(signal.SIGKILL)
        server.wait()
    server, pages = pages_process("ui", "results/q.jsonl", "--port", pages.port)
    with pages.events(f"/runs/{row['key']}/events", **{"Last-Event-ID": version}) as events:
        more, page = first(events, "page")
        assert more != version
        assert len(page["trials"]) > len(some["trials"])
        if len(page["trials"]) < 6:
            page = first(events, "page", lambda page: len(page["trials"]) == 6)[1]
    assert study.wait(60) == 0
    assert pages.rows()["q.jsonl"]["standing"] == "ended"
    assert sorted(trial["key"] for trial in page["trials"]) == sorted(keys(tmp_path))
    assert not (tmp_path / "results" / "q.status.json").exists()
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0
    assert "Traceback" not in server.stderr.read()


@pytest.mark.slow
def test_a_study_that_is_killed_is_lost_and_can_be_resumed(command, pages_process, tmp_path):
    _, pages = pages_process("ui", "results")
    study = command(*SIMULATED)
    key = only_run(pages)["key"]
    with pages.events(f"/runs/{key}/events") as events:
        first(events, "status", lambda status: status["state"] == "running" and status["done"])
        study.kill()
        study.wait()
        _, status = first(events, "status", lambda status: status["state"] != "running")
    assert (status["state"], status["label"]) == ("lost", None)
    assert pages.rows()["results/q.jsonl"]["standing"] == "interrupted"
    assert pages.post(key, action="stop") == (409, {"error": "the run is not in progress"})
    assert command(*SIMULATED, "--resume").wait(60) == 0
    assert len(set(keys(tmp_path))) == 6
    assert pages.rows()["results/q.jsonl"]["standing"] == "ended"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(SIMULATED, id="simulated"),
        pytest.param(measured("[5,40]"), id="measured", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_stop_ends_a_study_as_an_interrupt_and_it_is_resumed(
    command, pages_process, tmp_path, words
):
    _, pages = pages_process("ui", "results")
    study = command(*words)
    key = only_run(pages)["key"]
    with pages.events(f"/runs/{key}/events") as events:
        first(events, "status", lambda status: status["done"])
        assert pages.post(key, action="stop")[0] == 202
        _, status = first(events, "status", lambda status: status["state"] == "ended")
    assert study.wait(60) == 130
    said = study.stderr.read()
    assert "stopping, as the page was told to" in said
    assert "--resume" in said
    assert "Traceback" not in said
    before = keys(tmp_path)
    assert 0 < len(before) == status["done"] < status["of"]
    assert pages.rows()["results/q.jsonl"]["standing"] == "interrupted"
    assert json.loads((tmp_path / "results" / "q.json").read_text())["test_results"]
    assert command(*words, "--resume").wait(60) == 0
    assert keys(tmp_path)[: len(before)] == before
    assert len(set(keys(tmp_path))) == len(keys(tmp_path)) == status["of"]


@pytest.mark.slow
def test_a_trial_that_is_put_off_runs_last_and_once(command, pages_process, tmp_path):
    _, pages = pages_process("ui", "results")
    study = command(*measured("[40,5]"))
    key = only_run(pages)["key"]
    with pages.events(f"/runs/{key}/events") as events:
        _, status = first(events, "status", lambda status: measuring(status) and not status["done"])
        put_off = status["running"][0]
        assert pages.post(key, action="put_off")[0] == 202
        _, status = first(events, "status", lambda status: status["note"])
        assert status["note"] == f"{put_off['label']} is put off to the end of the study"
        _, status = first(events, "status", lambda status: status["done"] and measuring(status))
        assert status["label"] == put_off["label"]
        assert pages.post(key, action="put_off")[0] == 202
        _, status = first(events, "status", lambda status: "cannot" in status["note"])
        assert status["note"].endswith("cannot be put off: no other trial is to run before it")
    assert study.wait(60) == 0
    assert keys(tmp_path)[-1] == put_off["key"]
    assert len(set(keys(tmp_path))) == len(keys(tmp_path)) == 2


def test_a_simulated_trial_cannot_be_put_off(command, pages_process, tmp_path):
    _, pages = pages_process("ui", "results")
    command(*(word.replace("=10000", "=40000") for word in SIMULATED))  # runs on meanwhile
    key = only_run(pages)["key"]
    status, answer = pages.post(key, action="put_off")
    assert (status, answer) == (409, {"error": "a simulated trial is computed in one go"})


@pytest.fixture
def fake_server():
    """Address of a server in a process of its own, whose answers take a tenth of a second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "servetune.testing.fake_server", "--port", str(port)]
    process = subprocess.Popen([*words, "--ttft-s", "0.1"], stdout=subprocess.DEVNULL)
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        assert process.poll() is None
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_load_test_is_followed_and_stopped(fake_server, command, pages_process, tmp_path):
    small = ("--input-tokens", "20", "--output-tokens", "4")
    _, pages = pages_process("ui", ".")
    bench = command("bench", fake_server, *small, "-c", "2,1", "-n", "60", "--out", "run")
    name = f"{tmp_path.name}/run/bench.jsonl"
    key = pages.rows(lambda rows: name in rows)[name]["key"]
    with pages.events(f"/runs/{key}/events") as events:
        _, status = first(events, "status", lambda status: measuring(status) and status["done"])
        assert (status["label"], status["done"], status["of"]) == ("1 users", 1, 2)
        assert status["throughput"] > 0
        status, answer = pages.post(key, action="put_off")
        assert (status, answer["error"]) == (409, "a load test has no other trial to run first")
        assert pages.post(key, action="stop")[0] == 202
        first(events, "page", lambda page: len(page["trials"]) == 2)
    assert bench.wait(60) == 130
    assert pages.rows()[name]["standing"] == "interrupted"
