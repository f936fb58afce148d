"""Step laws of many plans in arrays, which price thousands of plans at once.

`StepLaw` prices one plan and is what the simulator asks; `StepLaws` is the same law for many
plans at once. Work and machines (`PlanBatch`) are kept apart from coefficients, because a fit
tries many coefficients on the same work.

| symbol | here |
|---|---|
| R | plans, the last axis of every array |
| M, H, E, A | most distinct matrix products, output heads, expert layers, attentions of any plan |

Places that a plan does not use have a count of zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servetune.engines import engine
from servetune.hardware.device import Node
from servetune.perf.roofline.coefficients import ONE_PASS_TOKENS, PATHS, Coefficients
from servetune.perf.roofline.collectives import (
    GATHER_SHARE,
    PARTS,
    Collective,
    all_reduce_law,
    exchange_law,
)
from servetune.perf.roofline.drafting import drafts_on_device, tokens_per_step
from servetune.perf.roofline.operations import (
    NORM_BYTES,
    AttentionOp,
    ExpertsOp,
    MatrixOp,
    Operations,
)
from servetune.perf.roofline.step import (
    FILLING_ROWS,
    NEAR_TOKENS,
    Kind,
    exchange_group,
    kind_of,
    slowdown,
)
from servetune.plan.plan import Plan

Array = NDArray[np.float64]

_VALUES = attrgetter(*PATHS)
#: Fields of a plan that its row depends on, besides its work and machine.
_READ_BY_ROW = attrgetter(
    "engine",
    "data_parallel",
    "pipeline_parallel",
    "draft_tokens",
    "draft_method",
    "draft_acceptance_fraction",
    "extra",
)


def columns_of(coefficients: Sequence[Coefficients]) -> dict[str, Array]:
    """Path of a coefficient -> its values, each of shape (R,)."""
    distinct = {id(value): value for value in coefficients}
    rows = {key: np.array(_VALUES(value), dtype=float) for key, value in distinct.items()}
    table = np.stack([rows[id(value)] for value in coefficients])
    return {name: table[:, index] for index, name in enumerate(PATHS)}


class PlanBatch:
    """The work of many plans and the machines that do it, without any coefficient."""

    def __init__(self, priced: Sequence[tuple[Operations, Node, Plan]]) -> None:
        known: dict[tuple[object, ...], int] = {}
        rows: list[_Row] = []
        chosen = []
        for ops, node, plan in priced:
            key = (id(ops), id(node), *_READ_BY_ROW(plan))
            number = known.setdefault(key, len(rows))
            if number == len(rows):
                rows.append(_Row(ops, node, plan))
            chosen.append(number)
        numbers = np.array(chosen, dtype=np.intp)
        self.matrices = _table([row.matrices for row in rows], _MATRIX, numbers)
        self.heads = _table([row.heads for row in rows], _MATRIX, numbers)
        self.experts = _table([row.experts for row in rows], _EXPERTS, numbers)
        self.attentions = _table([row.attentions for row in rows], _ATTENTION, numbers)
        self.flat = _columns(rows, numbers)
        self.longest_tokens = np.array(
            [plan.max_model_len or ops.longest_tokens for ops, _, plan in priced], dtype=float
        )

    def __len__(self) -> int:
        return len(self.flat["layers"])


#: Factor by which a logistic law is within 0.01 of a normal one's distribution.
_LOGISTIC = 1.702
#: Tokens come whole: a law of real numbers is read in the middle between two of them.
_HALF_TOKEN = 0.5


def _share_within(room: Array, spread: Array | float) -> Array:
    """Share of steps at most `room` tokens larger than the mean one, of a normal law's `spread`."""
    exact = room >= -NEAR_TOKENS
    if isinstance(spread, float) and spread == 0.0:
        return exact.astype(float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = 1 / (1 + np.exp(-_LOGISTIC * (room + _HALF_TOKEN) / spread))
    return np.where(np.asarray(spread) > 0, share, exact)


class StepLaws:
    """Seconds of one step under each of R plans; the law is that of `StepLaw`.

    Args:
        stack: Work and machines.
        c: Coefficients by field, each of shape (R,); see `columns_of`.
        batches: Batches that each pipeline has in flight, shape (R,); judged by the sequences of
            a step if omitted.
    """

    def __init__(
        self, stack: PlanBatch, c: Mapping[str, Array], batches: Array | None = None
    ) -> None:
        self.c = c
        self._batches = batches
        self._stack = stack
        flat = stack.flat
        memory = flat["bytes_per_s"]
        self._plain_bytes_per_s = memory * c["gemm.memory_fraction"]
        self._products = _Products(stack.matrices, memory, c)
        self._heads = _Products(stack.heads, memory, c)
        self._expert_rates = (
            _expert_flops_per_s(stack.experts, c),
            (memory * c["experts.memory_fraction"]),
        )
        self._extra_rows = np.where(
            stack.experts["widened"] > 0,
            c["experts.extra_rows_packed"],
            c["experts.extra_rows"],
        )
        attention = stack.attentions
        self._pair_s, self._key_s, self._one_pass = _attention_lines(stack, c)
        latent_layers = (attention["count"] * attention["latent"]).sum(axis=0)
        self._fixed_s = (
            flat["layers"] * c["small_kernels.per_layer"] * c["small_kernels.kernel_s"]
            + attention["count"].sum(axis=0) * c["attention.kernel_s"]
            + latent_layers * c["attention.latent_s"]
            + (attention["count"] * attention["indexing"]).sum(axis=0) * c["attention.index_s"]
            + (stack.experts["count"] * _expert_kernel_s(stack.experts, c)).sum(axis=0)
        )
        # What a step with prompts waits for beside its products, and a launch of all layers.
        experts_s = c["launch.experts_s"] * stack.experts["count"].sum(axis=0)
        self._apart_s = experts_s + c["launch.mixer_s"] * flat["other_mixers"]
        self._chunked_s = c["launch.chunked_s"] * flat["chunked_mixers"]
        self._layers_s = c["launch.layer_s"] * flat["layers"]
        self._captures = c["launch.captured_tokens"], c["launch.captured_sequences"]
        self._step_s = c["host.step_s"] + c["host.rank_s"] * flat["doublings"]
        self._verified_s = c["host.draft_sequence_s"] * (flat["tokens_each"] > 1)
        self._stream_s = c["host.stream_token_s"] * flat["process_share"]
        self._collectives = _collectives(stack, c)
        self._sampled_bytes_per_row = flat["vocab"] * c["small_kernels.sampling_bytes_per_logit"]

    def with_batches(self, batches: Array) -> StepLaws:
        """These laws where pipelines have so many batches in flight, shape (R,)."""
        laws = copy.copy(self)
        laws._batches = batches
        return laws

    def seconds(
        self,
        prefill_tokens: Array,
        prefill_pairs: Array,
        prefill_sequences: Array,
        decode_sequences: Array,
        decode_context_tokens: Array,
        spread_tokens: Array | float = 0.0,
    ) -> Array:
        """Mean seconds of a step per plan; the arguments are the fields of `Step`, shape (R,).

        Args:
            spread_tokens: Standard deviation of a step's tokens from step to step, those of prompts
                and of decoding sequences.
        """
        c, flat, attention = self.c, self._stack.flat, self._stack.attentions
        sequences = prefill_sequences + decode_sequences
        decode_tokens = decode_sequences * flat["tokens_each"]
        tokens = prefill_tokens + decode_tokens
        device_s = self._dense_s(tokens, prefill_sequences + decode_tokens)
        if flat["drafted"].any():
            device_s += self._drafting_s(decode_sequences)
        window = attention["window"]
        pairs = np.minimum(prefill_pairs, prefill_tokens * window)
        pairs += c["attention.extra_pairs_per_token"] * prefill_tokens
        keys = np.minimum(decode_context_tokens, decode_sequences * window)
        key_s = self._key_s
        if self._one_pass is not None:
            one_pass_key_s, most_sequences = self._one_pass
            one_pass = decode_sequences > most_sequences
            one_pass &= decode_context_tokens <= decode_sequences * ONE_PASS_TOKENS
            key_s = np.where(one_pass, one_pass_key_s, key_s)
        device_s += (self._pair_s * pairs).sum(axis=0) + (key_s * keys).sum(axis=0)
        prompts = prefill_tokens > 0
        most = np.where(prompts, *self._captures)
        captured = _share_within(most - prefill_tokens - decode_sequences, spread_tokens)
        captured = captured * (most > 0)  # where nothing is captured, no smaller step is, either
        added_s = np.where(prompts, self._apart_s, 0.0)  # not hidden behind the products
        floor_s = self._layers_s + self._apart_s - added_s
        host_s = self._step_s + c["host.sequence_s"] * sequences
        host_s += c["host.prompt_s"] * prefill_sequences + self._verified_s * decode_sequences
        chunked_s = np.where(prompts, self._chunked_s, 0.0)
        device_s = np.maximum(c["device_factor"] * device_s, chunked_s)
        launched_s = np.maximum(device_s, floor_s) + added_s
        device_s = captured * device_s + (1 - captured) * launched_s
        step_s = host_s + device_s
        if flat["hand_overs"].any():
            rows = prefill_sequences + decode_tokens
            sampled_s = self._sampled_bytes_per_row * rows / self._plain_bytes_per_s
            head_s = c["device_factor"] * (self._heads.seconds(rows) + sampled_s)
            in_flight = self._batches
            if in_flight is None:
                in_flight = 1 + flat["hand_overs"] * np.clip(sequences - 1, 0.0, 1.0)
            slowest_s = host_s + (device_s - head_s) / (flat["hand_overs"] + 1) + head_s
            slowest_s += c["host.other_sequence_s"] * sequences * (in_flight - 1)
            step_s = np.maximum(step_s, in_flight * slowest_s)
        streamed = prefill_sequences + flat["gained"] * decode_sequences
        load = self._stream_s * streamed / step_s
        return np.asarray(step_s * slowdown(load))

    def _drafting_s(self, sequences: Array) -> Array:
        """One layer and the output head for every drafted token, one after another."""
        flat = self._stack.flat
        layer_s = self._dense_s(sequences, 0 * sequences) / flat["layers"]
        drafted_s = layer_s + self._heads.seconds(sequences)
        return np.asarray(flat["drafted"] * drafted_s * (sequences > 0))

    def _dense_s(self, tokens: Array, rows: Array) -> Array:
        c, flat = self.c, self._stack.flat
        experts = self._stack.experts
        seconds = self._products.seconds(tokens) + self._heads.seconds(rows)
        flops_per_s, bytes_per_s = self._expert_rates
        visits = experts["visits"] * tokens
        every = tokens <= c["experts.every_expert_tokens"]
        share = visits / (1 + visits)
        touched = share + experts["busiest"] * np.sqrt(share * (1 - share))
        touched = np.maximum(touched, experts["least_share"] * np.minimum(1.0, tokens))
        share, touched = (np.where(every, 1.0, np.minimum(1.0, x)) for x in (share, touched))
        moved = experts["local_bytes"] * touched + experts["traffic_bytes"] * tokens
        extra = self._extra_rows * experts["row_flops"] * share
        computed = experts["flops"] * tokens * np.where(every, experts["choices"], 1.0) + extra
        experts_s = np.maximum(computed / flops_per_s, moved / bytes_per_s)
        seconds += (experts["count"] * experts_s).sum(axis=0)
        moved_bytes = flat["elementwise_bytes_per_token"] * tokens
        moved_bytes += self._sampled_bytes_per_row * rows
        seconds += moved_bytes / self._plain_bytes_per_s
        return np.asarray(seconds + self._fixed_s + self._agreement_s(tokens, rows))

    def _agreement_s(self, tokens: Array, rows: Array) -> Array:
        seconds = np.zeros_like(tokens)
        for collective in self._collectives:
            seconds += collective.seconds(rows if collective.of_rows else tokens)
        return np.asarray(self.c["link_factor"] * seconds)


class _Collectives(NamedTuple):
    """All collectives of one kind in a step of each plan; arrays have shape (R,).

    Attributes:
        calls: Collectives of a step.
        bytes_each: Bytes of the message for each token or, `of_rows`, for each row of logits.
        lines: Parts of the law: least bytes, latency, and seconds per byte of each.
    """

    calls: Array
    bytes_each: Array
    lines: tuple[tuple[Array, Array, Array], ...]
    of_rows: bool = False

    def seconds(self, tokens: Array) -> Array:
        sent_bytes = self.bytes_each * tokens
        (_, latency_s, s_per_byte), *larger = self.lines
        for from_bytes, more_s, more_s_per_byte in larger:
            longer = sent_bytes >= from_bytes
            latency_s = np.where(longer, more_s, latency_s)
            s_per_byte = np.where(longer, more_s_per_byte, s_per_byte)
        return np.asarray(self.calls * (latency_s + s_per_byte * sent_bytes))


def _collectives(stack: PlanBatch, c: Mapping[str, Array]) -> list[_Collectives]:
    """Kinds of collectives that any of the plans has."""
    flat = stack.flat
    hidden = flat["reduce_bytes_per_token"]
    norms = np.full_like(hidden, NORM_BYTES)
    logits = GATHER_SHARE * flat["logit_bytes_per_row"]
    experts = flat["exchange_bytes_per_token"] / 2
    found = [
        _Collectives(flat["hand_overs"], hidden, _part_lines(flat, "send", c)),
        _Collectives(flat["reduce_count"], hidden, _part_lines(flat, "reduce", c)),
        _Collectives(flat["norm_reduce_count"], norms, _part_lines(flat, "reduce", c)),
        _Collectives(flat["gathers"], logits, _part_lines(flat, "reduce", c), of_rows=True),
        _Collectives(flat["exchange_count"], experts, _part_lines(flat, "exchange", c)),
    ]
    return [each for each in found if each.calls.any()]


def _part_lines(
    flat: Mapping[str, Array], name: str, c: Mapping[str, Array]
) -> tuple[tuple[Array, Array, Array], ...]:
    """Parts of a collective's law that hold for any message of any plan."""
    least_s = c["collective_latency_s"]
    parts = (tuple(flat[f"{name}_{value}_{part}"] for value in _LINE) for part in range(PARTS))
    return tuple(
        (from_bytes, np.maximum(latency_s, least_s), s_per_byte)
        for from_bytes, latency_s, s_per_byte in parts
        if np.isfinite(from_bytes).any()
    )


class _Products:
    """Plain products of every plan, each as `_MatrixLine` of `step` has it."""

    def __init__(
        self, table: Mapping[str, Array], bytes_per_s: Array, c: Mapping[str, Array]
    ) -> None:
        count = table["count"]
        flops_per_s, reached_bytes_per_s = _rates(table, bytes_per_s, c)
        narrow = table["narrow"] > 0
        narrow_s = np.where(table["blocks"] > 0, c["gemm.kernel_blocks_s"], c["gemm.kernel_8bit_s"])
        self._kernels_s = (count * np.where(narrow, narrow_s, c["gemm.kernel_s"])).sum(axis=0)
        self._compute_s = count * table["flops"] / flops_per_s
        self._weights_s = count * table["weight_bytes"] / reached_bytes_per_s
        self._traffic_s = count * table["traffic_bytes"] / reached_bytes_per_s
        self._padding_s = self._compute_s * (c["gemm.extra_rows"] * narrow)

    def seconds(self, rows: Array) -> Array:
        """All of them with so many rows, shape (R,)."""
        computed_s = self._compute_s * rows - self._padding_s * np.expm1(-rows / FILLING_ROWS)
        moved_s = self._weights_s + self._traffic_s * rows
        return np.asarray(self._kernels_s + np.maximum(computed_s, moved_s).sum(axis=0))


def _attention_lines(
    stack: PlanBatch, c: Mapping[str, Array]
) -> tuple[Array, Array, tuple[Array, Array] | None]:
    """Numbers of `_AttentionLine` of `step`, shapes (A, R); the last two only if any needs them."""
    table, flat = stack.attentions, stack.flat
    own = {
        name.removeprefix("attention."): values
        for name, values in c.items()
        if name.startswith("attention.")
    }
    memory = flat["bytes_per_s"]
    latent, small = table["latent"] > 0, table["small_cache"] > 0
    peak = np.where(table["indexing"] > 0, flat["fp8_flops"], flat["bf16_flops"])
    flops_per_s = peak * own["compute_fraction"]
    flops_per_s *= np.where(latent, own["latent_compute_share"], 1.0)
    bytes_per_s = memory * own["memory_fraction"] * np.where(latent, own["latent_memory_share"], 1)
    bytes_per_s *= np.where(small, own["small_cache_memory_share"], 1.0)
    repeated = np.maximum(own["repeated_reads"], small * own["small_cache_repeated_reads"])
    queries = table["queries_per_key"]
    reads = 1 + (queries != own["read_once_group"]) * repeated * (queries - 1)
    computed_s = np.maximum(
        own["widened_number_s"] * table["widened"] * reads,
        flat["tokens_each"] * table["key_flops"] / flops_per_s,
    )
    key_s = table["count"] * np.maximum(table["key_bytes"] * reads / bytes_per_s, computed_s)
    pair_s = table["count"] * table["pair_flops"] / flops_per_s
    if not own["one_pass_heads"].any():
        return pair_s, key_s, None
    heads = table["query_heads"]
    limited = (own["one_pass_heads"] > 0) & (heads > 0)
    most_sequences = np.full_like(queries, np.inf)
    places = own["one_pass_heads"] * flat["dies"]
    np.divide(places, heads, out=most_sequences, where=limited)
    shorter = np.maximum(1.0, ONE_PASS_TOKENS / stack.longest_tokens)
    share = np.minimum(own["one_pass_memory_fraction"] * shorter, own["memory_fraction"])
    one_pass_s = np.maximum(table["key_bytes"] * queries / (memory * share), computed_s)
    return pair_s, key_s, (table["count"] * one_pass_s, most_sequences)


def _rates(
    table: Mapping[str, Array], bytes_per_s: Array, c: Mapping[str, Array]
) -> tuple[Array, Array]:
    """FLOP/s and bytes/s that products of each kind reach."""
    fraction = np.where(
        table["four_bit"] > 0,
        c["gemm.compute_fraction_4bit"],
        np.where(
            table["narrow"] > 0,
            c["gemm.compute_fraction_8bit"],
            c["gemm.compute_fraction"],
        ),
    )
    fraction *= np.where(table["blocks"] > 0, c["gemm.blocks_share"], 1.0)
    thin = np.where(
        table["thin"] > 0,
        c["gemm.memory_fraction_8bit"],
        c["gemm.memory_fraction"],
    )
    thin = np.where(table["four_bit"] > 0, c["gemm.memory_fraction_4bit"], thin)
    most = np.where(table["widened"] > 0, c["gemm.widened_flops_per_s"], np.inf)
    return np.minimum(table["peak_flops"] * fraction, most), bytes_per_s * thin


def _expert_kernel_s(table: Mapping[str, Array], c: Mapping[str, Array]) -> Array:
    plain, blocks, four_bit, mxfp4 = (
        c[f"experts.layer{kind}_s"] for kind in ("", "_blocks", "_4bit", "_mxfp4")
    )
    plain = np.where(table["mxfp4"] > 0, mxfp4, plain)
    apart = table["router_group_experts"] > c["experts.fused_group_experts"]
    kernel_s = np.where(table["blocks"] > 0, blocks, plain)
    kernel_s = np.where(table["four_bit"] > 0, four_bit, kernel_s)
    return np.asarray(kernel_s + apart * c["experts.router_s"])


def _expert_flops_per_s(table: Mapping[str, Array], c: Mapping[str, Array]) -> Array:
    plain, packed, mxfp4, eight_bit, blocks, four_bit = (
        c[f"experts.compute_fraction{kind}"]
        for kind in ("", "_packed", "_mxfp4", "_8bit", "_blocks", "_4bit")
    )
    packed = np.where(table["mxfp4"] > 0, mxfp4, packed)
    wide = np.where(table["widened"] > 0, packed, plain)
    narrow = np.where(table["blocks"] > 0, blocks, eight_bit)
    narrow = np.where(table["four_bit"] > 0, four_bit, narrow)
    fraction = np.where(table["narrow"] > 0, narrow, wide)
    narrowed = 1 + c["experts.half_columns"] / table["columns"]
    return np.asarray(table["peak_flops"] * fraction / narrowed)


#: A window that no context fills; infinity would turn an empty batch into no number.
_ALL_KEYS = 1e15
_KIND = {"peak_flops": 1.0} | dict.fromkeys(Kind._fields[1:], 0.0)
#: Columns of each table, with what an unused place holds.
_MATRIX = {
    "count": 0.0,
    "flops": 0.0,
    "weight_bytes": 0.0,
    "traffic_bytes": 0.0,
    **_KIND,
}
_EXPERTS = {
    "count": 0.0,
    "flops": 0.0,
    "row_flops": 0.0,
    "local_bytes": 0.0,
    "traffic_bytes": 0.0,
    "visits": 0.0,
    "busiest": 0.0,
    "least_share": 0.0,
    "choices": 1.0,
    "columns": 1.0,
    "router_group_experts": 0.0,
    **_KIND,
}
_ATTENTION = {
    "count": 0.0,
    "pair_flops": 0.0,
    "key_flops": 0.0,
    "key_bytes": 0.0,
    "window": _ALL_KEYS,
    "latent": 0.0,
    "indexing": 0.0,
    "small_cache": 0.0,
    "widened": 0.0,
    "query_heads": 0.0,
    "queries_per_key": 1.0,
}


#: Values of a part of a collective's law: from which message it holds, and its line.
_LINE = ("from_bytes", "latency_s", "s_per_byte")


def _collective_columns(name: str) -> list[str]:
    """Columns of a collective."""
    return [f"{name}_{value}_{part}" for part in range(PARTS) for value in _LINE]


_FLAT = (
    "layers",
    "other_mixers",
    "chunked_mixers",
    "doublings",
    "bytes_per_s",
    "bf16_flops",
    "fp8_flops",
    "dies",
    "vocab",
    "elementwise_bytes_per_token",
    "reduce_bytes_per_token",
    "logit_bytes_per_row",
    "reduce_count",
    "norm_reduce_count",
    "gathers",
    "hand_overs",
    "exchange_count",
    "exchange_bytes_per_token",
    *_collective_columns("reduce"),
    *_collective_columns("exchange"),
    *_collective_columns("send"),
    "tokens_each",
    "drafted",
    "gained",
    "process_share",
)


class _Row:
    """One plan's numbers, in the order of the tables' columns."""

    def __init__(self, ops: Operations, node: Node, plan: Plan) -> None:
        self.matrices, self.heads = (
            [_matrix_row(op, ops, node) for op in ops.matrices if op.logits_only == logits]
            for logits in (False, True)
        )
        self.experts = [_experts_row(op, ops, node) for op in ops.experts]
        self.attentions = [_attention_row(op, node) for op in ops.attentions]
        split = ops.tensor_parallel > 1
        reduce = all_reduce_law(node.link, ops.tensor_parallel)
        exchange = exchange_law(node.link, exchange_group(ops, plan))
        self.flat = (
            ops.layer_count,
            ops.other_mixers,
            ops.chunked_mixers,
            math.log2(ops.tensor_parallel),
            node.device.memory_bytes_per_s,
            node.device.bf16_flops,
            node.device.peak_flops("fp8"),
            node.device.dies,
            ops.vocab,
            ops.elementwise_bytes_per_token,
            ops.reduce_bytes_per_token,
            ops.logit_bytes_per_row,
            ops.reduce_count if split else 0,
            ops.norm_reduce_count if split else 0,
            float(split),
            plan.pipeline_parallel - 1,
            ops.expert_exchange_count,
            ops.expert_exchange_bytes_per_token,
            *_lines(reduce),
            *_lines(exchange),
            *_lines(all_reduce_law(node.link, 2)),
            1 + (plan.draft_tokens or 0),
            drafts_on_device(plan),
            tokens_per_step(plan),
            engine(plan.engine).behaviour.front_end.process_share(plan),
        )


def _columns(rows: Sequence[_Row], numbers: NDArray[np.intp]) -> dict[str, Array]:
    values = np.array([row.flat for row in rows], dtype=float).reshape(len(rows), len(_FLAT))
    return {name: values[numbers, index] for index, name in enumerate(_FLAT)}


def _table(
    parts: Sequence[Sequence[Sequence[float]]],
    names: Mapping[str, float],
    numbers: NDArray[np.intp],
) -> dict[str, Array]:
    """Column name -> values of shape (places, R), unused places filled.

    Args:
        parts: Parts of each distinct row.
        names: Columns, with what an unused place holds.
        numbers: Row of each plan, shape (R,).
    """
    width = max(map(len, parts), default=0)
    empty = list(names.values())
    values = np.array(
        [[*part, *[empty] * (width - len(part))] for part in parts], dtype=float
    ).reshape(len(parts), width, len(names))
    columns = np.ascontiguousarray(values.transpose(2, 1, 0)).take(numbers, axis=2)
    return dict(zip(names, columns, strict=True))


def _lines(law: Collective) -> list[float]:
    """Values of `_collective_columns`; parts that a law lacks hold for no message."""
    lines = [(part.from_bytes, part.latency_s, 1 / part.bytes_per_s) for part in law.parts]
    lines += [(math.inf, 0.0, 0.0)] * (PARTS - len(lines))
    return [value for line in lines for value in line]


def _kind(op: MatrixOp | ExpertsOp, node: Node) -> tuple[float, ...]:
    return tuple(float(value) for value in kind_of(op, node.device))


def _matrix_row(op: MatrixOp, ops: Operations, node: Node) -> tuple[float, ...]:
    return (
        op.count,
        op.flops_per_row,
        op.weight_bytes,
        (op.inputs + op.outputs) * ops.activation_bytes,
        *_kind(op, node),
    )


def _experts_row(op: ExpertsOp, ops: Operations, node: Node) -> tuple[float, ...]:
    return (
        op.count,
        op.flops_per_token,
        op.local_experts * op.flops_per_extra_row,
        op.local_experts * op.expert_weights * op.weight_width_bytes,
        op.traffic_per_token * ops.activation_bytes,
        op.visits,
        op.busiest,
        op.least_share,
        op.experts / op.active,
        op.columns,
        op.router_group_experts,
        *_kind(op, node),
    )


def _attention_row(op: AttentionOp, node: Node) -> tuple[float, ...]:
    return (
        op.count,
        op.prefill_flops_per_pair,
        op.decode_flops_per_key,
        op.cache_bytes_per_key,
        _ALL_KEYS if op.window is None else op.window,
        float(op.latent),
        float(op.indexing),
        float(op.small_cache),
        0.0 if node.device.multiplies("fp8") else op.fp8_numbers_per_key,
        op.query_heads,
        op.queries_per_key,
    )
