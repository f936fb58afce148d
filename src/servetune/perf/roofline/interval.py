"""Uncertainty of a prediction, by how far it extrapolates beyond measured runs.

The logarithm of measured over predicted time has a spread that depends on what of the plan was
measured before: its device under its engine's release, its silicon and whether its kernels were,
its kind of network, its storage, its link; and on how its requests come and whether their lengths
differ as those of conversations do (`traits`). `data/intervals.toml` has one term of
log(spread) for each trait, and the quantiles of log(measured / predicted) / spread, both from rows
whose whole source the law's fit had not seen. Each source's quantiles are over a spread that was
found without it, too, so that they hold the bias and the scatter of a source that nobody has seen.
`benchmarks/prediction/accuracy.py --write` stores them.

| extrapolation | applies to |
|---|---|
| `known` | the device was measured under this engine's release |
| `silicon` | device, architecture or engine's release never measured |
| `network` | a kind of layer that was never measured |
| `anchored` | a calibration of at least two runs |

Users with equal answers are taken to stay in step. Where they do not, prompts come one by one and
first tokens earlier: no lower end of theirs lies above that time (`RunPoint.scattered_factor`).

Where the HTTP front end streams nearly what it can, its doubt is added: rates that one process
streamed differ by `STREAM_DOUBT` between hosts.

After a calibration `[anchored]` has the quantiles over the same spread. One that was made for one
run (`Calibration.at`) has a remaining standard deviation (`doubt`): then the spread is the doubt,
larger or smaller as the plan's traits are than the typical one, with the quantiles of `[doubt]`.

Where the acceptance of drafted tokens is assumed, the doubt about it (`drafting`) is added to the
time per token, root of squares; a remaining standard deviation has it already. So is that about an
engine without measured runs to all times.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist

import msgspec

from servetune.bundled import bundled
from servetune.engines import DEFAULT_ENGINE, engine
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
    accuracy_of,
    cells,
    kind_of_run,
)
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S
from servetune.perf.roofline.drafting import doubt_about_drafts
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.step import STREAM_SHARPNESS
from servetune.perf.roofline.tables import tabled
from servetune.plan.plan import Plan

_ANCHORS = 2
#: Protocol -> what its first tokens wait for; other requests of as many users where not named.
_LOADS = {"open": "rate", "static": "batch", "offline": "batch"}
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
#: Factor up and down on the rate at which one process of the front end streams. A judgement: SGLang
#: reached 13,800 tokens/s on one host and 19,300 on another, vLLM 0.11 22,800 and 26,200.
STREAM_DOUBT = 1.5
_UNSEEN = (
    "nine in ten runs of sources that were left out lay within such factors, all published runs "
    "counted as one source among laboratories"
)
_BASIS = {
    "known": f"the device was measured under this engine; {_UNSEEN}",
    "silicon": "the device was not measured under this engine, or only under other releases; "
    + _UNSEEN,
    "network": f"it has a kind of layer that was never measured; {_UNSEEN}",
    "anchored": "corrected by measured runs; after two of them nine of ten others of a machine "
    "were within such factors",
    "doubt": "corrected by measured runs, less sure far from them; nine of ten others of a machine "
    "were within such factors",
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
    *,
    output_tokens_per_s: float = 0.0,
    scattered_factor: float = 1.0,
) -> Interval:
    """Interval of a plan's predictions, or of those for a run that was made as `ran` says.

    Args:
        node: Machine.
        plan: Plan that is predicted.
        shape: Network.
        calibration: Calibration by measured runs, if any.
        ran: How the run is made.
        output_tokens_per_s: Predicted rate of the run, all copies together.
        scattered_factor: `RunPoint.scattered_factor`.
    """
    kind = kind_of_run(node, plan, shape, ran)
    reach = _reach(kind, node, plan, shape, calibration, ran)
    # Share of the step's time, by `step.slowdown`.
    full = stream_load(node, plan, output_tokens_per_s, ran) ** STREAM_SHARPNESS
    streamed: dict[str, float] = {
        end: (1 - full + full * doubt**STREAM_SHARPNESS) ** (1 / STREAM_SHARPNESS)
        for end, doubt in (("low", 1 / STREAM_DOUBT), ("high", STREAM_DOUBT))
    }

    anchored = reach.kind == "anchored"

    def factor(time: str, end: str) -> float:
        beside = math.exp(_TOWARDS[end] * reach.doubt_beside(time))
        return _joined(reach.factor(time, end), beside) * streamed[end]

    return Interval(
        low_factor=factor("tpot", "low"),
        high_factor=factor("tpot", "high"),
        ttft_low_factor=min(factor("ttft", "low"), 1.0 if anchored else scattered_factor),
        ttft_high_factor=factor("ttft", "high"),
        calibrated=anchored,
        extrapolation=reach.kind,
        basis=_BASIS["doubt" if reach.table == "doubt" else reach.kind]
        + ("; the acceptance of drafts is assumed" if reach.draft_doubt else "")
        + (f"; the engine's steps are taken to be {_usual()}'s" if reach.engine_doubt else ""),
        accuracy=accuracy_of(kind),
    )


#: Standard deviation of the logarithm of a time under an engine without runs, whose steps are taken
#: to be vLLM's: 409 runs of llama.cpp took 4.1 times as long in the median (Argonne), which is
#: then the end of the interval. No other such engine has runs.
_OTHER_ENGINE = 0.86
#: Standard deviations of a normal doubt from its middle to the ends of a 90% interval.
_TOWARDS = {"low": NormalDist().inv_cdf(0.05), "high": NormalDist().inv_cdf(0.95)}


def _usual() -> str:
    """Title of the engine whose steps those without runs are taken to have."""
    return engine(DEFAULT_ENGINE).title


def _joined(factor: float, beside: float) -> float:
    """A factor made larger, or smaller, by a doubt that is independent of it."""
    if beside == 1.0:
        return factor
    log, other = math.log(factor), math.log(beside)
    if log * other <= 0:  # the quantile lies on the other side of the prediction
        return factor * beside
    return math.exp(math.copysign(math.hypot(log, other), log))


def stream_load(
    node: Node, plan: Plan, output_tokens_per_s: float, ran: Ran | None = None
) -> float:
    """Share of what the HTTP front end can stream that a predicted rate needs, at most one."""
    how = ran or Ran()
    if how.protocol in ("static", "offline"):
        return 0.0
    release = how.version or plan.engine_version or ""
    coefficients = coefficients_for(node.device, how.engine or plan.engine, release)
    share = engine(plan.engine).behaviour.front_end.process_share(plan)
    schedulers = plan.replicas * plan.data_parallel * plan.pipeline_parallel
    load = output_tokens_per_s / schedulers * share * coefficients.host.stream_token_s
    return min(1.0, load)


def safety_factors_of(
    node: Node,
    plan: Plan,
    shape: NetworkShape,
    confidence: float,
    calibration: Calibration | None = None,
    ran: Ran | None = None,
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
    reach = _reach(kind_of_run(node, plan, shape, ran), node, plan, shape, calibration, ran)
    return SafetyFactors(
        confidence=confidence,
        tpot_factor=_joined(
            math.exp(_log_quantile(reach, "tpot", confidence)),
            math.exp(NormalDist().inv_cdf(confidence) * reach.doubt_beside("tpot")),
        ),
        ttft_factor=_joined(
            math.exp(_log_quantile(reach, "ttft", confidence)),
            math.exp(NormalDist().inv_cdf(confidence) * reach.doubt_beside("ttft")),
        ),
    )


#: Two ends of a 90% interval leave 5% on each side.
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.5, 0.95


class _Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Extrapolation of a prediction.

    Attributes:
        kind: Kind in the table above.
        table: Table of the quantiles of log(measured / predicted) / spread.
        spreads: Deviation of log(measured / predicted) by time, of which the table has multiples.
        draft_doubt: Standard deviation of the logarithm of the time per token by an assumed
            acceptance of drafts, where `spreads` does not have it.
        engine_doubt: The same of all times by an engine that is taken to have another's steps.
    """

    kind: str
    table: str
    spreads: Mapping[str, float]
    draft_doubt: float = 0.0
    engine_doubt: float = 0.0

    def doubt_beside(self, time: str) -> float:
        """Standard deviation of a time's logarithm by what `spreads` does not have."""
        return math.hypot(self.draft_doubt if time == "tpot" else 0.0, self.engine_doubt)

    def factor(self, time: str, name: str) -> float:
        """Factor below which a share of measured times lies, by the name of its quantile."""
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
    run: Kind,
    node: Node,
    plan: Plan,
    shape: NetworkShape,
    calibration: Calibration | None,
    ran: Ran | None = None,
) -> _Reach:
    found = traits(run, node, plan, _seen(run), ran or Ran(), measured=all_measured(shape))
    spreads = {time: _spread(time, found) for time in ("tpot", "ttft")}
    if calibration is not None and calibration.tpot_anchors:
        if calibration.tpot_doubt is not None and calibration.ttft_doubt is not None:
            doubts = {"tpot": calibration.tpot_doubt, "ttft": calibration.ttft_doubt}
            left = {
                time: doubt * spreads[time] / _factors()[f"{time}_spread"]["typical"]
                for time, doubt in doubts.items()
            }
            return _Reach(kind="anchored", table="doubt", spreads=left)
        if calibration.tpot_anchors >= _ANCHORS:
            return _Reach(
                kind="anchored",
                table="anchored",
                spreads=spreads,
                draft_doubt=doubt_about_drafts(plan),
            )
    kind = "known" if "seen:device" in found else "silicon"
    if "network:unmeasured" in found:
        kind = "network"
    return _Reach(
        kind=kind,
        table="spread",
        spreads=spreads,
        draft_doubt=doubt_about_drafts(plan),
        engine_doubt=0.0 if run.engine in _measured_engines() else _OTHER_ENGINE,
    )


@functools.cache
def _measured_engines() -> frozenset[str]:
    return frozenset(cell.kind.engine for cell in cells())


@functools.cache
def _spread(time: str, traits: tuple[str, ...]) -> float:
    return math.exp(log_spread(_factors()[f"{time}_spread"], traits))


def log_spread(terms: Mapping[str, float], traits: Iterable[str]) -> float:
    """Logarithm of the spread of a run with these traits.

    What was never measured, such as another vendor's device or an engine whose first tokens nobody
    timed, is less sure than the least sure of its kind, by as much as those that were measured
    differ.
    """
    total = terms["base"]
    for trait in traits:
        known = terms.get(trait)
        if known is None:
            kind = trait.partition(":")[0] + ":"
            alike = [term for name, term in terms.items() if name.startswith(kind)]
            known = 2 * max(alike) - min(alike) if alike else 0.0
        total += known
    return total


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
        seen: What of it was measured under its engine's release: `device`, `architecture`, or
            `nothing`.
        ran: How it is made: the way in which its requests come, and whether its answers differ.
        measured: Whether all kinds of layers of its network were measured.
    """
    if plan.tensor_parallel == 1 and plan.data_parallel == 1:
        link = "one" if plan.pipeline_parallel == 1 else "stages"
    elif node.link.bytes_per_s >= FABRIC_BYTES_PER_S:
        link = "fabric"
    else:
        link = "peer" if node.link.peer_to_peer else "staged"
    return (
        f"seen:{seen if measured else 'nothing'}",
        f"network:{kind.network if measured else 'unmeasured'}",
        f"bits:{kind.bits}",
        f"engine:{kind.engine}",
        f"link:{link}",
        f"vendor:{node.device.vendor}",
        f"load:{_LOADS.get(ran.protocol, 'users')}",
        f"lengths:{'mixed' if ran.mixed else 'stated'}",
        f"kernels:{'measured' if tabled(kind.architecture) else 'assumed'}",
        f"release:{kind.release}",
    )


@functools.cache
def _seen(kind: Kind) -> str:
    return seen_among((cell.kind for cell in cells()), kind)


def seen_among(measured: Iterable[Kind], kind: Kind) -> str:
    """What of a kind is among measured ones: its `device`, its `architecture`, or `nothing`."""
    release = (kind.engine, kind.release)
    alike = [each for each in measured if (each.engine, each.release) == release]
    if any(each.device == kind.device for each in alike):
        return "device"
    known = kind.architecture and any(each.architecture == kind.architecture for each in alike)
    return "architecture" if known else "nothing"


@functools.lru_cache(maxsize=1024)
def all_measured(shape: NetworkShape) -> bool:
    """Whether every kind of layer of a network was in a measured run."""
    parts = [part for layer in shape.layers for part in (layer.mixer, layer.feed_forward)]
    return all(_measured(part) for part in parts if part is not None)


def _measured(part: Mixer | FeedForward) -> bool:
    if isinstance(part, Attention):
        return part.top_k is None
    if isinstance(part, LinearAttention):
        return part.decay == "head"
    return isinstance(part, _MEASURED_KINDS)


@functools.cache
def _factors() -> dict[str, dict[str, float]]:
    table = bundled("perf.roofline", "data/intervals.toml")
    return msgspec.convert(table, dict[str, dict[str, float]])
