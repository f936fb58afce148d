"""Tables of results: data frames of pandas and polars, imported when one is asked for, and HTML
that notebooks show.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonObject

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

TableRow = Mapping[str, Any] | msgspec.Struct
"""Row of a table: values by column, or a struct whose fields are the columns."""

#: Rows that a notebook shows; the frames have all.
_SHOWN_ROWS = 20


def json_object(result: object) -> JsonObject:
    """A result as JSON has it: objects, lists, texts and numbers alone, as `--json` prints it."""
    found: JsonObject = msgspec.json.decode(msgspec.json.encode(result))
    return found


class Tabular(msgspec.Struct, frozen=True, kw_only=True):
    """Result that is a table: `df` is pandas, `polars` is polars, and a notebook draws it."""

    def as_rows(self) -> Iterable[TableRow]:
        """Rows of the table."""
        raise NotImplementedError

    @property
    def df(self) -> pd.DataFrame:
        """Data as a pandas frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise _missing("pandas") from None
        return pd.DataFrame(_plain(self.as_rows()))

    @property
    def polars(self) -> pl.DataFrame:
        """Data as a polars frame; a column whose rows have several types holds text.

        Raises:
            InputError: polars is not installed.
        """
        try:
            import polars as pl
        except ImportError:
            raise _missing("polars") from None
        return pl.DataFrame(
            {name: _of_one_type(values) for name, values in columns_of(self.as_rows()).items()}
        )

    def __repr__(self) -> str:
        has_text = type(self).__str__ is not object.__str__
        return str(self) if has_text else super().__repr__()

    def _facts(self) -> Sequence[tuple[str, str]]:
        """Titles and values that a notebook shows before the table."""
        return ()

    def _page(self) -> str:
        """Whole page that a notebook shows in a frame; empty without one."""
        return ""

    def _repr_html_(self) -> str:
        from servetune.report import table_html

        columns = columns_of(islice(self.as_rows(), _SHOWN_ROWS + 1))
        rows = list(zip(*columns.values(), strict=True))
        note = f"The first {_SHOWN_ROWS} rows; .df has all." if len(rows) > _SHOWN_ROWS else ""
        return table_html(
            list(columns), rows[:_SHOWN_ROWS], facts=self._facts(), note=note, page=self._page()
        )


def columns_of(rows: Iterable[TableRow]) -> dict[str, list[Any]]:
    """Columns in the order in which they first appear; `None` where a row has no value."""
    plain = _plain(rows)
    names = dict.fromkeys(name for row in plain for name in row)
    return {name: [row.get(name) for row in plain] for name in names}


def _plain(rows: Iterable[TableRow]) -> list[Mapping[str, Any]]:
    return [_fields_of(row) if isinstance(row, msgspec.Struct) else row for row in rows]


def _fields_of(row: msgspec.Struct) -> dict[str, Any]:
    """Fields of a struct; numbers in an array become a list, which frames know."""
    fields = msgspec.structs.asdict(row)
    return {name: list(v) if isinstance(v, array) else v for name, v in fields.items()}


def _of_one_type(values: Sequence[Any]) -> Sequence[Any]:
    """Values that one column can hold: as they are, numbers as floats, else all as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    convert = float if kinds == {int, float} else str
    return [None if value is None else convert(value) for value in values]


def _missing(package: str) -> InputError:
    return InputError(f"a data frame needs {package}", hint=f"pip install 'servetune[{package}]'")
