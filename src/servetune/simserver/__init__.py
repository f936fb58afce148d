"""The simulated engine over HTTP: a server with a real engine's words and the simulator's times.

The only room that answers requests. It knows plans and step times, and starts nothing.
"""

from servetune.simserver.faults import Faults
from servetune.simserver.server import SimulatedServer
from servetune.simserver.service import Service, service_of

__all__ = ["Faults", "Service", "SimulatedServer", "service_of"]
