"""Timelines beside a journal: whole lines or none, the last of each trial, within the limits."""

import resource
import signal

import pytest

from servetune.errors import StoreError
from servetune.store import TimelineLog, keep_timelines, read_timelines
from servetune.store.timelines import MOST_BYTES

HOSTILE = 'k"\\ \u2028 </script> {"key":"other","timeline":{}}'


def timeline(number, bars=3):
    return {"duration_s": number, "bars": [[i, 0.5] for i in range(bars)]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.timelines.jsonl"


def test_each_trial_has_its_last_timeline_whatever_its_key(path):
    with TimelineLog(path) as log:
        for key, number in (("a", 1), (HOSTILE, 2), ("a", 3)):
            log.append(key, timeline(number))
    assert read_timelines(path) == {"a": timeline(3), HOSTILE: timeline(2)}
    assert list(read_timelines(path, [HOSTILE, "a", "missing"])) == [HOSTILE, "a"]
    assert read_timelines(path.with_name("missing")) == {}


@pytest.mark.parametrize("torn", [b'{"key":"b","timeline":{"dura', b"\xff\x00\n", b"[1]\n"])
def test_what_a_kill_leaves_is_passed_over_and_replaced(path, torn):
    with TimelineLog(path) as log:
        log.append("a", timeline(1))
    with path.open("ab") as file:
        file.write(torn)
    assert read_timelines(path) == {"a": timeline(1)}
    with TimelineLog(path, resume=True) as log:
        log.append("c", timeline(2))
    assert read_timelines(path) == {"a": timeline(1), "c": timeline(2)}
    with TimelineLog(path):
        pass
    assert read_timelines(path) == {}, "a new run begins anew"


def test_a_disk_that_is_full_leaves_whole_lines(path):
    """The limit on a file's size fails as a full disk does, also in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with TimelineLog(path) as log:
            log.append("a", timeline(1))
            size_bytes = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 10, before[1]))
            with pytest.raises(StoreError, match="cannot write"):
                log.append("b", timeline(2))
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert path.stat().st_size == size_bytes
            log.append("c", timeline(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_timelines(path) == {"a": timeline(1), "c": timeline(3)}


def test_a_timeline_is_at_most_two_megabytes_and_a_selection_as_large_as_asked(path):
    with TimelineLog(path) as log:
        log.append("huge", timeline(1, bars=MOST_BYTES // 6))
        log.append("large", timeline(2, bars=1000))
        log.append("small", timeline(3))
    assert list(read_timelines(path)) == ["large", "small"]
    assert list(read_timelines(path, ["large", "small"], most_bytes=500)) == ["small"]


def test_only_the_chosen_ones_are_kept(path):
    with TimelineLog(path) as log:
        for key in "abc":
            log.append(key, timeline(1))
    keep_timelines(path, ["c", "a"])
    assert sorted(read_timelines(path)) == ["a", "c"]
    keep_timelines(path.with_name("missing"), ["a"])
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_in_the_way_is_an_error_in_one_line(path):
    path.mkdir()
    with pytest.raises(StoreError, match="is a folder"):
        TimelineLog(path)
