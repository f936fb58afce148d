"""Substitutes that anyone may test against, and contracts that anyone may hold an engine to."""

from servetune.testing.engine_contract import EngineContract, RunningEngineContract
from servetune.testing.server import Behaviour, FakeServer, Truth, running_server

__all__ = [
    "Behaviour",
    "EngineContract",
    "FakeServer",
    "RunningEngineContract",
    "Truth",
    "running_server",
]
