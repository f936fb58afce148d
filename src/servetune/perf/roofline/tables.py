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

import msgspec

from servetune.bundled import bundled
from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE, step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import (
    COMPUTE_SHARES,
    PATHS,
    Coefficients,
    changed,
    value_at,
)

#: Architecture, in lower case as `Device.architecture` begins, to its coefficients; empty for
#: silicon without a table of its own.
COEFFICIENTS: Mapping[str, Coefficients] = MappingProxyType(
    {
        "" if name == "unseen" else name: msgspec.convert(table, ready(Coefficients))
        for name, table in bundled("perf.roofline", "data/coefficients.toml").items()
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
    table = _at_matrix_share(table, device.matrix_share)
    table = _of_engine(table, engine, version, on_amd=device.vendor == "AMD")
    return _at_host_share(table, host_share(device, engine))


def host_share(device: Device, engine: str) -> float:
    """Share of an engine's host times that is left on machines of a device."""
    return step_law_facts(engine).host_share.get(architecture_of(device), 1.0)


#: Times of the host, by their paths.
_HOST_TIMES = tuple(
    path for path in PATHS if path.startswith(("host.", "launch.")) and path.endswith("_s")
)


@functools.cache
def _at_host_share(table: Coefficients, share: float) -> Coefficients:
    """Table of a machine whose host takes a share of the times."""
    if share == 1.0:
        return table
    return changed(table, {path: share * value_at(table, path) for path in _HOST_TIMES})


def architecture_of(device: Device) -> str:
    """Key of the device's table; empty for silicon without one."""
    return _table_key(device.architecture)


@functools.cache
def _table_key(architecture: str) -> str:
    whole = re.sub(r"[\s_]+", "-", architecture.lower())
    first = whole.split("-")[0].rstrip("0123456789")
    return next((name for name in (whole, first) if name in COEFFICIENTS), "")


def tabled(architecture: str) -> bool:
    """Whether an architecture's coefficients are from operator tables, and no assumption."""
    return "operator-tables" in COEFFICIENTS[architecture].name and bool(architecture)


@functools.cache
def _at_matrix_share(table: Coefficients, matrix_share: float) -> Coefficients:
    """Table of a board whose matrix units are slower than its silicon's, all else being equal.

    A kernel's time is that of the matrix units and of whatever else holds it back, one after the
    other; only the former grows, so that its share of the lower peak is the higher. Products in
    fp4 are left: no such board has fewer of them.
    """
    if matrix_share == 1.0:
        return table
    shares = {path: value_at(table, path) for path in COMPUTE_SHARES if "4bit" not in path}
    return changed(
        table, {path: 1 / (1 + (1 / share - 1) * matrix_share) for path, share in shares.items()}
    )


@functools.cache
def under_power(table: Coefficients, device: Device) -> Coefficients:
    """Coefficients with the FLOP/s that the board's power allows, where kernels could do more."""
    if not table.gemm.flops_per_joule or not device.tdp_watts:
        return table
    allowed = table.gemm.flops_per_joule * device.tdp_watts / device.bf16_flops
    share = min(1.0, allowed / table.gemm.compute_fraction)
    if share == 1.0:
        return table
    paths = [path for path in PATHS if path.startswith("gemm.compute_fraction")]
    return changed(table, {path: share * value_at(table, path) for path in paths})


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
def _of_engine(table: Coefficients, engine: str, version: str, *, on_amd: bool) -> Coefficients:
    """Table with the differences of an engine, and of an earlier release of it."""
    facts = step_law_facts(engine)
    era = facts.era_of(version)
    changes = dict(facts.coefficients) | (dict(facts.on_amd) if on_amd else {})
    if era and era.grouped_experts:
        changes = {
            path: value for path, value in changes.items() if not path.startswith("experts.")
        }
    elif facts.plain_experts:
        changes["experts.compute_fraction"] = table.gemm.compute_fraction
        changes["experts.memory_fraction"] = table.gemm.memory_fraction
    release = f"{facts.name}-{era.name}" if era else facts.name
    name = "/".join((release, *table.name.split("/")[1:]))
    if era:
        changes |= dict(era.coefficients) | (dict(era.on_amd) if on_amd else {})
    if not table.launch.layer_s:  # a processor launches nothing, and its table has its own host
        changes = {
            path: value
            for path, value in changes.items()
            if not path.startswith(("host.", "experts.layer_"))
        }
    return changed(table, changes, name=name)
