"""Objectives of a choice: any metric of a trial, and limits before them in order of importance.

    objectives := objective ("," objective)*
    objective  := "throughput" | "latency" | "cost" | ... | metric [":" statistic]
    sla        := constraint (";" constraint)* [";" "then" objectives]

Metrics and statistics are those of constraints (`metrics.slo`). A metric is maximised or minimised
by its nature: throughputs and goodput are maximised, all others minimised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from servetune.errors import GrammarError, InputError
from servetune.metrics import (
    LARGER_IS_BETTER,
    LATENCIES,
    Constraint,
    parse_constraints,
    parse_metric,
    value_of,
)
from servetune.metrics.results import ResultFields

_RATE_UNITS: Mapping[str, str] = {
    "output_throughput": " tok/s",
    "output_throughput_per_gpu": " tok/s",
    "input_throughput": " tok/s",
    "request_throughput": " req/s",
    "goodput": " req/s",
    "energy_per_token_j": " J",
}

_TITLES: Mapping[str, str] = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e_latency": "end-to-end latency",
    "output_throughput": "output throughput",
    "output_throughput_per_gpu": "output throughput per GPU",
    "input_throughput": "input throughput",
    "request_throughput": "request throughput",
    "error_rate": "share of failed requests",
    "wrong_length_rate": "share of answers of another length",
    "cost_per_million_tokens": "cost per million output tokens",
    "cost_per_hour": "cost per hour",
    "energy_per_token_j": "energy per output token",
}

#: What a metric needs to be measured, where not every trial has it.
_NEEDS: Mapping[str, str] = {
    "goodput": 'goodput needs limits on single requests, such as --slo "ttft<=500ms;tpot<=50ms"',
    "energy_per_token_j": "energy is measured by the counters of GPUs that servers of this machine "
    "run on; a simulation has none",
    "cost_per_million_tokens": "give the machine's price with --price-per-hour, or --instance",
    "cost_per_hour": "give the machine's price with --price-per-hour, or --instance",
}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """Objective of a choice: one metric of a trial and its direction.

    Attributes:
        name: Name in the grammar: `throughput`, `ttft:p99`.
        metric: One of `metrics.METRICS`.
        statistic: `mean`, `median`, `std` or a percentile such as `p99`; `mean` for rates.
        maximize: Whether more is better.
        title: Display name.
    """

    name: str
    metric: str
    statistic: str
    maximize: bool
    title: str

    def value(self, results: ResultFields) -> float | None:
        return value_of(results, self.metric, self.statistic)

    def shown(self, value: float) -> str:
        """Value of this objective with its unit, for display."""
        return with_unit(self.metric, value)

    @property
    def needs(self) -> str:
        """What trials need to have a value; empty where every trial has one."""
        return _NEEDS.get(self.metric, "")


def objective_of(metric: str, statistic: str = "mean", *, name: str = "") -> Objective:
    """Objective of a metric and statistic."""
    title = _TITLES.get(metric, metric)
    if metric in LATENCIES:
        title = f"{statistic} {title}"
        name = name or (metric if statistic == "mean" else f"{metric}:{statistic}")
    return Objective(
        name=name or metric,
        metric=metric,
        statistic=statistic,
        maximize=metric in LARGER_IS_BETTER,
        title=title,
    )


_NAMED: Mapping[str, tuple[str, str]] = {
    "throughput": ("output_throughput", "mean"),
    "latency": ("e2e_latency", "p99"),
    "cost": ("cost_per_million_tokens", "mean"),
    "throughput_per_gpu": ("output_throughput_per_gpu", "mean"),
    "energy": ("energy_per_token_j", "mean"),
}

#: Objectives with names of their own. Latency is p99 end-to-end, as in a service level objective:
#: means hide the tail.
NAMED: Mapping[str, Objective] = {
    name: objective_of(metric, statistic, name=name) for name, (metric, statistic) in _NAMED.items()
}
#: Objectives of a report where none is given.
OBJECTIVES: Mapping[str, Objective] = {
    name: NAMED[name] for name in ("throughput", "latency", "cost")
}


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Objectives from the text of `--objective`, each once, in the order given.

    Raises:
        GrammarError: The text does not follow the grammar.
        UnknownName: A metric is unknown.

    Example:
        >>> [(each.name, each.maximize) for each in parse_objectives("cost, ttft:p99, goodput")]
        [('cost', False), ('ttft:p99', False), ('goodput', True)]
    """
    return _objectives(text, text, 0)


def _objectives(text: str, whole: str, position: int) -> tuple[Objective, ...]:
    found: dict[str, Objective] = {}
    for part in text.split(","):
        if not part.strip():
            raise GrammarError(
                "an objective is missing",
                whole,
                position,
                hint=f"give {', '.join(NAMED)} or a metric such as ttft:p99",
            )
        name = part.strip().replace("-", "_")
        metric, statistic = _NAMED.get(name) or parse_metric(part, whole, position)
        statistic = "median" if statistic == "p50" else statistic
        names = {pair: each for each, pair in _NAMED.items()}
        objective = objective_of(metric, statistic, name=names.get((metric, statistic), ""))
        found[objective.name] = objective
        position += len(part) + 1
    return tuple(found.values())


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice among trials is to reach.

    Attributes:
        constraints: Limits; in order of importance where `ladder`.
        objectives: Objectives among the trials that hold the limits; several give a Pareto set,
            none is the throughput.
        ladder: Whether earlier limits go before later ones where not all can be held.
    """

    constraints: tuple[Constraint, ...] = ()
    objectives: tuple[Objective, ...] = ()
    ladder: bool = False

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        """Metrics with their statistics that limits and objectives are about."""
        return (
            *((each.metric, each.statistic) for each in self.constraints),
            *((each.metric, each.statistic) for each in self.wanted),
        )

    @property
    def wanted(self) -> tuple[Objective, ...]:
        """Objectives, at least one."""
        return self.objectives or (OBJECTIVES["throughput"],)

    @property
    def label(self) -> str:
        """Text in the grammar of `--sla`."""
        names = ",".join(each.name for each in self.wanted)
        return "; ".join([*(each.label for each in self.constraints), f"then {names}"])


def parse_sla(text: str) -> Goal:
    """Limits in order of importance, then an objective, from the text of `--sla`.

    Without `then` the objective is the throughput.

    Raises:
        GrammarError: The text does not follow the grammar.
        UnknownName: A metric is unknown.

    Example:
        >>> parse_sla("ttft:p99<=2s, then cost").label
        'ttft:p99<=2s; then cost'
    """
    limits, then, rest = text, None, ""
    match = _THEN.search(text)
    if match is not None:
        limits, then, rest = text[: match.start()], match, text[match.end() :]
    constraints = parse_constraints(limits.replace(",", ";"))
    if not constraints:
        raise GrammarError("no limit found", text, 0, hint=_SLA_EXAMPLE)
    if len(set(constraints)) < len(constraints):
        raise InputError(f"--sla '{text}' has a limit twice", hint="leave one of them out")
    require_consistent(constraints)
    objectives = _objectives(rest, text, then.end()) if then else Goal().wanted
    return Goal(constraints=constraints, objectives=objectives, ladder=True)


def require_consistent(constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that no value can meet together.

    Raises:
        InputError: Two on the same metric and statistic exclude each other.
    """
    for at, one in enumerate(constraints):
        for other in constraints[at + 1 :]:
            same = (one.metric, one.statistic) == (other.metric, other.statistic)
            if same and not _possible(one, other):
                raise InputError(
                    f"no value holds both {one.label} and {other.label}",
                    hint="leave one of them out",
                )


def _possible(one: Constraint, other: Constraint) -> bool:
    """Whether some value of the metric meets both: a limit itself, or one beside or between."""
    low, high = sorted((one.value, other.value))
    step = max(abs(high), 1.0) * 1e-9
    values = np.array([low, high, (low + high) / 2, max(low - step, 0.0), high + step])
    return bool((one.holds_each(values) & other.holds_each(values)).any())


_THEN = re.compile(r"(?:^|[;,\s])\s*then\b")
_SLA_EXAMPLE = 'write it like "ttft:p99<=2s; itl:p99<=50ms; then cost"'


def stated_goal(constraints: str | None, objectives: Sequence[str], sla: str | None) -> Goal:
    """Goal of the texts of `--constraints`, `--objective` and `--sla`.

    Raises:
        InputError: A text cannot be read, or what is given beside `--sla` contradicts it.
    """
    limits = None if constraints is None else parse_constraints(constraints)
    require_consistent(limits or ())
    wanted = parse_objectives(",".join(objectives)) if objectives else ()
    if sla is None:
        return Goal(constraints=limits or (), objectives=wanted)
    goal = parse_sla(sla)
    if limits is not None and set(limits) != set(goal.constraints):
        raise InputError(
            "--sla and --constraints give different limits",
            hint="give them all to --sla, in order of importance, and leave --constraints out",
        )
    if wanted and wanted != goal.objectives:
        raise InputError(
            f"--sla ends in {','.join(each.name for each in goal.objectives)} and --objective is "
            f"{','.join(each.name for each in wanted)}",
            hint="write it in one of the two: --sla '...; then cost'",
        )
    return goal


def with_unit(metric: str, value: float) -> str:
    """Value with four digits and its unit; none for a share of requests."""
    if metric in LATENCIES:
        return f"{value / 1000:,.4g} s" if value >= 1000 else f"{value:,.4g} ms"
    if metric in ("cost_per_million_tokens", "cost_per_hour"):
        return f"${value:,.4g}"
    return f"{value:,.4g}{_RATE_UNITS.get(metric, '')}"
