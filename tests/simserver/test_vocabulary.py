"""Counting text, and filler that counts right."""

import json

import pytest

from servetune.simserver.requests import ServedModel, parse_completion_request
from servetune.simserver.vocabulary import Vocabulary, vocabulary_of


class Halves:
    """A tokenizer that knows every second word whole and cuts the others in two."""

    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text, /):
        ids = []
        for word in text.split():
            ids += [len(word)] if len(word) % 2 else [0, len(word)]
        return self.Encoding(ids)


def test_without_a_tokenizer_a_word_is_one_and_three_tenths_of_a_token():
    words = Vocabulary()
    assert not words.exact
    assert words.count("one two three four five six seven eight nine ten") == 13
    assert words.count("") == 0
    assert len(words.ids("one two three")) == words.count("one two three")


@pytest.mark.parametrize("words", [Vocabulary(), Vocabulary(Halves())])
def test_answers_have_one_token_a_word_as_the_tokenizer_counts(words):
    serving = ServedModel(names=("m",), root="m", max_model_len=1000, vocabulary=words)
    body = json.dumps({"prompt": "why", "max_tokens": 300}).encode()
    ask = parse_completion_request(body, serving, chat=False)
    assert len(ask.text().split()) == ask.output_tokens == 300
    if words.exact:
        assert words.count(ask.text()) == 300


def test_equal_prompts_have_equal_answers_and_others_mostly_others():
    words = Vocabulary()
    serving = ServedModel(names=("m",), root="m", max_model_len=1000, vocabulary=words)

    def text(prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 9}).encode()
        return parse_completion_request(body, serving, chat=False).text()

    assert text([5, 6, 7]) == text([5, 6, 7])
    assert len({text([5, 6, i]) for i in range(50)}) > 25


def test_the_models_own_tokenizer_is_taken_where_it_can_be_read(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import models, pre_tokenizers

    from servetune.workload.words import WORDS

    known = {word: i for i, word in enumerate(["[UNK]", "the", *WORDS])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = vocabulary_of(str(tmp_path))
    assert words.exact
    assert words.count("all words about a city") == 5


def test_a_model_without_a_tokenizer_at_hand_is_counted_by_the_rule(tmp_path):
    assert not vocabulary_of(str(tmp_path)).exact
    assert not vocabulary_of("Qwen/Qwen3-4B").exact
