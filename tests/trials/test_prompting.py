import json

import pytest

from servetune.errors import InputError
from servetune.trials.prompting import model_tokenizer, prepared
from servetune.workload.traffic import one_part


@pytest.fixture
def folder(tmp_path):
    """A model's folder with a small tokenizer and a chat template."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
    pytest.importorskip("jinja2", reason="pip install 'servetune[tokenizers]'")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return tmp_path


def test_a_models_folder_has_its_tokenizer_and_template(folder):
    made = prepared(one_part(100, 5), model=str(folder), api="chat")
    assert made.about.exact
    assert made.about.template_tokens == len("<user><answer>")
    assert {len(prompt.text) for prompt in made.prompts} == {100 - 14}


def test_a_named_tokenizer_goes_before_the_models(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("model")
    assert model_tokenizer(None, str(other)) is None
    assert model_tokenizer(str(folder / "tokenizer.json"), str(other)).template is not None
    with pytest.raises(InputError, match=r"no tokenizer\.json at"):
        model_tokenizer(str(other), str(folder))


def test_without_a_tokenizer_prompts_may_be_ids():
    made = prepared(one_part(100, 5), model="someone/something", vocab_size=32_000)
    assert made.about.exact
    assert len(made.prompts[0].token_ids) == 100
