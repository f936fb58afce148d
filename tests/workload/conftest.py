"""Real tokenizers, made on the spot; tests that need the package skip where it is absent."""

import json

import pytest

from servetune.workload.apis import tools_of
from servetune.workload.words import WORDS
from servetune.workload.workload import one_part

#: In the form of Qwen's: a system message, tools, and what a tool call looks like.
CHATML = """{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}{%- if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{%- if part.text %}{{ part.text }}{% endif %}{% endfor %}
{%- endif %}{{- '<|im_end|>\\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""

#: In the form of Mistral's first: no room for a system message, and the start token in the text.
INSTRUCT = """{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}
{{- raise_exception('system messages are not supported') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"""


def _corpus():
    """Common words, and JSON such as tool schemas are."""
    words = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(0, len(WORDS), 7)]
    schemas = [json.dumps(tool) for tool in tools_of(one_part(1, 1, tools=10).parts[0])]
    return words + schemas * 3


def byte_level(vocab_size=2000):
    """Byte-level BPE, as GPT's and Qwen's are."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        _corpus(),
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def sentence_piece():
    """BPE with a mark for the space and a start token, as Llama 2's is."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.train_from_iterator(
        _corpus(),
        tokenizers.trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=["<unk>", "<s>", "</s>"],
            initial_alphabet=list("[]/INST{}:,\"'-.0123456789"),
            show_progress=False,
        ),
    )
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def across_words():
    """A tokenizer with tokens of two words, whose texts cannot be counted word by word."""
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
    made = byte_level()
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    made.train_from_iterator(
        _corpus(),
        tokenizers.trainers.BpeTrainer(
            vocab_size=1500,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            max_token_length=12,
            show_progress=False,
        ),
    )
    return made


def letters():
    """One token a byte."""
    return byte_level(vocab_size=258)


KINDS = {
    "byte_level": byte_level,
    "sentence_piece": sentence_piece,
    "across_words": across_words,
    "letters": letters,
}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A folder with a tokenizer of some kind, and a chat template if asked for."""
    made = {}

    def folder(kind="byte_level", template="chatml"):
        if (kind, template) not in made:
            pytest.importorskip("tokenizers", reason="pip install 'servetune[tokenizers]'")
            path = tmp_path_factory.mktemp(kind)
            KINDS[kind]().save(str(path / "tokenizer.json"))
            config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
            if template:
                pytest.importorskip("jinja2", reason="pip install 'servetune[tokenizers]'")
                config["chat_template"] = {"chatml": CHATML, "instruct": INSTRUCT}[template]
            (path / "tokenizer_config.json").write_text(json.dumps(config))
            made[kind, template] = path
        return made[kind, template]

    return folder
