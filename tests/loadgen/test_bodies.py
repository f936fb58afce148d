"""Bodies: what is asked of each route, before the clock starts."""

import json

import msgspec
import pytest

from servetune.errors import InputError
from servetune.loadgen.bodies import head_of, prepared_request
from servetune.loadgen.target import Target
from servetune.workload.apis import APIS
from servetune.workload.headers import header_of
from servetune.workload.lengths import LengthLaws
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.workload import Workload

REQUEST = Request(index=3, due_s=0.0, input_tokens=4, output_tokens=6)
TARGET = Target(base_url="http://127.0.0.1:8000", model="m")
WORKLOAD = Workload.of(LengthLaws.fixed(4, 6), request_count=1)
IDS = Prompt(token_ids=(5, 6, 7, 8), token_count=4, exact=True)
WORDS = Prompt(text="tell me more", token_count=4, exact=False)


def body_of(target=TARGET, workload=WORKLOAD, prompt=IDS, request=REQUEST):
    body = prepared_request(target, workload, request, prompt).body
    return head_of(target, workload).decode(), json.loads(body)


def at(api, **options):
    return msgspec.structs.replace(TARGET, api=api, **options)


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
        with pytest.raises(InputError, match="takes text"):
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
        with pytest.raises(InputError, match="A_KEY holds no usable key"):
            body_of(target)

    def test_a_key_cannot_smuggle_in_another_header(self, monkeypatch):
        monkeypatch.setenv("A_KEY", "x\r\nX-Other: y")
        with pytest.raises(InputError, match="no usable key"):
            body_of(msgspec.structs.replace(TARGET, api_key_env="A_KEY"))


class TestRoutes:
    def test_every_route_has_a_body_for_the_prompts_that_it_takes(self):
        taken = {"completions": (IDS, WORDS), "chat": (WORDS,), "responses": (WORDS,)}
        taken |= {"embeddings": (IDS, WORDS), "tgi": (WORDS,), "sglang": (IDS, WORDS)}
        assert taken.keys() == APIS.keys()
        for api, prompts in taken.items():
            for prompt in prompts:
                head, body = body_of(at(api), prompt=prompt)
                assert head.startswith(f"POST {APIS[api].path} HTTP/1.1\r\n")
                assert body

    def test_responses_ask_for_input_and_output_tokens(self):
        _, body = body_of(at("responses"), prompt=WORDS)
        assert (body["input"], body["max_output_tokens"]) == ("tell me more", 6)
        assert body["stream"] is True
        assert "stream_options" not in body

    def test_tgi_is_greedy_by_not_sampling_and_has_a_route_for_whole_answers(self):
        head, body = body_of(at("tgi"), prompt=WORDS)
        assert head.startswith("POST /generate_stream ")
        assert body["inputs"] == "tell me more"
        assert body["parameters"]["max_new_tokens"] == 6
        assert body["parameters"]["do_sample"] is False
        assert "temperature" not in body["parameters"]
        assert body_of(at("tgi", stream=False), prompt=WORDS)[0].startswith("POST /generate HTTP")
        warm = body_of(at("tgi", temperature=0.5), prompt=WORDS)[1]["parameters"]
        assert (warm["do_sample"], warm["temperature"]) == (True, 0.5)

    def test_sglang_takes_ids_and_words(self):
        assert body_of(at("sglang"))[1]["input_ids"] == [5, 6, 7, 8]
        body = body_of(at("sglang"), prompt=WORDS)[1]
        assert body["text"] == "tell me more"
        assert body["sampling_params"] == {
            "max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True,
        }  # fmt: skip

    def test_embeddings_ask_for_nothing_but_vectors(self):
        _, body = body_of(at("embeddings", stream=False))
        assert body == {"model": "m", "input": [5, 6, 7, 8]}

    def test_routes_that_take_words_refuse_ids_in_one_line(self):
        for api in ("chat", "tgi", "responses"):
            with pytest.raises(InputError):
                body_of(at(api))


class TestConversations:
    def test_messages_stand_first_and_it_is_said_where(self):
        said = ({"role": "system", "content": "be brief"}, {"role": "user", "content": 'é \\ "'})
        prompt = Prompt(messages=said, token_count=4, exact=False)
        ask = prepared_request(at("chat"), WORKLOAD, REQUEST, prompt)
        begin, end = ask.messages_at
        assert json.loads(b"[" + ask.body[begin:end] + b"]") == list(said)
        assert json.loads(ask.body)["messages"] == list(said)

    def test_what_belongs_to_one_request_goes_with_it_and_below_the_targets_wishes(self):
        prompt = Prompt(
            text="x", token_count=1, exact=False, model="adapter-7",
            members='{"tools": [{"type": "function"}], "temperature": 0.3}',
        )  # fmt: skip
        target = at("chat", extra_body='{"temperature": 0.9}')
        _, body = body_of(target, prompt=prompt)
        assert (body["model"], body["temperature"]) == ("adapter-7", 0.9)
        assert body["tools"] == [{"type": "function"}]

    def test_a_turn_that_follows_waits_for_no_time_but_an_answer(self):
        follow = Request(
            index=3, due_s=0.0, input_tokens=4, output_tokens=6, follows=1, think_s=0.5
        )
        ask = prepared_request(at("chat"), WORKLOAD, follow, WORDS)
        assert (ask.first, ask.think_s) == (False, 0.5)
        assert prepared_request(at("chat"), WORKLOAD, REQUEST, WORDS).first


@pytest.mark.parametrize(
    "text", ["X-Tokenizer: qwen", "X-Tenant: blue; keys=3", "Authorization: Bearer ${KEY}"]
)
def test_a_header_without_a_secret_is_sent(text):
    assert ": ".join(header_of(text)) == text


def test_headers_of_the_user_are_sent_and_variables_in_them_are_never_shown(monkeypatch):
    monkeypatch.setenv("TENANT_KEY", "k-123456789012")
    target = Target(
        base_url="http://127.0.0.1:1",
        model="m",
        user_headers=(header_of("X-Tenant: blue"), header_of("X-Api-Key: $TENANT_KEY")),
    )
    head = head_of(target, Workload.of(LengthLaws.fixed(8, 8), request_count=1)).decode()
    assert "X-Tenant: blue\r\n" in head
    assert "X-Api-Key: k-123456789012\r\n" in head
    assert target.plain("no tenant for k-123456789012") == "no tenant for $TENANT_KEY"
    assert "k-1234" not in repr(target)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("X-Tenant", "is no header"),
        ("a b: c", "is no header"),
        ("X-Tenant: two\nlines", "is no header"),
        ("Content-Length: 5", "the load client sets"),
        ("Authorization: Bearer abcdef", "is a secret"),
        ("X-Api-Key: abcdef", "is a secret"),
        ("Cookie: session=1", "is a secret"),
        ("X-Auth-Token: abcdef", "is a secret"),
        ("X-Amz-Signature: abcdef", "is a secret"),
        ("Proxy-Authorization: Basic abcdef", "is a secret"),
        ("Ocp-Apim-Subscription-Key: abcdef$", "is a secret"),
        ("X-Anything: hf_" + "a" * 30, "is a secret"),
    ],
)
def test_a_header_that_cannot_be_sent_or_would_show_a_secret_is_refused(text, problem):
    with pytest.raises(InputError, match=problem):
        header_of(text)
