import csv
import json
from array import array

import msgspec
import numpy as np
import pytest

from servetune.errors import StoreError
from servetune.metrics import Record
from servetune.metrics.columns import columns_of
from servetune.metrics.latency import itl_gaps_s
from servetune.store import (
    read_requests,
    write_requests,
    write_requests_csv,
    write_requests_parquet,
)
from servetune.workload import read_trace

ANSWERED = Record(
    index=0,
    input_tokens=7,
    output_tokens=2,
    due_s=0.5,
    sent_s=0.75,
    end_s=3.0,
    chunk_times_s=(2.0, 3.0),
)
CUT = Record(
    index=1,
    input_tokens=9,
    output_tokens=0,
    due_s=1.5,
    sent_s=1.5,
    end_s=3.0,
    outcome="cancelled",
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_is_a_line_with_its_times(tmp_path):
    write_requests(tmp_path / "r.jsonl", [ANSWERED, CUT], [1.0, None])
    first, second = lines(tmp_path / "r.jsonl")
    assert first == {
        "index": 0,
        "due_s": 0.5,
        "sent_s": 0.75,
        "admitted_s": 1.0,
        "first_token_s": 2.0,
        "end_s": 3.0,
        "input_tokens": 7,
        "output_tokens": 2,
        "outcome": "ok",
    }
    assert second["admitted_s"] is second["first_token_s"] is None
    assert second["outcome"] == "cancelled"


def test_token_times_are_kept_where_they_are_asked_for(tmp_path):
    write_requests(tmp_path / "r.jsonl", [ANSWERED], [1.0], token_times=True)
    assert lines(tmp_path / "r.jsonl")[0]["token_times_s"] == [2.0, 3.0]


def test_without_token_times_the_time_per_token_is_kept_and_gaps_are_absent(tmp_path):
    long = msgspec.structs.replace(ANSWERED, output_tokens=4, chunk_times_s=(2.0, 2.1, 2.9, 3.0))
    broken = msgspec.structs.replace(long, outcome="disconnected")
    single = msgspec.structs.replace(ANSWERED, output_tokens=1, chunk_times_s=(3.0,))
    path = tmp_path / "r.jsonl"
    write_requests(path, [long, broken, single, CUT], [None] * 4)
    read, _ = read_requests(path)
    assert [each.ttft_s for each in read] == [1.5, 1.5, 2.5, None]
    assert read[0].tpot_s == long.tpot_s
    assert [each.tpot_s for each in read[1:]] == [None, None, None]
    assert len(itl_gaps_s(read)) == 0
    assert np.isnan(columns_of(read).tpot_s).tolist() == [False, True, True, True]


def test_the_file_can_be_replayed_as_a_trace(tmp_path):
    path = tmp_path / "r.jsonl"
    write_requests(path, [ANSWERED], [1.0])
    assert read_trace(path.read_text().splitlines(), name="r").pairs == ((7, 2),)


def test_all_that_is_known_of_a_request_stands_in_its_line(tmp_path):
    told = msgspec.structs.replace(
        ANSWERED, chunk_tokens=(1, 3), session=4, turn=1, target=2, model="a", connect_s=0.25
    )
    failed = msgspec.structs.replace(CUT, status=503, detail="busy", outcome="http_status")
    write_requests(tmp_path / "r.jsonl", [told, failed], [None, None], token_times=True)
    first, second = lines(tmp_path / "r.jsonl")
    assert first["chunk_tokens"] == [1, 3]
    assert [first[name] for name in ("session", "turn", "target", "model")] == [4, 1, 2, "a"]
    assert first["connect_s"] == 0.25
    assert (second["status"], second["detail"]) == (503, "busy")
    assert second["token_times_s"] == []


def test_times_may_be_any_sequence(tmp_path):
    packed = msgspec.structs.replace(ANSWERED, chunk_times_s=array("d", [2.0, 3.0]))
    none = msgspec.structs.replace(CUT, chunk_times_s=array("d"))
    write_requests(tmp_path / "a.jsonl", [packed, none], [None, None], token_times=True)
    write_requests(tmp_path / "b.jsonl", [ANSWERED, CUT], [None, None], token_times=True)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_spreadsheet_has_a_row_for_each_request(tmp_path):
    failed = msgspec.structs.replace(CUT, detail='said "no", twice')
    write_requests_csv(tmp_path / "r.csv", [ANSWERED, failed])
    with (tmp_path / "r.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["ttft_s"], first["tpot_s"], first["e2e_s"]) == ("1.5", "1.0", "2.5")
    assert first["wait_before_send_s"] == "0.25"
    assert (second["first_token_s"], second["ttft_s"]) == ("", "")
    assert second["detail"] == 'said "no", twice'


def test_parquet_has_the_same_columns_whatever_happened(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    schemas = []
    for number, records in enumerate(([ANSWERED], [CUT], [])):
        path = tmp_path / f"{number}.parquet"
        write_requests_parquet(path, records)
        schemas.append(parquet.read_schema(path))
        assert len(parquet.read_table(path)) == len(records)
    assert schemas[0] == schemas[1] == schemas[2]
    (row,) = parquet.read_table(tmp_path / "0.parquet").to_pylist()
    assert row["chunk_times_s"] == [2.0, 3.0]
    kinds = {field.name: str(field.type) for field in schemas[0]}
    assert kinds["due_s"] == kinds["ttft_s"] == kinds["connect_s"] == "double"
    assert kinds["index"] == kinds["output_tokens"] == kinds["status"] == "int64"
    assert kinds["outcome"] == kinds["detail"] == kinds["model"] == "string"
    assert row["chunk_tokens"] == []
    assert list(tmp_path.glob(".*")) == []


def test_what_cannot_be_written_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_requests_csv(tmp_path / "file" / "r.csv", [ANSWERED])
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    with pytest.raises(StoreError, match=r"cannot write .*r.parquet: "):
        write_requests_parquet(tmp_path / "file" / "r.parquet", [ANSWERED])
