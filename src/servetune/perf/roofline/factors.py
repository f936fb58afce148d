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
from collections.abc import Iterable, Mapping

import msgspec

from servetune.bundled import bundled
from servetune.engines import DEFAULT_ENGINE, step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import Coefficients, changed, value_at
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


KNOBS: Mapping[str, Knob] = msgspec.convert(
    bundled("perf.roofline", "data/knobs.toml"), dict[str, Knob]
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
    return msgspec.convert(bundled("perf.roofline", "data/factors.toml"), Fit)


def coefficients_for(
    device: Device, engine: str = DEFAULT_ENGINE, version: str = ""
) -> Coefficients:
    """The coefficients of the device's architecture under an engine, corrected by the fit.

    The simulated engine counts as the one that it plays. Silicon in `_UNCORRECTED` keeps its
    table as it is.

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
