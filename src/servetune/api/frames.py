"""Data frames of results; pandas is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from servetune.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """A frame of these rows; columns in the order in which they first appear.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            "a data frame needs pandas", hint="pip install 'servetune[pandas]'"
        ) from None
    return pd.DataFrame(list(rows))
