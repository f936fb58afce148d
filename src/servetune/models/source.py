"""Model configurations from a folder, the hub's cache, the bundled catalogue or the hub.

`load_shape` takes the first source that has the model, in this order:

1. a local folder with a `config.json`, or the path of one;
2. the local Hugging Face cache, which holds the files that an engine would load and may be
   newer than the catalogue;
3. the catalogue bundled with servetune;
4. the catalogue's model that the id is a sibling of by its name: another publisher's copy, its
   base or instruct version, or the same in fewer bits (`unsloth/Meta-Llama-3.1-8B-Instruct`);
5. the hub itself, where the optional `huggingface_hub` is installed and
   `HF_HUB_OFFLINE` is not set.

With `catalogue_first` the catalogue comes before the cache, so that the answer does not
depend on the machine.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.bundled import bundled
from servetune.decoding import ready
from servetune.errors import InputError, UnknownName
from servetune.json_value import JsonObject
from servetune.models.config_keys import Config
from servetune.models.hf_config import shape_from_config
from servetune.models.quantization import quantization_named
from servetune.models.shape import NetworkShape
from servetune.secret import beginning

_HUB_TIMEOUT_S = 10.0


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of the bundled catalogue.

    Attributes:
        published_parameters: Parameters of the whole checkpoint, as stated by its publisher.
        tower_parameters: Parameters of towers for images or sound, which engines load.
        other_parameters: Further parameters outside the decoder, such as extra heads.
        source: Origin of the numbers.
        config: Keys of its `config.json` that determine the shape.
        published_within: Rounding of the published count, as a fraction.
        also: Hub ids of models with the same shape.
    """

    published_parameters: int
    source: str
    config: JsonObject
    tower_parameters: int = 0
    other_parameters: int = 0
    published_within: float = 0.005
    also: tuple[str, ...] = ()


class CheckpointSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of a checkpoint's `generation_config.json`; `None` where it has none.

    Attributes:
        temperature: Divisor of the logits; 0 for the likeliest token alone.
        top_k: Number of likeliest tokens that are kept.
        top_p: Probability that the likeliest tokens kept have together.
        repetition_penalty: Divisor of the logits of tokens that were there before.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def filters(self) -> bool:
        """Whether only the likeliest tokens are kept."""
        narrow = (self.top_k or -1) > 0 or (self.top_p is not None and 0 < self.top_p < 1)
        return narrow and self.temperature != 0

    @property
    def penalises(self) -> bool:
        """Whether tokens that were there before are made less likely."""
        return self.repetition_penalty not in (None, 1.0)


#: Origin of a configuration that was fetched before.
_CACHE = "the Hugging Face cache on this machine"


def load_shape(model: str | Path, *, catalogue_first: bool = False) -> NetworkShape:
    """Dimensions of a model by folder, hub id or unambiguous short name.

    Args:
        model: Folder, hub id or short name: `./folder`, `Qwen/Qwen3-4B`, `qwen3-4b`.
        catalogue_first: Whether the bundled catalogue comes before the hub's cache.

    Raises:
        UnknownName: No source has the model; the nearest catalogue names are in the hint.
        InputError: Its configuration cannot be read or is not modelled.
    """
    name, config, source = _find(str(model), catalogue_first=catalogue_first)
    try:
        return shape_from_config(config, name=name, source=source)
    except InputError:
        # The hub's file may be of a class around the network, which the catalogue has alone.
        if source != _CACHE or _catalogue_name(name) is None:
            raise
        name, config, source = _from_catalogue(name)
        return shape_from_config(config, name=name, source=source)


def load_config(model: str | Path, *, catalogue_first: bool = False) -> JsonObject:
    """Configuration that `load_shape` reads, as a table of keys."""
    return dict(_find(str(model), catalogue_first=catalogue_first)[1])


def load_sampling(model: str | Path) -> CheckpointSampling | None:
    """Sampling that a checkpoint asks for; `None` where its file is not on this machine.

    Read from `generation_config.json` of the model's folder or of the hub's cache.

    Raises:
        InputError: The file cannot be read.
    """
    folder = _folder(str(model)) or _cached_folder(_catalogue_name(str(model)) or str(model))
    path = folder / "generation_config.json" if folder else None
    if path is None or not path.is_file():
        return None
    try:
        return msgspec.convert(_read_json(path), ready(CheckpointSampling))
    except msgspec.ValidationError as error:
        raise InputError(
            f"'{path}' cannot be read: {error}", hint="fetch the model again"
        ) from error


#: Layers of a checkpoint that draft tokens: DeepSeek-V3 and GLM-4.5 name their number so, Qwen3.5
#: the other way.
_DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def has_draft_layers(model: str | Path) -> bool:
    """Whether the checkpoint has layers that draft tokens (MTP), by its `config.json`.

    The catalogue does not keep their number: of a model that is not on this machine nothing is
    known.
    """
    config = load_config(model)
    parts = (config, config.get("text_config") or {})
    return any(part.get(name) for part in parts for name in _DRAFT_LAYERS)


def cached_snapshot(model: str) -> Path | None:
    """Folder of a hub id's files in the local cache, named by revision."""
    return _cached_folder(model)


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, CatalogueModel]:
    """Bundled models by hub id, aliases of equal shape included."""
    entries = msgspec.convert(
        bundled("models", "data/models.toml"), ready(dict[str, CatalogueModel])
    )
    everything = dict(entries)
    for entry in entries.values():
        everything.update(dict.fromkeys(entry.also, entry))
    return MappingProxyType(everything)


class QuantizedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Published checkpoint of a catalogue model with narrower weights.

    Attributes:
        name: Hub id.
        base: Hub id of the model that it was made of.
        quantization_config: Storage, as its config.json has it; empty for the model's own.
        widened: Whether it has sixteen bits although the model was published in fewer.
        offered: Whether it may be named instead of its base where that does not fit.
    """

    name: str
    base: str
    quantization_config: JsonObject
    widened: bool = False
    offered: bool = True


@lru_cache(maxsize=1)
def quantized_checkpoints() -> Mapping[str, QuantizedCheckpoint]:
    """Known quantised checkpoints of the catalogue's models, by hub id."""
    table = bundled("models", "data/quantized.toml")
    bases = {name.lower(): name for name in catalogue()}
    found = {}
    for group in table["published"]:
        for model in group["models"]:
            base = f"{group['base']}/{model}{group.get('base_suffix', '')}"
            name = f"{group['publisher']}/{model}{group['suffix']}"
            found[name] = QuantizedCheckpoint(
                name=name,
                base=bases[base.lower()],
                quantization_config=table["formats"][group["format"]],
                offered=group.get("offered", True),
            )
    return MappingProxyType(found)


def quantized_versions(model: str, scheme: str = "") -> tuple[str, ...]:
    """Hub ids of a model's known quantised checkpoints, its own publisher's first.

    Args:
        model: Hub id of the plain model.
        scheme: Storage as an option of an engine names it, such as `awq`: checkpoints of as many
            bits, those of exactly this storage first; all of them where empty.

    Example:
        >>> quantized_versions("Qwen/Qwen3-32B", "awq")
        ('Qwen/Qwen3-32B-AWQ',)
    """
    base = _plain_name(_catalogue_name(model) or model)
    known = [
        each
        for each in quantized_checkpoints().values()
        if each.offered and _plain_name(each.base) == base
    ]
    stored = {each.name: load_shape(each.name, catalogue_first=True).quantization for each in known}
    wanted = quantization_named(scheme).scheme if scheme else ""
    bits = wanted.partition("_")[0].rstrip("w")
    fitting = [name for name, how in stored.items() if how.startswith(bits)]
    return tuple(sorted(fitting, key=lambda name: (stored[name] != wanted, _foreign(name, model))))


def storage_method(model: str) -> str:
    """Method that a checkpoint's files name, known by its hub id; empty where it is not.

    Two methods may store one scheme: four bits by GPTQ or by compressed-tensors.

    Example:
        >>> storage_method("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16")
        'compressed-tensors'
    """
    named = quantized_checkpoints().get(model) or sibling_of(model)
    return str(named.quantization_config.get("quant_method", "")) if named else ""


def _plain_name(model: str) -> str:
    """Name without what publishers changed of one model's name."""
    return model.lower().replace("/meta-llama-", "/llama-")


def _foreign(checkpoint: str, model: str) -> bool:
    """Whether somebody else than the model's publisher quantised it."""
    return checkpoint.partition("/")[0] != model.partition("/")[0]


def _find(model: str, *, catalogue_first: bool) -> tuple[str, Config, str]:
    """Name, configuration and origin of a model."""
    folder = _folder(model)
    if folder is not None:
        return model, _read_folder(folder), str(folder)
    bundled = _catalogue_name(model)
    if catalogue_first and bundled is not None:
        return _from_catalogue(bundled)
    cached = _cached_folder(bundled or model)
    if cached is not None:
        return bundled or model, _read_folder(cached), _CACHE
    if bundled is not None:
        return _from_catalogue(bundled)
    sibling = sibling_of(model)
    if sibling is not None:
        _, config, source = _from_catalogue(sibling.base)
        config = dict(config)
        if sibling.quantization_config:
            config = _stored_as(config, sibling.quantization_config)
        if sibling.widened:
            config.pop("quantization_config", None)
        return model, config, f"{source}; read as {sibling.base} by its name"
    other = _other_format(model)
    if other is not None:
        raise _not_read(model, other)
    return model, _from_hub(model), "the Hugging Face hub"


def named_in_catalogue(model: str) -> bool:
    """Whether a hub id is the catalogue's, or names one of its models and how it is stored."""
    return model in catalogue() or model in quantized_checkpoints() or bool(sibling_of(model))


def sibling_of(model: str) -> QuantizedCheckpoint | None:
    """Catalogue model of the same shape that an id's words name, and its storage.

    All other words must be those of a catalogue model, in order: an id that only resembles one is
    no sibling.

    Example:
        >>> sibling_of("unsloth/Meta-Llama-3.1-8B-Instruct").base
        'meta-llama/Llama-3.1-8B'
        >>> sibling_of("someone/Llama-3.1-8B-Uncensored") is None
        True
    """
    table = bundled("models", "data/quantized.toml")
    words, stored_as = _words(model), table["words"]["stored"]
    if not any(word in stored_as for word in words) and _is_unclear(model):
        return None
    alike = _by_words().get(tuple(word for word in words if word not in stored_as))
    days = _days(model)
    if not any(_days(name) in (days, set()) for name in alike or ()):
        alike = None  # models of its name are all of other days, and may have other shapes
    base = _nearest(model, alike)
    own = model in catalogue() or model in quantized_checkpoints()
    publisher = model.partition("/")[0].lower()
    if base is None or "/" not in model or own or _other_format(model):
        return None
    copied = _copied(model) if not any(word in stored_as for word in words) else None
    if copied is not None:
        return msgspec.structs.replace(copied, name=model)
    stored = [stored_as[word] for word in words if word in stored_as]
    # `GPTQ-Int8` and `AWQ-4bit` name the method and the bits, as does `int4-AutoRound`.
    for weaker in ("nf4", "gptq_int4") if len(stored) > 1 else ():
        stored = [name for name in stored if name != weaker] or stored
    widened = stored[-1:] == ["bf16"]
    stored = [table["words"]["own"].get(f"{publisher}/{name}", name) for name in stored]
    config = table["formats"][stored[-1]] if stored and not widened else {}
    return QuantizedCheckpoint(name=model, base=base, quantization_config=config, widened=widened)


def _other_format(model: str) -> str | None:
    """Format for other programs that an id names by its publisher or a word."""
    formats = bundled("models", "data/quantized.toml")["words"]["other_formats"]
    named = (model.partition("/")[0].lower(), *_all_words(model)) if "/" in model else ()
    return next((formats[name] for name in named if name in formats), None)


#: Number of bits of a GGUF file, as in `Q4_K_M` and `IQ2_XXS`; what follows is of its storage.
_GGUF_BITS = re.compile(r"i?q\d")


def _original(model: str) -> str | None:
    """Catalogue model that a copy in a format for other programs was made of."""
    table = bundled("models", "data/quantized.toml")["words"]
    packed = {*table["stored"], *table["other_formats"]}
    words = list(
        itertools.takewhile(
            lambda word: word not in packed and not _GGUF_BITS.match(word), _all_words(model)
        )
    )
    alike = _by_words().get(tuple(_words("-".join(words))), ())
    # Most words in common, so that the copy of a tuned model is not said to be of its base.
    return max(alike, key=lambda name: len({*words} & {*_all_words(name)}), default=None)


def _copied(model: str) -> QuantizedCheckpoint | None:
    """Known checkpoint of the same name, whoever published it."""
    name = model.partition("/")[2].lower()
    known = quantized_checkpoints().values()
    return next((each for each in known if each.name.partition("/")[2].lower() == name), None)


def _nearest(model: str, alike: Sequence[str] | None) -> str | None:
    """First of models that are alike; where shapes differ, of that with most words of the id."""
    if not alike:
        return None
    own, known = set(_all_words(model)), catalogue()
    closest = known[max(alike, key=lambda name: len(own & {*_all_words(name)}))]
    return next(name for name in alike if known[name] is closest)


#: Month and day, or year and month, of a checkpoint's release.
_DATE = re.compile(r"(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|2[3-9](0[1-9]|1[0-2])")


def _words(model: str) -> list[str]:
    """Words of a model's name that tell it apart from its siblings.

    The day of a release (`0731`, `2507`) is none of them.
    """
    table = bundled("models", "data/quantized.toml")["words"]
    ignored = {*table["ignored"], *table["unclear"]}
    return [word for word in _all_words(model) if word not in ignored and not _DATE.fullmatch(word)]


def _is_unclear(model: str) -> bool:
    """Whether a name tells of another storage: without a further word, it is not known which."""
    unclear = bundled("models", "data/quantized.toml")["words"]["unclear"]
    return any(word in unclear for word in _all_words(model))


def _days(model: str) -> set[str]:
    return {word for word in _all_words(model) if _DATE.fullmatch(word)}


def _all_words(model: str) -> list[str]:
    """Words of a name; two that stand for one storage together (`FP8-Block`) are one."""
    name = model.rsplit("/", maxsplit=1)[-1].lower()
    stored_as = bundled("models", "data/quantized.toml")["words"]["stored"]
    words: list[str] = []
    for word in re.split(r"[-_]|\.(?=[a-z])", name):
        if words and (together := f"{words[-1]}-{word}") in stored_as:
            words[-1] = together
        else:
            words.append(word)
    return words


@lru_cache(maxsize=1)
def _by_words() -> Mapping[tuple[str, ...], Sequence[str]]:
    """Catalogue models by the words of their names that tell shapes apart, shortest ids first."""
    found: dict[tuple[str, ...], list[str]] = {}
    stored_as = bundled("models", "data/quantized.toml")["words"]["stored"]
    for name in sorted(catalogue(), key=len):
        words = tuple(word for word in _words(name) if word not in stored_as)
        found.setdefault(words, []).append(name)
    return MappingProxyType(found)


def _folder(model: str) -> Path | None:
    """Folder named by `model`, if it has a configuration.

    A path that starts with a dot, a slash or a tilde must exist; any other text may be a hub
    id.
    """
    if not model.strip():
        raise InputError("the model's name is empty", hint="give a hub id or a folder")
    path = Path(model).expanduser()
    if path.is_file():
        if path.name == "config.json":
            return path.parent
        raise InputError(f"'{model}' is a file, not a model", hint="give its folder or config.json")
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        raise InputError(
            f"the folder '{model}' has no config.json",
            hint="give the folder of a Hugging Face model, or rename it if you meant a hub id",
        )
    if model.startswith((".", "/", "~")):
        raise InputError(f"the folder '{model}' does not exist", hint="check the path")
    return None


def _read_folder(folder: Path) -> Config:
    """Contents of `config.json`, with the quantisation of ModelOpt's file where it has none."""
    config = _read_json(folder / "config.json")
    modelopt = folder / "hf_quant_config.json"
    if isinstance(config, dict) and not config.get("quantization_config") and modelopt.is_file():
        config["quantization_config"] = _read_json(modelopt)
    if not isinstance(config, dict):
        raise InputError(
            f"'{folder / 'config.json'}' must hold a table of keys, not {type(config).__name__}",
            hint="check config.json against the published one",
        )
    return config


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"'{path}' cannot be read: {error}", hint="check the file, or fetch the model again"
        ) from error


def _from_catalogue(name: str) -> tuple[str, Config, str]:
    quantized = quantized_checkpoints().get(name)
    entry = catalogue()[quantized.base if quantized else name]
    config = dict(entry.config)
    if entry.tower_parameters:
        config["vision_parameters"] = entry.tower_parameters
    if quantized:
        config = _stored_as(config, quantized.quantization_config)
    return name, config, f"servetune's catalogue: {entry.source}"


def _stored_as(config: Config, quantization_config: JsonObject) -> JsonObject:
    """Configuration of a model in another storage than its own."""
    changed = {**config, "quantization_config": quantization_config}
    changed.pop("expert_dtype", None)  # DeepSeek-V4's own storage of its experts
    return changed


@lru_cache(maxsize=1)
def _names_by_small_letters() -> Mapping[str, str]:
    """Catalogue ids and those of its quantised checkpoints, by themselves in small letters."""
    return {name.lower(): name for name in (*catalogue(), *quantized_checkpoints())}


def _catalogue_name(model: str) -> str | None:
    """Catalogue id for a full or short name; letter case does not count.

    Raises:
        InputError: The short name fits several models.
    """
    lowered_model, by_lower = model.lower(), _names_by_small_letters()
    if lowered_model in by_lower:
        return by_lower[lowered_model]
    if "/" in model:
        return None
    fitting = [
        name for lowered, name in by_lower.items() if lowered.split("/", 1)[-1] == lowered_model
    ]
    if len({id(catalogue().get(name, name)) for name in fitting}) > 1:
        raise InputError(
            f"'{model}' fits {len(fitting)} models", hint=f"write one of {', '.join(fitting)}"
        )
    return fitting[0] if fitting else None


def _cached_folder(model: str) -> Path | None:
    """Snapshot of a hub id in the local cache, if it has a configuration.

    The cache has a revision in `models--org--name/refs/main` and its files in
    `snapshots/<revision>/` (huggingface_hub 1.x and 2.x, 2026).
    """
    repository = _cache_root() / f"models--{model.replace('/', '--')}"
    snapshots = repository / "snapshots"
    try:
        revision = (repository / "refs" / "main").read_text("utf-8").strip()
    except OSError:
        return None
    if not revision or "/" in revision or revision.startswith("."):
        return None
    folder = snapshots / revision
    return folder if (folder / "config.json").is_file() else None


def _cache_root() -> Path:
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _from_hub(model: str) -> Config:
    """Configuration from the hub, by way of its local cache."""
    if "/" not in model:
        raise _unknown(model, "")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _unknown(model, "HF_HUB_OFFLINE is set, so the hub was not queried; ")
    try:
        import huggingface_hub
    except ImportError:
        raise _unknown(model, "install servetune[hub] to query the Hugging Face hub; ") from None
    try:
        # Metadata first: that fails at once, where a download waits and retries.
        address = huggingface_hub.hf_hub_url(model, "config.json")
        huggingface_hub.get_hf_file_metadata(address, timeout=_HUB_TIMEOUT_S)
        path = Path(huggingface_hub.hf_hub_download(model, "config.json"))
    except Exception as error:
        # Errors of the hub client, of requests, of httpx and of the operating system all
        # mean the same to the user: the hub could not be queried.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _unknown(model, f"the hub answered: {beginning(reason, 160)}; ") from error
    return _read_folder(path.parent)


def _not_read(model: str, form: str) -> UnknownName:
    original = _original(model)
    instead = f"take the original model {original}" if original else "take the original model"
    return UnknownName("model", model, (), hint=f"files of {form} are not read: {instead}")


def _unknown(model: str, why: str) -> UnknownName:
    known = (*catalogue(), *quantized_checkpoints())
    plain = UnknownName("model", model, known).hint
    short = UnknownName("model", model, [name.split("/", 1)[-1] for name in known]).hint
    nearest_names = plain if plain.startswith("did") or not short.startswith("did") else short
    return UnknownName(
        "model",
        model,
        known,
        hint=f"{why}give a local folder that holds its config.json; {nearest_names}",
    )
