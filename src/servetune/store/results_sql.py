"""SQL over tables in memory, by DuckDB: nothing else can be read, and nothing written."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from servetune.errors import InputError
from servetune.units import GIB, format_bytes, format_seconds

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")

#: Memory of a query, beside the tables.
MOST_BYTES = 2 * GIB
#: Interval at which a query that is to end is interrupted, until it has ended.
_AGAIN_S = 0.02
#: Longest wait for a query in which a signal may not be heard.
_LOOK_S = 0.1
#: No downloads, and no look at the variables of this program.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "memory_limit": f"{MOST_BYTES}B",
    "threads": max(1, min(4, os.cpu_count() or 1)),
    "temp_directory": "",  # what does not fit is refused, not written to the disk
}
#: Statements that only read.
_READING = frozenset({"SELECT", "EXPLAIN"})
#: Error of DuckDB for a cell that is too large.
_TOO_LARGE = "cell past the limit of servetune"
#: Part of the name of types that have a time zone.
_ZONED = "WITH TIME ZONE"
#: Begin of a statement that explains another, comments before it included.
_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*EXPLAIN\b(?:\s*ANALYZE\b|\s*\([^)]*\))*",
    re.IGNORECASE | re.DOTALL,
)
#: Begins of what follows DuckDB's reason: the statement's picture, and frames of Python.
_ASIDE = re.compile(r"\n\s*LINE \d+:|\n\s*At:\s*\n|\n?Traceback \(most recent")
_GUESS = re.compile(
    r'[;\s]*Did you mean "?(?:pg_|duckdb_|sqlite_|pragma_|information_schema)[^\n]*', re.IGNORECASE
)


def require_duckdb() -> None:
    """Raise `InputError` where DuckDB is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise InputError("SQL needs DuckDB", hint="pip install 'servetune[sql]'") from None


def query(
    sql: str,
    tables: Mapping[str, pa.Table],
    aliases: Mapping[str, str] | None = None,
    *,
    limit_s: float | None = None,
    most_rows: int | None = None,
    most_bytes: int | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows of a query.

    Args:
        sql: One statement that reads.
        tables: Tables by name.
        aliases: Tables by further names; `schema.name` is one in a schema.
        limit_s: Time that it may take; `None` for no limit.
        most_rows: Rows that its answer may have; `None` for no limit.
        most_bytes: Bytes that its answer may have as text; `None` for no limit.

    Raises:
        InputError: It is no such statement, takes longer, needs more than `MOST_BYTES`, has more
            rows or bytes, or DuckDB refused it; the message is DuckDB's.
    """
    require_duckdb()
    import duckdb

    with contextlib.closing(duckdb.connect(":memory:", config=_CONFIG)) as connection:
        for name, table in tables.items():
            connection.register(name, table)
        for name, table_name in (aliases or {}).items():
            schema, dot, _ = name.rpartition(".")
            if dot:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.execute(f"CREATE VIEW {name} AS FROM memory.main.{table_name}")
        with contextlib.suppress(duckdb.Error):  # without the extension for time zones it is UTC
            connection.execute("SET TimeZone = 'UTC'")
        # Where Python looks interactive, its bar would be drawn on stdout, where results go.
        connection.execute("SET enable_progress_bar = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        limits = (
            math.inf if most_rows is None else most_rows,
            math.inf if most_bytes is None else most_bytes,
        )
        try:
            return _within(connection, limit_s, lambda: _answer(connection, sql, limits))
        except duckdb.OutOfMemoryException:
            raise InputError(
                f"the query needs more than {format_bytes(MOST_BYTES)} of memory",
                hint="ask for less: fewer columns, WHERE or GROUP BY",
            ) from None
        except duckdb.Error as error:
            if most_bytes is not None and _TOO_LARGE in str(error):
                raise _too_large(most_bytes) from None
            raise InputError(_reason(error), hint=_hint(tables)) from None


def _answer(
    connection: duckdb.DuckDBPyConnection, sql: str, limits: tuple[float, float]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    _require_reading(connection, sql)
    relation = connection.sql(sql)
    names, types = relation.columns, [str(each) for each in relation.types]
    bounded = limits[1] < math.inf and not _EXPLAIN.match(sql)
    if bounded or any(_ZONED in each for each in types):
        most = int(limits[1]) if bounded else None
        connection.execute(_wrapped(_unended(sql), types, most))
    else:
        connection.execute(sql)
        names = [each[0] for each in connection.description or ()]
    return _distinct(names), _rows(connection, *limits)


def _rows(
    connection: duckdb.DuckDBPyConnection, most_rows: float, most_bytes: float
) -> list[tuple[Any, ...]]:
    """Rows of the answer; the sum of their texts is known only as they come.

    Raises:
        InputError: They are more than allowed.
    """
    if most_rows == most_bytes == math.inf:
        return [tuple(map(_plain, row)) for row in connection.fetchall()]
    rows: list[tuple[Any, ...]] = []
    size = 0
    while (row := connection.fetchone()) is not None:
        if len(rows) == most_rows:
            raise InputError(
                f"the answer has more than {most_rows:,} rows",
                hint="ask for less with LIMIT or GROUP BY",
            )
        rows.append(tuple(map(_plain, row)))
        if most_bytes < math.inf:
            size += sum(len(str(value)) for value in rows[-1])
            if size > most_bytes:
                raise _too_large(most_bytes)
    return rows


def _too_large(most_bytes: float) -> InputError:
    return InputError(
        f"the answer has more than {format_bytes(most_bytes)}",
        hint="ask for less: fewer columns, left(column, 100), LIMIT or GROUP BY",
    )


def _within(
    connection: duckdb.DuckDBPyConnection, limit_s: float | None, work: Callable[[], T]
) -> T:
    """Result of work on the connection, in a thread of its own: DuckDB hears no signal itself.

    Whatever ends the wait before the work, such as Ctrl-C, interrupts the query.

    Raises:
        InputError: It took longer than the limit.
    """
    import duckdb

    found: Future[T] = Future()
    ended = threading.Event()  # a join that a signal ends takes the thread for an ended one

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)
        ended.set()

    ends_s = math.inf if limit_s is None else time.monotonic() + limit_s
    threading.Thread(target=run, name="sql", daemon=True).start()
    try:
        while not ended.is_set() and (left_s := ends_s - time.monotonic()) > 0:
            ended.wait(min(_LOOK_S, left_s))
        late = not ended.is_set()
    finally:
        while not ended.wait(_AGAIN_S):  # an interruption that comes between two steps is not heard
            connection.interrupt()
    try:
        return found.result()
    except duckdb.InterruptException:
        if not late:
            raise
        raise InputError(
            f"the query took longer than {format_seconds(limit_s)}",
            hint="ask for less with WHERE, LIMIT or a join's condition",
        ) from None


def _plain(value: Any) -> Any:
    """Value that every form of an answer can hold: whole numbers past 64 bits are text."""
    match value:
        case Decimal():
            return float(value)
        case int() if not -(2**63) <= value < 2**63:
            return str(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {
                key if isinstance(key, str) else str(key): _plain(each)
                for key, each in value.items()
            }
    return value


def _wrapped(sql: str, types: Sequence[str], most_bytes: int | None) -> str:
    """The statement with times that have a zone as text in UTC, as DuckDB would need a further
    package for them; with a limit a cell past it is an error before it becomes a value of Python.
    """
    columns = [f"c{place}" for place in range(len(types))]
    chosen = []
    for name, type_ in zip(columns, types, strict=True):
        text = f"CAST({name} AS VARCHAR)"
        value = text if _ZONED in type_ else name
        if most_bytes is not None:
            sizes = [f"strlen({text})"]
            if type_.endswith("]"):  # the text of a long list is larger yet
                sizes.insert(0, f"len({name})")
            tests = (f"WHEN {s} > {most_bytes} THEN error('{_TOO_LARGE}')" for s in sizes)
            value = f"CASE {' '.join(tests)} ELSE {value} END"
        chosen.append(value)
    return f"SELECT {', '.join(chosen)} FROM (\n{sql}\n) AS t({', '.join(columns)})"  # noqa: S608


def _unended(sql: str) -> str:
    """A statement without the semicolon at its end, and what follows it."""
    import duckdb

    content = sql.encode()
    for offset, kind in reversed(duckdb.tokenize(sql)):
        if kind != duckdb.token_type.comment:
            return (content[:offset] if content[offset:].startswith(b";") else content).decode()
    return sql


def _require_reading(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse what is not one statement that only reads; of EXPLAIN also what it explains."""
    kinds = [each.type.name for each in connection.extract_statements(sql)]
    if not kinds:
        raise InputError(
            "the SQL has no statement", hint='write it like "SELECT model_name, kind FROM results"'
        )
    if len(kinds) != 1:
        raise InputError(
            f"one statement is run at a time, and these are {len(kinds)}",
            hint='write it like "SELECT model_name, kind FROM results"',
        )
    if kinds[0] not in _READING:
        raise InputError(
            f"{kinds[0].replace('_', ' ')} is no statement that only reads",
            hint="begin it with SELECT; --out writes the answer to a file",
        )
    explained = _EXPLAIN.match(sql)
    if explained and kinds[0] == "EXPLAIN":
        _require_reading(connection, sql[explained.end() :])


def _reason(error: Exception) -> str:
    """DuckDB's message in one line, without the picture of the statement, the frames of Python and
    guesses at tables of DuckDB's own.
    """
    text = _ASIDE.split(str(error), maxsplit=1)[0]
    lines = [line.strip() for line in _GUESS.sub("", text).splitlines()]
    return "; ".join(line.rstrip(".") for line in lines if line)


def _hint(tables: Mapping[str, pa.Table]) -> str:
    return f"tables are {', '.join(tables)}; DESCRIBE results lists the columns"


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, a repeated one with its number."""
    found: dict[str, int] = {}
    distinct = []
    for name in names:
        found[name] = found.get(name, 0) + 1
        distinct.append(name if found[name] == 1 else f"{name}_{found[name]}")
    return distinct
