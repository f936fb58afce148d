"""Causes of a run's time: how much of its error doubt about each part of the law brings.

A prediction of a run is wrong by the errors of the law's parts, each in proportion to its share of
the run's time: where a link is slower than assumed, runs of four devices are slower by the share
of their time that is exchange. `run_features` states, for each run and cause, the

    doubt = standard deviation of the cause's factor x d log(time) / d log(cause)

with the slopes of the run's own formula (`planned_runs`), so that they add up to about one. Two
runs' errors have the sum of the products of their doubts in common (`similarity`). A measured run
therefore corrects others by the causes that both depend on.

The acceptance of drafted tokens is a cause of its own where a plan does not state it: the text
decides it, not the machine (`drafting`). Runs of one method of drafting share it.

The standard deviations (`similarity.toml`, `[causes]`) were fitted with the rest of the similarity
by `benchmarks/prediction/similarity.py`, to residuals of rows that the law's fit had not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.bundled import bundled
from servetune.engines import step_law_facts
from servetune.hardware.device import Link, Node
from servetune.models.quantization import (
    cache_dtype_bytes,
    canonical_cache_dtype,
    effective_quantization,
)
from servetune.perf.roofline.coefficients import COMPUTE_SHARES, MEMORY_SHARES
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S
from servetune.perf.roofline.drafting import acceptance_sd, shifted_acceptance
from servetune.perf.roofline.planned_runs import PlannedRun, run_formulas
from servetune.perf.roofline.similarity import RunFeatures
from servetune.perf.roofline.steady_state import LengthMoments, length_moments, moments_of
from servetune.perf.roofline.step_laws import columns_of
from servetune.perf.roofline.tables import architecture_of, tabled
from servetune.workload.workload import Workload

Array = NDArray[np.float64]

#: Cause -> paths of coefficients that are longer where it is slower; shares of a peak are smaller.
#: The links are last: only groups of one size share all of their factor.
CAUSES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": COMPUTE_SHARES,
        "memory": MEMORY_SHARES,
        "kernels": (
            "gemm.kernel_s",
            "gemm.kernel_8bit_s",
            "gemm.kernel_blocks_s",
            "experts.layer_s",
            "experts.layer_blocks_s",
            "experts.layer_4bit_s",
            "experts.layer_mxfp4_s",
            "experts.router_s",
            "attention.kernel_s",
            "attention.latent_s",
            "attention.index_s",
            "small_kernels.kernel_s",
        ),
        "host": (
            "host.step_s",
            "host.rank_s",
            "host.sequence_s",
            "host.http_sequence_s",
            "host.other_sequence_s",
            "host.draft_sequence_s",
            "launch.layer_s",
            "launch.experts_s",
            "launch.mixer_s",
            "launch.chunked_s",
        ),
        "stream": ("host.stream_token_s",),
        "request": (
            "host.request_s",
            "host.prompt_s",
            "host.prompt_token_s",
            "closed_loop.clump_prompts",
            "closed_loop.intake_s",
        ),
        "cold": (
            "closed_loop.warm_up_s",
            "closed_loop.warm_up_experts_s",
            "closed_loop.warm_up_mxfp4_s",
        ),
        "link": ("link_factor",),
    }
)
#: Causes whose doubt is larger on silicon without operator tables.
_OF_SILICON = ("compute", "memory", "kernels")
_SHARES = {*COMPUTE_SHARES, *MEMORY_SHARES}
#: Logarithm by which a cause is turned, and bound of a slope: beyond it a cache or a limit of
#: sequences is full, and the slope is that of the queue.
_TURN, _STEEPEST = 0.1, 1.5
#: Method of drafts of a plan that names none.
_SOME_METHOD = "some method"
#: Doubt about every cause on a processor, whose law was read off one small machine.
_CPU_DOUBT = 1.0


def run_features(
    runs: Sequence[PlannedRun], *, in_flight: Sequence[float] | None = None
) -> list[RunFeatures]:
    """Features of runs, by which their errors are similar.

    Args:
        runs: Runs; their concurrency is the number in flight, in open loops too.
        in_flight: Mean requests in flight of each run where it is no whole number.

    The simulated engine counts as the one that it plays. Copies that share nothing are each a
    run of their own, with their part of the users.
    """
    if not runs:
        return []
    tpot, ttft = slopes_of(runs)
    drafts = _draft_doubts(runs)
    of = {id(run.node): doubts_of(run.node) for run in runs}
    sds = np.stack([of[id(run.node)] for run in runs])
    users = [float(run.concurrency) for run in runs] if in_flight is None else in_flight
    moments = {lengths: moments_of(lengths) for lengths in {run.lengths for run in runs}}
    lengths = [moments[run.lengths] for run in runs]
    cached = _cached_fractions(runs, lengths)
    found = [
        _features(run, means, share, count, own, first)
        for run, means, share, count, own, first in zip(
            runs, lengths, cached, users, tpot * sds, ttft * sds, strict=True
        )
    ]
    for number, (tpot_doubt, ttft_doubt) in drafts.items():
        found[number] = msgspec.structs.replace(
            found[number],
            draft_method=runs[number].plan.draft_method or _SOME_METHOD,
            tpot_draft_doubt=tpot_doubt,
            ttft_draft_doubt=ttft_doubt,
        )
    return found


def moments_for_features(workload: Workload) -> LengthMoments:
    """Moments of a workload's lengths and of what its prompts share, for `run_features`."""
    return length_moments(workload.lengths, workload.seed, workload.found_prefix)


def _draft_doubts(runs: Sequence[PlannedRun]) -> dict[int, tuple[float, float]]:
    """Doubts about times per token and first tokens by an assumed acceptance, by number of run.

    Half of what lies between one standard deviation less and more, as times bend between them.
    """
    sds = {n: sd for n, run in enumerate(runs) if (sd := acceptance_sd(run.plan))}
    if not sds:
        return {}
    turned = []
    for towards in (-1, 1):
        for number, sd in sds.items():
            run = _one_kind(runs[number])
            accepted = shifted_acceptance(run.plan, towards * sd)
            plan = msgspec.structs.replace(run.plan, draft_acceptance_fraction=accepted)
            turned.append(msgspec.structs.replace(run, plan=plan))
    formulas, _ = run_formulas(turned)
    found = formulas.times_s(columns_of([run.coefficients for run in turned]))
    tpot, ttft = (np.log(seconds).reshape(2, len(sds)) for seconds in (found.tpot_s, found.ttft_s))
    halves = ((few - many) / 2 for few, many in (tpot, ttft))
    return {
        number: (float(per_token), float(first))
        for number, per_token, first in zip(sds, *halves, strict=True)
    }


def _cached_fractions(runs: Sequence[PlannedRun], lengths: Sequence[LengthMoments]) -> Array:
    """Shares of prompts' tokens that the prefix cache of each run has, on average."""
    fractions = np.zeros(len(runs))
    sharing = [
        number
        for number, (run, means) in enumerate(zip(runs, lengths, strict=True))
        if means.shared_tokens and run.plan.prefix_caching is not False
    ]
    if sharing:
        formulas, _ = run_formulas([_one_kind(runs[number]) for number in sharing])
        tokens = np.array([lengths[number].input_tokens for number in sharing])
        fractions[sharing] = 1 - formulas.inputs / tokens
    return fractions


def _features(
    run: PlannedRun,
    moments: LengthMoments,
    cached_fraction: float,
    in_flight: float,
    tpot_doubts: Array,
    ttft_doubts: Array,
) -> RunFeatures:
    plan = run.plan
    copies = plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)
    weights = effective_quantization(run.shape.quantization, plan.quantization).name
    asked = plan.kv_cache_dtype or "auto"
    dtype = run.shape.dtype
    cache = canonical_cache_dtype(
        run.shape.kv_cache_dtype if asked == "auto" else asked, model_dtype=dtype
    )
    plain = cache_dtype_bytes(cache) == cache_dtype_bytes("auto", model_dtype=dtype)
    return RunFeatures(
        engine=run.engine or step_law_facts(plan.engine).name,
        storage=weights if plain else f"{weights}, {cache} cache",
        devices=plan.devices_per_replica * plan.replicas // copies,
        concurrency=max(1.0, in_flight / copies),
        input_tokens=moments.input_tokens,
        output_tokens=moments.output_tokens,
        cached_fraction=float(cached_fraction),
        tpot_doubts=tuple(map(float, tpot_doubts)),
        ttft_doubts=tuple(map(float, ttft_doubts)),
    )


def slopes_of(runs: Sequence[PlannedRun]) -> tuple[Array, Array]:
    """Slopes d log(time) / d log(cause) of times per token and first tokens, shape (runs, causes).

    Runs with drafted tokens are computed apart from those without, as `predict_runs` does.
    """
    tpot, ttft = np.empty((len(runs), len(CAUSES))), np.empty((len(runs), len(CAUSES)))
    for drafting in (False, True):
        mine = [n for n, run in enumerate(runs) if (run.plan.draft_tokens is not None) is drafting]
        if mine:
            tpot[mine], ttft[mine] = _slopes([_one_kind(runs[number]) for number in mine])
    return tpot, ttft


def _one_kind(run: PlannedRun) -> PlannedRun:
    """The run on servers that compute prompts and answers alike, of which there is a formula."""
    if run.plan.prefill_replicas is None:
        return run
    plan = msgspec.structs.replace(run.plan, prefill_replicas=None)
    return msgspec.structs.replace(run, plan=plan)


def _slopes(runs: Sequence[PlannedRun]) -> tuple[Array, Array]:
    times = 1 + len(CAUSES)  # side by side: the law as it is, and with each cause slower
    formulas, _ = run_formulas([*runs] * times)
    columns = columns_of([run.coefficients for run in runs] * times)
    for number, paths in enumerate(CAUSES.values(), start=1):
        turned = slice(number * len(runs), (number + 1) * len(runs))
        for path in paths:
            columns[path] = columns[path].copy()
            columns[path][turned] *= np.exp(-_TURN if path in _SHARES else _TURN)
    found = formulas.times_s(columns)
    slopes = []
    for seconds in (found.tpot_s, found.ttft_s):
        logs = np.log(seconds).reshape(times, len(runs))
        slopes.append(np.clip((logs[1:] - logs[0]).T / _TURN, -_STEEPEST, _STEEPEST))
    return slopes[0], slopes[1]


def doubts_of(node: Node, sds: Mapping[str, float] | None = None) -> Array:
    """Standard deviation of the logarithm of each cause's factor on a machine, shape (causes,).

    Args:
        node: Machine.
        sds: Standard deviations by cause and kind of link; the fitted ones if omitted.
    """
    sds = _fitted() if sds is None else sds
    architecture = architecture_of(node.device)
    if architecture == "cpu":
        return np.full(len(CAUSES), _CPU_DOUBT)
    known = bool(architecture) and tabled(architecture)
    times = dict.fromkeys(_OF_SILICON, 1.0 if known else sds["assumed_times"])
    link = sds[_link_kind(node.link)]
    return np.array([sds.get(cause, link) * times.get(cause, 1.0) for cause in CAUSES])


@functools.cache
def _fitted() -> dict[str, float]:
    fitted = bundled("perf.roofline", "data/similarity.toml")["causes"]
    return msgspec.convert(fitted, dict[str, float])


def _link_kind(link: Link) -> str:
    """Kind of a link: machines whose devices exchange through the host's memory differ most."""
    if link.bytes_per_s >= FABRIC_BYTES_PER_S:
        return "fabric"
    return "peer" if link.peer_to_peer else "staged"
