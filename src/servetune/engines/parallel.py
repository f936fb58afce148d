"""Splits of a network over devices, and the checks whether the network allows them.

| symbol | here |
|---|---|
| t | `Plan.tensor_parallel` |
| d | `Plan.data_parallel` |

Matrices are split by head and by feed-forward column, so t must divide both. KV heads are
split too, and copied where there are fewer than t. Experts are placed over t*d devices,
whole (`expert_parallel`) or by column. Layers need not divide by the stages: the engines
give the remainder to the middle stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from servetune.engines.engine import engine
from servetune.errors import PlanError
from servetune.hardware.device import Node
from servetune.models.counting import LayerParameters, layer_parameters
from servetune.models.quantization import effective_quantization
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    Layer,
    LinearAttention,
    Mixer,
    NetworkShape,
    StateSpace,
)
from servetune.plan.plan import Plan

#: Columns of one block of `fp8_block` weights: a split may not cut through one.
_BLOCK_COLUMNS = 128


def check_parallel(plan: Plan, shape: NetworkShape, node: Node | None = None) -> None:
    """Refuse a plan that the network or the machine cannot carry out.

    Args:
        plan: Plan to be served.
        shape: The network to split.
        node: The machine; None asks about the network alone.

    Raises:
        PlanError: With what does not divide, and which degrees would.
    """
    obstacle = _obstacle(plan, shape)
    if obstacle is not None:
        raise PlanError(f"{shape.name}: {obstacle}", hint=_degrees_that_work(plan, shape, node))
    if node is not None and plan.device_count > node.device_count:
        raise PlanError(
            f"the plan needs {plan.device_count} devices ({_product(plan)}), "
            f"{node.label} has {node.device_count}",
            hint=_degrees_that_work(plan, shape, node),
        )


def possible_tensor_parallel(plan: Plan, shape: NetworkShape, device_limit: int) -> tuple[int, ...]:
    """Degrees of tensor parallelism up to `device_limit` that divide this network.

    The rest of the plan stays: a degree counts if its devices, stages and copies included,
    are no more than the limit.
    """
    others = plan.device_count // plan.tensor_parallel
    return tuple(
        degree
        for degree in range(1, device_limit // others + 1)
        if _obstacle(msgspec.structs.replace(plan, tensor_parallel=degree), shape) is None
    )


def with_whole_experts(plan: Plan, shape: NetworkShape) -> Plan:
    """The plan, its experts placed whole where the network allows it only so.

    Columns of an expert that the devices do not divide, or whose fp8 blocks a split would cut,
    stop an engine at start; whoever runs such a network on so many devices turns expert
    parallelism on (MiniMax-M2 on 8: its published recipe, 2025-11). Any other plan comes back
    as it is.

    Example:
        >>> from servetune.models import load_shape
        >>> shape = load_shape("MiniMaxAI/MiniMax-M2.5", catalogue_first=True)
        >>> [with_whole_experts(Plan(model="m", tensor_parallel=t), shape).expert_parallel
        ...  for t in (4, 8)]
        [False, True]
    """
    if plan.expert_parallel or _obstacle(plan, shape) is None:
        return plan
    whole = msgspec.structs.replace(plan, expert_parallel=True)
    return whole if _obstacle(whole, shape) is None else plan


def stage_layers(plan: Plan, shape: NetworkShape) -> tuple[tuple[Layer, ...], ...]:
    """Layer groups of each pipeline stage, first to last.

    Layers are shared out evenly; a remainder goes to the stages before the last, from the
    back, as the last one also holds the output head.
    """
    stages = plan.pipeline_parallel
    share, remainder = divmod(shape.layer_count, stages)
    counts = [share] * stages
    for extra in range(remainder):
        counts[stages - 2 - extra] += 1
    remaining = list(shape.layers)
    return tuple(tuple(_take(remaining, count)) for count in counts)


@lru_cache(maxsize=1024)
def distinct_layers(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Equal groups of layers as one, in order of their first: for what only adds or compares.

    Kinds of layer often take turns (36 groups of two kinds in gpt-oss).
    """
    counts: dict[Layer, int] = {}
    for layer in layers:
        kind = msgspec.structs.replace(layer, count=1)
        counts[kind] = counts.get(kind, 0) + layer.count
    return tuple(msgspec.structs.replace(kind, count=count) for kind, count in counts.items())


def layer_share(plan: Plan, layer: Layer, hidden: int) -> LayerParameters:
    """Parameters of one such layer that each device of its stage holds."""
    whole = layer_parameters(layer, hidden)
    ways = plan.tensor_parallel
    kv_heads = layer.mixer.kv_heads if isinstance(layer.mixer, Attention) else 1
    experts = expert_ways(plan)
    return LayerParameters(
        heads=whole.heads / ways,
        output=whole.output / ways,
        kv_heads=whole.kv_heads * max(1.0, kv_heads / ways) / kv_heads,
        latent=whole.latent,
        dense=whole.dense / ways,
        experts=whole.experts / experts,
        active_experts=whole.active_experts / experts,
        shared_experts=whole.shared_experts / ways,
        router=whole.router,
        vectors=whole.vectors,
    )


def expert_ways(plan: Plan) -> int:
    """Number of devices over which one layer's routed experts are spread.

    Where `Behaviour.experts_span_copies`, they are spread over tensor- and data-parallel devices
    together, whole or by column; elsewhere data-parallel copies keep their own.
    """
    if engine(plan.engine).behaviour.experts_span_copies:
        return plan.tensor_parallel * plan.data_parallel
    return plan.tensor_parallel


class _Split(NamedTuple):
    """All of a plan that its obstacles depend on.

    Attributes:
        expert_ways: Devices over which a layer's routed experts are spread.
        whole_experts: Whether each expert lies on one device.
        quantization: Quantization, as in `Plan.quantization`.
    """

    ways: int
    stages: int
    expert_ways: int
    whole_experts: bool
    quantization: str | None


def _obstacle(plan: Plan, shape: NetworkShape) -> str | None:
    """First reason why the network cannot be split as planned; `None` where it can."""
    split = _Split(
        plan.tensor_parallel,
        plan.pipeline_parallel,
        expert_ways(plan),
        plan.expert_parallel,
        plan.quantization,
    )
    return _obstacle_of(split, shape)


@lru_cache(maxsize=4096)
def _obstacle_of(split: _Split, shape: NetworkShape) -> str | None:
    """`_obstacle` of one split, cached: the plans of a sweep or a table repeat few splits."""
    return next(_obstacles(split, shape), None)


def _obstacles(split: _Split, shape: NetworkShape) -> Iterator[str]:
    if split.stages > shape.layer_count:
        yield f"{split.stages} pipeline stages are more than the {shape.layer_count} layers"
    blocks = effective_quantization(shape.quantization, split.quantization).scheme == "fp8_block"
    for layer in distinct_layers(shape.layers):
        yield from _mixer_obstacles(layer.mixer, split.ways)
        yield from _feed_forward_obstacles(split, layer, blocks=blocks)
    if split.whole_experts and not any(
        isinstance(layer.feed_forward, ExpertFeedForward) for layer in shape.layers
    ):
        yield "expert_parallel is asked for, and the network has no experts"


def _mixer_obstacles(mixer: Mixer | None, ways: int) -> Iterator[str]:
    if mixer is None:
        return
    if isinstance(mixer, LinearAttention):
        for heads, what in ((mixer.key_heads, "key"), (mixer.value_heads, "value")):
            if heads % ways:
                yield (
                    f"{heads} {what} heads of linear attention do not divide by "
                    f"tensor_parallel {ways}"
                )
        return
    if mixer.heads % ways:
        kind = "Mamba" if isinstance(mixer, StateSpace) else "attention"
        yield f"{mixer.heads} {kind} heads do not divide by tensor_parallel {ways}"
    if isinstance(mixer, Attention) and mixer.kv_heads % ways and ways % mixer.kv_heads:
        yield (f"{mixer.kv_heads} KV heads neither divide by nor divide tensor_parallel {ways}")
    if isinstance(mixer, CompressedAttention) and mixer.output_groups % ways:
        yield f"{mixer.output_groups} groups of heads do not divide by tensor_parallel {ways}"


def _feed_forward_obstacles(split: _Split, layer: Layer, *, blocks: bool) -> Iterator[str]:
    part, ways = layer.feed_forward, split.ways
    if part is None:
        return
    if isinstance(part, DenseFeedForward):
        yield from _column_obstacles(part.inner, ways, "feed-forward columns", blocks=blocks)
        return
    if part.shared_inner:
        yield from _column_obstacles(
            part.shared_inner, ways, "columns of the shared expert", blocks=blocks
        )
    spread = split.expert_ways
    if not split.whole_experts:
        yield from _column_obstacles(part.inner, spread, "columns of an expert", blocks=blocks)
    elif part.experts % spread:
        yield f"{part.experts} experts do not divide by {spread} devices"


def _column_obstacles(columns: int, ways: int, what: str, *, blocks: bool) -> Iterator[str]:
    if columns % ways:
        yield f"{columns} {what} do not divide by {ways} devices"
    elif blocks and (columns // ways) % _BLOCK_COLUMNS:
        yield (
            f"{columns} {what} over {ways} devices cut through the "
            f"{_BLOCK_COLUMNS}-column blocks of its fp8 weights"
        )


def _degrees_that_work(plan: Plan, shape: NetworkShape, node: Node | None) -> str:
    limit = node.device_count if node is not None else max(8, plan.device_count)
    single = msgspec.structs.replace(
        plan, pipeline_parallel=1, data_parallel=1, replicas=1, expert_parallel=False
    )
    # With everything else as asked, or else for tensor parallelism alone.
    for candidate, note in ((plan, ""), (single, " alone")):
        degrees = possible_tensor_parallel(candidate, shape, limit)
        if degrees:
            listed = ", ".join(map(str, degrees))
            return f"tensor_parallel{note} may be {listed} on {limit} device{'s' * (limit > 1)}"
    return "use a smaller plan or a larger machine"


def _product(plan: Plan) -> str:
    named = (
        ("tensor_parallel", plan.tensor_parallel),
        ("pipeline_parallel", plan.pipeline_parallel),
        ("data_parallel", plan.data_parallel),
        ("replicas", plan.replicas),
    )
    text = " x ".join(f"{name} {count}" for name, count in named if count > 1) or "one replica"
    return text + (f", and {plan.prefill_replicas} for prompts" if plan.prefill_replicas else "")


def _take(remaining: list[Layer], count: int) -> Iterator[Layer]:
    """Cut `count` layers off the front of `remaining`, which keeps the rest."""
    while count > 0 and remaining:
        first = remaining[0]
        taken = min(count, first.count)
        yield msgspec.structs.replace(first, count=taken)
        count -= taken
        if taken == first.count:
            remaining.pop(0)
        else:
            remaining[0] = msgspec.structs.replace(first, count=first.count - taken)
