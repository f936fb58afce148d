"""Process that answers one SQL query by DuckDB, and ends at its limits whatever DuckDB does.

DuckDB computes constants outside its own limit of memory and hears no interruption meanwhile:
`SELECT range(100000000)` took 57 s and 8 GB. So a query has a process that the kernel ends: at an
alarm, at a limit of its memory, and when the process that asked has gone.

`sql_process.py PID` runs by its path, as the package around it takes longer to import. PID is the
process that asks.

    stdin     the fields of a `Query`, pickled
    stdout    pickles: names of the columns and then lists of rows; an `InputError` ends them
    status    0, `REFUSED` after an error, `NO_MEMORY`; negative for the signal of a limit
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servetune.errors import InputError
from servetune.units import GIB, format_bytes

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Exit status of a query that was refused, and of one that needs more memory than it may.
REFUSED, NO_MEMORY = 2, 3
#: Memory beside a query's: stacks, what allocators keep of what was freed, copies of a constant.
_RESERVED_BYTES = 2 * GIB
#: Rows that are read at once, without and with a limit of bytes.
_ROWS, _LIMITED_ROWS = 4096, 64
_PR_SET_PDEATHSIG = 1
#: No downloads, and no look at the variables of this program.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
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


class Query(NamedTuple):
    """A query and its limits.

    Attributes:
        sql: One statement that reads.
        tables: Tables by name.
        aliases: Tables by further names; `schema.name` is one in a schema.
        memory_bytes: Memory beside the tables.
        limit_s: Time that it may take.
        most_rows: Rows that its answer may have.
        most_bytes: Bytes that its answer may have as text.
    """

    sql: str
    tables: Mapping[str, pa.Table]
    aliases: Mapping[str, str]
    memory_bytes: int
    limit_s: float | None = None
    most_rows: int | None = None
    most_bytes: int | None = None


def answer(asked: Query) -> Iterator[list[Any]]:
    """Names of the columns, and then lists of rows; without the limits that the kernel keeps.

    Raises:
        InputError: It is no statement that reads, has more rows or bytes, or DuckDB refused it;
            the message is DuckDB's.
    """
    import duckdb

    config = {**_CONFIG, "memory_limit": f"{asked.memory_bytes}B"}
    with contextlib.closing(duckdb.connect(":memory:", config=config)) as connection:
        for name, table in asked.tables.items():
            connection.register(name, table)
        for name, table_name in asked.aliases.items():
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
        try:
            yield _executed(connection, asked.sql, asked.most_bytes)
            yield from _rows(connection, asked.most_rows, asked.most_bytes)
        except duckdb.OutOfMemoryException:
            raise no_memory(asked.memory_bytes) from None
        except duckdb.Error as error:
            if asked.most_bytes is not None and _TOO_LARGE in str(error):
                raise _too_large(asked.most_bytes) from None
            raise InputError(_reason(error), hint=_hint(asked.tables)) from None


def no_memory(memory_bytes: int) -> InputError:
    """Error of a query that needs more memory than it may."""
    return InputError(
        f"the query needs more than {format_bytes(memory_bytes)} of memory",
        hint="ask for less: fewer columns, WHERE or GROUP BY",
    )


def _executed(connection: duckdb.DuckDBPyConnection, sql: str, most_bytes: int | None) -> list[str]:
    """Names of the columns of a statement that now runs."""
    _require_reading(connection, sql)
    relation = connection.sql(sql)
    names, types = relation.columns, [str(each) for each in relation.types]
    most = None if _EXPLAIN.match(sql) else most_bytes
    if most is not None or any(_ZONED in each for each in types):
        connection.execute(_wrapped(_unended(sql), types, most))
    else:
        connection.execute(sql)
        names = [each[0] for each in connection.description or ()]
    return _distinct(names)


def _rows(
    connection: duckdb.DuckDBPyConnection, most_rows: int | None, most_bytes: int | None
) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of the answer; the sum of their texts is known only as they come.

    Raises:
        InputError: They are more than allowed.
    """
    count = size = 0
    at_once = _ROWS if most_bytes is None else _LIMITED_ROWS
    while found := connection.fetchmany(at_once):
        rows = [tuple(map(_plain, row)) for row in found]
        count += len(rows)
        if most_rows is not None and count > most_rows:
            raise InputError(
                f"the answer has more than {most_rows:,} rows",
                hint="ask for less with LIMIT or GROUP BY",
            )
        if most_bytes is not None:
            size += sum(len(str(value)) for row in rows for value in row)
            if size > most_bytes:
                raise _too_large(most_bytes)
        yield rows


def _too_large(most_bytes: float) -> InputError:
    return InputError(
        f"the answer has more than {format_bytes(most_bytes)}",
        hint="ask for less: fewer columns, left(column, 100), LIMIT or GROUP BY",
    )


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


def _main() -> int:
    """Answer the query on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C at a terminal reaches this process, too
    _end_with(int(sys.argv[1]))
    asked = Query(*pickle.load(sys.stdin.buffer))  # noqa: S301 - of the process that started this
    import duckdb  # noqa: F401 - before the limit, which is on what the query adds

    _limit(asked)
    try:
        for each in answer(asked):
            pickle.dump(each, sys.stdout.buffer)
    except InputError as error:
        pickle.dump(error, sys.stdout.buffer)
        return REFUSED
    except MemoryError:
        return NO_MEMORY
    return 0


def _end_with(asker: int) -> None:
    """Have the kernel end this process with the one that asks, also after `kill -9`."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != asker:  # it has gone already
        sys.exit()


def _limit(asked: Query) -> None:
    """Have the kernel end this process at the query's limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # Linux alone says what is in use
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = pages * resource.getpagesize() + asked.memory_bytes + _RESERVED_BYTES
        # RLIMIT_AS would count what allocators only reserve: sorts of half the size were refused.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    if asked.limit_s is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, asked.limit_s)


if __name__ == "__main__":
    sys.exit(_main())
