"""Terminal: the streams through which every command prints, safe against text from outside."""

from __future__ import annotations

import io
import re
import sys
from typing import IO, Any

from servetune.visible import visible

#: Emphasis of our own: bold, and its end.
_EMPHASIS = re.compile(r"(\x1b\[(?:0|1|22)?m)")


class SafeStream:
    """Stream that shows control characters instead of sending them, but for emphasis.

    Attributes:
        plain: The stream itself, for tables that make their own safe text.
    """

    def __init__(self, plain: io.TextIOWrapper) -> None:
        self.plain = plain

    def write(self, text: str) -> int:
        """Write text; the number of characters that were given."""
        if text.isprintable() or "\x1b" not in text:
            self.plain.write(visible(text))
        else:
            kept = _EMPHASIS.split(text) if self.plain.isatty() else [text]
            shown = (part if place % 2 else visible(part) for place, part in enumerate(kept))
            self.plain.write("".join(shown))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def guard_streams() -> None:
    """Put safe streams in the place of standard output and standard error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # a terminal without our letters gets others
            stream.reconfigure(errors="replace")
            setattr(sys, name, SafeStream(stream))


def plain_stream(stream: IO[str]) -> IO[str]:
    """Stream below a safe one, for output whose own control sequences must arrive."""
    return stream.plain if isinstance(stream, SafeStream) else stream
