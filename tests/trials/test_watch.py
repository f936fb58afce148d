"""What a run tells while it goes on, and that orders reach it."""

import threading

import msgspec
import pytest

from servetune.loadgen import Progress
from servetune.store import Artifacts, Order, read_status, write_order
from servetune.trials import RunWatch
from servetune.trials import watch as module


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return Artifacts(tmp_path, "q")


def overview(status):
    return msgspec.structs.replace(status, done=1, of=3)


def await_status(run, wanted):
    """The first status for which `wanted` holds."""
    ready = threading.Event()
    for _ in range(1000):
        status = read_status(run.status)
        if status is not None and wanted(status):
            return status
        ready.wait(0.01)
    raise AssertionError("no such status came")


def progress(**more):
    fields = {"elapsed_s": 2.0, "request_count": 9, "finished_count": 4, "failed_count": 1}
    return Progress(**{**fields, "in_flight_count": 1, "output_tokens": 50, **more})


def test_the_status_follows_the_trial_and_is_gone_at_the_end(run):
    with RunWatch(run, overview=overview) as watch:
        watch.stage("k", "x=1", "warm-up")
        told = await_status(run, lambda status: status.running)
        assert (told.done, told.of, told.running[0].stage) == (1, 3, "warm-up")
        watch.progress("k", progress())
        [trial] = await_status(run, lambda status: status.running[0].throughput).running
        assert (trial.label, trial.stage, trial.throughput, trial.errors) == (
            *("x=1", "measuring"),
            *(25.0, 1),
        )
        assert trial.elapsed_s >= 2.0
        watch.progress("k", progress(draining=True))
        await_status(run, lambda status: status.running[0].stage == "last answers")
        watch.ended("k")
        await_status(run, lambda status: not status.running)
    assert list(run.folder.iterdir()) == []


def test_a_run_that_is_interrupted_leaves_its_status(run):
    with pytest.raises(KeyboardInterrupt), RunWatch(run, overview=overview):
        raise KeyboardInterrupt
    assert read_status(run.status).state == "ended"


def test_a_run_that_is_interrupted_before_its_first_trial_leaves_nothing(run):
    with pytest.raises(KeyboardInterrupt), RunWatch(run):
        raise KeyboardInterrupt
    assert list(run.folder.iterdir()) == []


def test_an_order_to_stop_is_an_interrupt(run):
    with RunWatch(run, overview=overview) as watch:
        status = await_status(run, lambda _: True)
        watch.raise_if_halted()
        write_order(run, Order(run=status.run, action="stop"))
        assert watch.halt.wait(10)
        with pytest.raises(KeyboardInterrupt):
            watch.raise_if_halted()


def test_an_order_from_before_the_start_is_ignored_and_taken_away(run):
    write_order(run, Order(run="before", action="stop"))
    with RunWatch(run, overview=overview) as watch:
        await_status(run, lambda _: True)
        assert not run.order.exists()
        assert not watch.halt.is_set()


def test_a_trial_is_put_off_or_the_reason_is_told(run):
    reasons, said = {"a": "", "b": "it is the last"}, []
    with RunWatch(run, put_off=reasons.get, say=said.append) as watch:
        for key in reasons:
            watch.stage(key, f"x={key}", "measuring")
        name = await_status(run, lambda status: len(status.running) == 2).run
        notes = []
        for key in ("a", "b", "c"):
            write_order(run, Order(run=name, action="put_off", trial=key))
            note = await_status(run, lambda status: status.note not in ("", *notes)).note
            notes.append(note)
        assert [watch.is_put_off(key) for key in "abc"] == [True, False, False]
        watch.taken_off("a")
        assert not watch.is_put_off("a")
        assert watch.put_off_count("a") == 1
    assert said == notes
    assert notes == [
        "x=a is put off to the end of the study",
        "x=b cannot be put off: it is the last",
        "the trial that was to be put off is not running any more",
    ]


@pytest.mark.parametrize("in_the_way", ["folder", "no folder"])
def test_a_status_that_cannot_be_written_costs_nothing_else(run, in_the_way):
    if in_the_way == "folder":
        run.status.mkdir()
    else:
        run = Artifacts(run.folder / "none", "q")
    with RunWatch(run, overview=overview) as watch:
        watch.stage("k", "x=1", "warm-up")
        threading.Event().wait(0.05)
    assert watch.interrupted is False
    assert run.status.is_dir() == (in_the_way == "folder")
    assert run.folder.is_dir() == (in_the_way == "folder")
