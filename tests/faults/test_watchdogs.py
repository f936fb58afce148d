"""What guards servers is killed itself: no server may be left that nobody knows of."""

import os
import signal
import time

import pytest
from guards import (
    await_line,
    kill_all_guards,
    kill_with_watchdog,
    leftovers_found,
    lives,
    watchdog_of,
)

pytestmark = pytest.mark.xdist_group("processes")

LOAD = {"client": "max_concurrency=2;num_prompts=30", "output_len": 16}
SLOW = "--itl-s 0.02"


def child_in(sweep):
    [log] = (sweep.folder / "q.logs").iterdir()
    return int(log.read_text().partition("child ")[2].split()[0])


def test_children_that_ignore_sigterm_go_with_their_server(sweep):
    done = sweep.run(sweep.server("leaky.py"), client="num_prompts=6", server_args="max_num_seqs=8")
    assert done.returncode == 0, done.stderr
    assert not lives(child_in(sweep))


def test_a_watchdog_that_is_killed_costs_an_attempt_and_leaves_nothing(sweep):
    run = sweep.begin(sweep.server("leaky.py", SLOW), **LOAD)
    await_line(run, "ready after")
    time.sleep(0.3)
    os.kill(watchdog_of(run), signal.SIGKILL)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    [record] = sweep.records()
    assert record.status == "ok"
    [attempt] = record.provenance["attempts"]
    assert attempt["kind"] in ("died", "killed")
    sweep.await_nothing_left()  # its children in sessions of their own, too


def test_what_kills_servetune_and_the_watchdog_at_once_leaves_nothing(sweep):
    run = sweep.begin(sweep.server("leaky.py", SLOW), **LOAD)
    await_line(run, "ready after")
    child = child_in(sweep)
    kill_with_watchdog(run)
    sweep.await_nothing_left()
    assert not lives(child), "it had left its parent and its session"


def test_what_is_left_without_watchdog_and_servetune_is_named_by_doctor_and_the_next_run(
    sweep, servetune
):
    run = sweep.begin(sweep.server("leaky.py", SLOW), **LOAD)
    await_line(run, "ready after")
    child = child_in(sweep)
    kill_all_guards(run)
    try:
        assert lives(child), "nobody was left to end it"
        told = dict(reversed(one) for one in leftovers_found(servetune))
        assert f"process {child} " in told[f"kill -9 {child}"]
        more = ["--resume"] if (sweep.folder / "q.jsonl").exists() else []
        again = sweep.run(sweep.fake, *more, client="num_prompts=6")
        assert f"note: process {child} " in again.stderr
        assert f"was left by an earlier servetune (process {run.pid}," in again.stderr
        assert f"kill -9 {child}" in again.stderr
    finally:
        os.kill(child, signal.SIGKILL)
    sweep.await_nothing_left()
    assert not [one for one in leftovers_found(servetune) if str(child) in one[1]]
