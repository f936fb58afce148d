"""Few wide copies or many narrow ones: one table out of a sweep, at equal accelerators.

A trial tells what its copies do at their share of the load. Copies that do not share a
device do not know of each other, so a machine full of them does as many times as much at as
many times the load, with the same latencies; and so do several machines. Rows that rest on
that are marked `derived`. Where a full machine was measured, further machines are derived
from it, and the ratio to single copies says what sharing a host took (`host_fraction`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.engines.translate import plan_from_settings
from servetune.errors import InputError, ServetuneError
from servetune.hardware import Node
from servetune.metrics import Constraint, value_of
from servetune.plan.plan import Plan
from servetune.report.quantities import DASH
from servetune.search import exceeds_error_tolerance
from servetune.store.schema import TrialRecord
from servetune.units import format_rate, format_usd

__all__ = ["ReplicaRow", "replica_rows", "replica_table"]

#: What grows with copies; latencies do not.
_EXTENSIVE = (
    "request_throughput",
    "output_throughput",
    "input_throughput",
    "total_token_throughput",
    "total_throughput",
    "max_concurrency",
    "request_rate",
)


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to fill machines with copies, at one load.

    Attributes:
        layout: For a reader: `TP2 x 2`.
        devices_per_copy: That one copy is split over.
        copies: On one instance.
        instances: Of them.
        idle_devices: Of one instance, paid for and unused.
        load: In all: requests in flight, or requests per second of an open loop.
        load_unit: `in flight` or `req/s`.
        output_tokens_per_s: In all.
        p99_e2e_ms: End to end; `None` where it was not measured.
        success_fraction: Of requests; `None` where the trial does not say.
        usd_per_million_tokens: Of output, at the instance's price; `None` without one.
        meets: Whether the constraints hold, too many failures counting as a miss.
        measured: Whether just this was tried; else it is derived.
        simulated: Whether no model ran in the trial that it rests on.
        host_fraction: Measured on a full machine over what its copies do alone at the same
            share of load; `None` where one of them was not measured.
        settings: Beside the layout, where they differ between trials.
        key: Of the trial that it rests on.
    """

    layout: str
    devices_per_copy: int
    copies: int
    instances: int
    idle_devices: int
    load: float
    load_unit: str
    output_tokens_per_s: float
    p99_e2e_ms: float | None
    success_fraction: float | None
    usd_per_million_tokens: float | None
    meets: bool
    measured: bool
    simulated: bool
    host_fraction: float | None
    settings: str
    key: str


class _Trial(msgspec.Struct, frozen=True):
    """A usable trial: how it was laid out, and what one copy did."""

    record: TrialRecord
    plan: Plan
    copies: int
    devices_per_copy: int
    load_per_copy: float
    load_unit: str

    @property
    def group(self) -> tuple[Any, ...]:
        """Trials of equal copies, whatever their number and load."""
        one = msgspec.structs.replace(self.plan, replicas=1)
        if not self.plan.expert_parallel:
            one = msgspec.structs.replace(one, data_parallel=1)
        return (one,)


def replica_rows(
    records: Sequence[TrialRecord],
    node: Node,
    *,
    instances: Iterable[int] = (1, 2, 4),
    load: float | None = None,
    constraints: tuple[Constraint, ...] = (),
) -> list[ReplicaRow]:
    """Rows for every layout of the sweep and every number of instances, best first.

    Each row is a layout's best point: the highest throughput that meets the constraints,
    or the highest at all where none does. With `load` it is instead the measured point
    nearest to that total load, so that all rows answer the same demand.

    Raises:
        InputError: No trial of the sweep can be laid out on the instance.
    """
    trials = [trial for record in records if (trial := _trial(record)) is not None]
    fitting = [trial for trial in trials if trial.devices_per_copy <= node.device_count]
    if not fitting:
        raise InputError(
            f"no trial of this sweep can be laid out on {node.label}",
            hint="it needs trials with results, a concurrency and at most "
            f"{node.device_count} devices per copy",
        )
    groups: dict[tuple[Any, ...], list[_Trial]] = {}
    for trial in fitting:
        groups.setdefault(trial.group, []).append(trial)
    varying = _varying([group[0] for group in groups])
    rows = []
    for (plan,), members in groups.items():
        for count in instances:
            points = [
                _row(trial, members, node, count, constraints, _settings(plan, varying))
                for trial in _sources(members, node)
            ]
            rows.append(_chosen(points, load))
    return sorted(rows, key=lambda row: (row.instances, not row.meets, -row.output_tokens_per_s))


def _trial(record: TrialRecord) -> _Trial | None:
    """A record as a trial; `None` where it failed or does not say what it must."""
    results = record.results
    throughput = value_of(results, "output_throughput")
    load, unit = results.get("max_concurrency"), "in flight"
    if not load:
        load, unit = record.config.client_args.get("request_rate"), "req/s"
    is_load = isinstance(load, int | float) and math.isfinite(load) and load > 0
    if record.status != "ok" or not throughput or not is_load:
        return None
    plan = record.plan or _plan_of(record)
    if plan is None or plan.prefill_replicas:
        return None
    copies = plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)
    assert isinstance(load, int | float)
    return _Trial(record, plan, copies, plan.device_count // copies, load / copies, unit)


def _plan_of(record: TrialRecord) -> Plan | None:
    settings = record.config.server_args
    engine = "sglang" if "tp_size" in settings else "vllm"
    try:
        return plan_from_settings(engine, "", settings)
    except ServetuneError:  # another tool's value
        return None


def _sources(members: list[_Trial], node: Node) -> list[_Trial]:
    """Trials to derive from: full machines where there are any, else all.

    A full machine at one load is no answer at another, so a load that only smaller
    trials had is still taken from them.
    """
    full = [trial for trial in members if _fills(trial, node)]
    loads = {trial.load_per_copy for trial in full}
    return full + [trial for trial in members if trial.load_per_copy not in loads]


def _fills(trial: _Trial, node: Node) -> bool:
    return trial.copies == node.device_count // trial.devices_per_copy


def _row(
    trial: _Trial,
    members: list[_Trial],
    node: Node,
    instances: int,
    constraints: tuple[Constraint, ...],
    settings: str,
) -> ReplicaRow:
    copies = node.device_count // trial.devices_per_copy
    factor = copies * instances / trial.copies
    results = _scaled(trial.record.results, factor)
    throughput = float(results["output_throughput"])
    cost = None
    if node.price is not None:
        cost = node.price.usd_per_hour * instances / 3600 / throughput * 1e6
        results["cost_per_million_tokens"] = cost
    failed = value_of(results, "error_rate")
    width = "x".join(
        f"{word}{count}"
        for word, count in (
            ("TP", trial.plan.tensor_parallel),
            ("PP", trial.plan.pipeline_parallel),
            ("EP", trial.plan.data_parallel if trial.plan.expert_parallel else 1),
        )
        if count > 1 or word == "TP"
    )
    return ReplicaRow(
        layout=f"{width} x {copies}",
        devices_per_copy=trial.devices_per_copy,
        copies=copies,
        instances=instances,
        idle_devices=node.device_count - copies * trial.devices_per_copy,
        load=trial.load_per_copy * copies * instances,
        load_unit=trial.load_unit,
        output_tokens_per_s=throughput,
        p99_e2e_ms=value_of(results, "e2e_latency", "p99"),
        success_fraction=None if failed is None else 1 - failed,
        usd_per_million_tokens=cost,
        meets=not exceeds_error_tolerance(results, constraints)
        and all(constraint.holds(results) is True for constraint in constraints),
        measured=factor == 1,
        simulated=trial.record.simulated,
        host_fraction=_host_fraction(trial, members, node),
        settings=settings,
        key=trial.record.key,
    )


def _scaled(results: dict[str, Any], factor: float) -> dict[str, Any]:
    return {
        name: value * factor
        if name in _EXTENSIVE and isinstance(value, int | float) and factor != 1
        else value
        for name, value in results.items()
    }


def _host_fraction(trial: _Trial, members: list[_Trial], node: Node) -> float | None:
    """What a full machine does over what its copies do alone, at the same share of load."""
    if not _fills(trial, node) or trial.copies == 1:
        return None
    alone = [
        float(other.record.results["output_throughput"])
        for other in members
        if other.copies == 1 and other.load_per_copy == trial.load_per_copy
    ]
    if not alone:
        return None
    return float(trial.record.results["output_throughput"]) / trial.copies / max(alone)


def _chosen(points: list[ReplicaRow], load: float | None) -> ReplicaRow:
    if load is not None:
        return min(points, key=lambda row: (abs(math.log(row.load / load)), not row.measured))
    return max(points, key=lambda row: (row.meets, row.output_tokens_per_s, row.measured))


def _varying(plans: list[Plan]) -> tuple[str, ...]:
    """Fields of the plans that differ beside the layout."""
    layout = {"tensor_parallel", "pipeline_parallel", "data_parallel", "replicas"}
    return tuple(
        name
        for name in Plan.__struct_fields__
        if name not in layout and len({repr(getattr(plan, name)) for plan in plans}) > 1
    )


def _settings(plan: Plan, names: tuple[str, ...]) -> str:
    return " ".join(f"{name}={getattr(plan, name)}" for name in names)


def replica_table(rows: Sequence[ReplicaRow], node: Node) -> RenderableType:
    """The rows for a terminal or a file, with what the derived ones rest on below."""
    table = Table(
        title=f"Copies on {node.label}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    has_settings = any(row.settings for row in rows)
    unit = rows[0].load_unit if rows else ""
    for title in ("instances", "layout", *(["settings"] if has_settings else [])):
        table.add_column(title)
    titles = (f"load\n{unit}", "out tok/s", "p99 e2e\ns", "success", "$/M out\ntokens")
    for title in titles:
        table.add_column(title, justify="right")
    table.add_column("limits")
    table.add_column("from")
    for row in rows:
        table.add_row(*_cells(row, has_settings=has_settings))
    simulated = sum(row.simulated for row in rows)
    heads = []
    if simulated:
        which = (
            "all rows rest" if simulated == len(rows) else f"{simulated} of {len(rows)} rows rest"
        )
        heads.append(Text(f"SIMULATED: {which} on simulated trials, in which no model ran"))
    notes = [Text("derived: copies that share no device are taken to do as much beside others")]
    shares = sorted({row.host_fraction for row in rows if row.host_fraction is not None})
    if shares:
        told = ", ".join(f"{share:.0%}" for share in shares)
        notes.append(Text(f"full machines did {told} of what their copies do alone"))
    if node.price is None:
        notes.append(Text(f"no public price of {node.name} is known; no cost is given"))
    return Group(*heads, table, *notes)


def _source(row: ReplicaRow) -> str:
    if not row.measured:
        return "derived"
    return "simulated" if row.simulated else "measured"


def _cells(row: ReplicaRow, *, has_settings: bool) -> list[str]:
    idle = f", {row.idle_devices} idle" if row.idle_devices else ""
    p99 = DASH if row.p99_e2e_ms is None else f"{row.p99_e2e_ms / 1000:.2f}"
    success = DASH if row.success_fraction is None else f"{row.success_fraction:.1%}"
    cost = row.usd_per_million_tokens
    return [
        str(row.instances),
        row.layout + idle,
        *([row.settings] if has_settings else []),
        format_rate(row.load),
        format_rate(row.output_tokens_per_s),
        p99,
        success,
        DASH if cost is None else format_usd(cost),
        "met" if row.meets else "missed",
        _source(row),
    ]
