import json

import pytest

from servetune.errors import InputError
from servetune.workload.parts import DataSet
from servetune.workload.rows import read_rows

ROWS = [{"prompt": "one, two", "output_tokens": 3}, {"prompt": "three\nfour", "output_tokens": 5}]


def rows_of(path, **members):
    return list(read_rows(DataSet(path=str(path), **members)))


def test_json_lines_name_their_lines(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, ROWS)) + "\n", encoding="utf-8")
    assert rows_of(path) == [(f"{path} line 1", ROWS[0]), (f"{path} line 3", ROWS[1])]


def test_a_json_list_names_the_line_on_which_an_entry_begins(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps([*ROWS, ROWS[0]], indent=1))
    assert [where for where, _ in rows_of(path)] == [
        f"{path} line {line}" for line in (2, 6, 10)
    ]  # fmt: skip
    assert [row for _, row in rows_of(path)] == [*ROWS, ROWS[0]]


def test_json_that_is_lines_is_read_as_lines(tmp_path):
    path = tmp_path / "d.json"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    assert [row for _, row in rows_of(path)] == ROWS


def test_csv_has_quoted_cells_and_names_the_line_where_a_row_ends(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('prompt,output_tokens\n"one, two",3\n"three\nfour",5\n')
    assert rows_of(path) == [
        (f"{path} line 2", {"prompt": "one, two", "output_tokens": "3"}),
        (f"{path} line 4", {"prompt": "three\nfour", "output_tokens": "5"}),
    ]


def test_parquet_is_read(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pip install 'servetune[parquet]'")
    import pyarrow.parquet

    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    assert rows_of(path) == [(f"{path} row 1", ROWS[0]), (f"{path} row 2", ROWS[1])]
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match="cannot read the Parquet file"):
        rows_of(path)


def test_a_folder_of_files_is_read_in_order(tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[1]))
    (tmp_path / "a.csv").write_text("prompt\nfirst\n")
    (tmp_path / "README.md").write_text("words")
    assert [row["prompt"] for _, row in rows_of(tmp_path)] == ["first", "three\nfour"]


def test_a_hugging_face_data_set_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install 'servetune[datasets]'")
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(str(tmp_path / "one"))
    assert [row for _, row in rows_of(tmp_path / "one")] == ROWS
    datasets.DatasetDict(test=made).save_to_disk(str(tmp_path / "several"))
    assert [row for _, row in rows_of(tmp_path / "several", split="test")] == ROWS
    with pytest.raises(InputError, match="has no split train") as error:
        rows_of(tmp_path / "several")
    assert "test" in error.value.hint
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert [row for _, row in rows_of(f"hf:{tmp_path / 'hub'}")] == ROWS
    with pytest.raises(InputError, match=r"cannot load the data set .*nowhere"):
        rows_of(f"hf:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("d.jsonl", '{"prompt": "a"}\nprompt\n', "line 2 is not a JSON object"),
        ("d.jsonl", '{"prompt": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("d.json", '[{"prompt": "a"},\n 5]', "line 2 is not a JSON object"),
        ("d.json", '[{"prompt": "a"},\n {"b": }]', "line 2 is not JSON"),
        ("d.csv", "prompt,n\na,1\nb\n", "line 3 does not have the 2 cells"),
        ("d.csv", "prompt,n\na,1\nb,2,3\n", "line 3 does not have the 2 cells"),
        ("d.csv", 'prompt,n\na,1\n"b,2\n', "line 3 is not CSV"),
        ("d.txt", "a", "cannot tell what kind"),
        ("d.csv", b"\xff\xfe\x00", "is not text"),
    ],
)
def test_what_cannot_be_read_names_the_line(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=problem):
        rows_of(path)


def test_what_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        rows_of(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="holds no data set"):
        rows_of(tmp_path)


def test_a_missing_package_is_named_with_what_to_do(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "d.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="needs the package pyarrow") as error:
        rows_of(tmp_path / "d.parquet")
    assert "servetune[parquet]" in error.value.hint
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs the package datasets"):
        rows_of("hf:someone/something")
