"""SQL over results: what only reads is answered, all else is refused."""

import signal
import sys
import threading

import pytest

from servetune.errors import InputError
from servetune.store.results_sql import _CONFIG, query

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra 'sql')")
pytest.importorskip("duckdb", reason="DuckDB is not installed (extra 'sql')")

TABLES = {"results": pa.table({"a": [1, 2, None], "b": ["x", None, "y"]})}


def test_columns_have_distinct_names_and_numbers_are_plain():
    names, found = query("SELECT sum(a) s, max(a) s, 1.5 half FROM results", TABLES)
    assert (names, found) == (["s", "s_2", "half"], [(3, 2, 1.5)])


def test_a_table_has_further_names():
    sql = "SELECT count(*) FROM lake.measured JOIN other USING (a)"
    _, found = query(sql, TABLES, {"lake.measured": "results", "other": "results"})
    assert found == [(2,)]


def test_times_with_a_zone_and_large_numbers_are_text_that_every_form_holds(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytz", None)  # which DuckDB would ask for
    sql = "-- é\nSELECT timestamptz '2026-01-02 03:04:05+02' t, 1 t, 2::hugeint^0 o; -- ;"
    names, [row] = query(sql, TABLES)
    assert (names, row) == (["t", "t_2", "o"], ("2026-01-02 01:04:05+00", 1, 1.0))
    _, [[most]] = query(f"SELECT {2**127 - 1}::hugeint", TABLES)
    assert most == str(2**127 - 1)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("COPY results TO 'x.csv'", "COPY is no statement that only reads"),
        ("ATTACH 'x.db'", "ATTACH is no"),
        ("INSTALL httpfs", "is no statement that only reads"),
        ("SET enable_external_access = true", "SET is no"),
        ("CREATE TABLE t AS SELECT 1", "CREATE is no"),
        ("SELECT 1; SELECT 2", "these are 2"),
        ("", "the SQL has no statement"),
        ("-- c", "the SQL has no statement"),
        ("EXPLAIN COPY results TO 'x.csv'", "COPY is no statement that only reads"),
        ("/* c */ EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", "CREATE is no"),
        ("SELECT * FROM clas", r"clas does not exist!$"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM read_parquet('s3://bucket/x')", "disabled by configuration"),
        ("SELECT * FROM TABLES", "does not exist"),  # a variable of this program
        ("SELECT nope FROM results", 'column "nope" not found'),
        ("SELEC", "syntax error"),
    ],
)
def test_what_does_more_than_read_the_tables_is_refused(sql, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        query(sql, TABLES)
    assert "\n" not in error.value.message
    assert not any(tmp_path.iterdir())


def test_a_query_ends_at_its_limits_of_time_memory_and_rows(monkeypatch):
    endless = "SELECT a.range, random() r FROM range(100000) a, range(100000) b ORDER BY r"
    with pytest.raises(InputError, match=r"took longer than 100") as error:
        query(endless, TABLES, limit_s=0.1)
    assert error.value.hint.startswith("ask for less")
    assert query("SELECT * FROM range(3)", TABLES, most_rows=3)[1] == [(0,), (1,), (2,)]
    with pytest.raises(InputError, match="the answer has more than 2 rows"):
        query("SELECT * FROM range(3)", TABLES, most_rows=2)
    fine = "SELECT ['x'] l, {'a': 1} s, 2::hugeint h, 'y' t, sum(a) a FROM results"
    assert query(fine, TABLES, most_bytes=99)[1] == query(fine, TABLES)[1]
    ordered = "SELECT range FROM range(5000) ORDER BY range DESC"
    assert query(ordered, TABLES, most_bytes=99_999)[1] == query(ordered, TABLES)[1]
    for large in (
        "SELECT repeat('a', 9000000)",
        "SELECT range(90000)",
        "SELECT repeat('a', 600) FROM range(2)",
    ):
        with pytest.raises(InputError, match="more than 1000 B") as error:
            query(large, TABLES, most_bytes=1000)
        assert "--" not in error.value.hint
    assert query("EXPLAIN SELECT 1", TABLES, most_bytes=9999)[1]
    monkeypatch.setitem(_CONFIG, "memory_limit", "40MB")
    with pytest.raises(InputError, match="of memory"):
        query("SELECT range, random() r FROM range(9000000) ORDER BY r", TABLES)


def test_ctrl_c_ends_a_query():
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    endless = "SELECT count(*) FROM range(100000000) a, range(100000000) b"
    with pytest.raises(KeyboardInterrupt):  # the limit only bounds a failure
        query(endless, TABLES, limit_s=10)
    timer.join()
