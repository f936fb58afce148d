"""Servers that send without end: the request fails with its reason, soon, and little is kept."""

import json

import pytest

from servetune.traffic import answer as answers
from servetune.traffic.answer import ANSWERS, LARGEST_BODY_BYTES
from servetune.traffic.http import LARGEST_HEAD_BYTES
from servetune.traffic.sagemaker_answer import SageMakerAnswer, frame_of
from servetune.traffic.sse import LONGEST_EVENT_BYTES, Events

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BLOCK = b"x" * 100_000
POURED_BYTES = 200_000_000
BUFFERS_BYTES = 20_000_000
"""Bytes that are on their way when the client hangs up: buffers of both kernels."""


class Pour:
    """A step that sends a block again and again, until nobody listens or it was enough."""

    def __init__(self, block, *, chunked=False):
        self.block = b"%x\r\n%b\r\n" % (len(block), block) if chunked else block
        self.sent_bytes = 0

    def __call__(self, sock):
        many = self.block * max(1, 100_000 // len(self.block))
        while self.sent_bytes < POURED_BYTES:
            sock.sendall(many)
            self.sent_bytes += len(many)


def event(text):
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def asked(scripted, client, *steps, streamed=True, tls=None, **options):
    """Outcome, status and detail of a request that is answered so."""
    server = scripted([steps], [[b""]], tls=tls)
    answer = ANSWERS["completions"](streamed=streamed)
    call, _ = client(server.port, **options).ask(answer=answer, timeout_s=20)
    return answer.settle(call.outcome, call.status, call.detail, call.end_s)


@pytest.mark.parametrize(
    ("head", "pour", "most_bytes", "words"),
    [
        (STREAM + CHUNKED, Pour(BLOCK, chunked=True), LONGEST_EVENT_BYTES, "an event of more"),
        (STREAM + b"\r\n", Pour(BLOCK), LONGEST_EVENT_BYTES, "an event of more than 16 MiB"),
        (STREAM + CHUNKED + b"ffffffffffff\r\n", Pour(BLOCK), 0, "a chunk of more than 16 MiB"),
        (STREAM + b"X: ", Pour(BLOCK), LARGEST_HEAD_BYTES, "a head without end"),
        (STREAM, Pour(b"X: y\r\n"), LARGEST_HEAD_BYTES, "a head without end"),
        (b"", Pour(b"HTTP/1.1 100 Continue\r\n\r\n"), LARGEST_HEAD_BYTES, "interim answers"),
        (OK + b"Content-Type: text/html\r\n\r\n", Pour(BLOCK), 0, "was sent text/html"),
    ],
)
def test_a_stream_without_end_is_cut_with_its_reason(
    scripted, client, head, pour, most_bytes, words
):
    outcome, _, detail = asked(scripted, client, head, pour)
    assert (outcome, words in detail) == ("malformed", True), detail
    assert pour.sent_bytes < most_bytes + BUFFERS_BYTES


def test_a_whole_answer_without_end_is_cut(scripted, client):
    pour = Pour(BLOCK)
    head = OK + b"Content-Type: application/json\r\nContent-Length: 999999999999\r\n\r\n"
    outcome, _, detail = asked(scripted, client, head, pour, streamed=False)
    assert (outcome, detail) == ("malformed", "a body of more than 64 MiB")
    assert pour.sent_bytes < LARGEST_BODY_BYTES + BUFFERS_BYTES


def test_an_error_without_end_is_told_by_its_beginning(scripted, client):
    pour = Pour(b"it is broken ")
    head = b"HTTP/1.1 500 No\r\n\r\n"
    outcome, status, detail = asked(scripted, client, head, pour)
    assert (outcome, status) == ("http_status", 500)
    assert detail.startswith("it is broken")
    assert pour.sent_bytes < BUFFERS_BYTES


def test_tls_is_cut_alike(scripted, client, certificate):
    cafile, context = certificate
    pour = Pour(BLOCK)
    how = {"tls": context, "scheme": "https", "cafile": cafile}
    outcome, _, detail = asked(scripted, client, STREAM + b"\r\n", pour, **how)
    assert (outcome, detail) == ("malformed", "an event of more than 16 MiB")
    assert pour.sent_bytes < LONGEST_EVENT_BYTES + BUFFERS_BYTES


def test_a_server_that_is_faster_than_the_client_over_tls_is_still_timed_out(
    scripted, client, certificate
):
    cafile, context = certificate
    server = scripted([[STREAM + b"\r\n", Pour(b": nothing\n\n")]], tls=context)
    asker = client(server.port, scheme="https", cafile=cafile)
    call, _ = asker.ask(answer=ANSWERS["completions"](), timeout_s=0.2)
    assert call.outcome == "timeout"


@pytest.mark.parametrize(
    "length", [b"9" * 5000, b"1" * 16, "\u0663".encode()], ids=["5000 digits", "16", "arabic"]
)
def test_a_length_that_no_body_has_is_malformed(scripted, client, length):
    head = OK + b"Content-Length: " + length + b"\r\n\r\n"
    outcome, _, detail = asked(scripted, client, head)
    assert (outcome, detail.startswith("not HTTP: no length")) == ("malformed", True)
    assert len(detail) < 300


def test_a_chunk_whose_length_is_thousands_of_digits_is_malformed(scripted, client):
    outcome, _, detail = asked(
        scripted, client, STREAM + CHUNKED + b"f" * 4000 + b"\r\n", b"x" * 5000
    )
    assert (outcome, "a chunk of more than 16 MiB" in detail) == ("malformed", True)


def test_more_pieces_than_any_answer_has_are_cut(scripted, client, monkeypatch):
    monkeypatch.setattr(answers, "MOST_PIECES", 1000)
    pour = Pour(event("a"), chunked=True)
    outcome, _, detail = asked(scripted, client, STREAM + CHUNKED, pour)
    assert (outcome, detail) == ("malformed", "more than 1,000 pieces of content")
    assert pour.sent_bytes < BUFFERS_BYTES


def test_more_text_than_any_answer_has_is_cut(scripted, client, monkeypatch):
    monkeypatch.setattr(answers, "MOST_CHARACTERS", 1_000_000)
    pour = Pour(event("a" * 50_000), chunked=True)
    outcome, _, detail = asked(scripted, client, STREAM + CHUNKED, pour)
    assert (outcome, detail) == ("malformed", "more than 1,000,000 characters of text")


def test_what_came_before_the_flood_is_kept(scripted, client):
    server = scripted([[STREAM + b"\r\n" + event("a") + event("b"), Pour(BLOCK)]])
    answer = ANSWERS["completions"]()
    client(server.port).ask(answer=answer)
    assert answer.characters == 2


def test_a_long_content_type_is_an_excerpt():
    answer = ANSWERS["chat"]()
    answer.head(200, "text/" + "x" * 60_000)
    assert len(answer.settle("ok", 200, "", 1.0)[2]) < 400


def test_an_event_of_tiny_pieces_takes_no_more_than_its_bytes():
    events = Events()
    events.take([b"data: "], [0.0])
    for _ in range(100_000):
        events.take([b"ab"], [0.0])
    assert events._more.__sizeof__() < 400_000


def test_frames_with_ever_new_headers_are_not_remembered():
    answer = SageMakerAnswer(ANSWERS["completions"]())
    answer.head(200, "application/vnd.amazon.eventstream")
    for number in range(1000):
        frame = frame_of(event("a"), event_type="PayloadPart", x=str(number))
        assert answer.take([frame], [0.0]) == ""
    assert answer.characters == 1000
    assert len(answer._frames._kinds) < 100


def test_a_frame_in_tiny_pieces_is_read_whole():
    answer = SageMakerAnswer(ANSWERS["completions"]())
    answer.head(200, "application/vnd.amazon.eventstream")
    frame = frame_of(event("a" * 20_000), event_type="PayloadPart")
    for at in range(0, len(frame), 2):
        answer.take([frame[at : at + 2]], [0.0])
        assert len(answer._frames._more) <= 4097
    assert answer.characters == 20_000
