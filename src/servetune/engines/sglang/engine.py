"""SGLang: `sglang serve --model-path MODEL`, and what its log says of the memory pool."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.engines.behaviour import behaviour_of
from servetune.engines.cause import plain_log
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.log import LogReading, python_values
from servetune.engines.program import Program
from servetune.engines.server_side import (
    CacheReset,
    native_routes_of,
    server_words_of,
    settings_report_of,
)
from servetune.engines.sglang.declarations import DECLARATIONS
from servetune.engines.sglang.defaults import DEFAULTS
from servetune.engines.sglang.shipping import SHIPPING
from servetune.engines.sglang.words import WORDS
from servetune.plan.plan import Plan, Setting


class Sglang(CommandLineEngine):
    """SGLang 0.5.21 and later, where `sglang serve` is the command.

    Its own default publishes no metrics, so `--enable-metrics` is added unless the plan says.
    """

    name = "sglang"
    simulated_as = "simulated-sglang"
    image_word = "sglang"
    words = WORDS
    declarations = DECLARATIONS
    container_module = "servetune.engines.sglang.containers"
    shipping = SHIPPING
    server_words = server_words_of("sglang")
    native_routes = native_routes_of("sglang")
    settings_report = settings_report_of("sglang")
    cache_reset = CacheReset(route="/flush_cache")
    variable_prefixes = ("SGLANG_",)
    behaviour = behaviour_of("sglang")
    defaults = DEFAULTS
    program = Program(
        title="SGLang",
        command="sglang",
        variable="SERVETUNE_SGLANG",
        install="pip install sglang",
        packages=("sglang",),
        version_words=("version",),
    )
    start = ("serve",)
    decided_here = frozenset({"model_path", "model", "host", "port"})

    def model_words(self, model: str) -> tuple[str, ...]:
        return ("--model-path", model)

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        """With metrics; captured graphs are turned off by the name of the version.

        `--disable-cuda-graph` is deprecated where the two backends have switches of their own.
        """
        settings = {"enable_metrics": True, **self.words.settings(plan, self.name)}
        newer = self.settings(version).named("cuda_graph_backend_decode") is not None
        if newer and plan.enforce_eager and settings.pop("disable_cuda_graph", None):
            settings["cuda_graph_backend_decode"] = "disabled"
            settings["cuda_graph_backend_prefill"] = "disabled"
        return settings

    def read_log(self, log_text: str) -> LogReading:
        """`server_args=` has every setting as it was resolved before the model was loaded.

        It is printed as a call, `ServerArgs(a=1)`, or, by 0.5.23, as a dictionary; of several
        starts the last counts.
        """
        text = plain_log(log_text)
        reading = super().read_log(text)
        printed = re.findall(r"server_args=(.*)", text)
        own = self.known_arguments - self.decided_here
        for name, value in python_values(printed[-1]).items() if printed else ():
            if name in own:
                reading.taken.setdefault(name, value)
        return reading

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        """With what a plan has on and SGLang turned off, for which there are no words to ask."""
        found = super().differences(plan, taken)
        for on, name, off in (
            (plan.prefix_caching is True, "disable_radix_cache", True),
            (plan.enforce_eager is False, "disable_cuda_graph", True),
            (plan.chunked_prefill is True, "chunked_prefill_size", -1),
        ):
            if on and taken.get(name) == off:
                found.setdefault(name, (not off if off is True else None, off))
        return found
