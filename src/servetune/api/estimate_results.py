"""Results of estimates: one machine, a ranking of plans, a comparison of machines.

Predictions of servetune and of NVIDIA's aiconfigurator stand side by side, never mixed.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from servetune.api.choosing import Selection
from servetune.api.estimate_load import HeldLoad
from servetune.api.estimate_text import Split, estimate_text
from servetune.api.frames import TableRow, Tabular, json_object
from servetune.api.notes import progress
from servetune.api.ranking import Priced, Ranked
from servetune.api.ranking_text import sweep_text
from servetune.api.shared_options import Estimator
from servetune.api.wording import basis_text, buying_text, wrap
from servetune.engines import PricedRelease, priced_release
from servetune.errors import InputError, StoreError
from servetune.hardware import Node
from servetune.json_value import JsonObject
from servetune.models import NetworkShape, load_config
from servetune.perf import Calibration
from servetune.perf.roofline import Interval, OperatingPoint, PlannedRun, performance_at
from servetune.perf.sweep import Offer
from servetune.prediction.aiconfigurator import AiconfiguratorEstimate, estimate_run
from servetune.prediction.rows import Cell
from servetune.prediction.tables import (
    Table,
    TableOptions,
    predict_table,
    read_table,
    table_text,
)
from servetune.store import write_text
from servetune.units import MS_PER_S, format_rate, format_seconds
from servetune.workload import Workload


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of an estimation's text besides its figures.

    Attributes:
        shape: The network.
        estimator: Tool whose predictions are shown.
        limited: Whether there are constraints.
        concurrency: Number of users whose steady state alone is shown; `None` for all.
        rate: Requests per second that this number follows from; `None` where it was given.
    """

    shape: NetworkShape
    estimator: Estimator
    limited: bool
    concurrency: int | None = None
    rate: float | None = None


class Estimation(Tabular, frozen=True, kw_only=True):
    """One machine, priced in every split of its GPUs.

    Attributes:
        node: The machine.
        workload: Workload that the machine serves.
        release: Release of the engine that the predictions are for.
        chosen: The split that the details are of.
        splits: All splits, those that do not fit included.
        curve: Steady states of the chosen split from one user to twice its best throughput's.
        second_opinion: aiconfigurator's predictions beside servetune's, where asked for.
        intervals: Intervals of the steady states in `curve`.
        knee: Concurrency beyond which latency grows faster than throughput.
        constraints: The largest load that holds the constraints, or whether a rate does.
        tune_commands: Commands that try the chosen plan, by name.
    """

    node: Node
    workload: Workload
    release: PricedRelease
    chosen: Split
    splits: tuple[Split, ...]
    curve: tuple[OperatingPoint, ...]
    second_opinion: tuple[Compared, ...]
    intervals: tuple[Interval, ...]
    knee: int
    constraints: HeldLoad
    tune_commands: dict[str, str]
    shown: Shown

    @property
    def feasible(self) -> bool:
        """Whether a load holds every constraint, and the stated one does."""
        return self.constraints.feasible

    def as_rows(self) -> Iterable[TableRow]:
        """The chosen split's steady state, one row for each concurrency."""
        return self.curve

    def _facts(self) -> Sequence[tuple[str, str]]:
        answer, interval = self.chosen.answer, self.chosen.answer.interval
        best, users = answer.best_throughput, self.constraints.concurrency
        facts = [("model", f"{self.shown.shape.name} on {self.node.label}")]
        facts += [("plan", self.chosen.plan.label), ("knee", f"{self.knee:,} users")]
        if best is not None:
            rate = f"{format_rate(best.output_tokens_per_s)} tok/s with {best.concurrency:,} users"
            facts.append(("best throughput", rate))
        if self.shown.limited and self.shown.rate is not None:
            held = "missed" if self.constraints.missed else "held"
            facts.append((f"limits at {self.shown.rate:g} requests/s", held))
        elif self.shown.limited:
            held = f"{users:,} users" if users is not None else "no load"
            facts.append(("largest load within the limits", held))
        factors = f"{interval.low_factor:.3g} to {interval.high_factor:.3g}"
        facts.append(("accuracy", f"times within a factor of {factors}: {basis_text(interval)}"))
        facts.append(("", "arithmetic: nothing was run"))
        return facts

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        del named["shown"]
        if self.shown.rate is not None:
            named["rate_per_s"] = self.shown.rate
            named["in_flight"] = self.in_flight
        return json_object(named)

    @property
    def in_flight(self) -> float | None:
        """Mean requests in flight at the rate that was asked for; `None` without one."""
        if self.shown.rate is None:
            return None
        return self.shown.rate * self.shown_point.e2e_ms / MS_PER_S

    @property
    def shown_point(self) -> OperatingPoint:
        """Point of the curve for the number of users, or the rate, that was asked for."""
        [point] = (each for each in self.curve if each.concurrency == self.shown.concurrency)
        return point

    @property
    def load_names(self) -> dict[str, int]:
        """Concurrencies with a name, such as the knee."""
        names = {"knee": self.knee}
        users = self.constraints.concurrency
        if self.shown.limited and users is not None and self.shown.rate is None:
            names["largest within limits"] = users
        if self.shown.rate is not None and self.shown.concurrency is not None:
            names[f"at {self.shown.rate:g} requests/s"] = self.shown.concurrency
        return names

    def __str__(self) -> str:
        return self.text()

    def text(self, *, emphasis: Callable[[str], str] = str) -> str:
        """Text for a reader; `emphasis` styles the lines that matter most."""
        shape, alone = self.shown.shape, self.shown.estimator == "aiconfigurator"
        opinions = list(
            opinion_text(self.second_opinion, shape, self.node, alone=alone)
            if self.second_opinion
            else ()
        )
        if alone:
            return "\n".join(opinions)
        lines = estimate_text(self, emphasis=emphasis)
        return "\n".join([*lines, *(["", *opinions] if opinions else [])])


class Ranking(Tabular, frozen=True, kw_only=True):
    """The best plans for one machine or several.

    Attributes:
        nodes: The machines.
        selection: Constraints and objective that the plans were chosen for.
        ranked: Plans that hold every constraint, best first.
        priced: Size of the set of plans that they were chosen from.
    """

    nodes: tuple[Node, ...]
    selection: Selection
    ranked: tuple[Ranked, ...]
    priced: Priced

    @property
    def feasible(self) -> bool:
        """Whether a plan holds every constraint."""
        return bool(self.ranked)

    def as_rows(self) -> Iterable[TableRow]:
        """One row per plan, best first."""
        return (
            {
                "machine": one.node.label,
                "plan": one.swept.plan.label,
                "cost_per_million_tokens_usd": one.swept.cost_per_million_tokens_usd,
                **msgspec.to_builtins(one.swept.point),
            }
            for one in self.ranked
        )

    def _facts(self) -> Sequence[tuple[str, str]]:
        where = self.nodes[0].label if len(self.nodes) == 1 else f"{len(self.nodes)} machines"
        limits = "; ".join(limit.label for limit in self.selection.limits)
        return (
            ("model", f"{self.selection.shape.name} on {where}"),
            ("limits", limits or "none"),
            ("plans", f"{len(self.ranked):,} shown of {self.priced.count:,} that were predicted"),
        )

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        where = {"node": self.nodes[0]} if len(self.nodes) == 1 else {"nodes": self.nodes}
        return json_object(
            {
                **where,
                "workload": self.selection.workload,
                "release": priced_release(self.selection.plan),
                "confidence": self.selection.confidence,
                "priced": self.priced.count,
                "at_face_value": self.priced.at_face_value,
                "simulated": self.priced.simulated,
                "nearest": self.priced.nearest,
                "ranked": self.ranked,
            }
        )

    def __str__(self) -> str:
        return "\n".join(sweep_text(self.ranked, self.priced, self.nodes, self.selection))


class MachineComparison(Tabular, frozen=True, kw_only=True):
    """Machines by what a million output tokens cost on them.

    Attributes:
        selection: Constraints and objective of the comparison.
        offers: All machines, cheapest first; one that cannot serve says why.
        intervals: Intervals of the predictions for `usable`, in order.
    """

    selection: Selection
    offers: tuple[Offer, ...]
    intervals: tuple[Interval, ...]

    @property
    def usable(self) -> tuple[Offer, ...]:
        """Machines that hold the limits."""
        return tuple(offer for offer in self.offers if offer.best is not None)

    @property
    def feasible(self) -> bool:
        """Whether a machine holds the limits."""
        return bool(self.usable)

    def as_rows(self) -> Iterable[TableRow]:
        """One row per machine that holds the limits, cheapest first."""
        return (
            {
                "machine": offer.node.label,
                "usd_per_hour": offer.node.price.usd_per_hour if offer.node.price else None,
                "cost_per_million_tokens_usd": offer.best.cost_per_million_tokens_usd,
                "plan": offer.best.plan.label,
                "low_factor": interval.low_factor,
                "high_factor": interval.high_factor,
                "measured_rows": interval.accuracy.rows,
                "median_error_percent": interval.accuracy.median_percent,
                **msgspec.to_builtins(offer.best.point),
            }
            for offer, interval in zip(self.usable, self.intervals, strict=True)
            if offer.best is not None
        )

    def _facts(self) -> Sequence[tuple[str, str]]:
        limits = "; ".join(limit.label for limit in self.selection.limits)
        return (
            ("model", self.selection.shape.name),
            ("limits", limits or "none"),
            ("machines", f"{len(self.usable):,} of {len(self.offers):,} can serve it"),
        )

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object(
            {
                "workload": self.selection.workload,
                "release": priced_release(self.selection.plan),
                "confidence": self.selection.confidence,
                "offers": [
                    {**msgspec.structs.asdict(offer), "interval": interval}
                    for offer, interval in zip(self.usable, self.intervals, strict=True)
                ][: self.selection.top],
            }
        )

    def __str__(self) -> str:
        lines = list(buying_text(self.offers, self.intervals, self.selection))
        lines += wrap(priced_release(self.selection.plan).sentence)
        if self.selection.limits:
            lines.append(
                f"constraints on means hold with confidence {self.selection.confidence:g} "
                "(--confidence)"
            )
        return "\n".join(lines)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency as both predictors see it; `theirs` is aiconfigurator's."""

    ours: OperatingPoint
    theirs: AiconfiguratorEstimate


def side_by_side(
    best: Split,
    model: str,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    calibration: Calibration | None,
) -> list[Compared]:
    """Both predictions for one user, for the best throughput, and for a number between.

    Raises:
        PlanError: aiconfigurator has no answer for this plan.
    """
    throughput = best.answer.best_throughput
    assert throughput is not None
    most = throughput.concurrency
    config = load_config(model)
    compared: list[Compared] = []
    for concurrency in sorted({1, math.isqrt(most), most}):
        run = PlannedRun(
            shape=shape,
            node=node,
            plan=best.plan,
            lengths=workload.lengths,
            concurrency=concurrency,
            request_count=workload.request_count,
        )
        theirs = estimate_run(run, config)
        # It prices whole batches on every rank, so ours is priced with as many users.
        ours = performance_at(
            shape, node, best.plan, workload, theirs.concurrency, calibration=calibration
        )
        if ours.concurrency not in {each.ours.concurrency for each in compared}:
            compared.append(Compared(ours=ours, theirs=theirs))
    return compared


def opinion_text(
    compared: Sequence[Compared], shape: NetworkShape, node: Node, *, alone: bool
) -> Iterator[str]:
    """One row per concurrency and predictor; `alone` leaves servetune's out."""
    head = "SECOND OPINION" if alone else "Second opinion"
    yield f"{head} (arithmetic, nothing was run): {shape.name} on {node.label}"
    yield "  concurrency  predictor       TTFT      TPOT      E2E        out tok/s"
    for one in compared:
        point, theirs = one.ours, one.theirs
        if not alone:
            yield _row(
                point.concurrency,
                "servetune",
                (point.ttft_ms, point.itl_ms, point.e2e_ms),
                point.output_tokens_per_s,
            )
        yield _row(
            theirs.concurrency,
            "aiconfigurator",
            (theirs.ttft_ms, theirs.tpot_ms, theirs.e2e_ms),
            theirs.output_tokens_per_s,
        )
    yield f"  aiconfigurator: NVIDIA's prediction by {compared[0].theirs.predictor}"
    yield "  its numbers are its own: no interval, calibration or factor of servetune is in them"
    if not alone:
        yield "  servetune: the steady state above; TPOT is its mean gap between tokens"
    for warning in dict.fromkeys(one.theirs.warning for one in compared if one.theirs.warning):
        yield f"  aiconfigurator warns: {warning}"


def _row(
    concurrency: int, predictor: str, times_ms: tuple[float, float, float], rate: float
) -> str:
    ttft, tpot, e2e = (format_seconds(time_ms / MS_PER_S) for time_ms in times_ms)
    return (
        f"  {concurrency:>11}  {predictor:<14}  {ttft:<9} {tpot:<9} {e2e:<10} "
        f"{format_rate(rate):>9}"
    )


class TablePrediction(Tabular, frozen=True, kw_only=True):
    """Predictions of a table's rows.

    Attributes:
        out: File that they were written to.
        columns: Names of the table's columns.
        rows: Rows of the table; a row that could not be predicted has the reason in `error`.
    """

    out: Path
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Cell], ...]

    @property
    def feasible(self) -> bool:
        """Whether a row could be predicted."""
        return any(row["tpot_ms"] != "" for row in self.rows)

    def as_rows(self) -> Iterable[TableRow]:
        """One row per row of the table."""
        return ({name: row[name] for name in self.columns} for row in self.rows)

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        return json_object({"out": str(self.out), "rows": self.rows})

    def __str__(self) -> str:
        answered = sum(row["tpot_ms"] != "" for row in self.rows)
        unfit = sum(row["fits"] == "false" for row in self.rows)
        return (
            f"{answered} of {len(self.rows)} rows predicted"
            f"{f', of which {unfit} are said not to fit' if unfit else ''}; {self.out}"
        )


#: Characters of a cell of a table at most, by Python's reader.
_MOST_OF_A_CELL = csv.field_size_limit()


def rows_of(source: Path) -> Table:
    """Table of a file, which has rows.

    Raises:
        StoreError: The file cannot be read; the hint says what to do about it.
        InputError: It has no row, or lacks a column that every row needs.
    """
    if not source.exists():
        raise StoreError(f"{source} is not there", hint="give the path of a table (.csv)")
    if source.is_dir():
        raise StoreError(f"{source} is a folder", hint="give a table (.csv) that is in it")
    try:
        table = read_table(source)
    except StoreError as error:
        if "field larger than field limit" in error.message:
            raise StoreError(
                f"a cell of {source} has more than {_MOST_OF_A_CELL:,} characters",
                hint='look for a quotation mark (") that is not closed, or shorten the cell',
            ) from None
        if not os.access(source, os.R_OK):
            raise StoreError(error.message, hint="allow this user to read it") from None
        raise
    if not table.rows:
        raise InputError(f"{source} has no rows", hint="add a row below the names of columns")
    return table


def predict_file(source: Path, out: Path | None, options: TableOptions) -> TablePrediction:
    """Predict every row of a table and write it with its predictions.

    Raises:
        InputError: A file is missing or would be written over, or the table lacks a column that
            every row needs; or an anchor cannot be read.
    """
    if out is None:
        raise InputError("--batch needs --out", hint="give the file for the predictions")
    if options.models_dir is not None and not options.models_dir.is_dir():
        raise InputError(f"{options.models_dir} is not a folder", hint="give --models DIR")
    if out.resolve() == source.resolve():
        raise InputError(
            f"--out {out} is the table itself", hint="give another file, so that no cell is lost"
        )
    predicted = predict_table(rows_of(source), options)
    for line in predicted.notes:
        progress(line)
    write_text(out, table_text(predicted))
    return TablePrediction(out=out, columns=predicted.columns, rows=predicted.rows)
