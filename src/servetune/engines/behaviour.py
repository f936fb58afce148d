"""Facts of an engine that predictions go by: its scheduler, its memory, its step times."""

from __future__ import annotations

import re
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


class Era(msgspec.Struct, frozen=True, kw_only=True):
    """Releases of an engine whose steps differ from the present ones alike.

    Attributes:
        name: Name of the era in the fit's factors, such as `v0`.
        before: The first release that is not meant, major and minor.
        named: Beginning of the releases' own names, where they are a fork's.
        years: Years that tables of measurements give in place of a release.
        apart: Whether kernels and host are others, so that what holds for present engines says
            nothing of them.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ; the fit's
            factors of the era come on top.
    """

    name: str
    before: tuple[int, int] = (0, 0)
    named: str = ""
    years: tuple[int, ...] = ()
    apart: bool = False
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})

    def holds(self, version: str) -> bool:
        """Whether a release is of this era or an older one; a build without numbers is not."""
        if self.named:
            return version.startswith(self.named)
        numbers = re.match(r"v?(\d+)\.(\d+)(?!\.dev)(?!\d)", version)
        if numbers is not None:
            return (int(numbers[1]), int(numbers[2])) < self.before
        year = re.match(r"20\d\d(?!\d)", version)
        return year is not None and int(year[0]) in self.years


class StepLawFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of an engine's steps from what its device's operator table says.

    Attributes:
        name: Name of the engine in measured runs and in the fit's factors; the engine's own name
            where empty.
        table_names: Names of the engine in tables of measurements, `_` between words; empty where
            none has its rows.
        coefficients: Paths of `perf.roofline.Coefficients` to values that differ.
        experts: Architecture to the shares that products of experts reach, by their path.
        eras: Earlier releases whose steps differ, the oldest first.
        checkpoint_cache_dtype: Type of the KV cache that its quantised checkpoints ask for; empty
            where they ask for none.
        offline_divides_attention: Whether its published highest throughput of networks with experts
            is with attention divided by users, whatever degree its tables print.
        fitted_alone: Whether its coefficients are a fit of their own, on which no factor of the
            common fit applies.
        plain_experts: Whether experts are multiplied like dense matrices, without grouped kernels.
    """

    name: str = ""
    table_names: tuple[str, ...] = ()
    coefficients: Mapping[str, bool | int | float] = MappingProxyType({})
    experts: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    eras: tuple[Era, ...] = ()
    checkpoint_cache_dtype: str = ""
    offline_divides_attention: bool = False
    fitted_alone: bool = False
    plain_experts: bool = False

    def era_of(self, version: str) -> Era | None:
        """Era of a release; `None` for the present one, and for a release that is not known."""
        return next((era for era in self.eras if era.holds(version)), None)


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
