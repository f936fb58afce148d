"""Order of predicted plans: which of them a prediction tells apart from the best.

Two predictions share the errors of what both depend on, so that their difference is surer than
either of them (`similarity`). `order_threshold_sds` in `data/intervals.toml` is the multiple of the
difference's standard deviation beyond which nine of ten pairs of measured runs have the predicted
order (`benchmarks/prediction/differences.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.bundled import bundled
from servetune.hardware.device import Node
from servetune.models.shape import NetworkShape
from servetune.perf.roofline.calibration import Calibration, measured_logs
from servetune.perf.roofline.causes import moments_for_features, run_features
from servetune.perf.roofline.local_corrections import steady_run
from servetune.perf.roofline.similarity import RunFeatures, difference_sds, similarity_of
from servetune.perf.roofline.steady_state import OperatingPoint
from servetune.plan.plan import Plan
from servetune.workload.workload import Workload


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A plan at a number of users, to be compared with others.

    Attributes:
        point: Predicted steady state.
        merit: Rate, time or cost that it is judged by, positive; `None` where it has none.
        slope: Slope of the merit's logarithm by that of all times: one, but for a rate that a limit
            on latency allows, which falls with the number of users that hold it.
    """

    plan: Plan
    node: Node
    point: OperatingPoint
    merit: float | None
    slope: float = 1.0


def as_good_as_first(
    contenders: Sequence[Contender],
    shape: NetworkShape,
    workload: Workload,
    calibration: Calibration | None = None,
) -> tuple[bool | None, ...]:
    """Whether each may be as good as the first, as predictions do not tell them apart.

    Args:
        contenders: Plans of one network; the first is the one that was chosen.
        shape: The network.
        workload: Workload that they are predicted for.
        calibration: Measured runs that corrected the predictions on the first's machine.

    Returns:
        One for each contender, true of the first; `None` where one of the two has no merit.
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
    first_shares = np.array([each.point.ttft_ms / each.point.e2e_ms for each in contenders])
    shares = (first_shares[1:] + first_shares[0]) / 2
    reach = np.hypot(
        (1 - shares) * _threshold(contenders, places, "tpot", calibration),
        shares * _threshold(contenders, places, "ttft", calibration),
    )
    first, *others = (each.merit for each in contenders)
    found: list[bool | None] = [True]
    for merit, near in zip(others, reach, strict=True):
        if first is None or merit is None:
            found.append(None)
        else:
            found.append(bool(abs(math.log(merit / first)) <= near))
    return tuple(found)


def _threshold(
    contenders: Sequence[Contender],
    places: Sequence[RunFeatures],
    time: str,
    calibration: Calibration | None,
) -> NDArray[np.float64]:
    """Differences from the first beyond which an order by a time is believed, as logarithms."""
    first, *others = contenders
    anchors = measured_logs(calibration.anchors, time) if calibration is not None else []
    sds = difference_sds(
        places,
        similarity_of(time),
        slopes=[each.slope for each in contenders],
        same_device=[each.node.device == first.node.device for each in others],
        measured=[place for _, place in anchors],
        logs=[log for log, _ in anchors],
    )
    return _threshold_sds()[time] * sds


@functools.cache
def _threshold_sds() -> dict[str, float]:
    found = bundled("perf.roofline", "data/intervals.toml")["order_threshold_sds"]
    return msgspec.convert(found, dict[str, float])
