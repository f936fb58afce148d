"""Estimate of one plan by formula: whether it fits, its times and rates, and its limits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from servetune.engines import Memory, check_fits, check_parallel, engine, memory, resolved
from servetune.errors import DoesNotFit
from servetune.hardware.device import Device, Node
from servetune.models import counting
from servetune.models.quantization import effective_quantization
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.roofline.breakdown import StepPart, breakdown
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.drafting import acceptance_of, drafts_on_device, tokens_per_step
from servetune.perf.roofline.factors import (
    filter_cost,
    longest_answer_tokens,
    penalty_cost,
    run_coefficients,
)
from servetune.perf.roofline.interval import Interval, interval_of, stream_load
from servetune.perf.roofline.local_corrections import LocalCorrections
from servetune.perf.roofline.operations import ExpertsOp, MatrixOp, Step
from servetune.perf.roofline.steady_state import (
    LengthMoments,
    OperatingPoint,
    SteadyState,
    workload_moments,
)
from servetune.perf.roofline.step import StepLaw, emulated, product_dtype, step_law
from servetune.plan import Plan
from servetune.units import GB, MS_PER_S
from servetune.workload.workload import Workload

#: Usual limits of interactive use, by which the concurrency limits are stated.
TTFT_LIMIT_MS = 500.0
ITL_LIMIT_MS = 50.0
#: Share of the largest throughput whose smallest concurrency is called the best: more users
#: beyond the plateau add only latency.
_PLATEAU_FRACTION = 0.99
#: Rate from which one process of the HTTP front end may be the limit where the law has none.
_STREAMED_TOKENS_PER_S = 9_000
#: Share of what the front end streams at most from which it is named.
_STREAM_LOAD = 0.8


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of step under the roofline.

    Attributes:
        flops_per_byte: Intensity, FLOPs over bytes moved, on one device.
        bound: Resource that takes longer at the rates that kernels reach: `compute` or `memory`.
        agreement_fraction: Share of the step in which devices wait for each other's data;
            large where a slow link and not the roof decides.
        step_ms: Time of the whole step.
        parts: Parts of that time, the longest first.
    """

    flops_per_byte: float
    bound: str
    agreement_fraction: float
    step_ms: float
    parts: tuple[StepPart, ...]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a plan under the device's roofline.

    On paper a phase is bound by compute where its intensity is above the ridge point, peak
    FLOP/s over bytes/s. The critical batch is where a weight matrix changes sides in
    decode: 2 FLOPs per weight and sequence against `weight_width` bytes give
    B* = ridge * weight_width / 2.

    Attributes:
        math_dtype: Number format in which most weights are multiplied.
        ridge_flops_per_byte: Ridge point per dtype that the device multiplies.
        prefill: One mean prompt.
        decode: One sequence at its mean context.
        decode_at_best: The batch that runs at best throughput.
        critical_batch: B*.
    """

    math_dtype: str
    ridge_flops_per_byte: dict[str, float]
    prefill: Phase
    decode: Phase
    decode_at_best: Phase
    critical_batch: float


class ConcurrencyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency that each resource allows, all copies together.

    Attributes:
        memory: Sequences of the workload's longest request that fit the KV cache.
        memory_mean: Sequences of mean context that fit the KV cache.
        prefill: Prompts that may arrive together and still all begin to answer within
            `ttft_limit_ms`.
        prefill_requests_per_s: Prompts per second with steps full of prefill alone.
        decode: Sequences whose decode step stays within `itl_limit_ms`.
        scheduler: `max_num_seqs`.
        overall: The least of memory, decode and scheduler: requests that keep running.
        binding: Name of the smallest of the three.
    """

    memory: int
    memory_mean: int
    prefill: int
    prefill_requests_per_s: float
    decode: int
    scheduler: int
    overall: int
    binding: str
    ttft_limit_ms: float
    itl_limit_ms: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Expected performance of one plan for one workload on one node.

    Attributes:
        weight_bytes: Size of all weights before any split.
        memory: Memory of one device; see `engines.memory`.
        fits: Whether weights and the longest request fit; where not, `misfit` says why and
            all that depends on running is `None`.
        best_latency: One request in flight.
        best_throughput: The least concurrency that reaches 99% of the largest output rate.
        cached_fraction: Share of the prompts' tokens that the prefix cache has.
        cost_per_million_output_tokens_usd: Cost at best throughput: price per hour of the whole
            node / 3600 / output tokens per second * 1e6; `None` without a price.
        coefficients: Name of those used.
        notes: Facts to know before trusting a number.
    """

    model: str
    plan: str
    node: str
    parameters: int
    active_parameters: int
    weight_bytes: float
    kv_bytes_per_token: float
    memory: Memory
    fits: bool
    misfit: str | None
    best_latency: OperatingPoint | None
    best_throughput: OperatingPoint | None
    roofline: Roofline | None
    limits: ConcurrencyLimits | None
    cached_fraction: float | None
    cost_per_million_output_tokens_usd: float | None
    interval: Interval
    coefficients: str
    notes: tuple[str, ...]


def estimate(
    shape: NetworkShape,
    node: Node,
    plan: Plan,
    workload: Workload,
    *,
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
    ttft_limit_ms: float = TTFT_LIMIT_MS,
    itl_limit_ms: float = ITL_LIMIT_MS,
) -> Estimate:
    """Estimate a plan for a workload without running anything.

    Throughput and latencies are those of the steady state (`SteadyState`): prompts share
    steps with decode, requests beyond what fits wait.

    Args:
        shape: The network.
        node: Machine.
        plan: Fields that are `None` take the engine's defaults.
        workload: Workload whose lengths count; concurrency is searched.
        coefficients: Coefficients of the step law; the device's own if omitted.
        calibration: Calibration by measured runs of this model on this machine; it corrects steps
            and first tokens, each by its own factor at each number of users.
        ttft_limit_ms: Time to first token of the prefill limit.
        itl_limit_ms: Gap between tokens of the decode limit.

    Raises:
        PlanError: The plan contradicts itself or the model. A plan that only does not fit
            the memory is answered with `fits` false.
    """
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    chosen = coefficients or run_coefficients(node.device, filled, shape, workload)
    divided = memory(filled, shape, node.device)
    misfit = _misfit(filled, shape, node)
    moments = workload_moments(workload, filled, divided)
    best_latency = best_throughput = roofline = concurrency = cost_usd = here = None
    cached_fraction = None
    corrections = LocalCorrections(calibration, filled, shape, moments, node)
    if misfit is None:
        law = step_law(filled, shape, node, corrections.law(chosen))
        kv_tokens = divided.kv_tokens_at(moments.context_tokens)
        served = divided.served(filled)
        state = SteadyState(law, served, kv_tokens, moments)
        cached_fraction = state.cached_fraction
        best_latency = state.at(1, corrections.on(1))
        best_throughput = _best_throughput(state, served, corrections)
        here = corrections.at(best_throughput.concurrency)
        if here is not None:  # everything else is stated at the best throughput
            chosen = here.coefficients(chosen)
            law = step_law(filled, shape, node, chosen)
        first_token_factor = corrections.on(best_throughput.concurrency).first_token_factor
        roofline = _roofline(law, node.device, state, best_throughput, filled)
        concurrency = _concurrency_limits(
            law, filled, divided, state, ttft_limit_ms, itl_limit_ms, first_token_factor
        )
        cost_usd = node.cost_per_million_tokens_usd(best_throughput.output_tokens_per_s)
    streamed = best_throughput.output_tokens_per_s if best_throughput else 0.0
    return Estimate(
        model=shape.name,
        plan=plan.label,
        node=node.label,
        parameters=counting.parameter_count(shape),
        active_parameters=counting.active_parameter_count(shape),
        weight_bytes=counting.weight_bytes(shape, filled.quantization),
        kv_bytes_per_token=counting.kv_bytes_per_token(shape, filled.kv_cache_dtype or "auto"),
        memory=divided,
        fits=misfit is None,
        misfit=misfit,
        best_latency=best_latency,
        best_throughput=best_throughput,
        roofline=roofline,
        limits=concurrency,
        cached_fraction=cached_fraction,
        cost_per_million_output_tokens_usd=cost_usd,
        interval=interval_of(
            node,
            filled,
            shape,
            here or calibration,
            Ran(mixed=moments.mixed),
            output_tokens_per_s=streamed,
        ),
        coefficients=chosen.name,
        notes=(
            *_notes(plan, filled, node, moments, workload),
            *_storage_notes(filled, node.device, shape),
            *_front_notes(filled, node, streamed),
            *_sampling_notes(filled, node, shape, workload, chosen),
        ),
    )


def performance_at(
    shape: NetworkShape,
    node: Node,
    plan: Plan,
    workload: Workload,
    concurrency: int,
    *,
    coefficients: Coefficients | None = None,
    calibration: Calibration | None = None,
) -> OperatingPoint:
    """Steady state of a plan with `concurrency` requests in flight.

    Raises:
        PlanError: The plan does not fit the model or the machine.
    """
    filled = resolved(plan, shape, node.device)
    check_parallel(filled, shape, node)
    divided = check_fits(filled, shape, node.device, device_limit=node.device_count)
    moments = workload_moments(workload, filled, divided)
    corrections = LocalCorrections(calibration, filled, shape, moments, node)
    chosen = coefficients or run_coefficients(node.device, filled, shape, workload)
    law = step_law(filled, shape, node, corrections.law(chosen))
    kv_tokens = divided.kv_tokens_at(moments.context_tokens)
    state = SteadyState(law, divided.served(filled), kv_tokens, moments)
    return state.at(concurrency, corrections.on(concurrency))


def scattered_factor(
    plan: Plan, shape: NetworkShape, node: Node, workload: Workload, concurrency: int
) -> float:
    """Factor on first tokens of a long closed loop whose users do not stay in step.

    Args:
        plan: Plan that fits the machine.
        shape: Its network.
        node: Machine.
        workload: Lengths of the requests and what they share; only equal answers stay in step.
        concurrency: Users.
    """
    filled = resolved(plan, shape, node.device)
    divided = memory(filled, shape, node.device)
    moments = workload_moments(workload, filled, divided)
    if moments.output_spread_tokens:
        return 1.0
    law = step_law(filled, shape, node, run_coefficients(node.device, filled, shape, workload))
    kv_tokens = divided.kv_tokens_at(moments.context_tokens)
    return SteadyState(law, divided.served(filled), kv_tokens, moments).scattered(concurrency)


def _misfit(plan: Plan, shape: NetworkShape, node: Node) -> str | None:
    try:
        check_fits(plan, shape, node.device, device_limit=node.device_count)
    except DoesNotFit as error:
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return None


def _best_throughput(
    state: SteadyState, plan: Plan, corrections: LocalCorrections
) -> OperatingPoint:
    """Powers of two up to twice what the scheduler admits, then the foot of the plateau."""
    assert plan.max_num_seqs is not None

    def at(concurrency: int) -> OperatingPoint:
        return state.at(concurrency, corrections.on(concurrency))

    most = 2 * plan.max_num_seqs * plan.replicas * plan.data_parallel
    doublings = [at(1 << power) for power in range(most.bit_length())]
    plateau = _PLATEAU_FRACTION * max(point.output_tokens_per_s for point in doublings)
    first = next(point for point in doublings if point.output_tokens_per_s >= plateau)
    low, best = first.concurrency // 2, first
    while best.concurrency - low > 1:
        middle = at((low + best.concurrency) // 2)
        if middle.output_tokens_per_s >= plateau:
            best = middle
        else:
            low = middle.concurrency
    return best


def _roofline(
    law: StepLaw, device: Device, state: SteadyState, best: OperatingPoint, plan: Plan
) -> Roofline:
    ops, c, moments = law.ops, law.coefficients, state.moments
    kinds: list[tuple[float, MatrixOp | ExpertsOp]]
    kinds = [(op.count * op.flops_per_row, op) for op in ops.matrices if not op.logits_only]
    kinds += [(op.count * op.flops_per_token, op) for op in ops.experts]
    heaviest = max(kinds, key=lambda kind: kind[0])[1]
    rates = {
        "bf16": device.bf16_flops,
        "fp8": device.fp8_flops,
        "int8": device.int8_flops,
        "fp4": device.fp4_flops,
    }
    ridges = {name: rate / device.memory_bytes_per_s for name, rate in rates.items() if rate}
    math_dtype = product_dtype(heaviest, device)
    peak_flops = device.peak_flops(math_dtype)
    narrow = peak_flops > device.bf16_flops
    reached_flops = peak_flops * (
        c.gemm.compute_fraction_8bit if narrow else c.gemm.compute_fraction
    )
    reached_bytes_per_s = device.memory_bytes_per_s * c.gemm.memory_fraction

    def phase(law: StepLaw, step: Step) -> Phase:
        flops, moved_bytes = ops.flops(step), ops.moved_bytes(step)
        computes = flops / reached_flops >= moved_bytes / reached_bytes_per_s
        return Phase(
            flops_per_byte=flops / moved_bytes,
            bound="compute" if computes else "memory",
            agreement_fraction=law.agreement_s(step) / law(step),
            step_ms=law(step) * MS_PER_S,
            parts=breakdown(law, step, device),
        )

    def decode(law: StepLaw, sequences: int) -> Phase:
        context = sequences * moments.context_tokens
        return phase(
            law,
            Step(
                decode_sequences=sequences,
                decode_context_tokens=context,
                tokens_each=law.tokens_each,
            ),
        )

    engines, stages = plan.replicas * plan.data_parallel, plan.pipeline_parallel
    alone, busy = law.with_batches(1), law.with_batches(best.concurrency / engines)
    return Roofline(
        math_dtype=math_dtype if math_dtype in ridges else "bf16",
        ridge_flops_per_byte=ridges,
        prefill=phase(
            alone,
            Step(
                prefill_tokens=max(1, round(state.computed_tokens)),
                prefill_pairs=state.computed_pairs,
                prefill_sequences=1,
            ),
        ),
        decode=decode(alone, 1),
        decode_at_best=decode(busy, max(1, round(best.running / engines / stages))),
        critical_batch=peak_flops / device.memory_bytes_per_s * heaviest.weight_width_bytes / 2,
    )


def _concurrency_limits(
    law: StepLaw,
    plan: Plan,
    divided: Memory,
    state: SteadyState,
    ttft_limit_ms: float,
    itl_limit_ms: float,
    first_token_factor: float,
) -> ConcurrencyLimits:
    assert plan.max_num_seqs is not None
    assert plan.max_num_batched_tokens is not None
    moments, copies = state.moments, plan.replicas * plan.data_parallel
    stages = plan.pipeline_parallel  # each computes another batch
    prompts_per_step = max(1.0, plan.max_num_batched_tokens / state.computed_tokens)

    def prompts_s(prompts: float, law: StepLaw) -> float:
        return first_token_factor * law.seconds(
            prompts * state.computed_tokens, prompts * state.computed_pairs, prompts, 0, 0.0
        )

    full_step_s = prompts_s(prompts_per_step, law.with_batches(stages))

    def prefill_s(prompts: int) -> float:
        each = max(1.0, prompts / stages)
        if each > prompts_per_step:
            return full_step_s * each / prompts_per_step
        return prompts_s(each, law.with_batches(prompts))

    def decode_s(sequences: int) -> float:
        each = max(1.0, sequences / stages)
        flying = law.with_batches(sequences)
        step_s = flying.seconds(0, 0.0, 0, each, each * moments.context_tokens)
        return step_s / tokens_per_step(plan)

    kv_tokens = divided.kv_tokens_at(moments.context_tokens)

    def held(tokens_each: float) -> int:
        count = int(moments.sequences_in(kv_tokens, tokens_each))
        most = divided.most_sequences
        return count if most is None else min(count, most)

    spent_s = first_token_factor * law.coefficients.host.request_s
    holders = {
        "memory": held(moments.longest_tokens) * copies,
        "decode": _most(decode_s, itl_limit_ms / MS_PER_S) * copies,
        "scheduler": plan.max_num_seqs * copies,
    }
    binding = min(holders, key=lambda name: holders[name])
    return ConcurrencyLimits(
        memory=holders["memory"],
        memory_mean=held(moments.context_tokens) * copies,
        prefill=_most(prefill_s, ttft_limit_ms / MS_PER_S - spent_s) * copies,
        prefill_requests_per_s=prompts_per_step / full_step_s * stages * copies,
        decode=holders["decode"],
        scheduler=holders["scheduler"],
        overall=holders[binding],
        binding=binding,
        ttft_limit_ms=ttft_limit_ms,
        itl_limit_ms=itl_limit_ms,
    )


_MOST_COUNTED = 1 << 16


def _most(seconds_of: Callable[[int], float], limit_s: float) -> int:
    """Largest count, up to 65,536, whose rising `seconds_of` is within the limit."""
    low, high = 0, 1
    while high < _MOST_COUNTED and seconds_of(high) <= limit_s:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if seconds_of(middle) <= limit_s:
            low = middle
        else:
            high = middle
    return low


def _front_notes(plan: Plan, node: Node, output_tokens_per_s: float) -> tuple[str, ...]:
    """What the HTTP front end limits at the best throughput, or may limit."""
    front = engine(plan.engine).behaviour.front_end
    each = output_tokens_per_s * front.process_share(plan)
    each /= plan.replicas * plan.data_parallel * plan.pipeline_parallel
    load = stream_load(node, plan, output_tokens_per_s)
    if load:
        if load < _STREAM_LOAD:
            return ()
        found = f"the HTTP front end limits the best throughput: one process streams {each:,.0f} "
        found += "tokens/s there"
    else:
        if each < _STREAMED_TOKENS_PER_S:
            return ()
        found = f"one process of the HTTP front end streams {each:,.0f} tokens/s at the best "
        found += "throughput, which is not priced"
    measured = f" ({front.measured})" if front.measured else ""
    more = f"; raise {front.processes}" if front.processes else ""
    return (found + measured + more,)


def _storage_notes(plan: Plan, device: Device, shape: NetworkShape) -> tuple[str, ...]:
    """What engines do with weights that the device cannot multiply as they are stored."""
    stored = effective_quantization(shape.quantization, plan.quantization)
    if not any(emulated(part.scheme, device) for part in (stored, *stored.others)):
        return ()
    note = (
        f"nvfp4 on {device.name} is priced with products in 16 bits: AMD's fp4 units take MXFP4 "
        "alone; an engine that widens the weights of dense layers anew at each step is slower"
    )
    return (note,)


def _sampling_notes(
    plan: Plan, node: Node, shape: NetworkShape, workload: Workload, chosen: Coefficients
) -> tuple[str, ...]:
    """What keeping the likeliest tokens and penalties cost, where they are priced."""
    filtering = filter_cost(node.device, plan, workload)
    penalty = penalty_cost(node.device, plan, workload)
    bytes_per_s = node.device.memory_bytes_per_s * chosen.gemm.memory_fraction
    setting, found = engine(plan.engine).behaviour.sampling, []
    if filtering is not None:
        sequence_us = filtering.bytes_per_logit * shape.vocab / bytes_per_s * 1e6
        found.append(
            f"top-k and top-p by the checkpoint's generation_config.json are priced: "
            f"{filtering.entry_s * shape.vocab * MS_PER_S:.2f} ms a step and {sequence_us:.1f} us "
            f"a sequence, within a factor of two; requests of temperature 0, as bench sends, cost "
            f"none of it ({setting.setting}={setting.off})"
        )
    if penalty is not None:
        longest = longest_answer_tokens(plan, workload)
        sequence_s = penalty.token_s * longest + penalty.bytes_per_logit * shape.vocab / bytes_per_s
        found.append(
            f"the checkpoint's repetition_penalty is priced: {sequence_s * 1e6:.0f} us a sequence "
            f"and step with answers of up to {longest:.0f} tokens in progress, within a factor of "
            f"two ({setting.setting}={setting.off} leaves it out)"
        )
    return tuple(found)


#: Notes on users who each wait for an answer, which say nothing of requests that come at a rate.
CLOSED_LOOP_NOTES = (
    "steady state: the burst at the start of a run makes its mean TTFT longer",
    (
        "equal lengths keep users in step: their first tokens come later and their gaps are "
        "shorter than in traffic of mixed lengths"
    ),
)


def _notes(
    given: Plan, plan: Plan, node: Node, moments: LengthMoments, workload: Workload
) -> tuple[str, ...]:
    """Facts that the formulas leave out for this plan."""
    burst, in_step = CLOSED_LOOP_NOTES
    notes = [burst, in_step] if moments.output_spread_tokens == 0 else [burst]
    if plan.tensor_parallel > 2 and not node.link.peer_to_peer:
        notes.append(
            "all-reduce over PCIe without peer-to-peer: the host's topology decides, measured "
            "machines differ by a factor of three"
        )
    most = node.link.most_devices
    if most is not None and plan.tensor_parallel > most:
        network = node.link.network_bytes_per_s(plan.tensor_parallel)
        beyond = node.link.rate_among(plan.tensor_parallel)
        joins = f"joins up to {most} devices" if most > 1 else "joins machines of one device"
        notes.append(
            f"{node.link.name} {joins}; {plan.tensor_parallel} are priced "
            + (
                f"with {network / GB:g} GB/s from machine to machine; networks differ by a factor "
                "of six"
                if network
                else f"at {beyond / GB:g} GB/s each, which no run at hand confirms"
            )
        )
    if plan.draft_tokens is not None:
        assumed = " (assumed; measure it)" if plan.draft_acceptance_fraction is None else ""
        notes.append(
            f"drafts: {plan.draft_tokens} tokens a step, {acceptance_of(plan):.0%} of each "
            f"right{assumed}, so {tokens_per_step(plan):.2f} tokens gained; "
            + (
                "drafting costs one layer and the output head per token; its weights are not in "
                "the memory"
                if drafts_on_device(plan)
                else "looking them up costs the device nothing"
            )
        )
    if moments.shared_tokens:
        notes.append(
            "shared prompts: the steady state has the beginnings in the cache; each one's first "
            "use computes it whole"
        )
    elif workload.shared_prefix() is not None:
        notes.append(
            "shared prompts are computed whole: the prefix cache is off, or what they share is "
            f"shorter than a block of {plan.block_tokens} tokens"
        )
    elif given.prefix_caching:  # on by default, where it says nothing about the workload
        notes.append("prefix caching is on: prompts that share a beginning will do better")
    if node.price is not None and plan.device_count < node.device_count:
        notes.append(
            f"the price is the whole node's; the plan leaves "
            f"{node.device_count - plan.device_count} of {node.device_count} devices idle"
        )
    if moments.longest_tokens > (plan.max_model_len or moments.longest_tokens):
        notes.append(
            f"the longest request has {moments.longest_tokens} tokens, more than "
            f"max_model_len {plan.max_model_len}"
        )
    return tuple(notes)
