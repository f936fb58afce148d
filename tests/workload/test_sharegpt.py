import json

import pytest

from servetune.errors import InputError
from servetune.workload.sharegpt import Conversation, load_sharegpt, observed, sample
from servetune.workload.workload import Workload


def turns(*values):
    roles = ("human", "gpt")
    return [{"from": roles[i % 2], "value": value} for i, value in enumerate(values)]


def write(path, entries):
    path.write_text(json.dumps(entries, indent=1))
    return path


ENTRIES = [
    {"id": "a", "conversations": turns("What is a roofline model?", "A bound on speed.", "Thanks")},
    {"id": "b", "conversations": turns("only a question, and no answer")},
    {"id": "c", "conversation": turns("x" * 40, "y" * 400)},
    {"id": "d", "conversations": turns("hi", "Hello! How can I help?")},
    {"id": "e", "conversations": []},
]


class Words:
    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text):
        return self.Encoding(list(range(len(text.split()))))


def test_the_first_two_turns_are_the_question_and_its_answer(tmp_path):
    found = load_sharegpt(write(tmp_path / "s.json", ENTRIES))
    assert [one.question for one in found] == ["What is a roofline model?", "x" * 40]
    assert [(one.input_tokens, one.output_tokens) for one in found] == [(6, 4), (10, 100)]
    assert not any(one.exact for one in found)


def test_with_a_tokenizer_lengths_are_counted(tmp_path):
    found = load_sharegpt(write(tmp_path / "s.json", ENTRIES), tokenizer=Words())
    assert [(one.input_tokens, one.output_tokens) for one in found] == [(5, 4)]
    assert found[0].exact
    assert found[0].prompt.exact
    assert found[0].prompt.token_count == 5


def test_conversations_longer_than_the_context_are_left_out(tmp_path):
    found = load_sharegpt(write(tmp_path / "s.json", ENTRIES), max_total_tokens=100)
    assert [one.input_tokens for one in found] == [6]


def test_their_lengths_make_a_workload_that_asks_them_in_order(tmp_path):
    found = load_sharegpt(write(tmp_path / "s.json", ENTRIES))
    workload = Workload(lengths=observed(found), request_count=3)
    asked = [(one.input_tokens, one.output_tokens) for one in workload.requests()]
    assert asked == [(6, 4), (10, 100), (6, 4)]


def test_a_sample_uses_every_conversation_before_any_comes_again():
    whole = tuple(
        Conversation(question=str(i), input_tokens=2, output_tokens=2, exact=True)
        for i in range(10)
    )
    chosen = sample(whole, 25, seed=1)
    assert len(chosen) == 25
    assert set(chosen[:10]) == set(chosen[10:20]) == set(whole)
    assert chosen[:10] != whole
    assert chosen == sample(whole, 25, seed=1) != sample(whole, 25, seed=2)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_sharegpt(tmp_path / "none.json")


def test_a_file_that_breaks_off_names_its_line(tmp_path):
    path = tmp_path / "s.json"
    whole = json.dumps(ENTRIES, indent=1)
    path.write_text(whole[: len(whole) // 2])
    line = whole[: len(whole) // 2].count("\n") + 1
    with pytest.raises(InputError, match=rf"is not JSON, line {line}:"):
        load_sharegpt(path)


def test_a_syntax_error_names_its_line(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('[\n{"conversations": []},\n{"conversations": [} \n]')
    with pytest.raises(InputError, match="is not JSON, line 3:"):
        load_sharegpt(path)


def test_another_structure_names_the_place(tmp_path):
    entries = [*ENTRIES, {"conversations": [{"from": "human", "value": 7}]}]
    with pytest.raises(InputError, match=r"Expected `str`, got `int` - at `\$\[5\]") as error:
        load_sharegpt(write(tmp_path / "s.json", entries))
    assert "conversations" in error.value.hint
    with pytest.raises(InputError, match="ShareGPT's form"):
        load_sharegpt(write(tmp_path / "o.json", {"a": 1}))


def test_a_file_without_a_usable_conversation_is_refused(tmp_path):
    with pytest.raises(InputError, match="no conversation with a question and an answer"):
        load_sharegpt(write(tmp_path / "s.json", [ENTRIES[1], ENTRIES[4]]))
