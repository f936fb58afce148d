r"""Text from outside, made safe to show: control characters become visible escapes.

A log, an error of a server or a name in a file may hold sequences that a terminal acts on: set the
clipboard (OSC), answer as if typed (DCS), move the cursor and write over what stood there (CSI), or
turn the order of what follows (bidirectional controls). They are shown as `\u001b`, which JSON
reads as the character that it was.
"""

from __future__ import annotations

import re

__all__ = ["one_line", "visible"]

#: Controls but newline and tab: C0, DEL, C1, marks and overrides of direction, separators of lines
#: and paragraphs, the byte order mark, and tags.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Text whose control characters are shown as escapes; newlines and tabs stay.

    Example:
        >>> visible("\x1b]52;c;cm0gLXJm\x07 done")
        '\\u001b]52;c;cm0gLXJm\\u0007 done'
    """
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n")) if not text.isprintable() else text


def one_line(text: str) -> str:
    r"""Text on one line: newlines and tabs are escapes, too.

    Example:
        >>> one_line("a name\nwith two lines")
        'a name\\nwith two lines'
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
