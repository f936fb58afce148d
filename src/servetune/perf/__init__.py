"""What serving costs in time: a law of step times, an estimate and a simulator."""

from servetune.perf.roofline import Coefficients, Estimate, estimate, performance_at
from servetune.perf.sim import Simulation, simulate

__all__ = ["Coefficients", "Estimate", "Simulation", "estimate", "performance_at", "simulate"]
