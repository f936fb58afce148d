"""One run of load from many machines: dealt out, started together, merged on one clock.

`Spread` stands where `crew.SenderPool` stands on one machine. In a closed loop the users are split
over the nodes and each user's requests with them; in an open loop every k-th arrival is a
node's. A node that is lost costs what it had in flight; the rest is dealt to the others.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from servetune import __version__
from servetune.errors import LoadError
from servetune.loadgen.nodes import (
    Clocks,
    ClockSample,
    Machine,
    NodeShare,
    join,
    require_cluster,
)
from servetune.loadgen.sender_pool import START_TIMEOUT_S, SenderPoolConfig, SendStatistics
from servetune.loadgen.station import DealState, News, Station, carried
from servetune.traffic.messages import RequestTrace
from servetune.traffic.request_file import RequestFile, RequestReader
from servetune.traffic.sigv4 import Credentials

__all__ = ["ALL_LOST", "Spread", "dealt", "left_of"]

ALL_LOST = "every node that sent the load was lost"

COME_UP_S = 60.0
"""For Ray to start a process on a node, and servetune in it."""

STRAGGLER_S = 10.0
"""For the others, once one is there: a node whose cores are taken sends nothing."""

ROUND_TRIPS = 20
START_LEAD_S = 0.05
"""Between the order to start and the start, above the slowest round trip."""

ASK_EVERY_S = 0.05
WAIT_S = 0.02
SILENT_S = 12.0
"""After which a node that does not answer is taken for lost."""

THREADS = 4
_decode = msgspec.msgpack.Decoder(News).decode


def dealt(firsts: Sequence[int], users: int | None, parts: int) -> list[list[int]]:
    """Requests by turns: to the users in a closed loop, and with them to their nodes.

    Example:
        >>> dealt(range(7), users=3, parts=2)
        [[0, 2, 3, 5, 6], [1, 4]]
        >>> dealt(range(7), users=None, parts=2)
        [[0, 2, 4, 6], [1, 3, 5]]
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    for turn, index in enumerate(firsts):
        shares[(turn % users if users else turn) % parts].append(index)
    return shares


def left_of(
    firsts: Sequence[int], begun_count: int, seen: set[int], next_of: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """What a lost node had begun and not ended, and what it had not begun.

    A node takes its requests in order, so the number that it had begun says which. Of a
    conversation that broke off, the turn that was next counts as begun.
    """
    chains = [list(_chain(first, next_of)) for first in firsts]
    follower_count = sum(index in seen for chain in chains for index in chain[1:])
    taken_count = begun_count - follower_count
    begun, left = [], []
    for position, chain in enumerate(chains):
        unseen = [index for index in chain if index not in seen]
        if len(unseen) == len(chain) and position >= taken_count:
            left.append(chain[0])
        elif unseen:
            begun.append(unseen[0])
    return begun, left


def _chain(first: int, next_of: Callable[[int], int]) -> Iterator[int]:
    index = first
    while index >= 0:
        yield index
        index = next_of(index)


class _Deal(msgspec.Struct):
    """Requests that a node was given.

    Attributes:
        started: Whether it was told when to begin.
    """

    firsts: list[int]
    users: int | None
    started: bool = False
    state: DealState = DealState(0, False, False, 0, 0, "")


class _Part:
    """A node, seen from the machine that conducts."""

    def __init__(self, machine: Machine, actor: Any) -> None:
        self.machine, self.actor = machine, actor
        self.clocks = Clocks()
        self.deals: list[_Deal] = []
        self.question: Any = None  # the answer that is awaited
        self.asked_s = 0.0
        self.heard_s = time.monotonic()
        self.ended_count = 0
        self.lost = ""

    @property
    def over(self) -> bool:
        return bool(self.lost) or all(deal.state.over for deal in self.deals)

    def share(self) -> NodeShare:
        clock = self.clocks.best(time.monotonic())
        return NodeShare(
            name=self.machine.label,
            request_count=self.ended_count,
            clock_offset_s=clock.offset_s,
            clock_error_s=clock.error_s,
            lost=self.lost,
        )


class Spread:
    """Conducts one run over the nodes of a cluster; has the manners of a `SenderPool`."""

    def __init__(
        self,
        address: str,
        node_ids: Sequence[str],
        config: SenderPoolConfig,
        request_file: RequestFile,
        *,
        on_start: Callable[[float], None],
        on_trace: Callable[[RequestTrace], None],
        on_turn: Callable[[Spread], None],
    ) -> None:
        """Have a station on each node.

        Args:
            address: Of the cluster.
            node_ids: That share the load, whose cores are set aside already; empty for all
                that have a core free.
            orders: For the crew of each node, but for its users.
            asks: What is asked, in order; the caller closes it.
            on_start: Is told the time of the start on this machine's monotonic clock.
            on_seen: Is told of every request that ended, on that clock.
            on_turn: Runs about ten times a second.

        Raises:
            LoadError: No node of the cluster can send.
        """
        self._ray = join(address)
        self._config = config
        self._request_file = request_file
        self._asks = RequestReader(request_file.fd, request_file.columns)
        self._on_start, self._on_trace, self._on_turn = on_start, on_trace, on_turn
        self._seen: set[int] = set()
        self._start_s = 0.0
        self._stop: tuple[str, str, float] | None = None
        self.lost = False
        self.broken: str | None = None
        self.statistics = SendStatistics()
        found = require_cluster(address, node_ids=node_ids)
        self._parts = self._stations(found, cores=0 if node_ids else 1)

    @property
    def in_flight_count(self) -> int:
        return sum(d.state.in_flight_count for part in self._living() for d in part.deals)

    def run(self) -> SendStatistics:
        """Until all is done or stopped, or no node is left."""
        try:
            self._compare_clocks()
            self._deal(self._request_file.firsts, self._config.users)
            self._wait_ready()
            if self._stop is None:
                self._start()
            while not all(part.over for part in self._parts):
                self._turn()
            return self._finish_statistics()
        finally:
            self._dismiss(self._parts)

    def sign_with(self, credentials: Credentials) -> None:
        """Nodes hold no credentials: a run that signs its requests is refused before it starts."""
        raise LoadError("requests that are signed leave from this machine alone")

    def stop(self, outcome: str, detail: str, *, grace_s: float = 0.0) -> None:
        """Send nothing more, and end what is in flight after a while."""
        self._stop = (outcome, detail, grace_s)
        for part in self._living():
            part.actor.stop.remote(*self._stop)

    # before the start

    def _stations(self, found: Sequence[Machine], cores: int) -> list[_Part]:
        """One on each node that has a core free now."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, users = self._ray, self._config.users
        remote = ray.remote(Station)
        parts = [
            _Part(
                machine,
                remote.options(
                    num_cpus=cores,
                    max_concurrency=THREADS,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
                ).remote(),
            )
            for machine in found
        ]
        try:
            up = self._require_same(parts)[: users or None]  # a node without a user is idle
        except LoadError:
            self._dismiss(parts)
            raise
        self._dismiss([part for part in parts if part not in up])
        if not up:
            raise LoadError(
                f"no node of the cluster had a core free within {COME_UP_S:g} s",
                hint="see ray status for who has them",
            )
        packed = ray.put(carried(self._request_file))
        ray.get([part.actor.prepare.remote(self._config, packed) for part in up])
        return up

    def _dismiss(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            self._ray.kill(part.actor)

    def _require_same(self, parts: Sequence[_Part]) -> list[_Part]:
        """Those whose node has a core free; one that is gone by now is left out as well.

        Raises:
            LoadError: On one of the nodes servetune is missing or another.
        """
        hint = f"pip install 'servetune[ray]=={__version__}' on every node"
        hellos = {part.actor.version.remote(): part for part in parts}
        self._ray.wait(list(hellos), num_returns=1, timeout=COME_UP_S)
        self._ray.wait(list(hellos), num_returns=len(hellos), timeout=STRAGGLER_S)
        up = []
        for hello, part in hellos.items():
            try:
                version = self._ray.get(hello, timeout=0)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.RayError as error:
                said = [line for line in str(error).splitlines() if "ModuleNotFound" in line]
                if said:
                    raise LoadError(
                        f"{part.machine.label} cannot send: {said[-1].strip()}", hint=hint
                    ) from None
                continue
            if version != __version__:
                raise LoadError(
                    f"{part.machine.label} has servetune {version}, and this is {__version__}",
                    hint=hint,
                )
            up.append(part)
        return up

    def _compare_clocks(self) -> None:
        for part in self._parts:
            for _ in range(ROUND_TRIPS):
                before_s = time.monotonic()
                theirs_s = self._ray.get(part.actor.now_s.remote())
                part.clocks.add(ClockSample.of(before_s, theirs_s, time.monotonic()))

    def _deal(self, firsts: Sequence[int], users: int | None) -> None:
        living = self._living()
        parts = len(living) if users is None else min(users, len(living))
        shares = dealt(firsts, users, parts)
        for place, (part, share) in enumerate(zip(living, shares, strict=False)):
            own = None if users is None else users // parts + (place < users % parts)
            if share:
                part.deals.append(_Deal(share, own))
                number = len(part.deals) - 1
                part.actor.deal.remote(number, array("I", share).tobytes(), own)

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._stop is None:
            self._turn()
            deals = [deal for part in self._living() for deal in part.deals]
            if all(deal.state.ready or deal.state.over for deal in deals):
                return
            if time.monotonic() > deadline_s:
                raise LoadError(
                    "the load generator's processes did not start on all nodes in "
                    f"{START_TIMEOUT_S:g} s",
                    hint="is one of the machines overloaded?",
                )

    def _start(self) -> None:
        slowest_s = max(
            (2 * p.clocks.best(time.monotonic()).error_s for p in self._living()), default=0
        )
        self._start_s = self.statistics.start_s = time.monotonic() + START_LEAD_S + slowest_s
        self._on_start(self._start_s)
        for part in self._living():
            for number in range(len(part.deals)):
                self._begin(part, number, self._start_s)

    def _begin(self, part: _Part, number: int, start_s: float) -> None:
        part.deals[number].started = True
        offset_s = part.clocks.best(time.monotonic()).offset_s
        part.actor.begin.remote(number, start_s + offset_s)

    # while it runs

    def _living(self) -> list[_Part]:
        return [part for part in self._parts if not part.lost]

    def _turn(self) -> None:
        now_s = time.monotonic()
        for part in self._living():
            if part.question is None and now_s - part.asked_s >= ASK_EVERY_S:
                part.asked_s, part.question = now_s, part.actor.news.remote()
        asked = {part.question: part for part in self._living() if part.question is not None}
        if asked:
            answers, _ = self._ray.wait(list(asked), num_returns=1, timeout=WAIT_S)
            for answer in answers:
                self._read(asked[answer])
        else:
            time.sleep(WAIT_S / 4)
        for part in self._living():
            if part.question is not None and now_s - part.asked_s > SILENT_S:
                self._lose(part, f"it was silent for {SILENT_S:g} s")
        self._on_turn(self)

    def _read(self, part: _Part) -> None:
        question, part.question = part.question, None
        try:
            news = _decode(self._ray.get(question))
        except self._ray.exceptions.RayError:
            self._lose(part, "its process or its machine is gone")
            return
        part.heard_s = time.monotonic()
        part.clocks.add(ClockSample.of(part.asked_s, news.now_s, part.heard_s))
        for state in news.deals:
            part.deals[state.number].state = state
        self.lost = self.lost or news.lost
        offset_s = part.clocks.best(part.heard_s).offset_s
        part.ended_count += len(news.seen)
        for seen in news.seen:
            self._see(_on_our_clock(seen, offset_s))
        broken = next((deal.state.broken for deal in part.deals if deal.state.broken), "")
        if broken:
            self._lose(part, broken)
        else:
            self._begin_again(part)

    def _see(self, seen: RequestTrace) -> None:
        self._seen.add(seen.index)
        self.statistics.ended_count += 1
        self._on_trace(seen)

    def _begin_again(self, part: _Part) -> None:
        """Requests of a lost node, once those that took them over are ready to send."""
        if not self._start_s or self._stop is not None:
            return
        for number, deal in enumerate(part.deals):
            if deal.state.ready and not deal.started:
                # Users go on from here; arrivals stay due when they were.
                start_s = time.monotonic() if self._config.setup.closed else self._start_s
                self._begin(part, number, start_s)

    # a node that is gone

    def _lose(self, part: _Part, reason: str) -> None:
        part.lost = reason
        self._ray.kill(part.actor)  # or it would go on, were it only out of hearing
        detail = f"{part.machine.label}, which sent it, was lost: {reason}"
        for deal in part.deals:
            if not deal.state.over:
                self._hand_on(part, deal, detail)

    def _hand_on(self, part: _Part, deal: _Deal, detail: str) -> None:
        begun, left = left_of(deal.firsts, deal.state.begun_count, self._seen, self._asks.next)
        if not self._config.setup.closed and self._start_s:
            # What came due before its end was noticed could only leave late, by our fault.
            late = [i for i in left if self._due_s(i) <= time.monotonic()]
            begun, left = begun + late, left[len(late) :]
        for index in begun:
            self._see(self._broken_off(index, part.heard_s, detail))
        if not self._living():
            self.broken = f"{ALL_LOST}; the last one: {detail}"
        elif left and self._stop is None:
            self._deal(left, deal.users)

    def _due_s(self, index: int) -> float:
        return self._start_s + self._asks.due_s[index]

    def _broken_off(self, index: int, heard_s: float, detail: str) -> RequestTrace:
        """Of a request in flight nothing is known but that it was lost with its node."""
        due_s = heard_s if self._config.setup.closed else min(self._due_s(index), heard_s)
        now_s = time.monotonic()
        return RequestTrace(
            index, due_s, due_s, now_s, b"", b"", None, 0, "disconnected", None, detail, None, 0,
            None,
        )  # fmt: skip

    # afterwards

    def _finish_statistics(self) -> SendStatistics:
        total = self.statistics
        for part in self._living():
            try:
                accounts = self._ray.get(part.actor.accounts.remote(), timeout=SILENT_S)
            except self._ray.exceptions.RayError as error:
                part.lost = f"it was gone before its account was heard: {type(error).__name__}"
                continue
            for account in accounts:
                _add(total, account)
        total.nodes = [part.share() for part in self._parts]
        return total


def _on_our_clock(seen: RequestTrace, offset_s: float) -> RequestTrace:
    return msgspec.structs.replace(
        seen,
        due_s=seen.due_s - offset_s,
        sent_s=seen.sent_s - offset_s,
        end_s=seen.end_s - offset_s,
        times_s=(np.frombuffer(seen.times_s) - offset_s).tobytes(),
    )


def _add(total: SendStatistics, account: SendStatistics) -> None:
    """One crew's account to all crews'."""
    total.lateness_s += account.lateness_s
    total.lags_s += account.lags_s
    total.skipped += account.skipped
    total.cpu_s += account.cpu_s
    total.busy_fraction = max(total.busy_fraction, account.busy_fraction)
    for count in (
        "begun_count", "held_count", "opened_count", "reused_count", "retried_count",
        "process_count", "peak_memory_bytes",
    ):  # fmt: skip
        setattr(total, count, getattr(total, count) + getattr(account, count))
