"""A model's dimensions: everything that decides its cost and nothing that decides its words.

| symbol | here |
|---|---|
| h | `hidden` |
| L | sum of `Layer.count` |
| v | `vocab` |

A network is a run of `Layer` groups, each a token mixer and a feed-forward part that
repeats `count` times, so that mixed networks (a few dense layers and then experts,
windows on every second layer, linear attention between, layers of one part alone) need
no special case.

| mixer | keeps per sequence |
|---|---|
| `Attention` | keys and values of every token, or of a window |
| `LatentAttention` | one vector per token for all heads |
| `CompressedAttention` | a window, and one vector per `ratio` tokens |
| `LinearAttention` | one matrix per head, whatever the context |
| `StateSpace` | one matrix per head, whatever the context |

Layers that only speculative decoding uses (MTP, next-n) are no part of a shape: engines
load them where speculation is asked for, and not otherwise.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Attention",
    "CompressedAttention",
    "DenseFeedForward",
    "ExpertFeedForward",
    "FeedForward",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Mixer",
    "NetworkShape",
    "SparseIndex",
    "StateSpace",
]


class SparseIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A small attention that picks the keys which its layer's attention then reads.

    Attributes:
        heads: Its query heads; its one key is shared by all.
        dim: Of a query and of the key.
        query_rank: Width that its queries are made from; `None` is the hidden size.
        weighted: Whether its heads are summed with learned weights (a matrix of their own).
        key_bytes: What the cache keeps of one key, scales included, whatever the dtype of
            the cache is.
    """

    heads: int
    dim: int
    key_bytes: float
    query_rank: int | None = None
    weighted: bool = True


class Attention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """Softmax attention with `kv_heads` shared by groups of query heads.

    `window` is the number of latest tokens that a query sees; `None` means all. Chunked
    attention counts as a window of its chunk: its cache is capped alike. With
    `qk_norm_all_heads` every head has a normalising weight of its own, else all share one.

    Attributes:
        value_dim: Of a value, where it is not that of a key.
        gate_columns: Columns of a matrix whose product gates the output; one per head or
            one per number.
        key_is_value: One projection yields both; the cache keeps both all the same.
        reuses_kv_cache: Reads the keys and values of an earlier layer and has none itself.
        top_k: Keys that a query reads, chosen by an index; `None` means all.
        index: What chooses them, where this layer does so itself.
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
    value_dim: int | None = None
    gate_columns: int = 0
    key_is_value: bool = False
    reuses_kv_cache: bool = False
    top_k: int | None = None
    index: SparseIndex | None = None

    @property
    def value_width(self) -> int:
        """Numbers of one head's value."""
        return self.head_dim if self.value_dim is None else self.value_dim


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="latent"):
    """Multi-head latent attention (DeepSeek-V2 and later).

    The cache holds one vector of `kv_rank + rope_dim` numbers per token for all heads.
    With `top_k` a query reads that many keys (DSA, DeepSeek-V3.2); layers without an
    `index` of their own then read what an earlier layer chose.
    """

    heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None
    output_gate: bool = False
    top_k: int | None = None
    index: SparseIndex | None = None


class CompressedAttention(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="compressed"
):
    """Attention over a window and over averages of what lies before it (DeepSeek-V4).

    Keys and values are one vector for all heads. With `ratio` every so many tokens become
    one more such vector, which is kept for good (HCA); with an `index` a query reads
    `top_k` of those (CSA). A `ratio` of 0 leaves the window alone.

    Attributes:
        output_rank: Of each of `output_groups` down-projections of the heads' output.
        overlapping: Each average takes in the block before too (ratio 4 in DeepSeek-V4).
    """

    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    output_groups: int
    output_rank: int
    window: int
    ratio: int = 0
    overlapping: bool = False
    top_k: int | None = None
    index: SparseIndex | None = None


class LinearAttention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="linear"):
    """Attention whose past is one matrix per head, of one size for every context.

    Attributes:
        key_heads: Heads of queries and keys, each used by `value_heads / key_heads` others.
        value_heads: Heads of values, one state of `key_dim x value_dim` each.
        conv_width: Taps of the convolution before it, none where 0; its last
            `conv_width - 1` inputs are part of the state.
        decay: How the past fades: `fixed` per head (lightning attention), learned per
            `head` (gated delta net), or learned per `channel` (KDA).
        gate_rank: Of the output gate, where it is not one full matrix.
        decay_rank: Of the matrices that make a `channel` decay.
        norm_all_heads: Whether the norm of the output spans all heads.
        state_dtype: Of the matrix; `auto` is the model's dtype.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 0
    decay: str = "head"
    gate_rank: int | None = None
    decay_rank: int | None = None
    norm_all_heads: bool = False
    state_dtype: str = "auto"

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values, which the convolution runs over."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


class StateSpace(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="state_space"):
    """Mamba-2: a state of `head_dim x state` per head, of one size for every context.

    Attributes:
        groups: Of heads that share what is written to and read from the state.
        conv_width: Taps of the convolution before it.
        state_dtype: Of the state; `auto` is the model's dtype.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    conv_width: int = 4
    conv_bias: bool = True
    bias: bool = False
    state_dtype: str = "auto"

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """The inputs and what is written and read, which the convolution runs over."""
        return self.inner + 2 * self.groups * self.state


class DenseFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dense"):
    """Two matrices of `inner` columns, or three where a gate multiplies."""

    inner: int
    gated: bool = True
    bias: bool = False


class ExpertFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="experts"):
    """A router that sends each token to `active` of `experts`, beside `shared_inner` for all.

    With `width` the routed experts work on that many numbers instead of the hidden size,
    between two projections that all tokens pass.
    """

    experts: int
    active: int
    inner: int
    shared_inner: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    gated: bool = True
    bias: bool = False
    width: int | None = None
    width_norm: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | LinearAttention | StateSpace
FeedForward = DenseFeedForward | ExpertFeedForward


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """`count` equal layers, each with `norms` normalising vectors of `hidden`.

    Attributes:
        mixer: `None` where a layer mixes no tokens.
        feed_forward: `None` where a layer has no such part.
        extra_parameters: Beside mixer, feed-forward part and norms, in the model's dtype:
            hyper-connections, residual gates, per-layer inputs.
        quantization: Where a checkpoint stores these layers otherwise than the network;
            see `quantization.py`.
        parallel: Whether mixer and feed-forward part read the same numbers and are added, so
            that devices agree once and not twice (Falcon).
    """

    count: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: int = 2
    extra_parameters: int = 0
    quantization: str | None = None
    parallel: bool = False


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
        extra_parameters: Outside the layers, beside embedding, head and last norm.
        vision_parameters: Of a vision tower and what joins it to the decoder, in the
            model's dtype; weights alone, no cost is counted for it.
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
    extra_parameters: int = 0
    vision_parameters: int = 0

    @property
    def layer_count(self) -> int:
        return sum(layer.count for layer in self.layers)
