"""The engine in virtual time."""

from servetune.perf.sim.scheduler_choice import describe_scheduler
from servetune.perf.sim.scheduler_config import without_effect
from servetune.perf.sim.simulation import RunOptions, SimulatedRun, simulate

__all__ = ["RunOptions", "SimulatedRun", "describe_scheduler", "simulate", "without_effect"]
