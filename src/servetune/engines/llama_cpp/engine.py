"""llama.cpp: `llama-server --model FILE.gguf`, which starts in a fraction of a second."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from servetune.engines.command_line import CommandLineEngine
from servetune.engines.llama_cpp.helptext import llama_settings
from servetune.engines.llama_cpp.shipping import SHIPPING
from servetune.engines.llama_cpp.words import WORDS
from servetune.engines.log import LogReading
from servetune.engines.program import Program, may_ask
from servetune.engines.settings import SettingSpec, SettingTable
from servetune.plan.plan import Plan, Setting

_HELP_TIMEOUT_S = 20.0


class LlamaCpp(CommandLineEngine):
    """`llama-server` of llama.cpp; a hub id is fetched with `--hf-repo`, a file is read.

    Its context is that of all slots together. A plan's `max_model_len` is each sequence's, so
    it is multiplied by the number of slots.
    """

    name = "llama.cpp"
    model_has_config = False
    words = WORDS
    shipping = SHIPPING
    program = Program(
        title="llama.cpp",
        command="llama-server",
        variable="SERVETUNE_LLAMA_SERVER",
        install="brew install llama.cpp, or build the target llama-server of "
        "https://github.com/ggml-org/llama.cpp",
    )
    decided_here = frozenset({"model", "hf_repo", "host", "port", "m"})

    model_options = ("--model", "--hf-repo")

    def model_words(self, model: str) -> tuple[str, ...]:
        is_path = model.startswith(("/", "./", "../", "~"))
        is_file = model.endswith(".gguf") or is_path or Path(model).exists()
        return ("--model" if is_file else "--hf-repo", model)

    def plan_settings(self, plan: Plan, version: str | None = None) -> dict[str, Setting]:
        """With metrics, which are off unless asked for."""
        return {"metrics": True, **self.words.settings(plan, self.name)}

    def server_cmd_args(
        self, settings: Mapping[str, Setting], version: str | None = None
    ) -> list[str]:
        """Name and value apart: llama-server takes no `--name=value`."""
        words: list[str] = []
        for word in super().server_cmd_args(settings, version):
            name, equals, value = word.partition("=")
            words += [name, value] if equals else [name]
        return words

    def settings(
        self, version: str | None = None, executable: tuple[str, ...] | None = None
    ) -> SettingTable:
        """Read off `llama-server --help` where there is one (a tenth of a second)."""
        found = _helped(executable) if executable else {}
        if found:
            return SettingTable(
                version=version or "", source="its --help", settings=found, exact=True
            )
        if version is not None and re.fullmatch(r"b?\d{3,}", version):
            version = "0.0.0"  # a build number, from before releases were numbered
        return super().settings(version)

    def read_log(self, log_text: str) -> LogReading:
        reading = super().read_log(log_text)
        per_slot = reading.taken.pop("n_ctx_slot", None)
        slots, unified = reading.taken.get("parallel"), reading.taken.get("kv_unified")
        if isinstance(per_slot, int) and isinstance(slots, int):
            tokens = per_slot if unified is True else per_slot * slots
            reading.taken.setdefault("ctx_size", tokens)
            return msgspec.structs.replace(
                reading,
                kv_cache_tokens=reading.kv_cache_tokens or tokens,
                max_concurrency=reading.max_concurrency or tokens / per_slot,
            )
        return reading


def _helped(executable: tuple[str, ...]) -> dict[str, SettingSpec]:
    if not may_ask():
        return {}
    try:
        answer = subprocess.run(
            [*executable, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_HELP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return llama_settings(answer.stdout)
