"""Constraints (service level objectives) that a configuration must meet.

    constraints := constraint (";" constraint)*
    constraint  := metric [":" statistic] operator number [unit]

`e2e_latency:p99<=60s;request_throughput>=5`. The default statistic of a latency is
`mean`, the default unit of a time is milliseconds. A constraint that cannot be read is an
error with its position, never dropped.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from servetune.errors import GrammarError, UnknownName
from servetune.json_value import JsonObject
from servetune.metrics.columns import BoolArray, FloatArray
from servetune.metrics.results import ResultFields

#: Metrics in milliseconds that have a distribution over requests (ITL: over gaps).
LATENCIES = ("ttft", "itl", "tpot", "e2e_latency")
#: Metrics with one number per trial.
RATES = (
    "request_throughput",
    "output_throughput",
    "input_throughput",
    "goodput",
    "error_rate",
    "wrong_length_rate",
    "cost_per_million_tokens",
    "cost_per_hour",
    "output_throughput_per_gpu",
    "energy_per_token_j",
)
METRICS = (*LATENCIES, *RATES)
#: Metrics of which more is better; of all others less is.
LARGER_IS_BETTER = frozenset(
    {
        "request_throughput",
        "output_throughput",
        "input_throughput",
        "output_throughput_per_gpu",
        "goodput",
    }
)

_OPERATORS: Mapping[str, Callable[[Any, float], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_MS_PER_UNIT = {"": 1.0, "ms": 1.0, "s": 1000.0, "us": 0.001}
_STATISTIC = re.compile(r"mean|median|std|p(\d{1,2}(\.\d+)?)$")
_CONSTRAINT = re.compile(
    r"\s*(?P<metric>[A-Za-z_]\w*)\s*(:\s*(?P<statistic>[\w.]+)\s*)?"
    r"(?P<op><=|>=|==|!=|<|>)\s*"
    r"(?P<value>[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z]*)\s*"
)
_METRIC = re.compile(r"\s*(?P<metric>[A-Za-z_]\w*)\s*(:\s*(?P<statistic>[\w.]+)\s*)?")


class Constraint(msgspec.Struct, frozen=True):
    """Limit on one metric of a trial.

    Attributes:
        metric: One of `METRICS`.
        statistic: `mean`, `median`, `std` or a percentile such as `p99`; `mean` for rates.
        op: Comparison between the measured value and `value`.
        value: Limit, in milliseconds for latencies, else in the metric's own unit.
    """

    metric: str
    statistic: str
    op: str
    value: float

    def holds(self, results: ResultFields) -> bool | None:
        """Whether the results meet the limit; `None` without a measured value."""
        measured = value_of(results, self.metric, self.statistic)
        return None if measured is None else bool(_OPERATORS[self.op](measured, self.value))

    def holds_each(self, values: FloatArray) -> BoolArray:
        """Mask of the values, in the unit of `value`, that meet the limit."""
        within: BoolArray = np.asarray(_OPERATORS[self.op](values, self.value), dtype=np.bool_)
        return within

    @property
    def field(self) -> str:
        """Result field of the limited value, such as `p99_e2e_latency_ms`."""
        return field_of(self.metric, self.statistic)

    @property
    def label(self) -> str:
        """Text in the grammar: `e2e_latency:p99<=60s`."""
        if self.metric not in LATENCIES:
            return f"{self.metric}{self.op}{self.value:.12g}"
        statistic = "" if self.statistic == "mean" else f":{self.statistic}"
        shown = f"{self.value / 1000:.12g}s" if self.value >= 1000 else f"{self.value:.12g}ms"
        return f"{self.metric}{statistic}{self.op}{shown}"

    def to_json(self) -> JsonObject:
        """JSON form of journals: name, op and value (milliseconds for times)."""
        return {"name": self.field, "op": self.op, "value": self.value}


def parse_constraints(text: str) -> tuple[Constraint, ...]:
    """Constraints from the text of `--constraints`.

    Raises:
        GrammarError: The text does not follow the grammar.
        UnknownName: A metric is unknown.
    """
    constraints: list[Constraint] = []
    position = 0
    for part in text.split(";"):
        if part.strip():
            constraints.append(_parse_one(part, text, position))
        position += len(part) + 1
    if text.strip() and not constraints:
        raise GrammarError("no constraint found", text, 0, hint=_EXAMPLE)
    return tuple(constraints)


def parse_metric(text: str, whole: str = "", position: int = 0) -> tuple[str, str]:
    """Metric and statistic of a text such as `ttft:p99`, in the grammar of constraints.

    Args:
        text: Metric, and its statistic after a colon where it is not the mean.
        whole: Text that an error shows; `text` itself where empty.
        position: Place of `text` in it.

    Raises:
        GrammarError: The text does not follow the grammar.
        UnknownName: The metric is unknown.
    """
    match = _METRIC.fullmatch(text)
    if match is None:
        offset = position + len(text) - len(text.lstrip())
        raise GrammarError(
            f"'{text.strip()}' is no metric with its statistic",
            whole or text,
            offset,
            hint="write it like ttft:p99 or goodput",
        )
    return _metric_and_statistic(match, whole or text, position, example=match["metric"])


def constraint_from_json(raw: ResultFields) -> Constraint:
    """Constraint from its journal form (`{"name": "p99_ttft_ms", "op": "<", "value": 1}`).

    Raises:
        UnknownName: The name is no result field that a constraint may limit.
    """
    name, op = str(raw.get("name")), str(raw.get("op"))
    if op in _OPERATORS and isinstance(raw.get("value"), int | float):
        statistic, _, rest = name.partition("_")
        if rest.endswith("_ms") and rest[:-3] in LATENCIES and _STATISTIC.fullmatch(statistic):
            return Constraint(rest[:-3], statistic, op, float(raw["value"]))
        if name in RATES:
            return Constraint(name, "mean", op, float(raw["value"]))
    raise UnknownName("constraint", f"{name} {op} {raw.get('value')}", METRICS)


def field_of(metric: str, statistic: str = "mean") -> str:
    """Result field of a metric and statistic."""
    return f"{statistic}_{metric}_ms" if metric in LATENCIES else metric


def value_of(results: ResultFields, metric: str, statistic: str = "mean") -> float | None:
    """Metric of a trial's results, in milliseconds for latencies; `None` if absent.

    Percentiles without a field of their own are interpolated linearly in the quantile grid
    (`results["quantiles"]`). Energy per output token is that of the watched GPUs
    (`results["server"]["energy_j"]`) over the output tokens of the answered requests.
    """
    direct = results.get(field_of(metric, statistic))
    if direct is None and statistic == "p50":
        direct = results.get(field_of(metric, "median"))
    if isinstance(direct, int | float):
        return float(direct)
    if metric == "energy_per_token_j":
        return _energy_per_token_j(results)
    grid = (results.get("quantiles") or {}).get(f"{metric}_ms")
    if grid is None or not statistic.startswith("p"):
        return None
    return _interpolate(grid, float(statistic[1:]))


def interval_of(
    results: ResultFields, metric: str, statistic: str = "mean"
) -> tuple[float | None, float | None] | None:
    """Sampling interval of a metric, low and high end; `None` where the record has none.

    An end is `None` where the requests do not determine it. Throughput per GPU and cost per token
    are the output throughput times or under a constant, so they have its interval, scaled.
    """
    intervals = results.get("intervals")
    if not isinstance(intervals, Mapping):
        return None
    field = field_of(metric, "median" if statistic == "p50" else statistic)
    ends = _ends(intervals.get(field))
    if ends is not None or metric not in ("output_throughput_per_gpu", "cost_per_million_tokens"):
        return ends
    rate, value = value_of(results, "output_throughput"), value_of(results, metric)
    ends = _ends(intervals.get("output_throughput"))
    if ends is None or not rate or value is None:
        return None
    low, high = ends
    if metric == "output_throughput_per_gpu":
        return low and value * low / rate, high and value * high / rate
    return high and value * rate / high, value * rate / low if low and low > 0 else None


def unmet(constraints: tuple[Constraint, ...], results: ResultFields) -> list[Constraint]:
    """Constraints that the results miss or have no value for."""
    return [constraint for constraint in constraints if not constraint.holds(results)]


_EXAMPLE = "write it like ttft:p95<=300ms;request_throughput>=5"


def _parse_one(part: str, text: str, position: int) -> Constraint:
    match = _CONSTRAINT.fullmatch(part)
    if match is None:
        offset = position + len(part) - len(part.lstrip())
        raise GrammarError(
            f"cannot read the constraint '{part.strip()}'", text, offset, hint=_EXAMPLE
        )
    unit = match["unit"]
    metric, statistic = _metric_and_statistic(
        match, text, position, example=f"{match['metric']}{match['op']}{match['value']}"
    )
    if unit and (metric in RATES or unit not in _MS_PER_UNIT):
        known = "no unit" if metric in RATES else "ms, s or us"
        raise GrammarError(
            f"unknown unit '{unit}' for {metric}",
            text,
            position + match.start("unit"),
            hint=f"{metric} takes {known}",
        )
    if not math.isfinite(float(match["value"])):
        raise GrammarError(
            f"{match['value']} is not a finite limit",
            text,
            position + match.start("value"),
            hint=_EXAMPLE,
        )
    if float(match["value"]) < 0:
        raise GrammarError(
            f"{metric} is never below 0, so a limit of {match['value']}{unit} has no effect",
            text,
            position + match.start("value"),
            hint=_EXAMPLE,
        )
    if metric == "error_rate" and float(match["value"]) > 1:
        raise GrammarError(
            f"error_rate is a share from 0 to 1, never {match['value']}",
            text,
            position + match.start("value"),
            hint="1% is error_rate<=0.01",
        )
    scale = _MS_PER_UNIT[unit] if metric in LATENCIES else 1.0
    return Constraint(metric, statistic, match["op"], float(match["value"]) * scale)


def _metric_and_statistic(
    match: re.Match[str], text: str, position: int, *, example: str
) -> tuple[str, str]:
    """Metric and statistic of a match; `example` is how a metric without statistics is written."""
    metric, statistic = match["metric"], match["statistic"] or "mean"
    if metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)
    if not _STATISTIC.fullmatch(statistic):
        raise GrammarError(
            f"unknown statistic '{statistic}'",
            text,
            position + match.start("statistic"),
            hint="use mean, median or a percentile from p50 to p99.9",
        )
    if metric in RATES and statistic != "mean":
        raise GrammarError(
            f"{metric} is one number per trial and has no {statistic}",
            text,
            position + match.start("statistic"),
            hint=f"write {example}",
        )
    return metric, statistic


def _ends(raw: object) -> tuple[float | None, float | None] | None:
    """Ends of an interval as a journal has it; `None` where it is none."""
    if not isinstance(raw, list | tuple) or len(raw) != 2:
        return None
    low, high = (float(end) if isinstance(end, int | float) else None for end in raw)
    return None if low is None and high is None else (low, high)


def _energy_per_token_j(results: ResultFields) -> float | None:
    side, tokens = results.get("server"), results.get("total_output_tokens")
    energy_j = side.get("energy_j") if isinstance(side, Mapping) else None
    if not isinstance(energy_j, int | float) or not isinstance(tokens, int | float) or not tokens:
        return None
    return energy_j / tokens


def _interpolate(grid: Mapping[str, float | None], percent: float) -> float | None:
    points = sorted((float(key), value) for key, value in grid.items() if value is not None)
    below = [point for point in points if point[0] <= percent]
    above = [point for point in points if point[0] >= percent]
    if not below or not above:
        return None
    (low, low_value), (high, high_value) = below[-1], above[0]
    share = 0.0 if high == low else (percent - low) / (high - low)
    return low_value + share * (high_value - low_value)
