from pathlib import Path

import pytest

from servetune.errors import StoreError
from servetune.store import Artifacts, read_json, write_json, write_text


def test_artifacts_share_one_stem():
    artifacts = Artifacts(Path("out/run.json"))
    assert artifacts.journal == Path("out/run.jsonl")
    assert artifacts.dashboard == Path("out/run.html")


def test_json_round_trips_and_has_no_nan(tmp_path):
    write_json(tmp_path / "a" / "x.json", {"a": float("nan"), "b": [1, "ü"]})
    assert read_json(tmp_path / "a" / "x.json") == {"a": None, "b": [1, "ü"]}


def test_a_failed_write_keeps_the_old_file_and_leaves_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_text(path, "old")

    def no_room(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(StoreError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(StoreError, match="is not JSON"):
        read_json(tmp_path / "bad.json")
