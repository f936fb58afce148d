"""Load of one plan: its steady states by concurrency, the knee, and the largest that holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from servetune.api.choosing import Judge, Miss, Selection
from servetune.api.ranking import simulated_at, simulated_with
from servetune.errors import InputError
from servetune.hardware import Node
from servetune.perf import Calibration
from servetune.perf.load_steps import nearest_load, whole_load
from servetune.perf.roofline import (
    REQUESTS_OF_A_RATE,
    Interval,
    OperatingPoint,
    SafetyFactors,
    at_a_rate,
    interval_of,
    scattered_factor,
)
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.sweep import Swept, ladder_of, sweep
from servetune.plan import Plan
from servetune.store import Results
from servetune.workload import Poisson, Workload

#: Numbers of users per octave at which the knee is sought.
_KNEE_STEPS = 12


class HeldLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The largest load that holds the constraints, or whether a stated one does.

    Attributes:
        judged: Constraints on means, judged by the steady state.
        by_simulation: Constraints on percentiles, judged by simulated runs.
        concurrency: Largest number of users with which all hold, at a rate the number that it
            keeps in flight; `None` where none does.
        point: Steady state at that concurrency.
        results: Results of its simulated run, where one was needed; of a rate also where a
            constraint is missed.
        caution: Factors on times with which the constraints were judged.
        rate_per_s: Rate at which they were judged; `None` for users who wait for their answers.
        missed: Constraints that the stated rate or number of users misses, the furthest first.
    """

    judged: tuple[str, ...] = ()
    by_simulation: tuple[str, ...] = ()
    concurrency: int | None = None
    point: OperatingPoint | None = None
    results: Results | None = None
    caution: SafetyFactors
    rate_per_s: float | None = None
    missed: tuple[Miss, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether a load holds every constraint, and the stated one does."""
        return self.concurrency is not None and not self.missed


class LoadCurve:
    """Steady states of a plan on a machine, and the doubt about each.

    Attributes:
        points: Steady states from one user to twice those of the best throughput, by powers of
            two; the best throughput's, the knee's and the named number's are among them. Of a
            rate, the named number's is that of requests that come by chance.
        named: Number of users that was named, or nearest to what a rate keeps in flight; `None`
            without.
        knee: Steady state with the largest ratio of throughput to end-to-end latency
            (Kleinrock's power): beyond it latency grows faster than throughput.
    """

    def __init__(
        self,
        selection: Selection,
        plan: Plan,
        node: Node,
        calibration: Calibration | None,
        *,
        best: int,
        named: int | None = None,
        rate: float | None = None,
        workload: Workload | None = None,
    ) -> None:
        """Prices the curve.

        Args:
            selection: What is asked.
            plan: Plan that fits the machine.
            node: The machine.
            calibration: Its calibration, if any.
            best: Number of users of the best throughput.
            named: Number of users that was named.
            rate: Requests per second, instead of a number of users.
            workload: Lengths of the requests of that rate; the selection's if omitted.
        """
        self._selection, self._plan, self._node = selection, plan, node
        self._calibration, self._best, self._rate = calibration, best, rate
        self._workload = workload or selection.workload
        self._known: dict[int, Swept] = {}
        arriving: OperatingPoint | None = None
        if rate is not None:
            arriving = self._arriving(rate)
            named = arriving.concurrency
        self.named, self._at_rate = named, arriving
        most = max(2 * best, named or 1)
        steps = range(_KNEE_STEPS * most.bit_length())
        self._price({min(most, round(2 ** (step / _KNEE_STEPS))) for step in steps})
        self.knee = max((swept.point for swept in self._known.values()), key=_power)
        users = {1 << power for power in range((2 * best).bit_length())}
        users |= {best, self.knee.concurrency} | ({named} if named else set())
        self._price(users)
        self.points = tuple(
            arriving if arriving and count == named else self._known[count].point
            for count in sorted(users)
        )

    def at(self, concurrency: int) -> Swept:
        """Steady state with so many users, and what it costs."""
        self._price({concurrency})
        return self._known[concurrency]

    def _arriving(self, rate: float) -> OperatingPoint:
        """Means of requests that come by chance at a rate.

        Raises:
            InputError: The plan serves fewer.
        """
        most = self.at(self._best).point.requests_per_s
        if rate > most:
            raise InputError(
                f"{rate:g} requests/s are more than {self._plan.label} on {self._node.label} "
                f"serves: {most:.3g} at best",
                hint="give a lower --rate, or more devices",
            )
        shape, node, workload = self._selection.shape, self._node, self._workload
        found = at_a_rate(self._plan, shape, node, workload, rate, self.at(1).correction)
        # Corrections are by the number in flight, which they change little.
        correction = self.at(found.concurrency).correction
        return at_a_rate(self._plan, shape, node, workload, rate, correction)

    def interval(self, concurrency: int) -> Interval:
        """Factors between which nine of ten measured times are expected with so many users."""
        found = self.at(concurrency)
        shape, workload = self._selection.shape, self._selection.workload
        closed = self._rate is None
        return interval_of(
            self._node,
            self._plan,
            shape,
            found.correction or self._calibration,
            Ran.of(workload.lengths, "closed" if closed else "open"),
            output_tokens_per_s=found.point.output_tokens_per_s,
            scattered_factor=scattered_factor(self._plan, shape, self._node, workload, concurrency)
            if closed
            else 1.0,
        )

    def held(self) -> HeldLoad:
        """The largest load, up to the best throughput's, that holds every constraint.

        At a rate it is whether that rate holds them; a number of users that was named is judged
        beside the largest.
        """
        if self._at_rate is not None and self._rate is not None:
            return self._held_at(self._rate, self._at_rate)
        judge, simulated = self._selection.judge, dict[int, Results]()

        def missed_by_means(users: int) -> tuple[Miss, ...]:
            return judge.missed_by(self._node, self.at(users))

        def by_simulation(users: int) -> bool:
            results = simulated_with(
                users, self._plan, self._node, self._selection, self._calibration
            )
            if results is None:
                return False
            simulated[users] = results
            return not missed_in(users)

        def missed_in(users: int) -> tuple[Miss, ...]:
            correction = self.at(users).correction
            results = simulated.get(users) or Results()  # none where a request cannot be served
            return judge.missed_in(self._node, self._plan, results, correction)

        def by_means(users: int) -> bool:
            return not missed_by_means(users)

        copies = self._plan.replicas
        ladder = ladder_of(self._node, copies)  # that of rankings, which find the same number
        fewer = [users for users in ladder if users < self._best]
        beyond = next((users for users in ladder if users >= self._best), self._best)
        largest = _largest([*fewer, beyond], copies, by_means)
        if largest is not None and largest > self._best and by_means(self._best):
            largest = self._best
        if largest is not None and judge.others:
            largest = _largest(_doublings(largest, copies), copies, by_simulation)
        missed: tuple[Miss, ...] = ()
        if self.named is not None:
            missed = missed_by_means(self.named)
            if judge.others and not missed:
                by_simulation(self.named)
                missed = missed_in(self.named)
        return self._held_load(
            judge,
            concurrency=largest,
            point=None if largest is None else self.at(largest).point,
            results=None if largest is None else simulated.get(largest),
            missed=missed,
        )

    def _held_at(self, rate: float, point: OperatingPoint) -> HeldLoad:
        """Whether a rate holds the constraints, by the times of requests that come by chance."""
        judge, node, plan = self._selection.judge_of("open"), self._node, self._plan
        usd = node.cost_per_million_tokens_usd(point.output_tokens_per_s)
        correction = self.at(point.concurrency).correction
        arriving = Swept(
            plan=plan, point=point, cost_per_million_tokens_usd=usd, correction=correction
        )
        missed, results = judge.missed_by(node, arriving), None
        if judge.others and not missed:
            turns = self._workload.mean_turns()  # the law is of conversations
            load = msgspec.structs.replace(
                self._workload,
                arrivals=Poisson(rate / turns),
                concurrency=None,
                duration_s=None,
                request_count=REQUESTS_OF_A_RATE,
            )
            results = simulated_at(load, plan, node, self._selection, self._calibration)
            missed = judge.missed_in(node, plan, results or Results(), correction)
        return self._held_load(
            judge,
            concurrency=None if missed else point.concurrency,
            point=None if missed else point,
            results=results,
            rate_per_s=rate,
            missed=missed,
        )

    def _held_load(
        self,
        judge: Judge,
        *,
        concurrency: int | None,
        point: OperatingPoint | None,
        results: Results | None,
        missed: tuple[Miss, ...],
        rate_per_s: float | None = None,
    ) -> HeldLoad:
        judged_at = concurrency or (self._best if rate_per_s is None else self.named) or 1
        return HeldLoad(
            judged=tuple(limit.label for limit in judge.means),
            by_simulation=tuple(limit.label for limit in judge.others),
            concurrency=concurrency,
            point=point,
            results=results,
            caution=judge.caution(self._node, self._plan, self.at(judged_at).correction),
            rate_per_s=rate_per_s,
            missed=tuple(sorted(missed, key=lambda miss: -miss.excess)),
        )

    def _price(self, users: set[int]) -> None:
        new = sorted(users - self._known.keys())
        for swept in sweep(
            [self._plan],
            self._selection.shape,
            self._node,
            self._selection.workload,
            concurrencies=new,
            calibration=self._calibration,
        ):
            self._known[swept.point.concurrency] = swept


def _power(point: OperatingPoint) -> float:
    return point.output_tokens_per_s / point.e2e_ms


def _largest(numbers: Sequence[int], copies: int, holds: Callable[[int], bool]) -> int | None:
    """The largest number up to the last that holds, where fewer users are as good or better.

    A limit that only many users reach (a rate) fails at the bottom; the rising numbers, tried from
    the last one down, find one that holds then.
    """
    failing: int | None = None
    for count in reversed(numbers):
        if holds(count):
            return count if failing is None else nearest_load(count, failing, copies, holds)
        failing = count
    return None


def _doublings(most: int, copies: int) -> Sequence[int]:
    fewer = {whole_load(max(1, most >> power), copies) for power in range(1, most.bit_length())}
    return sorted(fewer | {most})
