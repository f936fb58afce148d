"""How many parameters a network has, and the bytes of its weights and of its cache.

| symbol | here |
|---|---|
| h | `NetworkShape.hidden` |
| n, n_kv, d | `Attention.heads`, `kv_heads`, `head_dim` |
| r_kv, r_q | `LatentAttention.kv_rank`, `q_rank` |
| f, E | columns of one feed-forward part, experts in one layer |

Everything here is one decoder as published: extra heads for speculative decoding and
vision towers are not counted.
"""

from __future__ import annotations

import msgspec

from servetune.models.quantization import (
    DTYPE_BYTES,
    Quantization,
    cache_dtype_bytes,
    quantization_named,
)
from servetune.models.shape import (
    Attention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    NetworkShape,
)

__all__ = [
    "LayerParameters",
    "active_parameter_count",
    "cached_numbers_per_token",
    "embedding_parameter_count",
    "head_parameter_count",
    "kv_bytes",
    "kv_bytes_per_token",
    "layer_parameters",
    "layer_weight_bytes",
    "parameter_count",
    "weight_bytes",
]


class LayerParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one layer, by how a parallel split treats them.

    Whole numbers for a whole layer; one device's share may have a fraction.

    Attributes:
        heads: Matrices split by query head (query, output, and a latent's expansions).
        kv_heads: Key and value matrices, split by KV head and copied beyond that.
        latent: Down-projections of latent attention, whole on every device.
        dense: Feed-forward matrices of a layer without experts.
        experts: All routed experts together.
        shared_experts: Experts that every token visits.
        router: Scores of the experts, whole on every device.
        vectors: Norms, biases and attention sinks.
        active_experts: The part of `experts` that one token visits.
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

    @property
    def total(self) -> float:
        """All that is stored."""
        return self.active - self.active_experts + self.experts

    @property
    def active(self) -> float:
        """What one token is multiplied with."""
        return (
            self.heads
            + self.kv_heads
            + self.latent
            + self.dense
            + self.active_experts
            + self.shared_experts
            + self.router
            + self.vectors
        )


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
    """Parameters that take part in one token's forward pass.

    As `parameter_count` with `active` experts instead of all. The embedding counts whole,
    as the publishers of these networks count it, although one token reads one row.
    """
    layers = sum(
        layer.count * layer_parameters(layer, shape.hidden).active for layer in shape.layers
    )
    return _outside_layers(shape) + int(layers)


def _outside_layers(shape: NetworkShape) -> int:
    """Embedding, output head and the last norm."""
    return embedding_parameter_count(shape) + head_parameter_count(shape) + shape.hidden


def embedding_parameter_count(shape: NetworkShape) -> int:
    """Parameters of the input embedding, v*h."""
    return shape.vocab * shape.hidden


def head_parameter_count(shape: NetworkShape) -> int:
    """Parameters of the output head beyond those it shares with the embedding."""
    return 0 if shape.tied_embeddings else shape.vocab * shape.hidden


def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """Parameters of one layer of the group (not times `count`)."""
    heads, kv_heads, latent, mixer_vectors = _mixer_parameters(layer.mixer, hidden)
    dense, experts, active, shared, router, other_vectors = _feed_forward_parameters(
        layer.feed_forward, hidden
    )
    return LayerParameters(
        heads=heads,
        kv_heads=kv_heads,
        latent=latent,
        dense=dense,
        experts=experts,
        active_experts=active,
        shared_experts=shared,
        router=router,
        vectors=mixer_vectors + other_vectors + layer.norms * hidden,
    )


def _mixer_parameters(mixer: Mixer, hidden: int) -> tuple[int, int, int, int]:
    if isinstance(mixer, LatentAttention):
        return _latent_parameters(mixer, hidden)
    query_width = mixer.heads * mixer.head_dim
    kv_width = mixer.kv_heads * mixer.head_dim
    vectors = mixer.heads if mixer.sinks else 0
    if mixer.qkv_bias:
        vectors += query_width + 2 * kv_width
    if mixer.output_bias:
        vectors += hidden
    if mixer.qk_norm:
        vectors += query_width + kv_width if mixer.qk_norm_all_heads else 2 * mixer.head_dim
    return 2 * hidden * query_width, 2 * hidden * kv_width, 0, vectors


def _latent_parameters(mixer: LatentAttention, hidden: int) -> tuple[int, int, int, int]:
    query_width = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    heads = mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim)
    heads += mixer.heads * mixer.value_dim * hidden
    latent = hidden * (mixer.kv_rank + mixer.rope_dim)
    if mixer.q_rank is None:
        return heads + hidden * query_width, 0, latent, mixer.kv_rank
    heads += mixer.q_rank * query_width
    latent += hidden * mixer.q_rank
    return heads, 0, latent, mixer.kv_rank + mixer.q_rank


def _feed_forward_parameters(part: FeedForward, hidden: int) -> tuple[int, int, int, int, int, int]:
    matrices = 3 if part.gated else 2
    if isinstance(part, DenseFeedForward):
        vectors = (matrices - 1) * part.inner + hidden if part.bias else 0
        return matrices * hidden * part.inner, 0, 0, 0, 0, vectors
    one_expert = matrices * hidden * part.inner
    if part.bias:
        one_expert += (matrices - 1) * part.inner + hidden
    vectors = part.experts if part.router_bias else 0
    if part.shared_gate:
        vectors += hidden
    return (
        0,
        part.experts * one_expert,
        part.active * one_expert,
        matrices * hidden * part.shared_inner,
        hidden * part.experts,
        vectors,
    )


def weight_bytes(
    shape: NetworkShape, quantization_name: str | None = None, *, dtype: str | None = None
) -> float:
    """Bytes of all weights together, before any parallel split.

    Matrices in the quantisation's scope take its bytes per weight; embeddings, head,
    routers, norms and biases keep the model's dtype.

    Args:
        shape: The network.
        quantization_name: As if stored so; `None` for what the checkpoint has.
        dtype: Of what is not quantised; `None` for the model's own.
    """
    storage = quantization_named(
        shape.quantization if quantization_name is None else quantization_name
    )
    plain_bytes = DTYPE_BYTES[dtype or shape.dtype]
    layers = sum(
        layer.count
        * layer_weight_bytes(layer_parameters(layer, shape.hidden), storage, plain_bytes)
        for layer in shape.layers
    )
    return _outside_layers(shape) * plain_bytes + layers


def layer_weight_bytes(
    parameters: LayerParameters, storage: Quantization, plain_bytes: float
) -> float:
    """Bytes of one layer's parameters (or of one device's share of them)."""
    packed_bytes = plain_bytes if storage.bytes_per_weight is None else storage.bytes_per_weight
    packed = parameters.experts
    if storage.scope in ("linear", "feed_forward"):
        packed += parameters.dense + parameters.shared_experts
    if storage.scope == "linear":
        packed += parameters.heads + parameters.kv_heads + parameters.latent
    return packed * packed_bytes + (parameters.total - packed) * plain_bytes


def cached_numbers_per_token(mixer: Mixer, *, tensor_parallel: int = 1) -> float:
    """Numbers that one layer keeps of one token on each device.

    A key and a value vector per KV head, 2*n_kv*d, where a device holds at least one head;
    latent attention keeps r_kv + rope for all heads and cannot be split by head.
    """
    if isinstance(mixer, LatentAttention):
        return mixer.kv_rank + mixer.rope_dim
    return 2 * max(1.0, mixer.kv_heads / tensor_parallel) * mixer.head_dim


def kv_bytes_per_token(shape: NetworkShape, cache_dtype: str = "auto") -> float:
    """Cache that one more token of context occupies, in bytes, over the whole network.

    2 * layers * n_kv * d * bytes for ordinary attention, layers * (r_kv + rope) * bytes for
    latent attention. Layers with a window stop growing once it is full: this is the rate
    before that; see `kv_bytes`.

    Args:
        shape: Dimensions before any tensor-parallel split.
        cache_dtype: `auto` for what the checkpoint wants, else its dtype.

    Example:
        >>> from servetune.models.source import load_shape
        >>> kv_bytes_per_token(load_shape("Qwen/Qwen3-4B", catalogue_first=True))
        147456.0
    """
    width = _cache_width(shape, cache_dtype)
    return width * sum(
        layer.count * cached_numbers_per_token(layer.mixer) for layer in shape.layers
    )


def kv_bytes(shape: NetworkShape, context_tokens: float, cache_dtype: str = "auto") -> float:
    """Cache of one sequence of `context_tokens`, in bytes; windows cap their layers' part."""
    width = _cache_width(shape, cache_dtype)
    return width * sum(
        layer.count
        * cached_numbers_per_token(layer.mixer)
        * _kept_tokens(layer.mixer, context_tokens)
        for layer in shape.layers
    )


def _kept_tokens(mixer: Mixer, context_tokens: float) -> float:
    window = mixer.window if isinstance(mixer, Attention) else None
    return context_tokens if window is None else min(context_tokens, window)


def _cache_width(shape: NetworkShape, cache_dtype: str) -> float:
    wanted = shape.kv_cache_dtype if cache_dtype == "auto" else cache_dtype
    return cache_dtype_bytes(wanted, model_dtype=shape.dtype)
