"""Frames of AWS's event stream: cut anywhere, joined anyhow, broken in every byte."""

import itertools
import json

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.traffic.answer import ANSWERS
from servetune.traffic.sagemaker_answer import (
    FRAMED,
    BadFrame,
    EventStream,
    SageMakerAnswer,
    frame_of,
)
from servetune.traffic.sse import DONE


def part(payload):
    return frame_of(
        payload,
        event_type="PayloadPart",
        content_type="application/octet-stream",
        message_type="event",
    )


def fault(name, **said):
    return frame_of(json.dumps(said).encode(), exception_type=name, message_type="exception")


def cut(raw, places):
    edges = sorted({0, len(raw), *(place % (len(raw) + 1) for place in places)})
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def fed(pieces, together=1):
    """Pieces fed so many at a time; the times are their numbers."""
    stream, payloads, times = EventStream(), [], []
    for first in range(0, len(pieces), together):
        some = pieces[first : first + together]
        got, at = stream.take(some, [float(first + i) for i in range(len(some))])
        payloads += got
        times += at
    return stream, payloads, times


def test_botocore_reads_the_frames_that_we_write():
    buffer = EventStreamBuffer()
    buffer.add_data(part(b"one") + fault("ModelStreamError", Message="x", ErrorCode="E"))
    one, two = list(buffer)
    assert one.payload == b"one"
    assert one.headers[":event-type"] == "PayloadPart"
    assert two.headers[":exception-type"] == "ModelStreamError"


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 4000), max_size=12),
    together=st.integers(1, 5),
)
@settings(max_examples=300, deadline=None)
def test_payloads_come_out_whole_wherever_the_bytes_are_cut(payloads, places, together):
    raw = b"".join(map(part, payloads))
    pieces = cut(raw, places)
    stream, got, times = fed(pieces, together)
    assert got == payloads
    assert not stream.is_cut
    # Each came with the piece that had its frame's last byte.
    ends = [sum(len(part(p)) for p in payloads[: i + 1]) for i in range(len(payloads))]
    piece_ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    assert times == [next(i for i, end in enumerate(piece_ends) if end >= e) for e in ends]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 12, 13, 64])
def test_every_offset_is_a_possible_cut(size):
    raw = part(b"a" * 40) + part(b"b" * 3)
    for at in range(1, len(raw)):
        pieces = [raw[:at], raw[at:]]
        pieces = [p[i : i + size] for p in pieces for i in range(0, len(p), size)]
        assert fed(pieces)[1] == [b"a" * 40, b"b" * 3]


def test_a_flipped_bit_anywhere_is_noticed_and_what_came_before_is_kept():
    raw = bytearray(part(b"first") + part(b"second"))
    begin = len(part(b"first"))
    for place in range(begin, len(raw)):
        broken = bytearray(raw)
        broken[place] ^= 0x10
        stream = EventStream()
        with pytest.raises(BadFrame) as caught:
            stream.take([bytes(broken)], [1.0])
        assert caught.value.before == ([b"first"], [1.0])


@given(raw=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_refused_or_waited_for_and_never_anything_else(raw):
    stream = EventStream()
    try:
        got, _ = stream.take([raw], [0.0])
    except BadFrame:
        return
    assert got == []
    assert len(raw) < 16 or stream.is_cut


def test_headers_of_every_type_are_stepped_over():
    import struct
    from zlib import crc32

    odd = b"\x01a\x00" + b"\x01b\x02\x05" + b"\x01c\x08" + b"\0" * 8 + b"\x01d\x06\0\x02xy"
    headers = odd + b"\x0b:event-type\x07\0\x0bPayloadPart"
    prelude = struct.pack("!II", len(headers) + 16 + 2, len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + b"hi"
    assert EventStream().take([message + struct.pack("!I", crc32(message))], [1.0]) == (
        [b"hi"],
        [1.0],
    )


def test_other_events_are_passed_over():
    raw = frame_of(b"{}", event_type="Ping", message_type="event") + part(b"x")
    assert fed([raw])[1] == [b"x"]


# with a dialect inside


def chunk(i, **usage):
    body = {"choices": [{"text": f"t{i} "}], **usage}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def sagemaker(frames, *, status=200, kind=FRAMED, name="", outcome="ok", api="completions"):
    answer = SageMakerAnswer(ANSWERS[api](streamed=True, keep_text=True))
    if name:
        answer.named(name)
    answer.head(status, kind)
    for i, piece in enumerate(frames):
        answer.take([piece], [float(i)])
    return answer, answer.settle(outcome, status, "", 99.0)


@given(
    sse_cuts=st.lists(st.integers(0, 400), max_size=8),
    wire_cuts=st.lists(st.integers(0, 3000), max_size=12),
)
@settings(max_examples=200, deadline=None)
def test_tokens_are_the_same_however_lines_and_frames_are_cut(sse_cuts, wire_cuts):
    sse = b"".join(chunk(i) for i in range(5)) + b"data: " + DONE + b"\n\n"
    raw = b"".join(part(piece) for piece in cut(sse, sse_cuts))
    answer, settled = sagemaker(cut(raw, wire_cuts))
    assert settled == ("ok", 200, "")
    assert "".join(answer.texts) == "t0 t1 t2 t3 t4 "


@pytest.mark.parametrize("at", range(1, 120))
def test_the_first_token_has_the_time_of_the_frame_that_completed_its_line(at):
    first, rest = chunk(0), chunk(1) + b"data: [DONE]\n\n"
    frames = [part(first[:30]), part(first[30:]), part(rest)]
    whole = b"".join(frames)
    done = len(frames[0]) + len(frames[1])
    answer, _ = sagemaker([whole[:at], whole[at:done], whole[done:]])
    assert answer._inner.times_s[0] == 1.0  # never 0.0: half a line is no token


def test_a_failure_in_the_stream_keeps_its_name_and_the_tokens_before_it():
    raw = part(chunk(0)) + fault("ModelStreamError", Message="worker died", ErrorCode="Oops")
    answer, settled = sagemaker([raw])
    assert settled == ("http_status", 200, "ModelStreamError Oops in the stream: worker died")
    assert answer.packed()[2] == 1


def test_the_services_own_limit_is_no_time_out_of_ours_and_no_fault_of_the_model():
    limit = fault("ModelStreamError", Message="late", ErrorCode="ModelInvocationTimeExceeded")
    _, settled = sagemaker([part(chunk(0)) + limit])
    assert settled[0] == "timeout"
    assert settled[2].startswith("InvocationTimeLimit: ModelStreamError in the stream")
    body = json.dumps({"Message": "Your invocation timed out while waiting for a response"})
    _, settled = sagemaker([body.encode()], status=424, kind="application/json", name="ModelError")
    assert settled[:2] == ("timeout", 424)


@pytest.mark.parametrize(
    ("status", "name", "body", "wanted"),
    [
        (400, "ThrottlingException", {"message": "Rate exceeded"}, "ThrottlingException: Rate"),
        (429, "", {"__type": "x#ThrottlingException", "message": "slow"}, "ThrottlingException: s"),
        (400, "ValidationError:http://x/", {"Message": "no endpoint"}, "ValidationError: no end"),
        (
            424,
            "ModelError",
            {"Message": "Received", "OriginalStatusCode": 500, "OriginalMessage": "CUDA OOM"},
            "ModelError: Received (the container, status 500: CUDA OOM)",
        ),
        (503, "", {}, "status 503:"),
    ],
)
def test_refusals_are_reported_by_name(status, name, body, wanted):
    sent = json.dumps(body).encode()
    _, settled = sagemaker([sent], status=status, kind="application/json", name=name)
    assert settled[:2] == ("http_status", status)
    assert settled[2].startswith(wanted)


def test_a_stream_that_breaks_inside_a_frame_is_reported_as_such():
    raw = part(chunk(0)) + part(chunk(1))[:20]
    _, settled = sagemaker([raw])
    assert settled[0] == "truncated"
    assert settled[2].endswith("after 1 piece of content, inside a frame")
    broken = bytearray(part(chunk(0)) + part(chunk(1)))
    broken[-1] ^= 1
    answer, settled = sagemaker([bytes(broken)])
    assert settled[0] == "malformed"
    assert answer.packed()[2] == 1


def test_a_whole_answer_has_no_frames():
    answer = SageMakerAnswer(ANSWERS["completions"](streamed=False))
    answer.head(200, "application/json")
    body = {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    answer.take([json.dumps(body).encode()], [1.0])
    assert answer.settle("ok", 200, "", 1.0) == ("ok", 200, "")
    assert answer.prompt_tokens == 3
