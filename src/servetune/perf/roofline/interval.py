"""Uncertainty of a prediction, by how far it extrapolates beyond measured runs.

The logarithm of measured over predicted time has a spread that depends on what of the plan was
measured before: its device under its engine, its silicon, its kind of network, its storage, its
link (`traits_of`). `data/intervals.toml` has one term of log(spread) for each trait, and the
quantiles of log(measured / predicted) / spread, from rows that the fit had not seen, with whole
groups left out in turn: pairs of model and GPU, devices, silicon and sources, so that a term holds
the error that a whole unseen group has in common as well as the scatter within one.
`benchmarks/prediction/accuracy.py --write` stores them.

| extrapolation | applies to |
|---|---|
| `known` | the device was measured under this engine |
| `silicon` | device, architecture or engine never measured |
| `network` | a kind of layer that was never measured |
| `anchored` | a calibration of at least two runs |

After a calibration `[anchored]` has the quantiles over the same spread. One that was made for one
run (`Calibration.at`) has a remaining standard deviation (`doubt`): then the spread is the doubt,
larger or smaller as the plan's traits are than the typical one, with the quantiles of `[doubt]`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

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
    StateSpace,
)
from servetune.perf.roofline.accuracy import (
    Accuracy,
    Kind,
    Ran,
    accuracy_like,
    cells,
    kind_of_run,
)
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S
from servetune.plan.plan import Plan

_ANCHORS = 2
#: Kinds of layer that were measured. Linear attention was with one decay per head (Qwen3.5), not as
#: KDA or lightning attention; an index before latent attention (GLM-5), not before any other.
_MEASURED_KINDS = (
    Attention,
    LatentAttention,
    LinearAttention,
    StateSpace,
    DenseFeedForward,
    ExpertFeedForward,
)
#: Wider where devices reach each other through a host's memory: three machines with such links were
#: served, and their rates differ by a factor of three. A judgement.
_HOST_PATH = 1.8
_BASIS = {
    "known": "the device was measured under this engine; of other pairs of model and GPU, held out",
    "silicon": "device or engine never measured; of devices and architectures held out",
    "network": "a kind of layer never measured; of devices and architectures held out",
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
        accuracy: Errors of predictions for measured runs like it.
    """

    low_factor: float
    high_factor: float
    ttft_low_factor: float
    ttft_high_factor: float
    calibrated: bool
    extrapolation: str
    basis: str
    accuracy: Accuracy


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
    node: Node,
    plan: Plan,
    shape: NetworkShape,
    calibration: Calibration | None = None,
    ran: Ran | None = None,
) -> Interval:
    """Interval of a plan's predictions, or of those for a run that was made as `ran` says."""
    reach = _reach(node, plan, shape, calibration, ran)
    return Interval(
        low_factor=reach.factor("tpot", "low"),
        high_factor=reach.factor("tpot", "high"),
        ttft_low_factor=reach.factor("ttft", "low"),
        ttft_high_factor=reach.factor("ttft", "high"),
        calibrated=reach.kind == "anchored",
        extrapolation=reach.kind,
        basis=_BASIS["doubt" if reach.table == "doubt" else reach.kind],
        accuracy=accuracy_like(node, plan, shape, ran),
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
    lines in logarithms.

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
    return SafetyFactors(
        confidence=confidence,
        tpot_factor=math.exp(_log_quantile(reach, "tpot", confidence)),
        ttft_factor=math.exp(_log_quantile(reach, "ttft", confidence)),
    )


#: Two ends of a 90% interval leave 5% on each side.
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.5, 0.95


class _Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Extrapolation of a prediction.

    Attributes:
        kind: Kind in the table above.
        table: Table of the quantiles of log(measured / predicted) / spread.
        spreads: Deviation of log(measured / predicted) by time, of which the table has multiples.
    """

    kind: str
    table: str
    spreads: Mapping[str, float]

    def factor(self, time: str, name: str) -> float:
        return math.exp(_factors()[self.table][f"{time}_{name}"] * self.spreads[time])


def _log_quantile(reach: _Reach, time: str, confidence: float) -> float:
    prefix = f"{time}_caution_"
    stored = sorted(
        (
            int(name.removeprefix(prefix)) / 100,
            math.log(reach.factor(time, name.removeprefix(f"{time}_"))),
        )
        for name in _factors()[reach.table]
        if name.startswith(prefix)
    )
    levels = [(_LEAST_CONFIDENCE, 0.0), *stored]
    right = next(i for i, (level, _) in enumerate(levels) if i and confidence <= level)
    (low, from_log), (high, to_log) = levels[right - 1], levels[right]
    return from_log + (confidence - low) / (high - low) * (to_log - from_log)


def _reach(
    node: Node,
    plan: Plan,
    shape: NetworkShape,
    calibration: Calibration | None,
    ran: Ran | None = None,
) -> _Reach:
    traits = traits_of(node, plan, shape, ran)
    spreads = {time: _spread(time, traits) for time in ("tpot", "ttft")}
    if calibration is not None and calibration.tpot_anchors:
        if calibration.tpot_doubt is not None and calibration.ttft_doubt is not None:
            doubts = {"tpot": calibration.tpot_doubt, "ttft": calibration.ttft_doubt}
            left = {
                time: doubt * spreads[time] / _factors()[f"{time}_spread"]["typical"]
                for time, doubt in doubts.items()
            }
            return _Reach(kind="anchored", table="doubt", spreads=left)
        if calibration.tpot_anchors >= _ANCHORS:
            return _Reach(kind="anchored", table="anchored", spreads=spreads)
    kind = "known" if "seen:device" in traits else "silicon"
    if "network:unmeasured" in traits:
        kind = "network"
    return _Reach(kind=kind, table="spread", spreads=spreads)


def _spread(time: str, traits: Iterable[str]) -> float:
    terms = _factors()[f"{time}_spread"]
    spread = math.exp(terms["base"] + sum(terms.get(trait, 0.0) for trait in traits))
    return spread * (_HOST_PATH if "link:staged" in traits else 1.0)


def traits_of(
    node: Node, plan: Plan, shape: NetworkShape, ran: Ran | None = None
) -> tuple[str, ...]:
    """Properties of a plan on a node that the spread of its errors depends on."""
    kind = kind_of_run(node, plan, shape, ran)
    how = ran or Ran()
    return traits(kind, node, plan, _seen(kind), how, measured=all_measured(shape))


def traits(
    kind: Kind,
    node: Node,
    plan: Plan,
    seen: str,
    ran: Ran,
    *,
    measured: bool,
) -> tuple[str, ...]:
    """Traits of a run of a kind.

    Args:
        kind: Kind of the run.
        node: Its machine.
        plan: Its plan.
        seen: What of it was measured: `device` under its engine, `architecture`, or `nothing`.
        ran: How it was made.
        measured: Whether all kinds of layers of its network were measured.
    """
    era = step_law_facts(kind.engine).era_of(ran.version)
    if plan.tensor_parallel == 1 and plan.data_parallel == 1:
        link = "one" if plan.pipeline_parallel == 1 else "stages"
    elif node.link.bytes_per_s >= FABRIC_BYTES_PER_S:
        link = "fabric"
    else:
        link = "peer" if node.link.peer_to_peer else "staged"
    return (
        f"seen:{seen}",
        f"network:{kind.network if measured else 'unmeasured'}",
        f"bits:{kind.bits}",
        f"engine:{kind.engine}",
        f"link:{link}",
        f"vendor:{node.device.vendor}",
        f"load:{'rate' if ran.protocol == 'open' else 'users'}",
        f"release:{'present' if era is None else 'past' if era.apart else 'earlier'}",
    )


@functools.cache
def _seen(kind: Kind) -> str:
    measured = [cell.kind for cell in cells()]
    if any(each.device == kind.device and each.engine == kind.engine for each in measured):
        return "device"
    known = kind.architecture and any(
        each.architecture == kind.architecture and each.engine == kind.engine for each in measured
    )
    return "architecture" if known else "nothing"


def all_measured(shape: NetworkShape) -> bool:
    """Whether every kind of layer of a network was in a measured run."""
    parts = [part for layer in shape.layers for part in (layer.mixer, layer.feed_forward)]
    return all(_measured(part) for part in parts if part is not None)


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
