"""Terminal tables, readable without colour: every mark and colour has a word."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from servetune.metrics import Constraint
from servetune.report.comparison import (
    PredictionPair,
    median_errors,
    pairs_between,
    quantity_errors,
)
from servetune.report.prices import price_lines
from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown
from servetune.report.ranking import (
    SweptSettings,
    any_failed,
    check_constraints,
    failed_text,
    goal_text,
    label_of,
    pick_title,
    picks,
    ranked,
    short_name,
    varying,
)
from servetune.report.suggestions import Evidence
from servetune.report.summary import simulated_accuracy, simulated_share, simulated_speed
from servetune.search import Objective, Recommendation, failed_requests, set_reasons
from servetune.store.schema import TrialRecord
from servetune.units import MS_PER_S
from servetune.visible import visible

#: Width where there is no terminal, enough for the widest table.
_PLAIN_WIDTH = 160


def console(file: IO[str] | None = None) -> Console:
    """Console for tables: 160 columns and no colours where it is not a terminal.

    `NO_COLOR` is honoured by rich.
    """
    if file is None:  # tables escape what they show themselves, and have colours of their own
        file = getattr(sys.stdout, "plain", sys.stdout)
    # In a notebook rich would display each table by itself, also one that becomes text.
    plain = _Console(file=file, highlight=False, force_jupyter=False)
    if plain.is_terminal:
        return plain
    return _Console(
        file=file, highlight=False, force_jupyter=False, width=_PLAIN_WIDTH, color_system=None
    )


def as_text(table: RenderableType) -> str:
    """Table as lines of text without colours."""
    lines = io.StringIO()
    # A notebook's kernel forces colours upon every program that looks like a terminal.
    plain = _Console(
        file=lines,
        highlight=False,
        force_jupyter=False,
        force_terminal=False,
        width=_PLAIN_WIDTH,
        color_system=None,
    )
    plain.print(table)
    return "\n".join(line.rstrip() for line in lines.getvalue().splitlines()).strip("\n")


class _Console(Console):
    """Console that shows control characters, and raises on a closed pipe instead of exiting."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of the renderable, without control characters of their own."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Table of names and values without a header."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in facts:
        table.add_row(name, Text(text))
    return table


def ranking_table(
    records: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
    chosen: Mapping[str, Recommendation] | None = None,
) -> RenderableType:
    """Picks, ranked trials, and failed trials with their reasons.

    Args:
        records: Trials of the run in order.
        constraints: Constraints of the run.
        chosen: Picks of the run, where they have been made.
    """
    if not records:
        return Text("no trials in this journal")
    parts: list[RenderableType] = []
    simulated = simulated_notice(records)
    if simulated:
        parts.append(Text(simulated, style="bold yellow"))
    chosen = picks(records, constraints) if chosen is None else chosen
    if goal := goal_text(constraints, chosen):
        parts.append(Text(goal))
    failed = [record for record in records if record.status == "failed"]
    if len(failed) < len(records):
        shown_picks = _Picks(records, constraints, chosen)
        parts += [Text(), shown_picks, Text(), _Ranking(records, constraints)]
    else:
        parts += [Text(), Text("all trials failed, so there is nothing to rank")]
    if failed:
        parts += [Text(), _failures_table(failed, varying(records))]
    return Group(*parts)


def simulated_notice(records: Sequence[TrialRecord]) -> str:
    """Notice that trials were simulated; empty if all were measured."""
    count = sum(record.simulated for record in records)
    if not count:
        return ""
    speed = simulated_speed(records)
    lapse = (
        f"; at {speed:g} times real time: latencies and costs are 1/{speed:g} of the engine's, "
        f"rates {speed:g} times"
        if speed
        else ""
    )
    found = simulated_accuracy(records)
    lapse += f". Accuracy: {found}" if found else ""
    if simulated_share(records) is True:
        every = "the one trial was" if count == 1 else f"all {count} trials were"
        return f"SIMULATED: {every} simulated, no model ran{lapse}"
    return f"SIMULATED: {count} of {len(records)} trials were simulated, marked in the table{lapse}"


def comparison_table(
    predicted_records: Sequence[TrialRecord], measured_records: Sequence[TrialRecord]
) -> RenderableType:
    """Table of predicted and measured values of each common configuration, with the error."""
    pairs = pairs_between(predicted_records, measured_records)
    if not pairs:
        return Text("no measured record has a configuration of this run")
    table = pairs_table(pairs, title="Predicted and measured", predicted="predicted")
    left_out = sum(record.status == "ok" for record in measured_records) - len(pairs)
    note = f"{left_out} measured record(s) match no single configuration of this run"
    return Group(table, *([Text(note)] if left_out else []))


def pairs_table(
    pairs: Sequence[PredictionPair], *, title: str, predicted: str, medians: bool = False
) -> Table:
    """Table of all rows of all pairs with their errors.

    Args:
        pairs: Predicted and measured results.
        title: Title of the table.
        predicted: Heading of the predicted values.
        medians: Whether rows with median errors follow.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("configuration", no_wrap=True)
    table.add_column("quantity", no_wrap=True)
    for head in (predicted, "measured", "error"):
        table.add_column(head, justify="right", no_wrap=True)
    for pair in pairs:
        _add_pair(table, pair)
    if medians:
        for place, ((quantity, statistic), error) in enumerate(median_errors(pairs).items()):
            table.add_row(
                f"median error of {len(pairs)}" if place == 0 else "",
                _quantity_title(quantity, statistic),
                "",
                "",
                DASH if error is None else f"{error:.1%}",
            )
    return table


def recommendation_text(rec: Recommendation) -> str:
    """Recommendation as plain lines: the configuration and the reasons."""
    title = pick_title(rec)
    if rec.chosen is None:
        return "\n".join([f"{title}: none", *(f"  - {reason}" for reason in rec.reasons)])
    mark = "" if rec.feasible else "  (misses a constraint)"
    failed = failed_requests(rec.chosen.results)
    if failed is not None and failed.beyond_tolerance:
        mark += f"  ({failed.share} failed)"
    lines = [f"{title}: {rec.chosen.label}{mark}", *(f"  - {reason}" for reason in rec.reasons)]
    return "\n".join(lines)


class _Column(msgspec.Struct, frozen=True, kw_only=True):
    """Column of the ranking; a narrow terminal drops the highest `rank` first."""

    head: str
    rank: int
    cell: Callable[[TrialRecord], str]
    right: bool = True
    narrow: Callable[[TrialRecord], str] | None = None


#: Trials that the ranked table lists of a long run, and the longest run that it lists whole.
ROWS_OF_MANY, MOST_WHOLE = 20, 30


class _Ranking:
    """Ranked table with as many columns as fit the console."""

    def __init__(self, records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]) -> None:
        self._records = ranked(records, constraints)
        many = len(self._records) > MOST_WHOLE
        self._shown = ROWS_OF_MANY if many else len(self._records)
        self._columns = _columns(records, self._records[: self._shown], constraints)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(self._columns)
        table = self._table(columns)
        if _width(console, options, table) > options.max_width:
            columns = [
                msgspec.structs.replace(column, cell=column.narrow) if column.narrow else column
                for column in columns
            ]
            table = self._table(columns)
        while len(columns) > 3 and _width(console, options, table) > options.max_width:
            columns.remove(max(columns, key=lambda column: column.rank))
            table = self._table(columns)
        yield table
        further = len(self._records) - self._shown
        if further:
            yield Text(f"{further:,} further trials are in the dashboard and the summary")
        hidden = len(self._columns) - len(columns)
        if hidden:
            many = "1 column does" if hidden == 1 else f"{hidden} columns do"
            yield Text(f"{many} not fit here; the dashboard shows all columns")

    def _table(self, columns: Sequence[_Column]) -> Table:
        table = Table(
            title="Trials in order of merit",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1),
        )
        table.add_column("#", justify="right", no_wrap=True)
        for column in columns:
            table.add_column(column.head, justify="right" if column.right else "left", no_wrap=True)
        for place, record in enumerate(self._records[: self._shown], start=1):
            table.add_row(str(place), *(Text(column.cell(record)) for column in columns))
        return table


def _width(console: Console, options: ConsoleOptions, table: Table) -> int:
    """Natural width of a table in columns."""
    return Measurement.get(console, options.update(width=1000), table).maximum


def _columns(
    records: Sequence[TrialRecord],
    listed: Sequence[TrialRecord],
    constraints: tuple[Constraint, ...],
) -> list[_Column]:
    """Columns of a table: settings that differ between `records`, and figures of those listed."""
    names = varying(records)
    columns = [
        *(_setting_column(name, "server") for name in names.server),
        *(_setting_column(name, "client") for name in names.client),
        _number_column(listed, "out\ntok/s", 0, "output_throughput"),
        _number_column(listed, "req/s", 1, "request_throughput"),
        _number_column(listed, "TTFT\nmean ms", 3, "ttft"),
        _number_column(listed, "TTFT\np99 ms", 5, "ttft", "p99"),
        _number_column(listed, "ITL\nmean ms", 4, "itl"),
        _number_column(listed, "TPOT\nmean ms", 7, "tpot"),
        _number_column(listed, "E2E\nmean s", 8, "e2e_latency"),
        _number_column(listed, "E2E\np99 s", 2, "e2e_latency", "p99"),
        _number_column(listed, "$/M out\ntokens", 6, "cost_per_million_tokens"),
    ]
    if any_failed(records):
        columns.append(_Column(head="requests\nfailed", rank=0, cell=failed_text))
    if constraints:
        columns.append(
            _Column(
                head="constraints",
                rank=0,
                right=False,
                cell=lambda record: _constraint_text(record, constraints),
                narrow=lambda record: _constraint_count(record, constraints),
            )
        )
    if simulated_share(records) == "mixed":
        columns.append(
            _Column(
                head="how",
                rank=0,
                right=False,
                cell=lambda record: "simulated" if record.simulated else "measured",
            )
        )
    return columns


def _setting_column(name: str, side: str) -> _Column:
    def cell(record: TrialRecord) -> str:
        config = record.config
        value = (config.server_args if side == "server" else config.client_args).get(name)
        return DASH if value is None else str(value)

    return _Column(head="\n".join(short_name(name).split(" ", 1)), rank=-1, cell=cell)


def _number_column(
    records: Sequence[TrialRecord], head: str, rank: int, name: str, statistic: str = "mean"
) -> _Column:
    """Column of numbers with equal decimals, three digits for the smallest."""
    per = MS_PER_S if head.endswith(" s") else 1.0
    values = [quantity_value(record.results, name, statistic) for record in records]
    least = min((value / per for value in values if value), default=1.0)
    decimals = min(3, max(0, 2 - math.floor(math.log10(abs(least)))))

    def cell(record: TrialRecord) -> str:
        value = quantity_value(record.results, name, statistic)
        return DASH if value is None else f"{value / per:,.{decimals}f}"

    return _Column(head=head, rank=rank, cell=cell)


def _constraint_text(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str:
    check = check_constraints(record, constraints)
    if check.meets_all:
        return f"✓ meets all {len(constraints)}" if len(constraints) > 1 else "✓ met"
    words = [f"misses {', '.join(_limited(c) for c in check.missed)}"] if check.missed else []
    words += [f"{_limited(c)} not measured" for c in check.unknown]
    return "✗ " + ", ".join(words)


def _constraint_count(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str:
    met = len(check_constraints(record, constraints).met)
    return f"{'✓' if met == len(constraints) else '✗'} {met} of {len(constraints)}"


def _limited(constraint: Constraint) -> str:
    """Metric and statistic of a constraint; the limit is stated above the table."""
    quantity = QUANTITIES[constraint.metric]
    if not quantity.has_statistics:
        return constraint.metric
    return f"{quantity.short} {constraint.statistic}"


class _Picks:
    """Picks: a table where it fits, else one paragraph each."""

    def __init__(
        self,
        records: Sequence[TrialRecord],
        constraints: tuple[Constraint, ...],
        chosen: Mapping[str, Recommendation],
    ) -> None:
        self._records = records
        self._constraints = constraints
        self._picks = chosen
        self._by_key = {record.key: record for record in reversed(records)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        if _width(console, options, table) <= options.max_width:
            yield table
            if any(pick.chosen and not pick.feasible for pick in self._picks.values()):
                yield Text("no trial meets every constraint: each pick is the nearest miss")
                yield from self._shortfall()
            yield from self._left_out()
            yield from self._pareto_set()
        else:
            yield from (Text(recommendation_text(pick)) for pick in self._picks.values())
        yield from (Text(line) for line in price_lines(self._records))
        for label, text in self._suggested():
            yield Text(f"from the trials, for {label}: {text}")

    def _shortfall(self) -> Iterator[Text]:
        """Best value of each constraint, and which one binds; each line once for all picks."""
        lines = (line for pick in self._picks.values() for line in pick.shortfall)
        yield from (Text(line) for line in dict.fromkeys(lines))

    def _pareto_set(self) -> Iterator[Text]:
        for pick in self._picks.values():
            yield from (Text(reason) for reason in set_reasons(pick))

    def _left_out(self) -> Iterator[Text]:
        """Note on excluded trials, for which the table has no column."""
        for trials in dict.fromkeys(each for p in self._picks.values() for each in p.left_out):
            yield Text(f"left out of the picks: {trials}")

    def _suggested(self) -> Iterator[tuple[str, str]]:
        """Suggestions for the chosen trials, each trial once."""
        chosen = {pick.chosen.key: pick.chosen for pick in self._picks.values() if pick.chosen}
        evidence = Evidence(self._records, self._constraints)
        given: set[str] = set()
        for key, candidate in chosen.items():
            for text in evidence.suggestions(self._by_key[key]):
                if text not in given:
                    yield candidate.label, text
                given.add(text)

    def _table(self) -> Table:
        table = Table(title="Picks", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("for", "configuration"):
            table.add_column(head, no_wrap=True)
        further = self._further_objectives()
        for head in (*_PICK_COLUMNS, *(each.title for each in further)):
            table.add_column(head, justify="right", no_wrap=True)
        chosen = [self._by_key[pick.chosen.key] for pick in self._picks.values() if pick.chosen]
        failing = any_failed(chosen)
        if failing:
            table.add_column("requests failed", justify="right", no_wrap=True)
        table.add_column("constraints", no_wrap=True)
        for pick in self._picks.values():
            title = Text(pick_title(pick), style="bold")
            if pick.chosen is None:
                dashes = [DASH] * (len(_PICK_COLUMNS) + len(further) + failing)
                table.add_row(title, DASH, *dashes, Text("; ".join(pick.reasons)))
                continue
            record = self._by_key[pick.chosen.key]
            check = (
                _constraint_text(record, self._constraints) if self._constraints else "none given"
            )
            values = ((each, each.value(pick.chosen.results)) for each in further)
            numbers = [
                *_pick_numbers(record),
                *(DASH if value is None else each.shown(value) for each, value in values),
                *([failed_text(record)] if failing else []),
            ]
            table.add_row(title, Text(pick.chosen.label), *numbers, check)
        return table

    def _further_objectives(self) -> list[Objective]:
        """Objectives that the usual columns do not show."""
        every = {o.name: o for pick in self._picks.values() for o in pick.objectives}
        usual = _PICK_COLUMNS.values()
        return [each for each in every.values() if (each.metric, each.statistic) not in usual]


#: Columns of the picks: heading -> metric and statistic.
_PICK_COLUMNS: Mapping[str, tuple[str, str]] = {
    "out tok/s": ("output_throughput", "mean"),
    "req/s": ("request_throughput", "mean"),
    "TTFT mean": ("ttft", "mean"),
    "E2E p99": ("e2e_latency", "p99"),
    "$/M out tokens": ("cost_per_million_tokens", "mean"),
}


def _pick_numbers(record: TrialRecord) -> list[str]:
    return [
        shown(quantity_value(record.results, name, statistic), QUANTITIES[name].unit)
        .removesuffix(" tok/s")
        .removesuffix(" req/s")
        for name, statistic in _PICK_COLUMNS.values()
    ]


def _failures_table(failed: Sequence[TrialRecord], names: SweptSettings) -> Table:
    table = Table(
        title=f"Failed trials: {len(failed)}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("configuration", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for record in failed:
        failure = record.failure
        table.add_row(
            Text(label_of(record, names)),
            Text(failure.kind if failure else DASH),
            Text(failure.reason if failure else "not recorded"),
        )
    return table


def _add_pair(table: Table, pair: PredictionPair) -> None:
    for place, gap in enumerate(quantity_errors(pair)):
        unit = QUANTITIES[gap.quantity].unit
        table.add_row(
            Text(pair.label if place == 0 else ""),
            _quantity_title(gap.quantity, gap.statistic),
            shown(gap.predicted, unit),
            shown(gap.measured, unit),
            DASH if gap.error_fraction is None else f"{gap.error_fraction:+.1%}",
        )
    table.add_section()


def _quantity_title(name: str, statistic: str) -> str:
    quantity = QUANTITIES[name]
    shown_statistic = f"{statistic} " if quantity.has_statistics else ""
    return (
        f"{shown_statistic}{quantity.short if quantity.has_statistics else quantity.title.lower()}"
    )
