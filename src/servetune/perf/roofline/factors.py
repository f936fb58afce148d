"""Corrections to the operator tables that a fit to measured runs found, and how they combine.

Operator tables say what a kernel reaches alone; runs say what an engine makes of it. The
difference is a handful of factors, each near one: some for everything, some for one engine,
some for one architecture of silicon. A coefficient is

    share   logit(share)  = logit(table) + all + engine + architecture
    else    log(value)    = log(table)   + all + engine + architecture

so a share stays within 0 and 1 and a time above zero, whatever the fit does. A scope that was
never measured contributes nothing: unseen silicon gets its own table and what holds for all.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from types import MappingProxyType

import msgspec

from servetune.engines import DEFAULT_ENGINE, step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import EXPERT_SHARES, Coefficients, changed, value_at
from servetune.perf.roofline.tables import architecture_of, table_for


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """Correction that a fit may make, and its prior.

    Attributes:
        fields: Paths of coefficients that move together.
        share: Whether they are shares of a peak (logit) or times and ratios (log).
        all_sd: Prior standard deviation of the factor for everything.
        engine_sd: Prior standard deviation of one engine's factor around that; zero for none.
        architecture_sd: Prior standard deviation of one architecture's factor; zero for none.
    """

    fields: tuple[str, ...]
    share: bool = False
    all_sd: float
    engine_sd: float = 0.0
    architecture_sd: float = 0.0


KNOBS: Mapping[str, Knob] = MappingProxyType(
    {
        "gemm_compute": Knob(
            fields=("gemm.compute_fraction",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "gemm_compute_8bit": Knob(
            fields=("gemm.compute_fraction_8bit",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "gemm_compute_4bit": Knob(fields=("gemm.compute_fraction_4bit",), share=True, all_sd=0.3),
        "gemm_memory": Knob(
            fields=("gemm.memory_fraction",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "gemm_memory_8bit": Knob(
            fields=("gemm.memory_fraction_8bit",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "gemm_memory_4bit": Knob(fields=("gemm.memory_fraction_4bit",), share=True, all_sd=0.3),
        "attention_compute": Knob(fields=("attention.compute_fraction",), share=True, all_sd=0.3),
        "attention_memory": Knob(
            fields=("attention.memory_fraction",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "experts_compute": Knob(
            fields=EXPERT_SHARES,
            share=True,
            all_sd=0.3,
            architecture_sd=0.2,
        ),
        "experts_memory": Knob(
            fields=("experts.memory_fraction",), share=True, all_sd=0.3, architecture_sd=0.2
        ),
        "latent_memory": Knob(fields=("attention.latent_memory_share",), all_sd=0.2),
        "kernel": Knob(
            fields=(
                "gemm.kernel_s",
                "gemm.kernel_8bit_s",
                "gemm.kernel_blocks_s",
                "attention.kernel_s",
                "small_kernels.kernel_s",
            ),
            all_sd=0.3,
            engine_sd=0.2,
            architecture_sd=0.2,
        ),
        "experts_s": Knob(
            fields=("experts.layer_s", "experts.layer_blocks_s", "experts.layer_4bit_s"),
            all_sd=0.5,
            engine_sd=0.3,
        ),
        "experts_extra_rows": Knob(
            fields=("experts.extra_rows", "experts.extra_rows_packed"), all_sd=0.7
        ),
        "latent_s": Knob(fields=("attention.latent_s",), all_sd=0.5),
        "index_s": Knob(fields=("attention.index_s",), all_sd=0.7),
        "step_s": Knob(fields=("host.step_s",), all_sd=0.5, engine_sd=0.4),
        "sequence_s": Knob(fields=("host.sequence_s",), all_sd=0.7, engine_sd=0.5),
        "prompt_s": Knob(fields=("host.prompt_s",), all_sd=0.7, engine_sd=0.5),
        "host_experts_s": Knob(fields=("launch.experts_s",), all_sd=1.0, engine_sd=0.7),
        "draft_sequence_s": Knob(fields=("host.draft_sequence_s",), all_sd=0.7, engine_sd=0.7),
        "warm_up_s": Knob(fields=("closed_loop.warm_up_s",), all_sd=0.7, engine_sd=0.7),
        "clump": Knob(fields=("closed_loop.clump_prompts",), all_sd=0.5, engine_sd=0.7),
        "intake_s": Knob(fields=("closed_loop.intake_s",), all_sd=1.0, engine_sd=0.7),
        "together_steps": Knob(fields=("closed_loop.together_steps",), all_sd=1.0),
        "agreement_latency": Knob(fields=("collectives.latency_factor",), all_sd=0.3),
        "agreement_rate": Knob(fields=("collectives.rate_factor",), all_sd=0.3),
        "device": Knob(fields=("device_factor",), all_sd=0.0, engine_sd=0.1),
    }
)


class Factor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fitted correction.

    Attributes:
        knob: Key of `KNOBS`.
        scope: `all`, `engine:NAME` or `architecture:NAME`.
        value: Added to the logit or the logarithm.
        sd: Standard deviation after the fit.
    """

    knob: str
    scope: str
    value: float
    sd: float


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All factors of one fit, and their source.

    Attributes:
        version: Year and month; part of the name of coefficients made from it.
        fitted: Date.
        data: Measured runs and their source.
        engines: Generations that were measured.
    """

    version: str
    fitted: str
    data: str
    engines: str
    factor: tuple[Factor, ...]


@functools.cache
def fit() -> Fit:
    """The fit that ships with this version; `tools/fit_step_law.py` writes it."""
    text = resources.files("servetune.perf.roofline").joinpath("data/factors.toml").read_text()
    return msgspec.convert(tomllib.loads(text), Fit)


def coefficients_for(
    device: Device, engine: str = DEFAULT_ENGINE, version: str = ""
) -> Coefficients:
    """The coefficients of the device's architecture under an engine, corrected by the fit.

    The simulated engine is vLLM's. Silicon in `_UNCORRECTED` keeps its table as it is.

    Args:
        version: Release of the engine; the present generation if empty.
    """
    facts = step_law_facts(engine)
    table = table_for(device, engine, version)
    architecture = architecture_of(device)
    if architecture in _UNCORRECTED or facts.own_fit:
        return table
    return _coefficients(table, facts.name, architecture)


#: No run on these was in the fit, and their tables agree with what runs there are: one of a
#: CPU is a host's affair, and Ada's reproduces the published L4 records.
_UNCORRECTED = ("cpu", "ada")


@functools.cache
def _coefficients(table: Coefficients, engine: str, architecture: str) -> Coefficients:
    name = f"{engine}/{architecture or 'unseen'}/fit-{fit().version}"
    return corrected(table, fit().factor, engine=engine, architecture=architecture, name=name)


def corrected(
    table: Coefficients, factors: Iterable[Factor], *, engine: str, architecture: str, name: str
) -> Coefficients:
    """The table's coefficients with the factors of everything, the engine and the silicon."""
    scopes = ("all", f"engine:{engine}", f"architecture:{architecture}")
    sums: dict[str, float] = {}
    for factor in factors:
        if factor.scope in scopes:
            sums[factor.knob] = sums.get(factor.knob, 0.0) + factor.value
    values = {
        path: _moved(value_at(table, path), by, share=KNOBS[knob].share)
        for knob, by in sums.items()
        for path in KNOBS[knob].fields
    }
    return changed(table, values, name=name)


def _moved(value: float, by: float, *, share: bool) -> float:
    if not share:
        return value * math.exp(by)
    return 1 / (1 + (1 - value) / value * math.exp(-by))
