"""Arguments that a vLLM server takes, and the places where it tells its settings."""

from __future__ import annotations

import ast
import re
from types import MappingProxyType

from servetune.engines.server_side import ServerWords, SettingsReport
from servetune.plan.plan import Setting

#: Sources: vLLM 0.32 `v1/metrics/loggers.py` (cache_config_info) and the line "non-default args"
#: of its start-up log, read in November 2026.
SETTINGS_REPORT = SettingsReport(
    metric="vllm:cache_config_info",
    labels=MappingProxyType(
        {
            "block_size": "block_tokens",
            "enable_prefix_caching": "prefix_caching",
            "gpu_memory_utilization": "gpu_memory_fraction",
            "cache_dtype": "kv_cache_dtype",
        }
    ),
    log_marks=("non-default args",),
    line="non-default args: {{{settings}}}",
    member="{name!r}: {value}",
    model_name="model_tag",
)

SERVER_WORDS = ServerWords(
    spellings=MappingProxyType(
        {
            "tp": "tensor_parallel_size",
            "pp": "pipeline_parallel_size",
            "dp": "data_parallel_size",
            "q": "quantization",
            "ep": "enable_expert_parallel",
        }
    ),
    ignored=MappingProxyType({"model": str}),
    closed=True,
)

_NON_DEFAULT = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_PAIR = re.compile(r"'(\w+)': (True|False|None|-?\d+(?:\.\d+)?|'[^']*')")


def printed_settings(log_text: str) -> dict[str, Setting] | None:
    """Every setting that was not left to a default; `None` where no line says so.

    A value that is no literal hides only itself: the others are read one by one.
    """
    found = _NON_DEFAULT.findall(log_text)
    if not found:
        return None
    try:
        settings = ast.literal_eval(found[-1])
    except (ValueError, SyntaxError):
        settings = {name: ast.literal_eval(value) for name, value in _PAIR.findall(found[-1])}
    kinds = bool | int | float | str
    return {name: value for name, value in settings.items() if isinstance(value, kinds)}
