import json

import msgspec
import pytest
from servetune.loadgen.connection import Exchange
from servetune.loadgen.openai_api import Answer, payload, spread

from servetune.errors import InputError
from servetune.loadgen.target import Target
from servetune.workload.lengths import Fixed
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.workload import Workload

REQUEST = Request(index=3, due_s=0.0, input_tokens=4, output_tokens=6)
TARGET = Target(base_url="http://127.0.0.1:8000", model="m")
WORKLOAD = Workload(lengths=Fixed(4, 6), request_count=1)
IDS = Prompt(token_ids=(5, 6, 7, 8), token_count=4, exact=True)
WORDS = Prompt(text="tell me more", token_count=4, exact=False)


def chunk(text=None, tokens=None, *, delta=None, finish=None, choices=True):
    message = {"choices": []}
    if choices:
        said = {"text": text} if delta is None else {"delta": delta}
        message["choices"] = [{"index": 0, **said, "finish_reason": finish}]
    if tokens is not None:
        message["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def read(*parts, outcome="ok", detail="", status=200, kind="text/event-stream", streamed=True):
    """The record of a request whose answer came in these parts, one a second from 1 s on."""
    answer = Answer(streamed=streamed)
    if status is not None:
        answer.head(status, kind)
    for i, part in enumerate(parts):
        answer.body(part, 1.0 + i)
    exchange = Exchange(
        outcome=outcome, sent_s=0.5, end_s=1.0 + len(parts), status=status, detail=detail
    )
    return answer.record(REQUEST, exchange, due_s=0.25, start_s=0.0, input_tokens=4)


DONE = b"data: [DONE]\n\n"


def body_of(target=TARGET, workload=WORKLOAD, prompt=IDS):
    head, _, body = payload(target, workload, REQUEST, prompt).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return head.decode(), json.loads(body)


class TestWhatIsSent:
    def test_a_prompt_of_ids_goes_to_completions_as_ids(self):
        head, body = body_of()
        assert head.startswith("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
        assert body["prompt"] == [5, 6, 7, 8]
        assert body["max_tokens"] == 6
        assert body["ignore_eos"] is True
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert "min_tokens" not in body

    def test_words_go_to_chat_as_a_message(self):
        target = msgspec.structs.replace(TARGET, api="chat", send_min_tokens=True)
        head, body = body_of(target, prompt=WORDS)
        assert head.startswith("POST /v1/chat/completions ")
        assert body["messages"] == [{"role": "user", "content": "tell me more"}]
        assert body["min_tokens"] == 6

    def test_the_workload_names_the_route_unless_the_target_does(self):
        chat = msgspec.structs.replace(WORKLOAD, api="chat")
        assert "/v1/chat/completions" in body_of(workload=chat, prompt=WORDS)[0]
        with pytest.raises(InputError, match="unknown API 'rest'"):
            body_of(workload=msgspec.structs.replace(WORKLOAD, api="rest"))

    def test_ids_do_not_go_to_chat(self):
        with pytest.raises(InputError, match="takes words"):
            body_of(msgspec.structs.replace(TARGET, api="chat"))

    def test_extra_members_are_put_over_the_rest_and_null_takes_one_out(self):
        workload = msgspec.structs.replace(WORKLOAD, extra_body='{"top_k": 1, "temperature": 1}')
        target = msgspec.structs.replace(
            TARGET, extra_body='{"stream_options": null, "temperature": 0.5}'
        )
        body = body_of(target, workload)[1]
        assert (body["top_k"], body["temperature"]) == (1, 0.5)
        assert "stream_options" not in body

    def test_extra_members_that_are_no_object_are_refused(self):
        with pytest.raises(InputError, match="extra_body is not a JSON object"):
            body_of(msgspec.structs.replace(TARGET, extra_body="[1]"))

    def test_without_streaming_no_stream_options_are_sent(self):
        body = body_of(msgspec.structs.replace(TARGET, stream=False))[1]
        assert body["stream"] is False
        assert "stream_options" not in body

    def test_the_key_is_read_from_the_environment_and_never_shown(self, monkeypatch):
        target = msgspec.structs.replace(TARGET, api_key_env="A_KEY")
        monkeypatch.setenv("A_KEY", "not-for-print")
        assert "Authorization: Bearer not-for-print" in body_of(target)[0]
        assert "not-for-print" not in repr(target) + msgspec.json.encode(target).decode()
        monkeypatch.delenv("A_KEY")
        with pytest.raises(InputError, match="A_KEY holds no usable API key"):
            body_of(target)

    def test_a_key_cannot_smuggle_in_another_header(self, monkeypatch):
        monkeypatch.setenv("A_KEY", "x\r\nX-Other: y")
        with pytest.raises(InputError, match="no usable API key"):
            body_of(msgspec.structs.replace(TARGET, api_key_env="A_KEY"))


class TestFirstToken:
    def test_an_empty_role_chunk_is_not_the_first_token(self):
        record = read(
            chunk(delta={"role": "assistant", "content": ""}, tokens=0),
            chunk(delta={"content": "a"}, tokens=1),
            chunk(delta={"content": "b"}, tokens=2, finish="stop"),
            DONE,
        )
        assert record.outcome == "ok"
        assert record.chunk_times_s == (2.0, 3.0)
        assert record.ttft_s == 2.0 - 0.25

    @pytest.mark.parametrize(
        "delta",
        [
            {"reasoning_content": "hm"},
            {"reasoning": "hm"},
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
            {"refusal": "no"},
            {"content": [{"type": "text", "text": "a"}]},
        ],
    )
    def test_reasoning_and_tool_calls_are_content(self, delta):
        record = read(chunk(delta=delta, tokens=1), chunk(delta={}, finish="stop"), DONE)
        assert record.chunk_times_s == (1.0,)
        assert record.output_tokens == 1


class TestTokensOfPieces:
    def test_running_usage_gives_each_piece_its_tokens(self):
        record = read(chunk("abc", 3), chunk("d", 4), chunk("ef", 6, finish="length"), DONE)
        assert record.chunk_tokens == (3, 1, 2)
        assert record.output_tokens == 6
        assert record.input_tokens == 9

    def test_tokens_of_held_back_text_belong_to_the_next_piece(self):
        record = read(chunk("a", 1), chunk("", 2), chunk("", 3), chunk("é", 4), DONE)
        assert record.chunk_times_s == (1.0, 4.0)
        assert record.chunk_tokens == (1, 3)

    def test_an_unprinted_last_token_belongs_to_the_last_piece(self):
        record = read(
            chunk("a", 1), chunk("b", 2), chunk("", 3, finish="stop"), chunk(tokens=3), DONE
        )
        assert record.chunk_tokens == (1, 2)
        assert record.output_tokens == 3

    def test_text_without_a_new_token_is_part_of_the_piece_before(self):
        record = read(chunk("a", 1), chunk("b", 1), chunk("c", 2), DONE)
        assert record.chunk_times_s == (1.0, 3.0)
        assert record.output_tokens == 2

    def test_usage_at_the_end_is_spread_over_the_pieces(self):
        pieces = [chunk(text) for text in "abcd"]
        last = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":10}}\n\n'
        record = read(*pieces, last, DONE)
        assert record.chunk_tokens == (2, 3, 2, 3)
        assert record.output_tokens == 10

    def test_fewer_tokens_than_pieces_leave_no_piece_without_a_token(self):
        last = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
        record = read(*[chunk(text) for text in "abcd"], last, DONE)
        assert record.chunk_times_s == (1.0, 3.0)
        assert record.output_tokens == 2

    def test_without_usage_every_piece_is_a_token(self):
        record = read(chunk("a"), chunk("b"), chunk("c", finish="stop"))
        assert (record.output_tokens, record.chunk_tokens) == (3, ())
        assert record.input_tokens == 4

    def test_null_usage_is_no_usage(self):
        part = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
        assert read(part, part, DONE).output_tokens == 2

    def test_tokens_without_any_text_are_told_but_not_timed(self):
        record = read(chunk("", 1), chunk("", 2, finish="length"), DONE)
        assert record.outcome == "ok"
        assert record.output_tokens == 2
        assert record.ttft_s is None
        assert record.detail == "none of the tokens carried text"

    @pytest.mark.parametrize(("tokens", "pieces"), [(1, 1), (7, 3), (3, 7), (200, 177), (5, 5)])
    def test_spreading_keeps_the_sum_and_starts_with_a_token(self, tokens, pieces):
        counts = spread(tokens, pieces)
        assert len(counts) == pieces
        assert sum(counts) == tokens
        assert counts[0] >= 1
        assert max(counts) - min(counts) <= 1

    def test_events_of_one_read_share_its_time(self):
        record = read(chunk("a", 1) + chunk("b", 2) + chunk("c", 3, finish="stop") + DONE)
        assert record.chunk_times_s == (1.0, 1.0, 1.0)


class TestHowItEnded:
    def test_a_stream_without_its_end_is_truncated_though_tokens_came(self):
        record = read(chunk("a", 1), chunk("b", 2))
        assert record.outcome == "truncated"
        assert record.output_tokens == 2
        assert record.detail == "the stream ended unmarked after 2 pieces of content"

    def test_a_finish_reason_and_a_clean_end_are_enough(self):
        assert read(chunk("a"), chunk("", finish="stop")).outcome == "ok"

    def test_a_last_usage_and_a_clean_end_are_enough(self):
        assert read(chunk("a", 1), chunk(choices=False, tokens=1)).outcome == "ok"

    def test_a_lost_connection_after_a_finish_reason_is_a_lost_connection(self):
        record = read(chunk("a", finish="stop"), outcome="disconnected", detail="lost")
        assert (record.outcome, record.detail) == ("disconnected", "lost")

    def test_done_is_the_end_whatever_the_connection_does_then(self):
        record = read(chunk("a"), DONE, b": late\n\n", outcome="disconnected")
        assert record.outcome == "ok"
        assert record.end_s == 2.0

    def test_done_without_a_blank_line_is_the_end(self):
        assert read(chunk("a"), b"data: [DONE]").outcome == "ok"

    def test_an_error_in_the_stream_is_a_failure_with_its_words_and_code(self):
        error = b'data: {"error": {"message": "out of\\nblocks", "code": 503}}\n\n'
        record = read(chunk("a", 1), error, DONE)
        assert (record.outcome, record.status) == ("http_status", 503)
        assert record.detail == "error in the stream: out of blocks"

    def test_an_error_of_older_servers_is_one_too(self):
        record = read(b'data: {"object": "error", "message": "no", "code": 400}\n\n', DONE)
        assert (record.outcome, record.status) == ("http_status", 400)

    @pytest.mark.parametrize("data", [b"{", b'{"choices": 3}', b'{"choices": [{"text": 1}]}', b"x"])
    def test_what_is_no_chunk_is_malformed(self, data):
        record = read(chunk("a", 1), b"data: " + data + b"\n\n", chunk("b", 2), DONE)
        assert record.outcome == "malformed"
        assert record.output_tokens == 1

    def test_bytes_that_are_no_text_are_malformed(self):
        assert read(b'data: {"choices":[{"text":"\xff"}]}\n\n', DONE).outcome == "malformed"

    def test_a_whole_answer_in_place_of_a_stream_is_malformed(self):
        record = read(b"{}", kind="application/json")
        assert record.outcome == "malformed"
        assert "application/json" in record.detail

    def test_a_finished_answer_without_a_token_is_empty(self):
        assert read(chunk("", 0, finish="stop"), DONE).outcome == "empty"
        assert read(DONE).outcome == "empty"

    def test_an_error_status_is_told_in_the_servers_words(self):
        body = json.dumps({"error": {"message": "m is\n not served", "code": 404}}).encode()
        record = read(body[:7], body[7:], status=404, kind="application/json")
        assert (record.outcome, record.status) == ("http_status", 404)
        assert record.detail == "m is not served"

    def test_a_long_error_page_is_cut_to_an_excerpt(self):
        record = read(b"<html>" + b"x" * 10_000, status=502, kind="text/html")
        assert len(record.detail) == 300
        assert record.detail.startswith("<html>xx")

    def test_an_exchange_that_failed_before_any_answer_keeps_its_reason(self):
        record = read(status=None, outcome="refused", detail="nobody there")
        assert (record.outcome, record.status, record.detail) == ("refused", None, "nobody there")


class TestWholeAnswers:
    def test_a_whole_answer_has_tokens_but_no_times(self):
        body = b'{"choices":[{"text":"abc"}],"usage":{"prompt_tokens":9,"completion_tokens":6}}'
        record = read(body[:20], body[20:], streamed=False, kind="application/json")
        assert record.outcome == "ok"
        assert (record.input_tokens, record.output_tokens) == (9, 6)
        assert record.chunk_times_s == ()
        assert record.ttft_s is None

    def test_a_whole_chat_answer_is_read_too(self):
        body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"completion_tokens":2}}'
        assert read(body, streamed=False).output_tokens == 2

    def test_half_a_whole_answer_is_malformed_and_an_empty_one_empty(self):
        assert read(b'{"choices": [', streamed=False).outcome == "malformed"
        assert read(b'{"choices":[{"text":""}]}', streamed=False).outcome == "empty"
        error = b'{"error": {"message": "no"}}'
        assert read(error, streamed=False).outcome == "http_status"
