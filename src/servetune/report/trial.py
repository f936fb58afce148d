"""Terminal report of one simulated trial."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.metrics import Constraint
from servetune.metrics.results import JsonObject
from servetune.report.prices import price_lines
from servetune.report.quantities import QUANTITIES, quantity_value, shown
from servetune.report.ranking import constraint_lines
from servetune.report.tables import fact_table, simulated_notice
from servetune.store.schema import TrialRecord
from servetune.units import format_seconds

_LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
_STATISTICS = ("mean", "p50", "p90", "p99")
_RATES = ("output_throughput", "input_throughput", "request_throughput", "goodput")


def trial_table(
    record: TrialRecord, constraints: tuple[Constraint, ...], *, heading: str
) -> RenderableType:
    """Report of one simulated trial.

    Args:
        record: Successful trial.
        constraints: Constraints to check below the figures.
        heading: Line that describes the simulation.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("latency", no_wrap=True)
    for head in _STATISTICS:
        table.add_column(head, justify="right", no_wrap=True)
    for name in _LATENCIES:
        table.add_row(
            QUANTITIES[name].title,
            *(shown(quantity_value(record.results, name, each), "ms") for each in _STATISTICS),
        )
    lines: list[RenderableType] = [
        Text(simulated_notice([record]), style="bold yellow"),
        Text(heading),
        Text(),
        fact_table(_facts(record.results)),
        table,
    ]
    if record.results["server"]["itl_is_tpot"]:
        lines.append(Text(_MEAN_GAPS))
    if record.results["server"]["saturated"]:
        lines.append(Text(_SATURATED, style="bold"))
    lines += [
        Text(line) for line in (*price_lines([record]), *constraint_lines(record, constraints))
    ]
    return Group(*lines)


_MEAN_GAPS = (
    "with this many requests only the first and the last token are timed: each ITL is a request's "
    "mean gap"
)
_SATURATED = (
    "SATURATED: requests came faster than they were served, so these latencies grow with "
    "the length of the run and describe no steady state"
)


def _facts(results: JsonObject) -> Iterator[tuple[str, str]]:
    server = results["server"]
    unfinished = server["unfinished"]
    yield (
        "requests",
        f"{results['completed']:,} answered in {format_seconds(results['duration'])}"
        + (f", {unfinished:,} on their way when the run was stopped" if unfinished else ""),
    )
    for name in _RATES:
        value = quantity_value(results, name)
        if value is not None:
            yield QUANTITIES[name].title.lower(), shown(value, QUANTITIES[name].unit)
    cost = quantity_value(results, "cost_per_million_tokens")
    if cost is not None:
        yield "cost per million output tokens", shown(cost, "USD")
    concurrency = results["concurrency"]
    if concurrency is not None and not server["saturated"]:  # it would not include the backlog
        yield "requests in flight, mean", f"{concurrency:.3g}"
    yield "KV cache at its fullest", shown(server["kv_peak_fraction"], "fraction")
    if server["cached_fraction"]:
        yield "prompt tokens found in the cache", shown(server["cached_fraction"], "fraction")
    yield "preemptions", f"{server['preemptions']:,}"
    yield "engine busy", shown(server["busy_fraction"], "fraction")
    yield "saturated", "yes" if server["saturated"] else "no"
