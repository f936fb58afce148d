"""Text generation inference: `text-generation-launcher --model-id MODEL`."""

from __future__ import annotations

import re
from pathlib import Path

from servetune.engines.cause import Symptom
from servetune.engines.command_line import CommandLineEngine
from servetune.engines.engine import FirstCompletion
from servetune.engines.log import Fact, LogReading, python_values
from servetune.engines.program import Program
from servetune.plan.plan import Plan

__all__ = ["Tgi"]


class Tgi(CommandLineEngine):
    """TGI 2.x and 3.x, which runs as a container image far more often than installed."""

    name = "tgi"
    program = Program(
        title="TGI",
        command="text-generation-launcher",
        variable="SERVETUNE_TGI",
        install="docker pull ghcr.io/huggingface/text-generation-inference",
        image="ghcr.io/huggingface/text-generation-inference",
    )
    host_word = "--hostname"
    decided_here = frozenset({"model_id", "model", "hostname", "host", "port"})
    symptoms = (
        Symptom(
            "unknown_argument",
            r"error: unexpected argument '(?P<words>[^']+)' found",
            "text-generation-launcher does not know {words}",
            "see `text-generation-launcher --help` of the installed version",
        ),
        Symptom(
            "bad_argument",
            r"error: invalid value '(?P<value>[^']*)' for '(?P<words>[^']+)'",
            "text-generation-launcher refuses {value} for {words}",
            "see `text-generation-launcher --help` of the installed version",
        ),
        Symptom(
            "out_of_memory",
            r"Not enough memory to handle (?P<tokens>\d+) (?:prefill|total) tokens",
            "a batch of {tokens} tokens does not fit in the memory",
            "lower max_batch_prefill_tokens or max_total_tokens",
        ),
        Symptom(
            "bad_argument",
            r"ArgumentValidation\(\"(?P<words>[^\"]+)\"",
            "text-generation-launcher refuses the settings: {words}",
            "see `text-generation-launcher --help` of the installed version",
        ),
    )
    # Lines of published logs of 1.0 to 2.2 and the source of 3.x; none could be made here.
    facts = (
        Fact("kv_cache_tokens", r"Setting max batch total tokens to (\d+)"),
        Fact("kv_cache_blocks", r"KV-cache blocks: (\d+)"),
        Fact("load_s", r"Shard ready in ([\d.]+)s", "max"),
        Fact("taken.max_batch_prefill_tokens", r"Default `max_batch_prefill_tokens` to (\d+)"),
        Fact("taken.max_total_tokens", r"Default `max_total_tokens` to (\d+)"),
    )

    def model_words(self, model: str) -> tuple[str, ...]:
        return ("--model-id", model)

    def environment(self, plan: Plan) -> dict[str, str]:
        """Prefix caching and chunking have no option, the launcher reads the environment."""
        said = {"USAGE_STATS": "off"}
        if plan.prefix_caching is not None:
            said["PREFIX_CACHING"] = str(int(plan.prefix_caching))
        if plan.chunked_prefill is not None:
            said["PREFILL_CHUNKING"] = str(int(plan.chunked_prefill))
        return said

    def served_name(self, plan: Plan) -> str | None:
        """Any name is answered; a local folder's own last part keeps records readable."""
        return Path(plan.model).name

    def first_completion(self, model: str) -> FirstCompletion:
        """Its oldest route, which every version has."""
        return FirstCompletion(
            path="/generate", body={"inputs": "Hello", "parameters": {"max_new_tokens": 2}}
        )

    def read_log(self, log_text: str) -> LogReading:
        reading = super().read_log(log_text)
        printed = re.search(r"Args \{(.*)\}", log_text, re.DOTALL)
        if printed:
            own = self.known_arguments - self.decided_here
            for name, value in python_values(printed[1].partition("}")[0]).items():
                if name in own and value is not None:
                    reading.taken.setdefault(name, value)
        return reading
