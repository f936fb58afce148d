import itertools

from hypothesis import given
from hypothesis import strategies as st
from servetune.loadgen.sse import DONE, EventSplitter

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


def events_of(parts: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    found = [event for part in parts for event in splitter.feed(part)]
    return found + splitter.close()


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


def with_line_end(line_end: bytes) -> bytes:
    return STREAM.replace(b"\n", line_end)


@given(
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    places=st.lists(st.integers(0, len(STREAM) * 2), max_size=40),
)
def test_events_are_the_same_wherever_the_bytes_are_cut(line_end, places):
    stream = with_line_end(line_end)
    assert events_of(cut(stream, [min(place, len(stream)) for place in places])) == EVENTS


def test_one_byte_at_a_time_gives_the_same_events_for_every_line_end():
    for line_end in (b"\n", b"\r\n", b"\r"):
        stream = with_line_end(line_end)
        assert events_of([stream[i : i + 1] for i in range(len(stream))]) == EVENTS


@given(
    values=st.lists(
        st.binary(max_size=12).filter(lambda value: b"\n" not in value and b"\r" not in value),
        max_size=6,
    ),
    places=st.lists(st.integers(0, 200), max_size=8),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_whatever_data_is_sent_comes_back(values, places, line_end):
    stream = b"".join(b"data: " + value + line_end * 2 for value in values)
    assert events_of(cut(stream, [min(place, len(stream)) for place in places])) == values


def test_an_event_is_handed_over_with_the_byte_that_ends_it():
    for line_end in (b"\n", b"\r\n", b"\r"):
        splitter = EventSplitter()
        assert splitter.feed(b"data: now" + line_end) == []
        # With CRLF and CR the blank line is known at its CR: nothing waits for what follows.
        assert splitter.feed(line_end[:1]) == [b"now"]


def test_the_last_event_counts_even_without_a_blank_line():
    assert events_of([b"data: one\n\ndata: two"]) == [b"one", b"two"]
    assert events_of([b"data: one\n\ndata: two\n"]) == [b"one", b"two"]


def test_comments_and_fields_without_data_are_no_events():
    assert events_of([b": ping\n\nevent: end\n\n:\n\nid: 3\n\ndatabase: x\n\n"]) == []


def test_a_byte_order_mark_is_passed_over_once():
    assert events_of([b"\xef\xbb", b"\xbfdata: a\n\n"]) == [b"a"]
    assert events_of([b"\xef\xbb\xbfdata: last"]) == [b"last"]


def test_empty_data_is_an_event():
    assert events_of([b"data\n\ndata\ndata\n\ndata:"]) == [b"", b"\n", b""]
