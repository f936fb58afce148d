"""Tables of the catalogue: runs, their trials, and deployments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rich import box
from rich.table import Table
from rich.text import Text

from servetune.report.quantities import DASH, shown
from servetune.report.tables import as_text, fact_table
from servetune.store.catalogue_rows import RunRow, TrialRow
from servetune.units import format_rate, format_usd

#: Digits of a run's identity that tables show; any unique beginning of it is a name of the run.
SHOWN_DIGITS = 8


class DeployedRow(Protocol):
    """Row of a deployment; `api.registry.DeployedRow` says what each field is."""

    @property
    def target(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def adapter(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def usd_per_hour(self) -> float | None: ...
    @property
    def run(self) -> str: ...
    @property
    def trial(self) -> str: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def pending(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def earlier_measurements(self) -> int: ...
    @property
    def measured_at(self) -> str: ...
    @property
    def measured_simulated(self) -> bool: ...
    @property
    def reproduced(self) -> bool | None: ...
    @property
    def output_throughput(self) -> float | None: ...
    @property
    def p99_ttft_ms(self) -> float | None: ...


def runs_table(runs: Sequence[RunRow]) -> Table:
    """Runs, a line each."""
    heads = ("run", "began (UTC)", "verb", "state", "model", "machine", "trials", "pick", "tags")
    table = _table(heads, right=("trials",))
    for row in runs:
        failed = f" ({row.failed} failed)" if row.failed else ""
        simulated = "SIMULATED " if row.simulated and row.trials else ""
        table.add_row(
            row.run[:SHOWN_DIGITS],
            _minute(row.began_at or row.ended_at),
            row.verb or DASH,
            row.state,
            Text(row.model or DASH),
            Text(row.machine or DASH),
            f"{row.trials:,}{failed}",
            Text(f"{simulated}{_pick(row)}"),
            Text(_tags(row)),
        )
    return table


def run_facts_text(row: RunRow) -> str:
    """Header of a run: each fact that is known, a line each."""
    facts = (
        ("run", row.run),
        ("state", row.state),
        ("journal", row.path),
        ("copies", ", ".join(row.copies)),
        ("problem", row.problem),
        ("verb", row.verb),
        ("model", row.model),
        ("engine", row.engine),
        ("machine", row.machine),
        ("host", row.host),
        ("workload", row.workload),
        ("seed", "" if row.seed is None else str(row.seed)),
        ("servetune", row.version),
        ("began", row.began_at),
        ("ended", row.ended_at),
        ("tags", _tags(row)),
        ("pick", f"{'SIMULATED ' if row.simulated else ''}{_pick(row)}" if row.pick else ""),
    )
    return as_text(fact_table((name, text) for name, text in facts if text))


def run_trials_table(trials: Sequence[TrialRow], pick_key: str) -> Table:
    """Trials of a run, numbered as `register --trial` takes them."""
    heads = ("trial", "settings", "tok/s", "req/s", "TTFT mean", "TTFT p99", "ITL mean", "key")
    table = _table(heads, right=heads[:1] + heads[2:7])
    for row in trials:
        mark = "*" if row.key == pick_key else ""
        settings = f"FAILED: {row.failure}" if row.status != "ok" else row.label
        table.add_row(
            f"{mark}{row.number}",
            Text(settings),
            format_rate(row.output_throughput),
            format_rate(row.request_throughput),
            shown(row.mean_ttft_ms, "ms"),
            shown(row.p99_ttft_ms, "ms"),
            shown(row.mean_itl_ms, "ms"),
            row.key,
        )
    return table


def deployments_table(rows: Iterable[DeployedRow]) -> Table:
    """Deployments and their adapters, a line each."""
    heads = (
        "target", "name", "state", "base", "adapter", "machine", "USD/h", "run", "trial",
        "measured", "tok/s", "TTFT p99",
    )  # fmt: skip
    table = _table(heads, right=("USD/h", "tok/s", "TTFT p99"))
    rows = list(rows)
    accounts: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        accounts.setdefault((row.target, row.region, row.name), set()).add(row.account)
    for row in rows:
        # The account is told where it tells deployments apart.
        several = len(accounts[row.target, row.region, row.name]) > 1
        where = ", ".join(filter(None, (row.region, row.account if several else "")))
        trial = row.trial[:SHOWN_DIGITS] + (" SIMULATED" if row.simulated else "")
        waits = f", {row.pending[:SHOWN_DIGITS]} waits" if row.pending else ""
        table.add_row(
            row.target,
            Text(f"{row.name} ({where})" if where else row.name or row.folder),
            f"{row.state}{waits}",
            Text(row.base or DASH),
            Text(row.adapter),
            Text(row.machine or DASH),
            DASH if row.usd_per_hour is None else format_usd(row.usd_per_hour),
            row.run[:SHOWN_DIGITS] or DASH,
            trial or DASH,
            _measured(row),
            format_rate(row.output_throughput),
            shown(row.p99_ttft_ms, "ms"),
        )
    return table


def _measured(row: DeployedRow) -> str:
    if not row.measured_at:
        return "before a change" if row.earlier_measurements else "never"
    verdict = {True: " reproduced", False: " NOT REPRODUCED", None: ""}[row.reproduced]
    simulated = " SIMULATED" if row.measured_simulated else ""
    return f"{row.measured_at[:10]}{simulated}{verdict}"


def _table(heads: Sequence[str], *, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=head in right)
    return table


def _minute(time: str) -> str:
    return time[:16].replace("T", " ") or DASH


def _pick(row: RunRow) -> str:
    if row.problem:
        return f"CANNOT BE READ: {row.problem}"
    if not row.pick:
        return DASH
    value = "" if row.best is None else f": {row.objective} {row.best:,.4g}"
    return f"{row.pick}{value}"


def _tags(row: RunRow) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in row.tags.items())
