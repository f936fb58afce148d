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
from collections.abc import Collection, Iterable, Mapping

import msgspec

from servetune.bundled import bundled
from servetune.engines import DEFAULT_ENGINE, step_law_facts
from servetune.hardware.device import Device
from servetune.perf.roofline.coefficients import Coefficients, changed, value_at
from servetune.perf.roofline.tables import architecture_of, table_for, tabled, under_power


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """Correction that a fit may make, and its prior.

    Attributes:
        fields: Paths of coefficients that move together.
        share: Whether they are shares of a peak (logit) or times and ratios (log).
        all_sd: Prior standard deviation of the factor for everything.
        engine_sd: Prior standard deviation of one engine's factor around that; zero for none.
        architecture_sd: Prior standard deviation of one architecture's factor; zero for none.
        release_sd: Prior standard deviation of the factor of an engine's earlier releases.
        port_sd: Prior standard deviation of the factor of one era of an engine on one
            architecture that is not NVIDIA's, where engines came later, and of that on its family.
        past_sd: Prior standard deviation of the factor of an era apart (`Era.apart`), together
            with `release_sd`; `all_sd` if zero.
    """

    fields: tuple[str, ...]
    share: bool = False
    all_sd: float = 0.0
    engine_sd: float = 0.0
    architecture_sd: float = 0.0
    release_sd: float = 0.0
    port_sd: float = 0.0
    past_sd: float = 0.0

    def sd(self, scope: str) -> float:
        """Prior standard deviation of its factor in a scope; zero for none."""
        kind = scope.partition(":")[0]
        if kind == "past":  # stands for everything, the engine and the release
            return math.hypot(self.past_sd or self.all_sd, self.release_sd)
        return float(getattr(self, f"{kind}_sd"))


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


@functools.lru_cache(maxsize=4096)
def coefficients_for(
    device: Device, engine: str = DEFAULT_ENGINE, version: str = ""
) -> Coefficients:
    """The coefficients of the device's architecture under an engine, corrected by the fit.

    The simulated engine counts as the one that it plays.

    Args:
        version: Release of the engine; the present generation if empty.
    """
    table = table_for(device, engine, version)
    scopes = scopes_of(device, engine, version)
    return under_power(_corrected(table, scopes) if scopes else table, device)


def scopes_of(device: Device, engine: str, version: str) -> tuple[str, ...]:
    """Scopes whose factors apply to a device under an engine's release; none on a CPU.

    The simulated engine counts as the one that it plays.
    """
    architecture = architecture_of(device)
    if architecture == "cpu":  # its runs are the host's affair
        return ()
    facts = step_law_facts(engine)
    era = facts.era_of(version)
    if facts.fitted_alone and era is None:
        return ()
    scopes = []
    if architecture and not tabled(architecture):
        scopes.append(f"architecture:{architecture}")
    if era is not None and era.apart:
        scopes.append(f"past:{facts.name}/{era.name}")
    else:
        scopes += ["all", f"engine:{facts.name}"]
        if era is not None:
            scopes.append(f"release:{facts.name}/{era.name}")
    if device.vendor != "NVIDIA":
        silicon = device.architecture.lower() or device.vendor.lower()
        release = f"port:{facts.name}/{era.name if era else 'present'}"
        families = dict.fromkeys((silicon.rstrip("0123456789"), silicon))
        scopes += [f"{release}/{name}" for name in families]
    return tuple(scopes)


def _corrected(table: Coefficients, scopes: tuple[str, ...]) -> Coefficients:
    by_kind = dict(scope.partition(":")[::2] for scope in scopes)
    engine = by_kind.get("past") or by_kind["engine"]
    name = f"{engine}/{table.name.split('/')[1]}/fit-{fit().version}"
    return corrected(table, fit().factor, scopes, name=name)


def corrected(
    table: Coefficients, factors: Iterable[Factor], scopes: Collection[str], *, name: str
) -> Coefficients:
    """The table's coefficients with the factors of some scopes."""
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
