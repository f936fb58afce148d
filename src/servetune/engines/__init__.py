"""The only room that starts servers: what to run, for how long it lives, why it died."""

from servetune.engines.cause import Cause
from servetune.engines.command import filled_command, words_of
from servetune.engines.engine import ENGINES, Engine, FirstCompletion, engine
from servetune.engines.external import ExternalServer
from servetune.engines.launch import launch_environment, server_of
from servetune.engines.log import LogReading
from servetune.engines.ports import claimed_port, free_port, require_free_port
from servetune.engines.process import ServerProcess
from servetune.engines.settings import SettingSpec, SettingTable

__all__ = [
    "ENGINES",
    "Cause",
    "Engine",
    "ExternalServer",
    "FirstCompletion",
    "LogReading",
    "ServerProcess",
    "SettingSpec",
    "SettingTable",
    "claimed_port",
    "engine",
    "filled_command",
    "free_port",
    "launch_environment",
    "require_free_port",
    "server_of",
    "words_of",
]
