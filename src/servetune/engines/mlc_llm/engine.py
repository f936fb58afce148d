"""MLC LLM: `mlc_llm serve MODEL`, with most of its settings in one option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from servetune.engines.command_line import CommandLineEngine
from servetune.engines.mlc_llm.shipping import SHIPPING
from servetune.engines.mlc_llm.words import OVERRIDES, WORDS
from servetune.engines.program import Program
from servetune.engines.settings import with_underscores
from servetune.plan.plan import Plan, Setting

_HUB = "HF://"


class MlcLlm(CommandLineEngine):
    """MLC LLM 0.19 and later, which serves weights that were converted for it.

    Its own mode `local` takes four sequences, so `--mode=server` is said unless the plan says.

    Sources: python/mlc_llm/cli/serve.py and serve/engine_base.py at commit 01ced33 of
    mlc-ai/mlc-llm; cpp/serve/config.cc for what it says of memory; pull request 2128 of the same
    for the lines of its log.
    """

    name = "mlc-llm"
    image_word = "mlc-llm"
    words = WORDS
    shipping = SHIPPING
    model_has_config = False  # it is mlc-chat-config.json
    program = Program(
        title="MLC LLM",
        command="mlc_llm",
        variable="SERVETUNE_MLC_LLM",
        install="pip install mlc-llm-nightly-cu128 mlc-ai-nightly-cu128, from the index that "
        "its documentation names",
        packages=("mlc-llm", "mlc-llm-nightly-cu128"),
    )
    start = ("serve",)
    ready_path = "/v1/models"

    def model_words(self, model: str) -> tuple[str, ...]:
        """A folder as it is; a hub id as its `HF://` address."""
        is_place = "://" in model or model.startswith((".", "/", "~")) or Path(model).exists()
        return (model if is_place or "/" not in model else f"{_HUB}{model}",)

    def model_of_word(self, word: str) -> str:
        return word.removeprefix(_HUB)

    def served_name(self, plan: Plan) -> str | None:
        return self.model_words(plan.model)[0]

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        return {"mode": "server", **super().plan_settings(plan, version)}

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        """Options, then all members of `--overrides` in one word, `NAME=VALUE` by semicolons."""
        inside: dict[str, Setting] = {}
        outside: dict[str, Setting] = {}
        for name, value in settings.items():
            (inside if with_underscores(name) in OVERRIDES else outside)[name] = value
        members = [
            f"{with_underscores(name)}={value}"
            for name, value in inside.items()
            if value is not None
        ]
        overrides = [f"--overrides={';'.join(members)}"] if members else []
        return [*super().server_cmd_args(outside, version), *overrides]

    def option_settings(self, name: str, text: str) -> dict[str, str]:
        if name != "overrides":
            return super().option_settings(name, text)
        return dict(re.findall(r"(\w+)=([^;]*)", text))
