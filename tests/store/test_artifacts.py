import os
from pathlib import Path

import pytest

from servetune.errors import InputError, StoreError
from servetune.store import Artifacts, read_json, write_text


@pytest.mark.parametrize("name", ["run.json", "run"])
def test_artifacts_share_one_stem(name):
    artifacts = Artifacts.at(Path("out") / name)
    assert artifacts.summary == Path("out/run.json")
    assert artifacts.journal == Path("out/run.jsonl")
    assert artifacts.dashboard == Path("out/run.html")


def test_a_stem_may_have_dots_and_stays_its_own():
    names = {
        Artifacts.at(Path(name)).journal.name for name in ("run-1.5", "run-1.7", "run-1.5.json")
    }
    assert names == {"run-1.5.jsonl", "run-1.7.jsonl"}


@pytest.mark.parametrize("name", ["x.jsonl", "x.html", "", "/", "."])
def test_a_summary_cannot_be_named_like_another_artifact_or_nothing(name):
    with pytest.raises(InputError):
        Artifacts.at(Path(name))


def test_what_is_there_is_not_replaced_unless_it_is_renewed(tmp_path):
    artifacts = Artifacts.at(tmp_path / "run.json")
    artifacts.require_free(renew=False)
    artifacts.dashboard.write_text("somebody's")
    with pytest.raises(StoreError, match="exists already"):
        artifacts.require_free(renew=False)
    artifacts.require_free(renew=True)


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "run.html").mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        Artifacts.at(tmp_path / "run.json").require_free(renew=True)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(StoreError, match="is not a file"):
        write_text(tmp_path / "pipe.json", "x")
    with pytest.raises(StoreError, match="cannot"):
        write_text(tmp_path / ("n" * 300), "x")


def test_json_of_other_tools_is_borne(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": NaN, "b": -Infinity, "c": [1, "\xc3\xbc"]}')
    assert read_json(path) == {"a": None, "b": None, "c": [1, "ü"]}
    path.write_text("[" * 100_000)
    with pytest.raises(StoreError, match="is not JSON"):
        read_json(path)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_text(path, "old")

    def no_room(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_room)
    with pytest.raises(StoreError, match="No space left") as caught:
        write_text(path, "new")
    assert caught.value.hint == "make room, or choose another place"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(StoreError, match="is not JSON"):
        read_json(tmp_path / "bad.json")


def test_a_text_is_made_beside_its_place_so_that_it_is_replaced_at_once(tmp_path, monkeypatch):
    """A rename is whole or not at all only within one file system."""
    moved = []

    def replaced(scratch, target):
        moved.append((scratch, target))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(StoreError):
        write_text(tmp_path / "x.json", "new")
    [(scratch, target)] = moved
    assert target == tmp_path / "x.json"
    assert scratch.parent == tmp_path
    assert scratch.name.startswith(".x.json.")


def test_what_is_in_the_way_is_reported_with_the_way_on(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(StoreError, match=r"x.json is a folder$") as caught:
        write_text(tmp_path / "x.json", "new")
    assert caught.value.hint == "choose another place"
    (tmp_path / "y.json").write_text("{}")
    with pytest.raises(StoreError, match=r"y.json exists already") as caught:
        Artifacts.at(tmp_path / "y.json").require_free(renew=False)
    assert caught.value.hint == ("choose another --output-json, or continue its run with --resume")
