"""vLLM: `vllm serve MODEL`, its arguments, its environment and the causes of its end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from servetune.engines.behaviour import ReleaseDefaults, behaviour_of
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.log import LogReading
from servetune.engines.program import Program
from servetune.engines.server_side import (
    CacheReset,
    ServerWords,
    server_words_of,
    settings_report_of,
)
from servetune.engines.shipping import Shipping
from servetune.engines.vllm.declarations import DECLARATIONS
from servetune.engines.vllm.defaults import DEFAULTS
from servetune.engines.vllm.log import printed_settings, taken_by
from servetune.engines.vllm.refusals import check_starts
from servetune.engines.vllm.shipping import SHIPPING
from servetune.engines.vllm.words import WORDS
from servetune.hardware.device import Device
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan, Setting

EXECUTABLE_VARIABLE = "SERVETUNE_VLLM"


class Vllm(CommandLineEngine):
    """vLLM 0.10 and later."""

    name = "vllm"
    image_word = "vllm"
    simulated_as = "simulated"
    lora_settings: ClassVar[Mapping[str, Setting]] = MappingProxyType({"enable_lora": True})
    words = WORDS
    declarations = DECLARATIONS
    container_module: ClassVar[str] = "servetune.engines.vllm.containers"
    shipping: ClassVar[Shipping | None] = SHIPPING
    server_words: ClassVar[ServerWords | None] = server_words_of("vllm")
    settings_report = settings_report_of("vllm")
    # The route is there in development mode only.
    cache_reset: ClassVar[CacheReset | None] = CacheReset(
        route="/reset_prefix_cache", environment=MappingProxyType({"VLLM_SERVER_DEV_MODE": "1"})
    )
    variable_prefixes = ("VLLM_",)
    behaviour = behaviour_of("vllm")
    defaults: ClassVar[tuple[ReleaseDefaults, ...]] = DEFAULTS
    program = Program(
        title="vLLM",
        command="vllm",
        variable=EXECUTABLE_VARIABLE,
        install="pip install vllm",
        packages=("vllm",),
    )
    start = ("serve",)
    # A second value would win inside vLLM and be missed here.
    decided_here = frozenset({"model", "model_tag", "host", "port", "uds", "headless", "grpc"})

    @property
    def table_name(self) -> str:
        return "vllm"

    @property
    def json_arguments(self) -> frozenset[str]:
        """Known arguments whose value is JSON text."""
        settings = self.settings().settings
        return frozenset(name for name, spec in settings.items() if spec.kind == "json")

    def false_words(self, name: str, version: str | None = None) -> list[str]:
        """`--no-NAME` also of an unknown switch.

        vLLM gives nearly every switch that form, and a wrong guess stops the server
        with a clear message, while silence would measure something else than asked.
        """
        spec = self.settings(version).named(name)
        if spec is None or spec.negatable:
            return [f"--no-{self.option_name(name)}"]
        return []

    def check_starts(self, plan: Plan, shape: NetworkShape, device: Device) -> None:
        check_starts(plan, device)

    def environment(self, plan: Plan) -> dict[str, str]:
        """No usage report is sent from a machine under measurement."""
        return {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

    def printed_settings(self, log_text: str) -> dict[str, Setting] | None:
        return printed_settings(log_text)

    def read_log(self, log_text: str) -> LogReading:
        reading = super().read_log(log_text)
        reading.taken.update(taken_by(log_text))
        return reading
