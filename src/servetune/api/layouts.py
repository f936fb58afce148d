"""Layouts of a model over a machine: possible degrees, the best split, and why none fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from servetune.api.choosing import Selection
from servetune.api.estimate_text import Split
from servetune.engines import check_parallel, with_whole_experts
from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import Node
from servetune.models import NetworkShape
from servetune.perf import Calibration
from servetune.perf.roofline import Contender, OperatingPoint, as_good_as_first, length_moments
from servetune.perf.roofline import estimate as priced
from servetune.plan import Plan
from servetune.workload import Workload


def long_enough(plan: Plan, shape: NetworkShape, workload: Workload) -> Plan:
    """The plan with room for the workload's longest request and no more, unless it says.

    A model's full context (131,072 tokens, say) would shut out machines that serve this
    workload well.
    """
    if plan.max_model_len is not None:
        return plan
    longest = length_moments(workload.lengths).longest_tokens
    rounded = 1024 * math.ceil(longest / 1024)
    return msgspec.structs.replace(plan, max_model_len=min(shape.max_context_tokens, rounded))


def possible_degrees(plan: Plan, shape: NetworkShape, node: Node) -> tuple[int, ...]:
    """Degrees of tensor parallelism that divide the node's devices and the model.

    Experts that do not divide are placed whole, where that lets a degree run.

    Raises:
        PlanError: The plan's pipeline stages do not divide the devices.
    """
    stages = plan.pipeline_parallel
    if node.device_count % stages:
        raise PlanError(
            f"{stages} pipeline stages do not divide {node.label}",
            hint="give as many stages as divide the number of GPUs",
        )
    each = node.device_count // stages
    degrees = [degree for degree in range(1, each + 1) if not each % degree]
    return tuple(
        degree for degree in degrees if _divides(laid_out(plan, shape, degree, node), shape)
    ) or (1,)


def _divides(plan: Plan, shape: NetworkShape) -> bool:
    try:
        check_parallel(plan, shape)
    except PlanError:
        return False
    return True


def laid_out(plan: Plan, shape: NetworkShape, degree: int, node: Node) -> Plan:
    """The plan at this degree, with as many copies as the devices hold."""
    copies = max(1, node.device_count // (degree * plan.pipeline_parallel))
    split = msgspec.structs.replace(plan, tensor_parallel=degree, replicas=copies)
    return with_whole_experts(split, shape)


def chosen_split(fitting: list[Split], target: str) -> Split:
    """The split with the largest throughput, or the shortest answer when alone."""
    choose = min if target == "latency" else max
    return choose(fitting, key=lambda split: _merit(split, target))


def with_as_good(
    splits: Sequence[Split], node: Node, selection: Selection, correction: Calibration | None
) -> list[Split]:
    """The splits, each with whether it may be as good as the best by the target."""
    fitting = [split for split in splits if split.answer.fits]
    best = chosen_split(fitting, selection.target)
    ordered = [best, *(split for split in fitting if split is not best)]
    target = selection.target
    contenders = [
        Contender(
            plan=split.plan,
            node=node,
            point=_best_point(split, target),
            merit=_merit(split, target),
        )
        for split in ordered
    ]
    good = as_good_as_first(contenders, selection.shape, selection.workload, correction)
    found = {id(split): near for split, near in zip(ordered, good, strict=True)}
    return [msgspec.structs.replace(split, as_good=found.get(id(split))) for split in splits]


def _merit(split: Split, target: str) -> float:
    """Milliseconds of a request alone, or output tokens per second."""
    point = _best_point(split, target)
    return point.e2e_ms if target == "latency" else point.output_tokens_per_s


def _best_point(split: Split, target: str) -> OperatingPoint:
    answer = split.answer
    found = answer.best_latency if target == "latency" else answer.best_throughput
    assert found is not None
    return found


def require_longest_fits(
    workload: Workload, shape: NetworkShape, plan: Plan, fitting: list[Split]
) -> None:
    """Refuse a request that is longer than the model's context, or than any cache.

    Raises:
        PlanError: With both lengths.
    """
    longest = workload.longest_tokens()
    context = plan.max_model_len or shape.max_context_tokens
    if longest > context:
        raise PlanError(
            f"the longest request has {longest:,} tokens, prompt and answer, and the longest "
            f"sequence is {context:,}",
            hint="lower --input-len or --output-len"
            + (", or raise --max-model-len" if plan.max_model_len else ""),
        )
    if all(split.answer.limits is None or not split.answer.limits.memory for split in fitting):
        raise PlanError(
            f"the cache does not hold one request of {longest:,} tokens",
            hint="name more or larger GPUs, or a quantisation with --quantization",
        )


def refuse(split: Split) -> None:
    memory = split.answer.memory
    message, _, hint = (split.answer.misfit or "the model does not fit").partition("; ")
    raise DoesNotFit(
        message,
        needed_bytes=memory.needed_bytes,
        available_bytes=memory.usable_bytes,
        hint=hint or "name more or larger GPUs, or a quantisation with --quantization",
    )


def refuse_all(selection: Selection, node: Node) -> None:
    """Say what the widest split lacks, where no plan of a sweep could be priced."""
    degree = (
        selection.tensor_parallel or possible_degrees(selection.plan, selection.shape, node)[-1]
    )
    widest = laid_out(selection.plan, selection.shape, degree, node)
    split = Split(plan=widest, answer=priced(selection.shape, node, widest, selection.workload))
    if not split.answer.fits:
        refuse(split)
