import json

import pytest

from servetune.errors import InputError
from servetune.workload import LoadOptions
from servetune.workload.model_tokenizer import load_model_tokenizer, tokenizer_path
from servetune.workload.prepare import prepare


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
    load = LoadOptions(input_tokens="100", output_tokens="5", api="chat").to_workload(str(folder))
    made = prepare(load)
    assert made.about.exact
    assert made.about.template_tokens == len("<user><answer>")
    assert {len(prompt.text) for prompt in made.prompts} == {100 - 14}


def test_a_named_tokenizer_goes_before_the_models(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("model")
    assert tokenizer_path(None, str(other)) is None
    named = tokenizer_path(str(folder / "tokenizer.json"), str(other))
    assert load_model_tokenizer(named).template is not None
    with pytest.raises(InputError, match=r"no tokenizer\.json at"):
        tokenizer_path(str(other), str(folder))


def test_without_a_tokenizer_prompts_may_be_ids():
    load = LoadOptions(input_tokens="100", output_tokens="5").to_workload("someone/something")
    made = prepare(load, vocab_size=32_000)
    assert made.about.exact
    assert len(made.prompts[0].token_ids) == 100
