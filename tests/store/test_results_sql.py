"""SQL over results: what only reads is answered, all else is refused."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from servetune.errors import InputError, StoreError
from servetune.processes import begun
from servetune.servers.watchdog import descendants
from servetune.store import results_sql
from servetune.store.results_sql import MOST_BYTES, query
from servetune.store.sql_process import Query, answer
from servetune.units import GIB

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra 'sql')")
pytest.importorskip("duckdb", reason="DuckDB is not installed (extra 'sql')")

TABLES = {"results": pa.table({"a": [1, 2, None], "b": ["x", None, "y"]})}
ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b"


def answered(sql, aliases=None, memory_bytes=MOST_BYTES, **limits):
    """What the process of a query answers, in this one."""
    names, *pieces = answer(Query(sql, TABLES, aliases or {}, memory_bytes, **limits))
    return names, [row for piece in pieces for row in piece]


def test_a_process_answers_with_the_values_that_duckdb_gives():
    sql = """
        SELECT date '2026-01-02' d, interval 1 day i, 1.5 h, ['x'] l, {'a': 1} s, '\\x00'::blob b,
               a, '00000000-0000-0000-0000-000000000001'::uuid u
        FROM results, range(5000) ORDER BY a
    """
    assert query(sql, TABLES, {"lake.measured": "results"}) == answered(sql)
    assert query(sql, TABLES)[1][0][-2] == 1
    with pytest.raises(InputError, match=r"clas does not exist!$") as error:
        query("SELECT * FROM clas", TABLES)
    assert error.value.hint == "tables are results; DESCRIBE results lists the columns"


def test_columns_have_distinct_names_and_numbers_are_plain():
    names, found = answered("SELECT sum(a) s, max(a) s, 1.5 half FROM results")
    assert (names, found) == (["s", "s_2", "half"], [(3, 2, 1.5)])


def test_a_table_has_further_names():
    sql = "SELECT count(*) FROM lake.measured JOIN other USING (a)"
    _, found = answered(sql, {"lake.measured": "results", "other": "results"})
    assert found == [(2,)]


def test_times_with_a_zone_and_large_numbers_are_text_that_every_form_holds(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytz", None)  # which DuckDB would ask for
    sql = "-- é\nSELECT timestamptz '2026-01-02 03:04:05+02' t, 1 t, 2::hugeint^0 o; -- ;"
    names, [row] = answered(sql)
    assert (names, row) == (["t", "t_2", "o"], ("2026-01-02 01:04:05+00", 1, 1.0))
    _, [[most]] = answered(f"SELECT {2**127 - 1}::hugeint")
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
        answered(sql)
    assert "\n" not in error.value.message
    assert not any(tmp_path.iterdir())


def test_an_answer_ends_at_its_limits_of_rows_and_bytes():
    assert answered("SELECT * FROM range(3)", most_rows=3)[1] == [(0,), (1,), (2,)]
    with pytest.raises(InputError, match="the answer has more than 2 rows"):
        answered("SELECT * FROM range(3)", most_rows=2)
    fine = "SELECT ['x'] l, {'a': 1} s, 2::hugeint h, 'y' t, sum(a) a FROM results"
    assert answered(fine, most_bytes=99) == answered(fine)
    ordered = "SELECT range FROM range(5000) ORDER BY range DESC"
    assert answered(ordered, most_bytes=99_999) == answered(ordered)
    for large in (
        "SELECT repeat('a', 9000000)",
        "SELECT range(90000)",
        "SELECT repeat('a', 600) FROM range(2)",
    ):
        with pytest.raises(InputError, match="more than 1000 B") as error:
            answered(large, most_bytes=1000)
        assert "--" not in error.value.hint
    assert answered("EXPLAIN SELECT 1", most_bytes=9999)[1]
    with pytest.raises(InputError, match=r"more than 38.15 MiB of memory"):
        answered("SELECT range, random() r FROM range(9000000) ORDER BY r", memory_bytes=40_000_000)


def test_a_query_ends_at_its_limit_of_time_also_where_duckdb_hears_nothing():
    for sql in (ENDLESS, "SELECT range(100000000)"):
        with pytest.raises(InputError, match=r"took longer than 100") as error:
            query(sql, TABLES, limit_s=0.1)
        assert error.value.hint.startswith("ask for less")


def test_memory_that_duckdb_does_not_count_has_a_limit():
    with pytest.raises(InputError, match=r"the query needs more than 2.00 GiB of memory"):
        query("SELECT range(1000000000)", TABLES)  # 8 GB without a limit
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak_bytes < MOST_BYTES + 2 * GIB


def test_a_process_that_is_ended_by_others_is_an_error_with_the_reason(tmp_path, monkeypatch):
    broken = tmp_path / "broken.py"
    broken.write_text("raise OSError('the disk has gone')\n", "utf-8")
    monkeypatch.setattr(results_sql.sql_process, "__file__", str(broken))
    with pytest.raises(StoreError, match="has ended: OSError: the disk has gone"):
        query("SELECT 1", TABLES)


def test_ctrl_c_ends_a_query_and_its_process():
    before = descendants(os.getpid())
    main = threading.main_thread().ident
    timer = threading.Timer(0.6, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):  # the limit only bounds a failure
        query(ENDLESS, TABLES, limit_s=20)
    timer.join()
    assert descendants(os.getpid()) == before


def test_no_process_of_a_query_is_left_when_its_program_is_killed():
    asks = textwrap.dedent(
        f"""
        import pyarrow as pa
        from servetune.store.results_sql import query
        query({ENDLESS!r}, {{"results": pa.table({{"a": [1]}})}}, limit_s=60)
        """
    )
    program = subprocess.Popen([sys.executable, "-c", asks])
    while not (found := descendants(program.pid)):
        assert program.poll() is None
        time.sleep(0.05)
    program.kill()
    program.wait()
    ends_s = time.monotonic() + 20
    while any(map(begun, found)) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not any(map(begun, found))
