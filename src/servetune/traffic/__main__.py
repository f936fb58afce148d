"""Sender process: `python -m servetune.traffic`, started by `loadgen.sender_pool`.

Commands come in on standard input, heartbeats go out on standard output. When the input ends, the
process that started this one is gone, and this one exits.
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
"""Time for connections to open before the clock starts; slower ones are opened later."""


class Process:
    """Sender process: commands in, heartbeats out, a load controller and a reactor in between."""

    def __init__(self, setup: Setup, frames: FrameReader) -> None:
        _allow_open_files()
        self._reactor = Reactor(setup.addresses, may_sleep=setup.may_sleep)
        self._reactor.prepare()
        self._requests = RequestReader(setup.requests_fd, setup.columns)
        self._controller = LoadController(
            setup, self._reactor, self._requests, self._send_heartbeat
        )
        self._setup = setup
        self._frames = frames
        self._unsent = bytearray()
        self._decode = msgspec.msgpack.Decoder(Command).decode

    def run(self, commands: list[Command]) -> None:
        """Run until there is nothing left to do, and report that."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._open_ahead()
        self._controller.prepare()
        self._reactor.watch(0, self._read_commands)
        for order in commands:
            self._obey(order)
        self._heartbeat()  # tells that this process is ready
        # A run keeps what it allocates; a garbage collection would look like the server's pause.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._reactor.run()
        self._send_last()

    def _open_ahead(self) -> None:
        """Open connections for the first requests, so that their latencies hold no connecting."""
        setup = self._setup
        targets = len(setup.addresses)
        count = min(setup.ahead, len(self._requests))
        for target in range(targets):
            self._reactor.open_ahead(target, -(-(count - target) // targets))
        self._reactor.wait_open(AHEAD_S)

    def _read_commands(self) -> None:
        data = os.read(0, PIPE_BYTES)
        if not data:
            os._exit(1)  # the process that started this one is gone
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
        """Write as much as the pipe takes: a slow reader must not delay the load."""
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
    """Wait for the setup, then run."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is handled by the process that started this one
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
    """Raise this process's priority, where this user may.

    It uses little of a core, and its lateness would be read as the server's. A session of its own
    is a scheduling group of its own for kernels that share cores among sessions (docs/design/0004).
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
        slack.write("1000")  # the kernel may delay a wake-up by that much to save another


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # over this user's limit: the pipe works as it is
        return


def _peak_memory_bytes() -> int:
    """Largest resident set since this program began; rusage would count its parent's."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _allow_open_files() -> None:
    """Raise the limit of open files as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
