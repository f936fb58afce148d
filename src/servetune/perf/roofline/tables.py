"""The step law's coefficients by silicon and engine, before any fit.

| from | what |
|---|---|
| vLLM 0.24 (0.14 on A100) on L40S, H100, H200, B200 | products, attention, one device of a group |
| vLLM 0.19 and 0.24, SGLang 0.5.10 and 0.5.14, TensorRT-LLM 1.3rc on the same | grouped products |
| the same on B300 | what its fp4 reaches |

All by `tools/operator_facts.py` from public operator tables (aiconfigurator-core 0.12.0,
Apache-2.0). Picked by looking at measured runs, between what tables say, were three of
`Coefficients`' defaults and what earlier releases did (`_of_its_time`): `experts_s` (19 to 60 us),
`gemm_8bit_s` (2.5 us of a plain product to 6 us with a kernel that quantises) and `host_experts_s`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import Coefficients

__all__ = ["COEFFICIENTS", "TGI_FIT", "architecture_of", "table_for"]

_AMPERE = Coefficients(
    name="vllm-v1/ampere/operator-tables-2026-11",
    gemm_compute_fraction=0.86,
    gemm_compute_fraction_8bit=0.63,  # int8 was not in the table; between Ada and bf16
    gemm_memory_fraction=0.76,
    gemm_memory_fraction_8bit=0.76,
    experts_memory_fraction=0.85,
    gemm_s=5.3e-6,
    gemm_8bit_s=4.5e-6,
    attention_compute_fraction=0.57,
    attention_extra_pairs_per_token=273.0,
    attention_memory_fraction=0.79,
    attention_s=18e-6,
    experts_compute_fraction=0.33,
    experts_compute_fraction_packed=0.24,
    experts_compute_fraction_mxfp4=0.24,
    experts_compute_fraction_8bit=0.3,
    experts_compute_fraction_blocks=0.3,
    experts_compute_fraction_4bit=0.2,
)
_ADA = Coefficients(
    name="vllm-v1/ada/operator-tables-2026-11",
    gemm_compute_fraction=0.59,
    gemm_compute_fraction_8bit=0.48,
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
    experts_compute_fraction=0.4,
    experts_compute_fraction_packed=0.44,
    experts_compute_fraction_mxfp4=0.42,
    experts_compute_fraction_8bit=0.28,
    experts_compute_fraction_blocks=0.33,
    experts_compute_fraction_4bit=0.2,
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
    small_cache_memory_share=0.7,  # 0.6 to 0.7 on H200, 0.7 to 0.85 on H100
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
    latent_compute_share=1.5,  # prompts 1.0 to 1.2, answers 1.0 with 16-bit caches, 2 with fp8
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
    experts_compute_fraction=0.5,
    experts_compute_fraction_packed=0.5,
    experts_compute_fraction_mxfp4=0.5,
    experts_compute_fraction_8bit=0.5,
    experts_compute_fraction_blocks=0.5,
    experts_compute_fraction_4bit=0.5,
    experts_half_columns=0.0,
    experts_s=18e-6,
    experts_blocks_s=18e-6,
    experts_4bit_s=18e-6,
    gemm_extra_rows=0.0,
    experts_extra_rows=32.0,
    experts_extra_rows_packed=32.0,
    gemm_blocks_s=30e-6,
    gemm_memory_fraction_4bit=0.6,
    latent_memory_share=1.0,
)
#: Silicon without a table of its own: the middle of those that have one.
_UNSEEN = Coefficients(
    name="vllm-v1/unseen/operator-tables-2026-11",
    gemm_compute_fraction=0.70,
    gemm_compute_fraction_8bit=0.52,
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


def table_for(device: Device, engine: str = "vllm", version: str = "") -> Coefficients:
    """What the operator tables say of the device's architecture under an engine.

    Unseen silicon gets the middle of what was seen. An architecture counts by how its name
    begins, so that `ada lovelace` is `ada`.

    Args:
        version: Of the engine; the present generation where it is not given.
    """
    architecture = architecture_of(device)
    table = _with_experts(COEFFICIENTS[architecture], architecture, engine)
    if engine == "tgi":
        return _tgi(table)
    low, high = _B300_PEAKS
    if low < (device.fp4_flops or 0) / device.peak_flops("fp8") < high:
        table = _with_b300_fp4(table)
    table = _of_its_time(table, engine, version)
    if engine in _PREFILL_FIRST:
        return _prefill_first(table)
    return _whole_answers(table) if engine in _WHOLE_ANSWERS else table


def architecture_of(device: Device) -> str:
    """Key of the device's table; empty for silicon without one."""
    first = device.architecture.lower().replace("-", " ").replace("_", " ").split(" ")[0]
    return first if first in COEFFICIENTS else ""


class _Reached(msgspec.Struct, frozen=True):
    """Shares that grouped products reach: `Coefficients.experts_compute_fraction` and its kinds."""

    plain: float
    packed: float
    mxfp4: float
    eight_bit: float
    blocks: float
    four_bit: float


#: By architecture and engine, in the order of `_Reached`. Half of what sets an engine apart from
#: the mean of the three is kept (in logarithms), because engines change kernels: from 0.19 to
#: 0.24 vLLM's products of eight bits fell from 0.36 to 0.14 on Hopper and rose from 0.20 to 0.38
#: on Blackwell. Packed are int4 and, on Blackwell, mxfp4 that is widened. On Blackwell SGLang and
#: TensorRT-LLM multiply mxfp4 in eight bits, and vLLM where it is told to (halfway between); on
#: Hopper all run OpenAI's Triton kernels by default, so TensorRT-LLM has the mean of the others.
_EXPERTS: Mapping[tuple[str, str], _Reached] = MappingProxyType(
    {
        ("blackwell", "vllm"): _Reached(0.37, 0.15, 0.37, 0.32, 0.19, 0.22),
        ("blackwell", "sglang"): _Reached(0.35, 0.21, 0.64, 0.28, 0.165, 0.21),
        ("blackwell", "trtllm"): _Reached(0.36, 0.14, 0.54, 0.25, 0.245, 0.21),
        ("hopper", "vllm"): _Reached(0.42, 0.22, 0.30, 0.34, 0.23, 0.20),
        ("hopper", "sglang"): _Reached(0.29, 0.20, 0.26, 0.34, 0.215, 0.20),
        ("hopper", "trtllm"): _Reached(0.41, 0.20, 0.28, 0.34, 0.195, 0.20),
    }
)


@functools.cache
def _with_experts(table: Coefficients, architecture: str, engine: str) -> Coefficients:
    found = _EXPERTS.get((architecture, engine))
    if found is None:
        return table
    return msgspec.structs.replace(
        table,
        experts_compute_fraction=found.plain,
        experts_compute_fraction_packed=found.packed,
        experts_compute_fraction_mxfp4=found.mxfp4,
        experts_compute_fraction_8bit=found.eight_bit,
        experts_compute_fraction_blocks=found.blocks,
        experts_compute_fraction_4bit=found.four_bit,
    )


#: B300's fp4 peak is three times its fp8 peak, B200's twice (consumer cards' four times, as their
#: fp8 is halved). Its kernels reach what B200's do and
#: a tenth more (dense products 0.27 to 0.29 of that peak, experts 0.11 to 0.17).
_B300_PEAKS, _B300_SHARE = (2.5, 3.5), 0.72


@functools.cache
def _with_b300_fp4(table: Coefficients) -> Coefficients:
    return msgspec.structs.replace(
        table,
        gemm_compute_fraction_4bit=_B300_SHARE * table.gemm_compute_fraction_4bit,
        experts_compute_fraction_4bit=_B300_SHARE * table.experts_compute_fraction_4bit,
    )


@functools.cache
def _tgi(table: Coefficients) -> Coefficients:
    """Text-generation-inference 1.x of 2023: no captured graphs, and Python for each sequence.

    Every step launches each layer from the host and then walks twice over the batch, moving one
    number to the device and detokenising for each sequence (`flash_causal_lm.py`,
    `generate_token`): the three times of `TGI_FIT`. Its router takes in prompts every
    `max_waiting_tokens` = 20 steps, as many as `max_batch_prefill_tokens` hold, and only where
    whole answers have room (`queue.rs` and the launcher's arguments). Its experts are MegaBlocks',
    whose products reach what plain ones do (its paper of 2022).
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
        experts_compute_fraction=table.gemm_compute_fraction,
        experts_half_columns=0.0,
        experts_memory_fraction=table.gemm_memory_fraction,
        experts_s=18e-6,
        experts_extra_rows=32.0,
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


#: TensorRT-LLM 1.0 launches every layer of a step with prompts from the host: it takes 40 ms on
#: four and on eight devices alike, whatever is computed (Qwen3-32B on H100, 64 layers, prompts of
#: 1,024 tokens), some 8 of them outside the layers.
_LAUNCHING_BEFORE, _LAUNCHED_LAYER_S = (1, 1), 0.5e-3
#: vLLM's experts in eight-bit blocks took longer before 0.18, whatever they computed (MiniMax-M2.5,
#: 62 layers: 4 ms a step on H200 by 0.16, 2.5 ms on B200 by 0.17).
_SLOW_BLOCKS_BEFORE, _SLOW_BLOCKS_S = (0, 18), 35e-6


@functools.cache
def _of_its_time(table: Coefficients, engine: str, version: str) -> Coefficients:
    """What was read off measured runs of earlier releases, of which no table tells."""
    if engine == "trtllm" and _before(version, _LAUNCHING_BEFORE):
        return msgspec.structs.replace(table, host_layer_s=_LAUNCHED_LAYER_S)
    if engine == "vllm" and _before(version, _SLOW_BLOCKS_BEFORE):
        blocks_s = table.experts_blocks_s + _SLOW_BLOCKS_S
        return msgspec.structs.replace(table, experts_blocks_s=blocks_s)
    return table


def _before(version: str, release: tuple[int, int]) -> bool:
    """Whether a version is known to be older: a build without a release's numbers is not."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?!\.dev)(?!\d)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < release
