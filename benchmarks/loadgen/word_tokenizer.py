"""A tokenizer of whole words, for clients that insist on having one.

Each of the server's words is one token, so that clients that count tokens by themselves count
what the server counts. It is written as the files that Hugging Face's libraries read.
"""

from __future__ import annotations

import json
from pathlib import Path

SERVER_WORDS = (
    *("the", "time", "has", "come", "to", "talk", "of", "many", "things"),
    *("and", "why", "sea", "is", "so", "hot", "word"),
)
MADE_UP_WORDS = 2000
UNKNOWN, END = "unk", "<|end|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def word_tokenizer(folder: Path) -> Path:
    """Write it, and return the folder that it is in."""
    folder.mkdir(exist_ok=True)
    words = [UNKNOWN, *SERVER_WORDS, *(f"w{number}" for number in range(MADE_UP_WORDS))]
    end = {
        "id": len(words), "content": END, "special": True, "normalized": False,
        "single_word": False, "lstrip": False, "rstrip": False,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": UNKNOWN,
        },
    }
    nothing = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    tokenizer |= dict.fromkeys(nothing)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": 1 << 20,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
