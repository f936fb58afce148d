"""Tables as files: CSV for spreadsheets, Parquet for data frames; whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servetune.errors import StoreError
from servetune.store.artifacts import require_regular, write_pieces
from servetune.visible import visible

#: First characters of what a spreadsheet reads as a formula.
_FORMULA = tuple("=+-@\t\n")


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a line per row for a spreadsheet, after one of the columns' names.

    Text that a spreadsheet would read as a formula is led by an apostrophe.

    Raises:
        StoreError: It could not be written; an older file is unchanged.
    """
    rows = zip(*columns.values(), strict=True)
    write_pieces(path, csv_lines(list(columns), rows))


def csv_lines(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Lines of a CSV, the names first."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for row in (names, *rows):
        writer.writerow(map(_cell, row))
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        value = visible(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value


def has_parquet() -> bool:
    """Whether Parquet can be written: pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a row per row with the types that the values have; mixed columns hold text.

    Raises:
        StoreError: pyarrow is not installed, or the file could not be written.
    """
    write_parquet_table(path, lambda pa: {name: _array(pa, v) for name, v in columns.items()})


def _array(pa: Any, values: Sequence[Any]) -> Any:
    """Column of one type: numbers as floats where not all are whole, else all as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds in ({bool}, {int}, {float}):
        return pa.array(values)
    if kinds == {int, float}:
        return pa.array(values, type=pa.float64(), from_pandas=True, safe=False)
    return pa.array([None if value is None else str(value) for value in values], type=pa.string())


def write_parquet_table(path: Path, arrays: Any) -> None:
    """Write the arrays that a function makes with pyarrow.

    Raises:
        StoreError: pyarrow is not installed, or the file could not be written.
    """
    if not has_parquet():
        raise StoreError("Parquet needs pyarrow", hint="pip install 'servetune[parquet]'")
    import pyarrow as pa
    from pyarrow import parquet

    require_regular(path)
    table = pa.table(arrays(pa))
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, partial, compression="zstd")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where no file could be made there is none to remove
            partial.unlink()
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
