"""Coefficients of the step-time law: how far real kernels and engines stay behind the datasheet.

Every fitted or assumed number of the law is a field of one frozen value in named parts, so that
a calibration replaces that value and nothing else. A field is addressed by its path, such as
`gemm.memory_fraction`. `tools/operator_facts.py` derives the kernel fields from public operator
tables (aiconfigurator-core 0.12.0, Apache-2.0, read in November 2026); no end-to-end measurement
went into them but where `tables` says so, which has their values by silicon and engine. `factors`
corrects them by a fit to measured runs.

Numbers in brackets are the region of a median, or bounds of a value that no public table has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter

import msgspec


class MatrixProducts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense matrix products.

    Attributes:
        compute_fraction: Share of the dense bf16 peak [m >= 4096].
        compute_fraction_8bit: Share of the fp8 or int8 peak that long products approach.
        compute_fraction_4bit: Share of the fp4 peak, likewise.
        extra_rows: Rows that products of 8 or 4 bits are padded by, once they have thousands;
            shorter ones by a share of them (`step.FILLING_ROWS`) [at 512 and 1024 rows some 150
            with 8 bits, 350 with 4]. Products of 16 bits need next to none.
        memory_fraction: Share of memory bandwidth [m <= 16, weights beyond L2].
        memory_fraction_8bit: Share of memory bandwidth with one-byte weights.
        memory_fraction_4bit: Share of memory bandwidth with half-byte weights.
        kernel_s: Time of a kernel with next to no work.
        blocks_share: Rate of eight-bit products with a scale per block over those with one scale.
        kernel_8bit_s: Time of such a kernel of eight or four bits, whose activations the kernel
            before it quantises.
        kernel_blocks_s: Time of such a kernel with a scale per block, whose activations a kernel
            of their own quantises.
        widened_flops_per_s: Most FLOP/s of products whose weights are widened to 16 bits on the
            way, which the units that widen them bound.
        flops_per_joule: 16-bit FLOPs per joule that bind boards of little power; zero where
            none was seen to bind.
    """

    compute_fraction: float
    compute_fraction_8bit: float
    compute_fraction_4bit: float = 0.42
    blocks_share: float = 1.0
    extra_rows: float = 300.0
    memory_fraction: float
    memory_fraction_8bit: float
    memory_fraction_4bit: float = 0.58
    widened_flops_per_s: float = 1e18
    kernel_s: float
    kernel_8bit_s: float
    kernel_blocks_s: float = 6.5e-6
    flops_per_joule: float = 0.0


class ExpertProducts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grouped matrix products of routed experts.

    Attributes:
        compute_fraction: Share of the bf16 peak where a device holds many of an expert's columns.
        compute_fraction_packed: Share of the bf16 peak where weights of fewer bits are widened.
        compute_fraction_mxfp4: Share of the bf16 peak with mxfp4, which some kernels multiply in
            eight bits.
        compute_fraction_8bit: Share of the 8-bit peak.
        compute_fraction_blocks: Share of the 8-bit peak, with a scale per block.
        compute_fraction_4bit: Share of the fp4 peak.
        half_columns: Columns of an expert on one device at which half of those shares is reached.
        memory_fraction: Share of memory bandwidth at which weights are read.
        layer_s: Time of one expert layer with next to no work: routing, sorting, two grouped
            products, sum.
        layer_blocks_s: Time of such a layer with a scale per block.
        layer_4bit_s: Time of such a layer in four bits.
        layer_mxfp4_s: Time of such a layer in mxfp4.
        router_s: Further time of a layer whose router is no kernel of its own: a dozen small ones,
            three of which select.
        fused_group_experts: Most experts of a group among which the kernel of routers with a bias
            can choose, if there is one; see `ExpertsOp.router_group_experts`.
        extra_rows: Rows that a grouped product computes for each expert it touches beyond those
            it needs: half a tile, and the busiest device's share of a skewed routing.
        extra_rows_packed: Extra rows of kernels that widen weights, whose tiles are small.
        every_expert_tokens: Largest step in which every expert multiplies every token.
    """

    compute_fraction: float = 0.39
    compute_fraction_packed: float = 0.20
    compute_fraction_mxfp4: float = 0.32
    compute_fraction_8bit: float = 0.32
    compute_fraction_blocks: float = 0.21
    compute_fraction_4bit: float = 0.23
    half_columns: float = 128.0
    memory_fraction: float
    layer_s: float = 30e-6
    layer_blocks_s: float = 34e-6
    layer_4bit_s: float = 20e-6
    layer_mxfp4_s: float = 25e-6
    router_s: float = 40e-6
    fused_group_experts: float = math.inf
    extra_rows: float = 54.0
    extra_rows_packed: float = 20.0
    every_expert_tokens: int = 0


#: Longest sequence that past releases of vLLM read in one pass, and that their captured graphs are
#: made for.
ONE_PASS_TOKENS = 8192


class AttentionKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention and the layers that take its place.

    Attributes:
        compute_fraction: Share of the bf16 peak in prefill [16k tokens].
        extra_pairs_per_token: Query-key pairs that a prefill token costs beyond those it needs:
            blocks on the diagonal and short rows. It bends the achieved share down to 0.2-0.3 at
            512 tokens, as measured.
        memory_fraction: Share of memory bandwidth in decode [cache > 0.8 GB].
        repeated_reads: Share of an answer's queries that read the cache once more for themselves
            although they share a KV head; zero in kernels that know of groups.
        read_once_group: Queries a KV head for which a kernel reads the cache once, whatever
            `repeated_reads` says; 0 for none.
        one_pass_heads: Sequences times query heads on a device above which one thread block reads
            all keys of a query head in one pass; 0 for kernels that always divide them.
        one_pass_memory_fraction: Share of memory bandwidth that those reach where the longest
            sequence is of `ONE_PASS_TOKENS`; each keeps as many scores, which limits how many run
            at a time.
        small_cache_memory_share: Bandwidth of reading a cache of eight bits over one of sixteen:
            Hopper widens what it reads.
        small_cache_repeated_reads: Least `repeated_reads` of a cache of eight bits, which may have
            a kernel of its own.
        widened_number_s: Time to widen a number of a cache in fp8 where the device has no
            instructions for it, each time that it is read.
        kernel_s: Time of an attention kernel on a nearly empty cache.
        latent_s: Time of a layer of latent attention beyond an ordinary one: more and smaller
            kernels.
        index_s: Time of a layer that selects its keys by an index: scores in eight bits, search
            for the best, gathering.
        latent_memory_share: Bandwidth of reading a latent cache over an ordinary one [0.6-1.0].
        latent_compute_share: FLOP/s of latent attention over ordinary attention.
    """

    compute_fraction: float
    extra_pairs_per_token: float
    memory_fraction: float
    repeated_reads: float = 0.01
    read_once_group: int = 0
    one_pass_heads: int = 0
    one_pass_memory_fraction: float = 0.3
    small_cache_memory_share: float = 1.0
    small_cache_repeated_reads: float = 0.0
    widened_number_s: float = 0.0
    kernel_s: float
    latent_s: float = 6e-6
    index_s: float = 20e-6
    latent_memory_share: float = 0.8
    latent_compute_share: float = 1.0


class SmallKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels that multiply no matrices.

    Attributes:
        kernel_s: Time of one fused small kernel inside a captured graph [1-3 us].
        per_layer: Small kernels per layer: two norms, rotary with query/key norm, cache write,
            gated activation.
        sampling_bytes_per_logit: Bytes moved to turn one logit into its share of a token: bf16 in,
            float32 copy, two reads.
    """

    kernel_s: float = 2e-6
    per_layer: int = 5
    sampling_bytes_per_logit: float = 14.0


class HostOverheads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time of the engine's own work on the host.

    Attributes:
        step_s: Scheduling, input preparation and sampling of one step that the device waits for
            [0.3-3 ms].
        rank_s: Part of that per doubling of tensor parallelism, where each rank has a host process
            of its own and all wait for the slowest.
        sequence_s: Part of that per running sequence [2-20 us].
        http_sequence_s: Part of `sequence_s` that sends tokens over HTTP, or hands them to the
            server's process, in the engine's own; static batches and lists that are worked off
            have none.
        other_sequence_s: Part of that per sequence of the other batches that a pipeline has in
            flight, where one loop goes through the sequences of all [0-5 us].
        prompt_s: Work of a step per prompt that it finishes [0-3 ms].
        draft_sequence_s: Work of a step per sequence whose drafted tokens it verifies
            [10-200 us]; such a step often waits for the host, which others overlap.
        request_s: Time from a request's arrival at the server to the scheduler's queue: HTTP,
            tokenizer, one hop between processes [2-20 ms].
        prompt_token_s: Part of that per token of the prompt.
        stream_token_s: Time of one process of the HTTP front end per token that it streams, beside
            the steps; steps take no less than their tokens need. Zero where no limit was seen.
    """

    step_s: float = 1.0e-3
    rank_s: float = 0.0
    sequence_s: float = 5e-6
    http_sequence_s: float = 0.0
    other_sequence_s: float = 0.0
    prompt_s: float = 0.25e-3
    draft_sequence_s: float = 20e-6
    request_s: float = 5e-3
    prompt_token_s: float = 1e-6
    stream_token_s: float = 0.0


class LaunchOverheads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Launching kernels from the host where no captured graph covers the step.

    Attributes:
        layer_s: Time per layer [0.1-0.3 ms]; a step takes at least that long.
        experts_s: Further time per layer of experts: routing, sorting and grouping are many small
            kernels [0-1.5 ms]. In steps that compute prompts it is added, not hidden behind the
            products: prompts of one network cost some 30 ms more than their products on one
            device as on eight (gpt-oss-120b on H200).
        mixer_s: Further time per layer that mixes tokens by anything but plain attention, added in
            steps that compute prompts as that of experts is [0-1.5 ms].
        chunked_s: Time per layer that goes through a prompt in chunks (linear attention, Mamba,
            compressed keys) [1.5 ms]: a dozen kernels, which no captured graph covers; a step that
            computes prompts takes at least that long.
        captured_tokens: Largest step that captured graphs cover; the drafted
            tokens of one sequence count as one.
        captured_sequences: Largest step without prompts that captured graphs cover.
    """

    layer_s: float = 150e-6
    experts_s: float = 300e-6
    mixer_s: float = 0.0
    chunked_s: float = 1.5e-3
    captured_tokens: int = 512
    captured_sequences: int = 512


class ClosedLoopEffects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waiting in benchmarks with a fixed number of users, beyond what steps explain.

    Attributes:
        clump_prompts: Prompts of others that one waits for beyond those that evenly spread
            arrivals explain, per (sqrt(users) - 1) (`run_formulas`).
        intake_s: Further wait per prompt that arrived at the same time before it: HTTP, tokenizer.
        together_steps: Steps over which users of a prefill-first engine fall out of step: their
            prompts arrive together in a share exp(-w / together_steps) of generations, w the
            steps over which users who began together end (sqrt(12) of the answers' standard
            deviation).
        warm_up_s: Wait of the first requests of a run that begins cold: kernels compiled or tuned
            on first use.
        warm_up_experts_s: Further wait where the network has layers of experts, whose kernels are
            tuned by shape.
        warm_up_mxfp4_s: Wait in place of `warm_up_experts_s` where the experts are in mxfp4.
    """

    clump_prompts: float = 0.2
    intake_s: float = 2e-3
    together_steps: float = 150.0
    warm_up_s: float = 0.3
    warm_up_experts_s: float = 0.0
    warm_up_mxfp4_s: float = 0.0


class SchedulingFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of an engine's scheduler that its steady state depends on.

    Attributes:
        prefill_first: Whether all waiting prompts are computed before decoding continues.
        separate_prefill: Whether prompts are computed in steps of their own, in which nothing
            decodes.
        admission_steps: Decode steps between two steps that admit prompts, where an engine counts
            them; zero where it does not.
        waiting_ratio: Waiting prompts per decoding sequence from which they are admitted before
            those steps are over.
        whole_answers: Whether a request is admitted only when its whole answer has room in the
            cache.
        known_answers: Whether that holds for answers whose length is known by `ignore_eos` alone.
            Runs by formula leave it out: those that were measured are of earlier releases.
    """

    prefill_first: bool = False
    separate_prefill: bool = False
    admission_steps: float = 0.0
    waiting_ratio: float = 1.2
    whole_answers: bool = False
    known_answers: bool = False


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation of kernels under one generation of an engine.

    Attributes:
        name: Engine generation, silicon and source.
        device_factor: Factor on all time on the device; one engine's kernels against another's.
        link_factor: Factor on all time of exchanges between devices, within the former.
        collective_latency_s: Least latency of an all-reduce, all-gather, exchange of experts or
            hand-over between stages; the link's law alone is of an engine's own kernels.
    """

    name: str
    gemm: MatrixProducts
    experts: ExpertProducts
    attention: AttentionKernels
    small_kernels: SmallKernels = SmallKernels()
    host: HostOverheads = HostOverheads()
    launch: LaunchOverheads = LaunchOverheads()
    closed_loop: ClosedLoopEffects = ClosedLoopEffects()
    scheduling: SchedulingFacts = SchedulingFacts()
    device_factor: float = 1.0
    link_factor: float = 1.0
    collective_latency_s: float = 0.0


_PARTS: Mapping[str, type[msgspec.Struct]] = {
    "gemm": MatrixProducts,
    "experts": ExpertProducts,
    "attention": AttentionKernels,
    "small_kernels": SmallKernels,
    "host": HostOverheads,
    "launch": LaunchOverheads,
    "closed_loop": ClosedLoopEffects,
    "scheduling": SchedulingFacts,
}
#: Paths of all numbers of `Coefficients`.
PATHS = (
    *(f"{part}.{field}" for part, kind in _PARTS.items() for field in kind.__struct_fields__),
    "device_factor",
    "link_factor",
    "collective_latency_s",
)
#: Paths of shares of peaks that kernels reach: FLOP/s by number format, and memory bandwidth.
COMPUTE_SHARES = tuple(path for path in PATHS if ".compute_fraction" in path)
MEMORY_SHARES = tuple(path for path in PATHS if "memory_fraction" in path)


def value_at(coefficients: Coefficients, path: str) -> float:
    """Number at a path, such as `gemm.memory_fraction`."""
    found: float = attrgetter(path)(coefficients)
    return found


def changed(
    coefficients: Coefficients, values: Mapping[str, float], *, name: str | None = None
) -> Coefficients:
    """Coefficients with other numbers at some paths, and another name if given."""
    fields: dict[str, object] = {} if name is None else {"name": name}
    by_part: dict[str, dict[str, float]] = {}
    for path, value in values.items():
        part, dot, field = path.partition(".")
        if dot:
            by_part.setdefault(part, {})[field] = value
        else:
            fields[part] = value
    for part, changes in by_part.items():
        fields[part] = msgspec.structs.replace(getattr(coefficients, part), **changes)
    return msgspec.structs.replace(coefficients, **fields)


def at_least(coefficients: Coefficients, least: Mapping[str, float]) -> Coefficients:
    """Coefficients of which those at some paths are no less than these."""
    values = {path: max(value, value_at(coefficients, path)) for path, value in least.items()}
    return changed(coefficients, values)
