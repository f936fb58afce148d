"""Choice of the runs of a model on a machine to measure first.

A candidate is a layout of the machine at a number of users of the ladder. Those whose users
would wait for a place are left out: they measure the cache, not the law. `most_informative`
then chooses the few after which least uncertainty is left of all.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.causes import moments_for_features, run_features
from servetune.perf.roofline.local_corrections import steady_run
from servetune.perf.roofline.similarity import most_informative, remaining_sd
from servetune.perf.roofline.steady_state import OperatingPoint
from servetune.perf.sweep import LADDER, sweep
from servetune.plan.plan import Plan
from servetune.workload.workload import Workload


class AnchorRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to measure: a plan and its number of users."""

    plan: Plan
    point: OperatingPoint


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Runs to measure, the most informative first, and how much they reduce the uncertainty.

    Attributes:
        candidates: Number of runs they were chosen among.
        doubt_before: Mean standard deviation of the logarithm of measured over predicted time
            per token, over all candidates.
        doubt_after: Mean standard deviation once these are measured.
    """

    runs: tuple[AnchorRun, ...]
    candidates: int
    doubt_before: float
    doubt_after: float


def suggested_runs(
    plans: Iterable[Plan],
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    count: int = 2,
    most_users: int = LADDER[-1],
) -> Suggestion:
    """Runs to measure so that least uncertainty is left of all candidates.

    Args:
        plans: Plans that may be served; those that cannot run are skipped.
        shape: The network.
        node: The machine.
        workload: Workload whose lengths count; its number of users does not.
        count: Number of runs.
        most_users: Largest number of users that will be served.

    Raises:
        InputError: No plan runs on the machine without users waiting for a place.
    """
    users = [each for each in LADDER if each <= most_users]
    runs = [
        AnchorRun(plan=swept.plan, point=swept.point)
        for swept in sweep(list(plans), shape, node, workload, concurrencies=users)
        if not swept.point.queued
    ]
    if not runs:
        raise InputError(
            f"nothing to measure: no layout of {shape.name} on {node.label} serves these lengths "
            "without users waiting for a place",
            hint="servetune estimate says what is missing; name a larger machine",
        )
    moments = moments_for_features(workload)
    places = run_features(
        [steady_run(run.plan, shape, moments, node, run.point.concurrency) for run in runs]
    )
    chosen = most_informative(places, count)
    return Suggestion(
        runs=tuple(runs[number] for number in chosen),
        candidates=len(runs),
        doubt_before=float(np.mean(remaining_sd(places, ()))),
        doubt_after=float(np.mean(remaining_sd(places, [places[number] for number in chosen]))),
    )
