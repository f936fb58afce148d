"""SQL over tables in memory, by DuckDB: nothing else can be read, and nothing written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from servetune.errors import InputError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: No downloads, and no look at the variables of this program.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}
#: Statements that only read.
_READING = frozenset({"SELECT", "EXPLAIN"})


def require_duckdb() -> None:
    """Raise `InputError` where DuckDB is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        raise InputError("SQL needs DuckDB", hint="pip install 'servetune[sql]'") from None


def query(
    sql: str, tables: Mapping[str, pa.Table], aliases: Mapping[str, str] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns and rows of a query.

    Args:
        sql: One statement that reads.
        tables: Tables by name.
        aliases: Tables by further names; `schema.name` is one in a schema.

    Raises:
        InputError: It is no such statement, or DuckDB refused it; the message is DuckDB's.
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
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            _require_reading(connection.extract_statements(sql))
            connection.execute(sql)
            names = [each[0] for each in connection.description or ()]
            return _distinct(names), [tuple(map(_plain, row)) for row in connection.fetchall()]
        except duckdb.Error as error:
            raise InputError(_reason(error), hint=_hint(tables)) from None


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _require_reading(statements: Sequence[duckdb.Statement]) -> None:
    kinds = [each.type.name for each in statements]
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


def _reason(error: Exception) -> str:
    """DuckDB's message in one line, without the picture of the statement."""
    lines = [line.strip() for line in str(error).split("\n\nLINE ")[0].splitlines()]
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
