"""Text of an estimate of one plan: model, splits, roofline, limits, commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from servetune.api.choosing import confidence_text, heading_text, times_texts
from servetune.hardware import Node
from servetune.models import NetworkShape
from servetune.perf.roofline import Estimate, OperatingPoint, Phase
from servetune.plan import Plan
from servetune.units import (
    MS_PER_S,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    format_usd,
)
from servetune.workload import Workload

#: Operations named of each step; the plot and --json have all.
_PARTS_NAMED = 3
_SIDES = {"compute": "compute", "memory": "memory", "link": "link", "host": "not the device"}


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """One way to lay the model over all devices, priced."""

    plan: Plan
    answer: Estimate


def estimate_text(
    best: Split,
    splits: Sequence[Split],
    node: Node,
    shape: NetworkShape,
    workload: Workload,
    checked: Mapping[str, Any] | None,
    commands: Mapping[str, str],
) -> Iterator[str]:
    """Line by line, for a reader.

    Args:
        best: The split that the details are of.
        splits: All of them.
        node: The machine.
        shape: The network.
        workload: What is asked.
        checked: How the constraints stand, if there are any.
        commands: To paste, by name.
    """
    answer = best.answer
    yield heading_text(shape, node.label, workload)
    yield ""
    yield from _model_text(best, shape)
    yield ""
    yield from _splits_text(splits, best)
    yield ""
    yield from _roofline_text(answer)
    yield ""
    yield from _limits_text(answer)
    yield ""
    if checked is not None:
        yield from _constraints_text(checked, commands)
        yield ""
    interval = answer.interval
    known = "" if interval.calibrated else ", not calibrated on this machine"
    yield (
        f"Times and rates within a factor of {interval.low_factor:.3g} to "
        f"{interval.high_factor:.3g}{known}: {interval.basis}"
    )
    for note in answer.notes:
        yield f"  - {note}"
    if commands:
        yield ""
        yield "Commands to try it"
    for name, command in commands.items():
        yield f"  # {name}"
        yield f"  {command}"


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
        f"{format_bytes(memory.reserved_bytes)} reserved + {format_bytes(memory.kv_cache_bytes)} "
        f"cache of {format_bytes(memory.device_bytes)}"
    )
    yield (
        f"  fit                   yes: the cache of one copy holds {memory.kv_tokens:,} tokens "
        f"(longest sequence {longest:,})"
    )


def _splits_text(splits: Sequence[Split], best: Split) -> Iterator[str]:
    yield "Best latency (one request) and best throughput, for every split of the GPUs"
    yield (
        "  plan        TTFT      ITL       E2E        | concurrency  out tok/s  req/s   "
        "TTFT      ITL       E2E        $/M tokens"
    )
    for split in splits:
        plan = (
            f"TP{split.plan.tensor_parallel}"
            + (" EP" if split.plan.expert_parallel else "")
            + (f" x{split.plan.replicas}" if split.plan.replicas > 1 else "")
        )
        mark = "*" if split is best else " "
        latency, busy = split.answer.best_latency, split.answer.best_throughput
        if latency is None or busy is None:
            yield f"  {plan:<10}{mark} does not fit: {split.answer.misfit}"
            continue
        yield (
            f"  {plan:<10}{mark} {_times(latency)} | {busy.concurrency:>11}  "
            f"{format_rate(busy.output_tokens_per_s):>9}  {format_rate(busy.requests_per_s):>5}   "
            f"{_times(busy)} {format_usd(split.answer.cost_per_million_output_tokens_usd):>10}"
        )
    whole = any(split.plan.expert_parallel for split in splits)
    yield "  * the details below are of this one; xN: that many copies side by side" + (
        "; EP: experts whole, as their columns do not divide" if whole else ""
    )


def _times(point: OperatingPoint) -> str:
    ttft, itl, e2e = times_texts(point)
    return f"{ttft:<9} {itl:<9} {e2e:<10}"


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
        yield f"  {'':<21} {format_seconds(phase.step_ms / MS_PER_S)} a step: {largest}"
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
        f"{limits.ttft_limit_ms:.0f} ms; "
        f"{format_rate(limits.prefill_requests_per_s)} prompts/s at most"
    )
    yield (
        f"  decode                {limits.decode:,} sequences keep ITL within "
        f"{limits.itl_limit_ms:.0f} ms"
    )
    yield f"  scheduler             {limits.scheduler:,} (max_num_seqs)"
    yield f"  overall               {limits.overall:,}, bound by {limits.binding}"


def _constraints_text(checked: Mapping[str, Any], commands: Mapping[str, str]) -> Iterator[str]:
    yield "Under the constraints"
    if checked["judged"]:
        point = checked.get("point")
        labels = ", ".join(checked["judged"])
        if point is None:
            yield f"  no concurrency holds {labels} in the steady state"
        else:
            gap = f"ITL {point.itl_ms:.1f} ms, " if point.itl_ms else ""
            yield (
                f"  concurrency {point.concurrency} holds {labels} on average: "
                f"{format_rate(point.output_tokens_per_s)} output tokens/s, "
                f"TTFT {point.ttft_ms:.0f} ms, {gap}"
                f"end-to-end {format_seconds(point.e2e_ms / MS_PER_S)}"
            )
        yield f"  {confidence_text([checked['caution']])}"
    if checked["by_simulation_only"]:
        labels = ", ".join(checked["by_simulation_only"])
        judge = "servetune simulate"
        if commands:
            judge = f"the {'simulation' if 'drafting' in commands else 'simulated sweep'} below"
        yield f"  {labels}: a formula gives means only; {judge} judges it"
