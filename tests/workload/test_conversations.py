import json

import msgspec
import pytest

from servetune.errors import InputError
from servetune.workload.conversations import dialogue_of, shuffled_dialogues
from servetune.workload.parts import DataSet
from servetune.workload.prepare import prepare
from servetune.workload.workload import workload_of

OPENAI = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a roofline?"},
        {"role": "assistant", "content": "A bound on speed, set by memory or by arithmetic."},
        {"role": "user", "content": [{"type": "text", "text": "Who drew it first?"}]},
        {"role": "assistant", "content": "Williams, Waterman and Patterson."},
    ]
}
SHAREGPT = {
    "conversations": [
        {"from": "gpt", "value": "How can I help?"},
        {"from": "human", "value": "Count to three."},
        {"from": "gpt", "value": "one two three"},
    ]
}


def read(row, **members):
    return dialogue_of(row, "d.jsonl line 4", DataSet(path="d.jsonl", **members))


def spec_of(path, count=4, **members):
    part = {"dataset": {"path": str(path), **members.pop("dataset", {})}, **members}
    return workload_of({"request_count": count, "part": [part]})


def test_openai_messages_are_turns_with_their_answers():
    dialogue = read(OPENAI)
    assert dialogue.system == "Be brief."
    assert [turn.words for turn in dialogue.turns] == ["What is a roofline?", "Who drew it first?"]
    assert dialogue.turns[1].answer.startswith("Williams")
    assert [m["role"] for m in dialogue.messages(0)] == ["system", "user"]
    assert dialogue.messages(1)[0]["content"] == [{"type": "text", "text": "Who drew it first?"}]
    assert dialogue.messages(0, with_system=False)[0]["content"].startswith("Be brief.\n\nWhat")


def test_sharegpt_begins_with_the_first_question():
    dialogue = read(SHAREGPT)
    assert [(turn.words, turn.answer) for turn in dialogue.turns] == [
        ("Count to three.", "one two three")
    ]


def test_columns_are_found_by_their_usual_names_or_by_those_that_are_named():
    assert read({"question": "why?", "answer": "so"}).turns[0].answer == "so"
    assert read({"prompt": "why?", "output_tokens": 7}).turns[0].output_tokens == 7
    assert read({"prompt": "why?", "completion": "42"}).turns[0].output_tokens == 42
    named = {"a": "why?", "b": "because", "c": "Be kind.", "prompt": "not this"}
    dialogue = read(named, prompt_column="a", output_column="b", system_column="c")
    assert dialogue.as_text() == "Be kind.\n\nwhy?"
    assert dialogue.turns[0].answer == "because"
    assert read({"talk": OPENAI["messages"]}, messages_column="talk").system == "Be brief."


def test_rows_in_which_nobody_asks_are_left_out(tmp_path):
    assert read({"prompt": "  "}) is None
    assert read({"conversations": [{"from": "gpt", "value": "Hello"}]}) is None
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": ""}\n')
    with pytest.raises(InputError, match="no usable row"):
        shuffled_dialogues(DataSet(path=str(path)), 1)


@pytest.mark.parametrize(
    ("row", "members", "problem"),
    [
        ({"x": 1}, {}, "line 4 has no column that is a prompt, it has x"),
        ({"prompt": "a"}, {"prompt_column": "b"}, "line 4 has no column b"),
        ({"prompt": "a"}, {"output_column": "b"}, "line 4 has no column b"),
        ({"prompt": 5}, {}, "line 4: the prompt is no text but int"),
        ({"messages": "hi"}, {}, "line 4: a conversation is a list"),
        ({"messages": [{"role": "user"}]}, {}, "line 4, message 1 has no text"),
        ({"messages": ["hi"]}, {}, "line 4, message 1 is not an object"),
        ({"prompt": "a", "output_tokens": 0}, {}, "'0' is neither an answer nor a number"),
    ],
)
def test_what_has_no_meaning_names_its_line(row, members, problem):
    with pytest.raises(InputError, match=problem):
        read(row, **members)


def test_prompts_are_a_files_own_words_in_an_order_that_the_seed_decides(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("prompt,output_tokens\n" + "".join(f"question {i},{i + 1}\n" for i in range(9)))
    made = prepare(spec_of(path, 9))
    asked = {p.text: r.output_tokens for p, r in zip(made.prompts, made.requests, strict=True)}
    assert asked == {f"question {i}": i + 1 for i in range(9)}
    assert prepare(msgspec.structs.replace(spec_of(path, 9), seed=2)).prompts != made.prompts
    again = prepare(spec_of(path, 20))
    assert len(again.requests) == 20
    assert any("9 usable rows" in note for note in again.about.notes)
    law = prepare(spec_of(path, 9, output_tokens=50))
    assert {request.output_tokens for request in law.requests} == {50}


def test_conversations_are_asked_turn_by_turn(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(OPENAI) + "\n")
    spec = spec_of(path, 2, dataset={"conversations": True})
    made = prepare(msgspec.structs.replace(spec, api="chat"))
    first, second = made.requests
    assert second.follows == first.index
    assert [m["role"] for m in made.prompts[0].messages] == ["system", "user"]
    assert [m["role"] for m in made.prompts[1].messages] == ["user"]
    assert second.input_tokens > first.input_tokens + first.output_tokens
    with pytest.raises(InputError, match="does not carry"):
        prepare(msgspec.structs.replace(spec, api="completions"))


def test_an_answer_of_unknown_length_is_refused_with_its_line(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
    with pytest.raises(InputError, match="line 2 has no answer") as error:
        prepare(spec_of(path))
    assert "output_tokens" in error.value.hint
    assert prepare(spec_of(path, output_tokens=9)).about.output_tokens_mean == 9


def test_words_are_counted_by_the_tokenizer_and_its_template(tmp_path, model_folder):
    from servetune.workload.model_tokenizer import load_model_tokenizer

    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, [OPENAI, SHAREGPT])))
    for template in ("chatml", "instruct"):
        model = load_model_tokenizer(model_folder("sentence_piece", template))
        made = prepare(msgspec.structs.replace(spec_of(path, 2), api="chat"), tokenizer=model)
        assert made.about.exact
        for request, prompt in zip(made.requests, made.prompts, strict=True):
            assert model.chat_count(prompt.messages) == prompt.token_count == request.input_tokens
    answers = {model.counts([text], specials=False)[0] for text in ("one two three",)}
    assert answers <= {request.output_tokens for request in made.requests}
    made = prepare(spec_of(path, 2), tokenizer=model)
    for prompt in made.prompts:
        assert model.counts([prompt.text]) == [prompt.token_count]


def test_dialogues_go_through_json():
    dialogue = read(OPENAI)
    assert msgspec.json.decode(msgspec.json.encode(dialogue), type=type(dialogue)) == dialogue
