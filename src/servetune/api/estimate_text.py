"""Text of an estimate of one plan: model, splits, roofline, limits, commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from servetune.api.wording import (
    basis_text,
    confidence_text,
    factors_text,
    heading_text,
    keeping_up_text,
    miss_text,
    order_text,
    times_texts,
    wrap,
)
from servetune.hardware import Node
from servetune.metrics import LATENCIES, parse_constraints, value_of
from servetune.models import NetworkShape
from servetune.perf.roofline import (
    CLOSED_LOOP_NOTES,
    REQUESTS_OF_A_RATE,
    Estimate,
    Interval,
    OperatingPoint,
    Phase,
)
from servetune.plan import Plan
from servetune.units import (
    MS_PER_S,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_usd,
)

if TYPE_CHECKING:
    from servetune.api.estimate_load import HeldLoad
    from servetune.api.estimate_results import Estimation

#: Operations named of each step; the plot and --json have all.
_PARTS_NAMED = 3
_SIDES = {"compute": "compute", "memory": "memory", "link": "link", "host": "not the device"}


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One way to lay the model over all devices, priced.

    Attributes:
        as_good: Whether it may be as good as the best of the machine's splits, from which
            predictions do not tell it apart; `None` where it does not fit.
    """

    plan: Plan
    answer: Estimate
    as_good: bool | None = None


def estimate_text(found: Estimation, *, emphasis: Callable[[str], str] = str) -> Iterator[str]:
    """Lines of an estimate, at most 80 columns wide where names and commands allow.

    Args:
        found: The estimate.
        emphasis: Style of the chosen split's line, such as bold on a terminal.
    """
    best, node, shape = found.chosen, found.node, found.shown.shape
    answer = best.answer
    yield heading_text(shape, node.label, found.workload)
    yield ""
    yield from _model_text(best, shape)
    yield from _price_text(node)
    yield ""
    yield from _splits_text(found, emphasis)
    yield ""
    yield from _load_text(found, emphasis)
    yield ""
    yield from _roofline_text(answer)
    yield ""
    yield from _limits_text(answer)
    yield ""
    if found.shown.limited:
        yield from _constraints_text(found.constraints, found.shown.concurrency)
        yield ""
    interval = _interval_of_text(found)
    known = "" if interval.calibrated else ", not calibrated on this machine"
    yield from wrap(f"{factors_text(interval)}{known}: {basis_text(interval)}")
    yield from wrap(f"Accuracy: {interval.accuracy.sentence}")
    yield from wrap(found.release.sentence)
    for note in answer.notes:
        if found.shown.rate is None or note not in CLOSED_LOOP_NOTES:
            yield from wrap(f"  - {note}", subsequent_indent="    ")
    if found.tune_commands:
        yield ""
        yield "Commands to try it"
    for name, command in found.tune_commands.items():
        yield f"  # {name}"
        yield f"  {command}"


def _interval_of_text(found: Estimation) -> Interval:
    """Interval of the load that is shown alone, else of the chosen split.

    Of several loads first tokens have the widest: how far down theirs reaches depends on how many
    users would be out of step.
    """
    for point, interval in zip(found.curve, found.intervals, strict=True):
        if point.concurrency == found.shown.concurrency:
            return interval
    return msgspec.structs.replace(
        found.chosen.answer.interval,
        ttft_low_factor=min(each.ttft_low_factor for each in found.intervals),
        ttft_high_factor=max(each.ttft_high_factor for each in found.intervals),
    )


def e2e_ends_s(
    point: OperatingPoint, interval: Interval, alone: OperatingPoint
) -> tuple[float, float]:
    """Ends of the end-to-end latency that nine of ten runs are expected between, in seconds.

    The interval's factors are those of answers of many tokens. Of short ones the first token is
    much of the time: its doubt and that of the others are joined as independent ones, where this
    is wider. Users who queue wait for others' answers, so that of their time the first token has
    no more than its share for a user alone.

    Args:
        point: Steady state.
        interval: Its interval.
        alone: Steady state of one user.
    """
    e2e, first = point.e2e_ms, point.ttft_ms
    if point.queued:
        first = min(first, e2e * alone.ttft_ms / alone.e2e_ms)

    def reach(own: float, of_first: float) -> float:
        """Distance to an end, by its factors on times and on first tokens."""
        joined = math.hypot(first * (of_first - 1), (e2e - first) * (own - 1))
        return max(e2e * abs(own - 1), joined)

    low = e2e - reach(interval.low_factor, interval.ttft_low_factor)
    high = e2e + reach(interval.high_factor, interval.ttft_high_factor)
    return low / MS_PER_S, high / MS_PER_S


def price_text(node: Node) -> str:
    """Price of a machine per hour and whose it is, in words."""
    price = node.price
    if price is None:
        return "none known; give --price-per-hour, or --instance or --service for a rented machine"
    dated = ", ".join(part for part in (price.region, price.date) if part)
    source = f"{price.source}, {dated}" if dated else price.source
    return f"{format_usd(price.usd_per_hour)} per hour ({source})"


def _price_text(node: Node) -> Iterator[str]:
    yield from wrap(f"  price                 {price_text(node)}", subsequent_indent=" " * 24)
    if node.price is not None:
        gb_per_s = node.device_count * node.device.memory_bytes_per_s / 1e9
        usd = node.price.usd_per_hour / gb_per_s
        yield (
            f"  memory bandwidth      {gb_per_s:,.0f} GB/s in all: "
            f"${usd * 1000:.3g} per hour for 1,000 GB/s"
        )


def _model_text(best: Split, shape: NetworkShape) -> Iterator[str]:
    answer, memory = best.answer, best.answer.memory
    longest = best.plan.max_model_len or shape.max_context_tokens
    yield "Model and memory"
    active = (
        f", {format_count(answer.active_parameters)} active per token"
        if answer.active_parameters != answer.parameters
        else ""
    )
    yield f"  parameters            {format_count(answer.parameters)}{active}"
    yield f"  weights               {format_bytes(answer.weight_bytes)}"
    yield f"  KV cache              {format_bytes(answer.kv_bytes_per_token)} per token"
    yield (
        f"  per GPU               {format_bytes(memory.weights_bytes)} weights + "
        f"{format_bytes(memory.reserved_bytes)} reserved"
    )
    yield (
        f"                        + {format_bytes(memory.kv_cache_bytes)} "
        f"cache of {format_bytes(memory.device_bytes)}"
    )
    if memory.most_sequences is not None:
        yield (
            f"                        + {format_bytes(memory.state_pool_bytes)} "
            f"for the states of {memory.most_sequences:,} sequences"
        )
    if answer.cached_fraction:
        yield f"  prefix cache          has {answer.cached_fraction:.0%} of the prompts' tokens"
    yield (f"  fit                   yes: the cache of one copy holds {memory.kv_tokens:,} tokens")
    yield f"                        (longest sequence {longest:,})"


def _splits_text(found: Estimation, emphasis: Callable[[str], str]) -> Iterator[str]:
    splits, best = found.splits, found.chosen
    yield "Best latency (one user) and best throughput, for every split of the GPUs"
    yield ("  plan        TTFT      ITL      E2E      | users  out tok/s  ITL       $/M tok")
    for split in splits:
        mark = "*" if split is best else " "
        latency, busy = split.answer.best_latency, split.answer.best_throughput
        if latency is None or busy is None:
            yield from wrap(
                f"  {_layout(split.plan):<10}{mark} does not fit: {split.answer.misfit}",
                subsequent_indent=" " * 14,
            )
            continue
        cost = format_usd(split.answer.cost_per_million_output_tokens_usd)
        line = (
            f"  {_layout(split.plan):<10}{mark} {_times(latency)}| {busy.concurrency:>5}  "
            f"{format_rate(busy.output_tokens_per_s):>9}  {times_texts(busy)[1]:<9} {cost:>7}"
        )
        yield emphasis(line) if split is best else line
    whole = any(split.plan.expert_parallel for split in splits)
    yield "  * the details below are of this one; xN: that many copies side by side"
    if whole:
        yield "  EP: experts whole, as their columns do not divide"
    fitting = [best, *(split for split in splits if split.answer.fits and split is not best)]
    if len(fitting) > 1:
        names = [_layout(split.plan) for split in fitting]
        text = order_text(names, [split.as_good for split in fitting])
        yield from wrap(f"  {text}", subsequent_indent="  ")


def _layout(plan: Plan) -> str:
    return (
        f"TP{plan.tensor_parallel}"
        + (f" PP{plan.pipeline_parallel}" if plan.pipeline_parallel > 1 else "")
        + (" EP" if plan.expert_parallel else "")
        + (f" x{plan.replicas}" if plan.replicas > 1 else "")
    )


def _times(point: OperatingPoint) -> str:
    ttft, itl, e2e = times_texts(point)
    return f"{ttft:<9} {itl:<8} {e2e:<9}"


def _load_text(found: Estimation, emphasis: Callable[[str], str]) -> Iterator[str]:
    """Steady states of the chosen split by number of users, each with its own interval."""
    plan, node = found.chosen.plan, found.node
    shown, alone = found.shown.concurrency, found.chosen.answer.best_latency
    assert alone is not None
    yield f"Load on {_layout(plan)}, with the E2E that nine of ten runs are expected between"
    yield " users out tok/s  req/s  TTFT      ITL      E2E       between            $/M tok"
    names = found.load_names
    for point, interval in zip(found.curve, found.intervals, strict=True):
        if shown is not None and point.concurrency != shown:
            continue
        low_s, high_s = e2e_ends_s(point, interval, alone)
        between = f"{low_s:.3g} to {high_s:.3g} s"
        times = f"{_times(point)} {between}"
        cost = format_usd(node.cost_per_million_tokens_usd(point.output_tokens_per_s))
        line = (
            f"{point.concurrency:>6} {format_rate(point.output_tokens_per_s):>9} "
            f"{format_rate(point.requests_per_s):>6}  {times:<46} {cost:>8}"
        )
        yield emphasis(line) if point.concurrency in names.values() else line
    for name, users in names.items():
        yield f"  {name:<22}{users:,} users"
    if found.shown.rate is not None:
        yield from wrap(f"  {_at_the_rate(found, found.shown.rate)}", subsequent_indent="  ")
        best = found.chosen.answer.best_throughput
        most_per_s = math.inf if best is None else best.requests_per_s
        doubt = keeping_up_text(found.shown.rate, most_per_s, _interval_of_text(found))
        yield from wrap(f"  {doubt}", subsequent_indent="  ")


def _at_the_rate(found: Estimation, rate_per_s: float) -> str:
    """Load at a rate, which may keep no whole number of users in flight."""
    point = found.shown_point
    usd = found.node.cost_per_million_tokens_usd(point.output_tokens_per_s)
    cost = "" if usd is None else f", {format_usd(usd)} per million output tokens"
    return (
        f"{rate_per_s:g} requests/s keep {found.in_flight:.3g} in flight: "
        f"{format_rate(point.output_tokens_per_s)} output tok/s{cost}; the times are of "
        f"{REQUESTS_OF_A_RATE:,} requests that come by chance"
    )


def binding(phase: Phase) -> str:
    """What a step waits for: a side of the roof, or other devices where that is most of it."""
    return "the link between devices" if phase.agreement_fraction > 0.5 else phase.bound


def _roofline_text(answer: Estimate) -> Iterator[str]:
    roofline = answer.roofline
    assert roofline is not None
    ridges = ", ".join(
        f"{dtype} {ridge:.0f}" for dtype, ridge in roofline.ridge_flops_per_byte.items()
    )
    yield "Roofline (FLOP per byte)"
    yield f"  ridge point           {ridges}"
    for name, phase in (
        ("prefill", roofline.prefill),
        ("decode, one request", roofline.decode),
        ("decode, best batch", roofline.decode_at_best),
    ):
        yield f"  {name:<21} {phase.flops_per_byte:,.4g}: bound by {binding(phase)}"
        largest = ", ".join(
            f"{part.name} {part.share_fraction:.0%} ({_SIDES[part.side]})"
            for part in phase.parts[:_PARTS_NAMED]
        )
        step = f"{format_seconds(phase.step_ms / MS_PER_S)} a step: {largest}"
        yield from wrap(f"{'':<24}{step}", subsequent_indent=" " * 24)
    yield f"  critical batch size   {roofline.critical_batch:.0f} sequences"


def _limits_text(answer: Estimate) -> Iterator[str]:
    limits = answer.limits
    assert limits is not None
    yield "Concurrency limits, all copies together"
    yield (
        f"  memory                {limits.memory:,} of the longest requests "
        f"({limits.memory_mean:,} of mean context)"
    )
    yield (
        f"  prefill               {limits.prefill:,} prompts at once answer within "
        f"{limits.ttft_limit_ms:.0f} ms;"
    )
    yield f"{'':24}{format_rate(limits.prefill_requests_per_s)} prompts/s at most"
    yield (
        f"  decode                {limits.decode:,} sequences keep ITL within "
        f"{limits.itl_limit_ms:.0f} ms"
    )
    yield f"  scheduler             {limits.scheduler:,} (max_num_seqs)"
    yield f"  overall               {limits.overall:,}, bound by {limits.binding}"


def _constraints_text(held: HeldLoad, stated: int | None) -> Iterator[str]:
    """Load that holds the constraints, what the stated one misses, and how they were judged.

    Args:
        held: The load.
        stated: Number of users that was asked for, if any.
    """
    yield "Under the constraints"
    labels = ", ".join([*held.judged, *held.by_simulation])
    point, rate = held.point, held.rate_per_s
    if point is not None:
        gap = f"ITL {point.itl_ms:.1f} ms, " if point.itl_ms else ""
        holds = f"concurrency {point.concurrency} holds" if rate is None else f"{_rate(rate)} hold"
        yield from wrap(
            f"  {holds} {labels}: "
            f"{format_rate(point.output_tokens_per_s)} output tokens/s, "
            f"TTFT {point.ttft_ms:.0f} ms, {gap}"
            f"end-to-end {format_seconds(point.e2e_ms / MS_PER_S)} on average",
            subsequent_indent="  ",
        )
    elif rate is None:
        yield from wrap(f"  no concurrency holds {labels}", subsequent_indent="  ")
    load = _rate(rate) if rate is not None else f"concurrency {stated}"
    for miss in held.missed:
        verb = "misses" if rate is None else "miss"
        text = miss_text(miss, held.caution.confidence)
        yield from wrap(f"  {load} {verb} {text}", subsequent_indent="  ")
    if held.by_simulation and (rate is None or held.results is not None):
        runs = "simulated runs" if rate is None else f"a simulated run of {_rate(rate)}"
        values = _simulated_values(held) if rate is not None and not held.missed else ""
        yield from wrap(
            f"  {', '.join(held.by_simulation)}: judged by {runs}, because a formula "
            f"gives means only{values}",
            subsequent_indent="  ",
        )
    yield from wrap(f"  {confidence_text([held.caution])}", subsequent_indent="  ")


def _simulated_values(held: HeldLoad) -> str:
    """Values of the simulated run that the constraints judged, in words."""
    values = []
    for limit in parse_constraints(";".join(held.by_simulation)):
        value = value_of(held.results or {}, limit.metric, limit.statistic)
        if value is not None:
            latency = limit.metric in LATENCIES
            shown = format_seconds(value / MS_PER_S) if latency else f"{value:.3g}"
            values.append(
                f"{limit.metric}:{limit.statistic} {shown}"
                if latency
                else f"{limit.metric} {shown}"
            )
    return f": {', '.join(values)}" if values else ""


def _rate(per_s: float) -> str:
    return f"{per_s:g} requests/s"
