"""Load setting whose largest value is to be found, and what was found of it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from servetune.errors import InputError, UnknownName
from servetune.json_value import JsonObject
from servetune.metrics import Constraint
from servetune.search.bracket import LargestLoad
from servetune.search.knee import Knee
from servetune.workload import client_arg_of, same_client_args

KnobName = Literal["max_concurrency", "request_rate"]
KNOBS: tuple[KnobName, ...] = ("max_concurrency", "request_rate")

#: Smallest rate that is tried where no bound is given: a request in a hundred seconds.
LEAST_RATE_PER_S = 0.01
#: Largest rate that is tried where no bound is given.
MOST_RATE_PER_S = 10_000.0

_KNOB = re.compile(
    r"\s*(?P<name>[A-Za-z_]\w*)\s*"
    r"(=\s*(?P<least>\d+(\.\d+)?)?\s*\.\.\s*(?P<most>\d+(\.\d+)?)?\s*)?"
)


class LoadKnob(msgspec.Struct, frozen=True, kw_only=True):
    """Load setting whose largest value is to be found.

    Attributes:
        name: Client argument: `max_concurrency` (users) or `request_rate` (requests per second).
        least: Smallest value that is tried; `None` for 1 user, or a request in 100 s.
        most: Largest value that is tried; `None` for as many users as there are requests, or
            `MOST_RATE_PER_S`.
    """

    name: KnobName
    least: float | None = None
    most: float | None = None

    @classmethod
    def parse(cls, text: str) -> LoadKnob:
        """Setting and bounds of `max_concurrency`, `max_concurrency=8..512`, `request_rate=..40`.

        Raises:
            InputError: The text does not follow this form, or no load is within the bounds.
            UnknownName: The setting is not one of `KNOBS`.
        """
        match = _KNOB.fullmatch(text)
        if match is None:
            raise InputError(
                f"--find {text} is no setting with bounds",
                hint="write it like max_concurrency, max_concurrency=8..512 or request_rate=..40",
            )
        name = client_arg_of(match["name"])
        if name not in KNOBS:
            raise UnknownName("load setting", match["name"], KNOBS)
        bounds = [None if match[end] is None else float(match[end]) for end in ("least", "most")]
        knob = cls(name="max_concurrency" if name == KNOBS[0] else "request_rate")
        least, most = bounds
        whole = all(each is None or each == int(each) for each in bounds)
        if (knob.whole and not whole) or 0 in bounds or (least or 0) > (most or float("inf")):
            raise InputError(
                f"--find {text}: no load lies within these bounds",
                hint="the lower bound comes first, and users are whole numbers from 1",
            )
        return msgspec.structs.replace(knob, least=least, most=most)

    @property
    def whole(self) -> bool:
        """Whether loads are whole numbers."""
        return self.name == "max_concurrency"

    @property
    def lowest(self) -> float:
        """Smallest value that is tried."""
        if self.whole:
            return int(self.least or 1)
        return self.least or LEAST_RATE_PER_S

    @property
    def highest(self) -> float | None:
        """Largest value that is tried; `None` for users without a bound."""
        return self.most if self.most is not None or self.whole else MOST_RATE_PER_S

    @property
    def range_text(self) -> str:
        """Bounds as they are written: `8..512`, `1..`."""
        return f"{self.lowest:g}..{'' if self.most is None else f'{self.most:g}'}"

    def shown(self, load: float) -> str:
        """Load with its unit."""
        if self.whole:
            return "1 user" if load == 1 else f"{load:,.0f} users"
        return f"{load:.3g} requests/s"

    def require_alone(self, client_args: Collection[str]) -> None:
        """Refuse client arguments that say what is to be found, or that leave nothing to find.

        Raises:
            InputError: One is given.
        """
        option = "concurrency" if self.whole else "rate"
        for name in sorted(same_client_args(option) & set(client_args)):
            raise InputError(
                f"--find {self.name} finds the load, and {name} states it",
                hint=f"leave one of them out, or bound the search: --find {self.name}=1..64",
            )
        paced = {"request_rate", "rate", "arrivals", "trace", "workload"} & set(client_args)
        if self.whole and paced:
            raise InputError(
                f"--find max_concurrency is for users who wait for their answers, and "
                f"{min(paced)} has arrivals of its own",
                hint="leave it out, or choose --find request_rate",
            )


class FoundLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Largest load of one server configuration.

    Attributes:
        label: Settings that differ between the searches of a study; empty where none does.
        knob: Load setting.
        server_args: Settings of the server.
        client_args: Other options of the load.
        answer: Loads that hold and fail, the confidence, and the number of runs.
        knees: Knees of mean end-to-end latency, in milliseconds, against load.
        limits: Constraints that load makes worse, by which it was found.
        doubts: Other constraints that the largest load misses, and what else speaks against it.
        assumed_sd: Relative error that was assumed of runs without a confidence interval; 0
            where none was.
        simulated: Whether runs were in virtual time, without noise.
        stopped: Reason why the search ended before its answer; empty where it did not.
    """

    label: str
    knob: LoadKnob
    server_args: JsonObject
    client_args: JsonObject
    answer: LargestLoad
    knees: tuple[Knee, ...] = ()
    limits: tuple[Constraint, ...] = ()
    doubts: tuple[str, ...] = ()
    assumed_sd: float = 0.0
    simulated: bool = False
    stopped: str = ""

    def __str__(self) -> str:
        head = f"{self.label}: " if self.label else ""
        return "\n  - ".join([head + self._held_text(), *self._notes()])

    def _held_text(self) -> str:
        answer, limits = self.answer, "; ".join(limit.label for limit in self.limits)
        if self.stopped:
            return f"no largest load: {self.stopped}"
        if answer.held is None and answer.failing is None:
            return "no load was decided"
        percent = min(99, math.floor(100 * answer.confidence))
        sure = "simulated" if self.simulated else f"at least {percent}% sure"
        how = f"({sure}, {answer.run_count} {'run' if answer.run_count == 1 else 'runs'})"
        if answer.held is None:
            return f"{limits}: missed with {self.knob.shown(answer.failing or 0)} already {how}"
        more = "more could not be told" if answer.undecided else "more was not tried"
        if answer.failing is not None:
            more = f"missed with {self.knob.shown(answer.failing)}"
        return f"{limits}: held up to {self.knob.shown(answer.held)}, {more} {how}"

    def _notes(self) -> Iterator[str]:
        near = [self.knob.shown(load) for load in self.answer.undecided]
        if near:
            loads = ", ".join(near)
            yield f"too near the limit to tell: {loads}; longer runs tell more (-n, --until)"
        for load in self.answer.contradictions:
            yield f"{self.knob.shown(load)} failed again and again, and a larger load held"
        yield from self.doubts
        if self.assumed_sd:
            yield f"where a run has no confidence interval, an error of {self.assumed_sd:.0%}"
        if self.knees:
            named = (knee.text(self.knob.shown) for knee in self.knees)
            yield f"knees of mean end-to-end latency: {', '.join(named)}"
