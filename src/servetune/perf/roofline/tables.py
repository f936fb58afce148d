"""Coefficients of the step law by silicon and engine, before any fit.

| measured with | kernels |
|---|---|
| vLLM 0.24 (0.14 on A100) on L40S, H100, H200, B200 | products, attention, one device of a group |
| vLLM 0.19 and 0.24, SGLang 0.5.10 and 0.5.14, TensorRT-LLM 1.3rc on the same | grouped products |
| vLLM, SGLang and TensorRT-LLM of the same releases on B300 | products in fp4 |

All were derived by `tools/operator_facts.py` from public operator tables (aiconfigurator-core
0.12.0, Apache-2.0). Three defaults were chosen by looking at measured runs, between the values of
the tables: `experts.layer_s` (19 to 60 us), `gemm.kernel_8bit_s` (2.5 us of a plain product to 6 us
with a kernel that quantises) and `launch.experts_s`; likewise what `engines` states of earlier
releases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from servetune.engines import DEFAULT_ENGINE, step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import (
    AttentionKernels,
    ClosedLoopEffects,
    Coefficients,
    ExpertProducts,
    HostOverheads,
    LaunchOverheads,
    MatrixProducts,
    SmallKernels,
    changed,
    value_at,
)

_AMPERE = Coefficients(
    name="vllm-v1/ampere/operator-tables-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.86,
        compute_fraction_8bit=0.63,  # int8 was not in the table; between Ada and bf16
        memory_fraction=0.76,
        memory_fraction_8bit=0.76,
        kernel_s=5.3e-6,
        kernel_8bit_s=4.5e-6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.85,
        compute_fraction=0.33,
        compute_fraction_packed=0.24,
        compute_fraction_mxfp4=0.24,
        compute_fraction_8bit=0.3,
        compute_fraction_blocks=0.3,
        compute_fraction_4bit=0.2,
    ),
    attention=AttentionKernels(
        compute_fraction=0.57,
        extra_pairs_per_token=273.0,
        memory_fraction=0.79,
        kernel_s=18e-6,
    ),
)
_ADA = Coefficients(
    name="vllm-v1/ada/operator-tables-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.59,
        compute_fraction_8bit=0.48,
        memory_fraction=0.83,
        memory_fraction_8bit=0.72,
        kernel_s=3.7e-6,  # the floor of small kernels: L2 of 96 MB hides the fitted one
        kernel_8bit_s=5.3e-6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.85,
        compute_fraction=0.4,
        compute_fraction_packed=0.44,
        compute_fraction_mxfp4=0.42,
        compute_fraction_8bit=0.28,
        compute_fraction_blocks=0.33,
        compute_fraction_4bit=0.2,
    ),
    attention=AttentionKernels(
        compute_fraction=0.50,
        extra_pairs_per_token=208.0,
        memory_fraction=0.82,
        kernel_s=11.5e-6,
    ),
    host=HostOverheads(
        prompt_token_s=0.0,
        prompt_s=0.0,
    ),
)
_HOPPER = Coefficients(
    name="vllm-v1/hopper/operator-tables-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.78,
        compute_fraction_8bit=0.57,
        memory_fraction=0.85,
        memory_fraction_8bit=0.78,
        kernel_s=3.9e-6,
        kernel_8bit_s=4.5e-6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.92,
    ),
    attention=AttentionKernels(
        compute_fraction=0.60,
        extra_pairs_per_token=545.0,
        memory_fraction=0.88,
        kernel_s=12e-6,
        small_cache_memory_share=0.7,  # 0.6 to 0.7 on H200, 0.7 to 0.85 on H100
    ),
)
_BLACKWELL = Coefficients(
    name="vllm-v1/blackwell/operator-tables-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.68,
        compute_fraction_8bit=0.45,
        memory_fraction=0.79,
        memory_fraction_8bit=0.67,
        kernel_s=4.0e-6,
        kernel_8bit_s=4.5e-6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.92,
    ),
    attention=AttentionKernels(
        compute_fraction=0.54,
        extra_pairs_per_token=761.0,
        memory_fraction=0.85,
        kernel_s=9e-6,
        latent_compute_share=1.5,  # prompts 1.0 to 1.2, answers 1.0 with 16-bit caches, 2 with fp8
    ),
)
#: vLLM's CPU backend, where the host's own work is most of a small model's step. Engine
#: fields: vLLM CPU 0.32 on two shared cores, a model of 1.5 M parameters, gaps between
#: tokens of 7-15, 12-16 and 19-27 ms at concurrency 1, 8 and 32 (2026-11, +-50%). Shares
#: of peak are assumed.
_CPU = Coefficients(
    name="vllm-v1/cpu/rough-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.50,
        compute_fraction_8bit=0.50,
        memory_fraction=0.60,
        memory_fraction_8bit=0.60,
        kernel_s=20e-6,
        kernel_8bit_s=30e-6,
        extra_rows=0.0,
        kernel_blocks_s=30e-6,
        memory_fraction_4bit=0.6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.6,
        compute_fraction=0.5,
        compute_fraction_packed=0.5,
        compute_fraction_mxfp4=0.5,
        compute_fraction_8bit=0.5,
        compute_fraction_blocks=0.5,
        compute_fraction_4bit=0.5,
        half_columns=0.0,
        layer_s=18e-6,
        layer_blocks_s=18e-6,
        layer_4bit_s=18e-6,
        extra_rows=32.0,
        extra_rows_packed=32.0,
    ),
    attention=AttentionKernels(
        compute_fraction=0.25,
        extra_pairs_per_token=64.0,
        memory_fraction=0.50,
        kernel_s=100e-6,
        latent_memory_share=1.0,
    ),
    small_kernels=SmallKernels(
        kernel_s=20e-6,
    ),
    host=HostOverheads(
        step_s=8e-3,
        sequence_s=0.4e-3,
        request_s=15e-3,
        prompt_token_s=0.0,
        prompt_s=0.0,
    ),
    launch=LaunchOverheads(
        layer_s=0.0,
        experts_s=0.0,
    ),
    closed_loop=ClosedLoopEffects(
        clump_prompts=0.0,
        intake_s=0.0,
    ),
)
#: Silicon without a table of its own: the middle of the others.
_UNSEEN = Coefficients(
    name="vllm-v1/unseen/operator-tables-2026-11",
    gemm=MatrixProducts(
        compute_fraction=0.70,
        compute_fraction_8bit=0.52,
        memory_fraction=0.80,
        memory_fraction_8bit=0.74,
        kernel_s=4.5e-6,
        kernel_8bit_s=4.5e-6,
    ),
    experts=ExpertProducts(
        memory_fraction=0.88,
    ),
    attention=AttentionKernels(
        compute_fraction=0.55,
        extra_pairs_per_token=400.0,
        memory_fraction=0.80,
        kernel_s=12e-6,
    ),
)

#: Architecture, in lower case as `Device.architecture` begins -> its coefficients.
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


def table_for(device: Device, engine: str = DEFAULT_ENGINE, version: str = "") -> Coefficients:
    """Coefficients of a device's architecture under an engine, by the operator tables.

    Silicon without a table gets the middle of the others. An architecture is matched by the first
    word of its name, so that `ada lovelace` is `ada`.

    Args:
        device: Device whose architecture counts.
        engine: Engine whose kernels and overheads apply.
        version: Release of the engine; the present generation if empty.
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
    """Table with the shares that an engine's grouped products reach.

    Half of an engine's difference from the mean of vLLM, SGLang and TensorRT-LLM is kept (in
    logarithms), because engines change kernels: from 0.19 to 0.24 vLLM's products of eight bits
    fell from 0.36 to 0.14 on Hopper and rose from 0.20 to 0.38 on Blackwell. Packed are int4 and,
    on Blackwell, mxfp4 that is widened. On Blackwell SGLang and TensorRT-LLM multiply mxfp4 in
    eight bits, and vLLM where it is told to (halfway between); on Hopper all run OpenAI's Triton
    kernels by default, so TensorRT-LLM has the mean of the others.
    """
    return changed(table, step_law_facts(engine).experts.get(architecture, {}))


#: Ratio of the fp4 peak to the fp8 peak by which B300 is recognised: three, against two of B200 and
#: four of consumer cards, whose fp8 is halved. Its kernels reach a tenth more than B200's (dense
#: products 0.27 to 0.29 of the fp4 peak, experts 0.11 to 0.17).
_B300_PEAKS, _B300_SHARE = (2.5, 3.5), 0.72


@functools.cache
def _with_b300_fp4(table: Coefficients) -> Coefficients:
    paths = ("gemm.compute_fraction_4bit", "experts.compute_fraction_4bit")
    return changed(table, {path: _B300_SHARE * value_at(table, path) for path in paths})


@functools.cache
def _of_engine(table: Coefficients, engine: str, version: str) -> Coefficients:
    """Table with the differences of an engine, and of an earlier release of it."""
    facts = step_law_facts(engine)
    changes = dict(facts.coefficients)
    name = None
    if facts.plain_experts:
        changes["experts.compute_fraction"] = table.gemm.compute_fraction
        changes["experts.memory_fraction"] = table.gemm.memory_fraction
    if facts.own_fit:
        architecture = table.name.split("/")[1]
        name = f"{facts.name}-1/{architecture}/{facts.own_fit}"
    for earlier in facts.earlier:
        if _before(version, earlier.before):
            changes |= earlier.coefficients
            changes |= {
                path: value_at(table, path) + added_s for path, added_s in earlier.added_s.items()
            }
    return changed(table, changes, name=name)


def _before(version: str, release: tuple[int, int]) -> bool:
    """Whether a version is older than a release; a build without release numbers is not."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?!\.dev)(?!\d)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < release
