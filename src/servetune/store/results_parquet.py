"""Files of the table of results: Parquet, compressed by snappy, one per run and partition.

Files are read by the names of their columns. One of a later servetune, or of another tool, may have
further columns or lack some; only a column of another type is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from servetune.errors import StoreError
from servetune.store.results_columns import COLUMNS, PARTITIONS, TYPES
from servetune.store.results_rows import Row, typed
from servetune.store.tables import has_parquet

if TYPE_CHECKING:
    import pyarrow as pa

_IDENTITY = "trial_id"
#: What is read from a damaged file; pyarrow's other errors are subclasses of these.
_UNREADABLE = (OSError, ValueError, KeyError)


def require_parquet() -> None:
    """Raise `StoreError` where pyarrow is not installed."""
    if not has_parquet():
        raise StoreError("Parquet needs pyarrow", hint="pip install 'servetune[parquet]'")


def arrow_type(type_: str) -> Any:
    """Arrow's type of a column of the table."""
    import pyarrow as pa

    return {
        "string": pa.string(), "int": pa.int32(), "double": pa.float64(), "boolean": pa.bool_(),
    }[type_]  # fmt: skip


def table_of(rows: Iterable[Row], *, partitions: bool = False) -> pa.Table:
    """Rows with all columns of the table.

    Args:
        rows: Rows of trials.
        partitions: Whether the partition keys are columns as well; files do not have them.
    """
    import pyarrow as pa

    columns = (*COLUMNS, *PARTITIONS) if partitions else COLUMNS
    listed = list(rows)
    return pa.table(
        {
            each.name: pa.array(
                [typed(row.get(each.name), each.type) for row in listed], type=arrow_type(each.type)
            )
            for each in columns
        }
    )


def parquet_bytes(table: pa.Table) -> bytes:
    """The content of a file."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="snappy")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_parquet(content: bytes, name: str) -> pa.Table:
    """Rows of a file, with its own columns.

    Args:
        content: Content of the file.
        name: Path or address for messages.

    Raises:
        StoreError: It is no whole Parquet file, or a column has another type than the table's.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(content)).read()
    except _UNREADABLE as error:
        raise StoreError(
            f"{name} is no whole Parquet file: {str(error).splitlines()[0].rstrip('.')}",
            hint="move it away, and export the journal that it came from again",
        ) from None
    return _checked(table, name)


def _checked(table: pa.Table, name: str) -> pa.Table:
    """The rows with the table's types, where these hold all values."""
    import pyarrow as pa

    if not TYPES.keys() & set(table.column_names):
        raise StoreError(
            f"{name} is not of a table of results: it has none of its columns",
            hint="name the folder of an export, or move the file away",
        )
    for place, field in enumerate(table.schema):
        wanted = TYPES.get(field.name)
        if wanted is None or field.type == arrow_type(wanted):
            continue
        try:
            if not _castable(field.type, wanted):
                raise TypeError(wanted)
            column = table.column(place).cast(arrow_type(wanted))
        except (pa.ArrowInvalid, TypeError, NotImplementedError):
            raise StoreError(
                f"{name}: the column {field.name} is {field.type}, it should be {wanted}",
                hint="another tool wrote it: move it away, or export into another folder",
            ) from None
        table = table.set_column(place, field.name, column)
    return table


def _castable(found: Any, wanted: str) -> bool:
    """Whether values of a type are meant as the table's."""
    from pyarrow import types

    if types.is_null(found):
        return True
    if types.is_dictionary(found):
        return _castable(found.value_type, wanted)
    if wanted in ("int", "double"):
        return bool(types.is_integer(found) or types.is_floating(found))
    return wanted == "string" and bool(types.is_string(found) or types.is_large_string(found))


def partition_of(path: str) -> dict[str, str]:
    """Values of the partition keys in a path such as `model=a/instance=b/target=c/run.parquet`."""
    keys = {each.name for each in PARTITIONS}
    found = (part.partition("=") for part in path.split("/")[:-1])
    return {name: unquote(value) for name, sign, value in found if sign and name in keys}


def with_partition(table: pa.Table, values: Mapping[str, str]) -> pa.Table:
    """Rows with the partition keys of their file's path as columns."""
    import pyarrow as pa

    for name, value in values.items():
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array([value] * table.num_rows, type=pa.string()))
    return table


def union(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables by the names of their columns; of a trial in several, the first.

    A column that some lack is null there. Columns unknown here become text where their types
    differ. Rows without an identity, which other tools write, are all kept.
    """
    import pyarrow as pa

    empty = table_of([], partitions=True)
    tables = [empty, *tables]
    try:
        joined = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowTypeError:
        joined = pa.concat_tables(
            [_unknown_as_text(each) for each in tables], promote_options="default"
        )
    keep, seen = [], set()
    for each in joined.column(_IDENTITY).to_pylist():
        keep.append(each is None or each not in seen)
        seen.add(each)
    return joined if all(keep) else joined.filter(pa.array(keep))


def _unknown_as_text(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if field.name not in TYPES:
            values = table.column(place).to_pylist()
            texts = [None if value is None else str(value) for value in values]
            table = table.set_column(place, field.name, pa.array(texts, type=pa.string()))
    return table


def merged(existing: pa.Table, new: pa.Table) -> pa.Table:
    """Rows of a file after an export: those of the export, and others that it has.

    A trial that its journal has again, such as a failed one that was retried, replaces the earlier.
    Where a later servetune wrote the file, whose columns are not all known here, a trial that it
    has keeps its row.
    """
    newer = set(existing.column_names) - TYPES.keys()
    first, second = (existing, new) if newer else (new, not_superseded(existing, new))
    return union([first, second]).drop_columns([each.name for each in PARTITIONS])


def not_superseded(existing: pa.Table, new: pa.Table) -> pa.Table:
    """Rows of a run whose settings it has not measured since."""
    import pyarrow as pa

    if not {"trial_key", "run_timestamp"} <= set(existing.column_names):
        return existing

    def measured(table: pa.Table) -> list[tuple[str | None, str]]:
        keys, times = table.column("trial_key"), table.column("run_timestamp")
        began = (time or "" for time in times.to_pylist())
        return list(zip(keys.to_pylist(), began, strict=True))

    last = {key: began for key, began in measured(new) if key is not None}
    keep = [key not in last or began > last[key] for key, began in measured(existing)]
    return existing.filter(pa.array(keep, type=pa.bool_()))


def without_trials(table: pa.Table, trial_ids: set[str]) -> pa.Table:
    """The rows but those of some trials."""
    import pyarrow as pa

    if _IDENTITY not in table.column_names:
        return table
    keep = [each not in trial_ids for each in table.column(_IDENTITY).to_pylist()]
    return table.filter(pa.array(keep, type=pa.bool_()))


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables have equal columns and rows, in any order."""
    if set(one.column_names) != set(other.column_names) or one.num_rows != other.num_rows:
        return False
    other = other.select(one.column_names)
    if _IDENTITY in one.column_names:
        one, other = one.sort_by(_IDENTITY), other.sort_by(_IDENTITY)
    return bool(one.equals(other))
