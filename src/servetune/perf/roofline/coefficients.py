"""How far real kernels and engines stay behind the datasheet, and where that was read.

Everything fitted or assumed in the step-time law is a field of one frozen value, so that
a calibration replaces that value and nothing else. `tools/operator_facts.py` derives the
kernel fields from public operator tables (aiconfigurator-core 0.12.0, Apache-2.0, read in
November 2026); no end-to-end measurement went into them but where `tables` says so, which has
their values by silicon and engine. `factors` corrects them by a fit to measured runs.
"""

from __future__ import annotations

import msgspec

__all__ = ["EXPERT_SHARES", "Coefficients"]

#: Fields that say what grouped products reach, one for each kind of storage.
EXPERT_SHARES = (
    "experts_compute_fraction",
    "experts_compute_fraction_packed",
    "experts_compute_fraction_mxfp4",
    "experts_compute_fraction_8bit",
    "experts_compute_fraction_blocks",
    "experts_compute_fraction_4bit",
)


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation of kernels under one generation of an engine.

    Kernel fields (source: operator tables, medians over the region in brackets):

    Attributes:
        name: Engine generation, silicon and what they rest on.
        gemm_compute_fraction: Share of the dense bf16 peak [m >= 4096].
        gemm_compute_fraction_8bit: Share of the fp8 or int8 peak that long products approach.
        gemm_compute_fraction_4bit: The same of the fp4 peak.
        gemm_extra_rows: Rows by which products of 8 or 4 bits behave as if they were longer, once
            they have thousands; fewer have a share of them (`step.FILLING_ROWS`) [at 512 and 1024
            rows some 150 with 8 bits, 350 with 4]. Those of 16 bits need next to none.
        gemm_memory_fraction: Share of memory bandwidth [m <= 16, weights beyond L2].
        gemm_memory_fraction_8bit: The same with one-byte weights.
        gemm_memory_fraction_4bit: The same with half-byte weights.
        gemm_s: Time of a matrix kernel that has next to nothing to do.
        gemm_8bit_s: The same with eight or four bits, activations quantised by what comes before.
        gemm_blocks_s: The same with a scale per block, activations quantised by a kernel.
        attention_compute_fraction: Prefill, share of the bf16 peak [16k tokens].
        attention_extra_pairs_per_token: Query-key pairs that a prefill token costs
            beyond those it needs: blocks on the diagonal and short rows. It bends the
            achieved fraction down to 0.2-0.3 at 512 tokens, as measured.
        attention_memory_fraction: Decode, share of memory bandwidth [cache > 0.8 GB].
        small_cache_memory_share: Reading a cache of eight bits, over one of sixteen: Hopper widens
            what it reads.
        attention_s: Time of an attention kernel on a nearly empty cache.

    Engine fields (no public table; bounds in brackets, to be fitted by a calibration):

    Attributes:
        elementwise_s: One fused small kernel inside a captured graph [1-3 us].
        elementwise_per_layer: Such kernels per layer: two norms, rotary with query/key
            norm, cache write, gated activation.
        step_s: Scheduling, input preparation and sampling on the host for each step
            that the device waits for [0.3-3 ms].
        sequence_s: The part of that which grows with each running sequence [2-20 us].
        host_layer_s: Launching one layer's kernels from the host where no captured
            graph covers the step [0.1-0.3 ms]; a step takes at least that long.
        host_experts_s: What a layer of experts adds to that: routing, sorting and grouping are
            many small kernels [0-1.5 ms]. Where prompts are computed it is added, not hidden
            behind the products: prompts of one network cost some 30 ms more than their products
            on one device as on eight (gpt-oss-120b on H200, TensorRT-LLM).
        captured_tokens: Largest step that captured graphs cover (vLLM: 512 tokens), those
            counted once that are drafted for one sequence.
        sampling_bytes_per_logit: Traffic of turning one logit into its share of a token:
            bf16 in, float32 copy, two reads.
        request_s: From a request's arrival at the server to the scheduler's queue:
            HTTP, tokenizer, one hop between processes [2-20 ms].
        prompt_token_s: The part of that which grows with the prompt, per token.
        prompt_s: Host work of a step for each prompt that it finishes [0-3 ms].
        draft_sequence_s: Host work of a step for each sequence whose drafted tokens it verifies
            [10-200 us]; such a step often waits for the host, which others overlap.
        warm_up_s: What the first requests of a run wait for once: kernels compiled or tuned
            on first use. Only a run that begins cold pays it (`closed_loop`).

    Fields that compare kinds of work with the kernels above:

    Attributes:
        experts_compute_fraction: What grouped products of experts reach of the bf16 peak where
            a device holds many of an expert's columns.
        experts_compute_fraction_packed: Of the same, where weights of fewer bits are widened first.
        experts_compute_fraction_mxfp4: Of the same with mxfp4, which some kernels multiply in
            eight bits.
        experts_compute_fraction_8bit: Of the 8-bit peak.
        experts_compute_fraction_blocks: Of the 8-bit peak, with a scale per block.
        experts_compute_fraction_4bit: Of the fp4 peak.
        experts_half_columns: Columns of an expert on one device at which half of that is reached.
        experts_memory_fraction: Share of memory bandwidth at which they read weights.
        experts_s: One expert layer with next to nothing to do: routing, sorting, two
            grouped products, sum.
        experts_blocks_s: The same with a scale per block.
        experts_4bit_s: The same in four bits.
        experts_extra_rows: Rows that a grouped product computes for each expert it touches
            beyond those it needs: half a tile, and the busiest device's share of a skewed
            routing.
        experts_extra_rows_packed: The same of kernels that widen weights, whose tiles are small.
        latent_s: What a layer of latent attention takes beyond an ordinary one: more and
            smaller kernels.
        index_s: What a layer takes that picks its keys by an index: scores in eight bits, the
            search for the best, the gathering of what was found.
        latent_memory_share: Reading a latent cache, over an ordinary one [0.6 to 1.0].
        latent_compute_share: Multiplying in latent attention, prompts and answers, over ordinary
            attention.
        agreement_latency_factor: Over the latency of `collectives` on a switched fabric;
            PCIe was never in a fit.
        agreement_rate_factor: Over its rate there.
        clump_prompts: Prompts of others that one waits for in a closed loop beyond those that
            evenly spread arrivals explain, per (sqrt(users) - 1) (`closed_loop`).
        intake_s: What each of the prompts that come at once adds to the wait of those behind
            it before the engine sees them: HTTP, tokenizer.
        prefill_first: One where the engine computes all waiting prompts before it goes on
            decoding (SGLang without mixed chunks), else zero.
        together_steps: Such an engine keeps users in step: their prompts come together in
            a share exp(-w / together_steps) of generations, w the steps over which users who
            began together end (sqrt(12) of the answers' standard deviation).
        prompts_apart: One where prompts are computed in steps of their own and nothing decodes
            beside them (text-generation-inference), else zero.
        admission_steps: Steps of decoding between two steps that take in prompts, where an
            engine counts them; zero where it does not.
        whole_answers: One where the engine admits a request only when its whole answer has
            room in the cache (text-generation-inference, TensorRT-LLM), else zero.
        device_factor: Over all time on the device; one engine's kernels against another's.
    """

    name: str
    gemm_compute_fraction: float
    gemm_compute_fraction_8bit: float
    gemm_memory_fraction: float
    gemm_memory_fraction_8bit: float
    experts_memory_fraction: float
    gemm_s: float
    gemm_8bit_s: float
    attention_compute_fraction: float
    attention_extra_pairs_per_token: float
    attention_memory_fraction: float
    attention_s: float
    gemm_compute_fraction_4bit: float = 0.42
    gemm_extra_rows: float = 300.0
    gemm_memory_fraction_4bit: float = 0.58
    gemm_blocks_s: float = 6.5e-6
    small_cache_memory_share: float = 1.0
    elementwise_s: float = 2e-6
    elementwise_per_layer: int = 5
    step_s: float = 1.0e-3
    sequence_s: float = 5e-6
    host_layer_s: float = 150e-6
    host_experts_s: float = 300e-6
    captured_tokens: int = 512
    sampling_bytes_per_logit: float = 14.0
    request_s: float = 5e-3
    prompt_token_s: float = 1e-6
    prompt_s: float = 0.3e-3
    draft_sequence_s: float = 20e-6
    warm_up_s: float = 0.3
    experts_compute_fraction: float = 0.37
    experts_compute_fraction_packed: float = 0.19
    experts_compute_fraction_mxfp4: float = 0.30
    experts_compute_fraction_8bit: float = 0.30
    experts_compute_fraction_blocks: float = 0.20
    experts_compute_fraction_4bit: float = 0.21
    experts_half_columns: float = 128.0
    experts_s: float = 30e-6
    experts_blocks_s: float = 34e-6
    experts_4bit_s: float = 20e-6
    experts_extra_rows: float = 45.0
    experts_extra_rows_packed: float = 16.0
    latent_s: float = 6e-6
    index_s: float = 20e-6
    latent_memory_share: float = 0.8
    latent_compute_share: float = 1.0
    agreement_latency_factor: float = 1.0
    agreement_rate_factor: float = 1.0
    clump_prompts: float = 0.2
    intake_s: float = 2e-3
    prefill_first: float = 0.0
    together_steps: float = 220.0
    prompts_apart: float = 0.0
    admission_steps: float = 0.0
    whole_answers: float = 0.0
    device_factor: float = 1.0
