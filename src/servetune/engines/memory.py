"""Whether a plan fits in memory, and how many tokens its cache then holds.

One device's memory is divided as the engine divides it:

    usable     = fraction * (total - driver)
    weights    = this device's share, the fullest stage
    activation = step tokens * (residual stream + widest layer) + logits of all sequences
    graphs     = captured graphs, none with enforce_eager
    runtime    = libraries' workspaces, more where devices talk to each other
    cache      = usable - weights - activation - graphs - runtime

Where the fraction covers weights and cache alone (`Behaviour.fraction_covers_activation`), the
other three lie outside it.
Activation, graphs and runtime are estimates: engines measure them at start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import msgspec

from servetune.engines.behaviour import keeps_prompts
from servetune.engines.defaults import resolved
from servetune.engines.engine import engine
from servetune.engines.parallel import (
    distinct_layers,
    layer_share,
    possible_tensor_parallel,
    stage_layers,
)
from servetune.engines.refusals import check_silicon, has_kernels, made_on_load
from servetune.errors import DoesNotFit, PlanError
from servetune.hardware.device import Device
from servetune.models.counting import (
    cache_parts,
    embedding_parameter_count,
    layer_storage,
    layer_weight_bytes,
    state_bytes,
    weight_bytes,
)
from servetune.models.quantization import (
    DTYPE_BYTES,
    cache_dtype_bytes,
    canonical_dtype,
    effective_quantization,
)
from servetune.models.shape import (
    CompressedAttention,
    DenseFeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    NetworkShape,
    StateSpace,
)
from servetune.models.source import load_shape, quantized_versions
from servetune.plan.plan import Plan
from servetune.units import GIB, MIB, format_bytes

#: The largest share of memory that a run is taken to have given its engine where its own default
#: would not have held the weights. An assumption: DeepSeek-R1 in fp8 was served by four B200
#: (four rows of silicon_dev, 2026), which takes 0.89 of their memory by this account.
WIDEST_FRACTION = 0.95

#: Sequences at a time for which a server is given memory at least, where it is started for as many
#: users. A judgement: of rows with room for three to 23 by the default share, closed loops of eight
#: users (AccelMark, vLLM 0.7 and 0.19) and static batches of 16 to 64 (Argonne, 2024) are best
#: predicted with it; no such row has room for fewer. A burst of 100 prompts of 32,000 tokens on an
#: A100 (gpustack) has room for one, and its server kept the default: servers that are not started
#: for their users keep it here, too.
_LEAST_SEQUENCES = 3
#: Margin, in sequences, of such memory, so that rounding leaves room for no fewer.
_ROOM_BEYOND = 1e-6

#: Memory that CUDA keeps of the driver's total: 0.4 GiB and 0.2%. From the "total
#: capacity" in public out-of-memory messages against nvidia-smi, 2026-11: T4 14.56 of 15.00
#: GiB, L4 22.03 of 22.49, L40S 44.5 of 44.99, H100 79.1 of 79.65, H200 139.8 of 140.4,
#: B200 178.35 of 179.06.
_DRIVER_BYTES = 0.4 * GIB
_DRIVER_FRACTION = 0.002

#: Captured graphs per layer: 0.3 to 1.0 GiB for 24 to 80 layers at the default engine's sizes
#: ("Graph capturing finished ... took" in public logs, 2025-26).
_GRAPH_BYTES_PER_LAYER = 12 * MIB

#: cuBLAS workspaces; NCCL's buffers once several devices talk ("non-torch" memory in
#: public logs, 2025-26: about 0.1 GiB on one device, 0.3 to 0.5 on several).
_RUNTIME_BYTES = 0.1 * GIB
_COMMUNICATION_BYTES = 0.25 * GIB

#: Residual, its sum, the normalised input and the output of a layer live at once.
_RESIDUAL_COPIES = 4

#: Devices of the usual node, up to which a wider split is looked for.
_DEVICES_OF_A_NODE = 8

#: Least context worth suggesting: a short question and its answer.
_USEFUL_TOKENS = 1024

#: Logits in 32 bits, and the sampler's sorted or scaled copy.
_LOGIT_BYTES = 8


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Division of one device's memory, on the stage of a replica with the least cache.

    Attributes:
        device_bytes: Memory of the device as the driver reports it.
        usable_bytes: The engine's share of what CUDA can hand out.
        weights_bytes: Weights on the fullest device.
        activation_bytes: Memory reserved for one step.
        graph_bytes: Memory reserved for captured graphs.
        runtime_bytes: Memory reserved for libraries.
        kv_cache_bytes: Memory left for keys and values; zero where nothing is left.
        kv_bytes_per_token: KV cache of one token on this device while no window is full.
        kv_tokens_per_engine: Tokens that the cache of one data-parallel engine holds, in
            whole blocks, as if no layer had a window: a floor where some have. States that
            do not grow are not taken off it; `kv_tokens_at` and `concurrent_sequences` do.
        kv_tokens: Tokens that the caches of all data-parallel engines of one replica hold together.
        state_bytes_per_sequence: Cache that a sequence occupies on this device before its first
            token (linear attention, Mamba), on the fullest stage.
        state_pool_bytes: Memory apart for such states, on the stage of `kv_cache_bytes`, where it
            is not counted.
        most_sequences: Sequences of one data-parallel engine whose states have room in it; `None`
            where states share the memory of keys and values.
    """

    device_bytes: float
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    graph_bytes: float
    runtime_bytes: float
    kv_cache_bytes: float
    kv_bytes_per_token: float
    kv_tokens_per_engine: int
    kv_tokens: int
    state_bytes_per_sequence: float = 0.0
    state_pool_bytes: float = 0.0
    most_sequences: int | None = None

    def kv_tokens_at(self, context_tokens: float) -> int:
        """Tokens that one engine's cache holds of sequences of this length, their states beside.

        `kv_tokens_per_engine` where nothing keeps a state, or has memory apart for it.
        """
        apart = self.most_sequences is not None
        if apart or not self.state_bytes_per_sequence or context_tokens <= 0:
            return self.kv_tokens_per_engine
        growing_bytes = context_tokens * self.kv_bytes_per_token
        share = growing_bytes / (growing_bytes + self.state_bytes_per_sequence)
        return int(self.kv_tokens_per_engine * share)

    def served(self, plan: Plan) -> Plan:
        """The resolved plan with no more sequences at a time than their states have room for."""
        most, limit = self.most_sequences, plan.max_num_seqs
        if most is None or limit is None or limit <= most:
            return plan
        return msgspec.structs.replace(plan, max_num_seqs=most)

    @property
    def reserved_bytes(self) -> float:
        """Memory that neither weights nor cache may use."""
        return self.activation_bytes + self.graph_bytes + self.runtime_bytes

    @property
    def needed_bytes(self) -> float:
        """Memory needed before the first cached token."""
        return self.weights_bytes + self.reserved_bytes


def memory(plan: Plan, shape: NetworkShape, device: Device) -> Memory:
    """Use of each device's memory by a plan; fields that it leaves open are resolved first.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B")
        >>> memory(plan, load_shape(plan.model, catalogue_first=True), named("L4")).kv_tokens
        86144
    """
    return _divided(resolved(plan, shape, device), shape, device).memory


class _Divided(NamedTuple):
    """Memory of a resolved plan.

    Attributes:
        longest_sequences: Sequences of the longest length whose cache one replica holds at once.
    """

    memory: Memory
    caches: _Caches
    longest_sequences: int


@lru_cache(maxsize=4096)
def _divided(plan: Plan, shape: NetworkShape, device: Device) -> _Divided:
    """Division of a resolved plan's memory, cached: reading and pricing a row ask three times."""
    usable_bytes = _usable_bytes(plan, device)
    placed = _placement(plan, shape)
    activation_bytes, graph_bytes, runtime_bytes = _reserved_bytes(plan, shape, device, placed)
    free_bytes = usable_bytes - (activation_bytes + graph_bytes + runtime_bytes)
    caches = tuple((_cache_parts(plan, free_bytes, stage), stage) for stage in placed.stages)
    # A stage whose layers keep nothing per token sets no limit.
    growing = [
        (part.kv_bytes / stage.kv_bytes_per_token, part, stage.kv_bytes_per_token)
        for part, stage in caches
        if stage.kv_bytes_per_token
    ]
    if growing:
        room_tokens, least, kv_bytes_per_token = min(growing, key=itemgetter(0))
    else:
        least, kv_bytes_per_token = min(caches)[0], 1.0
        room_tokens = least.kv_bytes
    most = min([part.sequences for part, _ in caches])
    tokens = _whole_blocks(room_tokens, plan)
    found = Memory(
        device_bytes=device.memory_bytes,
        usable_bytes=usable_bytes,
        weights_bytes=placed.most_weights_bytes,
        activation_bytes=activation_bytes,
        graph_bytes=graph_bytes,
        runtime_bytes=runtime_bytes,
        kv_cache_bytes=least.kv_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_tokens_per_engine=tokens,
        kv_tokens=tokens * plan.data_parallel,
        state_bytes_per_sequence=placed.most_state_bytes,
        state_pool_bytes=least.state_bytes,
        most_sequences=None if most == math.inf else int(most),
    )
    longest = plan.max_model_len or shape.max_context_tokens
    return _Divided(found, caches, _concurrent(plan, caches, longest))


def concurrent_sequences(
    plan: Plan, shape: NetworkShape, device: Device, context_tokens: int
) -> int:
    """Sequences of `context_tokens` whose cache one replica holds at once.

    Each takes whole blocks, and a state where layers keep one; layers with a window keep
    no more than it. The scheduler's limit max_num_seqs holds for each data-parallel engine.
    """
    filled = resolved(plan, shape, device)
    return _concurrent(filled, _divided(filled, shape, device).caches, context_tokens)


def _concurrent(plan: Plan, caches: _Caches, context_tokens: int) -> int:
    """`concurrent_sequences` of a resolved plan."""
    fitting = int(_room(plan, caches, context_tokens))
    return min(fitting, plan.max_num_seqs or fitting) * plan.data_parallel


def _room(plan: Plan, caches: _Caches, context_tokens: int) -> float:
    """Sequences, and parts of one, that the cache of one engine holds, whatever its limit."""
    fitting: float = math.inf
    for part, stage in caches:
        left, need = part.kv_bytes, stage.sequence_bytes(context_tokens, plan.block_tokens or 1)
        need -= stage.recurrent_bytes if part.state_bytes else 0.0
        without = plan.max_num_seqs or 1 if left else 0
        fitting = min(fitting, part.sequences, left / need if need else without)
    return fitting


def rank_weights_bytes(plan: Plan, shape: NetworkShape) -> tuple[float, ...]:
    """Weights on every device of one replica: stage by stage, engine by engine."""
    copies = plan.tensor_parallel * plan.data_parallel
    stages = _placement(plan, shape).stages
    return tuple(stage.weights_bytes for stage in stages for _ in range(copies))


def caches_prefixes(plan: Plan, divided: Memory) -> bool:
    """Whether a resolved plan finds beginnings of prompts again in its cache.

    It does not where sequences have a state besides: a block of tokens does not bring it back.
    """
    return keeps_prompts(plan) and not divided.state_bytes_per_sequence


def check_fits(
    plan: Plan,
    shape: NetworkShape,
    device: Device,
    *,
    device_limit: int | None = None,
    advise: bool = True,
) -> Memory:
    """The plan's memory, if its weights and one longest sequence fit.

    Args:
        plan: Plan to be served.
        shape: The network.
        device: Device that it runs on.
        device_limit: Number of devices at hand, which a suggested plan may use; 8 by default.
        advise: Whether an error names what would fit, which takes milliseconds to find.

    Raises:
        PlanError: Its limits contradict each other or the model, or the engine has no kernels
            for its weights on the device.
        DoesNotFit: With the bytes needed and there, per device, and what would fit.
    """
    filled = resolved(plan, shape, device)
    return check_resolved_fits(filled, shape, device, device_limit=device_limit, advise=advise)


def check_resolved_fits(
    plan: Plan,
    shape: NetworkShape,
    device: Device,
    *,
    device_limit: int | None = None,
    advise: bool = True,
) -> Memory:
    """`check_fits` of a resolved plan, for thousands of them."""
    _check_limits(plan, shape)
    check_silicon(plan, shape, device)
    divided = _divided(plan, shape, device)
    found = divided.memory
    longest = plan.max_model_len or shape.max_context_tokens
    needed_bytes, available_bytes = found.needed_bytes, found.usable_bytes
    if needed_bytes >= available_bytes:
        problem = (
            f"weights and working memory need {format_bytes(needed_bytes)} per device, "
            f"{format_bytes(available_bytes)} may be used"
        )
    else:
        if divided.longest_sequences >= 1:
            return found
        available_bytes = found.kv_cache_bytes
        needed_bytes = max(
            stage.sequence_bytes(longest, plan.block_tokens or 1) for _, stage in divided.caches
        )
        what = f"one sequence of {longest} tokens needs"
        kept = "of cache per device"
        if found.most_sequences == 0:
            available_bytes, needed_bytes = found.state_pool_bytes, found.state_bytes_per_sequence
            what, kept = "each state of a sequence, of which it keeps several, needs", "per device"
        problem = (
            f"{what} {format_bytes(needed_bytes)} {kept}, {format_bytes(available_bytes)} is left"
        )
    raise DoesNotFit(
        f"{shape.name} as {_degrees(plan)} on {device.name}: {problem}",
        needed_bytes=needed_bytes,
        available_bytes=available_bytes,
        hint=_what_would_fit(plan, shape, device, device_limit or 8) if advise else "",
    )


def with_wider_share(
    plan: Plan,
    shape: NetworkShape,
    device: Device,
    *,
    sequence_tokens: int | None = None,
    users: int = 1,
    useful_places: bool = False,
) -> Plan:
    """The plan, with `gpu_memory_fraction` raised where the default leaves room for too few.

    An engine's default share is a caution; who must hold large weights asks for more, and so does
    who starts a server for users of whom nearly all would wait. Where the weights do not fit, the
    share is the widest; else it is what one longest sequence needs, and what `_LEAST_SEQUENCES` or
    all users do, if that is more: longer requests never get room for more. A plan that names its
    share, or that would not fit either way, comes back as it is.

    Args:
        plan: Plan to be served.
        shape: The network.
        device: Device that it runs on.
        sequence_tokens: Tokens of the run's longest sequence; the plan's longest if `None`.
        users: Users for whom one data-parallel engine is started; 1 asks for no more than one
            longest sequence needs.
        useful_places: Whether places that no sequence can fill are given up later
            (`with_useful_places`), so that no more than those sought here take memory.
    """
    sought = min(users, plan.max_num_seqs or users, _LEAST_SEQUENCES)
    # The quick way of nearly all: so many of the longest have room, whatever takes places.
    held = _divided(resolved(plan, shape, device), shape, device).longest_sequences
    if plan.gpu_memory_fraction is not None or held >= sought * plan.data_parallel:
        return plan
    longest = plan.max_model_len or shape.max_context_tokens
    wanted = ((longest, 1), (sequence_tokens or longest, sought))

    def rooms(filled: Plan) -> list[float]:
        caches = _divided(filled, shape, device).caches
        return [_room(filled, caches, tokens) for tokens, _ in wanted]

    places = sought if useful_places and plan.max_num_seqs else plan.max_num_seqs
    filled = resolved(msgspec.structs.replace(plan, max_num_seqs=places), shape, device)
    widest = msgspec.structs.replace(filled, gpu_memory_fraction=WIDEST_FRACTION)
    default = filled.gpu_memory_fraction or WIDEST_FRACTION
    if default >= WIDEST_FRACTION or not _fits(widest, shape, device):
        return plan
    raised = 0.0
    for least, most, (_, count) in zip(rooms(filled), rooms(widest), wanted, strict=True):
        if least < count:
            missing = count + _ROOM_BEYOND - least
            raised = max(raised, missing / (most - least) if least and most > least else 1.0)
    if not raised:
        return plan
    more = WIDEST_FRACTION - default
    fraction = WIDEST_FRACTION if raised >= 1 else default + raised * more
    return msgspec.structs.replace(plan, gpu_memory_fraction=fraction)


def with_useful_places(
    plan: Plan, shape: NetworkShape, device: Device, context_tokens: float
) -> Plan:
    """The plan with no more places than sequences that a step or the cache can take.

    Every place takes memory from the cache (its logits, its part of a step), so places that no
    sequence can fill only lower how many run. Whoever asks for as many as there are users means
    as many as there is room for.

    Args:
        plan: Plan with its `max_num_seqs`.
        shape: The network.
        device: Device that it runs on.
        context_tokens: Mean tokens of a sequence in the cache.
    """
    if plan.max_num_seqs is None:
        return plan
    budget = resolved(plan, shape, device).max_num_batched_tokens or plan.max_num_seqs

    def with_places(count: int) -> Plan:
        same = count == plan.max_num_seqs
        return plan if same else msgspec.structs.replace(plan, max_num_seqs=count)

    def filled(count: int) -> bool:
        divided = memory(with_places(count), shape, device)
        if divided.most_sequences is not None and divided.most_sequences < count:
            return False
        return divided.kv_tokens_at(context_tokens) >= count * context_tokens

    low, high = 1, min(plan.max_num_seqs, budget)
    if filled(high):
        return with_places(high)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if filled(middle) else (low, middle - 1)
    return with_places(low)


def with_usual_length(
    plan: Plan, shape: NetworkShape, device: Device, context_tokens: float
) -> Plan:
    """The plan of an engine that is told no longest sequence, where one of the network's fits.

    Args:
        plan: Plan with its longest sequence.
        shape: The network.
        device: Device that it runs on.
        context_tokens: Mean tokens of a sequence in the cache (`with_useful_places`).
    """
    longest = shape.max_context_tokens
    if (plan.max_model_len or 0) > longest:
        return plan  # which no engine takes
    untold = msgspec.structs.replace(plan, max_model_len=None)
    useful = with_useful_places(untold, shape, device, context_tokens)
    filled = resolved(useful, shape, device)
    caches = _divided(filled, shape, device).caches
    return untold if _concurrent(filled, caches, longest) >= 1 else plan


def _check_limits(plan: Plan, shape: NetworkShape) -> None:
    """Refuse limits that contradict one another, as engines do at start."""
    tokens, sequences = plan.max_num_batched_tokens or 1, plan.max_num_seqs or 1
    length = plan.max_model_len or 1
    if length > shape.max_context_tokens:
        raise PlanError(
            f"max_model_len {length} is more than {shape.name} was made for "
            f"({shape.max_context_tokens} tokens)",
            hint=f"use {shape.max_context_tokens} or less",
        )
    if not engine(plan.engine).behaviour.budget_covers_answers:
        return
    if tokens < sequences:
        raise PlanError(
            f"max_num_batched_tokens {tokens} is less than max_num_seqs {sequences}",
            hint="each running sequence needs a token in each step",
        )
    if plan.chunked_prefill is False and tokens < length:
        raise PlanError(
            f"max_num_batched_tokens {tokens} is less than max_model_len {length}, "
            "and chunked prefill is off",
            hint="turn chunked prefill on, or let one step hold the longest prompt",
        )


def _usable_bytes(plan: Plan, device: Device) -> float:
    fraction = plan.gpu_memory_fraction
    assert fraction is not None  # the plan is resolved
    if device.architecture == "cpu":
        return fraction * device.memory_bytes
    driver_bytes = _DRIVER_BYTES + _DRIVER_FRACTION * device.memory_bytes
    return fraction * max(0.0, device.memory_bytes - driver_bytes)


class _CacheParts(NamedTuple):
    """Memory for caches of one stage, per device.

    Attributes:
        kv_bytes: Memory for keys and values, and for states that have none apart.
        state_bytes: Memory apart for states.
        sequences: Sequences, and parts of one, whose states have room in it; infinite without such
            memory.
    """

    kv_bytes: float
    state_bytes: float
    sequences: float


def _cache_parts(plan: Plan, free_bytes: float, stage: _Stage) -> _CacheParts:
    """Memory for a stage's caches, where its weights and they may have `free_bytes`."""
    behaviour = engine(plan.engine).behaviour
    cache_bytes = behaviour.cache_share * max(0.0, free_bytes - stage.weights_bytes)
    pool = behaviour.state_pool
    if pool is None or not stage.recurrent_bytes:
        return _CacheParts(cache_bytes, 0.0, math.inf)
    state_bytes = pool.share(plan) * cache_bytes
    sequences = state_bytes / (stage.recurrent_bytes * pool.states_each(plan))
    return _CacheParts(cache_bytes - state_bytes, state_bytes, sequences)


def _reserved_bytes(
    plan: Plan, shape: NetworkShape, device: Device, placed: _Placement
) -> tuple[float, float, float]:
    """Activation, graphs and runtime that the engine keeps inside its share."""
    if not engine(plan.engine).behaviour.fraction_covers_activation:
        return 0.0, 0.0, 0.0
    activation_bytes = _activation_bytes(plan, shape, placed)
    if device.architecture == "cpu":
        return activation_bytes, 0.0, 0.0
    graph_bytes = 0.0 if plan.enforce_eager else placed.graph_bytes
    return activation_bytes, graph_bytes, placed.runtime_bytes


def _activation_bytes(plan: Plan, shape: NetworkShape, placed: _Placement) -> float:
    """Live at the peak of the largest step, per device.

    Per token the residual stream in four places and the widest part of a layer; per
    sequence its logits. Llama-3-8B with 8,192 tokens and 256 sequences gives 1.15 GiB,
    where the engine's log of that run says 1.23 (activation peak, 2024-25).
    """
    assert plan.max_num_batched_tokens is not None
    assert plan.max_num_seqs is not None
    tokens = plan.max_num_batched_tokens
    if engine(plan.engine).behaviour.prompt_logits:
        return tokens * (placed.numbers_per_token + 2 * shape.vocab) * placed.plain_bytes
    logit_bytes = plan.max_num_seqs * shape.vocab * _LOGIT_BYTES
    return tokens * placed.numbers_per_token * placed.plain_bytes + logit_bytes


def _width(plan: Plan, shape: NetworkShape, layer: Layer) -> float:
    """Numbers per token inside the wider half of a layer, on one device."""
    ways, part = plan.tensor_parallel, layer.feed_forward
    mixed = _mixer_width(layer.mixer, ways)
    if part is None:
        return mixed
    if isinstance(part, DenseFeedForward):
        return max(mixed, 3 * part.inner / ways)
    columns = part.inner if plan.expert_parallel else part.inner / ways
    width = part.width or shape.hidden
    return max(mixed, part.active * (3 * columns + width) + 3 * part.shared_inner / ways)


def _mixer_width(mixer: Mixer | None, ways: int) -> float:
    """Inputs and outputs of what mixes tokens, per token on one device."""
    if mixer is None:
        return 0.0
    if isinstance(mixer, LatentAttention):
        return mixer.heads * (2 * (mixer.nope_dim + mixer.rope_dim) + mixer.value_dim) / ways
    if isinstance(mixer, CompressedAttention):
        return 2 * mixer.heads * mixer.head_dim / ways + mixer.head_dim
    if isinstance(mixer, LinearAttention):
        return (mixer.conv_channels + 2 * mixer.value_heads * mixer.value_dim) / ways
    if isinstance(mixer, StateSpace):
        return (mixer.conv_channels + 2 * mixer.inner) / ways
    return (2 * mixer.heads + 2 * max(ways, mixer.kv_heads)) * mixer.head_dim / ways


class _Stage(NamedTuple):
    """Bytes of one pipeline stage on each of its devices.

    Attributes:
        recurrent_bytes: States of linear attention and Mamba of one sequence, of `state_bytes`.
        caches: Bytes of one token in each part of the cache, over all layers, and the window that
            keeps it, if any.
    """

    weights_bytes: float
    kv_bytes_per_token: float
    state_bytes: float
    recurrent_bytes: float
    caches: tuple[tuple[float, int | None], ...]

    def sequence_bytes(self, context_tokens: int, block_tokens: int) -> float:
        """Whole blocks of one sequence, and its state."""
        total = self.state_bytes
        for bytes_per_token, window in self.caches:
            kept = context_tokens if window is None else min(context_tokens, window)
            total += bytes_per_token * math.ceil(kept / block_tokens) * block_tokens
        return total


#: Memory for caches of each stage, with the stage.
_Caches: TypeAlias = tuple[tuple[_CacheParts, _Stage], ...]


class _Placement(NamedTuple):
    """A network over the devices of one copy, whatever the plan's limits are.

    Attributes:
        most_weights_bytes: Weights of the fullest stage.
        most_state_bytes: State of one sequence where it is largest.
        numbers_per_token: Numbers that are live per token of the largest step.
        plain_bytes: Bytes of each of them.
        graph_bytes: Captured graphs of the stage with the most layers.
        runtime_bytes: Libraries on a device.
    """

    stages: tuple[_Stage, ...]
    most_weights_bytes: float
    most_state_bytes: float
    numbers_per_token: float
    plain_bytes: float
    graph_bytes: float
    runtime_bytes: float


def _placement(plan: Plan, shape: NetworkShape) -> _Placement:
    # Only what splits or stores: plans that differ in limits share the answer.
    return _placed(
        shape,
        plan.engine,
        plan.tensor_parallel,
        plan.pipeline_parallel,
        plan.data_parallel,
        plan.expert_parallel,
        plan.dtype,
        plan.quantization,
        plan.kv_cache_dtype,
    )


@lru_cache(maxsize=4096)
def _placed(
    shape: NetworkShape,
    engine: str,
    tensor_parallel: int,
    pipeline_parallel: int,
    data_parallel: int,
    expert_parallel: bool,
    dtype: str | None,
    quantization: str | None,
    kv_cache_dtype: str | None,
) -> _Placement:
    plan = Plan(
        model="",
        engine=engine,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
    )
    stages = _stages(plan, shape)
    widest = max(_width(plan, shape, layer) for layer in distinct_layers(shape.layers))
    layers = math.ceil(shape.layer_count / plan.pipeline_parallel)
    talks = plan.devices_per_replica > 1
    return _Placement(
        stages=stages,
        most_weights_bytes=max(stage.weights_bytes for stage in stages),
        most_state_bytes=max(stage.state_bytes for stage in stages),
        numbers_per_token=_RESIDUAL_COPIES * shape.hidden + widest,
        plain_bytes=_plain_bytes(plan, shape),
        graph_bytes=float(layers * _GRAPH_BYTES_PER_LAYER),
        runtime_bytes=_RUNTIME_BYTES + (_COMMUNICATION_BYTES if talks else 0.0),
    )


def _stages(plan: Plan, shape: NetworkShape) -> tuple[_Stage, ...]:
    storage = effective_quantization(shape.quantization, plan.quantization)
    plain_bytes = _plain_bytes(plan, shape)
    embedding_bytes = embedding_parameter_count(shape) * plain_bytes / plan.tensor_parallel
    head_bytes = embedding_bytes * (storage.width_of("head") or plain_bytes) / plain_bytes
    # Tables of per-layer inputs and a vision tower lie with the embedding, split like it.
    extra_bytes = (shape.extra_parameters + shape.vision_parameters) * plain_bytes
    stages = stage_layers(plan, shape)
    last = len(stages) - 1
    found = []
    for index, layers in enumerate(stages):
        each_bytes = {
            layer: layer.count
            * layer_weight_bytes(
                layer_share(plan, layer, shape.hidden), layer_storage(layer, storage), plain_bytes
            )
            for layer in set(layers)
        }
        weights_bytes = sum(each_bytes[layer] for layer in layers)
        if index == 0:
            weights_bytes += embedding_bytes + extra_bytes / plan.tensor_parallel
        if index == last:
            weights_bytes += shape.hidden * plain_bytes
            # A tied head needs a copy of the embedding where it is not on the same stage.
            if not shape.tied_embeddings:
                weights_bytes += head_bytes
            elif last > 0:
                weights_bytes += embedding_bytes
        found.append(_stage(plan, shape, distinct_layers(layers), weights_bytes))
    return tuple(found)


def _stage(
    plan: Plan, shape: NetworkShape, layers: tuple[Layer, ...], weights_bytes: float
) -> _Stage:
    width, plain_bytes = _cache_width(plan, shape), _plain_bytes(plan, shape)
    ways = plan.tensor_parallel
    caches = tuple(
        (layer.count * part.bytes_per_token, part.window)
        for layer in layers
        for part in cache_parts(layer.mixer, width, tensor_parallel=ways)
    )
    states = [
        (layer.mixer, layer.count * state_bytes(layer.mixer, plain_bytes, tensor_parallel=ways))
        for layer in layers
    ]
    return _Stage(
        weights_bytes=weights_bytes,
        kv_bytes_per_token=sum(bytes_per_token for bytes_per_token, _ in caches),
        state_bytes=sum(each for _, each in states),
        recurrent_bytes=sum(
            each for mixer, each in states if isinstance(mixer, LinearAttention | StateSpace)
        ),
        caches=caches,
    )


def _whole_blocks(tokens: float, plan: Plan) -> int:
    block_tokens = plan.block_tokens or 1
    return int(tokens // block_tokens) * block_tokens


def _cache_width(plan: Plan, shape: NetworkShape) -> float:
    chosen = plan.kv_cache_dtype or "auto"
    name = shape.kv_cache_dtype if chosen == "auto" else chosen
    return cache_dtype_bytes(name, model_dtype=_dtype(plan, shape))


def _dtype(plan: Plan, shape: NetworkShape) -> str:
    return shape.dtype if plan.dtype in (None, "auto") else canonical_dtype(str(plan.dtype))


def _plain_bytes(plan: Plan, shape: NetworkShape) -> float:
    return DTYPE_BYTES[_dtype(plan, shape)]


def _degrees(plan: Plan) -> str:
    parts = [f"TP{plan.tensor_parallel}"]
    parts += [f"PP{plan.pipeline_parallel}"] if plan.pipeline_parallel > 1 else []
    parts += [f"DP{plan.data_parallel}"] if plan.data_parallel > 1 else []
    return " ".join(parts)


def _fits(plan: Plan, shape: NetworkShape, device: Device) -> bool:
    return _divided(plan, shape, device).longest_sequences >= 1


def _longest_that_fits(plan: Plan, shape: NetworkShape, device: Device) -> int:
    """The greatest multiple of 16 tokens, up to the plan's longest, of which one sequence fits."""
    low, high = 0, (plan.max_model_len or shape.max_context_tokens) // 16
    while low < high:
        middle = (low + high + 1) // 2
        if concurrent_sequences(plan, shape, device, 16 * middle) >= 1:
            low = middle
        else:
            high = middle - 1
    return 16 * low


def _what_would_fit(plan: Plan, shape: NetworkShape, device: Device, device_limit: int) -> str:
    """What would fit: a wider split, narrower weights, a shorter context, or several of them."""
    most = max(device_limit, _DEVICES_OF_A_NODE)
    as_asked = _Variant("", plan, shape)
    wider = _wider(as_asked, most, device_limit)
    narrower = _narrower_weights(plan, shape, device)
    offers = _first_that_fits(wider, device) + _first_that_fits(narrower, device)
    offers += _first_that_fits([as_asked], device)
    if not offers:
        both = [each for packed in narrower for each in _wider(packed, most, device_limit)]
        offers = _first_that_fits(both, device)
    if offers:
        return " or ".join((", ".join(offers[:-1]), offers[-1]) if offers[1:] else offers) + (
            " would fit"
        )
    return f"nothing up to {most} devices of this kind would fit: take larger ones"


class _Variant(NamedTuple):
    """Something else that could be served: its words, its plan and its network."""

    words: str
    plan: Plan
    shape: NetworkShape


def _first_that_fits(variants: Sequence[_Variant], device: Device) -> list[str]:
    """Words for the first that fits as it is, else for that with the longest useful context."""
    for each in variants:
        if _fits(each.plan, each.shape, device):
            return [each.words]
    contexts = [_longest_that_fits(each.plan, each.shape, device) for each in variants]
    longest = max(contexts, default=0)
    if longest < _USEFUL_TOKENS:
        return []
    words = variants[contexts.index(longest)].words
    return [f"{words} with max_model_len {longest}".removeprefix(" with ")]


def _wider(variant: _Variant, most: int, device_limit: int) -> list[_Variant]:
    """The variant on more devices, the fewest first."""
    plan = variant.plan
    found = []
    for degree in possible_tensor_parallel(plan, variant.shape, most):
        wider = msgspec.structs.replace(plan, tensor_parallel=degree)
        words = f"{variant.words} with tensor_parallel {degree}".removeprefix(" with ")
        if wider.device_count > device_limit:
            words += f" on {wider.device_count} such devices"
        if degree > plan.tensor_parallel:
            found.append(_Variant(words, wider, variant.shape))
    return found


def _narrower_weights(plan: Plan, shape: NetworkShape, device: Device) -> list[_Variant]:
    """Narrower weights that the engine can load there, the widest first."""
    if shape.quantization != "none" or plan.quantization is not None:
        return []
    found = []
    if "fp8" in made_on_load(plan.engine):
        packed = msgspec.structs.replace(plan, quantization="fp8")
        found.append(_Variant("quantization fp8", packed, shape))
    found += [
        _Variant(f"the model {name}", msgspec.structs.replace(plan, model=name), network)
        for name, network in _published_versions(shape.name)
    ]
    return [each for each in found if has_kernels(each.plan, each.shape, device)]


@lru_cache(maxsize=256)
def _published_versions(model: str) -> tuple[tuple[str, NetworkShape], ...]:
    """Quantised checkpoints of a model and their networks, the one with the most bytes first."""
    found = [(name, load_shape(name, catalogue_first=True)) for name in quantized_versions(model)]
    return tuple(sorted(found, key=lambda each: -weight_bytes(each[1])))
