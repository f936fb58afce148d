"""Forecasts of many runs on one machine for a search: how their errors go together.

What the law's errors in two runs have in common is in `perf.roofline.similarity`; here it is
written as factors and positions (`search.beliefs.Forecast`), so that thousands of points can be
corrected by each measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.hardware import Node
from servetune.perf import RunFeatures
from servetune.perf.roofline.causes import CAUSES, doubts_of
from servetune.perf.roofline.drafting import acceptance_of, acceptance_sd, shifted_acceptance
from servetune.perf.roofline.similarity import CACHED_REACH, OTHER_GROUPS, similarity_of
from servetune.plan import Plan
from servetune.search.beliefs import Factor, Forecast
from servetune.search.summary import CauseFound

Array = NDArray[np.float64]

#: Times whose errors the factors describe, in the order of `Quantity.weights`.
TIMES = ("tpot", "ttft")
#: Shares of the variance of a percentile over its mean, beyond its prediction: what all runs have
#: in common, what runs of like size have, and a run's own. Judgements: over three loads of one plan
#: measured p99 ITL was 17 to 21% below its prediction each time, p99 TTFT 17% below to 26% above.
_TAIL_COMMON, _TAIL_NEAR, _TAIL_OWN = 0.4, 0.45, 0.15
#: Standard deviation of the logarithm of a measured mean by chance; what else one run differs from
#: its neighbours by (`Similarity.accident`) is its own.
NOISE = 0.03
#: Distance, in units of similarity, between runs of other storage: nothing in common.
_APART = 10.0
#: Factor of what links of all sizes of groups have in common.
LINKS = "links"
#: Beginning of the name of a factor of drafts by one method.
_DRAFTS = "drafts by "


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted quantity of all runs.

    Attributes:
        logs: Logarithm of the objective (larger is better) or of a limit's ratio, shape (N,);
            NaN where a run is not possible.
        weights: Slope of that logarithm by that of each time, shape (N, 2), as in `TIMES`.
        tail_sd: Standard deviation of the logarithm of a percentile over its mean, beyond its
            prediction; zero for means.
        noise_sd: Standard deviation of its measurement.
    """

    logs: Array
    weights: Array
    tail_sd: float = 0.0
    noise_sd: float = NOISE


def forecast_of(
    features: Sequence[RunFeatures], quantities: Sequence[Quantity], *, objective_count: int = 1
) -> Forecast:
    """Forecast of runs with these features.

    Args:
        features: Features of each run, all of one model on one kind of machine.
        quantities: Objectives, then limits.
        objective_count: Number of objectives.
    """
    similarities = [similarity_of(time) for time in TIMES]
    doubts = [np.array([each.tpot_doubts for each in features])]
    doubts.append(np.array([each.ttft_doubts for each in features]))
    kinds = [
        ["" for _ in features],
        [each.engine for each in features],
        [f"{each.engine} {each.storage}" for each in features],
    ]
    groups = sorted({each.devices for each in features})
    causes = [*CAUSES][:-1]
    names = [*causes, LINKS, *(f"links of {group} devices" for group in groups)]
    methods = sorted({each.draft_method for each in features if each.draft_method})
    names += [f"{_DRAFTS}{method}" for method in methods]
    common = [
        np.concatenate([_causes(of, features, groups), drafts], axis=1)
        for of, drafts in zip(doubts, _drafts(features, methods), strict=True)
    ]
    shared = []
    for similarity in similarities:
        sds = (similarity.all, similarity.engine, similarity.storage)
        shared.append(
            np.concatenate(
                [sd * _one_hot(kind) for sd, kind in zip(sds, kinds, strict=True)], axis=1
            )
        )
    empty, tail = np.zeros_like(shared[0]), np.ones((len(features), 1))
    factors = np.stack(
        [
            np.concatenate([common[0], shared[0], empty, 0 * tail], axis=1),
            np.concatenate([common[1], empty, shared[1], 0 * tail], axis=1),
            np.concatenate([0 * common[0], empty, empty, _TAIL_COMMON**0.5 * tail], axis=1),
        ]
    )
    positions = [_positions(features, each.reach_octaves) for each in similarities]
    own_sds = [max(each.accident**2 - NOISE**2, 0.0) ** 0.5 for each in similarities]
    return Forecast(
        quantities=np.stack([quantity.logs for quantity in quantities]),
        weights=np.stack([_with_tail(quantity) for quantity in quantities]),
        factors=factors,
        names=(*names, *("" for _ in range(factors.shape[2] - len(names)))),
        near_sd=np.array([*(each.near for each in similarities), _TAIL_NEAR**0.5]),
        positions=np.stack([*positions, positions[-1]]),
        own_sd=np.array([*own_sds, _TAIL_OWN**0.5]),
        alike=_alike(features, quantities),
        noise_sd=np.array([quantity.noise_sd for quantity in quantities]),
        objective_count=objective_count,
    )


def _with_tail(quantity: Quantity) -> Array:
    """Weights of a quantity by `TIMES` and, last, by the error of its tail in its deviations."""
    tail = np.full((len(quantity.logs), 1), quantity.tail_sd)
    return np.concatenate([quantity.weights, tail], axis=1)


def _alike(features: Sequence[RunFeatures], quantities: Sequence[Quantity]) -> NDArray[np.int_]:
    """Number of each run's kind: equal features and equal predictions are one."""
    logs = np.stack([quantity.logs for quantity in quantities], axis=1)
    kinds: dict[tuple[object, ...], int] = {}
    return np.array(
        [
            kinds.setdefault((each, *(round(float(log), 9) for log in of)), len(kinds))
            for each, of in zip(features, logs, strict=True)
        ]
    )


def _causes(doubts: Array, features: Sequence[RunFeatures], groups: Sequence[int]) -> Array:
    """Doubts by cause, that of links divided into a common part and one by size of the group."""
    link = doubts[:, -1:]
    mine = np.array([[each.devices == group for group in groups] for each in features])
    return np.concatenate(
        [doubts[:, :-1], link * OTHER_GROUPS**0.5, link * mine * (1 - OTHER_GROUPS) ** 0.5], axis=1
    )


def _drafts(features: Sequence[RunFeatures], methods: Sequence[str]) -> tuple[Array, Array]:
    """Doubts of both times by assumed acceptance, a column for each method of drafting."""
    mine = np.array([[each.draft_method == method for method in methods] for each in features])
    mine = mine.reshape(len(features), len(methods))
    tpot = np.array([[each.tpot_draft_doubt] for each in features])
    ttft = np.array([[each.ttft_draft_doubt] for each in features])
    return tpot * mine, ttft * mine


def _one_hot(kinds: Sequence[str]) -> Array:
    distinct = sorted(set(kinds))
    return np.array([[kind == each for each in distinct] for kind in kinds], dtype=float)


def _positions(features: Sequence[RunFeatures], reach: Sequence[float]) -> Array:
    """Sizes in octaves over their reach; runs of another storage are far away."""
    sizes = np.log2(
        [
            (each.concurrency, each.input_tokens, each.output_tokens, float(each.devices))
            for each in features
        ]
    ) / np.array(reach)
    cached = np.array([[each.cached_fraction / CACHED_REACH] for each in features])
    stored = _APART * _one_hot([f"{each.engine} {each.storage}" for each in features])
    return np.concatenate([sizes, cached, stored], axis=1)


#: Causes as reports name them.
_WORDS = {
    "compute": "computing",
    "memory": "reading memory",
    "kernels": "kernels' fixed times",
    "host": "the engine's work on the host",
    "stream": "the HTTP front end",
    "request": "a request's own work",
    "cold": "the first requests' wait",
}
#: Share of a cause's doubt that must be gone, and logarithm of its factor, to be worth a line.
_LEARNED, _WORTH_SAYING = 0.3, 0.05
_NINETY = 1.645


def causes_found(factors: Sequence[Factor], node: Node) -> tuple[CauseFound, ...]:
    """Causes of which measurements say more than was known, the largest correction first.

    Args:
        factors: What a search's beliefs say of the factors of `forecast_of`.
        node: Machine.
    """
    sds = dict(zip(CAUSES, doubts_of(node), strict=True))
    logs: dict[str, tuple[float, float, float]] = {}
    drafts: dict[str, Plan] = {}
    common = next((each for each in factors if each.name == LINKS), None)
    for each in factors:
        if each.name in sds:
            sd = float(sds[each.name])
            logs[_WORDS[each.name]] = each.mean * sd, each.sd * sd, sd
        elif each.name.startswith(_DRAFTS):
            drafts[each.name] = _drafting(each.name.removeprefix(_DRAFTS))
            sd = acceptance_sd(drafts[each.name])
            logs[each.name] = each.mean * sd, each.sd * sd, sd
        elif each.name != LINKS and common is not None:
            sd = float(sds["link"])
            shared, own = OTHER_GROUPS**0.5 * sd, (1 - OTHER_GROUPS) ** 0.5 * sd
            mean = shared * common.mean + own * each.mean
            logs[each.name] = mean, float(np.hypot(shared * common.sd, own * each.sd)), sd
    found = [
        (abs(mean), name, mean, left)
        for name, (mean, left, before) in logs.items()
        if left < (1 - _LEARNED) * before and abs(mean) > _WORTH_SAYING
    ]
    return tuple(
        _acceptance_found(name, drafts[name], mean, left)
        if name in drafts
        else CauseFound(
            name=name,
            factor=float(np.exp(mean)),
            low_factor=float(np.exp(mean - _NINETY * left)),
            high_factor=float(np.exp(mean + _NINETY * left)),
        )
        for _, name, mean, left in sorted(found, reverse=True)
    )


def _drafting(method: str) -> Plan:
    return Plan(model="any", draft_tokens=1, draft_method=method)


def _acceptance_found(name: str, plan: Plan, mean: float, left: float) -> CauseFound:
    """What is known of the acceptance of drafts; its log odds fall where the cause is slower."""
    shifts = (mean, mean + _NINETY * left, mean - _NINETY * left)
    usual, low, high = (shifted_acceptance(plan, -shift) for shift in shifts)
    assumed = acceptance_of(plan)
    return CauseFound(
        name=name,
        factor=usual / assumed,
        low_factor=low / assumed,
        high_factor=high / assumed,
        assumed_fraction=assumed,
    )
