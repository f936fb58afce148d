"""Watch of a run in progress: it tells what the run does, and takes orders to it.

The status is written beside the journal about once a second by a thread of its own, and no trial
waits for it: a disk that is full or a folder that cannot be written costs the status alone.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from servetune.errors import StoreError
from servetune.loadgen import Progress
from servetune.processes import ProcessMark
from servetune.secret import redacted_text
from servetune.store import Artifacts, Order, RunningTrial, RunStatus, take_order, write_status
from servetune.trials.server_life import ServerEvents
from servetune.trials.trial import Trial

_NOTES = logging.getLogger("servetune")

#: Seconds between two states of the file, and between two looks for an order.
EVERY_S, LOOK_S = 1.0, 0.25


class RunWatch:
    """Watch of a run in progress.

    Args:
        artifacts: Paths of the run's files; `None` where it has none, and nothing is written.
        overview: Function that completes a status with what is known of the whole run.
        label_of: Function that names a trial.
        put_off: Function that puts the trial of a key off, or gives the reason why it cannot be.
        say: Takes answers to orders.
        servers: Functions that are told of servers.

    Attributes:
        servers: Functions that are told of servers.
        halt: Event that is set when the run shall end, keeping what it has.
        interrupted: Whether it ended before its work was done.
    """

    def __init__(
        self,
        artifacts: Artifacts | None = None,
        *,
        overview: Callable[[RunStatus], RunStatus] = lambda status: status,
        label_of: Callable[[Trial], str] = lambda _: "",
        put_off: Callable[[str], str] = lambda _: "there is one load alone",
        say: Callable[[str], None] = lambda _: None,
        servers: ServerEvents | None = None,
    ) -> None:
        self.servers = servers or ServerEvents()
        self.halt = threading.Event()
        self.interrupted = False
        self._artifacts, self._overview, self._say = artifacts, overview, say
        self._label_of, self._put_off_trial = label_of, put_off
        self._run, self._process = secrets.token_hex(8), ProcessMark.own()
        self._begin_s = time.monotonic()
        self._running: dict[str, tuple[RunningTrial, float]] = {}
        self._off: set[str] = set()
        self._off_counts: Counter[str] = Counter()
        self._note = ""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._artifacts is not None:
            self._thread = threading.Thread(target=self._turns, name="status", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.interrupted = self.interrupted or kind is not None
        if self._thread is None or self._artifacts is None:
            return
        self._over.set()
        self._thread.join()
        with self._lock:
            self._running.clear()
        last = self.status()
        with contextlib.suppress(OSError):
            self._artifacts.order.unlink(missing_ok=True)
        if self.interrupted and last.done:
            self._write(msgspec.structs.replace(last, state="ended"))
        else:
            with contextlib.suppress(OSError):
                self._artifacts.status.unlink(missing_ok=True)

    def at(self, trial: Trial, stage: str) -> None:
        """Take that a trial is at a stage now."""
        self.stage(trial.key, self._label_of(trial), stage)

    def stage(self, key: str, label: str, stage: str) -> None:
        """Take that what has this key and label is at a stage now."""
        with self._lock:
            now = RunningTrial(key=key, label=redacted_text(label), stage=stage)
            self._running[key] = (now, time.monotonic())

    def progress(self, key: str, progress: Progress) -> None:
        """Take the progress of the load of a key."""
        with self._lock:
            if key not in self._running:
                return
            tokens, elapsed_s = progress.output_tokens, progress.elapsed_s
            now = msgspec.structs.replace(
                self._running[key][0],
                stage="last answers" if progress.draining else "measuring",
                throughput=tokens / elapsed_s if tokens and elapsed_s > 0 else None,
                errors=progress.failed_count,
            )
            self._running[key] = (now, time.monotonic() - elapsed_s)

    def ended(self, key: str) -> None:
        """Take that the trial of a key is over."""
        with self._lock:
            self._running.pop(key, None)

    def is_put_off(self, key: str) -> bool:
        """Whether the trial of a key is to end now, without a record."""
        return key in self._off

    def taken_off(self, key: str) -> None:
        """Take that a trial which was put off has ended so; it may be asked for again."""
        self._off.discard(key)
        self._off_counts[key] += 1
        self.ended(key)

    def put_off_count(self, key: str) -> int:
        """Number of times that a trial was put off."""
        return self._off_counts[key]

    def raise_if_halted(self) -> None:
        """Raise `KeyboardInterrupt` where the run shall end."""
        if self.halt.is_set():
            raise KeyboardInterrupt

    def status(self) -> RunStatus:
        """Status of the run now."""
        now_s = time.monotonic()
        with self._lock:
            running = tuple(
                msgspec.structs.replace(trial, elapsed_s=round(now_s - since_s, 1))
                for trial, since_s in self._running.values()
            )
        return self._overview(
            RunStatus(
                run=self._run,
                process=self._process,
                running=running,
                elapsed_s=round(now_s - self._begin_s, 1),
                note=self._note,
            )
        )

    # the thread that writes and reads

    def _turns(self) -> None:
        assert self._artifacts is not None
        due_s = 0.0
        while not self._over.is_set():
            order = take_order(self._artifacts, self._run)
            if order is not None:
                self._obey(order)
            if order is not None or time.monotonic() >= due_s:
                try:
                    self._write(self.status())
                except Exception as error:  # what a status says must not end who takes orders
                    _NOTES.debug("status: %s: %s", type(error).__name__, error)
                due_s = time.monotonic() + EVERY_S
            self._over.wait(LOOK_S)

    def _write(self, status: RunStatus) -> None:
        assert self._artifacts is not None
        if self._artifacts.folder.is_dir():  # made by whoever has results to keep
            with contextlib.suppress(StoreError, OSError):
                write_status(self._artifacts, status)

    def _obey(self, order: Order) -> None:
        if order.action == "stop":
            self._answer("stopping, as the page was told to")
            self.halt.set()
            return
        with self._lock:
            found = self._running.get(order.trial)
        if found is None or order.trial in self._off:
            self._answer("the trial that was to be put off is not running any more")
            return
        reason = self._put_off_trial(order.trial)
        if reason:
            self._answer(f"{found[0].label} cannot be put off: {reason}")
        else:
            self._off.add(order.trial)
            self._answer(f"{found[0].label} is put off to the end of the study")

    def _answer(self, text: str) -> None:
        self._note = text
        self._say(text)
