"""Types made ready for msgspec, one at a time.

msgspec 0.22 lays out a type when it is first decoded, and crashes the process where two threads do
so at once: the second uses what the first has half made. Whatever may run in a thread, which is all
that agents and pages call, decodes with `ready(kind)` in the place of `kind`.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_LOCK = threading.RLock()  # the lay-out of a type may ask for that of another
_READY: set[Any] = set()


def ready(kind: T) -> T:
    """The type, which any number of threads may decode from now on.

    Example:
        >>> msgspec.convert(["a"], ready(list[str]))
        ['a']
    """
    if kind not in _READY:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _READY.add(kind)
    return kind
