"""Data frames of results; pandas is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from servetune.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Iterable[Mapping[str, object] | msgspec.Struct]) -> pd.DataFrame:
    """A frame of these rows; columns in the order in which they first appear, or of the fields.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError(
            "a data frame needs pandas", hint="pip install 'servetune[pandas]'"
        ) from None
    return pd.DataFrame(
        [msgspec.structs.asdict(row) if isinstance(row, msgspec.Struct) else row for row in rows]
    )
