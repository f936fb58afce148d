"""Uncertainty of a prediction, by how far it extrapolates beyond measured runs.

The factors are quantiles of measured over predicted on rows that the fit had not seen, with
whole groups left out: `benchmarks/prediction/cross_validate.py --write` stores them.

| extrapolation | left out for its factors | applies to |
|---|---|---|
| `known` | (model, GPU) | engine and silicon were in the fit |
| `silicon` | all GPUs of one architecture | architecture or engine never measured |
| `network` | one model | a kind of layer that was never measured |
| `anchored` | (model, GPU), then two of its rows as anchors | a calibration of at least two runs |

A calibration that was made for one run (`Calibration.at`) has a remaining standard deviation
(`doubt`). Then the factors are exp(deviations x doubt): the deviations, in `[doubt]`, are quantiles
of log(measured / predicted) / doubt over the same rows after one, two and four anchors.

All-reduce through a host's PCIe differs by 1.5 between machines, and silicon without an
operator table was never measured at all. No row shows either, so their factors are judgement,
and `basis` says so.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import msgspec

from servetune.bundled import bundled
from servetune.engines import step_law_facts
from servetune.errors import InputError
from servetune.hardware.device import Node
from servetune.models.shape import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    NetworkShape,
)
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S
from servetune.perf.roofline.factors import fit
from servetune.perf.roofline.similarity import similarity_of
from servetune.perf.roofline.tables import architecture_of
from servetune.plan.plan import Plan

_ANCHORS = 2
#: Kinds of layer in the fit. Linear attention was measured with one decay per head
#: (Qwen3.5), not as KDA or lightning attention; an index before latent attention (GLM-5), not
#: before any other.
_MEASURED_KINDS = (
    Attention,
    LatentAttention,
    LinearAttention,
    DenseFeedForward,
    ExpertFeedForward,
)
_HOST_PATH, _NO_TABLE = 1.5, 1.4
_BASIS = {
    "known": "engine and architecture were fitted; of runs of other models held out",
    "silicon": "architecture or engine never fitted; of runs on architectures held out",
    "network": "a kind of layer never fitted; of runs of models held out",
    "anchored": "corrected by measured runs; of held-out runs with two anchors",
    "doubt": "corrected by measured runs; of held-out runs, by the doubt left at its place",
}


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on a predicted time between which nine of ten measured times are expected.

    Attributes:
        low_factor: Lower factor on the time per token, a step and the end-to-end latency; a rate
            is divided by it.
        ttft_low_factor: Lower factor on the time to the first token of a run.
        calibrated: Whether measurements of this model and machine narrowed it.
        extrapolation: Kind of extrapolation, as in the table above.
        basis: Source of the factors, in words.
    """

    low_factor: float
    high_factor: float
    ttft_low_factor: float
    ttft_high_factor: float
    calibrated: bool
    extrapolation: str
    basis: str


class SafetyFactors(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on predicted times with which a limit holds with a confidence.

    Attributes:
        confidence: Chance that a lengthened time is not exceeded; one half takes the
            prediction at face value.
        tpot_factor: Factor on the time per token, a step and the end-to-end latency; rates are
            divided by it.
        ttft_factor: Factor on the time to the first token.
    """

    confidence: float
    tpot_factor: float
    ttft_factor: float


def interval_of(
    node: Node, plan: Plan, shape: NetworkShape, calibration: Calibration | None = None
) -> Interval:
    """Interval of a plan's predictions."""
    reach = _reach(node, plan, shape, calibration)
    return Interval(
        low_factor=reach.factor("tpot", "low") / reach.wider,
        high_factor=reach.factor("tpot", "high") * reach.wider,
        ttft_low_factor=reach.factor("ttft", "low") / reach.wider,
        ttft_high_factor=reach.factor("ttft", "high") * reach.wider,
        calibrated=reach.kind in ("anchored", "doubt"),
        extrapolation="anchored" if reach.kind == "doubt" else reach.kind,
        basis=reach.basis,
    )


def safety_factors_of(
    node: Node,
    plan: Plan,
    shape: NetworkShape,
    confidence: float,
    calibration: Calibration | None = None,
) -> SafetyFactors:
    """Factors on a plan's predicted times before limits judge them.

    Quantiles of measured over predicted on rows that the fit had not seen, joined by straight
    lines in logarithms. What judgement adds to the interval (`_HOST_PATH`, `_NO_TABLE`) counts
    here by the normal deviate of the confidence over that of the interval's end.

    Raises:
        InputError: The confidence lies outside 0.5 to 0.95.
    """
    if not _LEAST_CONFIDENCE <= confidence <= _MOST_CONFIDENCE:
        raise InputError(
            f"confidence must be from {_LEAST_CONFIDENCE:g} to {_MOST_CONFIDENCE:g}, "
            f"got {confidence:g}",
            hint="0.5 takes predictions at face value; beyond 0.95 too few rows were held out",
        )
    reach = _reach(node, plan, shape, calibration)
    normal = NormalDist()
    share = normal.inv_cdf(confidence) / normal.inv_cdf(_MOST_CONFIDENCE)
    judged = share * math.log(reach.wider)
    return SafetyFactors(
        confidence=confidence,
        tpot_factor=math.exp(_log_quantile(reach, "tpot", confidence) + judged),
        ttft_factor=math.exp(_log_quantile(reach, "ttft", confidence) + judged),
    )


#: Two ends of a 90% interval leave 5% on each side.
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.5, 0.95


class _Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Extrapolation of a prediction.

    Attributes:
        kind: Kind in the table above, or `doubt` if a calibration states it for this run.
        wider: Factor of judgement on the interval.
        basis: Both in words.
        doubts: Standard deviations of logarithms, by time, where the kind is `doubt`.
    """

    kind: str
    wider: float
    basis: str
    doubts: dict[str, float] = {}

    def factor(self, time: str, name: str) -> float:
        stored = _factors()[self.kind][f"{time}_{name}"]
        return math.exp(stored * self.doubts[time]) if self.kind == "doubt" else stored


def _log_quantile(reach: _Reach, time: str, confidence: float) -> float:
    prefix = f"{time}_caution_"
    stored = sorted(
        (
            int(name.removeprefix(prefix)) / 100,
            math.log(reach.factor(time, name.removeprefix(f"{time}_"))),
        )
        for name in _factors()[reach.kind]
        if name.startswith(prefix)
    )
    levels = [(_LEAST_CONFIDENCE, 0.0), *stored]
    right = next(i for i, (level, _) in enumerate(levels) if i and confidence <= level)
    (low, from_log), (high, to_log) = levels[right - 1], levels[right]
    return from_log + (confidence - low) / (high - low) * (to_log - from_log)


def _reach(node: Node, plan: Plan, shape: NetworkShape, calibration: Calibration | None) -> _Reach:
    if calibration is not None and calibration.tpot_anchors:
        if calibration.tpot_doubt is not None and calibration.ttft_doubt is not None:
            return _doubted(node, plan, shape, calibration)
        if calibration.tpot_anchors >= _ANCHORS:
            return _Reach(kind="anchored", wider=1.0, basis=_BASIS["anchored"])
    kind = _extrapolation(node, plan, shape)
    wider, why = _judged(node, plan, kind)
    return _Reach(kind=kind, wider=wider, basis=_BASIS[kind] + why)


def _doubted(node: Node, plan: Plan, shape: NetworkShape, calibration: Calibration) -> _Reach:
    """Extrapolation by the remaining standard deviation, and by judgement in proportion."""
    assert calibration.tpot_doubt is not None
    assert calibration.ttft_doubt is not None
    wider = 1.0
    if not calibration.learned:  # a law that was learned here owes nothing to other silicon
        field = similarity_of("tpot")
        left = calibration.tpot_doubt**2 - field.accident**2
        share = math.sqrt(max(0.0, left) / (field.unknown**2 - field.accident**2))
        wider = _judged(node, plan, _extrapolation(node, plan, shape))[0] ** share
    return _Reach(
        kind="doubt",
        wider=wider,
        basis=_BASIS["doubt"],
        doubts={"tpot": calibration.tpot_doubt, "ttft": calibration.ttft_doubt},
    )


def _judged(node: Node, plan: Plan, kind: str) -> tuple[float, str]:
    """Factor of judgement on an interval, and its reason."""
    wider, why = 1.0, ""
    if kind == "silicon" and not architecture_of(node.device):
        wider = _NO_TABLE
        why += "; 1.4 wider, as no kernel of this silicon was ever measured"
    if plan.tensor_parallel > 1 and node.link.bytes_per_s < FABRIC_BYTES_PER_S:
        wider *= _HOST_PATH
        why += "; 1.5 wider, as all-reduce through hosts differs"
    return wider, why


def _extrapolation(node: Node, plan: Plan, shape: NetworkShape) -> str:
    parts = [part for layer in shape.layers for part in (layer.mixer, layer.feed_forward)]
    if not all(_measured(part) for part in parts if part is not None):
        return "network"
    engine = step_law_facts(plan.engine).name
    scopes = {factor.scope for factor in fit().factor}
    known = {f"engine:{engine}", f"architecture:{architecture_of(node.device)}"}
    return "known" if known <= scopes else "silicon"


def _measured(part: Mixer | FeedForward) -> bool:
    if isinstance(part, LinearAttention):
        return part.decay == "head"
    if isinstance(part, Attention):
        return part.top_k is None
    return isinstance(part, _MEASURED_KINDS)


@functools.cache
def _factors() -> dict[str, dict[str, float]]:
    table = bundled("perf.roofline", "data/intervals.toml")
    return msgspec.convert(table, dict[str, dict[str, float]])
