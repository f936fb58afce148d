"""Step-time law: seconds of one forward pass, shared by the estimator and the simulator."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from servetune.engines import engine
from servetune.hardware.device import Device, Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.coefficients import ONE_PASS_TOKENS, Coefficients
from servetune.perf.roofline.collectives import (
    GATHER_SHARE,
    all_reduce_law,
    exchange_law,
)
from servetune.perf.roofline.drafting import drafts_on_device, tokens_per_step
from servetune.perf.roofline.factors import plan_coefficients
from servetune.perf.roofline.operations import (
    NORM_BYTES,
    AttentionOp,
    ExpertsOp,
    MatrixOp,
    Operations,
    Step,
    operations,
)
from servetune.plan.plan import Plan

#: Part of a step's time on the device: an operation, `elementwise` (norms, rotary, gates),
#: `sampling`, or `agreement` with other devices (collectives).
Part: TypeAlias = MatrixOp | ExpertsOp | AttentionOp | str

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]

#: Rows over which the padding of a matrix product grows, as small ones run in small tiles: with
#: `gemm_extra_rows` it lies between what tables say of eight and of four bits.
FILLING_ROWS = 1024.0
#: Error of a number of tokens that is computed, as of those that fill a budget.
NEAR_TOKENS = 1e-6
#: Sharpness with which steps turn to the rate of the HTTP front end: both would take the same time,
#: and a step takes 9% more than either.
STREAM_SHARPNESS = 8
_DOUBLINGS = STREAM_SHARPNESS.bit_length() - 1
#: Distinct batches whose dense part is remembered; a long simulation meets a few thousand.
_REMEMBERED = 1 << 16


class StepLaw:
    """Seconds of a step under one plan on one node.

    A step takes, in series,

        host      step_s + sequence_s * sequences + prompt_s * prompts that end
        matrices  sum over layers of gemm_s + max(flops / (fc * peak), bytes / (fm * bw))
        attention attention_s + prefill flops / (fa * peak) + decode max(bytes, flops)
        others    elementwise_s per small kernel + bytes / bw, sampling
        agreement all-reduces, gather of the logits, exchange of experts, stage hand-over

    where fc, fm, fa are achieved fractions of `Coefficients`. The additive kernel times
    make the achieved fraction fall for small shapes. Where no captured graph covers the
    step it takes at least `host_layer_s` per layer and `host_experts_s` more for each layer of
    experts; where it computes prompts, the latter is added to what the device takes.

    Pipeline stages are passed one after another. That each computes another batch meanwhile is the
    affair of who counts steps (`steady_state`, `run_formulas`), but all stages then wait for the
    slowest, the last: its share of the layers, the output head, and the host's work of a step,
    which every stage does, for its batch and, by `other_sequence_s`, for the others. Who knows the
    number of users says how many batches are in flight (`with_batches`); otherwise one batch stands
    for all, see `batches_in_flight`.

    The HTTP front end streams the tokens of a step during the next: steps take no less than
    stream_token_s for each, divided among its processes (`FrontEnd`).
    """

    def __init__(self, ops: Operations, node: Node, plan: Plan, coefficients: Coefficients) -> None:
        self.ops = ops
        self.coefficients = coefficients
        device, c = node.device, coefficients
        self._bytes_per_s = device.memory_bytes_per_s * c.gemm.memory_fraction
        lines = [(op, _matrix_line(op, ops.activation_bytes, device, c)) for op in ops.matrices]
        self._token_lines = [line for op, line in lines if not op.logits_only]
        self._logit_lines = [line for op, line in lines if op.logits_only]
        self._experts = [_experts_line(op, device, c) for op in ops.experts]
        longest_tokens = plan.max_model_len or ops.longest_tokens
        self._attentions = [
            _attention_line(op, device, c, 1 + (plan.draft_tokens or 0), longest_tokens)
            for op in ops.attentions
        ]
        self._attention_kernels_s = c.attention.kernel_s * sum(
            op.count for op in ops.attentions
        ) + c.attention.latent_s * sum(op.count for op in ops.attentions if op.latent)
        self._attention_kernels_s += c.attention.index_s * sum(
            op.count for op in ops.attentions if op.indexing
        )
        least_s = c.collective_latency_s
        self._reduce = all_reduce_law(node.link, ops.tensor_parallel).at_least(least_s)
        self._exchange = exchange_law(node.link, exchange_group(ops, plan)).at_least(least_s)
        self._stages = plan.pipeline_parallel
        self._hand_overs = self._stages - 1
        self._batches: float | None = None
        self._send = all_reduce_law(node.link, 2).at_least(least_s)
        self._step_host_s = c.host.step_s + c.host.rank_s * math.log2(ops.tensor_parallel)
        self.tokens_each = 1 + (plan.draft_tokens or 0)
        self._drafted = drafts_on_device(plan)
        self._verified_s = coefficients.host.draft_sequence_s if plan.draft_tokens else 0.0
        behaviour = engine(plan.engine).behaviour
        #: Whether steps are composed while the one before runs.
        self.composed_ahead = behaviour.composes_ahead(plan, device)
        self._stream_s = c.host.stream_token_s * behaviour.front_end.process_share(plan)
        self._gained = tokens_per_step(plan)
        expert_layers = sum(op.count for op in ops.experts)
        self._launch_s = c.launch.layer_s * ops.layer_count
        self._routing_s = c.launch.experts_s * expert_layers
        self._mixing_s = c.launch.mixer_s * ops.other_mixers
        self._chunked_s = c.launch.chunked_s * ops.chunked_mixers
        self._launched_layers_s = self._launch_s + self._routing_s + self._mixing_s
        self._dense: dict[tuple[float, float], float] = {}

    def with_batches(self, batches: float) -> StepLaw:
        """This law where a pipeline has so many batches in flight, at most as many as stages."""
        law = copy.copy(self)
        law._batches = max(1.0, min(batches, self._stages))
        return law

    def __call__(self, step: Step) -> float:
        """Seconds of the step."""
        return self.seconds(
            step.prefill_tokens,
            step.prefill_pairs,
            step.prefill_sequences,
            step.decode_sequences,
            step.decode_context_tokens,
        )

    def seconds(
        self,
        prefill_tokens: float,
        prefill_pairs: float,
        prefill_sequences: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Seconds of a step given by the fields of `Step`; an empty step takes none.

        Averages may be given, such as the 7.5 sequences of a steady state.
        """
        decode_tokens = decode_sequences * self.tokens_each
        tokens = prefill_tokens + decode_tokens
        if tokens == 0:
            return 0.0
        device_s = self._dense_seconds(tokens, prefill_sequences + decode_tokens)
        if self._drafted and decode_sequences:
            device_s += self._drafting_s(decode_sequences)
        for op, pair_s, key_s, one_pass_key_s, most_sequences in self._attentions:
            if prefill_tokens:
                extra = self.coefficients.attention.extra_pairs_per_token * prefill_tokens
                device_s += pair_s * (op.pairs(prefill_tokens, prefill_pairs) + extra)
            if decode_sequences:  # `keys_s`, spelt out for the simulator
                keys = op.keys(decode_sequences, decode_context_tokens)
                one_pass = (
                    most_sequences < decode_sequences >= decode_context_tokens / ONE_PASS_TOKENS
                )
                device_s += (one_pass_key_s if one_pass else key_s) * keys
        c, sequences = self.coefficients, prefill_sequences + decode_sequences
        host_s = (
            self._host_s(sequences)
            + c.host.prompt_s * prefill_sequences
            + self._verified_s * decode_sequences
        )
        device_s = self._launched_s(c.device_factor * device_s, prefill_tokens, decode_sequences)
        step_s = host_s + device_s
        if self._hand_overs:
            head_s = self._head_s(prefill_sequences + decode_tokens)
            in_flight = self._in_flight(sequences)
            others_s = c.host.other_sequence_s * sequences * (in_flight - 1)
            slowest_s = host_s + others_s + (device_s - head_s) / self._stages + head_s
            step_s = max(step_s, in_flight * slowest_s)
        streamed_s = self._stream_s * (prefill_sequences + self._gained * decode_sequences)
        return step_s * slowdown(streamed_s / step_s)

    def decode_run_s(self, sequences: int, context_tokens: float, steps: int) -> FloatArray:
        """Seconds of each of `steps` decode steps in a row; shape (steps,).

        Every step adds one token of context to each sequence.

        Args:
            sequences: Running sequences, the same in all steps.
            context_tokens: `Step.decode_context_tokens` of the first step.
            steps: Number of steps.
        """
        contexts = context_tokens + sequences * np.arange(steps, dtype=np.float64)
        return self.decode_steps_s(sequences, contexts)

    def decode_steps_s(self, sequences: int, contexts: FloatArray) -> FloatArray:
        """Seconds of decode steps of the same sequences; shape as `contexts`.

        Args:
            sequences: Running sequences, the same in all steps.
            contexts: `Step.decode_context_tokens` of each step.
        """
        tokens = sequences * self.tokens_each
        device_s = np.full(len(contexts), self._dense_seconds(tokens, tokens))
        if self._drafted:
            device_s += self._drafting_s(sequences)
        for line in self._attentions:
            device_s += line.run_s(sequences, contexts)
        device_s *= self.coefficients.device_factor
        if not self._captured(sequences, prompts=False):
            device_s = np.maximum(device_s, self._launched_layers_s)
        host_s = self._host_s(sequences) + self._verified_s * sequences
        run_s: FloatArray = host_s + device_s
        if self._hand_overs:
            head_s = self._head_s(tokens)
            in_flight = self._in_flight(sequences)
            others_s = self.coefficients.host.other_sequence_s * sequences * (in_flight - 1)
            slowest_s = host_s + others_s + (device_s - head_s) / self._stages + head_s
            run_s = np.maximum(run_s, in_flight * slowest_s)
        return run_s * slowdown(self._stream_s * self._gained * sequences / run_s)

    def agreement_s(self, step: Step) -> float:
        """Seconds of the step in which devices wait for each other's data (collectives)."""
        factor = self.coefficients.device_factor
        return factor * self._agreement_s(step.tokens, step.logit_rows)

    def device_parts_s(self, step: Step) -> list[tuple[Part, float]]:
        """Seconds on the device by operation, in series.

        The rest of the step is the engine's own work, and a launch that takes longer than all
        of these.
        """
        ops, c = self.ops, self.coefficients
        plain = [op for op in ops.matrices if not op.logits_only]
        heads = [op for op in ops.matrices if op.logits_only]
        parts: list[tuple[Part, float]] = []
        for matrices, lines, rows in (
            (plain, self._token_lines, step.tokens),
            (heads, self._logit_lines, step.logit_rows),
        ):
            parts += [(op, _line_s([line], rows)) for op, line in zip(matrices, lines, strict=True)]
        parts += [(line.op, self._experts_s(line, step.tokens)) for line in self._experts]
        extra = c.attention.extra_pairs_per_token * step.prefill_tokens
        for line in self._attentions:
            op = line.op
            kernels_s = c.attention.kernel_s + (c.attention.latent_s if op.latent else 0.0)
            kernels_s += c.attention.index_s if op.indexing else 0.0
            pairs = op.pairs(step.prefill_tokens, step.prefill_pairs)
            pairs_s = line.pair_s * (pairs + extra) if step.prefill_tokens else 0.0
            keys_s = line.keys_s(step.decode_sequences, step.decode_context_tokens)
            parts.append((op, op.count * kernels_s + pairs_s + keys_s))
        elementwise_s = ops.layer_count * c.small_kernels.per_layer * c.small_kernels.kernel_s
        elementwise_s += ops.elementwise_bytes_per_token * step.tokens / self._bytes_per_s
        sampled_bytes = ops.vocab * c.small_kernels.sampling_bytes_per_logit * step.logit_rows
        parts += [
            ("elementwise", elementwise_s),
            ("sampling", sampled_bytes / self._bytes_per_s),
            ("agreement", self._agreement_s(step.tokens, step.logit_rows)),
        ]
        if self._drafted and step.decode_sequences:
            parts.append(("drafting", self._drafting_s(step.decode_sequences)))
        return [(part, c.device_factor * seconds) for part, seconds in parts]

    @property
    def captured_tokens(self) -> float:
        """Most tokens of a step that a captured graph covers; none where there are no graphs."""
        return self.coefficients.launch.captured_tokens

    def _in_flight(self, sequences: float) -> float:
        if self._batches is None:
            return batches_in_flight(self._stages, sequences)
        return self._batches

    def _head_s(self, logit_rows: float) -> float:
        """Output head and sampling, which the last stage alone computes."""
        sampled_bytes = self.ops.vocab * self.coefficients.small_kernels.sampling_bytes_per_logit
        head_s = _line_s(self._logit_lines, logit_rows)
        head_s += sampled_bytes * logit_rows / self._bytes_per_s
        return self.coefficients.device_factor * head_s

    def _host_s(self, sequences: float) -> float:
        return self._step_host_s + self.coefficients.host.sequence_s * sequences

    def _captured(self, tokens: float, *, prompts: bool) -> bool:
        """Whether a captured graph covers a step of so many tokens."""
        launch = self.coefficients.launch
        most = launch.captured_tokens if prompts else launch.captured_sequences
        return tokens <= most + NEAR_TOKENS

    def _launched_s(self, device_s: float, prefill_tokens: float, decode_sequences: float) -> float:
        """Seconds on the device, launching included."""
        if prefill_tokens:
            device_s = max(device_s, self._chunked_s)
        if self._captured(prefill_tokens + decode_sequences, prompts=prefill_tokens > 0):
            return device_s
        if not prefill_tokens:
            return max(device_s, self._launched_layers_s)
        return max(device_s, self._launch_s) + self._routing_s + self._mixing_s

    def _dense_seconds(self, tokens: float, logit_rows: float) -> float:
        """Seconds of everything that depends on counts of tokens and sequences alone."""
        key = (tokens, logit_rows)
        known = self._dense.get(key)
        if known is not None:
            return known
        ops, c = self.ops, self.coefficients
        seconds = _line_s(self._token_lines, tokens) + _line_s(self._logit_lines, logit_rows)
        for line in self._experts:
            seconds += self._experts_s(line, tokens)
        seconds += self._attention_kernels_s
        seconds += ops.layer_count * c.small_kernels.per_layer * c.small_kernels.kernel_s
        seconds += ops.elementwise_bytes_per_token * tokens / self._bytes_per_s
        sampling_bytes = ops.vocab * c.small_kernels.sampling_bytes_per_logit * logit_rows
        seconds += sampling_bytes / self._bytes_per_s
        seconds += self._agreement_s(tokens, logit_rows)
        if len(self._dense) >= _REMEMBERED:
            self._dense.clear()
        self._dense[key] = seconds
        return seconds

    def _drafting_s(self, sequences: float) -> float:
        """One layer and the output head for every drafted token, one after another."""
        layer_s = self._dense_seconds(sequences, 0.0) / self.ops.layer_count
        return self._drafted * (layer_s + _line_s(self._logit_lines, sequences))

    def _experts_s(self, line: _ExpertsLine, tokens: float) -> float:
        op = line.op
        every = tokens <= self.coefficients.experts.every_expert_tokens
        touched = op.local_experts if every else op.touched(tokens)
        share = 1.0 if every else op.touched_share(tokens)
        flops = op.flops_per_token * tokens * (op.experts / op.active if every else 1.0)
        flops += line.extra_rows * share * op.local_experts * op.flops_per_extra_row
        compute_s = flops / line.flops_per_s
        memory_s = op.moved_bytes(tokens, self.ops.activation_bytes, touched) / line.bytes_per_s
        return op.count * (line.kernel_s + max(compute_s, memory_s))

    def _agreement_s(self, tokens: float, logit_rows: float) -> float:
        ops = self.ops
        hidden_bytes = ops.reduce_bytes_per_token * tokens
        seconds = self._hand_overs * self._send.seconds(hidden_bytes) if self._hand_overs else 0.0
        if ops.tensor_parallel > 1 and tokens:
            reduce = self._reduce
            seconds += ops.reduce_count * reduce.seconds(hidden_bytes)
            seconds += ops.norm_reduce_count * reduce.seconds(NORM_BYTES * tokens)
            # The logits of every sequence, split by vocabulary, are gathered on all devices.
            seconds += reduce.seconds(GATHER_SHARE * ops.logit_bytes_per_row * logit_rows)
        if ops.expert_exchange_count and tokens:
            sent_bytes = ops.expert_exchange_bytes_per_token * tokens
            seconds += ops.expert_exchange_count * self._exchange.seconds(sent_bytes / 2)
        return self.coefficients.link_factor * seconds


def batches_in_flight(stages: int, sequences: float) -> float:
    """Batches that a pipeline has in flight, judged by the sequences of one of them.

    One where a single user is served; as many as stages from two sequences a batch on.
    """
    return 1 + (stages - 1) * min(1.0, max(0.0, sequences - 1))


Ratio = TypeVar("Ratio", float, FloatArray)


def slowdown(load: Ratio) -> Ratio:
    """Factor on a step whose streaming takes `load` times as long as the step alone."""
    for _ in range(_DOUBLINGS):  # several times as quick as powers of arrays
        load = load * load
    factor = 1 + load
    for _ in range(_DOUBLINGS):
        factor = factor**0.5
    return factor


def exchange_group(ops: Operations, plan: Plan) -> int:
    """Number of devices among which tokens travel to their experts; one if they need not."""
    return ops.tensor_parallel * plan.data_parallel if ops.expert_exchange_count else 1


def step_law(
    plan: Plan, shape: NetworkShape, node: Node, coefficients: Coefficients | None = None
) -> StepLaw:
    """Law of one plan; `coefficients` default to those of the device's architecture."""
    return StepLaw(
        operations(plan, shape),
        node,
        plan,
        coefficients or plan_coefficients(node.device, plan),
    )


class _MatrixLine(NamedTuple):
    """One matrix product in all its layers.

    With r rows it takes kernel_s + max(compute_s * (r + padding), weights_s + traffic_s * r),
    where padding grows to `extra_rows` with r (`_line_s`).
    """

    kernel_s: float
    compute_s: float
    weights_s: float
    traffic_s: float
    extra_rows: float


class _ExpertsLine(NamedTuple):
    """Grouped products of one layer, with the rates that their kernels reach."""

    op: ExpertsOp
    kernel_s: float
    flops_per_s: float
    bytes_per_s: float
    extra_rows: float


class Kind(NamedTuple):
    """Storage and multiplication of a matrix on a device: all that its kernel depends on.

    Attributes:
        narrow: Whether a faster unit for fewer than sixteen bits multiplies it.
        four_bit: Whether it is multiplied in fp4.
        blocks: Whether it is multiplied in eight bits with a scale per block.
        mxfp4: Whether it is stored in mxfp4, whose kernels differ from others that widen weights.
        thin: Whether its weights take less than two bytes each.
        widened: Whether thin weights become sixteen bits before they are multiplied.
    """

    peak_flops: float
    narrow: bool
    four_bit: bool
    blocks: bool
    mxfp4: bool
    thin: bool
    widened: bool


def emulated(scheme: str, device: Device) -> bool:
    """Whether weights of a scheme are widened on a device that may have a unit of their width.

    AMD's fp4 units (CDNA 4) take blocks of 32 with scales in E8M0 (MXFP4). NVFP4 has blocks of 16
    with scales in E4M3: vLLM dequantises it to 16 bits there (its pull requests 35733 and 44667 of
    2026).
    """
    return scheme == "nvfp4" and device.vendor == "AMD"


def product_dtype(op: MatrixOp | ExpertsOp, device: Device) -> str:
    """Number format of a product on a device, which may widen it further for lack of a unit."""
    return "bf16" if emulated(op.scheme, device) else op.math_dtype


def kind_of(op: MatrixOp | ExpertsOp, device: Device) -> Kind:
    dtype = product_dtype(op, device)
    peak, thin = device.peak_flops(dtype), op.weight_width_bytes < 2
    narrow = dtype != "bf16" and peak > device.bf16_flops
    return Kind(
        peak_flops=peak,
        narrow=narrow,
        four_bit=narrow and dtype == "fp4",
        blocks=narrow and op.scheme == "fp8_block",
        mxfp4=op.scheme == "mxfp4",
        thin=thin,
        widened=thin and (dtype == "bf16" or not device.multiplies(dtype)),
    )


def _matrix_line(
    op: MatrixOp, activation_bytes: float, device: Device, c: Coefficients
) -> _MatrixLine:
    kind = kind_of(op, device)
    kernel_s, fraction = c.gemm.kernel_s, c.gemm.compute_fraction
    if kind.narrow:
        kernel_s = c.gemm.kernel_blocks_s if kind.blocks else c.gemm.kernel_8bit_s
        fraction = c.gemm.compute_fraction_4bit if kind.four_bit else c.gemm.compute_fraction_8bit
        fraction *= c.gemm.blocks_share if kind.blocks else 1.0
    reached = c.gemm.memory_fraction
    if kind.thin:
        reached = c.gemm.memory_fraction_4bit if kind.four_bit else c.gemm.memory_fraction_8bit
    bytes_per_s = device.memory_bytes_per_s * reached
    flops_per_s = kind.peak_flops * fraction
    if kind.widened:
        flops_per_s = min(flops_per_s, c.gemm.widened_flops_per_s)
    return _MatrixLine(
        kernel_s=op.count * kernel_s,
        compute_s=op.count * op.flops_per_row / flops_per_s,
        weights_s=op.count * op.weight_bytes / bytes_per_s,
        traffic_s=op.count * (op.inputs + op.outputs) * activation_bytes / bytes_per_s,
        extra_rows=c.gemm.extra_rows if kind.narrow else 0.0,
    )


def _experts_line(op: ExpertsOp, device: Device, c: Coefficients) -> _ExpertsLine:
    kind = kind_of(op, device)
    kernel_s, extra_rows = c.experts.layer_s, c.experts.extra_rows
    if kind.four_bit:
        kernel_s, fraction = c.experts.layer_4bit_s, c.experts.compute_fraction_4bit
    elif kind.blocks:
        kernel_s, fraction = c.experts.layer_blocks_s, c.experts.compute_fraction_blocks
    elif kind.narrow:
        fraction = c.experts.compute_fraction_8bit
    elif kind.widened:
        extra_rows, fraction = c.experts.extra_rows_packed, c.experts.compute_fraction_packed
        if kind.mxfp4:
            kernel_s, fraction = c.experts.layer_mxfp4_s, c.experts.compute_fraction_mxfp4
    else:
        fraction = c.experts.compute_fraction
    if op.router_group_experts > c.experts.fused_group_experts:
        kernel_s += c.experts.router_s
    return _ExpertsLine(
        op=op,
        kernel_s=kernel_s,
        flops_per_s=kind.peak_flops * fraction / (1 + c.experts.half_columns / op.columns),
        bytes_per_s=device.memory_bytes_per_s * c.experts.memory_fraction,
        extra_rows=extra_rows,
    )


class _AttentionLine(NamedTuple):
    """Equal attentions of all their layers.

    Attributes:
        pair_s: Seconds for a query-key pair of a prompt.
        key_s: Seconds for a key of an answer, all query heads together.
        one_pass_key_s: The same where thread blocks read all keys of a query head each.
        most_sequences: Sequences up to which they do not.
    """

    op: AttentionOp
    pair_s: float
    key_s: float
    one_pass_key_s: float
    most_sequences: float

    def keys_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of all keys that so many sequences read, with their tokens together."""
        one_pass = self.most_sequences < sequences
        if one_pass and context_tokens <= sequences * ONE_PASS_TOKENS:
            return self.one_pass_key_s * self.op.keys(sequences, context_tokens)
        return self.key_s * self.op.keys(sequences, context_tokens)

    def run_s(self, sequences: int, contexts: FloatArray) -> FloatArray:
        """`keys_s` of the same sequences with other tokens; shape as `contexts`."""
        read = contexts
        if self.op.window is not None:
            read = np.minimum(contexts, sequences * self.op.window)
        if sequences <= self.most_sequences:
            return self.key_s * read
        one_pass = contexts <= sequences * ONE_PASS_TOKENS
        return np.where(one_pass, self.one_pass_key_s, self.key_s) * read


def _attention_line(
    op: AttentionOp, device: Device, c: Coefficients, tokens_each: int, longest_tokens: int
) -> _AttentionLine:
    a = c.attention
    # An index scores in eight bits where the device multiplies them.
    peak_flops = device.peak_flops("fp8") if op.indexing else device.bf16_flops
    flops_per_s = peak_flops * a.compute_fraction
    bytes_per_s = device.memory_bytes_per_s * a.memory_fraction
    repeated = a.repeated_reads
    if op.latent:
        flops_per_s *= a.latent_compute_share
        bytes_per_s *= a.latent_memory_share
    if op.small_cache:
        bytes_per_s *= a.small_cache_memory_share
        repeated = max(repeated, a.small_cache_repeated_reads)
    reads = 1.0
    if op.queries_per_key != a.read_once_group:
        reads += repeated * (op.queries_per_key - 1)
    widened = 0.0 if device.multiplies("fp8") else op.fp8_numbers_per_key
    computed_s = max(
        a.widened_number_s * widened * reads,
        tokens_each * op.decode_flops_per_key / flops_per_s,
    )
    key_s = max(op.cache_bytes_per_key * reads / bytes_per_s, computed_s)
    one_pass_key_s, most_sequences = key_s, math.inf
    if a.one_pass_heads and op.query_heads:
        most_sequences = a.one_pass_heads * device.dies / op.query_heads
        share = a.one_pass_memory_fraction * max(1.0, ONE_PASS_TOKENS / longest_tokens)
        bytes_per_s = device.memory_bytes_per_s * min(share, a.memory_fraction)
        one_pass_key_s = max(op.cache_bytes_per_key * op.queries_per_key / bytes_per_s, computed_s)
    return _AttentionLine(
        op,
        op.count * op.prefill_flops_per_pair / flops_per_s,
        op.count * key_s,
        op.count * one_pass_key_s,
        most_sequences,
    )


def _line_s(lines: list[_MatrixLine], rows: float) -> float:
    """Seconds of these products with so many rows, one after another."""
    unfilled = math.exp(-rows / FILLING_ROWS)  # the loop is spelt out: every step comes here
    seconds = 0.0
    for kernel_s, compute_s, weights_s, traffic_s, extra_rows in lines:
        computed_s = compute_s * (rows + extra_rows * (1 - unfilled))
        moved_s = weights_s + traffic_s * rows
        seconds += kernel_s + (computed_s if computed_s > moved_s else moved_s)
    return seconds
