"""Lines of vLLM's log: causes of its end, its cache and times, the settings that it took."""

from __future__ import annotations

import ast
import re

from servetune.engines.log import python_values
from servetune.engines.settings import with_underscores
from servetune.plan.plan import Setting


def taken_by(log_text: str) -> dict[str, Setting]:
    """The engine's own account of its configuration, in the words of its arguments.

    `Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16,
    max_seq_len=2048, ...` has what it resolved; the sizes of a batch stand in lines of
    their own and among the arguments that are not defaults.
    """
    taken: dict[str, Setting] = {}
    given = re.search(r"non-default args: (\{.*)", log_text)
    if given:
        taken.update(python_values(given[1]))
    resolved = re.search(r"with config: (.*)", log_text)
    if resolved:
        values = python_values(resolved[1])
        taken.update(
            {_ARGUMENTS.get(name, name): v for name, v in values.items() if name in _RESOLVED}
        )
    for name in [name for name in taken if name in _NOT_COMPARED]:
        del taken[name]
    return {with_underscores(name): value for name, value in taken.items()}


#: Names of the printed configuration to those of the arguments.
_ARGUMENTS = {"max_seq_len": "max_model_len"}
_RESOLVED = frozenset(
    {
        "dtype",
        "max_seq_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "quantization",
        "enforce_eager",
        "kv_cache_dtype",
        "seed",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "load_format",
    }
)
_NOT_COMPARED = frozenset({"model", "model_tag", "host", "port", "api_server_count"})

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
