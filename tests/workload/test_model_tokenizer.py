import json

import pytest

from servetune.errors import InputError
from servetune.workload.model_tokenizer import (
    ModelTokenizer,
    load_chat_template,
    load_model_tokenizer,
)

pytest.importorskip("jinja2", reason="pip install 'servetune[tokenizers]'")


class Words:
    """Something that only encodes, as a test's tokenizer may."""

    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text):
        return self.Encoding([0, *(hash(word) for word in text.split())])


def test_texts_are_counted_with_and_without_the_tokens_around_them(model_folder):
    model = load_model_tokenizer(model_folder("sentence_piece"))
    texts = ["able about above"] * 600 + ["able"]
    assert model.counts(texts) == [4] * 600 + [2]
    assert model.counts(texts[-2:], specials=False) == [3, 1]


def test_a_tokenizer_that_knows_no_batches_is_asked_one_by_one():
    assert ModelTokenizer(Words()).counts(["a b", "c"]) == [3, 2]


def test_the_template_is_what_a_server_would_count(model_folder):
    model = load_model_tokenizer(model_folder("byte_level"))
    text = model.template.render([{"role": "user", "content": "able about"}])
    assert text == "<|im_start|>user\nable about<|im_end|>\n<|im_start|>assistant\n"
    own = model.tokenizer.encode(text, add_special_tokens=False)
    count = model.chat_count([{"role": "user", "content": "able about"}])
    assert count == len(own.ids) > 4


def test_tools_special_tokens_and_refusals_reach_the_template(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<s>",
                "eos_token": {"content": "</s>"},
                "chat_template": "{{ bos_token }}{% for tool in tools %}{{ tool | tojson }}"
                "{% endfor %}{% if not messages %}{{ raise_exception('nobody asks') }}{% endif %}"
                "{{ eos_token }}{{ strftime_now('%Y') | length }}",
            }
        )
    )
    template = load_chat_template(tmp_path)
    assert template.render([{"role": "user"}], [{"name": "é"}]) == '<s>{"name": "é"}</s>4'
    with pytest.raises(InputError, match="nobody asks"):
        template.render([], [{}])


def test_a_template_may_lie_in_a_file_of_its_own_or_be_one_of_several(tmp_path):
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps(
            {"chat_template": [{"name": "tool_use", "template": "t"},
                               {"name": "default", "template": "d {{ messages[0].content }}"}]}
        )
    )  # fmt: skip
    assert load_chat_template(tmp_path).render([{"content": "x"}]) == "d x"
    (tmp_path / "chat_template.jinja").write_text("own {{ messages[0].content }}")
    assert load_chat_template(tmp_path).render([{"content": "x"}]) == "own x"


def test_a_template_runs_in_a_sandbox(tmp_path):
    reach = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "chat_template.jinja").write_text(reach)
    with pytest.raises(InputError, match="refuses these messages"):
        load_chat_template(tmp_path).render([])


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer\.json at"):
        load_model_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot read the tokenizer"):
        load_model_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(InputError, match="cannot read the chat template"):
        load_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match="cannot read the chat template"):
        load_chat_template(tmp_path)
    assert load_chat_template(tmp_path / "nowhere") is None
