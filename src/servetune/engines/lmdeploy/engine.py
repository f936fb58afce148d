"""LMDeploy: `lmdeploy serve api_server MODEL`, over its TurboMind or its PyTorch engine."""

from __future__ import annotations

import re

from servetune.engines.command_line import CommandLineEngine
from servetune.engines.lmdeploy.declarations import DECLARATIONS
from servetune.engines.lmdeploy.shipping import SHIPPING
from servetune.engines.lmdeploy.words import WORDS
from servetune.engines.log import LogReading, python_values
from servetune.engines.program import Program
from servetune.plan.plan import Plan, Setting


class Lmdeploy(CommandLineEngine):
    """LMDeploy 0.16 to 0.18. `--log-level INFO` is what lets its log tell anything."""

    name = "lmdeploy"
    image_word = "lmdeploy"
    words = WORDS
    shipping = SHIPPING
    declarations = DECLARATIONS
    program = Program(
        title="LMDeploy",
        command="lmdeploy",
        variable="SERVETUNE_LMDEPLOY",
        install="pip install lmdeploy",
        packages=("lmdeploy",),
    )
    start = ("serve", "api_server")
    host_word = "--server-name"
    port_word = "--server-port"
    metrics_path = "/metrics/"
    decided_here = frozenset({"model_path", "model", "server_name", "server_port"})

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        return {"log_level": "INFO", **super().plan_settings(plan, version)}

    def read_log(self, log_text: str) -> LogReading:
        """The configuration's names are the options' but for the block's size."""
        reading = super().read_log(log_text)
        printed = re.search(r"input backend=\w+, backend_config=\w+\((.*)", log_text)
        if printed:
            for name, value in python_values(printed[1]).items():
                own = _OPTIONS.get(name, name)
                if own in self.known_arguments and value is not None:
                    reading.taken.setdefault(own, value)
        return reading


_OPTIONS = {"block_size": "cache_block_seq_len", "device_type": "device"}
