"""What serving costs in time: a law of step times, an estimate and a simulator."""

from servetune.perf.roofline import Coefficients, Estimate, estimate, performance_at
from servetune.perf.roofline.calibration import Anchor, Calibration, calibrated
from servetune.perf.sim import Simulation, simulate

__all__ = [
    "Anchor",
    "Calibration",
    "Coefficients",
    "Estimate",
    "Simulation",
    "calibrated",
    "estimate",
    "performance_at",
    "simulate",
]
