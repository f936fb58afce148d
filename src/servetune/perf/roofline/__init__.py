"""Step times and steady states by formula."""

from servetune.perf.roofline.breakdown import StepPart, breakdown
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.closed_loop import ClosedLoops, RunPoint
from servetune.perf.roofline.closed_loop_runs import ClosedLoopRun, PredictedRun, predict_runs
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.collectives import all_gather_s, all_reduce_s
from servetune.perf.roofline.estimate import (
    ConcurrencyLimits,
    Estimate,
    Phase,
    Roofline,
    estimate,
    performance_at,
)
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.interval import Interval, SafetyFactors, interval_of, safety_factors_of
from servetune.perf.roofline.operations import Operations, Step, operations
from servetune.perf.roofline.steady_state import (
    LengthMoments,
    OperatingPoint,
    SteadyState,
    length_moments,
)
from servetune.perf.roofline.step import StepLaw, step_law
from servetune.perf.roofline.tables import COEFFICIENTS, table_for

__all__ = [
    "COEFFICIENTS",
    "Calibration",
    "ClosedLoopRun",
    "ClosedLoops",
    "Coefficients",
    "ConcurrencyLimits",
    "Estimate",
    "Interval",
    "LengthMoments",
    "OperatingPoint",
    "Operations",
    "Phase",
    "PredictedRun",
    "Roofline",
    "RunPoint",
    "SafetyFactors",
    "SteadyState",
    "Step",
    "StepLaw",
    "StepPart",
    "all_gather_s",
    "all_reduce_s",
    "breakdown",
    "coefficients_for",
    "estimate",
    "interval_of",
    "length_moments",
    "operations",
    "performance_at",
    "predict_runs",
    "safety_factors_of",
    "step_law",
    "table_for",
]
