"""Dimensions of a model: everything that determines its cost.

| symbol | here |
|---|---|
| h | `hidden` |
| L | sum of `Layer.count` |
| v | `vocab` |

A network is a sequence of `Layer` groups, each a token mixer and a feed-forward part that
repeat `count` times, so that hybrid networks (a few dense layers and then experts,
windows on every second layer, linear attention between, layers with only one part) need
no special case.

| mixer | state per sequence |
|---|---|
| `Attention` | keys and values of every token, or of a window |
| `LatentAttention` | one vector per token for all heads |
| `CompressedAttention` | a window, and one vector per `ratio` tokens |
| `LinearAttention` | one matrix per head, whatever the context |
| `StateSpace` | one matrix per head, whatever the context |

Layers used only by speculative decoding (MTP, next-n) are not part of a shape: engines load
them only when speculation is enabled.
"""

from __future__ import annotations

import functools

import msgspec


class SparseIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Indexer of sparse attention: a small attention that selects the keys to read.

    Attributes:
        heads: Query heads; one key is shared by all.
        dim: Width of a query and of the key.
        query_rank: Input width of the query projection; `None` is the hidden size.
        weighted: Whether heads are summed with learned weights (a matrix of their own).
        key_bytes: Cache bytes of one key, scales included, for any cache dtype.
        key_tokens: Tokens that one key stands for.
    """

    heads: int
    dim: int
    key_bytes: float
    key_tokens: int = 1
    query_rank: int | None = None
    weighted: bool = True

    @property
    def bytes_per_token(self) -> float:
        return self.key_bytes / self.key_tokens


class Attention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """Softmax attention with `kv_heads` shared by groups of query heads.

    `window` is the sliding window in tokens; `None` means full attention. Chunked attention
    counts as a window of its chunk: its cache is capped alike. With `qk_norm_all_heads` every
    head has a QK-norm weight of its own, else all share one; with `qk_norm_whole` one norm is of
    all heads together, so that devices that hold some of them exchange its variance.

    Attributes:
        value_dim: Width of a value, where it differs from a key's.
        gate_columns: Columns of the output-gate matrix; one per head or one per number.
        key_is_value: Whether one projection yields both; the cache holds both anyway.
        reuses_kv_cache: Whether the layer reads the KV cache of an earlier layer and has
            none of its own.
        top_k: Keys that a query reads, selected by an indexer; `None` means all.
        index: Indexer of this layer, if it has its own.
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
    qk_norm_whole: bool = False
    value_dim: int | None = None
    gate_columns: int = 0
    key_is_value: bool = False
    reuses_kv_cache: bool = False
    top_k: int | None = None
    index: SparseIndex | None = None

    @property
    def value_width(self) -> int:
        """Width of one head's value."""
        return self.head_dim if self.value_dim is None else self.value_dim


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="latent"):
    """Multi-head latent attention (DeepSeek-V2 and later).

    The cache holds one vector of `kv_rank + rope_dim` numbers per token for all heads.
    With `top_k` a query reads that many keys (DSA, DeepSeek-V3.2); layers without an
    `index` of their own reuse the selection of an earlier layer.
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
    """Attention over a window and over compressed blocks of earlier tokens (DeepSeek-V4).

    Keys and values are one vector for all heads. Every `ratio` tokens are compressed into one
    more such vector, which is kept permanently (HCA); with an `index` a query reads `top_k` of
    those (CSA). A `ratio` of 0 means the window only.

    Attributes:
        output_rank: Rank of each of `output_groups` down-projections of the heads' output.
        overlapping: Whether each compressed vector covers the previous block as well (ratio 4
            in DeepSeek-V4).
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
    """Linear attention: one state matrix per head, of constant size for any context.

    Attributes:
        key_heads: Heads of queries and keys, each shared by `value_heads / key_heads` value heads.
        value_heads: Heads of values, one state of `key_dim x value_dim` each.
        conv_width: Taps of the preceding convolution, 0 for none; its last
            `conv_width - 1` inputs are part of the state.
        decay: Kind of state decay: `fixed` per head (lightning attention), learned per
            `head` (gated delta net), or learned per `channel` (KDA).
        gate_rank: Rank of the output gate; `None` for a full matrix.
        decay_rank: Rank of the matrices of a `channel` decay.
        norm_all_heads: Whether the output norm spans all heads.
        state_dtype: Dtype of the state; `auto` is the model's dtype.
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
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


class StateSpace(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="state_space"):
    """Mamba-2: a state of `head_dim x state` per head, of constant size for any context.

    A gated short convolution alone (LFM2) has a `state` of 0 and a head for each channel.

    Attributes:
        groups: Groups of heads that share the input and output projections of the state.
        conv_width: Taps of the preceding convolution.
        state_dtype: Dtype of the state; `auto` is the model's dtype.
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
        """Channels of the convolution: inputs, and state input and output projections."""
        return self.inner + 2 * self.groups * self.state


class DenseFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dense"):
    """Dense feed-forward part: two matrices of `inner` columns, three with a gate."""

    inner: int
    gated: bool = True
    bias: bool = False


class ExpertFeedForward(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="experts"):
    """Mixture of experts: a router selects `active` of `experts`; `shared_inner` is for all.

    With `width` the routed experts work on that width instead of the hidden size, between two
    projections shared by all tokens. With `groups` the router chooses groups of experts first, and
    their experts then (one group for some networks); without, it chooses experts at once.
    """

    experts: int
    active: int
    inner: int
    shared_inner: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    groups: int | None = None
    gated: bool = True
    bias: bool = False
    width: int | None = None
    width_norm: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | LinearAttention | StateSpace
FeedForward = DenseFeedForward | ExpertFeedForward


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """Group of `count` equal layers, each with `norms` norm vectors of `hidden`.

    Attributes:
        mixer: Token mixer; `None` for a layer without one.
        feed_forward: Feed-forward part; `None` for a layer without one.
        extra_parameters: Parameters outside mixer, feed-forward part and norms, in the
            model's dtype: hyper-connections, residual gates, per-layer inputs.
        quantization: Storage of these layers, where it differs from the network's; see
            `quantization.py`.
        parallel: Whether mixer and feed-forward part read the same input and are added, so
            that devices all-reduce once and not twice (Falcon).
    """

    count: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: int = 2
    extra_parameters: int = 0
    quantization: str | None = None
    parallel: bool = False


class NetworkShape(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Decoder-only network as published, before any parallel split.

    Its hash is kept: what is known of a network is looked up by it many times for each plan.

    Attributes:
        name: Hub id or folder name, for messages.
        architecture: Class name of the configuration, such as `Qwen3ForCausalLM`.
        dtype: Dtype of activations and unquantised weights: `bf16` or `fp16`.
        quantization: Storage of the published weights; see `quantization.py`.
        kv_cache_dtype: Cache dtype declared by the checkpoint; `auto` is `dtype`.
        max_context_tokens: Longest sequence that the model supports.
        source: Origin of the numbers.
        extra_parameters: Parameters outside the layers, embedding, head and last norm.
        vision_parameters: Parameters of a vision tower and its projector, in the model's
            dtype; they count as weights only, at no compute cost.
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


@functools.lru_cache(maxsize=1024)
def has_experts(shape: NetworkShape) -> bool:
    """Whether tokens are routed to experts in some layer."""
    return any(isinstance(layer.feed_forward, ExpertFeedForward) for layer in shape.layers)
