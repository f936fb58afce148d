"""Models that the rows of a table name, each looked up once.

Tables name checkpoints that others than the publisher stored in fewer bits
(`nvidia/DeepSeek-R1-FP4`, `RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16`). Where the
configuration of such a checkpoint is not found, that of the model it was made from is used,
stored as the name says; the row's `assumed` reports it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from servetune.errors import InputError, ServetuneError, UnknownName
from servetune.json_value import JsonObject
from servetune.models import (
    NetworkShape,
    QuantizedCheckpoint,
    catalogue,
    load_config,
    load_shape,
    shape_from_config,
    sibling_of,
)
from servetune.prediction.rows import STORAGE, stored_as

_FILE = "_config.json"
_QUANTIZED_FILE = "_hf_quant_config.json"
#: Last words of a checkpoint's name that state its storage -> the table's word for it.
_STORAGE_WORDS = {
    "awq": "int4",
    "gptq": "int4",
    "4bit": "int4",
    **{
        word: word
        for word in ("fp8", "nvfp4", "fp4", "mxfp4", "int4", "w4a16", "int8", "w8a8", "w8a16")
    },
}
#: Further words of such names, without meaning for the number of bits.
_IGNORED_WORDS = re.compile(
    r"quantized|dynamic|static|block|kv|preview|g?128|v\d|pertensor|tensor|per"
)


def made_from(name: str, known: Iterable[str]) -> tuple[str, str] | None:
    """Known model that a checkpoint was made from, and the table's word for its storage.

    The word is empty where the name states none: a copy under another publisher.

    Example:
        >>> made_from("nvidia/DeepSeek-R1-FP4", ["deepseek-ai/DeepSeek-R1"])
        ('deepseek-ai/DeepSeek-R1', 'fp4')
    """
    by_short: dict[str, list[str]] = {}
    for each in known:
        by_short.setdefault(each.split("/")[-1].lower(), []).append(each)
    words = re.split(r"([-._])", name.rsplit("/", maxsplit=1)[-1].lower())
    stored = ""
    while words:
        if found := by_short.get("".join(words)):
            return found[0], stored
        if words[-1] in _STORAGE_WORDS:
            stored = _STORAGE_WORDS[words[-1]]
        elif not _IGNORED_WORDS.fullmatch(words[-1]):
            return None
        words = words[:-2]
    return None


class RowModels:
    """Models by the names that rows give them; an unknown name is looked up once.

    Args:
        folder: Configurations that come before the catalogue's, as `org--name_config.json`.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._shapes: dict[str, NetworkShape | ServetuneError] = {}
        self._stand_ins: dict[str, str] = {}

    def shape(self, model: str) -> NetworkShape:
        """Dimensions of a model.

        Raises:
            UnknownName: Neither it nor the model it was made from is known.
            InputError: Its configuration cannot be read or is not modelled.
        """
        if model not in self._shapes:
            try:
                self._shapes[model] = self._found(model)
            except ServetuneError as error:
                self._shapes[model] = error
        found = self._shapes[model]
        if isinstance(found, ServetuneError):
            raise found
        return found

    def config(self, model: str) -> JsonObject:
        """Configuration that `shape` reads; stand-ins have none."""
        path = self._path(model)
        return load_config(model, catalogue_first=True) if path is None else _read(path)

    def stand_in(self, model: str) -> str:
        """Sentence on the model used in place of one without a configuration; empty if none is."""
        return self._stand_ins.get(model, "")

    def _found(self, model: str) -> NetworkShape:
        path = self._path(model)
        if path is not None:
            return shape_from_config(_read(path), name=model, source=path.name)
        origin = made_from(model, self._known())
        # Whether scales of 8 bits are by block the catalogue knows from the publisher; which parts
        # are not in four bits a table's word says.
        by_word = origin is not None and (
            STORAGE[origin[1]] != "fp8" or self._path(origin[0]) is not None
        )
        if not (by_word and sibling_of(model)):
            try:
                shape = load_shape(model, catalogue_first=True)
            except UnknownName:
                if origin is None:
                    raise
            else:
                sibling = sibling_of(model)
                if sibling is not None and sibling.base in shape.source:  # no file of its own
                    self._report(model, sibling.base, _stored(sibling, shape))
                return shape
        assert origin is not None
        base, word = origin
        shape = stored_as(self.shape(base), STORAGE[word])
        self._report(model, base, word)
        return msgspec.structs.replace(shape, name=model)

    def _report(self, model: str, base: str, stored: str) -> None:
        stored = stored and f" stored in {stored}"
        self._stand_ins[model] = f"no configuration of {model} found: read as {base}{stored}"

    def _path(self, model: str) -> Path | None:
        if self._folder is None:
            return None
        path = self._folder / f"{model.replace('/', '--')}{_FILE}"
        return path if path.is_file() else None

    def _known(self) -> list[str]:
        files = sorted(self._folder.glob(f"*{_FILE}")) if self._folder is not None else []
        own = [
            path.name.removesuffix(_FILE).replace("--", "/", 1)
            for path in files
            if not path.name.endswith(_QUANTIZED_FILE)
        ]
        return [*own, *catalogue()]


def _stored(sibling: QuantizedCheckpoint, shape: NetworkShape) -> str:
    """Storage that a sibling's name states, in a table's words; empty where it states none."""
    if sibling.widened:
        return "bf16"
    return shape.quantization.partition("_")[0] if sibling.quantization_config else ""


def _read(path: Path) -> JsonObject:
    """Configuration, with the quantisation of ModelOpt's file where it states none itself."""
    quantized = path.with_name(path.name.removesuffix(_FILE) + _QUANTIZED_FILE)
    try:
        config: JsonObject = json.loads(path.read_text(encoding="utf-8"))
        if quantized.is_file() and "quantization_config" not in config:
            config["quantization_config"] = json.loads(quantized.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path.name}: {error}") from None
    return config
