"""Corrections of one plan by measured runs, at each number of users."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.causes import run_features
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.planned_runs import PlannedRun
from servetune.perf.roofline.steady_state import Correction, LengthMoments
from servetune.plan.plan import Plan

#: Requests of each user of a run that stands for a steady state.
_GENERATIONS = 10


def steady_run(
    plan: Plan, shape: NetworkShape, moments: LengthMoments, node: Node, users: int
) -> PlannedRun:
    """Run of a plan that stands for its steady state with a number of users."""
    return PlannedRun(
        shape=shape,
        node=node,
        plan=plan,
        lengths=moments,
        concurrency=users,
        request_count=_GENERATIONS * users,
    )


class LocalCorrections:
    """Corrections of a plan's predictions by a calibration, computed once per number of users.

    Plans that differ in batch limits alone have the same corrections and can share this.
    """

    def __init__(
        self,
        calibration: Calibration | None,
        plan: Plan,
        shape: NetworkShape,
        moments: LengthMoments,
        node: Node,
    ) -> None:
        self._calibration = calibration
        self._of = plan, shape, moments, node
        self._at: dict[int, Calibration] = {}

    def law(self, base: Coefficients) -> Coefficients:
        """Coefficients of the law, relearned where the calibration does so."""
        return base if self._calibration is None else self._calibration.relearned(base)

    def prepare(self, concurrencies: Sequence[int]) -> None:
        """Compute several numbers of users at once, which is faster than one after another."""
        if self._calibration is None:
            return
        plan, shape, moments, node = self._of
        places = run_features(
            [steady_run(plan, shape, moments, node, users) for users in concurrencies]
        )
        self._at.update(zip(concurrencies, self._calibration.at(*places), strict=True))

    def at(self, concurrency: int) -> Calibration | None:
        """Calibration for a number of users over all copies; `None` without one."""
        if self._calibration is not None and concurrency not in self._at:
            self.prepare([concurrency])
        return self._at.get(concurrency)

    def on(self, concurrency: int) -> Correction:
        """Correction of a steady state with a number of users."""
        here = self.at(concurrency)
        return Correction() if here is None else here.correction
