"""What streams mean, in each dialect: taken piece by piece and all at once."""

import json
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.traffic.answer import ANSWERS, spread

DONE = b"data: [DONE]\n\n"


def chunk(text=None, tokens=None, *, delta=None, finish=None, choices=True):
    message = {"choices": []}
    if choices:
        said = {"text": text} if delta is None else {"delta": delta}
        message["choices"] = [{"index": 0, **said, "finish_reason": finish}]
    if tokens is not None:
        message["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def read(
    *parts, outcome="ok", detail="", status=200, kind="text/event-stream", streamed=True,
    api="completions", keep_text=False,
):  # fmt: skip
    """What is told of a request whose answer came in these parts, one a second from 1 s on.

    The parts are taken one by one, and then all at once, and both must tell the same.
    """
    told = []
    for batches in ([[i] for i in range(len(parts))], [range(len(parts))] if parts else []):
        answer = ANSWERS[api](streamed=streamed, keep_text=keep_text)
        if status is not None:
            answer.head(status, kind)
        for batch in batches:
            answer.take([parts[i] for i in batch], [1.0 + i for i in batch])
        end_s = 1.0 + len(parts)
        said, code, words = answer.settle(outcome, status, detail, end_s)
        times, counts, output_tokens = answer.packed()
        times_s = tuple(array("d", times))
        told.append(
            SimpleNamespace(
                outcome=said,
                status=code,
                detail=words,
                end_s=answer.end_s(outcome, end_s),
                chunk_times_s=times_s,
                chunk_tokens=tuple(array("i", counts)),
                output_tokens=output_tokens,
                prompt_tokens=answer.prompt_tokens,
                ttft_s=times_s[0] - 0.25 if times_s else None,
                text="".join(answer.texts),
            )
        )
    assert told[0] == told[1]
    return told[0]


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
        assert record.prompt_tokens == 9

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
        assert record.prompt_tokens is None

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

    def test_an_error_status_is_reported_in_the_servers_words(self):
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
        assert (record.prompt_tokens, record.output_tokens) == (9, 6)
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


class TestNeverRaises:
    """Whatever a server says, an answer takes it; the process that reads serves others too."""

    @pytest.mark.parametrize("tokens", [-1, 1 << 31, 10**18, 10**30])
    @pytest.mark.parametrize("member", ["completion_tokens", "prompt_tokens"])
    def test_counts_that_cannot_be_are_malformed_and_not_kept(self, tokens, member):
        usage = json.dumps({"prompt_tokens": 1, "completion_tokens": 1, member: tokens})
        part = b'data: {"choices":[{"text":"a"}],"usage":%b}\n\n' % usage.encode()
        record = read(part, part, DONE)
        assert record.outcome == "malformed"
        assert str(tokens) in record.detail
        assert (record.prompt_tokens, record.output_tokens) == (None, len(record.chunk_times_s))
        broken = read(part, part, outcome="disconnected", detail="lost")
        assert (broken.outcome, broken.detail) == ("disconnected", "lost")

    @pytest.mark.parametrize(("most", "outcome"), [(100, "malformed"), (101, "ok")])
    def test_more_tokens_than_a_request_can_have_are_not_believed(self, most, outcome):
        answer = ANSWERS["completions"]()
        answer.most_tokens = most
        answer.head(200, "text/event-stream")
        part = b'data: {"choices":[{"text":"a"}],"usage":{"completion_tokens":101}}\n\n'
        answer.take([part, DONE], [1.0, 2.0])
        assert answer.settle("ok", 200, "", 2.0)[0] == outcome

    @pytest.mark.parametrize("api", ANSWERS)
    @pytest.mark.parametrize("streamed", [True, False])
    def test_json_a_thousand_deep_is_malformed(self, api, streamed):
        deep = b'{"error":' + b"[" * 5000 + b"]" * 5000 + b"}"
        if api == "embeddings" or not streamed:
            assert read(deep, streamed=False, api=api).outcome == "malformed"
        else:
            assert read(b"data: " + deep + b"\n\n", DONE, api=api).outcome == "malformed"
        assert read(deep, status=500, kind="application/json", api=api).outcome == "http_status"

    @pytest.mark.parametrize("api", ANSWERS)
    @given(
        parts=st.lists(
            st.one_of(
                st.binary(max_size=30),
                st.sampled_from(
                    [
                        b"data: ",
                        b"\n\n",
                        DONE,
                        b'{"choices":[]}',
                        b'data: {"choices":[null]}\n\n',
                        b'data: {"error":{"message":["x"],"code":"y"}}\n\n',
                        b'data: {"error":7}\n\n',
                        b'data: {"type":"response.failed","response":null}\n\n',
                        b'data: {"type":"x.delta","delta":{"a":1}}\n\n',
                        b'data: {"token":{"text":"a"},"generated_text":"a","details":{}}\n\n',
                        b'data: {"text":"a","meta_info":{"finish_reason":{"type":"abort"}}}\n\n',
                        b"data: []\n\n",
                        b"data: null\n\n",
                        b'data: "\\ud800"\n\n',
                    ]
                ),
            ),
            max_size=6,
        ),
        streamed=st.booleans(),
        outcome=st.sampled_from(["ok", "disconnected"]),
    )
    def test_bytes_of_any_kind(self, api, parts, streamed, outcome):
        record = read(*parts, api=api, streamed=streamed, outcome=outcome, keep_text=True)
        assert record.outcome in {
            "ok", "http_status", "truncated", "malformed", "empty", "disconnected",
        }  # fmt: skip

    def test_a_huge_answer_that_nobody_asked_for_is_not_kept(self):
        answer = ANSWERS["chat"](streamed=True)
        answer.head(200, "text/html")
        for _ in range(1000):
            answer.take([b"x" * 100_000], [0.0])
        assert len(answer._kept) < 300_000
        assert answer.settle("ok", 200, "", 1.0)[0] == "malformed"


def events(*said, space=b" ", names=()):
    """SSE events of these values, with their names where there are some."""
    raw = []
    for i, one in enumerate(said):
        name = b"event: " + names[i].encode() + b"\n" if names else b""
        raw.append(name + b"data:" + space + json.dumps(one).encode() + b"\n\n")
    return raw


RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
TEXT = {"type": "output_text", "text": "Hello world", "annotations": []}


class TestResponses:
    """The events of OpenAI's responses route, as vLLM and OpenAI send them."""

    def stream(self, *middle, end="response.completed", usage=None, error=None):
        usage = usage or {
            "input_tokens": 11, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 16,
        }  # fmt: skip
        status = end.removeprefix("response.")
        over = {**RESPONSE, "status": status, "usage": usage, "error": error}
        said = [
            {"type": "response.created", "response": {**RESPONSE, "status": "in_progress",
                                                      "usage": None, "error": None}},
            {"type": "response.in_progress", "response": {**RESPONSE, "status": "in_progress"}},
            *middle,
            {"type": end, "response": over},
        ]  # fmt: skip
        said = [{**one, "sequence_number": i} for i, one in enumerate(said)]
        return events(*said, names=[one["type"] for one in said])

    def delta(self, words, kind="output_text"):
        return {"type": f"response.{kind}.delta", "item_id": "msg_1", "output_index": 0,
                "content_index": 0, "delta": words, "logprobs": []}  # fmt: skip

    def test_deltas_are_pieces_and_nothing_else_is(self):
        parts = self.stream(
            {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE},
            {"type": "response.content_part.added", "item_id": "msg_1", "part": TEXT},
            self.delta("Hello"),
            self.delta(" world"),
            {"type": "response.output_text.done", "item_id": "msg_1", "text": "Hello world"},
            {"type": "response.content_part.done", "item_id": "msg_1", "part": TEXT},
            {"type": "response.output_item.done", "item": {**MESSAGE, "content": [TEXT]}},
        )
        record = read(*parts, api="responses", keep_text=True)
        assert record.outcome == "ok"
        assert record.chunk_times_s == (5.0, 6.0)
        assert (record.prompt_tokens, record.output_tokens) == (11, 5)
        assert sum(record.chunk_tokens) == 5
        assert record.text == "Hello world"

    def test_reasoning_and_calls_are_content_but_not_words(self):
        parts = self.stream(
            self.delta("hm", "reasoning_text"),
            self.delta("so", "reasoning_summary_text"),
            self.delta('{"city":', "function_call_arguments"),
            self.delta("Sunny"),
        )
        record = read(*parts, api="responses", keep_text=True)
        assert len(record.chunk_times_s) == 4
        assert record.text == "Sunny"

    def test_an_incomplete_response_has_its_end(self):
        parts = self.stream(self.delta("a"), end="response.incomplete")
        assert read(*parts, api="responses").outcome == "ok"

    def test_a_stream_without_its_last_event_is_truncated(self):
        assert read(*self.stream(self.delta("a"))[:-1], api="responses").outcome == "truncated"

    def test_failures_are_reported_in_the_servers_words(self):
        failed = self.stream(
            end="response.failed",
            error={"code": "server_error", "message": "the engine died"},
        )
        flat = events({"type": "error", "code": "rate", "message": "slow down", "param": None})
        nested = events({"type": "error", "error": {"code": "x", "message": "nested words"}})
        for parts, words in ((failed, "engine died"), (flat, "slow down"), (nested, "nested")):
            record = read(*parts, api="responses")
            assert record.outcome == "http_status"
            assert words in record.detail

    def test_a_whole_response_is_read_with_its_words(self):
        body = {
            **RESPONSE,
            "status": "completed",
            "error": None,
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
                {**MESSAGE, "content": [TEXT]},
                {"type": "function_call", "name": "f", "arguments": "{}"},
            ],
            "usage": {"input_tokens": 11, "output_tokens": 5, "total_tokens": 16},
        }
        record = read(json.dumps(body).encode(), api="responses", streamed=False, keep_text=True)
        assert (record.outcome, record.output_tokens, record.prompt_tokens) == ("ok", 5, 11)
        assert record.text == "Hello world"


class TestTgi:
    """TGI 2 and 3: `data:` without a space, details with the last token."""

    def token(self, index, text, *, special=False, over=None, details=None):
        return {
            "index": index,
            "token": {"id": 100 + index, "text": text, "logprob": -0.5, "special": special},
            "generated_text": over,
            "details": details,
        }

    def test_every_event_is_a_token_and_the_last_one_says_how_many(self):
        details = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None,
                   "input_length": 7}  # fmt: skip
        parts = events(
            self.token(1, " Hello"),
            self.token(2, " world"),
            self.token(3, "</s>", special=True, over=" Hello world", details=details),
            space=b"",
        )
        record = read(*parts, api="token_events", keep_text=True)
        assert (record.outcome, record.output_tokens, record.prompt_tokens) == ("ok", 3, 7)
        assert record.chunk_times_s == (1.0, 2.0, 3.0)
        assert record.chunk_tokens == ()
        assert record.text == " Hello world"

    def test_a_stream_without_the_whole_text_is_truncated(self):
        assert (
            read(*events(self.token(1, "a"), space=b""), api="token_events").outcome == "truncated"
        )

    def test_an_error_in_the_stream_is_a_failure(self):
        said = {"error": "Request failed during generation: oom", "error_type": "generation"}
        record = read(*events(self.token(1, "a"), said, space=b""), api="token_events")
        assert record.outcome == "http_status"
        assert "oom" in record.detail

    @pytest.mark.parametrize("listed", [False, True])
    def test_a_whole_answer_comes_by_itself_or_in_a_list(self, listed):
        body = {
            "generated_text": " Hello",
            "details": {"finish_reason": "length", "generated_tokens": 2, "seed": None,
                        "prefill": [{"id": 1, "text": "a", "logprob": None}], "tokens": []},
        }  # fmt: skip
        raw = json.dumps([body] if listed else body).encode()
        record = read(raw, api="token_events", streamed=False, keep_text=True)
        assert (record.outcome, record.output_tokens, record.prompt_tokens) == ("ok", 2, 1)
        assert record.text == " Hello"

    def test_refusals_have_their_words(self):
        body = b'{"error":"Input validation error: too long","error_type":"validation"}'
        record = read(body, api="token_events", status=422, kind="application/json")
        assert (record.outcome, record.status) == ("http_status", 422)
        assert "too long" in record.detail


class TestSglang:
    """SGLang 0.4 and 0.5: each event has all the text so far, or only what is new."""

    def event(self, text, tokens, reason=None):
        return {
            "text": text,
            "output_ids": list(range(tokens)),
            "meta_info": {"id": "a1", "finish_reason": reason, "prompt_tokens": 9,
                          "completion_tokens": tokens, "cached_tokens": 0, "e2e_latency": 0.1},
        }  # fmt: skip

    @pytest.mark.parametrize("texts", [("Hel", "Hello", "Hello you"), ("Hel", "lo", " you")])
    def test_counts_are_running_ones(self, texts):
        first, second, third = texts
        parts = events(
            self.event(first, 1),
            self.event(second, 3),
            self.event(third, 4, {"type": "length", "length": 4}),
        )
        record = read(*parts, DONE, api="grown_texts", keep_text=True)
        assert (record.outcome, record.output_tokens, record.prompt_tokens) == ("ok", 4, 9)
        assert record.chunk_tokens == (1, 2, 1)
        assert record.text == "Hello you"

    def test_a_last_event_without_a_new_token_is_no_piece(self):
        parts = events(self.event("a", 1), self.event("a", 1, {"type": "stop", "matched": 2}))
        assert read(*parts, DONE, api="grown_texts").chunk_times_s == (1.0,)

    def test_an_aborted_request_has_failed(self):
        reason = {"type": "abort", "message": "out of memory", "status_code": 503}
        record = read(
            *events(self.event("a", 1), self.event("a", 1, reason)), DONE, api="grown_texts"
        )
        assert (record.outcome, record.status) == ("http_status", 503)
        assert "out of memory" in record.detail

    def test_an_error_in_the_stream_is_a_failure(self):
        said = {"error": {"message": "The input (9 tokens) is longer"}}
        assert "longer" in read(*events(said), DONE, api="grown_texts").detail

    def test_a_whole_answer_is_read(self):
        body = json.dumps(self.event("Hello", 4, {"type": "length", "length": 4})).encode()
        record = read(body, api="grown_texts", streamed=False, keep_text=True)
        assert (record.outcome, record.output_tokens, record.text) == ("ok", 4, "Hello")

    def test_a_stream_without_an_end_is_truncated(self):
        assert read(*events(self.event("a", 1)), api="grown_texts").outcome == "truncated"


class TestEmbeddings:
    def test_vectors_are_an_answer_without_tokens(self):
        body = {
            "object": "list", "model": "m",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
            "usage": {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0},
        }  # fmt: skip
        record = read(json.dumps(body).encode(), api="embeddings", kind="application/json")
        assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("ok", 4, 0)
        assert record.chunk_times_s == ()

    def test_no_vector_is_empty_and_an_error_a_failure(self):
        assert read(b'{"data": []}', api="embeddings").outcome == "empty"
        said = b'{"object": "error", "message": "no such model", "code": 404}'
        record = read(said, api="embeddings")
        assert (record.outcome, record.status) == ("http_status", 404)
        assert "no such model" in record.detail


class TestWords:
    def test_a_conversation_carries_on_the_text_and_not_the_reasoning(self):
        parts = [
            chunk(delta={"role": "assistant", "content": ""}, tokens=0),
            chunk(delta={"reasoning_content": "hm"}, tokens=1),
            chunk(delta={"content": "Good "}, tokens=2),
            chunk(delta={"content": "day"}, tokens=3, finish="stop"),
        ]
        assert read(*parts, DONE, keep_text=True).text == "Good day"
        assert read(*parts, DONE).text == ""
