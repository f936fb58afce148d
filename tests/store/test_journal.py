import errno
import json
import os
from pathlib import Path

import pytest

from servetune.errors import SchemaTooNew, StoreError
from servetune.plan.plan import Plan
from servetune.store import (
    Journal,
    TrialConfig,
    TrialRecord,
    latest,
    read_journal,
    record_from_json,
    trial_key,
)

PUBLISHED = (
    Path(os.environ.get("SERVETUNE_SHARED", Path(__file__).parents[3] / "shared"))
    / "data/aws_l4_records.jsonl"
)


def record(key="a", **more):
    fields = {"key": key, "config": TrialConfig(server_args={"x": 1}), "results": {"duration": 1.5}}
    return TrialRecord(**{**fields, **more})


def test_records_come_back_as_they_went(tmp_path):
    wanted = [record("a", plan=Plan(model="m", extra=(("k", 1),))), record("b", simulated=True)]
    with Journal(tmp_path / "x.jsonl") as journal:
        for one in wanted:
            journal.append(one)
    assert read_journal(tmp_path / "x.jsonl") == wanted


def test_non_finite_numbers_become_null(tmp_path):
    with Journal(tmp_path / "x.jsonl") as journal:
        journal.append(record(results={"duration": float("nan"), "rate": float("inf")}))
    assert "NaN" not in (tmp_path / "x.jsonl").read_text()
    assert read_journal(tmp_path / "x.jsonl")[0].results == {"duration": None, "rate": None}


def test_an_existing_journal_is_neither_overwritten_nor_extended_without_resume(tmp_path):
    path = tmp_path / "x.jsonl"
    with Journal(path) as journal:
        journal.append(record())
    before = path.read_bytes()
    with pytest.raises(StoreError, match="exists already") as caught:
        Journal(path)
    assert "--resume" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_what_a_kill_left_of_a_line_is_cut_off_and_the_rest_kept(tmp_path, cut):
    path = tmp_path / "x.jsonl"
    with Journal(path) as journal:
        journal.append(record("a"))
        whole = path.read_bytes()
        journal.append(record("b"))
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert [r.key for r in read_journal(path)] == ["a"]
    with Journal(path, resume=True) as journal:
        assert [r.key for r in journal.records] == ["a"]
        journal.append(record("c"))
    assert [r.key for r in read_journal(path)] == ["a", "c"]


def test_an_unreadable_line_is_named_and_nothing_is_changed(tmp_path):
    path = tmp_path / "x.jsonl"
    good = record().to_json()
    path.write_bytes(good + b"\n{broken\n" + good + b"\n")
    before = path.read_bytes()
    for act in (lambda: read_journal(path), lambda: Journal(path, resume=True)):
        with pytest.raises(StoreError, match="line 2"):
            act()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line", [b"12", b"[]", b'{"config": 3, "results": {}}', b'{"results": {}}']
)
def test_json_that_is_no_trial_is_refused(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(StoreError, match="line 1: not a trial record"):
        read_journal(path)


def test_a_second_writer_is_refused(tmp_path):
    with Journal(tmp_path / "x.jsonl"), pytest.raises(StoreError, match="another run"):
        Journal(tmp_path / "x.jsonl", resume=True)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    with Journal(path) as journal:
        journal.append(record("a"))
        before = path.read_bytes()
        real_write, calls = os.write, []

        def half_then_full(handle, data):
            calls.append(data)
            if len(calls) == 1:
                return real_write(handle, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(StoreError, match="No space left"):
            journal.append(record("b"))
        monkeypatch.undo()
        assert path.read_bytes() == before
        journal.append(record("c"))
    assert [r.key for r in read_journal(path)] == ["a", "c"]


def test_a_foreign_journal_without_a_last_line_end_can_be_extended(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(record("a").to_json())
    with Journal(path, resume=True) as journal:
        journal.append(record("b"))
    assert [r.key for r in read_journal(path)] == ["a", "b"]


def test_the_latest_record_of_a_trial_counts_at_its_first_place():
    records = [record("a"), record("b"), record("a", status="failed")]
    assert [(r.key, r.status) for r in latest(records)] == [("a", "failed"), ("b", "ok")]


def test_a_newer_schema_is_refused():
    with pytest.raises(SchemaTooNew, match="99") as caught:
        record_from_json({"config": {}, "results": {}, "servetune_schema": 99})
    assert "1" in caught.value.message


def test_empty_lines_end_nothing(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(record("a").to_json() + b"\n\n  \n" + record("b").to_json() + b"\n")
    assert [one.key for one in read_journal(path)] == ["a", "b"]


def test_keys_follow_what_would_be_tried_and_not_its_order():
    same = {"model": "m", "engine": "vllm", "client_args": {}}
    assert trial_key(server_args={"a": 1, "b": 2}, **same) == trial_key(
        server_args={"b": 2, "a": 1}, **same
    )
    assert trial_key(server_args={"a": 1}, **same) != trial_key(server_args={"a": 2}, **same)
    assert trial_key(server_args={}, **same) != trial_key(server_args={}, simulated=True, **same)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the shared data are not here")
def test_the_published_records_are_read_without_loss():
    raw = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    records = read_journal(PUBLISHED)
    assert len({r.key for r in records}) == 3
    for before, after in zip(raw, records, strict=True):
        written = json.loads(after.to_json())
        for name, value in before.items():
            assert written[name] == value
        assert after.simulated is False
        throughput = after.results["request_throughput"]
        latency_s = after.results["mean_e2e_latency_ms"] / 1000
        assert after.results["concurrency"] == pytest.approx(throughput * latency_s)


def test_what_stands_in_the_way_of_a_journal_is_reported_with_the_way_on(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    with Journal(path) as journal:
        journal.append(record())
        with pytest.raises(StoreError, match="another run is writing") as caught:
            Journal(path, resume=True)
        assert caught.value.hint == "wait for it, or choose another --output-json"
        monkeypatch.setattr(os, "fsync", _full)
        with pytest.raises(StoreError, match=r"No space left on device$") as caught:
            journal.append(record("b"))
        monkeypatch.undo()
        assert caught.value.hint == (
            "finished trials are safe; make room and run again with --resume"
        )
        assert [one.key for one in journal.records] == ["a"]
    with pytest.raises(StoreError, match="exists already") as caught:
        Journal(path)
    assert caught.value.hint == "continue that run with --resume, or choose another --output-json"
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(StoreError, match=r"x.jsonl line 2: not JSON$") as caught:
        read_journal(path)
    assert caught.value.hint == "correct or remove that line; nothing was changed"
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write") as caught:
        Journal(tmp_path / "file" / "x.jsonl")
    assert caught.value.hint == "choose another --output-json"
    with pytest.raises(StoreError, match=r"cannot read .*: No such file or directory$"):
        read_journal(tmp_path / "none.jsonl")


def _full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
