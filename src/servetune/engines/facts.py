"""Facts and functions that engines share; a subclass states what differs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from servetune.engines.behaviour import Behaviour, ReleaseDefaults
from servetune.engines.cause import Cause, diagnose
from servetune.engines.engine import FirstCompletion
from servetune.engines.log import LogReading
from servetune.engines.server_side import CacheReset, ServerWords, SettingsReport
from servetune.engines.settings import with_underscores
from servetune.engines.shipping import Shipping
from servetune.engines.words import Words
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan, Setting

if TYPE_CHECKING:
    from servetune.engines.container import Container


def plain_arguments(settings: Mapping[str, Setting]) -> list[str]:
    """Settings as most programs take them: `--name=value`, a bare switch, or nothing."""
    words = []
    for name, value in settings.items():
        option = f"--{with_underscores(name).replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


class EngineFacts:
    """An engine that speaks HTTP and of which nothing else is known.

    Attributes are described in `engine.Engine`.
    """

    starts_servers: ClassVar[bool] = True
    ready_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"
    client_args: ClassVar[Mapping[str, str]] = MappingProxyType({})
    words: ClassVar[Words] = Words(any_setting=True)
    shipping: ClassVar[Shipping | None] = None
    image_word: ClassVar[str] = ""
    container_module: ClassVar[str] = ""
    ships_as: ClassVar[str] = ""
    server_words: ClassVar[ServerWords | None] = None
    settings_report: ClassVar[SettingsReport] = SettingsReport()
    cache_reset: ClassVar[CacheReset | None] = None
    variable_prefixes: ClassVar[tuple[str, ...]] = ()
    simulated_as: ClassVar[str] = ""
    virtual_time: ClassVar[bool] = False
    model_has_config: ClassVar[bool] = True
    needs_command: ClassVar[bool] = False
    lora_settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({})
    behaviour: ClassVar[Behaviour] = Behaviour()
    defaults: ClassVar[tuple[ReleaseDefaults, ...]] = ()
    assumed_version: ClassVar[str | None] = None

    @property
    def containers(self) -> tuple[Container, ...]:
        if not self.container_module:
            return ()
        found: tuple[Container, ...] = importlib.import_module(self.container_module).CONTAINERS
        return found

    def check_starts(self, plan: Plan, shape: NetworkShape, device: Device) -> None:
        """Nothing is refused: the engine's own checks were not read."""

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        return plain_arguments(settings)

    def argument_types(self) -> Mapping[str, type]:
        return {}

    def spoken(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        return self.words.settings(plan, plan.engine)

    def environment(self, plan: Plan) -> dict[str, str]:
        return self.plan_variables(plan)

    def plan_variables(self, plan: Plan) -> dict[str, str]:
        return {}

    def version(self, executable: tuple[str, ...]) -> str | None:
        return None

    def first_completion(self, model: str) -> FirstCompletion:
        return FirstCompletion(body={"model": model, "prompt": "Hello", "max_tokens": 2})

    def served_name(self, plan: Plan) -> str | None:
        return None

    def explain(self, log_text: str, exit_code: int | None = None) -> Cause:
        return diagnose(log_text, exit_code)

    def read_log(self, log_text: str) -> LogReading:
        return LogReading()

    def taken_settings(self, log_text: str) -> dict[str, Setting]:
        return self.read_log(log_text).taken

    def printed_settings(self, log_text: str) -> dict[str, Setting] | None:
        if not re.search(self.settings_report.printed, log_text):
            return None
        return self.read_log(log_text).taken

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        return {}
