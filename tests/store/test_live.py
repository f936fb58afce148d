"""Status of a run in progress, and orders to it."""

import subprocess
import sys
import time

import msgspec
import pytest

from servetune.errors import SchemaTooNew, StoreError
from servetune.processes import ProcessMark, begun
from servetune.store import (
    Artifacts,
    Order,
    RunningTrial,
    RunStatus,
    read_status,
    take_order,
    write_order,
    write_status,
)


@pytest.fixture
def run(tmp_path):
    return Artifacts(tmp_path, "q")


def status(**more):
    fields = {"run": "r", "process": ProcessMark.own(), "written_unix_s": time.time()}
    return RunStatus(**{**fields, **more})


def test_a_status_comes_back_as_it_went(run):
    told = status(running=(RunningTrial(key="k", label="x=1", stage="measuring"),), done=2, of=5)
    assert read_status(run.status) is None
    write_status(run, told)
    read = read_status(run.status)
    assert read.written_unix_s >= told.written_unix_s
    assert msgspec.structs.replace(read, written_unix_s=told.written_unix_s) == told
    assert [path.name for path in run.folder.iterdir()] == ["q.status.json"]


def test_the_status_of_a_process_that_is_gone_is_lost(run):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = msgspec.structs.replace(ProcessMark.own(), pid=child.pid, begun=begun(child.pid))
    write_status(run, status(process=mark))
    assert read_status(run.status).state == "running"
    child.kill()
    child.communicate()
    assert read_status(run.status).state == "lost"


def test_a_number_that_another_process_has_now_is_not_the_run(run):
    write_status(run, status(process=msgspec.structs.replace(ProcessMark.own(), begun="1")))
    assert read_status(run.status).state == "lost"


@pytest.mark.parametrize(("age_s", "state"), [(0, "running"), (60, "lost")])
def test_a_run_on_another_machine_is_judged_by_the_age_of_its_status(run, age_s, state):
    mark = msgspec.structs.replace(ProcessMark.own(), place="elsewhere")
    write_status(run, status(process=mark))
    written = read_status(run.status)
    assert written.seen(written.written_unix_s + age_s).state == state


def test_a_status_that_ended_stays_so(run):
    gone = msgspec.structs.replace(ProcessMark.own(), begun="1")
    write_status(run, status(process=gone, state="ended"))
    assert read_status(run.status).state == "ended"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 3}', "\xff"])
def test_a_status_that_cannot_be_read_says_so(run, text):
    run.status.write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="cannot be read"):
        read_status(run.status)


def test_a_newer_status_says_so(run):
    run.status.write_text('{"schema": 2, "run": ["another", "form"]}')
    with pytest.raises(SchemaTooNew):
        read_status(run.status)


def test_an_order_is_taken_once_by_the_start_that_it_is_for(run):
    order = Order(run="now", action="put_off", trial="k")
    write_order(run, order)
    assert take_order(run, "now") == order
    assert take_order(run, "now") is None


@pytest.mark.parametrize("text", [None, "{", '{"run": "now", "action": "format"}', '{"schema": 9}'])
def test_an_order_from_before_the_start_or_of_no_sense_means_nothing(run, text):
    write_order(run, Order(run="an earlier start", action="stop"))
    if text is not None:
        run.order.write_text(text)
    assert take_order(run, "now") is None
    assert not run.order.exists()
