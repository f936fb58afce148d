"""Text generation inference: `text-generation-launcher --model-id MODEL`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from servetune.engines.behaviour import behaviour_of
from servetune.engines.cause import plain_log
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.engine import FirstCompletion
from servetune.engines.log import LogReading, differences, python_values
from servetune.engines.program import Program
from servetune.engines.server_side import (
    native_routes_of,
    server_words_of,
    settings_report_of,
)
from servetune.engines.tgi.defaults import DEFAULTS
from servetune.engines.tgi.shipping import SHIPPING
from servetune.engines.tgi.words import VARIABLES, WORDS
from servetune.plan.plan import Plan, Setting

#: Settings whose printed value is the name of a variant in Rust, and those names that are more
#: than the word in capitals (`launcher/src/main.rs`).
_VARIANTS = ("quantize", "dtype", "kv_cache_dtype", "rope_scaling", "usage_stats")
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "bitsandbytesnf4": "bitsandbytes-nf4",
        "bitsandbytesfp4": "bitsandbytes-fp4",
        "compressedtensors": "compressed-tensors",
        "fp8e4m3fn": "fp8_e4m3fn",
        "fp8e5m2": "fp8_e5m2",
        "nostack": "no-stack",
    }
)


class Tgi(CommandLineEngine):
    """TGI 2.x and 3.x, which runs as a container image far more often than installed."""

    name = "tgi"
    simulated_as = "simulated-tgi"
    image_word = "text-generation-inference"
    words = WORDS
    container_module = "servetune.engines.tgi.containers"
    shipping = SHIPPING
    server_words = server_words_of("tgi")
    native_routes = native_routes_of("tgi")
    settings_report = settings_report_of("tgi")
    behaviour = behaviour_of("tgi")
    defaults = DEFAULTS
    assumed_version = "3.3"
    program = Program(
        title="TGI",
        command="text-generation-launcher",
        variable="SERVETUNE_TGI",
        install="docker pull ghcr.io/huggingface/text-generation-inference",
        image="ghcr.io/huggingface/text-generation-inference",
    )
    host_word = "--hostname"
    decided_here = frozenset({"model_id", "model", "hostname", "host", "port"})

    def model_words(self, model: str) -> tuple[str, ...]:
        return ("--model-id", model)

    def plan_variables(self, plan: Plan) -> dict[str, str]:
        """Prefix caching and chunking have no option, the launcher reads the environment."""
        return {
            name: str(int(getattr(plan, field)))
            for field, name in VARIABLES.items()
            if getattr(plan, field) is not None
        }

    def environment(self, plan: Plan) -> dict[str, str]:
        """No usage report is sent from a machine under measurement."""
        return {"USAGE_STATS": "off", **self.plan_variables(plan)}

    def served_name(self, plan: Plan) -> str | None:
        """Any name is answered; a local folder's own last part keeps records readable."""
        return Path(plan.model).name

    def first_completion(self, model: str) -> FirstCompletion:
        """Its oldest route, which every version has."""
        return FirstCompletion(
            path="/generate", body={"inputs": "Hello", "parameters": {"max_new_tokens": 2}}
        )

    def read_log(self, log_text: str) -> LogReading:
        """The line `Args { ... }` has every setting as it was asked, `None` where it was not.

        It is one line in 1.x and one setting a line in 3.x; of several starts the last counts.
        """
        text = plain_log(log_text)
        reading = super().read_log(text)
        taken = reading.taken
        if "cuda_graphs" in taken:
            taken["cuda_graphs"] = _graphs(taken["cuda_graphs"])
        printed = re.findall(r"Args \{(.*?)\}", text, re.DOTALL)
        own = self.known_arguments - self.decided_here
        for name, value in python_values(printed[-1]).items() if printed else ():
            if name in own and value is not None:
                taken.setdefault(name, _plain(name, value))
        return reading

    def differences(
        self, plan: Plan, taken: Mapping[str, Setting]
    ) -> dict[str, tuple[Setting, Setting]]:
        """With what the environment was to tell, and graphs that were not captured."""
        requested = {
            "prefix_caching": plan.prefix_caching,
            "chunked_prefill": plan.chunked_prefill,
        }
        found = {**super().differences(plan, taken), **differences(requested, taken)}
        if plan.enforce_eager is False and taken.get("cuda_graphs") == "0":
            found["enforce_eager"] = (False, True)
        return found


def _plain(name: str, value: Setting) -> Setting:
    if name == "cuda_graphs":
        return _graphs(value)
    if name not in _VARIANTS:
        return value
    word = str(value).lower()
    return _WORDS.get(word, word)


def _graphs(value: Setting) -> str:
    """Sizes as the option takes them, small to large; `0` for none."""
    sizes = sorted(int(number) for number in re.findall(r"\d+", str(value)))
    return ",".join(map(str, sizes)) or "0"
