"""Chart of a run in a terminal: latency against throughput, where there is no browser.

Each trial is a letter, one letter for each server configuration. What a colour says is said by the
letter, too: capitals are on the Pareto front, brackets are around the pick, lines are limits.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from servetune.metrics import LATENCIES, Constraint
from servetune.report.quantities import QUANTITIES, quantity_value, shown
from servetune.report.ranking import check_constraints, results_of, setting_text, varying
from servetune.search import Objective, Recommendation
from servetune.search.objectives import objective_of
from servetune.search.pareto import pareto_front
from servetune.store.schema import TrialRecord

#: Rows of the chart, and the widest one in columns; the narrowest that is drawn.
_HEIGHT, _WIDEST, _NARROWEST = 16, 100, 40
#: Server configurations that the legend names.
_MOST_NAMED = 12
#: Ratio of the largest to the smallest value above which an axis is logarithmic.
_WIDE_RATIO = 30.0
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_SEVERAL = "&"


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    """Trial at its place: column and row of the chart, from the bottom left."""

    column: int
    row: int
    mark: str
    style: str
    picked: bool


class _Axis:
    """Places of values along an axis of so many cells."""

    def __init__(self, objective: Objective, values: Sequence[float], cells: int) -> None:
        self.objective, self.cells = objective, cells
        low, high = min(values), max(values)
        self.log = low > 0 and high / low > _WIDE_RATIO
        near = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        if self.log:
            self._low, self._high = math.log(low / 1.1), math.log(high * 1.1)
        else:
            self._low, self._high = max(0.0, low - near) if low >= 0 else low - near, high + near

    def cell(self, value: float) -> int | None:
        """Cell of a value; `None` where it is beyond the ends."""
        if self.log and value <= 0:
            return None
        at = math.log(value) if self.log else value
        share = (at - self._low) / (self._high - self._low)
        return round(share * (self.cells - 1)) if 0 <= share <= 1 else None

    def text(self, cell: int) -> str:
        """Value at a cell with its unit."""
        at = self._low + (self._high - self._low) * cell / (self.cells - 1)
        return shown(math.exp(at) if self.log else at, QUANTITIES[self.objective.metric].unit)

    @property
    def title(self) -> str:
        title = self.objective.title
        return f"{title}, logarithmic" if self.log else title


class _Chart:
    """The chart, as wide as the terminal allows."""

    def __init__(
        self,
        records: Sequence[TrialRecord],
        constraints: tuple[Constraint, ...],
        chosen: Mapping[str, Recommendation],
    ) -> None:
        self._constraints = constraints
        self._x, self._y = _axes_of(constraints, chosen)
        ran = [record for record in records if record.status == "ok"]
        self._drawn = [
            (record, x, y)
            for record in ran
            if (x := _value(record, self._x)) is not None
            and (y := _value(record, self._y)) is not None
        ]
        self._left_out = len(records) - len(self._drawn)
        names = varying(records).server
        self._label: Callable[[TrialRecord], str] = lambda record: (
            " · ".join(setting_text(n, record.config.server_args.get(n)) for n in names)
            or "every trial"
        )
        labels = dict.fromkeys(self._label(record) for record, _, _ in self._drawn)
        letters = string.ascii_uppercase
        self._letters = {label: (letters + "?" * len(labels))[i] for i, label in enumerate(labels)}
        self._pick = next((pick for pick in chosen.values() if pick.chosen is not None), None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        if len(self._drawn) < 2:
            yield Text("no chart: fewer than two trials have both values")
            return
        if width < _NARROWEST:
            yield Text(f"no chart: it needs {_NARROWEST} columns")
            return
        yield from self._lines(width)
        yield from self._legend()

    def _lines(self, width: int) -> Iterator[Text]:
        ys = _Axis(self._y, [y for _, _, y in self._drawn], _HEIGHT)
        ticks = {row: ys.text(row) for row in (0, _HEIGHT // 2, _HEIGHT - 1)}
        margin = max(map(len, ticks.values())) + 1
        xs = _Axis(self._x, [x for _, x, _ in self._drawn], width - margin - 2)
        cells = self._with_limits(xs, ys)
        for point in self._points(xs, ys):
            _place(cells, point)
        yield Text(ys.title, style="bold")
        for row in reversed(range(_HEIGHT)):
            line = Text(f"{ticks.get(row, ''):>{margin}}│")
            for mark, style in cells[row]:
                line.append(mark, style)
            line.rstrip()
            yield line
        yield Text(f"{'':>{margin}}└{'─' * xs.cells}")
        left, right = xs.text(0), xs.text(xs.cells - 1)
        middle = xs.text(xs.cells // 2)
        gap = xs.cells - len(left) - len(right)
        yield Text(f"{'':>{margin + 1}}{left}{middle:^{max(gap, 0)}}{right}")
        yield Text(f"{xs.title:>{margin + 1 + xs.cells}}", style="bold")

    def _with_limits(self, xs: _Axis, ys: _Axis) -> list[list[tuple[str, str]]]:
        """Empty cells, with lines where limits on the two quantities are."""
        cells = [[(" ", "")] * xs.cells for _ in range(ys.cells)]
        for limit in self._constraints:
            named = (limit.metric, limit.statistic)
            if named == (xs.objective.metric, xs.objective.statistic):
                column = xs.cell(limit.value)
                for row in cells if column is not None else ():
                    row[column or 0] = ("┊", "dim")
            if named == (ys.objective.metric, ys.objective.statistic):
                row_at = ys.cell(limit.value)
                if row_at is not None:
                    cells[row_at] = [("╌", "dim")] * xs.cells
        return cells

    def _points(self, xs: _Axis, ys: _Axis) -> Iterator[_Point]:
        """Trials, those of the front last, so that they are seen where several meet."""
        front = self._front_keys()
        picked = self._pick.chosen.key if self._pick and self._pick.chosen else ""
        colours = {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(self._letters)}
        in_order = sorted(
            self._drawn, key=lambda each: (each[0].key in front, each[0].key == picked)
        )
        for record, x, y in in_order:
            label, on_front = self._label(record), record.key in front
            letter = self._letters[label]
            yield _Point(
                column=xs.cell(x) or 0,
                row=ys.cell(y) or 0,
                mark=letter if on_front else letter.lower(),
                style=f"bold {colours[label]}" if on_front else colours[label],
                picked=record.key == picked,
            )

    def _front_keys(self) -> frozenset[str]:
        """Trials that hold every limit, and than which none that does is better in both."""
        able = [
            each
            for each in self._drawn
            if check_constraints(each[0], self._constraints).meets_all or not self._constraints
        ]
        points: list[tuple[float, ...]] = [(x, y) for _, x, y in able]
        chosen = pareto_front(points, maximize=(self._x.maximize, self._y.maximize))
        return frozenset(able[place][0].key for place in chosen)

    def _legend(self) -> Iterator[Text]:
        for label, letter in list(self._letters.items())[:_MOST_NAMED]:
            yield Text(f"  {letter}  {label}")
        further = len(self._letters) - _MOST_NAMED
        if further > 0:
            yield Text(f"     and {further} further server configurations")
        held = " of trials that hold every limit" if self._constraints else ""
        yield Text(f"  {_SEVERAL}  several at one place")
        yield Text(f"  capital: on the Pareto front{held}")
        if self._pick is not None and self._pick.chosen is not None:
            missed = "" if self._pick.feasible else ", which misses a limit"
            yield Text(f"  [ ]: the pick, {self._pick.chosen.label}{missed}")
        drawn = [limit.label for limit in self._constraints if self._is_drawn(limit)]
        if drawn:
            yield Text(f"  dashed: {'; '.join(drawn)}")
        if self._left_out:
            yield Text(f"  not drawn, without values: {self._left_out:,} of the trials")

    def _is_drawn(self, limit: Constraint) -> bool:
        named = (limit.metric, limit.statistic)
        return any(named == (each.metric, each.statistic) for each in (self._x, self._y))


def front_chart(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation],
) -> RenderableType:
    """Latency against throughput as a chart for a terminal of 40 columns or more.

    Two objectives of the run are its axes, where it has a latency or a cost and a rate among them.
    Else it is the output throughput over the first latency that is limited, or the 99th percentile
    of the end-to-end latency.

    Args:
        records: Trials of the run in order.
        constraints: Limits of the run; those on the two quantities are lines.
        chosen: Picks of the run; the first one is marked.
    """
    return _Chart(records, constraints, chosen)


def _axes_of(
    constraints: tuple[Constraint, ...], chosen: Mapping[str, Recommendation]
) -> tuple[Objective, Objective]:
    several = next((pick.objectives for pick in chosen.values() if len(pick.objectives) > 1), ())
    falling = next((each for each in several if not each.maximize), None)
    rising = next((each for each in several if each.maximize), None)
    limited = next((each for each in constraints if each.metric in LATENCIES), None)
    if falling is None:
        falling = (
            objective_of(limited.metric, limited.statistic)
            if limited
            else objective_of("e2e_latency", "p99")
        )
    return falling, rising or objective_of("output_throughput")


def _value(record: TrialRecord, objective: Objective) -> float | None:
    return quantity_value(results_of(record), objective.metric, objective.statistic)


def _place(cells: list[list[tuple[str, str]]], point: _Point) -> None:
    """Put a trial into its cell; another configuration's mark there becomes one of several."""
    row, column = cells[point.row], point.column
    before = row[column][0]
    shared = before.isalpha() or before == _SEVERAL
    covers = point.mark.isupper() and not before.isupper()
    if shared and before.upper() != point.mark.upper() and not (covers or point.picked):
        row[column] = (_SEVERAL, "bold")
    else:
        row[column] = (point.mark, point.style)
    for beside, bracket in ((column - 1, "["), (column + 1, "]")):
        if point.picked and 0 <= beside < len(row):
            row[beside] = (bracket, "bold")
