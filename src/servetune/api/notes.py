"""Notes on a run besides its result, through the standard logger.

`logging.getLogger("servetune")` has progress at level INFO and notes about what was assumed or
passed over at level WARNING, so a notebook shows the latter and the command line, which prints
both on standard error, needs nothing of its own. Credentials are taken out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from servetune.secret import redacted_text

LOGGER = logging.getLogger("servetune")


def note(text: str) -> None:
    """Tell what was assumed, passed over or left behind."""
    LOGGER.warning("%s", redacted_text(text))


def progress(text: str) -> None:
    """Tell how far a run is, or where a file went."""
    clean = redacted_text(text)
    LOGGER.info("%s", clean)
    for take in tuple(_LISTENERS):
        take(clean)


#: Functions that take progress besides the logger.
_LISTENERS: list[Callable[[str], None]] = []


@contextmanager
def heard_by(take: Callable[[str], None]) -> Iterator[None]:
    """Have a function take progress, whatever the logger's level."""
    _LISTENERS.append(take)
    try:
        yield
    finally:
        _LISTENERS.remove(take)
