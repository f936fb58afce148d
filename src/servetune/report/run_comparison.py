"""Comparison of the runs of two sides: changes by configuration, a gate's verdicts, run lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonObject
from servetune.metrics.differences import LEAST_FREEDOM, LEAST_PAIRS, Difference
from servetune.metrics.gate import (
    USUAL,
    GateCondition,
    GateTest,
    GateVerdict,
    judge_gate,
    parse_gate,
)
from servetune.metrics.resampled import BLOCKS, LEAST_BEYOND, LEAST_REQUESTS
from servetune.metrics.run_length import MOST_RUNS, likely_most, runs_for, with_uneven_effect
from servetune.metrics.slo import LATENCIES, field_of
from servetune.report.alignment import Aligned, align, seed_of, telling_settings
from servetune.report.changes import (
    TOLERANCE,
    MetricChange,
    RunResults,
    changes,
    difference_in,
    judged,
)
from servetune.report.quantities import QUANTITIES
from servetune.report.ranking import label_of
from servetune.store.schema import TrialRecord

#: Relative standard deviation from run to run that is assumed where one run a side cannot show it.
ASSUMED_SPREAD = 0.01
#: Condition that goes with one on a latency where requests failed: as many as a p99 leaves out.
FAILURES = "error_rate>+0.01"
#: Difference from which on text says no more of ends of intervals and of what runs tell: 1000%.
MOST_SHOWN = 10.0
#: How a metric that not every run has comes to be measured.
_GIVEN_BY = {
    "goodput": "run both sides with bench --slo, such as --slo 'ttft<=500ms;tpot<=50ms'",
    "cost_per_million_tokens": "costs are of runs with a price, such as those of servetune tune",
    "cost_per_hour": "costs are of runs with a price, such as those of servetune tune",
}


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Run of one side.

    Attributes:
        record: Record.
        reaches: Doubt of each metric by its requests, as of `changes.RunResults`.
        has_requests: Whether its requests are kept beside it.
    """

    record: TrialRecord
    reaches: dict[str, float] | None = None
    has_requests: bool = False

    @property
    def figures(self) -> RunResults:
        """Results with the doubt of each metric."""
        return RunResults(results=self.record.results, reaches=self.reaches)


class RunLength(msgspec.Struct, frozen=True, kw_only=True):
    """Runs with which a condition fails a true difference of its threshold in 90% of comparisons.

    Attributes:
        condition: Condition in the grammar of a gate.
        runs: Runs of each side; `None` where `MOST_RUNS` do not do.
        requests: Requests of each run.
        paired: Whether the number is for pairs of runs with equal seeds.
        spread_fraction: Relative standard deviation from run to run that was planned with.
        assumed: Whether that is partly an assumption, as one run does not show it.
    """

    condition: str
    runs: int | None
    requests: int
    paired: bool
    spread_fraction: float
    assumed: bool

    @property
    def words(self) -> str:
        """Runs and requests in words, without the condition."""
        why = f"for {'pairs' if self.paired else 'runs'} that differ by "
        why += share_text(self.spread_fraction)
        why += ", part of which is assumed" if self.assumed else ""
        if self.runs is None:
            seeds = "" if self.paired else ", or the same seeds on both sides"
            return f"more than {MOST_RUNS} runs a side {why}: quieter machines, longer runs{seeds}"
        of = "pairs of runs with equal seeds" if self.paired else "runs a side"
        return f"{self.runs} {of}, {self.requests:,} requests each, {why}"

    def __str__(self) -> str:
        return f"{self.condition}: {self.words}"


class GateOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of one condition of the gate on one configuration.

    Attributes:
        condition: Condition in the grammar.
        configuration: Label of the configuration.
        verdict: Verdict.
        change_fraction: Relative change; of the share of failed requests the difference.
        change_low: Lower end of its 95% interval.
        change_high: Upper end.
        chance: Probability of so bad a change where nothing changed, all conditions counted.
        needed: Number of runs and requests that would tell.
        reason: Reason why nothing is known of its doubt, with the next step; empty otherwise.
    """

    condition: str
    configuration: str
    verdict: GateVerdict
    change_fraction: float | None
    change_low: float | None
    change_high: float | None
    chance: float | None
    needed: RunLength | None = None
    reason: str = ""

    def __str__(self) -> str:
        change = change_text(self.change_fraction, self.change_low, self.change_high)
        told = f"{self.verdict}: {self.condition}, changed {change}"
        if self.verdict == "cannot tell" and self.needed is not None:
            told += f"; would be told by {self.needed.words}"
        return f"{told}: {self.reason}" if self.reason else told


class ComparedConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one configuration.

    Attributes:
        label: Settings that tell it from the others.
        base_runs: Number of its runs before.
        new_runs: Number of its runs now.
        paired: Whether runs with equal seeds were compared pair by pair.
        requests: Requests of a run, on average.
        differences: Settings and facts that differ, as `name: before → now`.
        rows: Changes.
    """

    label: str
    base_runs: int
    new_runs: int
    paired: bool
    requests: int
    differences: tuple[str, ...]
    rows: tuple[MetricChange, ...]


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two sides.

    Attributes:
        configurations: Configurations of both sides.
        only_base: Configurations without a partner among the new runs.
        only_new: Configurations without a partner among the base runs.
        broken: New runs that failed, by configuration and with why, where base runs did not.
        gate: Verdicts of the gate; empty without one.
        run_lengths: Numbers of runs and requests that tell the gate's differences, or the usual
            ones without a gate.
        notes: Remarks on what the comparison rests on.
        gated: Whether there is a gate: of configurations that all fail it has no conditions.
    """

    configurations: tuple[ComparedConfiguration, ...]
    only_base: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    gate: tuple[GateOutcome, ...] = ()
    run_lengths: tuple[RunLength, ...] = ()
    notes: tuple[str, ...] = ()
    gated: bool = False

    @property
    def failed(self) -> bool:
        """Whether a condition of the gate failed, or a configuration no longer runs well."""
        return any(each.verdict == "failed" for each in self.gate) or bool(
            self.gated and self.broken
        )

    @property
    def undecided(self) -> bool:
        """Whether the runs cannot tell about a condition of the gate."""
        return any(each.verdict == "cannot tell" for each in self.gate)

    @property
    def words(self) -> str:
        """Verdict as a sentence."""
        parts = []
        for verdict in ("worse", "better"):
            names = [
                f"{row.name}{f' ({each.label})' if len(self.configurations) > 1 else ''}"
                for each in self.configurations
                for row in each.rows
                if row.verdict == verdict
            ]
            if names:
                further = f" and {len(names) - 6} more" if len(names) > 6 else ""
                parts.append(f"{verdict}: {', '.join(names[:6])}{further}")
        if self.broken:
            further = f" and {len(self.broken) - 3} more" if len(self.broken) > 3 else ""
            parts.append(f"failed runs of NEW: {'; '.join(self.broken[:3])}{further}")
        if not parts and not self.failed:
            parts.append("no difference is told apart from chance")
        if self.gated:
            bad = sum(each.verdict == "failed" for each in self.gate)
            open_ones = sum(each.verdict == "cannot tell" for each in self.gate)
            gate = "failed" if self.failed else "cannot tell" if open_ones else "passed"
            detail = f" ({bad} failed, {open_ones} cannot tell, of {len(self.gate)})"
            parts.append(f"gate {gate}{detail if self.gate else ''}")
        return "; ".join(parts)

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        raw: JsonObject = msgspec.to_builtins(self)
        return {**raw, "verdict": self.words, "failed": self.failed, "undecided": self.undecided}


def compare_runs(
    base: Sequence[ComparedRun],
    new: Sequence[ComparedRun],
    *,
    gate: tuple[GateCondition, ...] = (),
    tolerance: float | None = None,
    ignore_workload: bool = False,
) -> RunComparison:
    """Compare the runs of two sides.

    Args:
        base: Runs before that ended well; at least one.
        new: Runs now that ended well; at least one.
        gate: Conditions of the gate.
        tolerance: Relative difference treated as noise; `TOLERANCE` where a side has one run,
            none where omitted and runs are repeated.
        ignore_workload: Whether runs of different loads are compared, too.

    Raises:
        InputError: Nothing can be aligned.
    """
    records = [run.record for run in base], [run.record for run in new]
    require_one_kind(*records)
    aligned = align(*records, ignore_workload=ignore_workload)
    sides = [
        ([base[place] for place in pair.base], [new[place] for place in pair.new])
        for pair in aligned.pairs
    ]
    noise = [_noise(*side, tolerance) for side in sides]
    conditions = with_failures(gate, *records) or parse_gate(USUAL)
    rows, tested, sampled = [], [], []
    for pair, (was, now), band in zip(aligned.pairs, sides, noise, strict=True):
        figures = [run.figures for run in was], [run.figures for run in now]
        rows.append(changes(*figures, paired=pair.paired, band=band or TOLERANCE))
        for condition in conditions:
            tested.append((condition, _difference(condition, *figures, pair, band or TOLERANCE)))
            sampled.append(_difference(condition, *figures, pair))
    if gate:
        _require_values(tested)
    flat = [(row, band) for each, band in zip(rows, noise, strict=True) for row in each]
    verdicts = iter(judged([row for row, _ in flat], [band for _, band in flat]))
    configurations = tuple(
        ComparedConfiguration(
            label=pair.label,
            base_runs=len(was),
            new_runs=len(now),
            paired=pair.paired,
            requests=_requests([*was, *now]),
            differences=pair.differences,
            rows=tuple(next(verdicts) for _ in own),
        )
        for pair, (was, now), own in zip(aligned.pairs, sides, rows, strict=True)
    )
    lengths = [
        _length(
            condition,
            difference,
            configurations[number // len(conditions)],
            len(tested),
            [run.figures for side in sides[number // len(conditions)] for run in side],
        )
        for number, ((condition, _), difference) in enumerate(zip(tested, sampled, strict=True))
    ]
    # The tolerance is that of the configuration with the fewest runs: one gate, one rule.
    outcomes = judge_gate(tested, max(noise)) if gate else []
    return RunComparison(
        configurations=configurations,
        only_base=aligned.only_base,
        only_new=aligned.only_new,
        gate=tuple(
            _outcome(test, configurations[number // len(conditions)], lengths[number])
            for number, test in enumerate(outcomes)
        ),
        gated=bool(gate),
        run_lengths=tuple(_longest(lengths)),
        notes=(
            *_notes(aligned.pairs, sides, aligned.load_differences, tolerance),
            *_notes_on_values(configurations, *records),
        ),
    )


def with_failures(
    gate: tuple[GateCondition, ...], base: Sequence[TrialRecord], new: Sequence[TrialRecord]
) -> tuple[GateCondition, ...]:
    """Conditions of a gate, and one on failed requests where a latency's would hide them.

    Latencies are those of answered requests, so that a server which fails its slowest ones has
    shorter ones.
    """
    failed = any(record.results.failed for record in (*base, *new))
    metrics = {condition.metric for condition in gate}
    if not failed or "error_rate" in metrics or metrics.isdisjoint(LATENCIES):
        return gate
    return (*gate, *parse_gate(FAILURES))


def _require_values(tested: Sequence[tuple[GateCondition, Difference]]) -> None:
    """Refuse conditions on what no run of either side has measured.

    Raises:
        InputError: A metric is absent.
    """
    known = {
        condition
        for condition, difference in tested
        if difference.base is not None or difference.new is not None
    }
    absent = {condition: None for condition, _ in tested if condition not in known}
    if absent:
        metrics = list(dict.fromkeys(condition.metric for condition in absent))
        raise InputError(
            f"neither side has {' nor '.join(condition.label for condition in absent)} to judge",
            hint=next(
                (_GIVEN_BY[metric] for metric in metrics if metric in _GIVEN_BY),
                "name a metric that servetune compare BASE NEW shows",
            ),
        )


def plan_run(
    runs: Sequence[ComparedRun], conditions: tuple[GateCondition, ...]
) -> tuple[RunLength, ...]:
    """Run length of each condition, by the runs of one side: the longest of its configurations."""
    aligned = align([run.record for run in runs], [run.record for run in runs])
    lengths = []
    tests = len(aligned.pairs) * len(conditions)
    for pair in aligned.pairs:
        own = [runs[place] for place in pair.base]
        for condition in conditions:
            figures = [run.figures for run in own]
            found = _spread_of(condition, figures)
            if found is not None:
                lengths.append(
                    _length_of(condition, *found, figures, _requests(own), tests, paired=False)
                )
    if not lengths:
        raise InputError(
            f"the runs have no value of {', '.join(each.label for each in conditions)}",
            hint="name other metrics with --fail-on",
        )
    return tuple(_longest(lengths))


def require_one_kind(base: Sequence[TrialRecord], new: Sequence[TrialRecord]) -> None:
    """Refuse simulated runs beside measured ones.

    Raises:
        InputError: One is simulated and another is not.
    """
    kinds = [{record.simulated for record in side} for side in (base, new)]
    if len(kinds[0] | kinds[1]) > 1:
        names = {
            frozenset({True}): "simulated",
            frozenset({False}): "measured",
        }
        was, now = (names.get(frozenset(kind), "partly simulated") for kind in kinds)
        raise InputError(
            f"BASE is {was} and NEW is {now}: a difference would be the simulation's error",
            hint="servetune simulate --compare FILE shows measured trials beside their simulation",
        )


def change_text(change: float | None, low: float | None, high: float | None) -> str:
    """Change with its interval: `-3.1% [-4.0%, -2.2%]`."""
    if change is None:
        return "by an unknown amount"
    if low is None and high is None:
        return f"{change:+.1%} [?]"
    return f"{change:+.1%} [{', '.join(map(end_text, (low, high)))}]"


def end_text(end: float | None) -> str:
    """End of a change's interval: `+6.0%`, or that it is past `MOST_SHOWN`."""
    if end is None:
        return "?"
    return f"{end:+.1%}" if end < MOST_SHOWN else f"> {MOST_SHOWN:+.0%}"


def share_text(fraction: float) -> str:
    """Share or difference in percent: `6.0%`, or that it is past `MOST_SHOWN`."""
    return f"{fraction:.1%}" if fraction < MOST_SHOWN else f"> {MOST_SHOWN:.0%}"


def _noise(
    base: Sequence[ComparedRun], new: Sequence[ComparedRun], tolerance: float | None
) -> float:
    if tolerance is not None:
        return tolerance
    return 0.0 if len(base) + len(new) - 2 >= LEAST_FREEDOM else TOLERANCE


def _difference(
    condition: GateCondition,
    base: Sequence[RunResults],
    new: Sequence[RunResults],
    pair: Aligned,
    band: float | None = None,
) -> Difference:
    return difference_in(
        base, new, condition.metric, condition.statistic, paired=pair.paired, band=band
    )


def _outcome(test: GateTest, of: ComparedConfiguration, needed: RunLength | None) -> GateOutcome:
    unknown = test.verdict == "cannot tell" and needed is None
    return GateOutcome(
        condition=test.condition.label,
        configuration=of.label,
        verdict=test.verdict,
        change_fraction=test.difference.change,
        change_low=test.difference.low,
        change_high=test.difference.high,
        chance=test.chance,
        needed=needed,
        reason=_reason(test, of.requests) if unknown else "",
    )


def _reason(test: GateTest, requests: int) -> str:
    """Reason why nothing is known of the doubt of a difference, with the next step.

    Args:
        test: Test that cannot tell.
        requests: Requests of a run.
    """
    condition, difference = test.condition, test.difference
    absent = [
        name
        for name, value in (("BASE", difference.base), ("NEW", difference.new))
        if value is None
    ]
    if absent:
        return f"{absent[0]} has no {condition.metric}"
    if difference.change is None:
        return "a relative change of 0 is none; name the difference in the metric's unit"
    if difference.error is not None:
        return ""
    return f"it has no interval; {_more(condition.statistic, requests)}"


def _more(statistic: str, requests: int) -> str:
    """What gives an interval to a statistic that has none, of runs of so many requests."""
    least = max(LEAST_REQUESTS, _least_beyond(statistic))
    longer = f"give each run {least:,} requests or more, or " if requests < least else ""
    return f"{longer}repeat both sides with --seed 1 to 5"


def _length(
    condition: GateCondition,
    difference: Difference,
    of: ComparedConfiguration,
    tests: int,
    runs: Sequence[RunResults],
) -> RunLength | None:
    """Run length by a difference that was found; `None` where it has no error.

    Args:
        condition: Condition.
        difference: Difference of its metric.
        of: Configuration.
        tests: Number of tests that share the probability of a false alarm.
        runs: Runs of both sides.
    """
    if difference.error is None or difference.absolute:
        return None
    paired = difference.method == "pairs of runs"
    if paired:
        spread, freedom = difference.error * math.sqrt(of.base_runs), difference.freedom
    else:
        spread = difference.error / math.sqrt(1 / of.base_runs + 1 / of.new_runs)
        freedom = difference.freedom
    assumed = difference.method == "requests"
    if assumed:
        spread = math.hypot(spread, ASSUMED_SPREAD)
    threshold = condition.threshold(difference)
    if threshold is None:
        return None
    effect = abs(difference.scaled(threshold))
    return _length_of(condition, effect, spread, freedom, runs, of.requests, tests, paired=paired)


def _spread_of(
    condition: GateCondition, runs: Sequence[RunResults]
) -> tuple[float, float, float] | None:
    """Effect, spread and its degrees of freedom by the runs of one side."""
    figures = [run.figure(condition.metric, condition.statistic, None) for run in runs]
    values = [each.value for each in figures if each is not None and each.value > 0]
    if not values:
        return None
    base = Difference(base=fmean(values), new=None)
    threshold = condition.threshold(base)
    assert threshold is not None
    effect = abs(base.scaled(threshold))
    if len(values) > 1:
        logs = [math.log(value) for value in values]
        middle = fmean(logs)
        freedom = len(logs) - 1
        return effect, math.sqrt(sum((each - middle) ** 2 for each in logs) / freedom), freedom
    single = difference_in(runs, runs, condition.metric, condition.statistic)
    if single.error is None:
        return None
    return effect, math.hypot(single.error / math.sqrt(2), ASSUMED_SPREAD), math.inf


def _length_of(
    condition: GateCondition,
    effect: float,
    spread: float,
    freedom: float,
    runs: Sequence[RunResults],
    requests: int,
    tests: int,
    *,
    paired: bool,
) -> RunLength:
    spread = likely_most(spread, freedom, paired=paired)
    if not paired:
        spread = max(spread, tail_spread(condition, runs))
    paced = any(run.results.get("max_concurrency") is None for run in runs)
    if paced and condition.metric in LATENCIES:
        spread = with_uneven_effect(spread, effect)
    return RunLength(
        condition=condition.label,
        runs=runs_for(effect, spread, paired=paired, tests=tests),
        requests=max(requests, _least_beyond(condition.statistic)),
        paired=paired,
        spread_fraction=math.expm1(spread),
        assumed=math.isinf(freedom),
    )


def tail_spread(condition: GateCondition, runs: Sequence[RunResults]) -> float:
    """Spread of a percentile as independent requests would have it, by the runs' quantiles.

    It is half of the distance between the logarithms of the quantiles a standard error of the share
    below and above. A percentile at a cliff, such as one of prompts of a few sizes, is the same in
    most seeds and jumps in the others, which few runs do not show. 0 of what has no quantiles.
    """
    if not condition.statistic.startswith("p"):
        return 0.0
    percent = float(condition.statistic[1:])
    squares = []
    for run in runs:
        grid = (run.results.get("quantiles") or {}).get(f"{condition.metric}_ms") or {}
        known = sorted((float(at), math.log(value)) for at, value in grid.items() if value)
        count = run.results.get("completed")
        if len(known) > 1 and count:
            error = math.sqrt(percent * (100 - percent) / count)
            low, high = (_between(known, percent + side * error) for side in (-1, 1))
            squares.append(((high - low) / 2) ** 2)
    return math.sqrt(fmean(squares)) if squares else 0.0


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Value of the broken line through points, level beyond its ends."""
    for (left, low), (right, high) in pairwise(points):
        if at < right:
            return low + (high - low) * max(0.0, at - left) / (right - left)
    return points[-1][1]


def _least_beyond(statistic: str) -> int:
    """Requests of which so many are beyond a percentile that it is no extreme value."""
    if not statistic.startswith("p"):
        return 0
    beyond = 1 - float(statistic[1:]) / 100
    return math.ceil(round(LEAST_BEYOND / max(beyond, 1e-3), 6))


def _longest(lengths: Sequence[RunLength | None]) -> Iterator[RunLength]:
    """The longest of each condition."""
    by_condition: dict[str, RunLength] = {}
    for each in lengths:
        if each is None:
            continue
        known = by_condition.get(each.condition)
        if known is None or (each.runs or math.inf) > (known.runs or math.inf):
            by_condition[each.condition] = each
    yield from by_condition.values()


def _requests(runs: Sequence[ComparedRun]) -> int:
    counts = [run.record.results.completed or 0 for run in runs]
    return round(fmean(counts)) if counts else 0


def _notes(
    pairs: Sequence[Aligned],
    sides: Sequence[tuple[Sequence[ComparedRun], Sequence[ComparedRun]]],
    load_differences: Sequence[str],
    tolerance: float | None,
) -> Iterator[str]:
    if load_differences:
        yield f"the loads differ ({'; '.join(load_differences)}): the figures are of different work"
    single = [side for side in sides if len(side[0]) + len(side[1]) - 2 < LEAST_FREEDOM]
    if single:
        noise = TOLERANCE if tolerance is None else tolerance
        band = min(noise, TOLERANCE)
        yield (
            "one run a side shows nothing of what differs from run to run: differences up to "
            f"{noise:.1%} count as noise; repeat both, in turn"
        )
        runs = [run for side in single for half in side for run in half]
        without = [run for run in runs if run.reaches is None]
        if any(run.record.results.intervals is None for run in without):
            yield (
                f"a record has no sampling intervals: ±{band:.1%} is assumed of means and "
                "medians, and tails cannot be told"
            )
        elif without:
            yield f"{_unused(without)}: the sampling intervals of its record are used"
        alike = [QUANTITIES[name].short for name in LATENCIES if _is_too_alike(name, runs)]
        if alike:
            yield (
                f"neighbouring requests of a run are alike in {', '.join(alike)} for so long, as "
                f"in a long queue, that it holds fewer than {BLOCKS} independent stretches: one "
                "run a side tells no more than a mean or median many times as long, and that "
                "by its requests; make runs longer, or repeat them"
            )
    every = [run.record for side in sides for half in side for run in half]
    foreign = [record.servetune_schema is None for record in every]
    if any(foreign) and not all(foreign):
        yield "one side is of another tool, which may define its metrics otherwise"
    versions = sorted({str(record.provenance.get("servetune")) for record in every} - {"None"})
    if len(versions) > 1:
        yield (
            f"the sides are of servetune {' and '.join(versions)}: read the changelog for changed "
            "metrics"
        )
    if any(record.simulated for record in every):
        yield "SIMULATED: no model ran on either side"
    interrupted = sum(bool(record.results.interrupted) for record in every)
    if interrupted:
        yield f"{interrupted} of the runs were interrupted: their load was another one"
    if not single and not any(pair.paired and len(pair.base) >= LEAST_PAIRS for pair in pairs):
        yield (
            f"no {LEAST_PAIRS} pairs of runs with equal seeds: what lengths and arrivals do is "
            "part of the noise; give bench --seed 1, 2, ... on both sides"
        )
    if not single and not any(_interleaved(*side) for side in sides) and _timed(every):
        yield (
            "all runs of one side were made before the other's: what changed in between is part of "
            "the difference; run them in turn"
        )


def _is_too_alike(latency: str, runs: Sequence[ComparedRun]) -> bool:
    """Whether the requests of a run are too much alike in a latency to tell its doubt."""
    fields = [field_of(latency, statistic) for statistic in ("p90", "p99")]
    return any(
        latency in (run.record.results.correlated or ())
        or any(math.isinf((run.reaches or {}).get(field, 0.0)) for field in fields)
        for run in runs
    )


def _unused(runs: Sequence[ComparedRun]) -> str:
    """Reason why the requests of a run do not show its doubt."""
    if not any(run.has_requests for run in runs):
        return "no requests beside a run"
    few = [run.record.results.completed or 0 for run in runs if run.has_requests]
    if min(few) < LEAST_REQUESTS:
        return (
            f"a run answered {min(few):,} requests, and fewer than {LEAST_REQUESTS} do not show "
            "what differs by chance"
        )
    return "the requests beside a run could not be used"


def _notes_on_values(
    configurations: Sequence[ComparedConfiguration],
    base: Sequence[TrialRecord],
    new: Sequence[TrialRecord],
) -> Iterator[str]:
    """Notes on rows without an interval, on failed requests and on prompts that were seen."""
    bare = {
        row.name: row.statistic
        for each in configurations
        for row in each.rows
        if row.method == "none" and row.before and row.now
    }
    if bare:
        statistic = max(bare.values(), key=_least_beyond)
        fewest = min(each.requests for each in configurations)
        yield f"no interval of {', '.join(bare)}: {_more(statistic, fewest)}"
    shares = [_failed_share(side) for side in (base, new)]
    if any(shares):
        was, now = (f"{share:.1%}" for share in shares)
        yield (
            f"{was} of the requests of BASE and {now} of NEW failed: latencies are of answered "
            f"requests alone, so a gate on one is also judged by {FAILURES} or its own error_rate"
        )
    for side, name in ((base, "BASE"), (new, "NEW")):
        reasons = {r.failure.reason for r in side if r.status != "ok" and r.failure}
        for reason in sorted(reasons):
            yield f"a run of {name} is compared although it failed: {reason}"
    seen = sorted(
        {
            f"seed {seed_of(now)} at {', '.join(now.metadata.urls or ())}"
            for was in base
            for now in new
            if _may_have_seen(was, now)
        }
    )
    if seen:
        more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
        yield (
            f"both sides sent equal requests to one server ({seen[0]}{more}): a prefix cache that "
            "is on answers the second from memory; restart the server in between, or switch the "
            "cache off"
        )


def _failed_share(records: Sequence[TrialRecord]) -> float:
    failed = sum(record.results.failed or 0 for record in records)
    return failed / max(1, failed + sum(record.results.completed or 0 for record in records))


def _may_have_seen(was: TrialRecord, now: TrialRecord) -> bool:
    """Whether a server may have had the requests of the one run in its prefix cache in the other.

    It had none where it counted none, and where its cache is known to be off.
    """
    urls, seed = was.metadata.urls, seed_of(was)
    if not urls or urls != now.metadata.urls or seed is None or seed != seed_of(now):
        return False
    plans = [record.plan for record in (was, now)]
    if all(plan is not None and plan.prefix_caching is False for plan in plans):
        return False
    if all(r.config.server_args.get("enable_prefix_caching") is False for r in (was, now)):
        return False
    counts = [record.results.server or {} for record in (was, now)]
    return not all(
        each.get("prefix_queries_tokens") and each.get("prefix_hits_tokens") == 0 for each in counts
    )


def _timed(records: Sequence[TrialRecord]) -> bool:
    return all(record.provenance.get("started_at") for record in records)


def _interleaved(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> bool:
    """Whether the times at which the two sides were run overlap."""
    was, now = (
        sorted(str(run.record.provenance.get("started_at") or "") for run in side)
        for side in (base, new)
    )
    return was[0] <= now[-1] and now[0] <= was[-1]


def failed_configurations(base: Sequence[TrialRecord], new: Sequence[TrialRecord]) -> Iterator[str]:
    """New runs that failed, where the base has runs that did not, with the reason."""
    failed = [record for record in new if record.status != "ok" or record.results.completed == 0]
    if not failed or not any(record.status == "ok" for record in base):
        return
    names = telling_settings([*base, *new])
    for record in failed:
        reason = record.failure.reason if record.failure else "no request was answered"
        yield f"{label_of(record, names)} ({reason})"
