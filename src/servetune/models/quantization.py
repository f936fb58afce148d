"""Quantisation: storage of weights and of cached keys and values, and its bytes.

A canonical name is `scheme` or `scheme@scope`. The scheme is the format of one weight, the
scope the matrices it applies to: `linear` (all but embeddings, output head and routers; the
default), `feed_forward` (attention keeps the model's dtype) or `experts` (routed experts
only). A mixed checkpoint joins several by `+`; the first that covers a matrix applies:
`mxfp4@experts+fp8_block` is DeepSeek-V4, `nvfp4@feed_forward+fp8` a Qwen3.6 of NVIDIA's.
Finer scopes name single parts, for layers that differ from the rest: `input` and `output` of a
mixer, `dense`, `shared` (experts that every token uses), and `head` for the output head.

| scheme | stored as | bytes per weight |
|---|---|---|
| `none` | the model's dtype | 2 or 4 |
| `fp8` | one scale per tensor or channel | 1 |
| `fp8_block` | one 32-bit scale per 128 x 128 block | 1 + 4/16384 |
| `mxfp8` | one 8-bit scale per 32 weights | 1 + 1/32 |
| `int8` | activations in int8 too | 1 |
| `int8w` | activations stay | 1 |
| `int4_gN` | one 16-bit scale per N weights | 0.5 + 2/N |
| `int4_gNz` | and a 4-bit zero point (AWQ, asymmetric GPTQ) | 0.5 + 2.5/N |
| `nf4` | one 32-bit scale per 64 weights (bitsandbytes) | 0.5 + 4/64 |
| `nvfp4` | one 8-bit scale per 16 weights | 0.5 + 1/16 |
| `nvfp4w` | activations stay | 0.5 + 1/16 |
| `mxfp4` | one 8-bit scale per 32 weights | 0.5 + 1/32 |

Layouts: OCP Microscaling 1.0 (mxfp4, 2023), NVIDIA's NVFP4 description (2025), the
`quantization_config` of compressed-tensors, AutoAWQ, GPTQModel and ModelOpt (2026).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from servetune.bundled import bundled
from servetune.errors import InputError, UnknownName
from servetune.models.config_keys import Config

#: Bytes per number of each unpacked dtype.
DTYPE_BYTES: Mapping[str, float] = MappingProxyType({"bf16": 2.0, "fp16": 2.0, "fp32": 4.0})

_NAMES = bundled("models", "data/quantization.toml")
_DTYPE_ALIASES: Mapping[str, str] = _NAMES["dtypes"]

#: Bytes per cached number by canonical cache dtype, scales included.
CACHE_DTYPES: Mapping[str, float] = MappingProxyType(
    {**DTYPE_BYTES, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5 + 1 / 16}
)

_CACHE_ALIASES: Mapping[str, str] = {**_DTYPE_ALIASES, **_NAMES["cache_dtypes"]}
#: Parts of a network covered by each scope.
_COVERED: Mapping[str, list[str]] = _NAMES["parts"]
SCOPES = tuple(_COVERED)


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """Storage format of weights, and the matrices it applies to.

    For a mixed checkpoint, the fields describe its first part.

    Attributes:
        name: Canonical name: `scheme` or `scheme@scope`, several joined by `+`.
        scheme: Format of one weight.
        scope: Matrices in this format; the rest keep the model's dtype, or see `others`.
        bytes_per_weight: Bytes, scales and zero points included; `None` is the model's dtype.
        math_dtype: Dtype of the matrix multiplication where the hardware supports it (`fp8`,
            `int8`, `fp4`); `None` is the model's dtype.
        others: Further parts of a mixed checkpoint.
    """

    name: str
    scheme: str
    scope: str
    bytes_per_weight: float | None
    math_dtype: str | None
    others: tuple[Quantization, ...] = ()

    def covering(self, scopes: Iterable[str]) -> Quantization | None:
        """First part whose scope is one of `scopes`; `None` without one."""
        searched = tuple(scopes)
        return next((part for part in (self, *self.others) if part.scope in searched), None)

    def width_of(self, part: str) -> float | None:
        """Bytes per weight of one part of a network; `None` for the model's dtype.

        Args:
            part: `input` or `output` of a mixer, `dense`, `shared`, `experts` or `head`.
        """
        for stored in (self, *self.others):
            if part in _COVERED[stored.scope]:
                return stored.bytes_per_weight
        return None


_FIXED: Mapping[str, tuple[float | None, str | None]] = MappingProxyType(
    {
        "none": (None, None),
        "fp8": (1.0, "fp8"),
        "fp8_block": (1.0 + 4 / 128**2, "fp8"),
        "int8": (1.0, "int8"),
        "int8w": (1.0, None),
        "mxfp8": (1.0 + 1 / 32, "fp8"),
        "int4": (0.5, None),
        "nf4": (0.5 + 4 / 64, None),
        "nvfp4": (0.5 + 1 / 16, "fp4"),
        "nvfp4w": (0.5 + 1 / 16, None),
        "mxfp4": (0.5 + 1 / 32, None),
    }
)

_GROUPED = re.compile(r"int4_g(?P<group>[1-9]\d*)(?P<zero>z?)")

_ALIASES: Mapping[str, str] = _NAMES["schemes"]

#: Option values that mean "as stored in the checkpoint".
_FROM_CHECKPOINT = ("auto", "compressed-tensors", "compressed_tensors", "quark")


@functools.lru_cache(maxsize=1024)
def quantization_named(name: str) -> Quantization:
    """Storage format for a canonical name or an engine's option value.

    Raises:
        UnknownName: No such scheme or scope.

    Example:
        >>> quantization_named("awq").bytes_per_weight
        0.51953125
    """
    lowered = name.lower().replace("-", "_")
    first, *others = [_part_named(part, name) for part in lowered.split("+")]
    if not others:
        return first
    joined = "+".join(part.name for part in (first, *others))
    return msgspec.structs.replace(first, name=joined, others=tuple(others))


def _part_named(lowered: str, name: str) -> Quantization:
    alias, _, given_scope = lowered.partition("@")
    scheme, _, scope = _ALIASES.get(alias, alias).partition("@")
    scope = given_scope or scope or "linear"
    if scope not in SCOPES:
        raise UnknownName("quantisation scope", scope, SCOPES)
    grouped = _GROUPED.fullmatch(scheme)
    if grouped:
        extra_bytes = 2.5 if grouped["zero"] else 2.0
        width: float | None = 0.5 + extra_bytes / int(grouped["group"])
        math_dtype = None
    elif scheme in _FIXED:
        width, math_dtype = _FIXED[scheme]
    else:
        raise UnknownName("quantisation", name, [*_FIXED, "int4_g128", "int4_g128z", *_ALIASES])
    return Quantization(
        name=scheme if scope == "linear" else f"{scheme}@{scope}",
        scheme=scheme,
        scope=scope,
        bytes_per_weight=width,
        math_dtype=math_dtype,
    )


def effective_quantization(checkpoint: str, requested: str | None) -> Quantization:
    """Storage format of the weights once loaded.

    A quantised checkpoint keeps its format, whatever kernel is selected. Other weights are
    quantised on loading, or counted as if such a checkpoint existed (so that `awq` can be
    estimated before anyone has made one).

    Args:
        checkpoint: `NetworkShape.quantization`.
        requested: `Plan.quantization`.
    """
    if requested is None or checkpoint != "none" or requested.lower() in _FROM_CHECKPOINT:
        return quantization_named(checkpoint)
    return quantization_named(requested)


def canonical_dtype(name: str) -> str:
    """Canonical dtype (`bf16`, `fp16` or `fp32`) for any of its spellings."""
    lowered = name.lower()
    canonical = _DTYPE_ALIASES.get(lowered, lowered)
    if canonical not in DTYPE_BYTES:
        raise UnknownName("dtype", name, [*DTYPE_BYTES, *_DTYPE_ALIASES])
    return canonical


def canonical_cache_dtype(name: str, *, model_dtype: str = "bf16") -> str:
    """Canonical name of a cache dtype; `auto` is the model's dtype."""
    lowered = name.lower()
    if lowered == "auto":
        return canonical_dtype(model_dtype)
    canonical = _CACHE_ALIASES.get(lowered, lowered)
    if canonical not in CACHE_DTYPES:
        raise UnknownName("KV-cache dtype", name, ["auto", *CACHE_DTYPES, *_CACHE_ALIASES])
    return canonical


def cache_dtype_bytes(name: str, *, model_dtype: str = "bf16") -> float:
    """Bytes of one cached number, scales included."""
    return CACHE_DTYPES[canonical_cache_dtype(name, model_dtype=model_dtype)]


def quantization_from_config(
    quantization_config: Config | None, *, layer_count: int
) -> tuple[str, str]:
    """Canonical weight storage and cache dtype of a published checkpoint.

    The sources are `quantization_config` of a `config.json` and the `quantization` table of
    ModelOpt's `hf_quant_config.json`.

    Args:
        quantization_config: Published table; `None` for unquantised weights.
        layer_count: Layers of the network, to see whether ignored modules cover all of them.

    Returns:
        `NetworkShape.quantization` and `NetworkShape.kv_cache_dtype`.

    Raises:
        InputError: The scheme is unknown or mixes several.
    """
    if not quantization_config:
        return "none", "auto"
    config = _flat(quantization_config)
    cache_dtype = _cache_dtype(config)
    if _is_mixed(config):
        return _mixed_name(config), cache_dtype
    scheme = _scheme(config)
    scope = _scope(_ignored(config), layer_count)
    name = scheme if scope == "linear" or scheme == "none" else f"{scheme}@{scope}"
    return name, cache_dtype


class CheckpointStorage:
    """Storage of each module of each layer in a published checkpoint.

    The tables are those of `quantization_from_config`, read module by module: a module that
    is ignored in some layers is unquantised only there.
    """

    def __init__(self, quantization_config: Config | None) -> None:
        config = _flat(quantization_config or {})
        self._mixed = _is_mixed(config)
        self._listed: dict[str, str] = {}
        self._patterns: dict[str, str] = {}
        self._by_layer: dict[int, list[str]] = {}
        self._everywhere: list[str] = []
        if not config:
            self._scheme = "none"
        elif self._mixed:
            self._scheme = _rest_of_mixed(config)
            self._listed = {
                _tail(name): how
                for name, how in _listed_schemes(config).items()
                if not _NOT_DECODER.search(name)
            }
            self._patterns = {
                name: how
                for name, how in self._listed.items()
                if name.startswith("re:") or "*" in name
            }
        else:
            self._scheme = _scheme(config)
            self._sort(_ignored(config))

    def _sort(self, patterns: Iterable[str]) -> None:
        for pattern in patterns:
            if _NOT_DECODER.search(pattern):
                continue
            numbered = _LAYER_NUMBER.search(pattern)
            if numbered is None or pattern.startswith("re:"):
                self._everywhere.append(pattern)
            else:
                self._by_layer.setdefault(int(numbered[1]), []).append(_tail(pattern))

    def scheme(self, layer: int, modules: Iterable[str]) -> str:
        """Scheme of one part of a layer.

        Args:
            layer: Index of the layer.
            modules: Module names of the part's largest matrices (`self_attn.o_proj`); the
                first one listed in the checkpoint decides, or else the first that a listed
                pattern covers.
        """
        names = [f"layers.{layer}.{module}" for module in modules]
        if self._mixed:
            listed = (self._listed[name] for name in names if name in self._listed)
            covered = (
                how
                for name in names
                for pattern, how in self._patterns.items()
                if _matches(pattern, name)
            )
            return next(itertools.chain(listed, covered), self._scheme)
        patterns = [*self._everywhere, *self._by_layer.get(layer, ())]
        left_out = any(_matches(pattern, name) for pattern in patterns for name in names)
        return "none" if left_out else self._scheme


def _flat(config: Config) -> Config:
    """Quantisation table, which ModelOpt's own file nests and config.json does not."""
    if not isinstance(config, Mapping):
        raise InputError(f"quantization_config must be a table of keys, got {config!r}")
    nested = config.get("quantization")
    return dict(nested) if isinstance(nested, Mapping) else dict(config)


def _is_mixed(config: Config) -> bool:
    listed = config.get("quantized_layers")
    return isinstance(listed, Mapping) and bool(listed)


def _listed_schemes(config: Config) -> dict[str, str]:
    """Scheme by module, as ModelOpt lists a mixed checkpoint."""
    found = {}
    for module, how in config["quantized_layers"].items():
        algorithm = str(how.get("quant_algo", "")).upper() if isinstance(how, Mapping) else ""
        found[str(module)] = _modelopt(algorithm, how if isinstance(how, Mapping) else {})
    return found


def _rest_of_mixed(config: Config) -> str:
    """Scheme of unlisted modules: the model's dtype, unless the file names a method."""
    if str(config.get("quant_method", "")).lower() == "fp8":
        return "fp8_block" if config.get("weight_block_size") else "fp8"
    return "none"


#: Module name fragments of each part; the first match decides.
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("head", ("lm_head",)),
    ("shared", ("shared_expert",)),
    ("experts", ("experts",)),
    ("dense", ("mlp.", "ffn.", "feed_forward.")),
    ("mixer", ("attn.", "mixer.", "attention.")),
)


def _mixed_name(config: Config) -> str:
    """Storage of the whole network: the most frequent scheme of each part."""
    counts: dict[str, dict[str, int]] = {}
    for module, scheme in _listed_schemes(config).items():
        tail = _tail(module)
        part = next((part for part, names in _PARTS if any(n in tail for n in names)), None)
        if part is not None:
            schemes = counts.setdefault(part, {})
            schemes[scheme] = schemes.get(scheme, 0) + 1
    rest = _rest_of_mixed(config)
    usual = {part: max(schemes, key=lambda name: schemes[name]) for part, schemes in counts.items()}
    mixer = usual.get("mixer", rest)
    stored = {"input": mixer, "output": mixer}
    stored |= {part: how for part, how in usual.items() if part != "mixer"}
    if "experts" in stored:
        stored.setdefault("shared", rest)
    return join_parts(stored)


def join_parts(stored: Mapping[str, str]) -> str:
    """Canonical name for the schemes of a network's parts.

    Args:
        stored: Scheme of each present part: `input`, `output`, `dense`, `shared`,
            `experts`, and `head` where it is narrow.

    Example:
        >>> join_parts({"input": "fp8", "output": "fp8", "dense": "nvfp4"})
        'nvfp4@feed_forward+fp8'
    """
    inner = {part: stored[part] for part in ("experts", "shared", "dense") if part in stored}
    base = stored.get("input", stored.get("output", next(iter(inner.values()), "none")))
    pieces = []
    if len(set(inner.values())) > 1 and "experts" in inner:
        pieces.append((inner.pop("experts"), "experts"))
    if len(set(inner.values())) == 1:
        pieces.append((next(iter(inner.values())), "feed_forward"))
    else:
        pieces += [(scheme, part) for part, scheme in inner.items()]
    pieces.append((stored.get("output", base), "output"))
    # The last piece covers all remaining parts, so a part with its scheme needs no name,
    # unless a wider scope before it has another scheme.
    named = [f"{scheme}@{scope}" for scheme, scope in pieces if scheme != base]
    if any(scheme != base for scheme, scope in pieces if scope == "feed_forward"):
        named = [
            f"{scheme}@{scope}" for scheme, scope in pieces if scheme != base or scope == "experts"
        ]
    if base != "none" or not named:
        named.append(base)
    if stored.get("head", "none") != "none":
        named.append(f"{stored['head']}@head")
    return "+".join(named)


def _matches(pattern: str, name: str) -> bool:
    """Whether a published pattern covers a module, both given from `layers.N` on.

    `re:` marks a regular expression, `*` is a wildcard; a plain name covers the module of
    that path, its submodules, and any module whose path ends with it
    (`gate`, `lm_head`), as engines match them.
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], f"model.{name}") is not None
        except re.error:
            return False
    if "*" in pattern:
        return _with_wildcards(pattern).fullmatch(name) is not None
    return name == pattern or name.startswith(f"{pattern}.") or name.endswith(f".{pattern}")


@functools.lru_cache(maxsize=1024)
def _with_wildcards(pattern: str) -> re.Pattern[str]:
    """Expression of a pattern with `*`, cached: every module of every layer is held to it."""
    at = pattern.find("layers.")
    loose = ".*".join(re.escape(piece) for piece in pattern[max(0, at) :].split("*"))
    return re.compile(rf"{loose}(\..*)?")


def _tail(module: str) -> str:
    """Module path from `layers.N` on, without the publisher's prefix."""
    at = _LAYER_NUMBER.search(module)
    return module[at.start() :] if at is not None else module


def _scheme(config: Config) -> str:
    method = str(config.get("quant_method", "")).lower()
    algorithm = str(config.get("quant_algo", "")).upper()
    if algorithm:
        return _modelopt(algorithm, config)
    if method == "compressed-tensors" or (not method and "config_groups" in config):
        return _compressed_tensors(config)
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8_block" if config.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq"):
        return _grouped_integers(method, config)
    if method == "bitsandbytes":
        return "nf4" if config.get("load_in_4bit") else "int8"
    if method == "mxfp4":
        return "mxfp4"
    raise InputError(
        f"quantization_config: quant_method '{method}' is not modelled yet",
        hint="known methods are fp8, awq, gptq, bitsandbytes, mxfp4, compressed-tensors, modelopt",
    )


def _modelopt(algorithm: str, config: Config) -> str:
    group = config.get("group_size") or 128
    known = {**_NAMES["modelopt"], "W4A16_AWQ": f"int4_g{group}"}
    if algorithm not in known:
        raise InputError(
            f"quantization_config: quant_algo '{algorithm}' is not modelled yet",
            hint=f"known algorithms are {', '.join(known)}",
        )
    return str(known[algorithm])


def _grouped_integers(method: str, config: Config) -> str:
    bits = config.get("bits", config.get("w_bit", 4))
    if bits == 8:
        return "int8w"
    if bits != 4:
        raise InputError(f"quantization_config: {method} with {bits} bits is not modelled yet")
    group = config.get("group_size", config.get("q_group_size", 128))
    zeroed = config.get("zero_point", True) if method == "awq" else not config.get("sym", True)
    return _int4(group, zeroed=bool(zeroed))


def _int4(group: object, *, zeroed: bool) -> str:
    if not isinstance(group, int) or group <= 0:  # one scale per column: negligible
        return "int4"
    return f"int4_g{group}{'z' if zeroed else ''}"


def _compressed_tensors(config: Config) -> str:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise InputError("quantization_config: 'config_groups' is missing")
    if not all(
        isinstance(group, Mapping) and isinstance(group.get("weights") or {}, Mapping)
        for group in groups.values()
    ):
        raise InputError("quantization_config: each of 'config_groups' must be a table of keys")
    schemes = {_compressed_group(group, config) for group in groups.values()}
    if len(schemes) > 1:
        raise InputError(
            f"quantization_config mixes {', '.join(sorted(schemes))}, which is not modelled yet"
        )
    return schemes.pop()


def _compressed_group(group: Config, config: Config) -> str:
    weights = group.get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    layout = str(group.get("format") or config.get("format") or "")
    if (bits, kind) == (8, "float"):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (bits, kind) == (4, "float"):
        return "mxfp4" if "mxfp4" in layout or weights.get("group_size") == 32 else "nvfp4"
    if (bits, kind) == (8, "int"):
        return "int8" if group.get("input_activations") else "int8w"
    if (bits, kind) == (4, "int"):
        return _int4(weights.get("group_size"), zeroed=weights.get("symmetric") is False)
    raise InputError(f"quantization_config: weights of {bits} bits ({kind}) are not modelled yet")


def _cache_dtype(config: Config) -> str:
    declared = config.get("kv_cache_quant_algo", config.get("kv_cache_scheme"))
    if isinstance(declared, str) and declared:
        return canonical_cache_dtype(declared)
    if isinstance(declared, Mapping):
        return {8: "fp8", 4: "nvfp4"}.get(declared.get("num_bits", 8), "auto")
    return "auto"


def _ignored(config: Config) -> list[str]:
    patterns: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "exclude_modules"):
        listed = config.get(key) or ()
        if not isinstance(listed, list | tuple):
            raise InputError(f"quantization_config: '{key}' must be a list, got {listed!r}")
        patterns += [str(entry) for entry in listed]
    return patterns


_LAYER_NUMBER = re.compile(r"layers\.(\d+)")

#: Modules outside the decoder whose layers are numbered like its own.
_NOT_DECODER = re.compile(r"(?:^|[.*_])(?:mtp|vision|visual|audio|draft)")


def _scope(ignored: Iterable[str], layer_count: int) -> str:
    """Scope of the quantised matrices, derived from the ignored modules.

    A part counts as ignored where a pattern without a layer number names it, or where
    patterns with one cover at least half the layers: published lists ignore some first or
    last layers, which changes the bytes by a percent or less.
    """
    patterns = list(ignored)
    if not any(_covers(patterns, name, layer_count) for name in ("self_attn", "*.attn.")):
        return "linear"
    return "experts" if _covers(patterns, "shared_expert", layer_count) else "feed_forward"


def _covers(patterns: Iterable[str], part: str, layer_count: int) -> bool:
    numbers: set[int] = set()
    for pattern in patterns:
        if part not in pattern or "indexer" in pattern:
            continue
        numbered = _LAYER_NUMBER.search(pattern)
        if numbered is None:
            return True
        numbers.add(int(numbered[1]))
    return len(numbers) * 2 >= max(1, layer_count)
