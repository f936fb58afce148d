"""Terminal reports of one trial: a load run with intervals and verdicts, and a simulated trial.

Lines fit a terminal of 80 columns, except for error messages of servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.json_value import JsonObject
from servetune.metrics import Constraint, failure_name
from servetune.metrics.intervals import BATCHES
from servetune.metrics.results import ResultFields
from servetune.report.prices import price_lines
from servetune.report.quantities import QUANTITIES, quantity_value, shown
from servetune.report.ranking import constraint_lines
from servetune.report.tables import fact_table, simulated_notice
from servetune.store.schema import TrialRecord
from servetune.units import format_rate, format_seconds

_LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
_STATISTICS = ("mean", "median", "p90", "p99")
_SHOWN_FAILURES = 5
#: Scrapes before and after a run, which do not show the load during it.
_SCRAPES_AROUND = 2


def bench_table(record: TrialRecord, constraints: tuple[Constraint, ...]) -> RenderableType:
    """Report of one load run on running servers.

    Args:
        record: Record of the run, complete or not.
        constraints: Constraints to check below the figures.
    """
    results = record.results
    lines: list[RenderableType] = []
    if record.simulated:
        lines.append(Text(_simulated(results), style="bold yellow"))
    lines += [Text(_heading(record)), Text(), fact_table(_facts(record)), Text()]
    if results["completed"]:
        lines += [_latency_table(results), Text()]
        lines += [Text(line) for line in _steady(results)]
    for tool, figures in (results.get("compat") or {}).items():
        title = f"as {tool} defines and names them (--compat), in its units"
        lines += [Text(), Text(title, style="bold"), fact_table(_compat_rows(figures)), Text()]
    lines += [Text(line) for line in (*_failures(results), *_notes(results))]
    lines += [Text(line, style="bold") for line in (*_failure(record), *_verdicts(results))]
    lines += [Text(line) for line in constraint_lines(record, constraints)]
    return Group(*lines)


def _simulated(results: ResultFields) -> str:
    speed = results.get("simulated_speed")
    fast = f", {speed:g} times as fast as the engine" if speed not in (None, 1.0) else ""
    return f"SIMULATED: the server simulates an engine{fast}; no model ran"


def _heading(record: TrialRecord) -> str:
    urls = ", ".join(record.metadata.get("urls", ()))
    model = record.metadata.model or ""  # any text that the server returned
    return f"{''.join(filter(str.isprintable, model))} at {urls}"


def _facts(record: TrialRecord) -> Iterator[tuple[str, str]]:
    results = record.results
    total = results["completed"] + results["failed"]
    yield (
        "requests",
        f"{results['completed']:,} of {total:,} answered in {format_seconds(results['duration'])}",
    )
    if results["completed"]:
        yield (
            "throughput",
            _per_s(results, "output_throughput")
            + f" tokens/s out, {_per_s(results, 'input_throughput')} in; "
            + f"{_per_s(results, 'request_throughput')} requests/s",
        )
    if results.get("goodput") is not None:
        share = results.get("goodput_fraction")
        of_all = f", {share:.1%} of the requests" if share is not None else ""
        yield "goodput", f"{format_rate(results['goodput'])} requests/s within limits{of_all}"
    yield (
        "tokens",
        f"{results['total_input_tokens']:,} in, {results['total_output_tokens']:,} out",
    )
    if results["completed"] and results.get("concurrency") is not None:
        limit = results.get("max_concurrency")
        most = f", {limit:,} of them sent at most" if limit else ""
        yield "in system", f"{results['concurrency']:,.3g} requests on average{most}"
    wait = results.get("wait_before_send_ms") or {}
    if wait.get("mean") is not None:
        most = shown(wait["max"], "ms")
        yield "sent", f"{shown(wait['mean'], 'ms')} after due on average, {most} at worst"
    if alike := results.get("correlated"):
        yield "no ± for", f"{', '.join(QUANTITIES[name].short for name in alike)}: {_TOO_ALIKE}"
    if server := _server(results.get("server") or {}):
        yield "server", server
    seed = record.metadata.get("seed")
    if seed is not None:
        yield "seed", f"{seed}; --seed {seed} sends the same requests again"


#: Reason for which a latency has no interval, and what gives it one.
_TOO_ALIKE = (
    f"fewer than {BATCHES} independent stretches, as in a long queue: too correlated to tell; a "
    "longer run, or repeats, would"
)


def _per_s(results: ResultFields, name: str) -> str:
    return format_rate(quantity_value(results, name))


def _server(totals: ResultFields) -> str:
    """Metrics reported by the server and its GPUs, as far as available."""
    words = []
    watched = (totals.get("scrape_count") or 0) > _SCRAPES_AROUND
    for name, form, gauge in (
        ("max_running_count", "{:,} running at most", True),
        ("max_waiting_count", "{:,} waiting", True),
        ("max_kv_usage_fraction", "KV cache {:.1%}", True),
        ("preemption_count", "{:,} preemptions", False),
    ):
        if totals.get(name) is not None and (watched or not gauge):
            words.append(form.format(totals[name]))
    queries, hits = totals.get("prefix_queries_tokens"), totals.get("prefix_hits_tokens")
    if queries and hits:
        words.append(f"{hits / queries:.0%} of prompt tokens cached")
    if totals.get("mean_power_w") is not None:
        words.append(f"{totals['mean_power_w']:,.0f} W")
    if totals.get("energy_j") is not None:
        words.append(f"{totals['energy_j']:,.0f} J")
    return ", ".join(words)


# latencies


def _latency_table(results: ResultFields) -> Table:
    """Latency table; half of each 95 % interval's width follows the value."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("from due", no_wrap=True)
    for head in _STATISTICS:
        table.add_column(head, justify="right", no_wrap=True)
    intervals = results.get("intervals") or {}
    for name in _LATENCIES:
        values = [quantity_value(results, name, statistic) for statistic in _STATISTICS]
        if values[0] is None:  # an answer that did not stream has no first token
            continue
        cells = [
            shown(value, "ms") + _spread(intervals.get(f"{statistic}_{name}_ms"), value)
            for statistic, value in zip(_STATISTICS, values, strict=True)
        ]
        table.add_row(QUANTITIES[name].short, *cells)
    from_sent = results.get("from_sent") or {}
    for name in ("ttft", "e2e_latency"):
        sent = from_sent.get(f"{name}_ms") or {}
        if sent.get("mean") is not None:
            cells = [shown(sent.get(statistic), "ms") for statistic in _STATISTICS]
            table.add_row(f"{QUANTITIES[name].short} from sent", *cells)
    return table


def _spread(interval: Sequence[float | None] | None, value: float | None) -> str:
    """Half of an interval's width, in percent of the value: ` ±3.1%`."""
    low, high = interval or (None, None)
    if low is None or high is None or not value:
        return ""
    half = (high - low) / 2 / value
    return f" ±{half:.0%}" if half >= 0.0995 else f" ±{half:.1%}"


def _steady(results: ResultFields) -> Iterator[str]:
    steady = results.get("steady") or {}
    if not steady.get("settled", False):
        if steady.get("reason"):
            yield f"no steady state: {steady['reason']}"
        return
    rate = steady.get("output_throughput")
    means = [
        f"mean {QUANTITIES[name].short} {shown(steady[f'mean_{name}_ms'], 'ms')}"
        for name in ("ttft", "tpot")
        if steady.get(f"mean_{name}_ms")
    ]
    figures = ", ".join([f"{format_rate(rate)} tokens/s"] * bool(rate) + means)
    yield (
        f"steady from {steady['start_s']:.1f} s to {steady['end_s']:.1f} s"
        + (f": {figures}" if figures else "")
    )


#: Statistics that are printed of another tool's distributions, under whichever name it has.
_COMPAT_STATISTICS = ("avg", "mean", "p50", "p90", "p99")


def _compat_rows(figures: JsonObject, path: str = "") -> Iterator[tuple[str, str]]:
    """Figures by the other tool's names; of a distribution its most used statistics."""
    for name, value in figures.items():
        where = f"{path}{name}"
        if isinstance(value, dict):
            known = {**value, **value.get("percentiles", {})}
            shown_of = [each for each in _COMPAT_STATISTICS if each in known]
            if shown_of:
                unit = f" {value['unit']}" if "unit" in value else ""
                yield where, ", ".join(f"{each} {known[each]:.4g}" for each in shown_of) + unit
            else:
                yield from _compat_rows(value, f"{where}.")
        elif value is not None:
            yield where, f"{value:,.4g}" if isinstance(value, float) else f"{value}"


def _failure(record: TrialRecord) -> Iterator[str]:
    """Reason why a run with answers has failed, without the requests that are listed anyway."""
    if record.failure is not None and record.results["completed"]:
        yield f"FAILED: {record.failure.reason.partition(': ')[0]}"


def _failures(results: ResultFields) -> Iterator[str]:
    failures = results["failures"]
    for failure in failures[:_SHOWN_FAILURES]:
        kind = failure_name(failure) + _phrase(failure.get("status"))
        yield f"FAILED {failure['count']:,} x {kind}: {failure['sample']}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"FAILED in {len(failures) - _SHOWN_FAILURES} more ways; the record lists them"
    wrong = results.get("wrong_length") or {}
    if wrong.get("count"):
        yield f"{wrong['count']:,} answers do not have the requested length"


def _phrase(status: int | None) -> str:
    """Reason phrase of a status with a space before it; empty where it is not a known one."""
    with contextlib.suppress(ValueError):
        return f" {HTTPStatus(status).phrase}" if status else ""
    return ""


def _notes(results: ResultFields) -> Iterator[str]:
    prepared = results.get("prepared") or {}
    if prepared.get("exact") is False and prepared.get("template") != "none":
        yield "note: prompt lengths are approximate without the model's tokenizer and chat template"
        yield "      (--tokenizer); token counts are the server's, where it reports them"
    for note in prepared.get("notes") or ():
        yield f"note: {note}"


def _verdicts(results: ResultFields) -> Iterator[str]:
    if results.get("aborted_reason"):
        yield f"ABORTED: {results['aborted_reason']}{_unsent(results)}"
    saturated = (results.get("saturation") or {}).get("saturated")
    if saturated:
        yield f"SATURATED: {results['saturation']['words']}"
    ended = results.get("ended_reason")
    if ended and not (saturated and ended.startswith("saturated")):
        yield f"ended: {ended}"
    until = results.get("until")
    if until and not until["reached"]:
        yield f"NOT REACHED: {until['label']}{_precision(until)}; send more requests"
    if cached := _cached_unawares(results):
        yield cached
    if results.get("interrupted"):
        yield f"INTERRUPTED: results up to the interruption{_unsent(results)}"
    yield str(results["instrument"]["verdict"])


#: Share of prompt tokens, beyond those that requests share, that may be found in the cache.
_TOLERATED_CACHED = 0.05


def _cached_unawares(results: ResultFields) -> str:
    """Warning where the server had seen prompts that no requests of this run share."""
    totals = results.get("server") or {}
    queries, hits = totals.get("prefix_queries_tokens"), totals.get("prefix_hits_tokens")
    if not queries or hits is None:
        return ""
    shared = (results.get("prepared") or {}).get("hit_fraction") or 0.0
    if hits / queries <= shared + _TOLERATED_CACHED:
        return ""
    return (
        f"PREFIX CACHE: {hits / queries:.0%} of the prompt tokens were in the server's cache and "
        f"{shared:.0%} are shared by these requests: the server had seen the prompts, so TTFT is "
        "too short; without --seed each run has prompts of its own"
    )


def _unsent(results: ResultFields) -> str:
    return f"; {results['not_sent']:,} requests were not sent" if results.get("not_sent") else ""


def _precision(until: ResultFields) -> str:
    width = until.get("relative_half_width")
    return "" if width is None else f" (±{width:.1%} so far)"


_PERCENTILES = ("mean", "p50", "p90", "p99")
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
    for head in _PERCENTILES:
        table.add_column(head, justify="right", no_wrap=True)
    for name in _LATENCIES:
        table.add_row(
            QUANTITIES[name].title,
            *(shown(quantity_value(record.results, name, each), "ms") for each in _PERCENTILES),
        )
    lines: list[RenderableType] = [
        Text(simulated_notice([record]), style="bold yellow"),
        Text(heading),
        Text(),
        fact_table(_trial_facts(record.results)),
        table,
        *_stage_table(record.results),
        *(Text(line, style="bold red") for line in _failures(record.results)),
    ]
    if record.results["server"]["itl_is_tpot"]:
        lines.append(Text(_MEAN_GAPS))
    if record.results["server"]["saturated"]:
        lines.append(Text(_SATURATED, style="bold"))
    lines += [
        Text(line) for line in (*price_lines([record]), *constraint_lines(record, constraints))
    ]
    return Group(*lines)


_OF_STAGES = {
    "mean_ttft_ms": "TTFT",
    "p99_ttft_ms": "p99 TTFT",
    "mean_tpot_ms": "TPOT",
    "mean_e2e_ms": "E2E",
    "p99_e2e_ms": "p99 E2E",
}


def _stage_table(results: JsonObject) -> Iterator[RenderableType]:
    """Table of the steps of a rate, each with the requests that were due in it."""
    stages = results.get("stages")
    if not isinstance(stages, list) or not stages:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("due from", "req/s", "requests", "answered", *_OF_STAGES.values()):
        table.add_column(head, justify="right", no_wrap=True)
    for stage in stages:
        table.add_row(
            format_seconds(stage["begin_s"]) if stage["begin_s"] else "0 s",
            f"{stage['rate_per_s']:g}",
            f"{stage['requests']:,}",
            f"{stage['completed']:,}",
            *(shown(stage[name], "ms") for name in _OF_STAGES),
        )
    yield table


_MEAN_GAPS = (
    "with this many requests only the first and the last token are timed: each ITL is a request's "
    "mean gap"
)
_SATURATED = (
    "SATURATED: requests came faster than they were served, so these latencies grow with "
    "the length of the run and describe no steady state"
)


def _trial_facts(results: JsonObject) -> Iterator[tuple[str, str]]:
    server = results["server"]
    unfinished, failed = server["unfinished"], results["failed"]
    total = f" of {results['completed'] + failed:,}" if failed else ""
    yield (
        "requests",
        f"{results['completed']:,}{total} answered in {format_seconds(results['duration'])}"
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
