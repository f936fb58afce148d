from array import array

import pytest

from servetune.errors import InputError
from servetune.workload.lengths import SHAREGPT, LengthLaws
from servetune.workload.prompts import Prompt, load_tokenizer, text_prompts, token_prompts, unlike
from servetune.workload.request import Request
from servetune.workload.words import WORDS
from servetune.workload.workload import Workload


def requests_of(*lengths):
    return [
        Request(index=i, due_s=0.0, input_tokens=length, output_tokens=1)
        for i, length in enumerate(lengths)
    ]


class LetterPairs:
    """A real, if small, tokenizer: a start token, then the letters of each word in pairs."""

    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text):
        pieces = ["<s>"]
        for word in text.split():
            pieces += [word[i : i + 2] for i in range(0, len(word), 2)]
        return self.Encoding([hash(piece) for piece in pieces])


class WholeWords(LetterPairs):
    """One token a word, and a start token."""

    def encode(self, text):
        return self.Encoding([0, *(hash(word) for word in text.split())])


class TestTokenPrompts:
    def test_each_is_exactly_as_long_as_its_request(self):
        requests = Workload.of(SHAREGPT, request_count=1000).requests()
        prompts = token_prompts(requests, 151_936, seed=1)
        assert [len(prompt.token_ids) for prompt in prompts] == [
            request.input_tokens for request in requests
        ]
        assert sum(prompt.token_count for prompt in prompts) == 302_118
        assert all(prompt.exact for prompt in prompts)

    def test_no_two_begin_alike_while_the_vocabulary_lasts(self):
        prompts = token_prompts(requests_of(*[1] * 3000), 4096, seed=1)
        assert len({prompt.token_ids[0] for prompt in prompts}) == 3000

    def test_they_stay_unique_when_first_tokens_run_out(self):
        prompts = token_prompts(requests_of(*[2] * 500), 64, seed=1)
        assert len({prompt.token_ids for prompt in prompts}) == 500

    @pytest.mark.parametrize("vocab_size", [32_000, 131_072, 128_256, 151_936, 4096, 64])
    def test_ids_keep_clear_of_both_ends_of_the_vocabulary(self, vocab_size):
        prompts = token_prompts(requests_of(*[50] * 200), vocab_size, seed=1)
        ids = [token for prompt in prompts for token in prompt.token_ids]
        assert min(ids) >= min(1000, vocab_size // 8)
        assert max(ids) < vocab_size * 0.98 + 1
        assert len(set(ids)) > min(8000, vocab_size * 0.8)

    def test_the_seed_decides(self):
        requests = requests_of(8, 8, 8)
        assert token_prompts(requests, 4096, seed=1) == token_prompts(requests, 4096, seed=1)
        assert token_prompts(requests, 4096, seed=1) != token_prompts(requests, 4096, seed=2)

    def test_no_requests_need_no_prompts(self):
        assert token_prompts([], 4096, seed=1) == []

    def test_a_vocabulary_too_small_to_draw_from_is_refused(self):
        with pytest.raises(InputError, match="vocabulary of 1 tokens"):
            token_prompts(requests_of(3), 1, seed=1)


class TestTextPrompts:
    def test_without_a_tokenizer_lengths_are_estimated_and_say_so(self):
        prompts = text_prompts(requests_of(130, 13, 1), seed=1)
        assert [len(prompt.text.split()) for prompt in prompts] == [100, 10, 1]
        assert [prompt.token_count for prompt in prompts] == [130, 13, 1]
        assert not any(prompt.exact for prompt in prompts)

    def test_no_two_begin_alike_while_the_words_last(self):
        prompts = text_prompts(requests_of(*[20] * len(WORDS)), seed=4)
        assert len({prompt.text.split()[0] for prompt in prompts}) == len(WORDS)

    def test_a_tokenizer_that_cannot_be_read_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="tokenizer"):
            load_tokenizer(str(tmp_path / "tokenizer.json"))


class TestUnlike:
    def test_the_same_tokens_come_in_another_order(self):
        (prompt,) = token_prompts(requests_of(40), 4096, seed=1)
        other = unlike(prompt, seed=5)
        assert sorted(other.token_ids) == sorted(prompt.token_ids)
        assert other.token_ids[:16] != prompt.token_ids[:16]
        assert other == unlike(prompt, seed=5) != unlike(prompt, seed=6)

    def test_the_same_words_come_in_another_order(self):
        (prompt,) = text_prompts(requests_of(40), seed=1)
        other = unlike(prompt, seed=5)
        assert sorted(other.text.split()) == sorted(prompt.text.split())
        assert other.text != prompt.text

    def test_messages_keep_their_roles_and_pictures(self):
        words = " ".join(str(i) for i in range(50))
        picture = {"type": "image_url", "image_url": {"url": "data:a b c"}}
        prompt = Prompt(
            messages=(
                {"role": "system", "content": words},
                {"role": "user", "content": [picture, {"type": "text", "text": words}]},
            ),
            token_count=100,
            exact=True,
        )
        system, user = unlike(prompt, seed=5).messages
        assert system["role"] == "system"
        assert user["content"][0] == picture
        for text in (system["content"], user["content"][1]["text"]):
            assert text != words
            assert sorted(text.split()) == sorted(words.split())


def test_a_prompt_is_words_ids_or_messages_and_only_one_of_them():
    messages = ({"role": "user", "content": "a"},)
    for said in (
        {},
        {"text": "a", "token_ids": (1,)},
        {"text": "a", "messages": messages},
        {"token_ids": (1,), "messages": messages},
    ):
        with pytest.raises(InputError, match="text, token ids and messages"):
            Prompt(token_count=1, exact=True, **said)


def test_ids_are_a_json_list_whatever_holds_them():
    for ids in ((1, 70_000), array("I", [1, 70_000])):
        assert Prompt(token_ids=ids, token_count=2, exact=True).ids_json() == b"[1,70000]"


def test_workload_lengths_are_drawn_once_and_serve_both_kinds():
    requests = Workload.of(LengthLaws.fixed(26, 1), request_count=2).requests()
    assert [p.token_count for p in token_prompts(requests, 4096, 1)] == [26, 26]
    assert [p.token_count for p in text_prompts(requests, 1)] == [26, 26]
