"""Regression gate: differences that a change must not make.

    gate      := condition (";" condition)*
    condition := metric [":" statistic] (">" | "<") ["+" | "-"] number ["%" | unit]

`ttft:p99>+10%;output_throughput<-5%`: fails where the 99th percentile of the time to first token
rose by a tenth, or the throughput fell by a twentieth. Metrics, statistics and units are those of
constraints (`metrics.slo`). A difference with `%` is relative, another one is in the metric's unit.

A condition passes when the whole 95% interval of the difference is short of the threshold. Else it
fails when the difference is told apart from none, with a false alarm in any of the conditions in
2.5% of comparisons of equal sides at most (Holm), and its estimate is past half of the threshold.
Otherwise the runs cannot tell. `docs/design/0031-what-a-regression-is.md` has the reasons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from servetune.errors import GrammarError
from servetune.metrics.differences import LEVEL, Difference, holm
from servetune.metrics.slo import (
    LARGER_IS_BETTER,
    LATENCIES,
    METRICS,
    parse_constraints,
    parse_metric,
)

GateVerdict = Literal["failed", "passed", "cannot tell"]

#: Gate where none is given, for recommended run lengths.
USUAL = "ttft:p99>+10%;output_throughput<-5%"
#: Share of the threshold that an estimate must be past.
PAST = 0.5
_EXAMPLE = f"write it like {USUAL}"
_CONDITION = re.compile(
    r"\s*(?P<metric>[^<>=]+?)\s*(?P<op>[<>]=?)\s*(?P<sign>[+-]?)\s*"
    r"(?P<value>(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*"
)


class GateCondition(msgspec.Struct, frozen=True):
    """Difference from which on a change is a regression.

    Attributes:
        metric: One of `slo.METRICS`.
        statistic: `mean`, `median` or a percentile such as `p99`; `mean` for rates.
        amount: Size of the difference, above 0: a share where `relative`, else in the metric's unit
            (milliseconds for latencies).
        relative: Whether it is relative.
    """

    metric: str
    statistic: str
    amount: float
    relative: bool

    @property
    def falls(self) -> bool:
        """Whether a fall is the regression."""
        return self.metric in LARGER_IS_BETTER

    @property
    def label(self) -> str:
        """Text in the grammar: `ttft:p99>+10%`."""
        name = self.metric
        if self.metric in LATENCIES and self.statistic != "mean":
            name += f":{self.statistic}"
        unit = "ms" if self.metric in LATENCIES else ""
        size = f"{self.amount * 100:.12g}%" if self.relative else f"{self.amount:.12g}{unit}"
        return f"{name}{'<-' if self.falls else '>+'}{size}"

    def threshold(self, difference: Difference) -> float | None:
        """Change at the threshold, with its sign; `None` where the base has no value for it."""
        amount = self.amount
        if difference.absolute:
            return -amount if self.falls else amount
        if not self.relative:
            if not difference.base:
                return None
            amount /= difference.base
        return -min(amount, 0.999999) if self.falls else amount


class GateTest(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a gate and one difference.

    Attributes:
        condition: Condition.
        difference: Difference of its metric.
        verdict: Verdict.
        chance: Probability of so bad a difference where nothing changed, as if it were the only
            test; `None` where unknown.
    """

    condition: GateCondition
    difference: Difference
    verdict: GateVerdict
    chance: float | None = None


def parse_gate(text: str) -> tuple[GateCondition, ...]:
    """Conditions of a gate from text.

    Raises:
        GrammarError: The text does not follow the grammar.
        UnknownName: A metric is unknown.
    """
    conditions: list[GateCondition] = []
    position = 0
    for part in text.split(";"):
        if part.strip():
            conditions.append(_parse_one(part, text, position))
        position += len(part) + 1
    if not conditions:
        raise GrammarError("no condition found", text, 0, hint=_EXAMPLE)
    return tuple(conditions)


def judge_gate(
    tests: Sequence[tuple[GateCondition, Difference]], tolerance: float = 0.0
) -> list[GateTest]:
    """Verdicts of all conditions, which share the probability of a false alarm.

    Args:
        tests: Each condition with a difference of its metric.
        tolerance: Relative difference that is noise: the interval of a regression leaves it out.
    """
    chances = holm(
        [
            difference.fall_chance if condition.falls else difference.rise_chance
            for condition, difference in tests
        ]
    )
    return [
        GateTest(
            condition=condition,
            difference=difference,
            verdict=_verdict(condition, difference, chance, tolerance),
            chance=chance,
        )
        for (condition, difference), chance in zip(tests, chances, strict=True)
    ]


def _verdict(
    condition: GateCondition, difference: Difference, chance: float | None, tolerance: float
) -> GateVerdict:
    threshold = condition.threshold(difference)
    if threshold is None or difference.change is None:
        return "cannot tell"
    side = -1 if condition.falls else 1
    limit = side * difference.scaled(threshold)
    worse = side * difference.scaled(difference.change)
    noise = 0.0 if difference.absolute else abs(difference.scaled(side * tolerance))
    nearest, end = difference.low, difference.high
    if condition.falls:
        nearest, end = end, nearest
    told = chance is not None and chance <= (1 - LEVEL) / 2 and nearest is not None
    if end is not None and side * difference.scaled(end) < limit:
        return "passed"
    if (
        told
        and worse >= PAST * limit
        and (not noise or side * difference.scaled(nearest or 0.0) >= noise)
    ):
        return "failed"
    return "cannot tell"


def _parse_one(part: str, text: str, position: int) -> GateCondition:
    match = _CONDITION.fullmatch(part)
    if match is None:
        offset = position + len(part) - len(part.lstrip())
        raise GrammarError(
            f"cannot read the condition '{part.strip()}'", text, offset, hint=_EXAMPLE
        )
    metric, statistic = parse_metric(match["metric"], text, position)
    falls, value = metric in LARGER_IS_BETTER, float(match["value"])
    better, sign = ("+", "-") if falls else ("-", "+")
    if match["op"][0] != ("<" if falls else ">") or match["sign"] == better or not value:
        size = f"{match['value']}{match['unit']}" if value else "5%"
        raise GrammarError(
            f"'{part.strip()}' is no regression of {metric}, of which "
            f"{'more' if falls else 'less'} is better",
            text,
            position + match.start("op"),
            hint=f"write {match['metric'].strip()}{'<' if falls else '>'}{sign}{size}",
        )
    if match["unit"] == "%":
        if not math.isfinite(value):
            raise GrammarError(
                f"{match['value']}% is no finite number",
                text,
                position + match.start("value"),
                hint=_EXAMPLE,
            )
        if metric in _SHARES:
            raise GrammarError(
                f"{metric} is a share, so that {match['value']}% of it says little",
                text,
                position + match.start("value"),
                hint=f"write the difference of the shares: {metric}>+{value / 100:g}",
            )
        if falls and value >= 100:
            raise GrammarError(
                f"{metric} cannot fall by {match['value']}%",
                text,
                position + match.start("value"),
                hint=_EXAMPLE,
            )
        return GateCondition(metric, statistic, value / 100, relative=True)
    return GateCondition(
        metric, statistic, _absolute(metric, match, text, position), relative=False
    )


#: Metrics that are shares, whose differences are of the shares.
_SHARES = tuple(name for name in METRICS if name.endswith("_rate"))


def _absolute(metric: str, match: re.Match[str], text: str, position: int) -> float:
    """Amount in the metric's unit, by the units of constraints."""
    try:
        (limit,) = parse_constraints(f"{metric}<={match['value']}{match['unit']}")
    except GrammarError as error:
        raise GrammarError(
            error.message.partition(", at character")[0],
            text,
            position + match.start("value"),
            hint=error.hint or _EXAMPLE,
        ) from None
    return limit.value
