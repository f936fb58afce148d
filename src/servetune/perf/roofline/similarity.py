"""Similarity of the law's errors in two runs on one machine, and the best guess for a third.

A run has features: engine, storage, devices, lengths and number of users, and what doubt about each
cause of its time brings to it (`causes`). The logarithm of measured over predicted time is modelled
as a random field over features (kriging, or a Gaussian process): runs share the errors of the
causes that both depend on; runs of one model on one kind of device share a part besides, those of
one engine more, those of one engine and storage more still, and runs with similar sizes most:

    cov = sum over causes of the product of both runs' doubts about it
        + all^2 + engine^2 [same] + storage^2 [same]
        + near^2 [same] exp(-|difference of log2 sizes / reach|^2 / 2)

where runs on groups of different size have only a share of the doubt about their links in common:
runs of four devices that are slower than predicted say more of their link than of two devices' or
of one.

A measured run adds `accident^2` of its own, and more where it lies far from what its neighbours
say. The best guess at a place is the weighted sum that the covariances give. `similarity.toml`
was written by `benchmarks/prediction/similarity.py`, by maximum likelihood over residuals of rows
that the law's fit had not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.bundled import bundled
from servetune.decoding import ready

_ROUNDS = 3
#: Largest number of causes; of fewer the first are left out, as the links are last.
MOST_CAUSES = 8
#: Share of the doubt about a link that groups of different sizes have in common: a judgement.
OTHER_GROUPS = 0.3
#: Difference of the share of prompts that is cached over which runs stop being similar: likewise.
CACHED_REACH = 0.3


class RunFeatures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Features of a run among all runs of one model on one kind of device.

    Attributes:
        storage: Storage of the weights as loaded, as in `NetworkShape.quantization`, and of the
            cache where that has another size: kernels of attention differ by it.
        devices: Number of devices of one copy.
        concurrency: Users of one copy.
        cached_fraction: Share of the prompts' tokens that other prompts have computed.
        tpot_doubts: Standard deviation of the logarithm of its time per token that comes from
            doubt about each cause, that of its links last (`causes.CAUSES`); empty for no doubt.
        ttft_doubts: The same of its time to the first token.
        draft_method: Method of its drafts, if their acceptance is assumed; else empty.
        tpot_draft_doubt: Standard deviation of the logarithm of its time per token that comes from
            doubt about this acceptance; positive where fewer accepted drafts make it longer.
        ttft_draft_doubt: The same of its time to the first token.
    """

    engine: str
    storage: str
    devices: int
    concurrency: float
    input_tokens: float
    output_tokens: float
    cached_fraction: float = 0.0
    tpot_doubts: tuple[float, ...] = ()
    ttft_doubts: tuple[float, ...] = ()
    draft_method: str = ""
    tpot_draft_doubt: float = 0.0
    ttft_draft_doubt: float = 0.0


class Similarity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard deviations of the field's parts, as logarithms, and how far nearness reaches.

    Attributes:
        quantity: Quantity whose doubts by cause count, `tpot` or `ttft`.
        accident: Variation of one run by chance.
        reach_octaves: Distance in concurrency, prompt, answer and devices, in factors of two, over
            which runs stop being similar.
    """

    quantity: str = "tpot"
    all: float
    engine: float
    storage: float
    near: float
    accident: float
    reach_octaves: tuple[float, float, float, float]

    @property
    def unknown(self) -> float:
        """Standard deviation of a run where nothing was measured, its own variation included.

        Doubts by cause are left out; they are each run's own.
        """
        parts = (self.all, self.engine, self.storage, self.near, self.accident)
        return float(np.linalg.norm(parts))

    def alone(self, places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
        """Variance of the field at each run, its own variation left out; shape (places,)."""
        shared = self.all**2 + self.engine**2 + self.storage**2
        placed = np.array([place is not None for place in places], dtype=float)
        by_cause = (self._doubts(places) ** 2).sum(axis=1) + self._draft_doubts(places) ** 2
        return np.asarray(shared + self.near**2 * placed + by_cause)

    def between(
        self, here: Sequence[RunFeatures | None], there: Sequence[RunFeatures | None]
    ) -> NDArray[np.float64]:
        """Covariances, shape (here, there); `None` is anywhere, near to nothing."""
        same_engine = _same(here, there, lambda place: place.engine)
        same_storage = _same(here, there, lambda place: (place.engine, place.storage))
        steps = (_octaves(here)[:, None] - _octaves(there)[None]) / np.array(self.reach_octaves)
        cached = (_cached(here)[:, None] - _cached(there)[None]) / CACHED_REACH
        near = np.exp(-((steps**2).sum(axis=-1) + cached**2) / 2)
        placed = np.outer([a is not None for a in here], [b is not None for b in there])
        anywhere = ~placed
        found = self.all**2 + self.engine**2 * (same_engine | anywhere)
        found = found + self.storage**2 * (same_storage | anywhere)
        found = found + self.near**2 * near * (same_storage & placed)
        same_method = _same(here, there, lambda place: place.draft_method)
        drafted = np.outer(self._draft_doubts(here), self._draft_doubts(there)) * same_method
        same_group = _same(here, there, lambda place: place.devices)
        found = found + drafted
        return np.asarray(found + in_common(self._doubts(here), self._doubts(there), same_group))

    def _doubts(self, places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
        """Doubts by cause, shape (places, causes); none where a place is not known."""
        of = [
            ()
            if place is None
            else place.tpot_doubts
            if self.quantity == "tpot"
            else place.ttft_doubts
            for place in places
        ]
        found = np.zeros((len(of), MOST_CAUSES))
        for row, doubts in zip(found, of, strict=True):
            row[MOST_CAUSES - len(doubts) :] = doubts
        return found

    def _draft_doubts(self, places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
        """Doubts by an assumed acceptance of drafts, shape (places,)."""
        field = "tpot_draft_doubt" if self.quantity == "tpot" else "ttft_draft_doubt"
        return np.array([getattr(place, field, 0.0) for place in places])


def in_common(
    mine: NDArray[np.float64], others: NDArray[np.float64], same_group: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Covariance that doubts about causes bring, shape (mine, others).

    Args:
        mine: Doubts of some runs by cause, that of their links last; shape (mine, causes).
        others: Doubts of others.
        same_group: Whether two runs are on groups of one size.
    """
    linked = np.outer(mine[:, -1], others[:, -1]) * np.where(same_group, 1.0, OTHER_GROUPS)
    return np.asarray(mine[:, :-1] @ others[:, :-1].T + linked)


def guessed_logs(
    logs: Sequence[float],
    places: Sequence[RunFeatures | None],
    targets: Sequence[RunFeatures | None],
    similarity: Similarity,
) -> NDArray[np.float64]:
    """Expected logarithms of measured over predicted time of some runs.

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
    accidents = _accidents(measured, among, similarity)
    weights = np.linalg.solve(among + np.diag(accidents), measured)
    return np.asarray(similarity.between(targets, places) @ weights)


def _accidents(
    logs: NDArray[np.float64], among: NDArray[np.float64], similarity: Similarity
) -> NDArray[np.float64]:
    """Variance of each anchor by chance.

    A run that varies by more than twice the usual counts less, in proportion to the square.
    """
    accidents = np.full(len(logs), similarity.accident**2)
    for _ in range(_ROUNDS):
        weights = np.linalg.solve(among + np.diag(accidents), logs)
        off = (logs - among @ weights) / (2 * similarity.accident)
        accidents = similarity.accident**2 * (1 + off**2)
    return accidents


def remaining_doubt(
    logs: Sequence[float],
    measured: Sequence[RunFeatures | None],
    places: Sequence[RunFeatures | None],
    similarity: Similarity,
) -> NDArray[np.float64]:
    """Standard deviation of a run's logarithm at each place once anchors have corrected it.

    That of `remaining_sd`, where anchors that contradict each other count less, and the run's own
    variation, which is as large as theirs.
    """
    accidents = np.full(1, similarity.accident**2)
    if len(measured):
        among = similarity.between(measured, measured)
        accidents = _accidents(np.asarray(logs, dtype=float), among, similarity)
    left = _remaining(places, measured, similarity, accidents)
    return np.asarray(np.sqrt(np.maximum(left, 0.0) + accidents.mean()))


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
        similarity: Similarity of the quantity; that of first tokens if omitted, which are the less
            certain: what is chosen by it left times per token as well known on held-out rows.
    """
    if not places:
        return ()
    similarity = similarity or similarity_of("ttft")
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
    accidents = np.full(len(measured), similarity.accident**2)
    left = _remaining(places, measured, similarity, accidents)
    return np.asarray(np.sqrt(np.maximum(left, 0.0)))


def difference_sds(
    places: Sequence[RunFeatures],
    similarity: Similarity,
    *,
    slopes: Sequence[float] | None = None,
    same_device: Sequence[bool] | None = None,
    measured: Sequence[RunFeatures | None] = (),
    logs: Sequence[float] = (),
) -> NDArray[np.float64]:
    """Standard deviation of the error of log(time of each other run / time of the first).

    Errors that both have cancel.

    Args:
        places: Runs; the others are compared with the first.
        similarity: Similarity of the quantity.
        slopes: Slope of the logarithm of what is compared by that of the time, shape (places,);
            one each if omitted.
        same_device: Whether each other run is on devices of the first's kind, as all are if
            omitted; those on others have no error in common with it, and nothing measured says
            more of them.
        measured: Places of measured runs that corrected the predictions, on devices of the
            first's kind.
        logs: Logarithms of their measured over predicted times.

    Returns:
        Shape (places - 1,).
    """
    steep = np.ones(len(places)) if slopes is None else np.asarray(slopes, dtype=float)
    alone, shared = similarity.alone(places), similarity.between(places, places)
    accident = similarity.accident**2
    if len(measured):
        among = similarity.between(measured, measured)
        accidents = _accidents(np.asarray(logs, dtype=float), among, similarity)
        towards = similarity.between(measured, places)
        shared = shared - towards.T @ np.linalg.solve(among + np.diag(accidents), towards)
        accident = float(accidents.mean())
    together = np.ones(len(places), bool)
    if same_device is not None:
        together[1:] = same_device
    own = steep**2 * (np.where(together, np.diag(shared), alone) + accident)
    in_common = np.where(together[1:], steep[0] * steep[1:] * shared[0, 1:], 0.0)
    return np.asarray(np.sqrt(np.maximum(own[0] + own[1:] - 2 * in_common, 0.0)))


def _remaining(
    places: Sequence[RunFeatures | None],
    measured: Sequence[RunFeatures | None],
    similarity: Similarity,
    accidents: NDArray[np.float64],
) -> NDArray[np.float64]:
    left = similarity.alone(places)
    if len(measured) and len(places):
        among = similarity.between(measured, measured) + np.diag(accidents)
        towards = similarity.between(measured, places)
        left -= (towards * np.linalg.solve(among, towards)).sum(axis=0)
    return left


@functools.cache
def similarity_of(quantity: str) -> Similarity:
    """Similarity of errors in `tpot` or `ttft`."""
    fitted = bundled("perf.roofline", "data/similarity.toml")[quantity]
    return msgspec.convert({"quantity": quantity, **fitted}, ready(Similarity))


def _same(
    here: Sequence[RunFeatures | None],
    there: Sequence[RunFeatures | None],
    trait: Callable[[RunFeatures], Hashable],
) -> NDArray[np.bool_]:
    """Whether two runs have a trait in common, shape (here, there)."""
    numbers: dict[Hashable, int] = {}

    def codes(places: Sequence[RunFeatures | None]) -> NDArray[np.int_]:
        of = (None if place is None else trait(place) for place in places)
        return np.array([numbers.setdefault(each, len(numbers)) for each in of], dtype=int)

    return np.asarray(codes(here)[:, None] == codes(there)[None])


def _cached(places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
    return np.array([0.0 if place is None else place.cached_fraction for place in places])


def _octaves(places: Sequence[RunFeatures | None]) -> NDArray[np.float64]:
    """Sizes as powers of two, shape (places, 4)."""
    sizes = [
        (1.0, 1.0, 1.0, 1.0)
        if place is None
        else (place.concurrency, place.input_tokens, place.output_tokens, float(place.devices))
        for place in places
    ]
    return np.asarray(np.log2(np.array(sizes, dtype=float).reshape(len(sizes), 4)))
