"""SQL over tables in memory, by DuckDB: nothing else can be read, and nothing written."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servetune.errors import InputError, StoreError
from servetune.store import sql_process
from servetune.store.sql_process import NO_MEMORY, REFUSED, Query, no_memory
from servetune.units import GIB, format_seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: Memory of a query, beside the tables.
MOST_BYTES = 2 * GIB
#: Exit status of a process that its lack of memory ended.
_MEMORY_DEATHS = frozenset(
    {NO_MEMORY, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL}
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
    """Columns and rows of a query, which a process of its own answers (`sql_process`).

    Whatever ends the wait, such as Ctrl-C, ends the process.

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
        StoreError: The process could not be started or was ended by somebody.
    """
    require_duckdb()
    asked = Query(
        sql, dict(tables), dict(aliases or {}), MOST_BYTES, limit_s, most_rows, most_bytes
    )
    command = [sys.executable, "-P", sql_process.__file__, str(os.getpid())]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise StoreError(f"cannot start a process for the query: {error.strerror}") from None
    with process:
        try:
            found, errors = process.communicate(pickle.dumps(tuple(asked)))
        finally:
            process.kill()
            status = process.wait()
    if status == -signal.SIGALRM:
        raise InputError(
            f"the query took longer than {format_seconds(limit_s)}",
            hint="ask for less with WHERE, LIMIT or a join's condition",
        )
    if status in _MEMORY_DEATHS:
        raise no_memory(MOST_BYTES)
    if status not in (0, REFUSED):
        said = errors.decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else f"exit status {status}"
        raise StoreError(f"the process of the query has ended: {why}", hint="run it again")
    pieces = _unpickled(found)
    if status == REFUSED:
        raise pieces[-1]
    names, *rows = pieces
    return names, [row for piece in rows for row in piece]


def _unpickled(content: bytes) -> list[Any]:
    """Values that the process sent, one after the other."""
    stream = io.BytesIO(content)
    values = []
    while stream.tell() < len(content):
        values.append(pickle.load(stream))  # noqa: S301 - of a process that this one started
    return values
