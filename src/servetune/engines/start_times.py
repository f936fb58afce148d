"""How long a server took for each part of its start, as its log tells."""

from __future__ import annotations

import re

__all__ = ["start_times_s"]

#: (part, pattern): of vLLM 0.8 to 0.32 and SGLang 0.4 to 0.5, whose loggers write these lines
#: once for each worker.
_LINES = (
    ("load", r"Loading weights took (?P<s>[\d.]+) s"),
    ("load", r"Load weight end\. elapsed=(?P<s>[\d.]+) s"),
    ("compile", r"torch\.compile (?:takes|took) (?P<s>[\d.]+) s in total"),
    ("capture", r"Graph capturing finished in (?P<s>[\d.]+) s"),
    ("capture", r"Capture cuda graph end\. Time elapsed: (?P<s>[\d.]+) s"),
    ("engine", r"init engine \([^)]*\) took (?P<s>[\d.]+) s"),
)


def start_times_s(log_text: str) -> dict[str, float]:
    """Seconds by part: `load` (weights), `compile`, `capture` (graphs), `engine` (all of the
    engine's own beginning). Of several workers the slowest counts; a part that the log does
    not tell of is not there.
    """
    found: dict[str, float] = {}
    for part, pattern in _LINES:
        for match in re.finditer(pattern, log_text):
            found[part] = max(found.get(part, 0.0), float(match["s"]))
    return found
