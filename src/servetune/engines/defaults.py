"""Defaults: unset fields of a plan, filled as its engine would fill them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import msgspec

from servetune.engines.engine import engine
from servetune.engines.registry import ENGINES
from servetune.errors import PlanError, UnknownName
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan


def resolved(
    plan: Plan, shape: NetworkShape, device: Device, *, version: str | None = None
) -> Plan:
    """The Plan with every silent field filled as its engine would fill it.

    `quantization` may stay None: it then means the checkpoint's own storage, which engines
    take from the checkpoint and have no option for. So may drafts and servers that only compute
    prompts, which no engine has unasked; and what an engine works out when it starts, from the
    machine and what a warm-up leaves of its memory. Resolving twice changes
    nothing.

    Args:
        plan: Plan whose unset fields are filled.
        shape: The network.
        device: Device that it runs on.
        version: Of the engine; `None` for the release that estimates and simulations are of,
            which is the oldest that is described.

    Raises:
        UnknownName: The engine's defaults are not known.
        PlanError: The engine cannot hand a sequence's cache over, and the plan has servers that
            only compute prompts.

    Example:
        >>> from servetune.hardware import device as named
        >>> from servetune.models import load_shape
        >>> plan = Plan(model="Qwen/Qwen3-4B")
        >>> filled = resolved(plan, load_shape(plan.model, catalogue_first=True), named("L4"))
        >>> filled.max_num_seqs, filled.max_num_batched_tokens, filled.max_model_len
        (256, 2048, 40960)
    """
    return _filled(plan, shape, device, version)


@functools.lru_cache(maxsize=4096)
def _filled(plan: Plan, shape: NetworkShape, device: Device, version: str | None) -> Plan:
    """`resolved`, cached: a row of a table and a point of a search ask several times."""
    if plan.prefill_replicas is not None and plan.engine in ENGINES:
        _require_handover(plan)
    releases = engine(plan.engine).defaults if plan.engine in ENGINES else ()
    if not releases:
        raise UnknownName("engine", plan.engine, engines_with_defaults())
    chosen = releases[-1]
    if version is not None:
        major, minor, *_ = (*(int(number) for number in re.findall(r"\d+", version)), 0, 0)
        chosen = next((one for one in releases if (major, minor) >= one.since), chosen)
    released = plan if version is None else msgspec.structs.replace(plan, engine_version=version)
    filled = chosen.fill(released, shape, device)
    silent = {name: value for name, value in filled.items() if getattr(plan, name) is None}
    return msgspec.structs.replace(plan, **silent) if silent else plan


@functools.cache
def engines_with_defaults() -> tuple[str, ...]:
    """Names of the engines whose defaults are known, so that their plans can be priced."""
    return tuple(name for name in ENGINES if engine(name).defaults)


@functools.cache
def simulated_engines() -> tuple[str, ...]:
    """Names of the engines whose servers the simulated server stands in for."""
    return tuple(name for name in ENGINES if engine(name).server_words is not None)


@functools.cache
def simulated_studies() -> Mapping[str, str]:
    """Names by which a study simulates engines in virtual time, to the engines themselves."""
    named = {engine(name).simulated_as: name for name in ENGINES}
    return {alias: name for alias, name in named.items() if alias}


@functools.cache
def study_engines() -> tuple[str, ...]:
    """Names of engines that a study may have: real ones, then the simulated ones."""
    return (*(name for name in ENGINES if not engine(name).virtual_time), *simulated_studies())


def recorded_engine(simulated: str) -> str:
    """Name of a simulated engine in journals, which say apart from it that it was simulated.

    The default engine's is `simulated`, as in every journal so far; others have their own.
    """
    alias = engine(simulated).simulated_as
    return alias if alias in ENGINES else simulated


def _require_handover(plan: Plan) -> None:
    if not engine(plan.engine).behaviour.transfers_cache:
        able = [name for name in ENGINES if engine(name).behaviour.transfers_cache]
        raise PlanError(
            f"{plan.engine} computes prompts and decodes in one process",
            hint=f"prefill_replicas are for {', '.join(able)}",
        )
