"""One actor protocol for all work on other nodes: tasks go out, events and states come back.

A `Worker` is a Ray actor that runs tasks, each in a thread of its own. `WorkerHandle` is the
worker as the process sees it that started it, and `poll` asks many workers at once what
happened since they were asked last. Load (`senders`) and trials (`trials`) are two kinds of
`WorkerTask`. The monotonic clocks of other nodes are compared with this machine's by
round trips.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol

import msgspec

from servetune import __version__
from servetune.cluster.nodes import ClusterNode
from servetune.errors import ServetuneError

COME_UP_S = 60.0
"""Time for Ray to start a process on a node, and servetune in it."""

THREADS = 4
"""Calls that one worker answers at once."""


class TaskState(msgspec.Struct, frozen=True):
    """State of one task of a worker.

    Attributes:
        number: Number of the task on its worker.
        ended: Whether its thread has ended.
        broken: Reason why it ended without finishing; empty otherwise.
        progress: Progress in the task's own terms; `None` before it has any.
    """

    number: int
    ended: bool = False
    broken: str = ""
    progress: msgspec.Struct | None = None


class WorkerReport(msgspec.Struct, frozen=True):
    """Everything that happened on a worker since its last report.

    Attributes:
        now_s: Worker's monotonic clock at the time of the report.
        events: Events of all tasks, encoded by them.
        states: State of every task.
    """

    now_s: float
    events: list[bytes]
    states: list[TaskState]


class WorkerTask(Protocol):
    """Work for a node, sent there by value."""

    def run(self, link: TaskLink) -> object:
        """Do the work in a thread of the worker; the result is fetched by `Worker.results`."""
        ...


class TaskLink:
    """Connection of a running task to the process that started it.

    Attributes:
        shared: Value that all tasks of the worker have in common (`Worker.share`).
        progress: Function that gives the task's progress for the next report.
        started: Event that is set when `Worker.start` was called for the task.
        start_s: Agreed time of the start on the worker's monotonic clock.
        stopped: Event that is set when the task shall end.
        stop_message: Value that `Worker.stop` was called with.
    """

    def __init__(self, worker: Worker, shared: object) -> None:
        self._worker = worker
        self.shared = shared
        self.progress: Callable[[], msgspec.Struct | None] = lambda: None
        self.started = threading.Event()
        self.start_s: float | None = None
        self.stopped = threading.Event()
        self.stop_message: object = None

    def emit(self, event: bytes) -> None:
        """Put an event into the worker's next report."""
        self._worker.emit(event)

    @property
    def silent_s(self) -> float:
        """Seconds since the process that started the worker last called it."""
        return self._worker.silent_s


class _RunningTask:
    """Task in its thread."""

    def __init__(self, number: int, task: WorkerTask, link: TaskLink) -> None:
        self._number, self._task, self.link = number, task, link
        self._ended = False
        self._broken = ""
        self.result: object = None
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def state(self) -> TaskState:
        ended = self._ended  # read first: nothing follows it
        return TaskState(self._number, ended, self._broken, self.link.progress())

    def _run(self) -> None:
        try:
            self.result = self._task.run(self.link)
        except KeyboardInterrupt:
            self._broken = "it was stopped"
        except ServetuneError as error:
            self._broken = error.message
        except Exception as error:  # the edge of a process: reported where it can be read
            self._broken = f"{type(error).__name__}: {error}"
        finally:
            self._ended = True


class Worker:
    """Ray actor that runs tasks on its node; its methods are called from another machine.

    Several calls run at once, so they may arrive in any order.
    """

    def __init__(self, environment: Mapping[str, str | None] | None = None) -> None:
        """Set environment variables of this process alone, so secrets stand in no record.

        Args:
            environment: Variables by name; `None` removes one.
        """
        for name, value in (environment or {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._lock = threading.Lock()
        self._events: list[bytes] = []
        self._tasks: dict[int, _RunningTask] = {}
        self._shared: object = None
        self._stop: list[object] = []
        self._called_s = time.monotonic()

    def version(self) -> str:
        """Release of servetune on this node."""
        return __version__

    def now_s(self) -> float:
        """Monotonic clock of this node."""
        return time.monotonic()

    def share(self, value: object) -> None:
        """Take a value that all tasks of this worker have in common."""
        self._shared = value

    def begin(self, number: int, task: WorkerTask) -> None:
        """Run a task in a thread."""
        self._called_s = time.monotonic()
        link = TaskLink(self, self._shared)
        self._tasks[number] = _RunningTask(number, task, link)
        if self._stop:  # it was stopped while the task was on its way
            self.stop(self._stop[0])

    def start(self, number: int, start_s: float) -> None:
        """Let a task that waits for it start at this time on this node's clock."""
        link = self._tasks[number].link
        link.start_s = start_s
        link.started.set()

    def stop(self, message: object = None) -> None:
        """End all tasks; reports say when they are over."""
        self._stop = [message]
        for task in list(self._tasks.values()):
            task.link.stop_message = message
            task.link.stopped.set()

    def report(self) -> WorkerReport:
        """Everything that happened since the last report."""
        self._called_s = time.monotonic()
        # States before events: a task is never over while an event of it is still to come.
        states = [task.state for task in list(self._tasks.values())]
        with self._lock:
            events, self._events = self._events, []
        return WorkerReport(time.monotonic(), events, states)

    def results(self) -> list[object]:
        """Results of all tasks, in the order of their numbers."""
        return [task.result for _, task in sorted(self._tasks.items())]

    # called by the tasks' threads

    def emit(self, event: bytes) -> None:
        """Keep an event for the next report."""
        with self._lock:
            self._events.append(event)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._called_s


class WorkerHandle:
    """Worker as the process sees it that started it.

    Attributes:
        node: Node that the worker runs on.
        clocks: Worker's clock against this machine's.
        heard_s: Time of the last report on this machine's clock.
        lost: Reason why the worker is gone; empty while it is there.
        broken: Error of a call that the worker could not carry out; empty without one.
    """

    def __init__(self, ray: ModuleType, node: ClusterNode, actor: Any) -> None:
        self._ray = ray
        self.node, self.actor = node, actor
        self.clocks = Clocks()
        self.heard_s = time.monotonic()
        self.lost = self.broken = ""
        self._pending: Any = None
        self._polled_s = 0.0

    @classmethod
    def create(
        cls,
        ray: ModuleType,
        node: ClusterNode,
        *,
        resources: Mapping[str, float],
        scheduling: Any,
        environment: Mapping[str, str | None] | None = None,
    ) -> WorkerHandle:
        """Have Ray start a worker; returns before it runs.

        Args:
            ray: Module, connected.
            node: Node that the scheduling leads to.
            resources: Cores and GPUs to set aside, as options of Ray: `num_cpus`, `num_gpus`.
            scheduling: Ray's scheduling strategy.
            environment: Variables of the worker's process, as `Worker` takes them.
        """
        options = ray.remote(Worker).options(
            **resources, max_concurrency=THREADS, scheduling_strategy=scheduling
        )
        return cls(ray, node, options.remote(environment))

    def begin(self, number: int, task: WorkerTask) -> None:
        """Send a task; `poll` notices a worker that does not come up in `COME_UP_S`."""
        begun = self.actor.begin.remote(number, task)
        if self._pending is None:
            self._pending, self._polled_s = begun, time.monotonic() + COME_UP_S

    def kill(self) -> None:
        """End the worker's process at once."""
        self._ray.kill(self.actor)

    def lose(self, reason: str) -> None:
        """Give the worker up; its process is ended, as it may only be out of reach."""
        self.lost = reason
        self.kill()

    def poll(self, every_s: float) -> Any:
        """Reference of the report that is awaited, asking for one when it is time."""
        now_s = time.monotonic()
        if self._pending is None and now_s - self._polled_s >= every_s:
            self._polled_s, self._pending = now_s, self.actor.report.remote()
        return self._pending

    def receive(self) -> WorkerReport | None:
        """Report that has arrived; `None` for the answer to `begin`, or when there was none."""
        pending, self._pending = self._pending, None
        try:
            report: WorkerReport | None = self._ray.get(pending)
        except self._ray.exceptions.RayTaskError as error:
            self.broken = str(error.cause)
            return None
        except self._ray.exceptions.RayError:
            self.lose("its process or its machine is gone")
            return None
        self.heard_s = time.monotonic()
        if report is not None:
            self.clocks.add(ClockSample.of(self._polled_s, report.now_s, self.heard_s))
        else:
            self._polled_s = 0.0
        return report

    def check_silence(self, limit_s: float) -> None:
        """Give the worker up when it has owed an answer for longer than the limit."""
        if self._pending is not None and time.monotonic() - self._polled_s > limit_s:
            self.lose(f"it was silent for {limit_s:g} s")


def poll(
    ray: ModuleType,
    workers: Sequence[WorkerHandle],
    *,
    every_s: float,
    wait_s: float,
    silent_s: float,
) -> list[tuple[WorkerHandle, WorkerReport]]:
    """Reports that arrive within a while; afterwards `lost` and `broken` of workers are current.

    Args:
        ray: Module, connected.
        workers: Workers that are not lost.
        every_s: Time between two questions to one worker.
        wait_s: Longest wait for the first report.
        silent_s: Time without an answer after which a worker is lost.
    """
    pending = {ref: each for each in workers if (ref := each.poll(every_s)) is not None}
    if not pending:
        time.sleep(wait_s / 4)
        return []
    ready, _ = ray.wait(list(pending), num_returns=1, timeout=wait_s)
    if ready:
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
    received = [(pending[ref], pending[ref].receive()) for ref in ready]
    for worker in workers:
        if not worker.lost:
            worker.check_silence(silent_s)
    return [(worker, report) for worker, report in received if report is not None]


DRIFT = 1e-4
"""Largest rate at which two clocks come apart, in seconds per second: crystals drift by a third
of that, and a daemon that adjusts a clock makes up the rest."""


class ClockSample(msgspec.Struct, frozen=True):
    """Offset of another machine's clock, as one round trip showed it.

    Attributes:
        at_s: Time of the sample on this machine's clock.
        offset_s: Other clock less this one.
        error_s: Bound of the offset's error: half the round trip.
    """

    at_s: float
    offset_s: float
    error_s: float

    @classmethod
    def of(cls, before_s: float, theirs_s: float, after_s: float) -> ClockSample:
        """Sample from this clock before and after a call, and the other clock during it.

        Example:
            >>> ClockSample.of(10.0, 510.5, 11.0)
            ClockSample(at_s=10.5, offset_s=500.0, error_s=0.5)
        """
        middle_s = (before_s + after_s) / 2
        return cls(middle_s, theirs_s - middle_s, (after_s - before_s) / 2)


class Clocks:
    """Samples of another machine's clock; the quickest round trip has the smallest error.

    The error of a sample grows with its age by `DRIFT`, so that long runs follow two clocks
    that come apart.
    """

    def __init__(self) -> None:
        self._samples: list[ClockSample] = []

    def add(self, sample: ClockSample) -> None:
        """Add a round trip; samples that can never be the best again are dropped."""
        kept = [each for each in self._samples if _error_s(each, sample.at_s) < sample.error_s]
        self._samples = [*kept, sample]

    def best(self, now_s: float) -> ClockSample:
        """Sample with the smallest error now, and that error."""
        assert self._samples, "no clock was compared"
        best = min(self._samples, key=lambda each: _error_s(each, now_s))
        return ClockSample(best.at_s, best.offset_s, _error_s(best, now_s))


def _error_s(sample: ClockSample, now_s: float) -> float:
    return sample.error_s + max(0.0, now_s - sample.at_s) * DRIFT
