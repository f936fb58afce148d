"""A run of load for the terminal: latencies with their certainty, rates, failures, verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.metrics import Constraint
from servetune.report.quantities import QUANTITIES, quantity_value, shown
from servetune.report.ranking import standing_of
from servetune.report.tables import simulated_line
from servetune.store.schema import TrialRecord
from servetune.units import format_seconds

__all__ = ["bench_table"]

_LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
_STATISTICS = ("mean", "p50", "p90", "p99")
_RATES = ("output_throughput", "input_throughput", "request_throughput", "goodput")


def bench_table(record: TrialRecord, constraints: tuple[Constraint, ...]) -> RenderableType:
    """The whole of one run of load on servers that were there already.

    Args:
        record: Of the run, whole or not.
        constraints: Judged below the figures.
    """
    results = record.results
    lines: list[RenderableType] = []
    if record.simulated:
        lines += [Text(simulated_line([record]), style="bold yellow")]
    lines += [Text(_heading(record)), Text()]
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, said in _facts(results):
        facts.add_row(name, Text(said))
    lines += [facts, _latency_table("latency, from due", results)]
    if (steady := _steady_table(results)) is not None:
        lines += steady
    lines += [Text(said) for said in _failures(results)]
    lines += [Text(said, style="bold") for said in _verdicts(results)]
    lines += [Text(said) for said in _standing(record, constraints)]
    return Group(*lines)


def _heading(record: TrialRecord) -> str:
    urls = ", ".join(record.metadata.get("urls", ()))
    return f"{record.metadata.get('model_tag', '')} at {urls}"


def _latency_table(title: str, results: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, no_wrap=True)
    for head in _STATISTICS:
        table.add_column(head, justify="right", no_wrap=True)
    intervals = results.get("intervals") or {}
    for name in _LATENCIES:
        cells = []
        for statistic in _STATISTICS:
            value = quantity_value(results, name, statistic)
            field = f"{'median' if statistic == 'p50' else statistic}_{name}_ms"
            cells.append(shown(value, "ms") + _spread(intervals.get(field), value))
        table.add_row(QUANTITIES[name].title, *cells)
    return table


def _spread(interval: Any, value: float | None) -> str:
    """Half of an interval's width, in percent of the value."""
    if not interval or None in interval or not value:
        return ""
    half = (interval[1] - interval[0]) / 2
    return f" ±{half / value:.0%}"


def _facts(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    asked = results["completed"] + results["failed"]
    yield (
        "requests",
        f"{results['completed']:,} of {asked:,} answered in {format_seconds(results['duration'])}"
        + (f", {results['not_sent']:,} were never due" if results.get("not_sent") else ""),
    )
    for name in _RATES:
        value = quantity_value(results, name)
        if value is not None:
            yield QUANTITIES[name].title.lower(), shown(value, QUANTITIES[name].unit)
    yield (
        "tokens",
        f"{results['total_input_tokens']:,} in, {results['total_output_tokens']:,} out",
    )
    if results.get("concurrency") is not None:
        yield "requests in flight, mean", f"{results['concurrency']:.3g}"
    wait = results.get("mean_wait_before_send_ms")
    if wait is not None:
        yield "wait before send", f"{shown(wait, 'ms')} on average"
    server = results.get("server") or {}
    for name, title in _SERVER_FACTS.items():
        if server.get(name) is not None:
            yield title, f"{server[name]:,.4g}"


_SERVER_FACTS = {
    "max_running_count": "server: most running",
    "max_waiting_count": "server: most waiting",
    "max_kv_usage_fraction": "server: KV cache at its fullest",
    "preemption_count": "server: preemptions",
    "energy_j": "server: energy, J",
}


def _steady_table(results: Mapping[str, Any]) -> list[RenderableType] | None:
    steady = results.get("steady") or {}
    if not steady.get("settled", False):
        reason = steady.get("reason")
        return [Text(f"no steady state: {reason}")] if reason else None
    rate = steady.get("output_throughput")
    words = (
        f"steady from {steady['start_s']:.3g} s to {steady['end_s']:.3g} s"
        + (f": {rate:,.4g} output tokens/s" if rate else "")
        + _shown_latency(steady, "ttft")
        + _shown_latency(steady, "tpot")
    )
    return [Text(words)]


def _shown_latency(steady: Mapping[str, Any], name: str) -> str:
    value = steady.get(f"mean_{name}_ms")
    return f", mean {QUANTITIES[name].title} {shown(value, 'ms')}" if value else ""


def _failures(results: Mapping[str, Any]) -> Iterator[str]:
    for failure in results["failures"]:
        yield f"FAILED {failure['count']:,} x {failure['outcome']}: {failure['sample']}"
    wrong = results.get("wrong_length") or {}
    if wrong.get("count"):
        yield f"{wrong['count']:,} answers have another length than asked"


def _verdicts(results: Mapping[str, Any]) -> Iterator[str]:
    for name in ("aborted_reason", "ended_reason"):
        if results.get(name):
            yield f"ended early: {results[name]}"
    if results.get("interrupted"):
        yield "INTERRUPTED: these figures are of what was measured until then"
    saturation = results.get("saturation")
    if saturation and saturation["saturated"]:
        yield f"SATURATED: {saturation['words']}"
    yield str(results["instrument"]["verdict"])


def _standing(record: TrialRecord, constraints: tuple[Constraint, ...]) -> Iterator[str]:
    standing = standing_of(record, constraints)
    for word, limits in (
        ("holds", standing.met),
        ("MISSES", standing.missed),
        ("not known:", standing.unknown),
    ):
        for limit in limits:
            quantity = QUANTITIES[limit.metric]
            value = quantity_value(record.results, limit.metric, limit.statistic)
            yield f"{word} {limit.label}: {shown(value, quantity.unit)}"
