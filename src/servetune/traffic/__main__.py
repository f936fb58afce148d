"""The process that sends: `python -m servetune.traffic`, started by `loadgen.sender_pool`.

Orders come in on standard input, what was seen goes out on standard output. When the input
ends its owner is gone, and so is this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import signal
import sys
import time

import msgspec

from servetune.traffic.connection import monotonic
from servetune.traffic.load_controller import LoadController
from servetune.traffic.messages import (
    Command,
    Finished,
    FrameReader,
    MoveUsers,
    Resume,
    Setup,
    Start,
    Stop,
    frame,
)
from servetune.traffic.reactor import Reactor
from servetune.traffic.request_file import RequestReader
from servetune.traffic.sigv4 import Credentials

BEAT_S = 0.1
PIPE_BYTES = 1 << 20
AHEAD_S = 2.0
"""For connections to open before the clock starts; those that take longer are opened later."""


class Process:
    """Orders in, player and reactor between, beats out."""

    def __init__(self, setup: Setup, frames: FrameReader) -> None:
        _allow_open_files()
        self._reactor = Reactor(setup.addresses, may_sleep=setup.may_sleep)
        self._reactor.prepare()
        self._asks = RequestReader(setup.requests_fd, setup.columns)
        self._controller = LoadController(setup, self._reactor, self._asks, self._send_heartbeat)
        self._setup = setup
        self._frames = frames
        self._unsent = bytearray()
        self._decode = msgspec.msgpack.Decoder(Command).decode

    def run(self, commands: list[Command]) -> None:
        """Play until there is nothing left, and say so."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._open_ahead()
        self._controller.prepare()
        self._reactor.watch(0, self._read_commands)
        for order in commands:
            self._obey(order)
        self._heartbeat()  # which says that this process is ready
        # What a run allocates it keeps; a collection would be read as the server's pause.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._reactor.run()
        self._send_last()

    def _open_ahead(self) -> None:
        """Connections for the first requests: a burst of them is not one of connecting."""
        setup = self._setup
        targets = len(setup.addresses)
        count = min(setup.ahead, len(self._asks))
        for target in range(targets):
            self._reactor.open_ahead(target, -(-(count - target) // targets))
        self._reactor.wait_open(AHEAD_S)

    def _read_commands(self) -> None:
        data = os.read(0, PIPE_BYTES)
        if not data:
            os._exit(1)  # nobody is left to tell
        for packed in self._frames.feed(data):
            self._obey(self._decode(packed))

    def _obey(self, order: Command) -> None:
        if isinstance(order, Start):
            self._controller.start(order.start_s)
        elif isinstance(order, Stop):
            self._controller.stop(order.outcome, order.detail, order.grace_s)
        elif isinstance(order, MoveUsers):
            self._controller.release_users(order.release_users)
            self._controller.take_users(order.due_s)
        elif isinstance(order, Resume):
            self._controller.resume()
        elif isinstance(order, Credentials):
            self._controller.sign_with(order)

    def _heartbeat(self) -> None:
        self._reactor.about(monotonic() + BEAT_S, self._heartbeat)
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        self._unsent += frame(self._controller.heartbeat(time.process_time()))
        self._flush()

    def _flush(self) -> None:
        """As much as the pipe takes: a slow reader must not hold up the load."""
        try:
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent[:PIPE_BYTES])]
        except BlockingIOError:
            return

    def _send_last(self) -> None:
        reactor = self._reactor
        self._unsent += frame(self._controller.heartbeat(time.process_time()))
        self._unsent += frame(
            Finished(
                opened_count=reactor.opened_count,
                reused_count=reactor.reused_count,
                retried_count=reactor.retried_count,
                peak_memory_bytes=_peak_memory_bytes(),
            )
        )
        os.set_blocking(1, True)
        self._flush()


def main() -> int:
    """Wait for the set-up, then play."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to answer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _widen(1)
    _ask_for_precedence()
    frames = FrameReader()
    decode = msgspec.msgpack.Decoder(Command).decode
    while data := os.read(0, PIPE_BYTES):
        commands = [decode(packed) for packed in frames.feed(data)]
        if commands:
            setup, *others = commands
            if not isinstance(setup, Setup):
                raise TypeError(f"the first order is {type(setup).__name__}")
            Process(setup, frames).run(others)
            return 0
    return 1


def _ask_for_precedence() -> None:
    """Be woken before whatever else this machine does, where this user may ask for that.

    It uses little of a core, and what it is late by is read as the server's. A session of its
    own is a group of its own for kernels that share cores among sessions (docs/design/0004).
    """
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.nice(-10)
    with (
        contextlib.suppress(OSError),
        open("/proc/self/autogroup", "w", encoding="ascii") as group,  # noqa: PTH123
    ):
        group.write("-10")
    with (
        contextlib.suppress(OSError),
        open("/proc/self/timerslack_ns", "w", encoding="ascii") as slack,  # noqa: PTH123
    ):
        slack.write("1000")  # the kernel may be as late as that to save itself a wake-up


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # over this user's limit: it works as it is
        return


def _peak_memory_bytes() -> int:
    """Largest resident set since this program began; rusage would count its parent's."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _allow_open_files() -> None:
    """As many connections as this user may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
