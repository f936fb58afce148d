"""Journals that another process is writing."""

import pytest

from servetune.errors import StoreError
from servetune.store import Journal, JournalFollower, TrialConfig, TrialRecord, read_journal


def record(key, duration=1.5):
    config = TrialConfig(server_args={"x": 1})
    return TrialRecord(key=key, config=config, results={"duration": duration})


def line(key, duration=1.5):
    return record(key, duration).to_json() + b"\n"


def keys(follower):
    return [one.key for one in follower.records]


def test_trials_come_as_they_are_written(tmp_path):
    follower = JournalFollower(tmp_path / "q.jsonl")
    assert not follower.refresh()
    assert follower.records == ()
    with Journal(tmp_path / "q.jsonl") as journal:
        assert not follower.refresh()
        for count, key in enumerate("abc", start=1):
            journal.append(record(key))
            assert follower.refresh()
            assert not follower.refresh()
            assert keys(follower) == list("abc"[:count])
    assert list(follower.records) == read_journal(tmp_path / "q.jsonl")


def test_a_line_that_is_cut_is_read_once_it_is_whole(tmp_path):
    path, whole = tmp_path / "q.jsonl", line("b")
    path.write_bytes(line("a"))
    follower = JournalFollower(path)
    follower.refresh()
    with path.open("ab") as file:
        for cut in (whole[:1], whole[1:40], whole[40:-2]):
            file.write(cut)
            file.flush()
            assert not follower.refresh()
            assert keys(follower) == ["a"]
        file.write(whole[-2:])
    assert follower.refresh()
    assert keys(follower) == ["a", "b"]


def test_a_last_line_without_its_end_counts_where_it_is_whole(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(line("a") + line("b").rstrip())
    follower = JournalFollower(path)
    assert follower.refresh()
    with path.open("ab") as file:
        file.write(b"\n" + line("c"))
    assert follower.refresh()
    assert keys(follower) == ["a", "b", "c"]


def test_the_last_record_of_a_trial_counts(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(line("a") + line("b") + line("a", 9.0))
    follower = JournalFollower(path)
    follower.refresh()
    assert [(one.key, one.results["duration"]) for one in follower.records] == [
        ("a", 9.0),
        ("b", 1.5),
    ]


@pytest.mark.parametrize("how", ["replaced", "shortened", "written anew", "gone"])
def test_a_file_that_is_not_continued_is_read_from_its_beginning(tmp_path, how):
    path = tmp_path / "q.jsonl"
    path.write_bytes(line("a") + line("b"))
    follower = JournalFollower(path)
    follower.refresh()
    others = {
        "shortened": line("c"),
        "written anew": line("c") + line("d", 2.25) + line("e"),
        "replaced": line("c") + line("d"),
        "gone": b"",
    }[how]
    if how == "replaced":
        (tmp_path / "other").write_bytes(others)
        (tmp_path / "other").replace(path)
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(others)
    assert follower.refresh()
    assert keys(follower) == {"shortened": ["c"], "written anew": ["c", "d", "e"]}.get(
        how, ["c", "d"] if how == "replaced" else []
    )
    assert not follower.refresh()


def test_the_version_is_that_of_the_lines_however_they_came(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(line("a"))
    early, late = JournalFollower(path), JournalFollower(path)
    early.refresh()
    before = early.version
    with path.open("ab") as file:
        file.write(line("b"))
    for follower in (early, late):
        follower.refresh()
    assert early.version == late.version != before


@pytest.mark.parametrize(
    ("bad", "said", "hint"),
    [
        (b"no json\n", "line 2: not JSON", "correct or remove that line"),
        (
            line("b").replace(b'"servetune_schema":null', b'"servetune_schema":999'),
            "schema 999",
            "",
        ),
    ],
)
def test_a_line_that_is_no_record_is_named_until_it_is_mended(tmp_path, bad, said, hint):
    path = tmp_path / "q.jsonl"
    path.write_bytes(line("a") + bad)
    follower = JournalFollower(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=said) as caught:
            follower.refresh()
        assert hint in caught.value.hint
    path.write_bytes(line("a") + line("b"))
    assert follower.refresh()
    assert keys(follower) == ["a", "b"]
