"""Runs that are cut off: by a full disk, by signals, by kill -9, by a clock that is set."""

import ast
import itertools
import random
import resource
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import servetune
from servetune.store import read_journal

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOMENTS = 6
SEED = 6

#: Where the wall clock is told to people, or compared with the kernel's stamps.
READS_THE_WALL_CLOCK = {
    "loadgen/run.py",
    "simserver/responses.py",
    "simserver/server.py",
    "loadgen/sagemaker.py",  # a signature has a date
    "traffic/load_controller.py",  # likewise
    "traffic/reactor.py",
    "store/live.py",  # the age of a status that a process of another machine wrote
    "store/catalogue.py",  # likewise
    "api/mlflow_logging.py",  # the date of a metric
    "api/telemetry.py",  # the dates of a span
    "trials/measured.py",  # likewise
}


def test_a_disk_that_is_full_ends_the_run_with_what_is_safe_and_resume_completes_it(sweep):
    def full_at_40_kb():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    sweep_of_six = {"client": "max_concurrency=[1,2,3,4,5,6];num_prompts=12"}
    done = sweep.run(sweep.fake, limit=full_at_40_kb, **sweep_of_six)
    assert done.returncode == 2, done.stderr
    assert "cannot write q.jsonl: File too large" in done.stderr
    assert "run again with --resume" in done.stderr
    assert "Traceback" not in done.stderr
    sweep.await_nothing_left()
    safe = sweep.records()
    assert 1 <= len(safe) < 6
    assert all(record.status == "ok" for record in safe)
    done = sweep.run(sweep.fake, "--resume", **sweep_of_six)
    assert done.returncode == 0, done.stderr
    assert sweep.records()[: len(safe)] == safe
    assert len({record.key for record in sweep.records()}) == 6


#: A disk of the test's own, which is gone with the namespace; what was safe is copied out of it.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=120k none "$1" || exit 77
cp -r tiny "$1" && cd "$1" && shift
"$@"; code=$?
cp q.jsonl ..
exit $code
"""


def test_a_disk_without_room_keeps_what_is_safe(sweep):
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    (sweep.folder / "disk").mkdir()
    load = f"max_concurrency=[{','.join(map(str, range(1, 17)))}];num_prompts=12"
    begin = ("unshare", "--mount", "--map-root-user", "sh", "-c", ON_A_SMALL_DISK, "sh", "disk")
    done = subprocess.run(
        [*begin, *sweep.words(sweep.fake, client=load)],
        cwd=sweep.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare: "):
        pytest.skip(f"no disk can be made here: {done.stderr.strip()}")
    assert done.returncode == 2, done.stderr
    assert "error: cannot write q.jsonl: No space left on device" in done.stderr
    assert "make room and run again with --resume" in done.stderr
    safe = sweep.records()
    assert 1 <= len(safe) < 16
    assert all(record.status == "ok" for record in safe)


def test_nothing_measures_by_the_wall_clock():
    source = Path(servetune.__file__).parent
    readers = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "time.time",
                "time.time_ns",
            ):
                readers.add(str(path.relative_to(source)))
    assert readers == READS_THE_WALL_CLOCK


def test_a_clock_that_is_set_while_it_runs_changes_nothing(sweep, tmp_path, monkeypatch):
    # The processes that send compare the wall clock with the kernel's stamps, which no test
    # can move; everyone else gets a clock that jumps by an hour whenever it is read.
    (tmp_path / "jumps").mkdir()
    (tmp_path / "jumps" / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'servetune.traffic' not in sys.orig_argv:\n"
        "    real, hours = time.time, iter(range(10**9))\n"
        "    time.time = lambda: real() + 3600.0 * (-1) ** next(hours)\n"
    )
    path = f"{tmp_path / 'jumps'}:{Path(servetune.__file__).parents[1]}"
    monkeypatch.setenv("PYTHONPATH", path)
    began_s = time.monotonic()
    done = sweep.run(sweep.simulated, "--budget", "10m", client="num_prompts=20")
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr
    [record] = sweep.records()
    assert record.results["completed"] == 20
    assert 0 < record.results["duration"] < took_s
    assert 0 < record.results["mean_e2e_latency_ms"] < took_s * 1000
    assert 0 < record.results["server_ready_s"] < took_s


@pytest.fixture(scope="module")
def moments():
    """Delays in seconds, and the signal that ends each."""
    rng = random.Random(SEED)
    signals = itertools.islice(itertools.cycle(SIGNALS), MOMENTS)
    return [(rng.uniform(0.05, 3.5), number) for number in signals]


#: No trial is measured again to notice drift of the machine, so that each has one record.
ONCE = "--no-drift-check"


@pytest.mark.slow
def test_signals_at_random_moments_and_the_final_set_is_the_same(sweep, moments):
    grid = {
        "server_args": "max_num_seqs=[4,8,16]",
        "client": "max_concurrency=[1,2,3,4];num_prompts=16",
    }
    server = f"{sweep.fake} --ttft-s 0.01"
    done = sweep.run(server, ONCE, **grid)
    assert done.returncode == 0, done.stderr
    unbroken = [record.key for record in sweep.records()]
    assert len(unbroken) == 12
    # Two sweeps take half of the moments each: most of the time is spent on waiting for them.
    (sweep.folder / "other").mkdir()
    sweeps = (sweep, type(sweep)(sweep.folder / "other"))
    with ThreadPoolExecutor(2) as pool:
        halves = (moments[::2], moments[1::2])
        broken_off = sum(
            pool.map(lambda *half: break_off(*half, server, grid, unbroken), sweeps, halves)
        )
    assert broken_off >= MOMENTS / 2, "most moments were in the middle of a run"
    for one in sweeps:
        journal = one.folder / "q.jsonl"
        done = one.run(server, ONCE, *(["--resume"] if journal.exists() else []), **grid)
        assert done.returncode == 0, done.stderr
        assert complete(journal, unbroken)
        one.await_nothing_left()


def break_off(sweep, moments, server, grid, unbroken):
    """Begin, and go on, as often as there are moments; how many were in the middle of a run."""
    journal = sweep.folder / "q.jsonl"
    broken_off = 0
    for delay_s, number in moments:
        if not journal.exists() or complete(journal, unbroken):
            begin_anew(sweep.folder)
        safe = read_journal(journal) if journal.exists() else []
        more = ["--resume"] if journal.exists() else []
        process = sweep.begin(server, ONCE, *more, **grid)
        time.sleep(delay_s)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        broken_off += process.returncode != 0
        assert process.returncode in (0, 130, -number), (number, said)
        assert "Traceback" not in said, said
        sweep.await_nothing_left()
        if journal.exists():
            assert read_journal(journal)[: len(safe)] == safe, "what was safe stays"
    return broken_off


def complete(journal, unbroken):
    records = read_journal(journal)
    if len(records) < len(unbroken):
        return False
    assert all(record.status == "ok" for record in records)
    assert sorted(record.key for record in records) == sorted(unbroken), "each trial once"
    return True


def begin_anew(folder):
    for path in folder.glob("q.*"):
        if path.is_file():
            path.unlink()
