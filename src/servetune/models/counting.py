"""Parameter counts of a network, and the bytes of its weights and KV cache.

| symbol | here |
|---|---|
| h | `NetworkShape.hidden` |
| n, n_kv, d | `Attention.heads`, `kv_heads`, `head_dim` |
| r_kv, r_q | `LatentAttention.kv_rank`, `q_rank` |
| f, E | columns of one feed-forward part, experts in one layer |

All counts are of one decoder as published, without layers used only by speculative decoding.
A vision tower (`NetworkShape.vision_parameters`) is excluded from `parameter_count` and
included in `weight_bytes`, since engines load it.

A cache is counted entry by entry, as vLLM 0.32 lays it out (`v1/kv_cache_interface.py`, and
the caches of its sparse-attention models, 2026-11). Rounding to whole blocks is added in
`servetune.engines.memory`; padding of a page to a multiple of 512 or 576 bytes, under 0.2%,
is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from servetune.models.quantization import (
    DTYPE_BYTES,
    Quantization,
    cache_dtype_bytes,
    quantization_named,
)
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    NetworkShape,
    SparseIndex,
    StateSpace,
)


class LayerParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one layer, grouped by their treatment in a parallel split.

    Counts of a whole layer are whole; one device's share may have a fraction.

    Attributes:
        heads: Mixer input matrices, split by head (queries, gates, a latent's expansions, all
            of linear attention's and Mamba's).
        output: Mixer output matrix, split by head.
        kv_heads: Key and value matrices, split by KV head and replicated beyond that.
        latent: Down-projections and indexers, replicated on every device.
        dense: Feed-forward matrices of a layer without experts.
        experts: All routed experts together.
        shared_experts: Experts that every token uses.
        router: Router, other narrow gates, and the projections around experts of another
            width: replicated on every device, never quantised.
        vectors: Norms, biases, convolutions and attention sinks.
        active_experts: Part of `experts` that one token uses.
    """

    heads: float
    kv_heads: float
    latent: float
    dense: float
    experts: float
    shared_experts: float
    router: float
    vectors: float
    active_experts: float
    output: float = 0.0

    @property
    def total(self) -> float:
        """Stored parameters."""
        return self.active - self.active_experts + self.experts

    @property
    def active(self) -> float:
        """Parameters used by one token."""
        return (
            self.heads
            + self.output
            + self.kv_heads
            + self.latent
            + self.dense
            + self.active_experts
            + self.shared_experts
            + self.router
            + self.vectors
        )


class CachePart(NamedTuple):
    """Cache of one layer on one device: bytes per token, and the window that caps it.

    A compressed cache with one entry per several tokens has a fraction of the entry here.
    """

    bytes_per_token: float
    window: int | None


class _MixerParameters(NamedTuple):
    heads: int = 0
    output: int = 0
    kv_heads: int = 0
    latent: int = 0
    narrow: int = 0
    vectors: int = 0


def parameter_count(shape: NetworkShape) -> int:
    """Parameters of the decoder, embeddings, norms and biases included.

    Embedding v*h, once more for the head unless tied, the last norm h, and per layer
    attention h*d*(2n + 2n_kv), a feed-forward part of 3*h*f (2*h*f without a gate), norms
    and biases; experts count E times, with a router h*E. Latent attention has
    h*r_q + r_q*n*(nope + rope) + h*(r_kv + rope) + r_kv*n*(nope + value) + n*value*h.

    Example:
        >>> from servetune.models.source import load_shape
        >>> parameter_count(load_shape("Qwen/Qwen3-4B", catalogue_first=True))
        4022468096
    """
    layers = sum(
        layer.count * layer_parameters(layer, shape.hidden).total for layer in shape.layers
    )
    return _outside_layers(shape) + int(layers)


def active_parameter_count(shape: NetworkShape) -> int:
    """Parameters used in one token's forward pass.

    This is `parameter_count` with `active` experts instead of all. The embedding counts whole,
    as publishers count it, although one token reads one row.
    """
    layers = sum(
        layer.count * layer_parameters(layer, shape.hidden).active for layer in shape.layers
    )
    return _outside_layers(shape) + int(layers)


def vision_parameter_count(shape: NetworkShape) -> int:
    """Parameters of the vision tower; zero where the configuration lacks its dimensions."""
    return shape.vision_parameters


def _outside_layers(shape: NetworkShape) -> int:
    """Embedding, output head, the last norm, and what else belongs to no layer."""
    ends = embedding_parameter_count(shape) + head_parameter_count(shape)
    return ends + shape.hidden + shape.extra_parameters


def embedding_parameter_count(shape: NetworkShape) -> int:
    """Parameters of the input embedding, v*h."""
    return shape.vocab * shape.hidden


def head_parameter_count(shape: NetworkShape) -> int:
    """Parameters of the output head beyond those it shares with the embedding."""
    return 0 if shape.tied_embeddings else shape.vocab * shape.hidden


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Parameters of one layer of the group (not times `count`)."""
    mixer = _mixer_parameters(layer.mixer, hidden)
    dense, experts, active, shared, router, other_vectors = _feed_forward_parameters(
        layer.feed_forward, hidden
    )
    return LayerParameters(
        heads=mixer.heads,
        output=mixer.output,
        kv_heads=mixer.kv_heads,
        latent=mixer.latent,
        dense=dense,
        experts=experts,
        active_experts=active,
        shared_experts=shared,
        router=router + mixer.narrow,
        vectors=mixer.vectors + other_vectors + layer.norms * hidden + layer.extra_parameters,
    )


def _mixer_parameters(mixer: Mixer | None, hidden: int) -> _MixerParameters:
    if mixer is None:
        return _MixerParameters()
    if isinstance(mixer, LatentAttention):
        return _latent_parameters(mixer, hidden)
    if isinstance(mixer, CompressedAttention):
        return _compressed_parameters(mixer, hidden)
    if isinstance(mixer, LinearAttention):
        return _linear_parameters(mixer, hidden)
    if isinstance(mixer, StateSpace):
        return _state_space_parameters(mixer, hidden)
    return _attention_parameters(mixer, hidden)


def _attention_parameters(mixer: Attention, hidden: int) -> _MixerParameters:
    query_width = mixer.heads * mixer.head_dim
    key_width = mixer.kv_heads * mixer.head_dim
    value_width = 0 if mixer.key_is_value else mixer.kv_heads * mixer.value_width
    if mixer.reuses_kv_cache:
        key_width = value_width = 0
    vectors = mixer.heads if mixer.sinks else 0
    if mixer.qkv_bias:
        vectors += query_width + key_width + value_width
    if mixer.output_bias:
        vectors += hidden
    if mixer.qk_norm:
        per_key = 0 if mixer.reuses_kv_cache else mixer.head_dim
        vectors += query_width + key_width if mixer.qk_norm_all_heads else mixer.head_dim + per_key
    index, scores, index_vectors = _index_parameters(mixer.index, hidden)
    return _MixerParameters(
        heads=hidden * (query_width + mixer.gate_columns),
        output=hidden * mixer.heads * mixer.value_width,
        kv_heads=hidden * (key_width + value_width),
        latent=index,
        narrow=scores,
        vectors=vectors + index_vectors,
    )


def _latent_parameters(mixer: LatentAttention, hidden: int) -> _MixerParameters:
    query_width = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    heads = mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim)
    if mixer.output_gate:
        heads += hidden * mixer.heads * mixer.value_dim
    heads += (mixer.q_rank or hidden) * query_width
    index, scores, index_vectors = _index_parameters(mixer.index, hidden)
    q_rank = mixer.q_rank or 0
    return _MixerParameters(
        heads=heads,
        output=mixer.heads * mixer.value_dim * hidden,
        latent=hidden * (mixer.kv_rank + mixer.rope_dim + q_rank) + index,
        narrow=scores,
        vectors=mixer.kv_rank + q_rank + index_vectors,
    )


def _index_parameters(index: SparseIndex | None, hidden: int) -> tuple[int, int, int]:
    """Matrices, head weights and norm vectors of an indexer."""
    if index is None:
        return 0, 0, 0
    queries = (index.query_rank or hidden) * index.heads * index.dim
    scores = hidden * index.heads if index.weighted else 0
    return queries + hidden * index.dim, scores, 2 * index.dim


def _compressed_parameters(mixer: CompressedAttention, hidden: int) -> _MixerParameters:
    """Parameters h(r_q + d) down, r_q*n*d up, n*d*r_o and g*r_o*h out, and the compressors.

    A compressor, never quantised, projects to a vector and its scores, of double width where
    blocks overlap, and adds a vector per position of its block.
    """
    narrow, vectors = 0, mixer.heads + mixer.q_rank + mixer.head_dim
    latent = hidden * (mixer.q_rank + mixer.head_dim)
    copies = 2 if mixer.overlapping else 1
    widths = [mixer.head_dim] if mixer.ratio else []
    if mixer.index is not None:
        latent += (mixer.index.query_rank or hidden) * mixer.index.heads * mixer.index.dim
        narrow += hidden * mixer.index.heads
        widths.append(mixer.index.dim)
    for width in widths:
        narrow += 2 * hidden * copies * width
        vectors += mixer.ratio * copies * width + width
    output = mixer.heads * mixer.head_dim * mixer.output_rank
    output += mixer.output_groups * mixer.output_rank * hidden
    return _MixerParameters(
        heads=mixer.q_rank * mixer.heads * mixer.head_dim,
        output=output,
        latent=latent,
        narrow=narrow,
        vectors=vectors,
    )


def _linear_parameters(mixer: LinearAttention, hidden: int) -> _MixerParameters:
    """Input projections of queries, keys, values and gates, and one beta per head."""
    values = mixer.value_heads * mixer.value_dim
    heads = hidden * mixer.conv_channels
    if mixer.gate_rank is None:
        heads += hidden * values
    else:
        heads += mixer.gate_rank * (hidden + values)
    narrow, vectors = 0, mixer.conv_channels * mixer.conv_width
    vectors += values if mixer.norm_all_heads else mixer.value_dim
    if mixer.decay == "head":
        narrow = 2 * hidden * mixer.value_heads
        vectors += 2 * mixer.value_heads
    elif mixer.decay == "channel":
        rank = mixer.decay_rank or mixer.key_dim
        narrow = hidden * mixer.value_heads
        heads += rank * (hidden + values)
        vectors += mixer.value_heads + values
    return _MixerParameters(heads=heads, output=values * hidden, narrow=narrow, vectors=vectors)


def _state_space_parameters(mixer: StateSpace, hidden: int) -> _MixerParameters:
    columns = mixer.inner + mixer.conv_channels + mixer.heads
    vectors = mixer.conv_channels * mixer.conv_width
    if mixer.state:  # decay, step and skip of each head, and the output norm
        vectors += 3 * mixer.heads + mixer.inner
    if mixer.conv_bias:
        vectors += mixer.conv_channels
    if mixer.bias:
        vectors += columns + hidden
    return _MixerParameters(heads=hidden * columns, output=mixer.inner * hidden, vectors=vectors)


def _feed_forward_parameters(
    part: FeedForward | None, hidden: int
) -> tuple[int, int, int, int, int, int]:
    if part is None:
        return 0, 0, 0, 0, 0, 0
    matrices = 3 if part.gated else 2
    if isinstance(part, DenseFeedForward):
        vectors = (matrices - 1) * part.inner + hidden if part.bias else 0
        return matrices * hidden * part.inner, 0, 0, 0, 0, vectors
    width = part.width or hidden
    one_expert = matrices * width * part.inner
    if part.bias:
        one_expert += (matrices - 1) * part.inner + width
    vectors = part.experts if part.router_bias else 0
    if part.shared_gate:
        vectors += hidden
    router = hidden * part.experts
    if part.width:
        router += 2 * hidden * part.width
        vectors += part.width if part.width_norm else 0
    return (
        0,
        part.experts * one_expert,
        part.active * one_expert,
        matrices * hidden * part.shared_inner,
        router,
        vectors,
    )


def weight_bytes(
    shape: NetworkShape, quantization_name: str | None = None, *, dtype: str | None = None
) -> float:
    """Bytes of all weights, before any parallel split.

    Matrices in the quantisation's scope take its bytes per weight; embeddings, routers,
    norms, biases and a vision tower keep the model's dtype, and so does the output head
    unless the checkpoint quantises it.

    Args:
        shape: Network to count.
        quantization_name: Storage to assume; `None` for the checkpoint's, layer by layer.
        dtype: Dtype of unquantised weights; `None` for the model's own.
    """
    storage = quantization_named(
        shape.quantization if quantization_name is None else quantization_name
    )
    plain_bytes = DTYPE_BYTES[dtype or shape.dtype]
    layers = sum(
        layer.count
        * layer_weight_bytes(
            layer_parameters(layer, shape.hidden),
            storage if quantization_name is not None else layer_storage(layer, storage),
            plain_bytes,
        )
        for layer in shape.layers
    )
    head = head_parameter_count(shape)
    head_bytes = storage.width_of("head") or plain_bytes
    plain = _outside_layers(shape) - head + shape.vision_parameters
    return plain * plain_bytes + head * head_bytes + layers


def layer_storage(layer: Layer, network: Quantization) -> Quantization:
    """Storage of a layer: its own where the checkpoint has one, else the network's.

    A network quantised on loading (with an unquantised checkpoint) has no layers with their
    own.
    """
    return network if layer.quantization is None else quantization_named(layer.quantization)


def layer_weight_bytes(
    parameters: LayerParameters, storage: Quantization, plain_bytes: float
) -> float:
    """Bytes of one layer's parameters (or of one device's share of them)."""
    buckets = {
        "input": parameters.heads + parameters.kv_heads + parameters.latent,
        "output": parameters.output,
        "dense": parameters.dense,
        "shared": parameters.shared_experts,
        "experts": parameters.experts,
    }
    packed_bytes = sum(
        count * (storage.width_of(part) or plain_bytes) for part, count in buckets.items()
    )
    return packed_bytes + (parameters.total - sum(buckets.values())) * plain_bytes


def cached_numbers_per_token(mixer: Mixer | None, *, tensor_parallel: int = 1) -> float:
    """Cached numbers of one token in one layer on each device, without indexers.

    A key and a value vector per KV head, 2*n_kv*d, where a device holds at least one head;
    latent attention caches r_kv + rope for all heads and cannot be split by head. Mixers
    with constant state cache none.
    """
    if isinstance(mixer, LatentAttention):
        return mixer.kv_rank + mixer.rope_dim
    if isinstance(mixer, CompressedAttention):
        return mixer.head_dim * (1 + (1 / mixer.ratio if mixer.ratio else 0))
    if not isinstance(mixer, Attention) or mixer.reuses_kv_cache:
        return 0.0
    local_heads = max(1.0, mixer.kv_heads / tensor_parallel)
    return local_heads * (mixer.head_dim + mixer.value_width)


def cache_parts(
    mixer: Mixer | None, width_bytes: float, *, tensor_parallel: int = 1
) -> tuple[CachePart, ...]:
    """Cache parts of one layer on one device: bytes per token, and windows.

    An indexer caches its key in its own format in addition. With an 8-bit cache, sparse latent
    attention keeps the rotated part in 16 bits and a scale per 128 numbers (`fp8_ds_mla`, 656
    bytes for DeepSeek-V3.2), and DeepSeek-V4 the rotated part in 16 bits and a scale per 64,
    padded to 8 (584 bytes).

    Args:
        mixer: Token mixer; `None` for a layer without one.
        width_bytes: Bytes of one cached number.
        tensor_parallel: Devices that share the KV heads.
    """
    if isinstance(mixer, CompressedAttention):
        entry_bytes = mixer.head_dim * width_bytes
        if width_bytes == 1:
            entry_bytes += mixer.rope_dim + 8
        parts = [CachePart(entry_bytes, mixer.window)]
        if mixer.ratio:
            index_bytes = mixer.index.key_bytes if mixer.index else 0.0
            parts.append(CachePart((entry_bytes + index_bytes) / mixer.ratio, None))
        return tuple(parts)
    if not isinstance(mixer, Attention | LatentAttention):
        return ()
    numbers = cached_numbers_per_token(mixer, tensor_parallel=tensor_parallel)
    entry_bytes = numbers * width_bytes
    if isinstance(mixer, LatentAttention) and mixer.top_k and width_bytes == 1:
        entry_bytes += mixer.rope_dim + mixer.kv_rank / 128 * 4
    if mixer.index is not None:
        entry_bytes += mixer.index.bytes_per_token
    return (CachePart(entry_bytes, mixer.window if isinstance(mixer, Attention) else None),)


def kv_bytes_per_token(shape: NetworkShape, cache_dtype: str = "auto") -> float:
    """KV cache of one more token of context, in bytes, over the whole network.

    2 * layers * n_kv * d * bytes for ordinary attention, layers * (r_kv + rope) * bytes for
    latent attention. Layers with a window stop growing once it is full: this is the rate
    before that; see `kv_bytes`. State of constant size is in `state_bytes_per_sequence`.

    Args:
        shape: Dimensions before any tensor-parallel split.
        cache_dtype: Cache dtype; `auto` for the one that the checkpoint declares.

    Example:
        >>> from servetune.models.source import load_shape
        >>> kv_bytes_per_token(load_shape("Qwen/Qwen3-4B", catalogue_first=True))
        147456.0
    """
    width = _cache_width(shape, cache_dtype)
    return sum(
        layer.count * part.bytes_per_token
        for layer in shape.layers
        for part in cache_parts(layer.mixer, width)
    )


def kv_bytes(shape: NetworkShape, context_tokens: float, cache_dtype: str = "auto") -> float:
    """KV cache of one sequence of `context_tokens`, in bytes; windows cap their layers."""
    width = _cache_width(shape, cache_dtype)
    return sum(
        layer.count
        * part.bytes_per_token
        * (context_tokens if part.window is None else min(context_tokens, part.window))
        for layer in shape.layers
        for part in cache_parts(layer.mixer, width)
    )


def state_bytes_per_sequence(shape: NetworkShape) -> float:
    """Constant-size state of a sequence, in bytes, over the whole network.

    It holds the state matrices of linear attention and Mamba, the last inputs of their
    convolutions, and the open blocks of DeepSeek-V4's compressors. Zero for a network with
    keys and values only.

    Example:
        >>> from servetune.models.source import load_shape
        >>> state_bytes_per_sequence(load_shape("Qwen/Qwen3-4B", catalogue_first=True))
        0.0
    """
    plain_bytes = DTYPE_BYTES[shape.dtype]
    return sum(layer.count * state_bytes(layer.mixer, plain_bytes) for layer in shape.layers)


def state_bytes(mixer: Mixer | None, plain_bytes: float, *, tensor_parallel: int = 1) -> float:
    """State bytes of one sequence in one layer on one device, split by head."""
    if isinstance(mixer, LinearAttention):
        numbers = mixer.value_heads * mixer.key_dim * mixer.value_dim
    elif isinstance(mixer, StateSpace):
        numbers = mixer.heads * mixer.head_dim * mixer.state
    elif isinstance(mixer, CompressedAttention):
        return _compressor_bytes(mixer)
    else:
        return 0.0
    width = plain_bytes if mixer.state_dtype == "auto" else DTYPE_BYTES[mixer.state_dtype]
    kept_inputs = mixer.conv_channels * max(0, mixer.conv_width - 1)
    return (numbers * width + kept_inputs * plain_bytes) / tensor_parallel


def _compressor_bytes(mixer: CompressedAttention) -> float:
    """State bytes of a compressor: 32-bit vectors and scores of the tokens in open blocks."""
    if not mixer.ratio:
        return 0.0
    copies = 2 if mixer.overlapping else 1
    width = mixer.head_dim + (mixer.index.dim if mixer.index else 0)
    return copies * mixer.ratio * 2 * copies * width * DTYPE_BYTES["fp32"]


def _cache_width(shape: NetworkShape, cache_dtype: str) -> float:
    stored = shape.kv_cache_dtype if cache_dtype == "auto" else cache_dtype
    return cache_dtype_bytes(stored, model_dtype=shape.dtype)
