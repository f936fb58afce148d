"""Load runs of one server at several levels: table, knee, and the largest level within limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from servetune.metrics import MAX_WRONG_LENGTH, Acceptance, Constraint
from servetune.report.quantities import quantity_value, shown
from servetune.report.ranking import check_constraints
from servetune.report.tables import simulated_notice
from servetune.search import exceeds_error_tolerance
from servetune.search.knee import LoadLevel, knees
from servetune.store.schema import TrialRecord
from servetune.units import format_rate


def level_of(record: TrialRecord) -> tuple[float, str]:
    """Offered load of a run, and its name: requests per second, else users."""
    rate = record.config.client_args.get("request_rate")
    if rate is not None:
        return float(rate), f"{float(rate):g}/s"
    users = int(record.config.client_args["max_concurrency"])
    return float(users), f"{users:,}"


def knee(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The run with the largest ratio of output throughput to mean end-to-end latency.

    Beyond it latency grows faster than throughput; the same rule as that of an estimate.
    """

    def power(record: TrialRecord) -> float:
        latency_ms = quantity_value(record.results, "e2e_latency")
        return (quantity_value(record.results, "output_throughput") or 0.0) / (
            latency_ms or float("inf")
        )

    return max(_whole(records), key=power, default=None)


def largest(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...]
) -> TrialRecord | None:
    """The run of the largest load that meets every constraint; `None` without one, or limits."""
    good = [
        record
        for record in _whole(records)
        if constraints
        and check_constraints(record, constraints).meets_all
        and not exceeds_error_tolerance(record.results, constraints)
        and _other_work(record, constraints) is None
    ]
    return max(good, key=lambda record: level_of(record)[0], default=None)


def _other_work(record: TrialRecord, constraints: tuple[Constraint, ...]) -> str | None:
    """Reason why a level is not compared: too many answers of another length than requested."""
    results = record.results
    refusal = Acceptance(wrong_length_rate=MAX_WRONG_LENGTH).refusal(results, constraints)
    if refusal is None or refusal.kind != "wrong_length":
        return None
    wrong = results["wrong_length"]
    return (
        f"{wrong['count']:,} of {results['completed']:,} answers have another length than "
        f"requested, such as {wrong['samples'][0]}"
    )


def _whole(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Runs that ended well and were not interrupted."""
    return [each for each in records if each.status == "ok" and not each.results.get("interrupted")]


def levels_table(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...], *, asked: int
) -> RenderableType:
    """Report of several levels.

    Args:
        records: Records of the runs that ended, in order.
        constraints: Limits that each run is judged by.
        asked: Number of levels that were asked for.
    """
    paced = any("request_rate" in record.config.client_args for record in records)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    heads = ["rate" if paced else "users", "tok/s", "req/s"]
    heads += ["TTFT p50", "TTFT p99", "TPOT p50", "E2E p50", "failed"]
    for head in heads + ["limits"] * bool(constraints):
        table.add_column(head, justify="right", no_wrap=True)
    for record in records:
        table.add_row(*_row(record, constraints))
    lines: list[RenderableType] = []
    if any(record.simulated for record in records):
        lines.append(Text(simulated_notice(records), style="bold yellow"))
    lines.append(table)
    lines += [Text(line) for line in _conclusions(records, constraints, asked=asked)]
    return Group(*lines)


def _row(record: TrialRecord, constraints: tuple[Constraint, ...]) -> Iterator[str]:
    results = record.results
    yield level_of(record)[1]
    yield format_rate(quantity_value(results, "output_throughput"))
    yield format_rate(quantity_value(results, "request_throughput"))
    for name, statistic in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50")):
        yield shown(quantity_value(results, name, statistic), "ms")
    yield shown(quantity_value(results, "e2e_latency", "p50"), "ms")
    yield f"{results['failed']:,}"
    if constraints:
        yield "hold" if check_constraints(record, constraints).meets_all else "MISSED"


def _conclusions(
    records: Sequence[TrialRecord], constraints: tuple[Constraint, ...], *, asked: int
) -> Iterator[str]:
    for record in records:
        if record.results.get("interrupted"):
            yield f"INTERRUPTED at {level_of(record)[1]}: results up to the interruption"
        if record.failure is not None:
            yield f"FAILED at {level_of(record)[1]}: {record.failure.reason}"
        elif words := _other_work(record, constraints):
            yield f"NOT COMPARED at {level_of(record)[1]}: {words}"
        elif (record.results.get("saturation") or {}).get("saturated"):
            yield f"SATURATED at {level_of(record)[1]}: {record.results['saturation']['words']}"
    if len(records) < asked:
        yield f"{asked - len(records)} of {asked} levels did not run"
    best = knee(records)
    if best is not None and len(records) > 1:
        at_end = " (the largest that was tried)" if best is _most(records) else ""
        yield f"knee: {level_of(best)[1]}, the most throughput per latency{at_end}"
        others = [each for each in knees(_load_levels(records)) if each.load is not None]
        if others:
            yield f"knees {', '.join(each.text('{:,.3g}'.format) for each in others)}"
    if constraints:
        held = largest(records, constraints)
        labels = "; ".join(limit.label for limit in constraints)
        if held is None:
            yield f"no level is within {labels}"
        else:
            at_end = ", and more was not tried" if held is _most(records) else ""
            yield f"largest within {labels}: {level_of(held)[1]}{at_end}"


def _load_levels(records: Sequence[TrialRecord]) -> list[LoadLevel]:
    return [
        LoadLevel(load=level_of(record)[0], throughput=rate, latency=latency_ms)
        for record in _whole(records)
        if (rate := quantity_value(record.results, "request_throughput"))
        and (latency_ms := quantity_value(record.results, "e2e_latency"))
    ]


def _most(records: Sequence[TrialRecord]) -> TrialRecord:
    return max(records, key=lambda record: level_of(record)[0])
