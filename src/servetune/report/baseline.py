"""Baseline comparison: whether a run reproduces an earlier one, metric by metric.

Two values are the same if their confidence intervals overlap. A record without intervals gets
a band of the tolerance instead. Intervals cover the variation within a run, not between days,
so a difference below the tolerance is called close, not worse, however narrow the intervals.
An interval that is wider than half its value overlaps with too much to show anything: it is
unknown, and never the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.json_value import JsonObject
from servetune.metrics.intervals import wilson_interval
from servetune.metrics.results import ResultFields
from servetune.metrics.slo import field_of
from servetune.report.comparison import COMPARED
from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown

#: Relative difference that is treated as noise between runs of an unchanged server.
TOLERANCE = 0.05

#: Width of an interval, as a share of its value, above which it is inconclusive.
WIDE = 0.5

Verdict = Literal["same", "close", "worse", "better", "unknown"]

#: Quantity and statistic of each row: those of a prediction, and the median TTFT.
_COMPARED = (*COMPARED[:3], ("ttft", "median"), *COMPARED[3:])

Ends = tuple[float, float]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of both runs.

    Attributes:
        field: Result field.
        before: Value of the baseline.
        before_ends: Confidence interval of the baseline, or the tolerance band.
        now: Value of this run.
        now_ends: Confidence interval of this run, or the tolerance band.
        change_fraction: Relative change, now / before - 1; `None` without a baseline value.
    """

    field: str
    quantity: str
    statistic: str
    before: float | None
    before_ends: Ends | None
    now: float | None
    now_ends: Ends | None
    change_fraction: float | None
    verdict: Verdict


class BaselineComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a run with the baseline that it should reproduce.

    Attributes:
        rows: Rows for the quantities of either run.
        unlike: Differences between the two loads; empty for equal loads.
        differences: Engine settings that differ from the baseline's.
        key: Key of the baseline trial.
        tolerance: Relative difference treated as noise.
    """

    rows: tuple[Row, ...]
    unlike: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    key: str = ""
    tolerance: float = TOLERANCE

    @property
    def regressed(self) -> bool:
        return any(row.verdict == "worse" for row in self.rows)

    @property
    def reproduced(self) -> bool:
        """Whether every conclusive row is the same or close, under the same load."""
        judged = [row.verdict for row in self.rows if row.verdict != "unknown"]
        return bool(judged) and set(judged) <= {"same", "close"} and not self.unlike

    @property
    def missed(self) -> bool:
        """Whether the baseline was missed, or reaching it was not shown."""
        return (
            self.regressed
            or bool(self.unlike)
            or not any(row.verdict != "unknown" for row in self.rows)
        )

    @property
    def words(self) -> str:
        """Verdict as a sentence."""
        if self.unlike:
            return f"not comparable: {'; '.join(self.unlike)}"
        worse = [_name(row) for row in self.rows if row.verdict == "worse"]
        better = [_name(row) for row in self.rows if row.verdict == "better"]
        if worse:
            return f"not reproduced: {', '.join(worse)} {'is' if len(worse) == 1 else 'are'} worse"
        if better:
            return (
                f"not reproduced: {', '.join(better)} {'is' if len(better) == 1 else 'are'} better"
            )
        if not self.reproduced:
            return "nothing can be compared"
        unknown = [
            _name(row) for row in self.rows if row.verdict == "unknown" and row.change_fraction
        ]
        doubt = f"; too few requests to compare {', '.join(unknown)}" if unknown else ""
        return f"reproduced{doubt}"

    def to_json(self) -> JsonObject:
        """JSON form in a trial record."""
        raw: JsonObject = msgspec.to_builtins(self)
        verdicts = ("reproduced", "regressed")
        return {**raw, "verdict": self.words, **{name: getattr(self, name) for name in verdicts}}


def compare_with_baseline(
    before: ResultFields,
    now: ResultFields,
    *,
    key: str = "",
    tolerance: float = TOLERANCE,
    differences: Sequence[str] = (),
) -> BaselineComparison:
    """Compare the results of two runs of the same load.

    Args:
        before: Results of the baseline, under the journal's field names.
        now: Results of this run.
        key: Key of the baseline trial.
        tolerance: Relative difference treated as noise.
        differences: Engine settings that differ from the baseline's.
    """
    rows = [_row(name, statistic, before, now, tolerance) for name, statistic in _COMPARED]
    rows.append(_failures(before, now))
    return BaselineComparison(
        rows=tuple(row for row in rows if row.before is not None or row.now is not None),
        unlike=tuple(_unlike(before, now)),
        differences=tuple(differences),
        key=key,
        tolerance=tolerance,
    )


def _row(
    name: str,
    statistic: str,
    before: ResultFields,
    now: ResultFields,
    tolerance: float,
) -> Row:
    field = field_of(name, statistic)
    was, is_now = (quantity_value(results, name, statistic) for results in (before, now))
    was_ends, was_open = _ends(before, field, was, tolerance)
    now_ends, now_open = _ends(now, field, is_now, tolerance)
    change = is_now / was - 1 if was and is_now is not None else None
    return Row(
        field=field,
        quantity=name,
        statistic=statistic,
        before=was,
        before_ends=was_ends,
        now=is_now,
        now_ends=now_ends,
        change_fraction=change,
        verdict=_verdict(
            was_ends, now_ends, change, tolerance, maximize=QUANTITIES[name].maximize,
            is_open=was_open or now_open,
            is_wide=_is_wide(was, was_ends) or _is_wide(is_now, now_ends),
        ),
    )  # fmt: skip


def _ends(
    results: ResultFields, field: str, value: float | None, tolerance: float
) -> tuple[Ends | None, bool]:
    """Interval of a value, and whether one of its ends is unknown.

    An unknown end is placed symmetrically to the known one, or at the tolerance.
    """
    if value is None:
        return None, False
    ends = (results.get("intervals") or {}).get(field)
    low, high = ends if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
    is_open = ends is not None and (low is None or high is None)
    usual = abs(value) * tolerance
    below = value - low if low is not None else high - value if high is not None else usual
    above = high - value if high is not None else below
    return (value - below, value + above), is_open


def _is_wide(value: float | None, ends: Ends | None) -> bool:
    return bool(value and ends and ends[1] - ends[0] > WIDE * abs(value))


def _verdict(
    before: Ends | None,
    now: Ends | None,
    change: float | None,
    tolerance: float,
    *,
    maximize: bool,
    is_open: bool = False,
    is_wide: bool = False,
) -> Verdict:
    if before is None or now is None or change is None or not math.isfinite(change):
        return "unknown"
    if now[0] <= before[1] and before[0] <= now[1]:
        return "unknown" if is_wide else "same"
    if abs(change) <= tolerance:
        return "close"
    if is_open:
        return "unknown"  # too few requests
    return "better" if (change > 0) == maximize else "worse"


def _failures(before: ResultFields, now: ResultFields) -> Row:
    """Row of the failed share of requests, with Wilson's intervals."""
    was, was_ends = _failed_share(before)
    is_now, now_ends = _failed_share(now)
    verdict: Verdict = "unknown"
    if was_ends is not None and now_ends is not None and was is not None and is_now is not None:
        if now_ends[0] > was_ends[1] or was_ends[0] > now_ends[1]:
            verdict = "worse" if is_now > was else "better"
        elif not (_is_wide(was, was_ends) or _is_wide(is_now, now_ends)):
            verdict = "same"
    return Row(
        field="error_rate",
        quantity="error_rate",
        statistic="mean",
        before=was,
        before_ends=was_ends,
        now=is_now,
        now_ends=now_ends,
        change_fraction=is_now / was - 1 if was and is_now is not None else None,
        verdict=verdict,
    )


def _failed_share(results: ResultFields) -> tuple[float | None, Ends | None]:
    completed, failed = results.get("completed"), results.get("failed", 0)
    if not isinstance(completed, int) or not isinstance(failed, int) or completed + failed == 0:
        return None, None
    share = failed / (completed + failed)
    low, high = wilson_interval(share, completed + failed, 1.96)
    return share, (max(0.0, low), high)


#: Largest relative difference in mean length between equal loads.
_SAME_LENGTHS = 0.05


def _unlike(before: ResultFields, now: ResultFields) -> Iterator[str]:
    was, is_now = before.get("max_concurrency"), now.get("max_concurrency")
    if was and is_now and was != is_now:
        yield f"concurrency {is_now} was {was}"
    for name, words in (("total_input_tokens", "prompts"), ("total_output_tokens", "answers")):
        means = [_mean_tokens(results, name) for results in (before, now)]
        if means[0] and means[1] and abs(means[1] / means[0] - 1) > _SAME_LENGTHS:
            yield f"{words} have {means[1]:.0f} tokens on average, and had {means[0]:.0f}"


def _mean_tokens(results: ResultFields, name: str) -> float | None:
    total, completed = results.get(name), results.get("completed")
    return total / completed if total and completed else None


def _name(row: Row) -> str:
    quantity = QUANTITIES[row.quantity]
    return f"{row.statistic} {quantity.short}" if quantity.has_statistics else quantity.short


# for the terminal


def baseline_table(compared: BaselineComparison) -> RenderableType:
    """Table of both runs with the verdict below."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"against {compared.key}".strip(), no_wrap=True)
    for head in ("before", "now", "change"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for row in compared.rows:
        change = DASH if row.change_fraction is None else f"{row.change_fraction:+.1%}"
        table.add_row(
            _name(row),
            _with_ends(row, row.before, row.before_ends),
            _with_ends(row, row.now, row.now_ends),
            change,
            row.verdict,
        )
    lines: list[RenderableType] = [table, Text(compared.words, style="bold")]
    lines += [Text(f"  {difference}") for difference in compared.differences]
    return Group(*lines)


def _with_ends(row: Row, value: float | None, ends: Ends | None) -> str:
    if value is None:
        return DASH
    unit = QUANTITIES[row.quantity].unit
    text = shown(value, unit)
    if ends is None:
        return text
    # None of these quantities can be negative.
    return f"{text} [{shown(max(0.0, ends[0]), unit)}, {shown(ends[1], unit)}]"
