"""The only room that starts servers: what to run, for how long it lives, why it died."""

from servetune.engines.cause import Cause
from servetune.engines.engine import ENGINES, Engine, engine
from servetune.engines.launch import launch_environment, server_of
from servetune.engines.ports import claimed_port, free_port, require_free_port
from servetune.engines.process import ServerProcess

__all__ = [
    "ENGINES",
    "Cause",
    "Engine",
    "ServerProcess",
    "claimed_port",
    "engine",
    "free_port",
    "launch_environment",
    "require_free_port",
    "server_of",
]
