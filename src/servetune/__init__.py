"""Find, prove and ship the best way to serve a large language model.

    >>> import servetune as st
    >>> st.Recommend.verb
    'recommend'

Each verb is a function that takes a frozen request, or its fields as keywords, and gives a
typed result; see `servetune.api`. Names are looked up when they are used, so that the command
line starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servetune.api import *  # noqa: F403 - the library is this module

__version__ = "0.1.0"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A name of `servetune.api`."""
        if not name.startswith("_"):
            api = importlib.import_module("servetune.api")
            if name in api.__all__:
                return getattr(api, name)
        raise AttributeError(f"module 'servetune' has no attribute '{name}'")


def __dir__() -> list[str]:
    api = importlib.import_module("servetune.api")
    return sorted([*api.__all__, "__version__"])
