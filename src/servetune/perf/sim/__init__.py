"""The engine in virtual time."""

from servetune.perf.sim.rules import without_effect
from servetune.perf.sim.run import Simulation, simulate
from servetune.perf.sim.schedulers import scheduler_of

__all__ = ["Simulation", "scheduler_of", "simulate", "without_effect"]
