"""Servers that a ServerProcess must survive: `misbehave.py MODE PORT`, standard library only."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SYS_EXIT = {"x86_64": 60, "aarch64": 93}  # ends one thread, not the process

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("stubborn", flush=True)
time.sleep(600)
"""


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def good(port: int) -> None:
    ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever()


def elsewhere(port: int) -> None:
    good(int(sys.argv[3]))


def exits(port: int) -> None:
    say("loading")
    say("ValueError: the widget is missing")
    sys.exit(7)


def crashes(port: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def never_opens(port: int) -> None:
    say("still loading")
    time.sleep(600)


def unready(port: int) -> None:
    Health.status = 503
    good(port)


def dies_later(port: int) -> None:
    threading.Timer(0.3, lambda: os._exit(9)).start()
    good(port)


def stubborn(port: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    good(port)


def headless(port: int) -> None:
    """Its first thread ends, the others live on: a zombie by its looks, with a child."""
    stubborn_child(new_session=True)
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).syscall(SYS_EXIT[platform.machine()], 0)


def leaks(port: int) -> None:
    stubborn_child(new_session=False)
    good(port)


def leaks_into_two_sessions(port: int) -> None:
    stubborn_child(new_session=False)
    stubborn_child(new_session=True)
    good(port)


def leaks_and_dies(port: int) -> None:
    stubborn_child(new_session=False)
    stubborn_child(new_session=True)
    sys.exit(3)


def chatty(port: int) -> None:
    """Write more than a pipe holds: a server that is not drained would hang here."""
    for number in range(40_000):
        sys.stdout.write(f"\x1b[32mline {number}\x1b[0m {'x' * 40}\n")
    sys.stdout.flush()
    good(port)


def roars(port: int) -> None:
    """Write 100 MB as fast as they are taken, one line of it worth reading, then serve."""
    say("the settings are blue")
    line = "the weather is fine, said request {}\n" + "x" * 60 + "\n"
    for number in range(1_000_000):
        if number == 600_000:
            sys.stdout.write("ERROR 0600: CUDA out of memory. Tried to allocate 2.00 GiB\n")
        sys.stdout.write(line.format(number))
    say("the last word")
    if "and-dies" in sys.argv:
        sys.exit(1)
    good(port)


def stubborn_child(*, new_session: bool) -> None:
    """Start a child that ignores polite signals, and wait until it does."""
    child = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )
    assert child.stdout is not None
    child.stdout.readline()
    say(f"child {child.pid}")


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](int(sys.argv[2]))
