import itertools
from bisect import bisect_left

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servetune.traffic.http import Chunked, Malformed, Sized, UntilClosed, body_of, read_head

CHUNKS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=20),
        st.sampled_from([b"\r\n", b"a\r\nb", b"5\r\nhello\r\n", b"0\r\n\r\n", b"data: x\n\n"]),
    ),
    max_size=12,
)
ENDS = st.sampled_from([b"\r\n", b"X-Took: 3\r\n\r\n", b"A: b\r\nC: d\r\n\r\n"])


def framed(chunks, end=b"\r\n", *, extension=b"", zeros=b""):
    """The chunks on the wire, and the offset behind each."""
    raw, ends = b"", []
    for chunk in chunks:
        raw += zeros + b"%x" % len(chunk) + extension + b"\r\n" + chunk + b"\r\n"
        ends.append(len(raw))
    return raw + b"0" + extension + b"\r\n" + end, ends


def cut(raw, places):
    bounds = [0, *sorted(min(place, len(raw)) for place in places), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(bounds) if b > a]


def fed(body, parts, batches=()):
    """What a body gives for these reads, one a second, handed over in these batches."""
    times_s = [float(i) for i in range(len(parts))]
    bounds = [0, *sorted(min(place, len(parts)) for place in batches), len(parts)]
    pieces, came_s = [], []
    for a, b in itertools.pairwise(bounds):
        if b > a:
            some, some_s = body.feed(parts[a:b], times_s[a:b])
            pieces += some
            came_s += some_s
    return pieces, came_s


PLACES = st.lists(st.integers(0, 400), max_size=30)


def parsed(way):
    """What a way of reading gives, or how it fails."""
    try:
        return way()
    except Malformed as error:
        return str(error), error.before


class TestChunked:
    @given(
        chunks=CHUNKS, end=ENDS, places=PLACES, batches=st.lists(st.integers(0, 30), max_size=8),
        extension=st.sampled_from([b"", b"", b";a=b", b' ;q="x"']),
        zeros=st.sampled_from([b"", b"", b"000", b"0" * 20]),
    )  # fmt: skip
    def test_any_cut_gives_the_same_pieces_and_the_time_of_their_last_byte(
        self, chunks, end, places, batches, extension, zeros
    ):
        raw, ends = framed(chunks, end, extension=extension, zeros=zeros)
        parts = cut(raw, places)
        body = Chunked()
        pieces, came_s = fed(body, parts, batches)
        part_ends = list(itertools.accumulate(map(len, parts)))
        assert pieces == chunks
        assert came_s == [float(bisect_left(part_ends, offset)) for offset in ends]
        assert body.ended_s == len(parts) - 1
        assert not body.overrun
        assert body.close(99.0)

    @given(chunks=CHUNKS, places=PLACES)
    def test_the_quick_way_and_the_slow_way_agree(self, chunks, places):
        raw, _ = framed(chunks)
        parts = cut(raw, places)
        times_s = [float(i) for i in range(len(parts))]
        quick, slow = Chunked(), Chunked()
        assert quick.feed(parts, times_s) == slow._feed_slowly(raw, parts, times_s)
        assert (quick.ended_s, quick.overrun) == (slow.ended_s, slow.overrun)

    @given(raw=st.binary(max_size=60) | st.from_regex(rb"([0-9a-f+x_ -]{0,3}\r\n.{0,4}\r\n){0,4}"))
    @example(raw=b"\r\n")
    def test_whatever_comes_the_two_ways_agree(self, raw):
        quick, slow = Chunked(), Chunked()
        assert parsed(lambda: quick.feed([raw], [1.0])) == parsed(
            lambda: slow._feed_slowly(raw, [raw], [1.0])
        )

    @given(
        chunks=st.lists(st.binary(min_size=1, max_size=40) | st.just(b"x" * 1500), min_size=1),
        broken=st.sampled_from([b"", b"2\r\nabc\r\n", b"3\r\nab\r\n", b"A\r\n0123456789\r\n",
                                b"03\r\nabc\r\n", b"3\r\nabcd\n", b"3;\r\nab\r\n"]),
        place=st.integers(0, 40),
    )  # fmt: skip
    def test_so_they_do_where_each_chunk_comes_by_itself(self, chunks, broken, place):
        parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
        if broken:
            parts.insert(place, broken)
        times_s = [float(i) for i in range(len(parts))]

        quick, slow = Chunked(), Chunked()
        assert parsed(lambda: quick.feed(parts, times_s)) == parsed(
            lambda: slow._feed_slowly(b"".join(parts), parts, times_s)
        )
        assert (quick._left, quick.ended_s) == (slow._left, slow.ended_s)

    @pytest.mark.parametrize("behind", [b"x", b"HTTP/1.1 200 OK\r\n\r\n", b"1\r\na\r\n"])
    def test_bytes_behind_the_end_are_noticed(self, behind):
        raw, _ = framed([b"one"])
        for parts in ([raw + behind], [raw, behind]):
            body = Chunked()
            assert fed(body, parts)[0] == [b"one"]
            assert body.overrun

    def test_a_body_that_breaks_off_is_not_whole(self):
        raw, _ = framed([b"one", b"two"])
        for length in range(len(raw)):
            body = Chunked()
            fed(body, [raw[:length]] if length else [])
            assert not body.close(1.0)

    @pytest.mark.parametrize(
        "bad", [b"zz\r\na\r\n", b"\r\n\r\n", b"-1\r\na\r\n", b"0x1\r\na\r\n", b"1_0\r\na\r\n",
                b"2\r\nabc\r\n", b"+3\r\nabc\r\n", b" 3\r\nabc\r\n", b"3x\r\nabc\r\n", b"y" * 5000]
    )  # fmt: skip
    def test_a_bad_length_is_malformed_and_what_came_before_it_is_not_lost(self, bad):
        raw, ends = framed([b"one", b"two"])
        good = raw[: ends[-1]]
        with pytest.raises(Malformed) as raised:
            Chunked().feed([good, bad], [1.0, 2.0])
        assert raised.value.before == ([b"one", b"two"], [1.0, 1.0])

    def test_a_huge_chunk_in_small_reads_is_put_together_once(self):
        # A quadratic way would copy 10^11 bytes here.
        chunk = b"x" * 4_000_000
        raw, _ = framed([b"first", chunk, b"last"])
        body = Chunked()
        pieces, came_s = [], []
        for i, at in enumerate(range(0, len(raw), 100)):
            some, times_s = body.feed([raw[at : at + 100]], [float(i)])
            pieces += some
            came_s += times_s
        assert pieces == [b"first", chunk, b"last"]
        assert came_s[1] == (len(raw) - 5 - 9 - 1) // 100
        assert body.ended_s == (len(raw) - 1) // 100

    def test_trailers_without_end_are_malformed(self):
        body = Chunked()
        assert body.feed([b"0\r\n" + b"X: y\r\n" * 300], [0.0]) == ([], [])
        with pytest.raises(Malformed, match="trailers"):
            body.feed([b"X: y\r\n" * 30_000], [0.0])


class TestSized:
    @given(content=st.binary(min_size=1, max_size=60), places=PLACES)
    def test_it_ends_with_its_last_byte(self, content, places):
        parts = cut(content, places)
        body = Sized(len(content))
        pieces, came_s = fed(body, parts)
        assert b"".join(pieces) == content
        assert body.ended_s == came_s[-1] == len(parts) - 1
        assert not body.overrun
        assert body.close(9.0)

    @given(content=st.binary(max_size=20), behind=st.binary(min_size=1, max_size=9), places=PLACES)
    def test_what_is_behind_is_none_of_it(self, content, behind, places):
        body = Sized(len(content))
        parts = cut(content + behind, places)
        pieces, _ = body.feed(parts, [float(i) for i in range(len(parts))])
        assert b"".join(pieces) == content
        assert body.overrun

    def test_a_part_of_it_is_not_whole(self):
        body = Sized(5)
        body.feed([b"four"], [0.0])
        assert not body.close(1.0)
        assert body.ended_s is None


def test_a_body_without_a_length_ends_when_the_connection_does():
    body = UntilClosed()
    assert body.feed([b"a", b"b"], [0.0, 1.0]) == ([b"a", b"b"], [0.0, 1.0])
    assert body.ended_s is None
    assert body.close(2.0)
    assert body.ended_s == 2.0


class TestHead:
    def test_what_matters_is_read_and_the_rest_passed_over(self):
        head = read_head(
            b"HTTP/1.1 200 OK\r\nServer: x: y\r\nCONTENT-TYPE: Text/Event-Stream; charset=utf-8\r\n"
            b"transfer-encoding: gzip, Chunked\r\nX-Empty:\r\n\r\nrest"
        )
        assert (head.status, head.content_type, head.chunked) == (200, "text/event-stream", True)
        assert head.keep_alive
        assert isinstance(body_of(head), Chunked)

    @pytest.mark.parametrize(
        ("line", "kept"),
        [
            (b"HTTP/1.1 200 OK", True),
            (b"HTTP/1.0 200 OK", False),
            (b"HTTP/1.1 200 OK\r\nConnection: Close", False),
            (b"HTTP/1.1 200 OK\r\nConnection: upgrade, close", False),
            (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True),
            (b"HTTP/1.1 200\r\nConnection: keep-alive", True),
        ],
    )
    def test_whether_the_connection_is_kept(self, line, kept):
        assert read_head(line + b"\r\n\r\n").keep_alive is kept

    def test_it_is_nothing_until_it_is_whole_and_then_says_where_the_body_begins(self):
        raw = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nbye"
        at = raw.index(b"bye")
        assert [read_head(raw[:length]) for length in range(at)] == [None] * at
        assert (read_head(raw).status, read_head(raw).length, read_head(raw).body_at) == (
            404, 3, at,
        )  # fmt: skip

    @pytest.mark.parametrize("status", [204, 304])
    def test_statuses_without_a_body_have_none_whatever_they_say(self, status):
        raw = b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n" % status
        body = body_of(read_head(raw))
        assert body.feed([b""], [1.0]) == ([b""], [1.0])
        assert body.ended_s == 1.0

    @pytest.mark.parametrize(
        "raw",
        [
            b"SSH-2.0-x",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n folded\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        ],
    )
    def test_what_is_no_head_is_malformed(self, raw):
        with pytest.raises(Malformed) as raised:
            read_head(raw)
        assert len(str(raised.value)) < 400
