"""Similarity of the law's errors in two runs on one machine, and the best guess for a third.

A run has features: engine, storage, devices, lengths and number of users. The logarithm of
measured over predicted time is modelled as a random field over features (kriging, or a Gaussian
process): runs of one model on one kind of device share a part of it, those of one engine more,
those of one engine and storage more still, and runs with similar sizes most:

    cov = all^2 + engine^2 [same] + storage^2 [same]
        + near^2 [same] exp(-|difference of log2 sizes / reach|^2 / 2)
        + link doubts' product [whole for groups of one size, a share of it for others]

The last is not fitted: it is what doubt about the links between devices brings to a run's time, so
that runs of four devices over the host's memory, slower than predicted, say more of their link than
of two devices or of one.

A measured run adds `accident^2` of its own, and more where it lies far from what its neighbours
say. The best guess at a place is the weighted sum that the covariances give. `similarity.toml`
was written by `benchmarks/prediction/similarity.py`, by maximum likelihood over residuals of rows
that the law's fit had not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.bundled import bundled
from servetune.engines import step_law_facts
from servetune.hardware.device import Link
from servetune.models.quantization import effective_quantization
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.collectives import link_doubt
from servetune.perf.roofline.steady_state import LengthMoments, length_moments
from servetune.plan.plan import Plan
from servetune.workload.lengths import Lengths

_ROUNDS = 3
#: Share of the doubt about a link that groups of different sizes have in common: a judgement.
_OTHER_GROUPS = 0.3
#: Difference of the share of prompts that is cached over which runs stop being similar: likewise.
_CACHED_REACH = 0.3


class RunFeatures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Features of a run among all runs of one model on one kind of device.

    Attributes:
        storage: Storage of the weights as loaded, as in `NetworkShape.quantization`.
        devices: Number of devices of one copy.
        concurrency: Users of one copy.
        cached_fraction: Share of the prompts' tokens that other prompts have computed.
        link_doubt: Standard deviation of the logarithm of its time that comes from doubt about the
            links between its devices.
    """

    engine: str
    storage: str
    devices: int
    concurrency: float
    input_tokens: float
    output_tokens: float
    cached_fraction: float = 0.0
    link_doubt: float = 0.0


def run_features(
    plan: Plan,
    shape: NetworkShape,
    lengths: Lengths | LengthMoments,
    concurrency: float,
    *,
    link: Link | None = None,
    shared_tokens: float = 0.0,
) -> RunFeatures:
    """Features of a closed-loop run of a plan.

    Args:
        link: Link between the devices; one without doubt if omitted.
        shared_tokens: Tokens of each prompt that others begin with, too.

    The simulated engine counts as the one that it plays. Copies that share nothing are
    each a run of their own, with their part of the users.
    """
    moments = lengths if isinstance(lengths, LengthMoments) else length_moments(lengths)
    copies = plan.replicas * (1 if plan.expert_parallel else plan.data_parallel)
    cached = shared_tokens if plan.prefix_caching is not False else 0.0
    return RunFeatures(
        engine=step_law_facts(plan.engine).name,
        storage=effective_quantization(shape.quantization, plan.quantization).name,
        devices=plan.devices_per_replica * plan.replicas // copies,
        concurrency=max(1.0, concurrency / copies),
        input_tokens=moments.input_tokens,
        output_tokens=moments.output_tokens,
        cached_fraction=min(1.0, cached / moments.input_tokens),
        link_doubt=link_doubt(link, plan.tensor_parallel) if link else 0.0,
    )


class Similarity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard deviations of the field's parts, as logarithms, and how far nearness reaches.

    Attributes:
        accident: Variation of one run by chance.
        reach_octaves: Distance in concurrency, prompt, answer and devices, in factors of two, over
            which runs stop being similar.
    """

    all: float
    engine: float
    storage: float
    near: float
    accident: float
    reach_octaves: tuple[float, float, float, float]

    @property
    def unknown(self) -> float:
        """Standard deviation of a run where nothing was measured, its own variation included."""
        parts = (self.all, self.engine, self.storage, self.near, self.accident)
        return float(np.linalg.norm(parts))

    def alone(self, places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
        """Variance of the field at each run, its own variation left out; shape (places,)."""
        shared = self.all**2 + self.engine**2 + self.storage**2
        placed = np.array([place is not None for place in places], dtype=float)
        return np.asarray(shared + self.near**2 * placed + _link_doubts(places) ** 2)

    def between(
        self, here: Sequence[RunFeatures | None], there: Sequence[RunFeatures | None]
    ) -> NDArray[np.float64]:
        """Covariances, shape (here, there); `None` is anywhere, near to nothing."""
        same_engine = np.array([[_engine(a) == _engine(b) for b in there] for a in here])
        same_storage = np.array([[_storage(a) == _storage(b) for b in there] for a in here])
        steps = (_octaves(here)[:, None] - _octaves(there)[None]) / np.array(self.reach_octaves)
        cached = (_cached(here)[:, None] - _cached(there)[None]) / _CACHED_REACH
        near = np.exp(-((steps**2).sum(axis=-1) + cached**2) / 2)
        placed = np.outer([a is not None for a in here], [b is not None for b in there])
        anywhere = ~placed
        found = self.all**2 + self.engine**2 * (same_engine | anywhere)
        found = found + self.storage**2 * (same_storage | anywhere)
        found = found + self.near**2 * near * (same_storage & placed)
        same_group = np.array([[_devices(a) == _devices(b) for b in there] for a in here])
        linked = np.outer(_link_doubts(here), _link_doubts(there))
        return np.asarray(found + linked * np.where(same_group, 1.0, _OTHER_GROUPS))


def guessed_logs(
    logs: Sequence[float],
    places: Sequence[RunFeatures | None],
    targets: Sequence[RunFeatures | None],
    similarity: Similarity,
) -> NDArray[np.float64]:
    """Expected logarithms of measured over predicted time of some runs.

    A run that varies by more than twice the usual counts less, in proportion to the square.

    Args:
        logs: Logarithms of measured over predicted time, one per anchor.
        places: Features of the anchors.
        targets: Features of the runs to guess; shape (targets,).
        similarity: Similarity of the quantity.
    """
    measured = np.asarray(logs, dtype=float)
    if not len(measured) or not len(targets):
        return np.zeros(len(targets))
    among = similarity.between(places, places)
    accidents = np.full(len(measured), similarity.accident**2)
    for _ in range(_ROUNDS):
        weights = np.linalg.solve(among + np.diag(accidents), measured)
        off = (measured - among @ weights) / (2 * similarity.accident)
        accidents = similarity.accident**2 * (1 + off**2)
    weights = np.linalg.solve(among + np.diag(accidents), measured)
    return np.asarray(similarity.between(targets, places) @ weights)


def most_informative(
    places: Sequence[RunFeatures], count: int, similarity: Similarity | None = None
) -> tuple[int, ...]:
    """Numbers of the runs to measure so that least uncertainty is left of all, best first.

    Nothing needs to be measured for this. Each next one is what lowers the mean standard
    deviation most, given those before it: one in the middle of the largest crowd, then one of
    another engine or storage. They are rarely the best plans, which `search` looks for.

    Args:
        places: Runs of one model on one kind of device.
        count: Largest number of runs.
        similarity: Similarity of the quantity; that of times per token if omitted.
    """
    if not places:
        return ()
    similarity = similarity or similarity_of("tpot")
    covariance = similarity.between(places, places)
    chosen: list[int] = []
    for _ in range(min(count, len(places))):
        # covariance[:, j]**2 / measured[j] is what a run at j would take from every variance
        measured = np.diag(covariance) + similarity.accident**2
        left = np.diag(covariance)[:, None] - covariance**2 / measured
        means = np.sqrt(np.maximum(left, 0)).mean(axis=0)
        means[chosen] = np.inf
        best = int(np.argmin(means))
        chosen.append(best)
        covariance -= np.outer(covariance[:, best], covariance[best]) / measured[best]
    return tuple(chosen)


def remaining_sd(
    places: Sequence[RunFeatures | None],
    measured: Sequence[RunFeatures | None],
    similarity: Similarity | None = None,
) -> NDArray[np.float64]:
    """Standard deviation of the logarithm of measured over predicted that is left at each place.

    Args:
        places: Runs of one model on one kind of device.
        measured: Places of runs that were measured, or will be.
        similarity: Similarity of the quantity; that of times per token if omitted.
    """
    similarity = similarity or similarity_of("tpot")
    left = similarity.alone(places)
    if len(measured) and len(places):
        among = similarity.between(measured, measured) + similarity.accident**2 * np.eye(
            len(measured)
        )
        towards = similarity.between(measured, places)
        left -= (towards * np.linalg.solve(among, towards)).sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(left, 0.0)))


@functools.cache
def similarity_of(quantity: str) -> Similarity:
    """Similarity of errors in `tpot` or `ttft`."""
    return msgspec.convert(bundled("perf.roofline", "data/similarity.toml")[quantity], Similarity)


def _engine(place: RunFeatures | None) -> str:
    return "" if place is None else place.engine


def _storage(place: RunFeatures | None) -> tuple[str, str]:
    return ("", "") if place is None else (place.engine, place.storage)


def _devices(place: RunFeatures | None) -> int:
    return 0 if place is None else place.devices


def _cached(places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
    return np.array([0.0 if place is None else place.cached_fraction for place in places])


def _link_doubts(places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
    return np.array([0.0 if place is None else place.link_doubt for place in places])


def _octaves(places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
    """Sizes as powers of two, shape (places, 4)."""
    sizes = [
        (1.0, 1.0, 1.0, 1.0)
        if place is None
        else (place.concurrency, place.input_tokens, place.output_tokens, float(place.devices))
        for place in places
    ]
    return np.asarray(np.log2(np.array(sizes, dtype=float).reshape(len(sizes), 4)))
