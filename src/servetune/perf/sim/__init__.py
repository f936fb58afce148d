"""The engine in virtual time."""

from servetune.perf.sim.run import Simulation, simulate

__all__ = ["Simulation", "simulate"]
