"""Load from many nodes: requests are assigned, start together and end up on one clock.

`DistributedSender` stands where `SenderPool` stands on one machine, and has a `SenderPool` on
each node. In a closed loop the users are split over the nodes and each user's requests with
them; in an open loop every k-th arrival is a node's. A lost node fails the requests that it
had in flight; the rest is assigned to the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import msgspec
import numpy as np

from servetune import __version__
from servetune.cluster.nodes import ClusterNode, join_cluster, sending_nodes
from servetune.cluster.worker import COME_UP_S, ClockSample, TaskLink, TaskState, WorkerHandle, poll
from servetune.errors import InputError, LoadError
from servetune.loadgen import Target
from servetune.loadgen.sender_pool import (
    ALL_NODES_LOST,
    START_TIMEOUT_S,
    NodeShare,
    SenderEvents,
    SenderPool,
    SenderPoolConfig,
    SendStatistics,
)
from servetune.traffic.messages import RequestTrace
from servetune.traffic.request_file import RequestColumns, RequestFile, RequestReader
from servetune.traffic.sigv4 import Credentials

STRAGGLER_S = 10.0
"""Time for further nodes to come up once one is there: one whose cores are taken never does."""

ROUND_TRIPS = 20
START_LEAD_S = 0.05
"""Time between the order to start and the start, above the slowest round trip."""

POLL_EVERY_S = 0.05
WAIT_S = 0.02
SILENT_S = 12.0
"""Time without an answer after which a node is taken for lost."""

ABANDONED_S = 20.0
"""Time without a question after which a node ends its load: the run's process is gone."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestTrace).decode


class ClusterSenders(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of a Ray cluster as senders of a run; a `loadgen.SenderSource`.

    Attributes:
        address: Cluster: `auto`, or its head's HOST:PORT.
        node_ids: Ids of the nodes that send, whose cores are set aside already; empty for all
            nodes with a core free.
    """

    address: str
    node_ids: tuple[str, ...] = ()

    def require(self, targets: Sequence[Target], *, signed: bool) -> None:
        """Check that the nodes are there and may send to these servers.

        Raises:
            InputError: Requests are to be signed, or a server is named by a loopback address.
            LoadError: No node can send.
        """
        if signed:
            raise InputError(
                "signed requests are sent from this machine only",
                hint="leave out the cluster",
            )
        sending_nodes(self.address, targets, self.node_ids)

    def open(
        self, config: SenderPoolConfig, request_file: RequestFile, events: SenderEvents
    ) -> DistributedSender:
        """Start a worker on each of the nodes."""
        nodes = sending_nodes(self.address, node_ids=self.node_ids)
        ray = join_cluster(self.address)
        workers = _workers(ray, nodes, cores=0 if self.node_ids else 1, users=config.users)
        return DistributedSender(ray, workers, config, request_file, events)


# requests to nodes


def assigned(firsts: Sequence[int], users: int | None, parts: int) -> list[list[int]]:
    """Requests of each part: assigned in turn to the users of a closed loop, and these to parts.

    Example:
        >>> assigned(range(7), users=3, parts=2)
        [[0, 2, 3, 5, 6], [1, 4]]
        >>> assigned(range(7), users=None, parts=2)
        [[0, 2, 4, 6], [1, 3, 5]]
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    for turn, index in enumerate(firsts):
        shares[(turn % users if users else turn) % parts].append(index)
    return shares


def unfinished(
    firsts: Sequence[int], begun_count: int, ended: set[int], next_of: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """Requests that a lost node had begun and not ended, and those that it had not begun.

    A node takes its requests in order, so the number that it had begun says which. Of a
    conversation that was cut off, the next turn counts as begun.
    """
    chains = [list(_chain(first, next_of)) for first in firsts]
    follower_count = sum(index in ended for chain in chains for index in chain[1:])
    taken_count = begun_count - follower_count
    begun, left = [], []
    for position, chain in enumerate(chains):
        open_turns = [index for index in chain if index not in ended]
        if len(open_turns) == len(chain) and position >= taken_count:
            left.append(chain[0])
        elif open_turns:
            begun.append(open_turns[0])
    return begun, left


def _chain(first: int, next_of: Callable[[int], int]) -> Iterator[int]:
    index = first
    while index >= 0:
        yield index
        index = next_of(index)


# on a node


class LoadProgress(msgspec.Struct, frozen=True):
    """Progress of one assignment.

    Attributes:
        ready: Whether its processes wait for the start.
        begun_count: Requests begun so far.
        in_flight_count: Requests sent and not yet answered.
        lost: Whether a connection was refused or lost since the last report.
    """

    ready: bool = False
    begun_count: int = 0
    in_flight_count: int = 0
    lost: bool = False


class StopLoad(msgspec.Struct, frozen=True):
    """Order to send nothing more, and to end what is in flight after `grace_s`."""

    outcome: str
    detail: str
    grace_s: float = 0.0


class SharedRequests:
    """All requests of a run as they travel to a node: a `RequestFile` without its file.

    Every node gets the whole list, so that what a lost node left undone needs no second
    transfer.
    """

    def __init__(self, request_file: RequestFile) -> None:
        size, parts, at = os.fstat(request_file.fd).st_size, [], 0
        while at < size:
            parts.append(os.pread(request_file.fd, size - at, at))
            at += len(parts[-1])
        self._bodies = b"".join(parts)
        self._columns: RequestColumns = request_file.columns
        self._fd = -1

    def opened(self, firsts: list[int]) -> RequestFile:
        """The file on this node, made once for the life of the process."""
        if self._fd < 0:
            self._fd = os.memfd_create("servetune-requests", os.MFD_CLOEXEC)
            with os.fdopen(os.dup(self._fd), "wb") as file:
                file.write(self._bodies)
            self._bodies = b""
        return RequestFile(self._fd, self._columns, firsts)


class NodeLoad(msgspec.Struct, frozen=True):
    """Task of a worker: send some of the requests with a sender pool of its own.

    Attributes:
        config: Configuration of the pool.
        firsts: Indices of the requests that wait for no answer.
    """

    config: SenderPoolConfig
    firsts: list[int]

    def run(self, link: TaskLink) -> SendStatistics:
        """Send, once the agreed time of the start has come."""
        assert isinstance(link.shared, SharedRequests)
        return _NodeSender(self, link, link.shared.opened(self.firsts)).run()


class _NodeSender:
    """Sender pool of one assignment on its node."""

    def __init__(self, load: NodeLoad, link: TaskLink, request_file: RequestFile) -> None:
        self._link = link
        self._ready = self._stopped = self._lost = False
        events = SenderEvents(
            on_start=lambda _: None,
            on_trace=lambda trace: link.emit(_encode(trace)),
            on_turn=lambda _: self._on_turn(),
            agreed_start=self._await_start,
        )
        self._pool = SenderPool(load.config, request_file, events)
        link.progress = self._progress

    def run(self) -> SendStatistics:
        return self._pool.run()

    def _progress(self) -> LoadProgress:
        lost, self._lost = self._lost, False
        pool = self._pool
        return LoadProgress(self._ready, pool.begun_count, pool.in_flight_count, lost)

    def _await_start(self) -> float:
        self._ready = True
        while not self._link.started.wait(0.05):
            self._on_turn()
            if self._stopped:
                break
        return time.monotonic() if self._link.start_s is None else self._link.start_s

    def _on_turn(self) -> None:
        pool = self._pool
        if pool.lost:
            self._lost, pool.lost = True, False
        stop = self._stop_order()
        if stop is not None and not self._stopped:
            self._stopped = True
            pool.stop(stop.outcome, stop.detail, grace_s=stop.grace_s)

    def _stop_order(self) -> StopLoad | None:
        if self._link.stopped.is_set():
            assert isinstance(self._link.stop_message, StopLoad)
            return self._link.stop_message
        if self._link.silent_s > ABANDONED_S:
            return StopLoad("cancelled", "the process that started the run is gone")
        return None


# on the machine of the run


class _Assignment(msgspec.Struct):
    """Requests that a node was given.

    Attributes:
        started: Whether it was told when to start.
    """

    firsts: list[int]
    users: int | None
    started: bool = False
    state: TaskState = TaskState(0)

    @property
    def progress(self) -> LoadProgress:
        progress = self.state.progress
        return progress if isinstance(progress, LoadProgress) else LoadProgress()


class _Part:
    """Node that sends a part of the load, with its assignments."""

    def __init__(self, worker: WorkerHandle) -> None:
        self.worker = worker
        self.assignments: list[_Assignment] = []
        self.ended_count = 0

    @property
    def ended(self) -> bool:
        return bool(self.worker.lost) or all(each.state.ended for each in self.assignments)

    def offset_s(self, now_s: float) -> float:
        """Clock of the node less this machine's."""
        return self.worker.clocks.best(now_s).offset_s

    def share(self) -> NodeShare:
        clock = self.worker.clocks.best(time.monotonic())
        return NodeShare(
            name=self.worker.node.label,
            request_count=self.ended_count,
            clock_offset_s=clock.offset_s,
            clock_error_s=clock.error_s,
            lost=self.worker.lost,
        )


class DistributedSender:
    """Sender of one run over the nodes of a cluster; a `loadgen.LoadSender`."""

    def __init__(
        self,
        ray: ModuleType,
        workers: Sequence[WorkerHandle],
        config: SenderPoolConfig,
        request_file: RequestFile,
        events: SenderEvents,
    ) -> None:
        """Give every worker the requests.

        Args:
            ray: Module, connected.
            workers: One on each node that sends.
            config: Configuration of the pool of each node, but for its users.
            request_file: Requests in order; the caller closes it.
            events: Functions to call, with times on this machine's monotonic clock.
        """
        self._ray, self._config, self._events = ray, config, events
        self._firsts = request_file.firsts
        self._requests = RequestReader(request_file.fd, request_file.columns)
        self._ended: set[int] = set()
        self._start_s = 0.0
        self._stop: StopLoad | None = None
        self.lost = False
        self.broken: str | None = None
        self.statistics = SendStatistics()
        self._parts = {worker: _Part(worker) for worker in workers}
        shared = ray.put(SharedRequests(request_file))
        ray.get([worker.actor.share.remote(shared) for worker in workers])

    @property
    def in_flight_count(self) -> int:
        return sum(
            each.progress.in_flight_count
            for part in self._living()
            for each in part.assignments
            if not each.state.ended
        )

    def run(self) -> SendStatistics:
        """Send until all is done or stopped, or no node is left."""
        try:
            self._compare_clocks()
            self._assign(self._firsts, self._config.users)
            self._wait_ready()
            if self._stop is None:
                self._start()
            while not all(part.ended for part in self._parts.values()):
                self._turn()
            return self._finish_statistics()
        finally:
            for worker in self._parts:
                worker.kill()

    def sign_with(self, credentials: Credentials) -> None:
        """Nodes hold no credentials: a run that signs its requests is refused before it starts."""
        raise LoadError("signed requests are sent from this machine only")

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None:
        """Send nothing more, and end what is in flight after a while."""
        self._stop = StopLoad(outcome, detail, grace_s)
        for part in self._living():
            part.worker.actor.stop.remote(self._stop)

    # before the start

    def _compare_clocks(self) -> None:
        for worker in self._parts:
            for _ in range(ROUND_TRIPS):
                before_s = time.monotonic()
                theirs_s = self._ray.get(worker.actor.now_s.remote())
                worker.clocks.add(ClockSample.of(before_s, theirs_s, time.monotonic()))

    def _assign(self, firsts: Sequence[int], users: int | None) -> None:
        living = self._living()
        count = len(living) if users is None else min(users, len(living))
        shares = assigned(firsts, users, count)
        for place, (part, share) in enumerate(zip(living, shares, strict=False)):
            own = None if users is None else users // count + (place < users % count)
            if share:
                part.assignments.append(_Assignment(share, own))
                config = msgspec.structs.replace(self._config, users=own)
                part.worker.begin(len(part.assignments) - 1, NodeLoad(config, share))

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._stop is None:
            self._turn()
            waiting = [each for part in self._living() for each in part.assignments]
            if all(each.progress.ready or each.state.ended for each in waiting):
                return
            if time.monotonic() > deadline_s:
                raise LoadError(
                    "the load generator's processes did not start on all nodes in "
                    f"{START_TIMEOUT_S:g} s",
                    hint="is one of the machines overloaded?",
                )

    def _start(self) -> None:
        now_s = time.monotonic()
        slowest_s = max(
            (2 * p.worker.clocks.best(now_s).error_s for p in self._living()), default=0
        )
        self._start_s = self.statistics.start_s = time.monotonic() + START_LEAD_S + slowest_s
        self._events.on_start(self._start_s)
        for part in self._living():
            for number in range(len(part.assignments)):
                self._start_one(part, number, self._start_s)

    def _start_one(self, part: _Part, number: int, start_s: float) -> None:
        part.assignments[number].started = True
        offset_s = part.offset_s(time.monotonic())
        part.worker.actor.start.remote(number, start_s + offset_s)

    # while it runs

    def _living(self) -> list[_Part]:
        return [part for part in self._parts.values() if not part.worker.lost]

    def _turn(self) -> None:
        living = self._living()
        reports = poll(
            self._ray,
            [part.worker for part in living],
            every_s=POLL_EVERY_S,
            wait_s=WAIT_S,
            silent_s=SILENT_S,
        )
        for worker, report in reports:
            self._take(self._parts[worker], report.events, report.states)
        for part in living:
            if part.worker.broken:
                part.worker.lose(part.worker.broken)
            if part.worker.lost:
                self._reassign_all(part)
        self._events.on_turn(self)

    def _take(self, part: _Part, events: Sequence[bytes], states: Sequence[TaskState]) -> None:
        for state in states:
            part.assignments[state.number].state = state
            self.lost = self.lost or part.assignments[state.number].progress.lost
        offset_s = part.offset_s(part.worker.heard_s)
        part.ended_count += len(events)
        for event in events:
            self._add_trace(_on_this_clock(_decode(event), offset_s))
        broken = next((state.broken for state in states if state.broken), "")
        if broken:
            part.worker.lose(broken)
        else:
            self._start_reassigned(part)

    def _add_trace(self, trace: RequestTrace) -> None:
        self._ended.add(trace.index)
        self.statistics.ended_count += 1
        self._events.on_trace(trace)

    def _start_reassigned(self, part: _Part) -> None:
        """Start requests of a lost node once the processes that took them over are ready."""
        if not self._start_s or self._stop is not None:
            return
        for number, assignment in enumerate(part.assignments):
            if assignment.progress.ready and not assignment.started:
                # Users go on from now; arrivals stay due when they were.
                start_s = time.monotonic() if self._config.setup.closed else self._start_s
                self._start_one(part, number, start_s)

    # lost nodes

    def _reassign_all(self, part: _Part) -> None:
        """Fail what a lost node had in flight, and assign the rest to the others."""
        detail = f"{part.worker.node.label}, which sent it, was lost: {part.worker.lost}"
        for assignment in part.assignments:
            if not assignment.state.ended:
                self._reassign(assignment, part.worker.heard_s, detail)

    def _reassign(self, assignment: _Assignment, heard_s: float, detail: str) -> None:
        begun, left = unfinished(
            assignment.firsts, assignment.progress.begun_count, self._ended, self._requests.next
        )
        if not self._config.setup.closed and self._start_s:
            # A request that came due before the loss was noticed could only leave late.
            late = [i for i in left if self._due_s(i) <= time.monotonic()]
            begun, left = begun + late, left[len(late) :]
        for index in begun:
            self._add_trace(self._cut_off(index, heard_s, detail))
        if not self._living():
            self.broken = f"{ALL_NODES_LOST}; the last one: {detail}"
        elif left and self._stop is None:
            self._assign(left, assignment.users)

    def _due_s(self, index: int) -> float:
        return self._start_s + self._requests.due_s[index]

    def _cut_off(self, index: int, heard_s: float, detail: str) -> RequestTrace:
        """Trace of a request in flight, of which only its node's loss is known."""
        due_s = heard_s if self._config.setup.closed else min(self._due_s(index), heard_s)
        now_s = time.monotonic()
        return RequestTrace(
            index, due_s, due_s, now_s, b"", b"", None, 0, "disconnected", None, detail, None, 0,
            0, None,
        )  # fmt: skip

    # afterwards

    def _finish_statistics(self) -> SendStatistics:
        total = self.statistics
        for part in self._living():
            try:
                results = self._ray.get(part.worker.actor.results.remote(), timeout=SILENT_S)
            except self._ray.exceptions.RayError as error:
                name = type(error).__name__
                part.worker.lost = f"it was gone before its statistics arrived: {name}"
                continue
            for result in results:
                total.add(result)
        total.nodes = [part.share() for part in self._parts.values()]
        return total


def _on_this_clock(trace: RequestTrace, offset_s: float) -> RequestTrace:
    return msgspec.structs.replace(
        trace,
        due_s=trace.due_s - offset_s,
        sent_s=trace.sent_s - offset_s,
        end_s=trace.end_s - offset_s,
        times_s=(np.frombuffer(trace.times_s) - offset_s).tobytes(),
    )


# workers


def _workers(
    ray: ModuleType, nodes: Sequence[ClusterNode], *, cores: int, users: int | None
) -> list[WorkerHandle]:
    """A worker on each node that has a core free now, and no more than there are users.

    Raises:
        LoadError: There is none, or servetune differs there.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    workers = [
        WorkerHandle.create(
            ray,
            node,
            resources={"num_cpus": cores},
            scheduling=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        for node in nodes
    ]
    up: list[WorkerHandle] = []
    try:
        up = _same_release(ray, workers)[: users or None]  # a node without a user is idle
    finally:
        for worker in workers:
            if worker not in up:
                worker.kill()
    if not up:
        raise LoadError(
            f"no node of the cluster had a core free within {COME_UP_S:g} s",
            hint="see `ray status` for what uses them",
        )
    return up


def _same_release(ray: ModuleType, workers: Sequence[WorkerHandle]) -> list[WorkerHandle]:
    """Workers that came up; a node without a free core, or gone by now, is left out.

    Raises:
        LoadError: On one of the nodes servetune is missing or another release.
    """
    hint = f"pip install 'servetune[ray]=={__version__}' on every node"
    versions = {worker.actor.version.remote(): worker for worker in workers}
    ray.wait(list(versions), num_returns=1, timeout=COME_UP_S)
    ray.wait(list(versions), num_returns=len(versions), timeout=STRAGGLER_S)
    up = []
    for ref, worker in versions.items():
        try:
            version = ray.get(ref, timeout=0)
        except ray.exceptions.GetTimeoutError:
            continue
        except ray.exceptions.RayError as error:
            lines = [line for line in str(error).splitlines() if "ModuleNotFound" in line]
            if lines:
                raise LoadError(
                    f"{worker.node.label} cannot send: {lines[-1].strip()}", hint=hint
                ) from None
            continue
        if version != __version__:
            raise LoadError(
                f"{worker.node.label} has servetune {version}, and this is {__version__}",
                hint=hint,
            )
        up.append(worker)
    return up
