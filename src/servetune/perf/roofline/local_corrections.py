"""What measured runs say of one plan at each number of its users."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.similarity import run_features
from servetune.perf.roofline.steady_state import Correction, LengthMoments
from servetune.plan.plan import Plan

__all__ = ["LocalCorrections"]


class LocalCorrections:
    """A calibration asked where a plan is used, each place once; nothing without one.

    Plans that differ in batch limits alone lie at the same places and can share this.
    """

    def __init__(
        self,
        calibration: Calibration | None,
        plan: Plan,
        shape: NetworkShape,
        moments: LengthMoments,
    ) -> None:
        self._calibration = calibration
        self._of = plan, shape, moments
        self._at: dict[int, Calibration] = {}

    def law(self, base: Coefficients) -> Coefficients:
        """Coefficients of the law that `on` corrects."""
        return base if self._calibration is None else self._calibration.relearned(base)

    def ask(self, concurrencies: Sequence[int]) -> None:
        """Ask of several numbers of users at once, which is faster than one after another."""
        if self._calibration is None:
            return
        places = [run_features(*self._of, concurrency) for concurrency in concurrencies]
        self._at.update(zip(concurrencies, self._calibration.at(*places), strict=True))

    def at(self, concurrency: int) -> Calibration | None:
        """What the runs say of this number of users, over all copies."""
        if self._calibration is not None and concurrency not in self._at:
            self.ask([concurrency])
        return self._at.get(concurrency)

    def on(self, concurrency: int) -> Correction:
        """What a steady state with this number of users is corrected by."""
        here = self.at(concurrency)
        return Correction() if here is None else here.correction
