"""Baseline comparison: whether a run reproduces an earlier one, metric by metric.

The rows are those of `servetune compare` for one run a side (`report.changes`): worse or better
where the interval of the difference leaves none out and it is above the tolerance, the same where
that interval holds none and no difference of 10% (of the tolerance, if that is more), unknown
otherwise. A record without intervals gets a band of the tolerance, 5% at most. Intervals cover the
variation within a run, not between days, so a difference below the tolerance is called close, not
worse, however narrow the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.json_value import JsonObject
from servetune.metrics.results import ResultFields
from servetune.report.changes import TOLERANCE, MetricChange, RunResults, changes, judged
from servetune.report.quantities import DASH


class BaselineComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a run with the baseline that it should reproduce.

    Attributes:
        rows: Rows for the quantities of either run.
        unlike: Differences between the two loads; empty for equal loads.
        differences: Engine settings that differ from the baseline's.
        key: Key of the baseline trial.
        tolerance: Relative difference treated as noise.
    """

    rows: tuple[MetricChange, ...]
    unlike: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    key: str = ""
    tolerance: float = TOLERANCE

    @property
    def regressed(self) -> bool:
        return any(row.verdict == "worse" for row in self.rows)

    @property
    def reproduced(self) -> bool:
        """Whether every conclusive row is the same or close, a rate or latency among them."""
        judged = {row.verdict for row in self.rows if row.verdict != "unknown"}
        return self.concluded and judged <= {"same", "close"}

    @property
    def concluded(self) -> bool:
        """Whether the load is the same, and something worse or a rate or latency compared."""
        told = any(row.verdict != "unknown" for row in self._speeds)
        return not self.unlike and (told or self.regressed)

    @property
    def missed(self) -> bool:
        """Whether the baseline was missed, or the two runs have no rate or latency in common."""
        return self.regressed or bool(self.unlike) or not self._speeds

    @property
    def _speeds(self) -> list[MetricChange]:
        """Rows of what both runs have, but the share of failed requests."""
        return [
            row
            for row in self.rows
            if row.quantity != "error_rate" and row.change_fraction is not None
        ]

    @property
    def words(self) -> str:
        """Verdict as a sentence."""
        if self.unlike:
            return f"not comparable: {'; '.join(self.unlike)}"
        for verdict in ("worse", "better"):
            names = [row.name for row in self.rows if row.verdict == verdict]
            if names:
                are = "is" if len(names) == 1 else "are"
                return f"not reproduced: {', '.join(names)} {are} {verdict}"
        if not self._speeds:
            return "nothing can be compared"
        unknown = [
            f"{row.name} ({row.change_fraction:+.0%})"
            for row in self._speeds
            if row.verdict == "unknown" and (row.change_fraction or row.now_ends)
        ]
        doubt = f"too few independent requests to compare {', '.join(unknown)}"
        if not self.reproduced:
            return f"cannot tell whether it is reproduced: {doubt}; a longer run would tell"
        return f"reproduced; {doubt}" if unknown else "reproduced"

    def to_json(self) -> JsonObject:
        """JSON form in a trial record."""
        raw: JsonObject = msgspec.to_builtins(self)
        verdicts = ("reproduced", "regressed")
        return {**raw, "verdict": self.words, **{name: getattr(self, name) for name in verdicts}}


def compare_with_baseline(
    before: RunResults | ResultFields,
    now: RunResults | ResultFields,
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
    was, is_now = (
        run if isinstance(run, RunResults) else RunResults(results=run) for run in (before, now)
    )
    rows = changes([was], [is_now], band=tolerance)
    return BaselineComparison(
        rows=tuple(judged(rows, [tolerance] * len(rows))),
        unlike=tuple(unlike(was.results, is_now.results)),
        differences=tuple(differences),
        key=key,
        tolerance=tolerance,
    )


#: Largest relative difference in mean length between equal loads.
_SAME_LENGTHS = 0.05


def unlike(before: ResultFields, now: ResultFields) -> Iterator[str]:
    """Differences between two loads, as far as results show them."""
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
            row.name,
            with_ends(row, row.before, row.before_ends),
            with_ends(row, row.now, row.now_ends),
            change,
            row.verdict,
        )
    lines: list[RenderableType] = [table, Text(compared.words, style="bold")]
    lines += [Text(f"  {difference}") for difference in compared.differences]
    return Group(*lines)


def with_ends(
    row: MetricChange, value: float | None, ends: tuple[float | None, float | None] | None
) -> str:
    """Value with its interval; a question mark for an end that is not known."""
    text = row.with_unit(value)
    if value is None or ends is None:
        return text
    # None of these quantities can be negative.
    low, high = ("?" if end is None else row.with_unit(max(0.0, end)) for end in ends)
    return f"{text} [{low}, {high}]"
