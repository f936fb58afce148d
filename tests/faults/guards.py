"""What the tests of killed watchdogs share."""

import json
import os
import signal
from pathlib import Path


def await_line(run, words):
    while words not in (line := run.stderr.readline()):
        assert line, "it ended before"


def watchdog_of(run):
    """The process between a run and its server."""
    for pid, parent in _watchdogs(run):
        if parent == run.pid:
            return pid
    raise AssertionError("no watchdog")


def _watchdogs(run):
    """Pid and parent of the run's watchdog, and of the process that stands by."""
    owner = f"SERVETUNE_OWNER={run.pid}:".encode()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or owner not in (entry / "environ").read_bytes():
                continue
            if b"watchdog.py" in (entry / "cmdline").read_bytes():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                yield int(entry.name), int(parent)
        except OSError:
            continue


def kill_with_watchdog(run):
    """The watchdog and its servetune, before either can do anything about the other."""
    guard = watchdog_of(run)
    run.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    run.kill()
    run.communicate(timeout=60)


def kill_all_guards(run):
    """The same, and the process that stands by: nobody is left who could end the server."""
    for pid, parent in list(_watchdogs(run)):
        if parent != run.pid:
            os.kill(pid, signal.SIGKILL)
    kill_with_watchdog(run)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def leftovers_found(servetune, **options):
    told = json.loads(servetune("doctor", "--json", **options).stdout)["findings"]
    return [(one["says"], one["mend"]) for one in told if one["subject"] == "leftover"]
