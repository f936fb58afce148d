"""Servers in containers, with a stand-in for Docker's daemon: they are nobody's children here."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from guards import await_line, kill_all_guards, leftovers_found, watchdog_of

import forked
from servetune.servers.leftovers import OWNER_MARK

pytestmark = pytest.mark.xdist_group("processes")

DOUBLE = Path(__file__).parents[1] / "servers/doubles/docker_double.py"
FAKE = f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}}"
DOCKER = ("--launcher", "docker", "--image", "me/engine:1")


@pytest.fixture
def docker(tmp_path, sweep):
    """The environment in which `docker` is the stand-in; its daemon ends with the test."""
    path, bin_folder = tmp_path / "docker.sock", tmp_path / "bin"
    bin_folder.mkdir()
    client = bin_folder / "docker"
    client.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {DOUBLE} "$@"\n')
    client.chmod(0o755)
    words = [sys.executable, str(DOUBLE), "daemon", str(path)]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    assert daemon.stdout.readline() == "listening\n"
    yield {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_DOUBLE": str(path),
        "HF_HOME": str(tmp_path / "hub"),
    }
    left = servers_of(daemon.pid)
    daemon.kill()
    daemon.communicate()
    assert left == []


def servers_of(daemon_pid):
    listed = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(daemon_pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if "defunct" not in line]


def whole(sweep, words):
    """The words with the model's whole path: a container has no current folder."""
    return [str(sweep.folder / "tiny") if word == "tiny" else word for word in words]


def test_a_sweep_runs_in_containers_and_leaves_none(sweep, docker):
    given = ("--server-env", "WIDGET=dark blue", "--server-env", "DOCKER_DOUBLE")
    words = whole(sweep, sweep.words(FAKE, *DOCKER, *given, server_args="max_num_seqs=[8,9]"))
    done = forked.run(
        words,
        cwd=sweep.folder,
        env=docker,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    records = sweep.records()
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(record.cmd.startswith("docker run --rm --init") for record in records)
    assert all(f"{sweep.folder}/tiny:ro" in record.cmd for record in records)
    for word in ("'--env=WIDGET=dark blue'", "--env=DOCKER_DOUBLE "):
        assert all(word in record.cmd for record in records)
    marked = f"--env={OWNER_MARK}"  # so that doctor knows one that is left
    assert all(marked in record.cmd for record in records)
    assert "listening on" in (sweep.folder / records[0].server_log).read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_container(sweep, docker, how):
    words = whole(
        sweep, sweep.words(f"{FAKE} --itl-s 0.2", *DOCKER, client="num_prompts=500", output_len=64)
    )
    run = forked.Process(words, cwd=sweep.folder, env=docker, stderr=subprocess.PIPE, text=True)
    while "ready after" not in (line := run.stderr.readline()):
        assert line
    run.send_signal(how)
    run.communicate(timeout=60)
    sweep.await_nothing_left()  # and `docker` sees to it that nothing of its daemon's is


@pytest.mark.slow
def test_a_container_goes_although_the_client_that_stops_it_starts_late(sweep, docker):
    """On a busy machine `docker stop` was killed before it had asked for anything."""
    client = Path(docker["PATH"].split(os.pathsep)[0]) / "docker"
    begun = client.read_text()
    client.write_text(begun.replace("exec ", '[ "$1" = stop ] && sleep 4\nexec ', 1))
    run = begin(sweep, docker)
    run.kill()
    run.communicate(timeout=60)
    sweep.await_nothing_left()  # and `docker` sees to it that nothing of its daemon's is


def begin(sweep, docker):
    """A run with a container under load."""
    words = whole(
        sweep,
        sweep.words(f"{FAKE} --itl-s 0.02", *DOCKER, client="num_prompts=60", output_len=16),
    )
    run = forked.Process(words, cwd=sweep.folder, env=docker, stderr=subprocess.PIPE, text=True)
    await_line(run, "ready after")
    return run


def test_a_watchdog_that_is_killed_leaves_no_container(sweep, docker):
    run = begin(sweep, docker)
    os.kill(watchdog_of(run), signal.SIGKILL)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    [record] = sweep.records()
    assert record.status == "ok"
    assert len(record.provenance["attempts"]) == 1
    sweep.await_nothing_left()  # and `docker` sees to it that nothing of its daemon's is


def test_a_container_without_watchdog_and_servetune_is_named_by_doctor_and_the_next_run(
    sweep, docker, servetune
):
    run = begin(sweep, docker)
    kill_all_guards(run)
    told = leftovers_found(servetune, env=docker)
    [(says, mend)] = [one for one in told if one[0].startswith("container ")]
    assert re.fullmatch(r"docker rm --force servetune-\d+", mend)
    name = mend.split()[-1]
    assert says.startswith(f"container {name} (me/engine:1) was left")
    assert str(told).count(name) == 2, "its processes and its client go with it"
    more = ["--resume"] if (sweep.folder / "q.jsonl").exists() else []
    again = sweep.run(sweep.fake, *more, client="num_prompts=6", env=docker)
    assert f"end it with {mend}" in again.stderr
    assert f"(process {run.pid}, which has ended)" in again.stderr
    subprocess.run(mend.split(), env=docker, check=True)
    sweep.await_nothing_left()
    assert name not in str(leftovers_found(servetune, env=docker))


def test_a_server_that_dies_in_its_container_is_noticed_with_its_last_words(sweep, docker):
    broken = f"{shlex.quote(sys.executable)} -c 'import sys; sys.exit(\"out of luck\")' {{port}}"
    words = whole(sweep, sweep.words(broken, *DOCKER, "--retries", "0"))
    begun_s = time.monotonic()
    done = forked.run(
        words,
        cwd=sweep.folder,
        env=docker,
        timeout=120,
    )
    assert done.returncode == 3
    [record] = sweep.records()
    assert record.failure.kind == "died"
    assert "out of luck" in record.failure.log_tail
    assert time.monotonic() - begun_s < 60, "the time-out of ten minutes was not waited for"


def test_a_daemon_that_does_not_answer_is_refused_before_anything_starts(sweep, docker):
    (sweep.folder / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    done = forked.run(
        whole(sweep, sweep.words(FAKE, *DOCKER)),
        cwd=sweep.folder,
        env=docker,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: Docker's daemon does not answer")
    assert "hint: see what `docker version` says" in done.stderr
    assert not (sweep.folder / "q.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--image", "x"], "--image is for --launcher docker"),
        (["--launcher", "docker"], "needs the engine's image"),
        ([*DOCKER, "--cluster", "auto"], "--cluster runs servers on others"),
        ([*DOCKER, "--engine", "simulated"], "whose servers are started"),
        ([*DOCKER, "--gpu", "MI300X"], "supports NVIDIA's GPUs"),
        ([*DOCKER, "--gpu", "L4"], "docker is not on PATH"),
    ],
)
def test_what_docker_cannot_do_is_refused_before_anything_starts(servetune, options, problem):
    done = servetune(
        "tune", "--model", "Qwen/Qwen3-4B", *options,
        env={**os.environ, "PATH": "/nowhere"},
    )  # fmt: skip
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("error: ")
    assert problem in done.stderr
    assert "hint:" in done.stderr
