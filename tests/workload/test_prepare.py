import json
import re

import msgspec
import pytest

from servetune.errors import InputError
from servetune.workload import Poisson
from servetune.workload.model_tokenizer import ModelTokenizer, load_model_tokenizer
from servetune.workload.parts import Adapter
from servetune.workload.prepare import prepare
from servetune.workload.words import stock_of
from servetune.workload.workload import TraceFile, Workload, one_part


def traffic(input_tokens, output_tokens=20, count=60, **members):
    made = one_part(input_tokens, output_tokens, **members)
    return msgspec.structs.replace(made, request_count=count)


def messages_of(prompt):
    return prompt.messages or ({"role": "user", "content": prompt.text},)


def counted(model, prompt, **members):
    """Tokens as a server counts them, by the tokenizer's own plain call."""
    if prompt.text is not None and not members.get("chat"):
        return len(model.tokenizer.encode(prompt.text).ids)
    tools = json.loads(prompt.members)["tools"] if "tools" in prompt.members else None
    text = model.template.render(messages_of(prompt), tools)
    return len(model.tokenizer.encode(text, add_special_tokens=False).ids)


LAW = "normal:mean=200,std=60,min=30,max=500"


class TestExactLengths:
    @pytest.mark.parametrize("kind", ["byte_level", "sentence_piece", "across_words", "letters"])
    def test_texts_are_as_long_as_their_requests(self, model_folder, kind):
        model = load_model_tokenizer(model_folder(kind))
        made = prepare(traffic(LAW), tokenizer=model, check_all=True)
        assert made.about.exact
        assert made.about.checked == 60
        for request, prompt in zip(made.requests, made.prompts, strict=True):
            assert counted(model, prompt) == prompt.token_count
            # Where words merge with their neighbours a length may not be had; then it is said.
            off = prompt.token_count - request.input_tokens
            assert off == 0 or (kind == "across_words" and abs(off) == 1)
        assert made.about.off_length <= (6 if kind == "across_words" else 0)

    @pytest.mark.parametrize(
        ("kind", "template"),
        [
            ("byte_level", "chatml"),
            ("sentence_piece", "instruct"),
            ("letters", "chatml"),
            ("sentence_piece", "chatml"),
        ],
    )
    @pytest.mark.parametrize("prefix", [None, {"levels": [{"tokens": 16}]}])
    def test_a_chat_is_as_long_with_its_template(self, model_folder, kind, template, prefix):
        model = load_model_tokenizer(model_folder(kind, template))
        members = {"prefix": prefix} if prefix else {}
        law = "normal:mean=300,std=60,min=150,max=500"
        made = prepare(
            msgspec.structs.replace(traffic(law, **members), api="chat"), tokenizer=model
        )
        assert made.about.template == "rendered"
        assert made.about.template_tokens > 3
        for request, prompt in zip(made.requests, made.prompts, strict=True):
            assert counted(model, prompt, chat=True) == request.input_tokens == prompt.token_count

    def test_a_large_run_is_right_though_only_a_sample_was_encoded(self, model_folder):
        model = load_model_tokenizer(model_folder("byte_level"))
        made = prepare(traffic(1000, count=300), tokenizer=model)
        assert made.about.checked == 100
        assert {counted(model, prompt) for prompt in made.prompts} == {1000}

    def test_a_tokenizer_that_breaks_its_promise_is_found_out_and_mended(self, model_folder):
        class Doubling:
            """Says that every 50th word is two tokens, which no word by itself shows."""

            def __init__(self, tokenizer):
                self.get_vocab = tokenizer.get_vocab
                self._tokenizer = tokenizer

            def encode_batch(self, texts, add_special_tokens):
                encoded = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
                if texts and len(texts[0]) > 5000:  # the look at all words at once
                    return [each.ids for each in encoded]
                return [
                    [*each.ids, *[0] * (len(text.split(" ")) // 50)]
                    for each, text in zip(encoded, texts, strict=True)
                ]

        model = load_model_tokenizer(model_folder("byte_level"))
        odd = ModelTokenizer(Doubling(model.tokenizer))
        made = prepare(traffic(300, count=400), tokenizer=odd)
        assert made.about.checked == 400
        assert {odd.counts([prompt.text])[0] for prompt in made.prompts} == {300}

    def test_without_a_tokenizer_words_are_estimates_and_ids_are_exact(self):
        made = prepare(traffic(130))
        assert not made.about.exact
        assert len(made.prompts[0].text.split()) == 100
        made = prepare(traffic(130), vocab_size=32_000)
        assert made.about.exact
        assert {len(prompt.token_ids) for prompt in made.prompts} == {130}
        assert json.loads(made.prompts[0].ids_json()) == list(made.prompts[0].token_ids)
        assert min(min(prompt.token_ids) for prompt in made.prompts) >= 1000

    def test_what_a_template_adds_may_be_given(self, model_folder):
        model = load_model_tokenizer(model_folder("byte_level", template=None))
        made = prepare(msgspec.structs.replace(traffic(100), api="chat"), tokenizer=model)
        assert made.about.template == "unknown"
        assert not made.about.exact
        made = prepare(
            msgspec.structs.replace(traffic(100), api="chat"), tokenizer=model, template_tokens=12
        )
        assert made.about.template == "given"
        assert made.about.exact
        assert {counted(model, prompt) for prompt in made.prompts} == {88}
        assert {prompt.token_count for prompt in made.prompts} == {100}

    def test_a_prompt_shorter_than_what_surrounds_it_carries_what_it_has(self, model_folder):
        model = load_model_tokenizer(model_folder("byte_level"))
        made = prepare(msgspec.structs.replace(traffic(2, count=3), api="chat"), tokenizer=model)
        assert made.about.input_tokens_mean == made.about.template_tokens + 1
        assert any("longer than their law" in note for note in made.about.notes)

    def test_a_million_tokens_are_made(self, model_folder):
        model = load_model_tokenizer(model_folder("byte_level"))
        (prompt,) = prepare(traffic(1_000_000, count=1), tokenizer=model).prompts
        start = " ".join(prompt.text.split(" ", 20_000)[:20_000])
        assert len(model.tokenizer.encode(start).ids) == 20_000
        assert prompt.text.count(" ") == 999_999


def test_no_two_prompts_begin_alike(model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    made = prepare(msgspec.structs.replace(traffic(64, count=100), api="chat"), tokenizer=model)
    first = [prompt.text.split()[0] for prompt in made.prompts]
    assert len(set(first)) == stock_of(model).starters < 100
    assert len({tuple(prompt.text.split()[:2]) for prompt in made.prompts}) == 100


def test_words_have_the_shares_that_the_requests_say(model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    levels = [{"tokens": 60}, {"tokens": 40, "branches": 3}]
    made = prepare(traffic(200, prefix={"levels": levels}), tokenizer=model)
    for request, prompt in zip(made.requests, made.prompts, strict=True):
        for other, its in zip(made.requests, made.prompts, strict=True):
            if other.index >= request.index:
                break
            same = 100 if other.prefix == request.prefix else 60
            assert its.text.split()[:same] == prompt.text.split()[:same]
            assert its.text.split()[:102] != prompt.text.split()[:102]
    assert made.about.hit_fraction == pytest.approx((59 * 60 + 57 * 40) / (60 * 200))


def test_a_shared_prefix_is_the_system_message_where_the_template_has_one(model_folder):
    prefix = {"levels": [{"tokens": 30}]}
    model = load_model_tokenizer(model_folder("byte_level", "chatml"))
    made = prepare(
        msgspec.structs.replace(traffic(100, prefix=prefix), api="chat"), tokenizer=model
    )
    roles = {tuple(message["role"] for message in prompt.messages) for prompt in made.prompts}
    assert roles == {("system", "user")}
    assert len({prompt.messages[0]["content"] for prompt in made.prompts}) == 1
    model = load_model_tokenizer(model_folder("sentence_piece", "instruct"))
    made = prepare(
        msgspec.structs.replace(traffic(100, prefix=prefix), api="chat"), tokenizer=model
    )
    assert len({" ".join(prompt.text.split()[:30]) for prompt in made.prompts}) == 1
    assert any("refuses system messages" in note for note in made.about.notes)


def test_conversations_have_only_what_is_new_in_each_turn(model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    spec = traffic(
        100, sessions={"turns": 3, "turn_tokens": 50}, prefix={"levels": [{"tokens": 9}]}
    )
    made = prepare(msgspec.structs.replace(spec, api="chat"), tokenizer=model)
    assert made.about.sessions == 20
    said = []
    for request, prompt in zip(made.requests, made.prompts, strict=True):
        if request.turn == 0:
            said = []
            assert prompt.exact
        else:
            (message,) = prompt.messages
            assert message["role"] == "user"
            assert not prompt.exact
        said += prompt.messages
        whole = model.chat_count(said)
        assert whole == prompt.token_count == request.input_tokens
        # An answer of the asked length, as the run will put it there.
        words = [stock_of(model).words[0]] * request.output_tokens
        assert model.counts([" ".join(words)])[0] == request.output_tokens
        said.append({"role": "assistant", "content": " ".join(words)})


def test_tools_and_formats_are_in_the_body_and_in_the_count(model_folder):
    model = load_model_tokenizer(model_folder("letters"))
    spec = traffic(2500, tools=2, response_format="review", tool_choice="required")
    made = prepare(msgspec.structs.replace(spec, api="chat"), tokenizer=model)
    assert made.about.exact
    for prompt in made.prompts:
        body = json.loads(prompt.members)
        assert [tool["type"] for tool in body["tools"]] == ["function"] * 2
        assert body["tool_choice"] == "required"
        assert body["response_format"]["json_schema"]["schema"]["required"]
        assert counted(model, prompt, chat=True) == 2500
    tools = made.requests[0].prefix[0]
    assert all(request.prefix[0] == tools for request in made.requests)
    assert made.about.hit_fraction == pytest.approx(tools[1] / 2500 * 59 / 60)
    without = ModelTokenizer(model.tokenizer)
    made = prepare(msgspec.structs.replace(spec, api="chat"), tokenizer=without)
    assert not made.about.exact
    assert any("estimated" in note for note in made.about.notes)


def test_pictures_are_in_the_message_and_their_tokens_in_the_count(model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    images = {"each": 2, "width": 40, "height": 30, "tokens": 70}
    made = prepare(
        msgspec.structs.replace(traffic(300, count=4, images=images), api="chat"), tokenizer=model
    )
    shown = set()
    for prompt in made.prompts:
        *pictures, words = prompt.messages[0]["content"]
        shown.update(each["image_url"]["url"] for each in pictures)
        assert counted(model, prompt, chat=True) == 300 - 140
        assert prompt.token_count == 300
        assert words["type"] == "text"
    assert len(shown) == 8
    assert all(url.startswith("data:image/png;base64,") for url in shown)


def test_adapters_are_named_in_their_prompts():
    spec = msgspec.structs.replace(
        traffic(10, count=8), adapters=traffic_adapters(a=3.0, b=1.0)
    )  # fmt: skip
    models = [prompt.model for prompt in prepare(spec).prompts]
    assert sorted(models) == ["a"] * 6 + ["b"] * 2


def traffic_adapters(**weights):
    return tuple(Adapter(name=name, weight=weight) for name, weight in weights.items())


def test_repeated_prompts_are_the_same_words():
    made = prepare(traffic("uniform:min=30,max=60", distinct=4))
    assert len({prompt.text for prompt in made.prompts}) == 4


def test_the_same_arguments_make_the_same():
    spec = traffic("normal:mean=90,std=20", prefix={"hit_fraction": 0.3, "groups": 2})
    first, other = (msgspec.structs.replace(spec, seed=seed) for seed in (4, 5))
    assert prepare(first) == prepare(first)
    assert prepare(first).prompts != prepare(other).prompts


def test_words_may_differ_where_requests_do_not():
    spec = traffic(LAW, prefix={"levels": [{"tokens": 16, "branches": 3}]})
    one, two = (prepare(spec, words_seed=seed) for seed in (8, 9))
    assert one.requests == two.requests == spec.requests()
    assert not {prompt.text for prompt in one.prompts} & {prompt.text for prompt in two.prompts}


def test_a_traces_prompts_are_alike_as_far_as_its_blocks_are(tmp_path):
    path = tmp_path / "t.jsonl"
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 5, "hash_ids": {}}}'
    rows = ((0, 1100, [7, 8, 9]), (1, 1100, [7, 8, 3]), (2, 600, [7, 8]), (3, 40, [1]))
    path.write_text("\n".join(line.format(*row) for row in rows))
    load = Workload(trace=TraceFile(path=str(path)), request_count=4)
    first, second, third, last = (each.token_ids for each in prepare(load, vocab_size=9000).prompts)
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:]
    assert third == first[:600]
    assert last[:8] != first[:8]
    with pytest.raises(InputError, match="no text"):
        prepare(load)


def test_a_route_that_cannot_carry_it_is_refused():
    for members in (
        {"tools": 1},
        {"images": {}},
        {"sessions": {"turns": 2, "turn_tokens": 5}},
    ):
        with pytest.raises(InputError, match="which completions does not carry"):
            prepare(msgspec.structs.replace(traffic(900, **members), api="completions"))


def test_its_workload_asks_its_requests_when_the_arrivals_say():
    spec = traffic(50, sessions={"turns": 3, "turn_tokens": 9})
    closed = msgspec.structs.replace(spec, api="chat")
    made = prepare(closed)
    workload = msgspec.structs.replace(closed, arrivals=Poisson(2.0))
    requests = workload.requests()
    assert prepare(workload).requests == requests
    assert len(requests) == 60
    due = [request.due_s for request in requests]
    assert due == sorted(due)
    assert len(set(due)) == 20  # one for each conversation
    assert [msgspec.structs.replace(each, due_s=0.0) for each in requests] == list(made.requests)
    assert workload.longest_tokens() == max(r.input_tokens + r.output_tokens for r in requests)
    cut = msgspec.structs.replace(workload, duration_s=due[30])
    assert len(cut.requests()) == len(prepare(cut).prompts) == 33
    assert made.workload.closed_loop


def test_what_was_made_is_reported():
    about = prepare(traffic(100, 30)).about
    assert about.input_tokens_total == 6000
    assert about.output_tokens_mean == 30
    assert re.fullmatch(r"none|unknown", about.template)
