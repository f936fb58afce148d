"""Order of predicted plans: which of them a prediction tells apart from the best.

Two predictions share the errors of what both depend on, so that their difference is surer than
either of them (`similarity`). `told_apart` in `data/intervals.toml` is the multiple of the
difference's standard deviation beyond which nine of ten pairs of measured runs have the predicted
order (`benchmarks/prediction/differences.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.bundled import bundled
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.causes import moments_for_features, run_features
from servetune.perf.roofline.local_corrections import steady_run
from servetune.perf.roofline.similarity import difference_sds, similarity_of
from servetune.perf.roofline.steady_state import OperatingPoint
from servetune.plan.plan import Plan
from servetune.workload.workload import Workload

#: Time by whose errors plans are compared: rates and whole requests follow from it.
_TIME = "tpot"


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at a number of users, to be compared with others.

    Attributes:
        point: Its predicted steady state.
        merit: What it is judged by: a rate, a time or a cost, positive; NaN where it has none, so
            that it may be as good as any.
    """

    plan: Plan
    node: Node
    point: OperatingPoint
    merit: float


def as_good_as_first(
    contenders: Sequence[Contender],
    shape: NetworkShape,
    workload: Workload,
    calibration: Calibration | None = None,
) -> tuple[bool, ...]:
    """Whether each may be as good as the first, as predictions do not tell them apart.

    Args:
        contenders: Plans of one network; the first is the one that was chosen.
        shape: The network.
        workload: Workload that they are predicted for.
        calibration: Measured runs that corrected the predictions on the first's machine.

    Returns:
        One for each contender; the first is as good as itself.
    """
    if len(contenders) < 2:
        return (True,) * len(contenders)
    moments = moments_for_features(workload)
    places = run_features(
        [
            steady_run(each.plan, shape, moments, each.node, each.point.concurrency)
            for each in contenders
        ]
    )
    anchors = calibration.anchors if calibration is not None else ()
    sds = difference_sds(
        places[0],
        places[1:],
        similarity_of(_TIME),
        same_device=[each.node.device == contenders[0].node.device for each in contenders[1:]],
        measured=[each.place for each in anchors if each.measured_tpot_ms is not None],
    )
    logs = np.log([each.merit for each in contenders])
    apart = np.abs(logs[1:] - logs[0]) > _told_apart() * sds
    return (True, *map(bool, ~apart))


@functools.cache
def _told_apart() -> float:
    found = bundled("perf.roofline", "data/intervals.toml")["told_apart"]
    return msgspec.convert(found, dict[str, float])[_TIME]
