"""Tokenizer and chat template of a model, from the files in its folder.

The tokenizer needs the package tokenizers, the template jinja2 (extra `tokenizers`); both are
imported when a file is read, not before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.chat_template import ChatTemplate, Message
from servetune.workload.prompts import Tokenizer, load_tokenizer

#: Texts that are encoded at a time: enough for every core, few enough to keep little in memory.
_BATCH = 256


class ModelTokenizer(msgspec.Struct, frozen=True):
    """A model's tokenizer, and its chat template where there is one."""

    tokenizer: Tokenizer
    template: ChatTemplate | None = None

    def counts(self, texts: Sequence[str], *, specials: bool = True) -> list[int]:
        """Tokens of each text.

        Args:
            texts: Any number.
            specials: Whether those are counted that the tokenizer puts around a text itself.
                The completions route has them; a rendered chat has its own.
        """
        encode = _batch_encoder(self.tokenizer, specials)
        found: list[int] = []
        for start in range(0, len(texts), _BATCH):
            found += encode(texts[start : start + _BATCH])
        return found

    def chat_count(
        self, messages: Sequence[Message], tools: Sequence[JsonObject] | None = None
    ) -> int:
        """Tokens that a server makes of these messages; the template must be there."""
        assert self.template is not None
        return self.counts([self.template.render(messages, tools)], specials=False)[0]


def tokenizer_path(named: str | None, model: str) -> str | None:
    """File of the named tokenizer, else of the model's folder; `None` where none can be read.

    Raises:
        InputError: A tokenizer is named that is not there.
    """
    import importlib.util

    for folder in (named, model):
        if folder is None:
            continue
        path = Path(folder)
        candidate = path / "tokenizer.json" if path.is_dir() else path
        readable = named or importlib.util.find_spec("tokenizers") is not None
        if candidate.is_file() and candidate.suffix == ".json" and readable:
            return str(candidate)
        if folder == named:
            raise InputError(
                f"no tokenizer.json at {named}", hint="give the folder or file of a tokenizer"
            )
    return None


@functools.lru_cache(maxsize=4)
def load_model_tokenizer(path: str | Path) -> ModelTokenizer:
    """The tokenizer in a folder or file, with the chat template that lies beside it.

    Without jinja2 the template is passed over: its tokens are then known only from a server.

    Raises:
        InputError: There is no tokenizer, or it cannot be read.
    """
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"no tokenizer.json at {path}", hint="give the folder of a model")
    return ModelTokenizer(load_tokenizer(str(file)), load_chat_template(file.parent))


def load_chat_template(folder: str | Path) -> ChatTemplate | None:
    """The chat template in a model's folder; `None` where it has none, or jinja2 is not here.

    Raises:
        InputError: It has one that cannot be read.
    """
    import importlib.util

    if importlib.util.find_spec("jinja2") is None:
        return None
    config_path, own = Path(folder) / "tokenizer_config.json", Path(folder) / "chat_template.jinja"
    config: JsonObject = {}
    try:
        if config_path.is_file():
            config = msgspec.json.decode(config_path.read_bytes(), type=JsonObject)
        source = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the chat template in {folder}: {error}") from error
    if isinstance(source, list):  # several by name
        named = {each.get("name"): each.get("template") for each in source}
        source = named.get("default") or next(iter(named.values()), None)
    return ChatTemplate(source, dict(_specials(config))) if isinstance(source, str) else None


def _specials(config: JsonMembers) -> Iterable[tuple[str, str]]:
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        written = config.get(name)
        content = written.get("content") if isinstance(written, dict) else written
        if isinstance(content, str):
            yield name, content


def _batch_encoder(tokenizer: Tokenizer, specials: bool) -> Callable[[Sequence[str]], list[int]]:
    """The quickest way that this tokenizer has of counting many texts."""
    for name in ("encode_batch_fast", "encode_batch"):  # the first keeps no offsets
        encode = getattr(tokenizer, name, None)
        if encode is not None:
            return lambda texts: [
                len(each) for each in encode(list(texts), add_special_tokens=specials)
            ]
    return lambda texts: [len(tokenizer.encode(text).ids) for text in texts]
