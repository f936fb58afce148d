"""Against: whether a run reproduces an earlier one, metric by metric.

A figure is the same where the two runs' intervals overlap. An older record may have no
intervals; then a band of the tolerance stands for them. Intervals say how well a run knows its
own figures and nothing of another day, so that a difference smaller than the tolerance is
called close, not worse, however sure both runs are. An interval that reaches further than half of
its figure overlaps with almost anything: figures that differ within it are unknown, not the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown

__all__ = ["TOLERANCE", "BaselineComparison", "Row", "baseline_table", "compare_with_baseline"]

#: Run-to-run differences below this are expected of an unchanged server.
TOLERANCE = 0.05

#: Reach of an interval, as a share of its figure, from which on it can tell nothing.
WIDE = 0.5

Verdict = Literal["same", "close", "worse", "better", "unknown"]

#: Quantity, statistic, and the results' own name of it.
_COMPARED = (
    ("output_throughput", "mean", "output_throughput"),
    ("request_throughput", "mean", "request_throughput"),
    ("ttft", "mean", "mean_ttft_ms"),
    ("ttft", "median", "median_ttft_ms"),
    ("ttft", "p99", "p99_ttft_ms"),
    ("itl", "mean", "mean_itl_ms"),
    ("itl", "p99", "p99_itl_ms"),
    ("tpot", "mean", "mean_tpot_ms"),
    ("e2e_latency", "mean", "mean_e2e_latency_ms"),
    ("e2e_latency", "p99", "p99_e2e_latency_ms"),
)

Ends = tuple[float, float]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both runs.

    Attributes:
        field: Under the results' names.
        before: Of the earlier run.
        before_ends: Its interval, or the band that stands for one.
        now: Of this run.
        now_ends: Likewise.
        change_fraction: now / before - 1; `None` where nothing was before.
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
    """A run beside the one that it should reproduce.

    Attributes:
        rows: Of the metrics that both have.
        unlike: Why the two loads were not the same; empty where they were.
        differences: What the engine says of its settings that the trial had otherwise.
        key: The earlier trial's.
        tolerance: See the module.
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
        """Whether every figure that can be judged is the same or close, under the same load."""
        judged = [row.verdict for row in self.rows if row.verdict != "unknown"]
        return bool(judged) and set(judged) <= {"same", "close"} and not self.unlike

    @property
    def missed(self) -> bool:
        """Whether the earlier figures were not reached, or not shown to be."""
        return (
            self.regressed
            or bool(self.unlike)
            or not any(row.verdict != "unknown" for row in self.rows)
        )

    @property
    def words(self) -> str:
        """The verdict, for a reader."""
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
        untold = [
            _name(row) for row in self.rows if row.verdict == "unknown" and row.change_fraction
        ]
        return (
            f"reproduced; too few requests to tell {', '.join(untold)}" if untold else "reproduced"
        )

    def to_json(self) -> dict[str, Any]:
        """As a record holds it."""
        raw: dict[str, Any] = msgspec.to_builtins(self)
        return {
            **raw,
            "verdict": self.words,
            "reproduced": self.reproduced,
            "regressed": self.regressed,
        }


def compare_with_baseline(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    key: str = "",
    tolerance: float = TOLERANCE,
    differences: Sequence[str] = (),
) -> BaselineComparison:
    """Compare the results of two runs of the same load.

    Args:
        before: Results of the earlier one, under the journal's names.
        now: Of this one.
        key: Of the earlier trial.
        tolerance: Band where there is no interval, and the difference that is none.
        differences: Of the engine's settings, where they were read.
    """
    rows = [
        _row(name, statistic, field, before, now, tolerance) for name, statistic, field in _COMPARED
    ]
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
    field: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    tolerance: float,
) -> Row:
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
    results: Mapping[str, Any], field: str, value: float | None, tolerance: float
) -> tuple[Ends | None, bool]:
    """The interval of a figure, and whether an end of it is not known.

    An unknown end is put as far from the value as the known one is, or the tolerance.
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
    return bool(value and ends and (ends[1] - ends[0]) / 2 > WIDE * abs(value))


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
        return "unknown" if is_wide and abs(change) > tolerance else "same"
    if abs(change) <= tolerance:
        return "close"
    if is_open:
        return "unknown"  # too few requests to tell
    return "better" if (change > 0) == maximize else "worse"


def _failures(before: Mapping[str, Any], now: Mapping[str, Any]) -> Row:
    """Failed requests as shares, with Wilson's intervals of their own."""
    was, was_ends = _failed_share(before)
    is_now, now_ends = _failed_share(now)
    verdict: Verdict = "unknown"
    if was_ends is not None and now_ends is not None and was is not None and is_now is not None:
        apart = now_ends[0] > was_ends[1] or was_ends[0] > now_ends[1]
        verdict = "same" if not apart else "worse" if is_now > was else "better"
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


def _failed_share(results: Mapping[str, Any]) -> tuple[float | None, Ends | None]:
    completed, failed = results.get("completed"), results.get("failed", 0)
    if not isinstance(completed, int) or not isinstance(failed, int) or completed + failed == 0:
        return None, None
    total, z = completed + failed, 1.96
    share = failed / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    reach /= 1 + z * z / total
    return share, (max(0.0, middle - reach), middle + reach)


#: How far the mean lengths of two loads may be apart that count as the same.
_SAME_LENGTHS = 0.05


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    was, is_now = before.get("max_concurrency"), now.get("max_concurrency")
    if was and is_now and was != is_now:
        yield f"concurrency {is_now} was {was}"
    for name, words in (("total_input_tokens", "prompts"), ("total_output_tokens", "answers")):
        means = [_mean_tokens(results, name) for results in (before, now)]
        if means[0] and means[1] and abs(means[1] / means[0] - 1) > _SAME_LENGTHS:
            yield f"{words} have {means[1]:.0f} tokens on average, and had {means[0]:.0f}"


def _mean_tokens(results: Mapping[str, Any], name: str) -> float | None:
    total, completed = results.get(name), results.get("completed")
    return total / completed if total and completed else None


def _name(row: Row) -> str:
    quantity = QUANTITIES[row.quantity]
    return f"{row.statistic} {quantity.short}" if quantity.has_statistics else quantity.short


# for the terminal


def baseline_table(compared: BaselineComparison) -> RenderableType:
    """Both runs beside each other, and the verdict below."""
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
    lines += [Text(f"  {said}") for said in compared.differences]
    return Group(*lines)


def _with_ends(row: Row, value: float | None, ends: Ends | None) -> str:
    if value is None:
        return DASH
    unit = QUANTITIES[row.quantity].unit
    text = shown(value, unit)
    if ends is None:
        return text
    # Nothing here can be below nothing, however little a run knows.
    return f"{text} [{shown(max(0.0, ends[0]), unit)}, {shown(ends[1], unit)}]"
