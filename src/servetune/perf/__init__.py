"""Prediction of serving performance: a law of step times, an estimate and a simulator."""

from servetune.perf.anchors import AnchorRun, Suggestion, suggested_runs
from servetune.perf.roofline import Estimate, estimate, performance_at
from servetune.perf.roofline.calibration import Anchor, Calibration, calibrated
from servetune.perf.roofline.causes import moments_for_features, run_features
from servetune.perf.roofline.learning import learned_factors
from servetune.perf.roofline.similarity import RunFeatures, most_informative
from servetune.perf.sim import RunOptions, simulate

__all__ = [
    "Anchor",
    "AnchorRun",
    "Calibration",
    "Estimate",
    "RunFeatures",
    "RunOptions",
    "Suggestion",
    "calibrated",
    "estimate",
    "learned_factors",
    "moments_for_features",
    "most_informative",
    "performance_at",
    "run_features",
    "simulate",
    "suggested_runs",
]
