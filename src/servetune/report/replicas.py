"""Replica layouts: few wide copies against many narrow ones on equal hardware.

A trial measures its copies at their share of the load. A machine full of them serves their number
times the load, at less than their number times the throughput, because they share a host
(`perf.copies`): by Little's law their latencies are longer by as much. Machines share nothing.
Rows computed in this way are marked `derived`, and their success rate is at most the measured one.
Where a full machine was measured, further machines are derived from it, and its ratio to single
copies (`host_fraction`) is what rows at other loads are derived by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.errors import InputError
from servetune.hardware import Node
from servetune.json_value import JsonObject
from servetune.metrics import Constraint, value_of
from servetune.perf.copies import host_fraction
from servetune.plan.plan import Plan
from servetune.report.quantities import DASH
from servetune.report.ranking import plan_of
from servetune.search import exceeds_error_tolerance
from servetune.store.schema import TrialRecord
from servetune.units import format_rate, format_usd

#: Results proportional to the number of copies.
_EXTENSIVE = (
    "request_throughput",
    "output_throughput",
    "input_throughput",
    "total_token_throughput",
    "total_throughput",
)
#: Those of them that are offered and not served.
_LOADS = ("max_concurrency", "request_rate")
#: Ends of the names of times that a busier host makes longer.
_LATENCIES = ("_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms", "_e2e_ms")


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of copies on instances, at one load.

    Attributes:
        layout: Display name: `TP2 x 2`.
        devices_per_copy: Devices of one copy.
        copies: Copies on one instance.
        instances: Number of instances.
        idle_devices: Unused devices of one instance.
        load: Total load: requests in flight, or requests per second of an open loop.
        load_unit: Unit of the load: `in flight` or `req/s`.
        output_tokens_per_s: Total output throughput.
        p99_e2e_ms: p99 end-to-end latency; `None` if not measured.
        success_fraction: Share of successful requests, at most of a derived row; `None` if unknown.
        usd_per_million_tokens: Cost per million output tokens; `None` without a price.
        meets: Whether the constraints hold and failures are within the tolerance.
        measured: Whether exactly this layout was measured; else it is derived.
        simulated: Whether the source trial was simulated.
        host_fraction: Measured throughput of a full machine over that of its copies alone at the
            same share of load; `None` where either was not measured.
        assumed_host_fraction: The same as a derived row was computed by; 1 for a measured row.
        settings: Other settings that differ between trials.
        key: Key of the source trial.
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
    assumed_host_fraction: float
    settings: str
    key: str


class _Trial(msgspec.Struct, frozen=True):
    """Usable trial with its layout and the load per copy."""

    record: TrialRecord
    plan: Plan
    copies: int
    devices_per_copy: int
    load_per_copy: float
    load_unit: str

    @property
    def copy_plan(self) -> Plan:
        """Plan of one copy: equal for trials that differ in number of copies and load."""
        one = msgspec.structs.replace(self.plan, replicas=1)
        if not self.plan.expert_parallel:
            one = msgspec.structs.replace(one, data_parallel=1)
        return one


def replica_rows(
    records: Sequence[TrialRecord],
    node: Node,
    *,
    instances: Iterable[int] = (1, 2, 4),
    load: float | None = None,
    constraints: tuple[Constraint, ...] = (),
) -> list[ReplicaRow]:
    """Rows for every layout of the sweep and every number of instances, best first.

    Each row is a layout's best point: the highest throughput that meets the constraints, or
    the highest of all where none does. With `load` it is the point nearest to that total load
    instead, so that all rows serve the same demand.

    Raises:
        InputError: No trial of the sweep fits the instance.
    """
    trials = [trial for record in records if (trial := _trial(record)) is not None]
    fitting = [trial for trial in trials if trial.devices_per_copy <= node.device_count]
    if not fitting:
        raise InputError(
            f"no trial of this sweep fits {node.label}",
            hint="it needs trials with results, a concurrency and at most "
            f"{node.device_count} devices per copy",
        )
    groups: dict[Plan, list[_Trial]] = {}
    for trial in fitting:
        groups.setdefault(trial.copy_plan, []).append(trial)
    varying = _varying(list(groups))
    rows = []
    for plan, members in groups.items():
        for count in instances:
            points = [
                _row(trial, members, node, count, constraints, _settings(plan, varying))
                for trial in _sources(members, node)
            ]
            rows.append(_chosen(points, load))
    return sorted(rows, key=lambda row: (row.instances, not row.meets, -row.output_tokens_per_s))


def _trial(record: TrialRecord) -> _Trial | None:
    """Record as a usable trial; `None` if it failed or lacks load or layout."""
    results = record.results
    throughput = value_of(results, "output_throughput")
    load, unit = results.get("max_concurrency"), "in flight"
    if not load:
        load, unit = record.config.client_args.get("request_rate"), "req/s"
    is_load = isinstance(load, int | float) and math.isfinite(load) and load > 0
    if record.status != "ok" or not throughput or not is_load:
        return None
    plan = plan_of(record)
    if plan is None or plan.prefill_replicas:
        return None
    copies = plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)
    assert isinstance(load, int | float)
    return _Trial(record, plan, copies, plan.device_count // copies, load / copies, unit)


def _sources(members: list[_Trial], node: Node) -> list[_Trial]:
    """Source trials: full machines, and other trials at loads that no full machine had."""
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
    shared = _shared(trial, members, node, copies)
    results = scaled_results(trial.record.results, factor, shared)
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
        assumed_host_fraction=shared,
        settings=settings,
        key=trial.record.key,
    )


def _shared(trial: _Trial, members: list[_Trial], node: Node, copies: int) -> float:
    """What a full machine does of its copies alone: measured at another load, else the law's."""
    if copies == trial.copies:
        return 1.0
    measured = [
        share for each in members if (share := _host_fraction(each, members, node)) is not None
    ]
    if measured and trial.copies == 1 and median(measured) < 1:  # else it is noise
        return median(measured)
    return host_fraction(copies) / host_fraction(trial.copies)


def scaled_results(results: JsonObject, factor: float, shared: float) -> JsonObject:
    """Results of `factor` as many copies, which do `shared` of what they would alone."""
    if factor == 1 and shared == 1:
        return dict(results)
    scaled = {name: _scaled_value(name, value, factor, shared) for name, value in results.items()}
    intervals = scaled.get("intervals")
    if isinstance(intervals, dict):
        scaled["intervals"] = {
            name: [_scaled_value(name, end, factor, shared) for end in ends]
            for name, ends in intervals.items()
            if isinstance(ends, list | tuple)
        }
    return scaled


def _scaled_value(name: str, value: object, factor: float, shared: float) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if name in _LOADS:
        return round(value * factor) if isinstance(value, int) else value * factor
    if name in _EXTENSIVE:
        return value * factor * shared
    return value / shared if name.endswith("_latency_ms") or name.endswith(_LATENCIES) else value


def _host_fraction(trial: _Trial, members: list[_Trial], node: Node) -> float | None:
    """Throughput of a full machine over that of its copies alone, at equal load per copy."""
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
    """Plan fields that differ, without those of the layout."""
    layout = {"tensor_parallel", "pipeline_parallel", "data_parallel", "replicas"}
    return tuple(
        name
        for name in Plan.__struct_fields__
        if name not in layout and len({repr(getattr(plan, name)) for plan in plans}) > 1
    )


def _settings(plan: Plan, names: tuple[str, ...]) -> str:
    return " ".join(f"{name}={getattr(plan, name)}" for name in names)


def replica_table(rows: Sequence[ReplicaRow], node: Node) -> RenderableType:
    """Table of the rows, with notes on derived and simulated ones."""
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
        which = "all" if simulated == len(rows) else f"{simulated} of {len(rows)}"
        heads.append(Text(f"SIMULATED: {which} rows are from simulated trials; no model ran"))
    notes = []
    assumed = sorted({row.assumed_host_fraction for row in rows if row.assumed_host_fraction < 1})
    if assumed:
        listed = ", ".join(f"{share:.1%}" for share in assumed)
        notes.append(
            Text(
                "derived: computed from fewer copies; copies that share a host do "
                f"{listed} of what they would alone, as those of published studies or of this "
                "sweep did, so times are as much longer and more requests may fail"
            )
        )
    elif any(not row.measured for row in rows):
        notes.append(Text("derived: computed from fewer instances, which share nothing"))
    shares = sorted({row.host_fraction for row in rows if row.host_fraction is not None})
    if shares:
        listed = ", ".join(f"{share:.0%}" for share in shares)
        notes.append(Text(f"full machines reached {listed} of the throughput of separate copies"))
    if node.price is None:
        notes.append(Text(f"{node.name} has no public price, so no cost is shown"))
    return Group(*heads, table, *notes)


def _source(row: ReplicaRow) -> str:
    if not row.measured:
        return "derived"
    return "simulated" if row.simulated else "measured"


def _cells(row: ReplicaRow, *, has_settings: bool) -> list[str]:
    idle = f", {row.idle_devices} idle" if row.idle_devices else ""
    p99 = DASH if row.p99_e2e_ms is None else f"{row.p99_e2e_ms / 1000:.2f}"
    success = DASH if row.success_fraction is None else f"{row.success_fraction:.1%}"
    if row.assumed_host_fraction < 1 and row.success_fraction is not None:
        success = f"≤ {success}"
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
