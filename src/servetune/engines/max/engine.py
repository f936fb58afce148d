"""Modular MAX: `max serve --model MODEL`."""

from __future__ import annotations

from servetune.engines.command_line import CommandLineEngine
from servetune.engines.max.declarations import DECLARATIONS
from servetune.engines.max.shipping import SHIPPING
from servetune.engines.max.words import WORDS
from servetune.engines.program import Program
from servetune.plan.plan import Plan


class ModularMax(CommandLineEngine):
    """MAX 26.5 to 26.7. Its metrics stand on a port of their own, so none are scraped."""

    name = "max"
    image_word = "max"
    words = WORDS
    shipping = SHIPPING
    declarations = DECLARATIONS
    program = Program(
        title="Modular MAX",
        command="max",
        variable="SERVETUNE_MAX",
        install="pip install modular",
        packages=("max", "modular"),
    )
    start = ("serve",)
    metrics_path = None
    decided_here = frozenset({"model", "model_path", "host", "port"})

    def model_words(self, model: str) -> tuple[str, ...]:
        return ("--model", model)

    def address_words(self, host: str, port: int, version: str | None) -> tuple[str, ...]:
        if self.settings(version).named("host") is None:
            return (self.port_word, str(port))  # until 26.7 the environment alone could say it
        return super().address_words(host, port, version)

    def environment(self, plan: Plan) -> dict[str, str]:
        return {"MAX_SERVE_DISABLE_TELEMETRY": "1"}
