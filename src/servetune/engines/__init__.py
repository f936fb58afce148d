"""Inference engines, one folder each: settings, command line, log. Nothing here starts anything."""

from servetune.engines.cause import Cause
from servetune.engines.command.engine import filled_command, words_of
from servetune.engines.engine import ENGINES, Engine, FirstCompletion, engine
from servetune.engines.log import LogReading
from servetune.engines.settings import SettingSpec, SettingTable

__all__ = [
    "ENGINES",
    "Cause",
    "Engine",
    "FirstCompletion",
    "LogReading",
    "SettingSpec",
    "SettingTable",
    "engine",
    "filled_command",
    "words_of",
]
