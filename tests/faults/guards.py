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
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"watchdog.py" in (entry / "cmdline").read_bytes():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == run.pid:
                    return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no watchdog")


def kill_both(run):
    """The watchdog and its servetune, before either can do anything about the other."""
    guard = watchdog_of(run)
    run.send_signal(signal.SIGSTOP)
    os.kill(guard, signal.SIGKILL)
    run.kill()
    run.communicate(timeout=60)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def leftovers_told(servetune, **options):
    told = json.loads(servetune("doctor", "--json", **options).stdout)["findings"]
    return [(one["says"], one["mend"]) for one in told if one["subject"] == "leftover"]
