import os
from pathlib import Path

import pytest

from servetune.deploy.bundle import Bundle, write
from servetune.errors import DeployError


def bundle(**texts: str) -> Bundle:
    files = {"plan.json": '{"servetune_bundle": 1, "files": ["plan.json", "old.txt"]}'}
    files |= {name.replace("__", "."): text for name, text in texts.items()}
    return Bundle(files=tuple(files.items()), executable=frozenset({"run.sh"}))


def test_a_new_folder_gets_every_file_and_execute_bits(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    paths = write(bundle(run__sh="#!/bin/sh\n", note__md="é\n"), out)
    assert [path.name for path in paths] == ["plan.json", "run.sh", "note.md"]
    assert (out / "note.md").read_text("utf-8") == "é\n"
    assert os.access(out / "run.sh", os.X_OK)
    assert not os.access(out / "note.md", os.X_OK)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(bundle(), out)
    assert (out / "plan.json").exists()


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DeployError, match="not empty") as caught:
        write(bundle(), tmp_path)
    assert "nothing was written" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_strangers_plan_json_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"my": "plan"}')
    with pytest.raises(DeployError):
        write(bundle(), tmp_path)
    assert (tmp_path / "plan.json").read_text() == '{"my": "plan"}'


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(DeployError, match="is a file"):
        write(bundle(), tmp_path / "out")


def test_an_earlier_bundle_is_renewed_and_the_users_notes_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(bundle(old__txt="old", run__sh="1"), out)
    (out / "notes.txt").write_text("mine")
    write(bundle(run__sh="2"), out)
    assert (out / "run.sh").read_text() == "2"
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "plan.json", "run.sh"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.txt", "a/../../b"])
def test_a_file_outside_the_folder_is_refused(path: str) -> None:
    with pytest.raises(DeployError, match="inside"):
        Bundle(files=((path, ""),))


def test_no_bundle_can_hold_a_token() -> None:
    with pytest.raises(DeployError, match="credential") as caught:
        Bundle(files=(("a.json", "x hf_" + "A" * 34),))
    assert "hf_A" not in str(caught.value)
