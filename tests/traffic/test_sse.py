import itertools
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from servetune.traffic.sse import DONE, Events

STREAM = (
    b": a comment first\n\n"
    b"data: one\n\n"
    b"event: delta\nid: 7\ndata: two\n\n"
    b"data: three\ndata:  and its second line\n\n"
    b"\n\ndata:four\n\n"
    b"retry: 1000\n\n"
    b'data: {"text": "caf\xc3\xa9: \xe2\x82\xac"}\n\n'
    b"data: [DONE]\n\n"
)
EVENTS = [
    b"one",
    b"two",
    b"three\n and its second line",
    b"four",
    b'{"text": "caf\xc3\xa9: \xe2\x82\xac"}',
    DONE,
]
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
PLACES = st.lists(st.integers(0, 400), max_size=40)
DATA = st.binary(max_size=12).filter(lambda value: b"\n" not in value and b"\r" not in value)


def cut(stream, places):
    bounds = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


def slowly(parts):
    """Events of these reads, one read at a time."""
    splitter = Events()
    found = [event for part in parts for event in splitter.feed(part)]
    return found + splitter.close()


def in_bulk(parts, batches=()):
    """Events of these reads, and the read that each came with, taken in batches."""
    splitter = Events()
    times_s = [float(i) for i in range(len(parts))]
    bounds = [0, *sorted(min(place, len(parts)) for place in batches), len(parts)]
    found, came_s = [], []
    for a, b in itertools.pairwise(bounds):
        events, some_s = splitter.take(parts[a:b], times_s[a:b])
        assert len(events) == len(some_s)
        found += events
        came_s += some_s
    return found, came_s, splitter.close()


@given(line_end=LINE_ENDS, places=PLACES)
def test_events_are_the_same_wherever_the_bytes_are_cut(line_end, places):
    parts = cut(STREAM.replace(b"\n", line_end), places)
    assert slowly(parts) == EVENTS
    found, _, left = in_bulk(parts)
    assert found + left == EVENTS


def test_one_byte_at_a_time_gives_the_same_events_for_every_line_end():
    for line_end in (b"\n", b"\r\n", b"\r"):
        stream = STREAM.replace(b"\n", line_end)
        assert slowly([stream[i : i + 1] for i in range(len(stream))]) == EVENTS


@given(values=st.lists(DATA, max_size=6), places=PLACES, line_end=LINE_ENDS)
def test_whatever_data_is_sent_comes_back(values, places, line_end):
    stream = b"".join(b"data: " + value + line_end * 2 for value in values)
    assert slowly(cut(stream, places)) == values


@given(
    values=st.lists(DATA, max_size=8),
    prefixes=st.lists(st.sampled_from([b"data: ", b"data:", b": \n\ndata: "]), max_size=3),
    places=PLACES,
    batches=st.lists(st.integers(0, 40), max_size=6),
    line_end=LINE_ENDS,
)
def test_in_bulk_is_the_same_and_each_event_has_the_time_of_its_last_byte(
    values, prefixes, places, batches, line_end
):
    prefixes = prefixes or [b"data: "]
    stream, ends, expected = b"", [], []
    for i, value in enumerate(values):
        prefix = prefixes[i % len(prefixes)].replace(b"\n", line_end)
        stream += prefix + value + line_end * 2
        # With CRLF the blank line is known at its CR.
        ends.append(len(stream) - (line_end == b"\r\n"))
        spaced = prefix == b"data:" and value.startswith(b" ")
        expected.append(value[1:] if spaced else value)
    parts = [part for part in cut(stream, places) if part]
    part_ends = list(itertools.accumulate(map(len, parts)))
    found, came_s, left = in_bulk(parts, batches)
    assert found == expected
    assert came_s == [float(bisect_left(part_ends, end)) for end in ends]
    assert left == []


@given(stream=st.binary(max_size=80) | st.text("dat:a \r\n\ufeffx", max_size=60).map(str.encode),
       places=PLACES, batches=st.lists(st.integers(0, 40), max_size=4))  # fmt: skip
def test_whatever_comes_bulk_and_slow_agree(stream, places, batches):
    parts = cut(stream, places)
    found, came_s, left = in_bulk(parts, batches)
    assert found + left == slowly(parts)
    assert came_s == sorted(came_s)


def test_an_event_is_handed_over_with_the_byte_that_ends_it():
    for line_end in (b"\n", b"\r\n", b"\r"):
        splitter = Events()
        assert splitter.feed(b"data: now" + line_end) == []
        # With CRLF and CR the blank line is known at its CR: nothing waits for what follows.
        assert splitter.feed(line_end[:1]) == [b"now"]


def test_the_last_event_counts_even_without_a_blank_line():
    assert slowly([b"data: one\n\ndata: two"]) == [b"one", b"two"]
    assert slowly([b"data: one\n\ndata: two\n"]) == [b"one", b"two"]
    assert slowly([b"data: one\n\nda", b"ta: ", b"two"]) == [b"one", b"two"]


def test_comments_and_fields_without_data_are_no_events():
    assert slowly([b": ping\n\nevent: end\n\n:\n\nid: 3\n\ndatabase: x\n\n"]) == []


def test_a_byte_order_mark_is_passed_over_once():
    assert slowly([b"\xef\xbb", b"\xbfdata: a\n\n"]) == [b"a"]
    assert slowly([b"\xef\xbb\xbfdata: last"]) == [b"last"]
    assert in_bulk([b"\xef\xbb\xbfdata: a\n\n"])[0] == [b"a"]


def test_empty_data_is_an_event():
    assert slowly([b"data\n\ndata\ndata\n\ndata:"]) == [b"", b"\n", b""]


def test_an_event_without_end_is_put_together_once():
    # A quadratic way would copy 10^11 bytes here.
    line = b"data: " + b"x" * 93 + b"\n"
    splitter = Events()
    for _ in range(40_000):
        assert splitter.take([line], [0.0]) == ([], [])
    events, _ = splitter.take([b"\n"], [1.0])
    assert [len(event) for event in events] == [40_000 * 94 - 1]
