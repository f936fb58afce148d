"""Step times and steady states by formula."""

from servetune.perf.roofline.accuracy import Accuracy, accuracy_like
from servetune.perf.roofline.breakdown import breakdown
from servetune.perf.roofline.coefficients import Coefficients
from servetune.perf.roofline.estimate import (
    CLOSED_LOOP_NOTES,
    Estimate,
    Phase,
    estimate,
    performance_at,
    scattered_factor,
)
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.interval import Interval, SafetyFactors, interval_of, safety_factors_of
from servetune.perf.roofline.operations import Step, operations
from servetune.perf.roofline.order import Contender, as_good_as_first
from servetune.perf.roofline.planned_runs import (
    REQUESTS_OF_A_RATE,
    PlannedRun,
    PredictedRun,
    at_a_rate,
    predict_runs,
    requests_in_flight,
)
from servetune.perf.roofline.run_formulas import RunPoint
from servetune.perf.roofline.steady_state import (
    LengthMoments,
    OperatingPoint,
    length_moments,
    moments_of,
)
from servetune.perf.roofline.step import step_law
from servetune.perf.roofline.tables import COEFFICIENTS, table_for

__all__ = [
    "CLOSED_LOOP_NOTES",
    "COEFFICIENTS",
    "REQUESTS_OF_A_RATE",
    "Accuracy",
    "Coefficients",
    "Contender",
    "Estimate",
    "Interval",
    "LengthMoments",
    "OperatingPoint",
    "Phase",
    "PlannedRun",
    "PredictedRun",
    "RunPoint",
    "SafetyFactors",
    "Step",
    "accuracy_like",
    "as_good_as_first",
    "at_a_rate",
    "breakdown",
    "coefficients_for",
    "estimate",
    "interval_of",
    "length_moments",
    "moments_of",
    "operations",
    "performance_at",
    "predict_runs",
    "requests_in_flight",
    "safety_factors_of",
    "scattered_factor",
    "step_law",
    "table_for",
]
