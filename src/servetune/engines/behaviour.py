"""Facts of an engine that predictions go by: its scheduler, its memory, its step times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from servetune.engines.tables import engine_table
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan

FieldValues = Mapping[str, Any]
"""Fields of a Plan to their values."""


class ReleaseDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of an engine's releases.

    Attributes:
        since: First release that has them, major and minor.
        fill: Values of the fields that a Plan leaves open, of a Plan, network and device.
    """

    since: tuple[int, int]
    fill: Callable[[Plan, NetworkShape, Device], FieldValues]


class EarlierSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of an engine's releases before one.

    Attributes:
        before: The first release that is not meant, major and minor.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ.
        added_s: Coefficients that are larger in those releases, by path, and by how many seconds.
    """

    before: tuple[int, int]
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})
    added_s: Mapping[str, float] = MappingProxyType({})


class StepLawFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of an engine's steps from what its device's operator table says.

    Attributes:
        name: Name of the engine in measured runs and in the fit's factors; the engine's own name
            where empty.
        table_names: Names of the engine in tables of measurements, `_` between words; empty where
            none has its rows.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ.
        experts: Architecture to the shares that products of experts reach, by their path.
        earlier: Differences of earlier releases, from measured runs; the operator tables do not
            have them.
        plain_experts: Whether experts are multiplied like dense matrices, without grouped kernels.
        own_fit: Label of the fit of this engine alone, which stands instead of the fit of all.
    """

    name: str = ""
    table_names: tuple[str, ...] = ()
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})
    experts: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    earlier: tuple[EarlierSteps, ...] = ()
    plain_experts: bool = False
    own_fit: str = ""


class AdmissionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Limit at which an engine refuses a request at once.

    Attributes:
        setting: Setting that has the limit.
        counts: Quantity with the limit, in each copy: `requests` that wait or run, `waiting`
            requests of the rank that would take the next, or `prompt_tokens` of requests without a
            token yet.
        default: Limit where nobody sets it; `None` for none.
        status: HTTP status of the refusal.
        message: Text of the refusal.
        kind: Type of the error in its body.
    """

    setting: str
    counts: Literal["requests", "waiting", "prompt_tokens"]
    default: int | None = None
    status: int
    message: str
    kind: str = "Service Unavailable"


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler and division of memory of an engine.

    Attributes:
        scheduler: `mixed` steps of prompts and answers under one budget of tokens;
            `prefill_first`, waiting prompts before the next answers; `interrupting`, answers
            interrupted for prompts by how many wait.
        comparison: Comparison of the simulated scheduler with the engine's own, with its figures
            (`benchmarks/simulation/README.md`); empty where another engine's was compared.
        composes_ahead: Whether a step is scheduled while the one before it runs.
        routing: Rule by which a data-parallel rank is chosen for a request.
        transfers_cache: Whether a sequence's cache can move to another server of its kind.
        must_hold_longest: Whether it refuses to start where its cache is smaller than one
            longest sequence.
        budget_covers_answers: Whether `max_num_batched_tokens` counts answers' tokens too, so
            that it must not be below `max_num_seqs`.
        fraction_covers_activation: Whether `gpu_memory_fraction` includes activations, captured
            graphs and libraries, beside weights and cache.
        experts_span_copies: Whether data-parallel copies share one set of routed experts.
        admission: Limits at which a request is refused at once.
        step_law: Differences of its step times from the operator tables.
    """

    scheduler: Literal["mixed", "prefill_first", "interrupting"] = "mixed"
    comparison: str = ""
    composes_ahead: bool = False
    routing: Literal["cache_pressure", "round_robin"] = "cache_pressure"
    transfers_cache: bool = False
    must_hold_longest: bool = False
    budget_covers_answers: bool = True
    fraction_covers_activation: bool = True
    experts_span_copies: bool = True
    admission: tuple[AdmissionLimit, ...] = ()
    step_law: StepLawFacts = StepLawFacts()


def behaviour_of(engine: str) -> Behaviour:
    """Behaviour of an engine by `behaviour.toml` in its folder."""
    return msgspec.convert(engine_table(engine, "behaviour.toml"), Behaviour)
