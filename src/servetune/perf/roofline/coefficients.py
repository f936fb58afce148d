"""How far real kernels and engines stay behind the datasheet, and where that was read.

Everything fitted or assumed in the step-time law is a field of one frozen value, so that
a calibration replaces that value and nothing else. `tools/operator_facts.py` derives the
kernel fields from public operator tables (aiconfigurator-core 0.12.0, Apache-2.0, read
2026-11-20: vLLM 0.24 kernels on L40S, H100, H200, B200, vLLM 0.14 on A100); no end-to-end
measurement went into them. `factors` corrects them by a fit to measured runs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.hardware.device import Device

__all__ = ["COEFFICIENTS", "TGI_FIT", "Coefficients", "architecture_of", "table_for"]


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation of kernels under one generation of an engine.

    Kernel fields (source: operator tables, medians over the region in brackets):

    Attributes:
        name: Engine generation, silicon and what they rest on.
        gemm_compute_fraction: Share of the dense bf16 peak [m >= 4096].
        gemm_compute_fraction_8bit: Share of the fp8 or int8 peak [m >= 4096].
        gemm_memory_fraction: Share of memory bandwidth [m <= 16, weights beyond L2].
        gemm_memory_fraction_8bit: The same with one-byte weights.
        gemm_s: Time of a matrix kernel that has next to nothing to do.
        gemm_8bit_s: The same with the activations quantised on the way in.
        attention_compute_fraction: Prefill, share of the bf16 peak [16k tokens].
        attention_extra_pairs_per_token: Query-key pairs that a prefill token costs
            beyond those it needs: blocks on the diagonal and short rows. It bends the
            achieved fraction down to 0.2-0.3 at 512 tokens, as measured.
        attention_memory_fraction: Decode, share of memory bandwidth [cache > 0.8 GB].
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
        gemm_compute_fraction_4bit: Share of the fp4 peak.
        experts_compute_fraction: What grouped products of experts reach of the bf16 peak where
            a device holds many of an expert's columns.
        experts_compute_fraction_packed: Of the same, where weights of four bits or so are widened
            first.
        experts_compute_fraction_8bit: Of the 8-bit peak.
        experts_compute_fraction_blocks: Of the 8-bit peak, where blocks of weights have scales.
        experts_compute_fraction_4bit: Of the fp4 peak.
        experts_half_columns: Columns of an expert on one device at which half of that is reached.
        experts_memory_fraction: Share of memory bandwidth at which they read weights.
        experts_s: One expert layer with next to nothing to do: routing, sorting, two
            grouped products, sum.
        experts_extra_rows: Rows that a grouped product computes for each expert it touches
            beyond those it needs: half a tile, and the busiest device's share of a skewed
            routing.
        latent_s: What a layer of latent attention takes beyond an ordinary one: more and
            smaller kernels.
        index_s: What a layer takes that picks its keys by an index: scores in eight bits, the
            search for the best, the gathering of what was found.
        latent_memory_share: Reading a latent cache, over an ordinary one.
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
    gemm_blocks_s: float = 6.5e-6
    attention_compute_fraction: float
    attention_extra_pairs_per_token: float
    attention_memory_fraction: float
    attention_s: float
    elementwise_s: float = 2e-6
    elementwise_per_layer: int = 5
    step_s: float = 1.0e-3
    sequence_s: float = 5e-6
    host_layer_s: float = 150e-6
    host_experts_s: float = 600e-6
    captured_tokens: int = 512
    sampling_bytes_per_logit: float = 14.0
    request_s: float = 5e-3
    prompt_token_s: float = 1e-6
    prompt_s: float = 0.3e-3
    draft_sequence_s: float = 20e-6
    warm_up_s: float = 0.3
    gemm_compute_fraction_4bit: float = 0.42
    experts_compute_fraction: float = 0.4
    experts_compute_fraction_packed: float = 0.2
    experts_compute_fraction_8bit: float = 0.3
    experts_compute_fraction_blocks: float = 0.2
    experts_compute_fraction_4bit: float = 0.2
    experts_half_columns: float = 128.0
    experts_s: float = 30e-6
    gemm_extra_rows: float = 300.0
    small_cache_memory_share: float = 1.0
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


_AMPERE = Coefficients(
    name="vllm-v1/ampere/operator-tables-2026-11",
    gemm_compute_fraction=0.86,
    gemm_compute_fraction_8bit=0.60,  # int8 was not in the table; between Ada and bf16
    gemm_memory_fraction=0.76,
    gemm_memory_fraction_8bit=0.76,
    experts_memory_fraction=0.85,
    gemm_s=5.3e-6,
    gemm_8bit_s=4.5e-6,
    attention_compute_fraction=0.57,
    attention_extra_pairs_per_token=273.0,
    attention_memory_fraction=0.79,
    attention_s=18e-6,
)
_ADA = Coefficients(
    name="vllm-v1/ada/operator-tables-2026-11",
    gemm_compute_fraction=0.59,
    gemm_compute_fraction_8bit=0.46,
    gemm_memory_fraction=0.83,
    gemm_memory_fraction_8bit=0.72,
    experts_memory_fraction=0.85,
    gemm_s=3.7e-6,  # the floor of small kernels: L2 of 96 MB hides the fitted one
    gemm_8bit_s=5.3e-6,
    attention_compute_fraction=0.50,
    attention_extra_pairs_per_token=208.0,
    attention_memory_fraction=0.82,
    attention_s=11.5e-6,
    prompt_token_s=0.0,
    prompt_s=0.0,
)
_HOPPER = Coefficients(
    name="vllm-v1/hopper/operator-tables-2026-11",
    gemm_compute_fraction=0.78,
    gemm_compute_fraction_8bit=0.57,
    gemm_memory_fraction=0.85,
    gemm_memory_fraction_8bit=0.78,
    experts_memory_fraction=0.92,
    gemm_s=3.9e-6,
    gemm_8bit_s=4.5e-6,
    attention_compute_fraction=0.60,
    attention_extra_pairs_per_token=545.0,
    attention_memory_fraction=0.88,
    attention_s=12e-6,
)
_BLACKWELL = Coefficients(
    name="vllm-v1/blackwell/operator-tables-2026-11",
    gemm_compute_fraction=0.68,
    gemm_compute_fraction_8bit=0.45,
    gemm_memory_fraction=0.79,
    gemm_memory_fraction_8bit=0.67,
    experts_memory_fraction=0.92,
    gemm_s=4.0e-6,
    gemm_8bit_s=4.5e-6,
    attention_compute_fraction=0.54,
    attention_extra_pairs_per_token=761.0,
    attention_memory_fraction=0.85,
    attention_s=9e-6,
    latent_compute_share=1.5,
)
#: vLLM's CPU backend, where the host's own work is most of a small model's step. Engine
#: fields: vLLM CPU 0.32 on two shared cores, a model of 1.5 M parameters, gaps between
#: tokens of 7-15, 12-16 and 19-27 ms at concurrency 1, 8 and 32 (2026-11, +-50%). Shares
#: of peak are assumed.
_CPU = Coefficients(
    name="vllm-v1/cpu/rough-2026-11",
    gemm_compute_fraction=0.50,
    gemm_compute_fraction_8bit=0.50,
    gemm_memory_fraction=0.60,
    gemm_memory_fraction_8bit=0.60,
    experts_memory_fraction=0.6,
    gemm_s=20e-6,
    gemm_8bit_s=30e-6,
    attention_compute_fraction=0.25,
    attention_extra_pairs_per_token=64.0,
    attention_memory_fraction=0.50,
    attention_s=100e-6,
    elementwise_s=20e-6,
    step_s=8e-3,
    sequence_s=0.4e-3,
    host_layer_s=0.0,
    host_experts_s=0.0,
    request_s=15e-3,
    prompt_token_s=0.0,
    prompt_s=0.0,
    clump_prompts=0.0,
    intake_s=0.0,
)
#: Silicon without a table of its own: the middle of those that have one.
_UNSEEN = Coefficients(
    name="vllm-v1/unseen/operator-tables-2026-11",
    gemm_compute_fraction=0.70,
    gemm_compute_fraction_8bit=0.50,
    gemm_memory_fraction=0.80,
    gemm_memory_fraction_8bit=0.74,
    experts_memory_fraction=0.88,
    gemm_s=4.5e-6,
    gemm_8bit_s=4.5e-6,
    attention_compute_fraction=0.55,
    attention_extra_pairs_per_token=400.0,
    attention_memory_fraction=0.80,
    attention_s=12e-6,
)

#: Architecture, as `Device.architecture` names it in lower case, to its coefficients.
COEFFICIENTS: Mapping[str, Coefficients] = MappingProxyType(
    {
        "ampere": _AMPERE,
        "ada": _ADA,
        "hopper": _HOPPER,
        "blackwell": _BLACKWELL,
        "cpu": _CPU,
        "": _UNSEEN,
    }
)


#: Fitted by `benchmarks/prediction/seed_tables.py --fit` to the eight published figures of
#: Llama 2 7B (JumpStart study, January 2024: A10G and A100, one to eight devices).
TGI_FIT: Mapping[str, float] = MappingProxyType(
    {"step_s": 2.93e-3, "sequence_s": 0.188e-3, "host_layer_s": 0.45e-3}
)


def table_for(device: Device, engine: str = "vllm") -> Coefficients:
    """What the operator tables say of the device's architecture under an engine.

    Unseen silicon gets the middle of what was seen. An architecture counts by how its name
    begins, so that `ada lovelace` is `ada`.
    """
    table = _with_experts(COEFFICIENTS[architecture_of(device)], architecture_of(device), engine)
    if engine == "tgi":
        return _tgi(table)
    if engine in _PREFILL_FIRST:
        return _prefill_first(table)
    return _whole_answers(table) if engine in _WHOLE_ANSWERS else table


def architecture_of(device: Device) -> str:
    """Key of the device's table; empty for silicon without one."""
    first = device.architecture.lower().replace("-", " ").replace("_", " ").split(" ")[0]
    return first if first in COEFFICIENTS else ""


#: (architecture, engine) -> shares that grouped products reach: of the bf16 peak, of the same with
#: packed weights, of the 8-bit peak, of that with scales per block, of the fp4 peak.
_EXPERTS: Mapping[tuple[str, str], tuple[float, float, float, float, float]] = MappingProxyType(
    {
        ("blackwell", "vllm"): (0.41, 0.155, 0.35, 0.19, 0.23),
        ("blackwell", "sglang"): (0.41, 0.20, 0.33, 0.165, 0.24),
        ("blackwell", "trtllm"): (0.41, 0.135, 0.295, 0.245, 0.21),
        ("hopper", "vllm"): (0.44, 0.26, 0.355, 0.23, 0.20),
        ("hopper", "sglang"): (0.35, 0.24, 0.355, 0.215, 0.20),
        ("hopper", "trtllm"): (0.44, 0.26, 0.355, 0.195, 0.20),
    }
)


@functools.cache
def _with_experts(table: Coefficients, architecture: str, engine: str) -> Coefficients:
    found = _EXPERTS.get((architecture, engine))
    if found is None:
        return table
    plain, packed, eighth, blocks, fourth = found
    return msgspec.structs.replace(
        table,
        experts_compute_fraction=plain,
        experts_compute_fraction_packed=packed,
        experts_compute_fraction_8bit=eighth,
        experts_compute_fraction_blocks=blocks,
        experts_compute_fraction_4bit=fourth,
    )


@functools.cache
def _tgi(table: Coefficients) -> Coefficients:
    """Text-generation-inference 1.x of 2023: no captured graphs, and Python for each sequence.

    Every step launches each layer from the host and then walks twice over the batch, moving one
    number to the device and detokenising for each sequence (`flash_causal_lm.py`,
    `generate_token`): the three times of `TGI_FIT`. Its router takes in prompts every
    `max_waiting_tokens` = 20 steps, as many as `max_batch_prefill_tokens` hold, and only where
    whole answers have room (`queue.rs` and the launcher's arguments).
    """
    return msgspec.structs.replace(
        table,
        name=f"tgi-1/{table.name.split('/')[1]}/jumpstart-2024-01",
        captured_tokens=0,
        prefill_first=1.0,
        prompts_apart=1.0,
        admission_steps=20.0,
        whole_answers=1.0,
        prompt_s=0.0,
        host_experts_s=0.0,
        **TGI_FIT,
    )


#: Engines that compute waiting prompts before they go on decoding, unless told to mix.
_PREFILL_FIRST = ("sglang",)


@functools.cache
def _prefill_first(table: Coefficients) -> Coefficients:
    return msgspec.structs.replace(table, prefill_first=1.0)


#: Engines that never put a sequence back: TensorRT-LLM's scheduler policy is
#: GUARANTEED_NO_EVICT unless told otherwise (its documentation of `CapacitySchedulerPolicy`).
_WHOLE_ANSWERS = ("trtllm",)


@functools.cache
def _whole_answers(table: Coefficients) -> Coefficients:
    return msgspec.structs.replace(table, whole_answers=1.0)
