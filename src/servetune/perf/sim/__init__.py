"""The engine in virtual time."""

from servetune.perf.sim.run import Simulation, simulate, without_effect

__all__ = ["Simulation", "simulate", "without_effect"]
