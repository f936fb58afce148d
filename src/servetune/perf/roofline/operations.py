"""FLOPs and bytes of one step, operation by operation, on one device of the group.

A step is one forward pass over a mixed batch: prompts or parts of prompts (prefill) and
running sequences that get one token each (decode). Its cost depends on a handful of sums,
so a `Step` is five numbers whatever the number of requests.

| symbol | here |
|---|---|
| T | tokens of the step, `Step.tokens` |
| n, k | columns and rows of a weight matrix on one device |
| t | degree of tensor parallelism |

Matrices are split over the t devices by heads, by inner columns or by vocabulary. A KV
head is not split: beyond `kv_heads` devices it is copied. Latent caches, down-projections
and routers are whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import TypeVar

import msgspec

from servetune.engines.parallel import expert_ways
from servetune.models.quantization import (
    CACHE_DTYPES,
    DTYPE_BYTES,
    Quantization,
    canonical_cache_dtype,
    canonical_dtype,
    effective_quantization,
)
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    NetworkShape,
    StateSpace,
)
from servetune.perf.roofline import attention_variants
from servetune.plan.plan import Plan


class Step(msgspec.Struct, frozen=True):
    """Work of one forward pass.

    Attributes:
        prefill_tokens: Prompt tokens computed in this step.
        prefill_pairs: Query-key pairs of those tokens: a token at position p sees p + 1
            keys, so a whole prompt of s tokens has s(s+1)/2.
        prefill_sequences: Prompts that end in this step, each yielding a first token.
        decode_sequences: Running sequences, one token each.
        decode_context_tokens: Keys that those see, all sequences together, their own
            new token included.
        tokens_each: Tokens computed per decoding sequence: its next one, and those drafted.
    """

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    prefill_sequences: int = 0
    decode_sequences: int = 0
    decode_context_tokens: float = 0.0
    tokens_each: int = 1

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_sequences * self.tokens_each

    @property
    def logit_rows(self) -> int:
        """Sequences that get a token at the end of the step."""
        return self.prefill_sequences + self.decode_sequences * self.tokens_each


#: Largest group of ranks that exchange tokens for experts by gathering all of them: one node's.
_GATHERING = 8


class MatrixOp(msgspec.Struct, frozen=True, kw_only=True):
    """One dense matrix product per layer, `rows x inputs` by `inputs x outputs`.

    Attributes:
        count: Layers that have it.
        outputs: n on one device.
        inputs: k on one device.
        weight_width_bytes: Bytes that one weight occupies, scales included.
        math_dtype: Number format of the product.
        logits_only: Rows are sequences that get a token, not all tokens.
        scheme: Storage of weights (`Quantization.scheme`); empty or `none` if as published.
    """

    name: str
    count: int
    outputs: float
    inputs: float
    weight_width_bytes: float
    math_dtype: str
    logits_only: bool = False
    scheme: str = ""

    @property
    def flops_per_row(self) -> float:
        return 2 * self.outputs * self.inputs

    @property
    def weight_bytes(self) -> float:
        return self.outputs * self.inputs * self.weight_width_bytes

    def moved_bytes(self, rows: float, activation_bytes: float) -> float:
        """Weights once, inputs and outputs once per row."""
        return self.weight_bytes + rows * (self.inputs + self.outputs) * activation_bytes


#: Experts that a token does not choose, at least: without any, `ExpertsOp.visits` divides by zero.
_LEAST_UNCHOSEN = 1e-9


class ExpertsOp(msgspec.Struct, frozen=True, kw_only=True):
    """The routed experts of one layer, as grouped matrix products.

    Only experts that a token chooses are read. Of E experts whose popularity is exponentially
    distributed, T tokens that each choose `active` touch E * x / (1 + x) on average, with
    x = T * active / (E - active). By that the operator tables of a skewed router have the share of
    memory bandwidth that those of an even one have, which touches E * (1 - (1 - active/E)^T).

    Where whole experts lie on devices, all wait for the one that reads most: of its experts as many
    more are touched as the largest of so many normal deviates has standard deviations. That it has
    more tokens to compute is not modelled.

    Attributes:
        local_experts: Experts that lie on one device.
        expert_weights: Weights of one expert on one device.
        columns: Inner columns of an expert that one device holds.
        flops_per_token: FLOPs on one device per token of that device's own batch.
        traffic_per_token: Numbers read and written per token.
        token_copies: Batches (data-parallel ranks) whose tokens meet these experts.
        scheme: Storage of weights (`Quantization.scheme`); empty or `none` if as published.
        router_group_experts: Experts of a group among which a router with a bias chooses;
            infinite where the experts are no power of two, 0 for other routers.
    """

    count: int
    experts: int
    active: int
    local_experts: float
    expert_weights: float
    columns: float
    flops_per_token: float
    traffic_per_token: float
    token_copies: int
    weight_width_bytes: float
    math_dtype: str
    scheme: str = ""
    router_group_experts: float = 0.0

    def touched(self, tokens: float) -> float:
        """Local experts that at least one of `tokens` visits, on the device that has most."""
        share = self.touched_share(tokens)
        touched = share + self.busiest * math.sqrt(share * (1 - share))
        least = self.least_share * min(1.0, tokens)
        return float(self.local_experts * min(1.0, max(touched, least)))

    def touched_share(self, tokens: float) -> float:
        """Share of all experts that at least one of `tokens` visits, on average."""
        visits = self.visits * tokens
        return float(visits / (1 + visits))

    @property
    def busiest(self) -> float:
        """Further share that the busiest device's experts are touched by, over sqrt(p (1 - p))."""
        groups = self.experts / self.local_experts
        if groups <= 1:
            return 0.0
        largest = NormalDist().inv_cdf((groups - 0.375) / (groups + 0.25))  # Blom
        return float(largest / math.sqrt(self.local_experts))

    @property
    def least_share(self) -> float:
        """Share of a device's experts that one is; none where each device has a part of all."""
        return float(1 / self.local_experts) if self.local_experts < self.experts else 0.0

    @property
    def visits(self) -> float:
        """The x above for one token of each of `token_copies` batches."""
        return self.token_copies * self.active / max(self.experts - self.active, _LEAST_UNCHOSEN)

    @property
    def flops_per_extra_row(self) -> float:
        """FLOPs of one row of one local expert."""
        return 2 * self.expert_weights

    def moved_bytes(
        self, tokens: float, activation_bytes: float, touched: float | None = None
    ) -> float:
        """Bytes of one layer; `touched` is the number of local experts if not the busiest one's."""
        read = self.touched(tokens) if touched is None else touched
        weights = read * self.expert_weights * self.weight_width_bytes
        return weights + tokens * self.traffic_per_token * activation_bytes


class AttentionOp(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of equal layers on one device.

    Attributes:
        prefill_flops_per_pair: Scores and weighted values of one query-key pair.
        decode_flops_per_key: FLOPs of one key in decode; larger for latent attention, which then
            works in the compressed space.
        cache_bytes_per_key: Keys and values that decode reads.
        window: Latest keys that a query sees; `None` for all.
        latent: Whether the cache is one compressed vector for all heads.
        indexing: Whether this is the search for the keys that another one then reads.
        fp8_numbers_per_key: Numbers of the cache that are in fp8.
        query_heads: Query heads on the device.
        queries_per_key: Query heads of one KV head.
        small_cache: Whether the cache has fewer than sixteen bits; false for caches that an index
            reads or that are compressed along the context.
    """

    count: int
    prefill_flops_per_pair: float
    decode_flops_per_key: float
    cache_bytes_per_key: float
    window: int | None
    latent: bool = False
    indexing: bool = False
    small_cache: bool = False
    fp8_numbers_per_key: float = 0.0
    query_heads: float = 0.0
    queries_per_key: float = 1.0

    def pairs(self, prefill_tokens: float, prefill_pairs: float) -> float:
        """Pairs inside the window, at most `window` per token."""
        if self.window is None:
            return prefill_pairs
        return min(prefill_pairs, float(prefill_tokens * self.window))

    def keys(self, sequences: float, context_tokens: float) -> float:
        """Keys inside the window, as if all sequences were equally long."""
        if self.window is None:
            return context_tokens
        return min(context_tokens, float(sequences * self.window))


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass of a network under a plan, on one device of the group.

    Attributes:
        other_mixers: Layers that mix tokens by anything but plain attention.
        chunked_mixers: Layers among them that go through a prompt in chunks.
        elementwise_bytes_per_token: Norms, rotary, gates and residuals, all layers.
        reduce_count: All-reduces per pass under tensor parallelism: two per layer, or one
            where its parts work side by side, and one for the embedding.
        reduce_bytes_per_token: Message of each, one hidden vector.
        norm_reduce_count: All-reduces of a QK norm's variance per pass, `NORM_BYTES` per token.
        expert_exchange_bytes_per_token: Sent per token and exchange to experts elsewhere.
        expert_exchange_count: Exchanges per pass (there and back per layer).
        logit_bytes_per_row: Logits of one sequence, all devices together.
        longest_tokens: Longest sequence that the network takes.
    """

    matrices: tuple[MatrixOp, ...]
    experts: tuple[ExpertsOp, ...]
    attentions: tuple[AttentionOp, ...]
    layer_count: int
    other_mixers: int
    chunked_mixers: int
    activation_bytes: float
    elementwise_bytes_per_token: float
    reduce_count: int
    reduce_bytes_per_token: float
    norm_reduce_count: int
    expert_exchange_count: int
    expert_exchange_bytes_per_token: float
    vocab: int
    tensor_parallel: int
    longest_tokens: int

    @property
    def logit_bytes_per_row(self) -> float:
        return self.vocab * self.activation_bytes

    def flops(self, step: Step) -> float:
        """Multiplications and additions of the step on one device."""
        total = sum(
            op.count * op.flops_per_row * (step.logit_rows if op.logits_only else step.tokens)
            for op in self.matrices
        )
        total += sum(op.count * op.flops_per_token * step.tokens for op in self.experts)
        for op in self.attentions:
            pairs = op.pairs(step.prefill_tokens, step.prefill_pairs)
            keys = op.keys(step.decode_sequences, step.decode_context_tokens)
            decode_flops = op.decode_flops_per_key * keys * step.tokens_each
            total += op.count * (op.prefill_flops_per_pair * pairs + decode_flops)
        return float(total)

    def moved_bytes(self, step: Step) -> float:
        """Bytes that the step moves to and from one device's memory."""
        width = self.activation_bytes
        total = self.elementwise_bytes_per_token * step.tokens
        total += sum(
            op.count * op.moved_bytes(step.logit_rows if op.logits_only else step.tokens, width)
            for op in self.matrices
        )
        total += sum(op.count * op.moved_bytes(step.tokens, width) for op in self.experts)
        for op in self.attentions:
            keys = op.keys(step.decode_sequences, step.decode_context_tokens)
            total += op.count * op.cache_bytes_per_key * (keys + step.prefill_tokens)
        return float(total)


def operations(plan: Plan, shape: NetworkShape) -> Operations:
    """Operations of one device of a plan's tensor-parallel group in a forward pass.

    Args:
        plan: Plan, of which degrees of parallelism and dtypes are read.
        shape: The network as published.
    """
    split = _Split(plan, shape)
    matrices: list[MatrixOp] = []
    experts: list[ExpertsOp] = []
    attentions: list[AttentionOp] = []
    elementwise = 0.0
    for layer in shape.layers:
        matrices += split.mixer_matrices(layer)
        attentions += split.attentions(layer)
        if isinstance(layer.feed_forward, ExpertFeedForward):
            experts.append(split.experts(layer.count, layer.feed_forward))
        matrices += split.feed_forward_matrices(layer)
        elementwise += layer.count * split.elementwise_numbers(layer) * split.plain_bytes
    matrices.append(split.head())
    exchanged = split.expert_exchange_numbers() * split.plain_bytes
    return Operations(
        matrices=_merged(matrices),
        experts=_merged(experts),
        attentions=_merged(attentions),
        layer_count=shape.layer_count,
        other_mixers=sum(
            layer.count
            for layer in shape.layers
            if layer.mixer is not None and not isinstance(layer.mixer, Attention)
        ),
        chunked_mixers=sum(layer.count for layer in shape.layers if _in_chunks(layer.mixer)),
        activation_bytes=split.plain_bytes,
        elementwise_bytes_per_token=elementwise,
        reduce_count=_reduce_count(shape) if plan.tensor_parallel > 1 else 0,
        reduce_bytes_per_token=shape.hidden * split.plain_bytes,
        norm_reduce_count=_norm_reduce_count(shape) if plan.tensor_parallel > 1 else 0,
        expert_exchange_count=2 * sum(op.count for op in experts) if exchanged else 0,
        expert_exchange_bytes_per_token=exchanged,
        vocab=shape.vocab,
        tensor_parallel=plan.tensor_parallel,
        longest_tokens=shape.max_context_tokens,
    )


def _in_chunks(mixer: Mixer | None) -> bool:
    """Whether a layer goes through a prompt in chunks: it has a state, or compressed keys."""
    if isinstance(mixer, StateSpace):
        return mixer.state > 0
    return isinstance(mixer, LinearAttention | CompressedAttention)


def _reduce_count(shape: NetworkShape) -> int:
    return 1 + sum(layer.count * (1 if layer.parallel else 2) for layer in shape.layers)


#: Variances of queries and keys, in 32 bits, in one message (vLLM's `MiniMaxText01RMSNormTP`).
#: SGLang sends two, and for OLMo both gather the queries and keys themselves: not priced.
NORM_BYTES = 8.0


def _norm_reduce_count(shape: NetworkShape) -> int:
    return sum(
        layer.count
        for layer in shape.layers
        if isinstance(layer.mixer, Attention) and layer.mixer.qk_norm and layer.mixer.qk_norm_whole
    )


_Op = TypeVar("_Op", MatrixOp, ExpertsOp, AttentionOp)


def _merged(ops: Iterable[_Op]) -> tuple[_Op, ...]:
    """Equal operations of alternating layers as one, with the sum of their counts."""
    counts: dict[_Op, int] = {}
    for op in ops:
        kind = msgspec.structs.replace(op, count=0)
        counts[kind] = counts.get(kind, 0) + op.count
    return tuple(msgspec.structs.replace(kind, count=count) for kind, count in counts.items())


class _Split:
    """The shape's matrices as one device holds them."""

    def __init__(self, plan: Plan, shape: NetworkShape) -> None:
        self.hidden = shape.hidden
        self.vocab = shape.vocab
        self.ways = plan.tensor_parallel
        self.expert_group = expert_ways(plan)
        self.expert_parallel = plan.expert_parallel
        self.storage: Quantization = effective_quantization(shape.quantization, plan.quantization)
        dtype = plan.dtype if plan.dtype not in (None, "auto") else shape.dtype
        self.plain_bytes = DTYPE_BYTES[canonical_dtype(dtype or shape.dtype)]
        cache = plan.kv_cache_dtype if plan.kv_cache_dtype not in (None, "auto") else None
        cached_as = canonical_cache_dtype(cache or shape.kv_cache_dtype, model_dtype=shape.dtype)
        self.cache_bytes = CACHE_DTYPES[cached_as]
        self.cached_in_fp8 = cached_as == "fp8"
        self.active_experts = max(
            (
                layer.feed_forward.active
                for layer in shape.layers
                if isinstance(layer.feed_forward, ExpertFeedForward)
            ),
            default=0,
        )

    def matrix(
        self, name: str, count: int, outputs: float, inputs: float, *, scopes: tuple[str, ...]
    ) -> MatrixOp:
        width, math_dtype = self.stored(scopes)
        return MatrixOp(
            name=name,
            count=count,
            outputs=outputs,
            inputs=inputs,
            weight_width_bytes=width,
            math_dtype=math_dtype,
            scheme=self.scheme(scopes),
        )

    def scheme(self, scopes: tuple[str, ...]) -> str:
        part = self.storage.covering(scopes)
        return part.scheme if part else ""

    def stored(self, scopes: tuple[str, ...]) -> tuple[float, str]:
        """Bytes per weight and multiplying dtype of matrices in one of the scopes."""
        part = self.storage.covering(scopes)
        if part is not None and part.bytes_per_weight is not None:
            return part.bytes_per_weight, part.math_dtype or "bf16"
        return self.plain_bytes, "bf16"

    def mixer_matrices(self, layer: Layer) -> list[MatrixOp]:
        mixer, scopes = layer.mixer, ("linear",)
        found = [
            self.matrix(name, layer.count, outputs, inputs, scopes=scopes if packed else ())
            for name, outputs, inputs, packed in attention_variants.products(
                mixer, self.hidden, self.ways
            )
        ]
        if isinstance(mixer, LatentAttention):
            return found + self.latent_matrices(layer.count, mixer)
        if not isinstance(mixer, Attention):
            return found
        query = mixer.heads / self.ways * mixer.head_dim
        kept = 0 if mixer.reuses_kv_cache else self.local_kv_heads(mixer)
        kv = kept * (mixer.head_dim + (0 if mixer.key_is_value else mixer.value_width))
        values = mixer.heads / self.ways * mixer.value_width
        return [
            *found,
            self.matrix("qkv", layer.count, query + kv, self.hidden, scopes=scopes),
            self.matrix(
                "attention output", layer.count, self.hidden, values, scopes=(*scopes, "output")
            ),
        ]

    def latent_matrices(self, count: int, mixer: LatentAttention) -> list[MatrixOp]:
        """The cached vector is expanded in prefill and absorbed in decode: equal FLOPs."""
        scopes = ("linear",)
        heads = mixer.heads / self.ways
        query = heads * (mixer.nope_dim + mixer.rope_dim)
        down = mixer.kv_rank + mixer.rope_dim + (mixer.q_rank or 0)
        expanded = heads * (mixer.nope_dim + mixer.value_dim)
        return [
            self.matrix("latent down", count, down, self.hidden, scopes=scopes),
            self.matrix("query", count, query, mixer.q_rank or self.hidden, scopes=scopes),
            self.matrix("latent up", count, expanded, mixer.kv_rank, scopes=scopes),
            self.matrix(
                "attention output",
                count,
                self.hidden,
                heads * mixer.value_dim,
                scopes=(*scopes, "output"),
            ),
        ]

    def local_kv_heads(self, mixer: Attention) -> float:
        return max(1.0, mixer.kv_heads / self.ways)

    def attentions(self, layer: Layer) -> list[AttentionOp]:
        mixer = layer.mixer
        read = attention_variants.readings(mixer, self.ways, self.cache_bytes, self.plain_bytes)
        if read is None and isinstance(mixer, Attention | LatentAttention):
            return [self.attention(layer.count, mixer)]
        return [AttentionOp(count=layer.count, **reading._asdict()) for reading in read or ()]

    def attention(self, count: int, mixer: Attention | LatentAttention) -> AttentionOp:
        heads = mixer.heads / self.ways
        if isinstance(mixer, LatentAttention):
            cached = mixer.kv_rank + mixer.rope_dim
            return AttentionOp(
                count=count,
                prefill_flops_per_pair=2
                * heads
                * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim),
                decode_flops_per_key=2 * heads * (cached + mixer.kv_rank),
                cache_bytes_per_key=cached * self.cache_bytes,
                window=None,
                latent=True,
                small_cache=self.cache_bytes < DTYPE_BYTES["bf16"],
                fp8_numbers_per_key=self.cached_in_fp8 * cached,
            )
        width = mixer.head_dim + mixer.value_width
        numbers = self.local_kv_heads(mixer) * width
        return AttentionOp(
            count=count,
            prefill_flops_per_pair=2 * heads * width,
            decode_flops_per_key=2 * heads * width,
            cache_bytes_per_key=numbers * self.cache_bytes,
            window=mixer.window,
            query_heads=heads,
            queries_per_key=heads / self.local_kv_heads(mixer),
            small_cache=self.cache_bytes < DTYPE_BYTES["bf16"],
            fp8_numbers_per_key=self.cached_in_fp8 * numbers,
        )

    def feed_forward_matrices(self, layer: Layer) -> list[MatrixOp]:
        part, count = layer.feed_forward, layer.count
        if part is None:
            return []
        scopes = ("linear", "feed_forward")
        ups = 2 if part.gated else 1
        inner = part.inner if isinstance(part, DenseFeedForward) else part.shared_inner
        found = []
        if isinstance(part, ExpertFeedForward):
            found.append(self.matrix("router", count, part.experts, self.hidden, scopes=()))
            if part.width:
                found.append(self.matrix("expert down", count, part.width, self.hidden, scopes=()))
                found.append(self.matrix("expert up", count, self.hidden, part.width, scopes=()))
        if inner:
            columns = inner / self.ways
            found += [
                self.matrix("gate and up", count, ups * columns, self.hidden, scopes=scopes),
                self.matrix("down", count, self.hidden, columns, scopes=scopes),
            ]
        return found

    def experts(self, count: int, part: ExpertFeedForward) -> ExpertsOp:
        """Without expert parallelism every device holds a slice of every expert.

        Data-parallel ranks that share the experts bring their tokens together, so each
        device sees `token_copies` batches and a share of the work of each.
        """
        scopes = ("linear", "feed_forward", "experts")
        width, math_dtype = self.stored(scopes)
        matrices = 3 if part.gated else 2
        width_in = part.width or self.hidden
        weights = matrices * width_in * part.inner
        whole = self.expert_parallel
        return ExpertsOp(
            count=count,
            experts=part.experts,
            active=part.active,
            local_experts=part.experts / self.expert_group if whole else part.experts,
            expert_weights=weights if whole else weights / self.expert_group,
            columns=part.inner if whole else part.inner / self.expert_group,
            flops_per_token=2 * part.active * weights / self.ways,
            traffic_per_token=part.active
            * (2 * width_in / (self.ways if whole else 1) + matrices * part.inner / self.ways),
            token_copies=self.expert_group // self.ways,
            weight_width_bytes=width,
            math_dtype=math_dtype,
            scheme=self.scheme(scopes),
            router_group_experts=_chosen_among(part),
        )

    def elementwise_numbers(self, layer: Layer) -> float:
        """Numbers read and written per token by what is not a matrix product.

        A norm with its residual reads two vectors and writes two; rotary and query/key
        norms read and write queries and keys; a gate reads two and writes one.
        """
        mixer, part = layer.mixer, layer.feed_forward
        if isinstance(mixer, LatentAttention):
            turned = mixer.heads / self.ways * (mixer.nope_dim + mixer.rope_dim)
            turned += mixer.kv_rank + mixer.rope_dim
        elif not isinstance(mixer, Attention):
            turned = attention_variants.turned_numbers(mixer, self.ways)
        else:
            turned = mixer.heads / self.ways * mixer.head_dim
            turned += 2 * self.local_kv_heads(mixer) * mixer.head_dim
        if isinstance(part, ExpertFeedForward):
            inner = part.active * part.inner + part.shared_inner
        else:
            inner = 0 if part is None else part.inner
        return layer.norms * 4 * self.hidden + 2 * turned + 3 * inner / self.ways

    def head(self) -> MatrixOp:
        return MatrixOp(
            name="head",
            count=1,
            outputs=self.vocab / self.ways,
            inputs=self.hidden,
            weight_width_bytes=self.storage.width_of("head") or self.plain_bytes,
            math_dtype="bf16",
            logits_only=True,
        )

    def expert_exchange_numbers(self) -> float:
        """Numbers that a token costs on its way to experts on other ranks, as in an all-gather.

        Within a node engines gather all tokens on all ranks and scatter the sums (vLLM's
        `allgather_reducescatter`, attention DP of TensorRT-LLM and SGLang). Beyond one, kernels
        send a token once to each rank that has one of its experts.
        """
        group, active = self.expert_group, self.active_experts
        if group == self.ways:
            return 0.0
        ranks = group if group <= _GATHERING else group * (1 - (1 - 1 / group) ** active)
        return float(ranks * self.hidden / self.ways)


def _chosen_among(part: ExpertFeedForward) -> float:
    """Experts among which a router with a bias chooses at a time; see `ExpertsOp`.

    Kernels of their own exist for numbers of experts that are powers of two, and one for Kimi's
    384, which counts as if it knew groups of 32 as the oldest do.
    """
    if part.groups is None or not part.router_bias:
        return 0.0
    if part.experts == 384 and part.groups == 1:
        return 32.0
    return part.experts / part.groups if part.experts.bit_count() == 1 else math.inf
