"""Step times and steady states by formula."""

from servetune.perf.roofline.breakdown import StepPart, breakdown
from servetune.perf.roofline.calibration import Calibration
from servetune.perf.roofline.closed_loop import ClosedLoops, RunPoint
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
from servetune.perf.roofline.interval import Caution, Interval, caution_of, interval_of
from servetune.perf.roofline.ops import Operations, Step, operations
from servetune.perf.roofline.runs import PricedRun, Run, price_runs
from servetune.perf.roofline.steady import (
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
    "Caution",
    "ClosedLoops",
    "Coefficients",
    "ConcurrencyLimits",
    "Estimate",
    "Interval",
    "LengthMoments",
    "OperatingPoint",
    "Operations",
    "Phase",
    "PricedRun",
    "Roofline",
    "Run",
    "RunPoint",
    "SteadyState",
    "Step",
    "StepLaw",
    "StepPart",
    "all_gather_s",
    "all_reduce_s",
    "breakdown",
    "caution_of",
    "coefficients_for",
    "estimate",
    "interval_of",
    "length_moments",
    "operations",
    "performance_at",
    "price_runs",
    "step_law",
    "table_for",
]
