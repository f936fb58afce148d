"""A model's dimensions: everything that decides its cost and nothing that decides its words.

| symbol | here |
|---|---|
| h | `hidden` |
| L | sum of `Layer.count` |
| v | `vocab` |

A network is a run of `Layer` groups, each a token mixer and a feed-forward part that
repeats `count` times, so that mixed networks (a few dense layers and then experts,
windows on every second layer) need no special case.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Attention",
    "DenseFeedForward",
    "ExpertFeedForward",
    "FeedForward",
    "LatentAttention",
    "Layer",
    "Mixer",
    "NetworkShape",
]


class Attention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """Softmax attention with `kv_heads` shared by groups of query heads.

    `window` is the number of latest tokens that a query sees; `None` means all. Chunked
    attention counts as a window of its chunk: its cache is capped alike. With
    `qk_norm_all_heads` every head has a normalising weight of its own, else all share one.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    qk_norm_all_heads: bool = False


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="latent"):
    """Multi-head latent attention (DeepSeek-V2 and later).

    The cache holds one vector of `kv_rank + rope_dim` numbers per token for all heads.
    """

    heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None


class DenseFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dense"):
    """Two matrices of `inner` columns, or three where a gate multiplies."""

    inner: int
    gated: bool = True
    bias: bool = False


class ExpertFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="experts"):
    """A router that sends each token to `active` of `experts`, beside `shared_inner` for all."""

    experts: int
    active: int
    inner: int
    shared_inner: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    gated: bool = True
    bias: bool = False


Mixer = Attention | LatentAttention
FeedForward = DenseFeedForward | ExpertFeedForward


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """`count` equal transformer layers, each with `norms` normalising vectors of `hidden`."""

    count: int
    mixer: Mixer
    feed_forward: FeedForward
    norms: int = 2


class NetworkShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only network as published, before any parallel split.

    Attributes:
        name: Hub id or folder name, for messages.
        architecture: As the configuration names it, such as `Qwen3ForCausalLM`.
        dtype: Of activations and of weights that are not quantised: `bf16` or `fp16`.
        quantization: What the published weights are stored as; see `quantization.py`.
        kv_cache_dtype: What the checkpoint wants its cache stored as; `auto` is `dtype`.
        max_context_tokens: Longest sequence that the model was made for.
        source: Where the numbers come from.
    """

    name: str
    architecture: str
    hidden: int
    layers: tuple[Layer, ...]
    vocab: int
    tied_embeddings: bool
    max_context_tokens: int
    dtype: str = "bf16"
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    source: str = ""

    @property
    def layer_count(self) -> int:
        return sum(layer.count for layer in self.layers)
