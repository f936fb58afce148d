"""Write a Qwen3 network of random weights, small enough to serve on two cores.

Run it with the Python of an environment that has vLLM (torch, transformers and
tokenizers come with it):

    .venv-vllm/bin/python tools/make_tiny_model.py OUT

OUT then holds what a real checkpoint folder holds: config.json, generation_config.json,
model.safetensors (1.5 million parameters, 3 MB) and a byte-level BPE tokenizer with a
ChatML chat template. Everything is seeded, so each run writes the same bytes. Answers
are noise; sizes, timings and the protocol are real.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when transformers is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

SEED = 20
VOCABULARY = 4096
CONTEXT_TOKENS = 8192
PADDING, TURN_START, TURN_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def sentences(count: int) -> Iterator[str]:
    """Sentences of invented words whose frequencies fall off as in a language (Zipf)."""
    rng = random.Random(SEED)
    syllables = [onset + vowel for onset in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(6000)]
    frequencies = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(count):
        text = " ".join(rng.choices(words, frequencies, k=rng.randint(5, 25)))
        yield f"{text.capitalize()}{rng.choice('.?!')} {rng.randint(0, 9999)}"


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(sentences(6000), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=PADDING,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def make_model(tokenizer: Any) -> Any:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(PADDING),
        "eos_token_id": tokenizer.convert_tokens_to_ids(TURN_END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PADDING),
    }
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        dtype="bfloat16",
        **ids,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(do_sample=False, **ids)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a tiny random Qwen3 checkpoint folder")
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    try:
        tokenizer = make_tokenizer()
    except ImportError as error:
        print(f"{error}; run this with the Python of a vLLM environment", file=sys.stderr)
        return 2
    model = make_model(tokenizer)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved at once, so that a folder with this name is always whole.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        fresh = Path(scratch) / "model"
        tokenizer.save_pretrained(fresh)
        model.save_pretrained(fresh)
        (fresh / "model.safetensors").chmod(0o644)  # it is written for its owner alone
        if out.exists():
            if not (out / "config.json").exists():
                print(f"{out} exists and is no model folder", file=sys.stderr)
                return 2
            shutil.rmtree(out)
        fresh.rename(out)
    size_mb = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print(f"{out}: {model.num_parameters():,} parameters, {size_mb:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
