"""Tables as files: what a spreadsheet and a data frame read back."""

import csv

import pytest

from servetune.errors import StoreError
from servetune.store import write_csv, write_parquet

COLUMNS = {
    "key": ["a", "=1+1", "+x", "@SUM(A1)", "-2", 'two\nlines, "quoted" \x1b[2J'],
    "rate": [1.5, 2, None, -3, 4, 5],
    "size": [1, "auto", None, 2, 3, 4],
    "ok": [True, False, None, True, True, True],
    "nothing": [None] * 6,
}


def test_a_spreadsheet_reads_text_and_no_formula(tmp_path):
    path = tmp_path / "deep" / "t.csv"
    write_csv(path, COLUMNS)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows[:5]] == ["a", "'=1+1", "'+x", "'@SUM(A1)", "'-2"]
    assert rows[5]["key"] == 'two\nlines, "quoted" \\u001b[2J'
    assert [row["rate"] for row in rows] == ["1.5", "2", "", "-3", "4", "5"], "numbers stay numbers"


def test_parquet_keeps_types_and_makes_text_of_a_mixed_column(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "deep" / "t.parquet"
    write_parquet(path, COLUMNS)
    table = parquet.read_table(path)
    kinds = {name: str(table.schema.field(name).type) for name in COLUMNS}
    assert kinds == {
        "key": "string", "rate": "double", "size": "string", "ok": "bool", "nothing": "string",
    }  # fmt: skip
    assert table.column("size").to_pylist() == ["1", "auto", None, "2", "3", "4"]
    assert table.column("key").to_pylist() == COLUMNS["key"]
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_in_the_way_is_an_error_in_one_line(tmp_path):
    for write in (write_csv, write_parquet):
        with pytest.raises(StoreError, match="is a folder"):
            write(tmp_path, COLUMNS)
