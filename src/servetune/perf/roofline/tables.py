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
from typing import Any

import msgspec

from servetune.engines import step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import Coefficients

__all__ = ["COEFFICIENTS", "architecture_of", "table_for"]

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


def table_for(device: Device, engine: str = "vllm", version: str = "") -> Coefficients:
    """What the operator tables say of the device's architecture under an engine.

    Unseen silicon gets the middle of what was seen. An architecture counts by how its name
    begins, so that `ada lovelace` is `ada`.

    Args:
        version: Of the engine; the present generation where it is not given.
    """
    architecture = architecture_of(device)
    facts = step_law_facts(engine)
    table = _with_experts(COEFFICIENTS[architecture], architecture, engine)
    low, high = _B300_PEAKS
    if not facts.plain_experts and low < (device.fp4_flops or 0) / device.peak_flops("fp8") < high:
        table = _with_b300_fp4(table)
    return _of_engine(table, engine, version)


def architecture_of(device: Device) -> str:
    """Key of the device's table; empty for silicon without one."""
    first = device.architecture.lower().replace("-", " ").replace("_", " ").split(" ")[0]
    return first if first in COEFFICIENTS else ""


@functools.cache
def _with_experts(table: Coefficients, architecture: str, engine: str) -> Coefficients:
    """The table with what an engine's products of experts reach.

    Half of what sets an engine apart from the mean of vLLM, SGLang and TensorRT-LLM is kept (in
    logarithms), because engines change kernels: from 0.19 to 0.24 vLLM's products of eight bits
    fell from 0.36 to 0.14 on Hopper and rose from 0.20 to 0.38 on Blackwell. Packed are int4 and,
    on Blackwell, mxfp4 that is widened. On Blackwell SGLang and TensorRT-LLM multiply mxfp4 in
    eight bits, and vLLM where it is told to (halfway between); on Hopper all run OpenAI's Triton
    kernels by default, so TensorRT-LLM has the mean of the others.
    """
    return msgspec.structs.replace(table, **step_law_facts(engine).experts.get(architecture, {}))


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
def _of_engine(table: Coefficients, engine: str, version: str) -> Coefficients:
    """The table with what sets an engine, and an earlier release of it, apart."""
    facts = step_law_facts(engine)
    changes: dict[str, Any] = dict(facts.coefficients)
    if facts.plain_experts:
        changes["experts_compute_fraction"] = table.gemm_compute_fraction
        changes["experts_memory_fraction"] = table.gemm_memory_fraction
    if facts.own_fit:
        architecture = table.name.split("/")[1]
        changes["name"] = f"{facts.name}-1/{architecture}/{facts.own_fit}"
    for earlier in facts.earlier:
        if _before(version, earlier.before):
            changes |= earlier.coefficients
            changes |= {
                name: getattr(table, name) + added_s for name, added_s in earlier.added_s.items()
            }
    return msgspec.structs.replace(table, **changes)


def _before(version: str, release: tuple[int, int]) -> bool:
    """Whether a version is known to be older: a build without a release's numbers is not."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?!\.dev)(?!\d)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < release
