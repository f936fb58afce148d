"""Corrections of what is assumed about silicon without operator tables, found by a fit.

Operator tables of data-centre GPUs are used as they are: factors by engine or release that were
fitted to some laboratories' runs made predictions of others' worse (13.1% without any, 18.3% with
them; `docs/concepts/prediction.md`). Silicon without a table has factors of its architecture, and
an engine that came later to other vendors' silicon has factors of its release there. A coefficient
is then

    share   logit(share)  = logit(table) + architecture + port
    else    log(value)    = log(table)   + architecture + port

so a share stays within 0 and 1 and a time above zero, whatever the fit does. A scope that was
never measured contributes nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping

import msgspec
import numpy as np

from servetune.bundled import bundled
from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE, engine, step_law_facts
from servetune.engines.behaviour import FilterCost, PenaltyCost
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.perf.copies import host_fraction
from servetune.perf.roofline.coefficients import Coefficients, at_least, changed, value_at
from servetune.perf.roofline.tables import (
    architecture_of,
    host_share,
    table_for,
    tabled,
    under_power,
)
from servetune.plan.plan import Plan
from servetune.workload.workload import Workload


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """Correction that a fit may make, and its prior.

    Attributes:
        fields: Paths of coefficients that move together.
        share: Whether they are shares of a peak (logit) or times and ratios (log).
        architecture_sd: Prior standard deviation of one architecture's factor; zero for none.
        port_sd: Prior standard deviation of the factor of one era of an engine on one
            architecture that is not NVIDIA's, where engines came later, and of that on its family.
    """

    fields: tuple[str, ...]
    share: bool = False
    architecture_sd: float = 0.0
    port_sd: float = 0.0

    def sd(self, scope: str) -> float:
        """Prior standard deviation of its factor in a scope; zero for none."""
        return float(getattr(self, f"{scope.partition(':')[0]}_sd"))


KNOBS: Mapping[str, Knob] = msgspec.convert(
    bundled("perf.roofline", "data/knobs.toml"), ready(dict[str, Knob])
)


class Factor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fitted correction.

    Attributes:
        knob: Key of `KNOBS`.
        scope: `architecture:NAME`, or `port:ENGINE/ERA/NAME`.
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
    return msgspec.convert(bundled("perf.roofline", "data/factors.toml"), ready(Fit))


@functools.lru_cache(maxsize=4096)
def coefficients_for(
    device: Device,
    engine: str = DEFAULT_ENGINE,
    version: str = "",
    *,
    eager: bool = False,
    in_series: bool = False,
) -> Coefficients:
    """The coefficients of the device's architecture under an engine, corrected by the fit.

    The simulated engine counts as the one that it plays.

    Args:
        version: Release of the engine; the present generation if empty.
        eager: Whether it has neither graphs nor compiled layers (`Plan.enforce_eager`).
        in_series: Whether it was told to compose a step when the one before has ended.
    """
    table = table_for(device, engine, version)
    scopes = scopes_of(device, engine, version)
    if scopes:
        name = f"{table.name}/fit-{fit().version}"
        table = corrected(table, fit().factor, scopes, name=name)
    table = under_power(table, device)
    if in_series:
        table = at_least(table, step_law_facts(engine).in_series)
    return _eager(table, host_share(device, engine)) if eager else table


#: Least values of coefficients where an engine runs its network layer by layer in Python: seconds
#: to launch a layer, and more where its attention is latent or linear. As SGLang computes prompts;
#: what was found there (its `behaviour.toml`) is near what published runs of eager vLLM took
#: (`docs/concepts/prediction.md`). No factor of the fit turns them: those are of compiled layers.
EAGER_LEAST = {"launch.layer_s": 4.5e-4, "launch.mixer_s": 7e-4}
#: Coefficients of graphs, which it has none of.
EAGER_NONE = ("launch.captured_tokens", "launch.captured_sequences")


def _eager(compiled: Coefficients, host_share: float) -> Coefficients:
    """Coefficients of an engine that runs its network layer by layer in Python."""
    if not compiled.launch.layer_s:  # a processor launches nothing
        return compiled
    least = {path: host_share * value for path, value in EAGER_LEAST.items()}
    return changed(at_least(compiled, least), dict.fromkeys(EAGER_NONE, 0))


def plan_coefficients(device: Device, plan: Plan) -> Coefficients:
    """The coefficients of a device under a plan's engine and its release, with its copies beside.

    Copies on one machine wait for what they share, so each of their steps is longer by as much.
    """
    version, eager = plan.engine_version or "", bool(plan.enforce_eager)
    in_series = engine(plan.engine).behaviour.waits_for_host(plan, device, version)
    plain = coefficients_for(device, plan.engine, version, eager=eager, in_series=in_series)
    return plain if plan.replicas == 1 else _among(plain, plan.replicas)


#: Coefficients that make up a step: each is longer where copies share a host.
_STEP = ("host.step_s", "host.rank_s", "host.sequence_s", "host.http_sequence_s",
         "host.other_sequence_s", "host.prompt_s", "host.draft_sequence_s",
         "device_factor")  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _among(plain: Coefficients, copies: int) -> Coefficients:
    """Coefficients of one of several copies on a machine."""
    longer = 1 / host_fraction(copies)
    return changed(plain, {name: longer * value_at(plain, name) for name in _STEP})


def run_coefficients(
    device: Device, plan: Plan, shape: NetworkShape, workload: Workload
) -> Coefficients:
    """Coefficients of a plan's runs of a workload.

    Measured runs, and so the law, are of greedy sampling. Top-k and top-p cost further kernels
    over the whole vocabulary, and penalties work of the host that grows with the answers; their
    times are known on NVIDIA's devices.
    """
    plain = plan_coefficients(device, plan)
    filtering, penalty = filter_cost(device, plan, workload), penalty_cost(device, plan, workload)
    if filtering is None and penalty is None:
        return plain
    step_s, sequence_s = plain.host.step_s, plain.host.sequence_s
    moved_bytes = plain.small_kernels.sampling_bytes_per_logit
    if filtering is not None:
        moved_bytes += filtering.bytes_per_logit
        step_s += filtering.entry_s * shape.vocab
    if penalty is not None:
        moved_bytes += penalty.bytes_per_logit
        rows = 1 + (plan.draft_tokens or 0)
        sequence_s += penalty.token_s * rows * longest_answer_tokens(plan, workload)
    values = {
        "small_kernels.sampling_bytes_per_logit": moved_bytes,
        "host.step_s": step_s,
        "host.sequence_s": sequence_s,
    }
    return changed(plain, values)


def longest_answer_tokens(plan: Plan, workload: Workload) -> float:
    """Tokens so far of the longest answer in progress, mean over a run's steps.

    Of `n` answers of equal length, each begun at any time, the longest is at `n / (n + 1)` of it;
    of lengths that differ it is one of the longest.
    """
    _, outputs = workload.lengths.draw(512, np.random.default_rng(workload.seed))
    users = (workload.concurrency or workload.request_count) / plan.replicas / plan.data_parallel
    users = max(1.0, min(users, plan.max_num_seqs or users))
    share = users / (users + 1)
    return share * float(np.quantile(outputs, share))


def sampling_timed(device: Device) -> bool:
    """Whether anybody timed the kernels of top-k, top-p and penalties on such a device."""
    return device.vendor == "NVIDIA"


def filter_cost(device: Device, plan: Plan, workload: Workload) -> FilterCost | None:
    """Cost of top-k and top-p that a plan's runs of a workload have; `None` for none."""
    sampling = engine(plan.engine).behaviour.sampling
    asked = workload.sampling == "filtered" or (
        workload.sampling == "checkpoint" and sampling.reads_checkpoint(plan)
    )
    if not asked or not sampling_timed(device):
        return None
    return sampling.filter_cost(plan.engine_version or "")


def penalty_cost(device: Device, plan: Plan, workload: Workload) -> PenaltyCost | None:
    """Cost of penalties that a plan's runs of a workload have; `None` for none."""
    sampling = engine(plan.engine).behaviour.sampling
    asked = workload.penalties == "requests" or (
        workload.penalties == "checkpoint" and sampling.reads_checkpoint(plan)
    )
    return sampling.penalty_cost if asked and sampling_timed(device) else None


def scopes_of(device: Device, engine: str, version: str) -> tuple[str, ...]:
    """Scopes whose factors apply to a device under an engine's release; none on a CPU.

    The simulated engine counts as the one that it plays.
    """
    architecture = architecture_of(device)
    if architecture == "cpu":  # its runs are the host's affair
        return ()
    scopes = []
    if architecture and not tabled(architecture):
        scopes.append(f"architecture:{architecture}")
    if device.vendor != "NVIDIA":
        facts = step_law_facts(engine)
        era = facts.era_of(version)
        named = "present" if era is None or era.alike else era.name
        silicon = device.architecture.lower() or device.vendor.lower()
        release = f"port:{facts.name}/{named}"
        families = dict.fromkeys((silicon.rstrip("0123456789"), silicon))
        scopes += [f"{release}/{name}" for name in families]
    return tuple(scopes)


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
