"""From a Hugging Face `config.json` to a `NetworkShape`.

One table, `FAMILIES`, says for each `model_type` what its configuration leaves unsaid:
defaults of the transformers classes (5.x, 2026), where biases and norms sit, which
layers have a window, which have experts. A `model_type` that is not in the table is
refused: a guess would be wrong by a factor, and silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from servetune.errors import InputError
from servetune.models.quantization import DTYPE_BYTES, canonical_dtype, quantization_from_config
from servetune.models.shape import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    NetworkShape,
)

__all__ = ["FAMILIES", "Family", "shape_from_config"]

#: Keys under which a multimodal configuration keeps its language model.
_TEXT_KEYS = ("text_config", "language_config", "llm_config")

#: Where a window applies, for one layer of a configuration: its tokens or None.
WindowRule = Callable[["_Keys", int], int | None]
FeedForwardRule = Callable[["_Keys", int], FeedForward]


class Family(NamedTuple):
    """What the configurations of one architecture leave unsaid.

    Attributes:
        defaults: Of the transformers class, for keys that a file may leave out.
        tied: Whether input and output embeddings are one matrix where nothing is said.
        bias: Which projections `attention_bias` (or the architecture) gives a bias.
        always_biased: Whether the bias is there without `attention_bias`.
        qk_norm: Normalised queries and keys: never, one weight for all heads, or each its own.
        norms: Normalising vectors per layer.
        latent: Whether attention is latent.
        sinks: Whether each head has a learned sink.
        window: Which layers see a window.
        feed_forward: Which layers have experts, and how many.
    """

    feed_forward: FeedForwardRule
    window: WindowRule
    defaults: Mapping[str, Any] = MappingProxyType({})
    tied: bool = False
    bias: Literal["none", "qkv", "all"] = "all"
    always_biased: bool = False
    qk_norm: Literal["no", "shared", "per_head"] = "no"
    norms: int = 2
    latent: bool = False
    sinks: bool = False


def shape_from_config(config: Mapping[str, Any], *, name: str, source: str) -> NetworkShape:
    """The network that a Hugging Face configuration describes.

    Args:
        config: `config.json` as read; a nested language model is found by itself.
        name: Hub id or folder, for messages.
        source: Where the configuration came from.

    Raises:
        InputError: A key is missing or impossible, or the architecture is not modelled.
    """
    outer, keys, family = _open(config, name)
    layer_count = keys.positive("num_hidden_layers")
    quantization, kv_cache_dtype = quantization_from_config(
        keys.config.get("quantization_config") or outer.get("quantization_config"),
        layer_count=layer_count,
    )
    return NetworkShape(
        name=name,
        architecture=_architecture(outer, keys),
        hidden=keys.positive("hidden_size"),
        layers=_layers(keys, family, layer_count),
        vocab=keys.positive("vocab_size"),
        tied_embeddings=_tied(outer, keys, family),
        max_context_tokens=keys.positive("max_position_embeddings"),
        dtype=_dtype(outer, keys),
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        source=source,
    )


class _Keys:
    """A configuration whose values are checked as they are read."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def positive(self, key: str) -> int:
        """A whole number above zero, which must be there."""
        value = self.config.get(key)
        if value is None:
            raise InputError(
                f"the configuration of '{self.name}' lacks '{key}'",
                hint="give the folder of a complete Hugging Face model, with its config.json",
            )
        return self._whole(key, value, least=1)

    def count(self, key: str, default: int = 0) -> int:
        """A whole number that may be zero."""
        value = self.config.get(key)
        return default if value is None else self._whole(key, value, least=0)

    def optional(self, key: str) -> int | None:
        """A positive number, or None where it is absent, null or zero."""
        return self.count(key) or None

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    def listed(self, key: str, layer: int) -> Any:
        """Entry of one layer in a list that covers all layers, or None without such a list."""
        values = self.config.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or layer >= len(values):
            raise InputError(
                f"the configuration of '{self.name}': '{key}' must list every layer",
                hint="check config.json against the published one",
            )
        return values[layer]

    def _whole(self, key: str, value: Any, *, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wanted = "a whole number above zero" if least else "a whole number, zero or more"
            raise InputError(
                f"the configuration of '{self.name}': '{key}' must be {wanted}, got {value!r}",
                hint="check config.json against the published one",
            )
        return value


def _open(config: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], _Keys, Family]:
    if not isinstance(config, Mapping):
        raise InputError(
            f"the configuration of '{name}' must be a table of keys, got {type(config).__name__}"
        )
    text = next((config[key] for key in _TEXT_KEYS if isinstance(config.get(key), Mapping)), config)
    model_type = text.get("model_type") or config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(
            f"the configuration of '{name}' lacks 'model_type'",
            hint="give the folder of a complete Hugging Face model, with its config.json",
        )
    if model_type not in FAMILIES:
        reason = f" ({_NOT_YET[model_type]})" if model_type in _NOT_YET else ""
        raise InputError(
            f"'{name}' has model_type '{model_type}', which is not modelled yet{reason}",
            hint=f"modelled types are {', '.join(FAMILIES)}",
        )
    family = FAMILIES[model_type]
    said = {key: value for key, value in text.items() if value is not None}
    # A key that is null is said, where null has a meaning: no window.
    nulls = {key: None for key in ("sliding_window",) if key in text and text[key] is None}
    return config, _Keys({**family.defaults, **said, **nulls}, name), family


def _architecture(outer: Mapping[str, Any], keys: _Keys) -> str:
    names = outer.get("architectures") or keys.config.get("architectures")
    if isinstance(names, list | tuple) and names:
        return str(names[0])
    return str(keys.config.get("model_type") or outer.get("model_type"))


def _tied(outer: Mapping[str, Any], keys: _Keys, family: Family) -> bool:
    for config in (keys.config, outer):
        if config.get("tie_word_embeddings") is not None:
            return bool(config["tie_word_embeddings"])
    return family.tied


def _dtype(outer: Mapping[str, Any], keys: _Keys) -> str:
    """The dtype that engines serve in: 32-bit checkpoints run in fp16 (vLLM `--dtype auto`)."""
    for config in (keys.config, outer):
        named = config.get("dtype") or config.get("torch_dtype")
        if isinstance(named, str):
            dtype = canonical_dtype(named)
            return "fp16" if DTYPE_BYTES[dtype] > 2 else dtype
    return "bf16"


def _layers(keys: _Keys, family: Family, layer_count: int) -> tuple[Layer, ...]:
    """Equal neighbours, gathered into groups."""
    singles = [
        (_mixer(keys, family, index), family.feed_forward(keys, index))
        for index in range(layer_count)
    ]
    return tuple(
        Layer(count=len(list(group)), mixer=mixer, feed_forward=part, norms=family.norms)
        for (mixer, part), group in groupby(singles)
    )


def _mixer(keys: _Keys, family: Family, index: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    if family.latent:
        return LatentAttention(
            heads=heads,
            kv_rank=keys.positive("kv_lora_rank"),
            rope_dim=keys.positive("qk_rope_head_dim"),
            nope_dim=keys.positive("qk_nope_head_dim"),
            value_dim=keys.positive("v_head_dim"),
            q_rank=keys.optional("q_lora_rank"),
        )
    kv_heads = keys.optional("num_key_value_heads") or heads
    if heads % kv_heads:
        raise InputError(
            f"the configuration of '{keys.name}': num_attention_heads {heads} "
            f"is no multiple of num_key_value_heads {kv_heads}"
        )
    biased = family.bias != "none" and (family.always_biased or keys.flag("attention_bias"))
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(keys, heads),
        window=_useful_window(keys, family.window(keys, index)),
        qkv_bias=biased,
        output_bias=biased and family.bias == "all",
        qk_norm=family.qk_norm != "no" and keys.flag("use_qk_norm", default=True),
        qk_norm_all_heads=family.qk_norm == "per_head",
        sinks=family.sinks,
    )


def _head_dim(keys: _Keys, heads: int) -> int:
    stated = keys.optional("head_dim")
    if stated is not None:
        return stated
    hidden = keys.positive("hidden_size")
    if hidden % heads:
        raise InputError(
            f"the configuration of '{keys.name}': hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}, and there is no 'head_dim'"
        )
    return hidden // heads


def _useful_window(keys: _Keys, window: int | None) -> int | None:
    """A window as long as the longest context never closes."""
    if window is None or window >= keys.positive("max_position_embeddings"):
        return None
    return window


# Which layers have a window.


def _no_window(_keys: _Keys, _layer: int) -> int | None:
    return None


def _window_everywhere(keys: _Keys, _layer: int) -> int | None:
    return keys.optional("sliding_window")


def _window_after(keys: _Keys, layer: int) -> int | None:
    """Qwen: only where `use_sliding_window` holds, from layer `max_window_layers` on."""
    if not keys.flag("use_sliding_window"):
        return None
    if keys.config.get("layer_types") is not None:
        return _window_by_type(keys, layer)
    return keys.optional("sliding_window") if layer >= keys.count("max_window_layers") else None


def _window_by_type(keys: _Keys, layer: int) -> int | None:
    """Named per layer, else every layer but each `sliding_window_pattern`-th."""
    kind = keys.listed("layer_types", layer)
    if kind is None:
        every = keys.positive("sliding_window_pattern")
        kind = "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
    if kind == "full_attention":
        return None
    if kind == "sliding_attention":
        return keys.optional("sliding_window")
    if kind == "chunked_attention":
        return keys.positive("attention_chunk_size")
    raise InputError(
        f"'{keys.name}' has layers of type '{kind}', which is not modelled yet",
        hint="modelled types are full_attention, sliding_attention and chunked_attention",
    )


def _window_llama4(keys: _Keys, layer: int) -> int | None:
    """Chunks of `attention_chunk_size`, but for each fourth layer, which has no rotation."""
    if keys.config.get("layer_types") is not None:
        return _window_by_type(keys, layer)
    rotates = keys.listed("no_rope_layers", layer) if keys.config.get("no_rope_layers") else None
    if rotates is None:
        rotates = (layer + 1) % keys.positive("no_rope_layer_interval") != 0
    return keys.optional("attention_chunk_size") if rotates else None


# Which layers have experts.


def _dense(keys: _Keys, _layer: int) -> FeedForward:
    return DenseFeedForward(inner=keys.positive("intermediate_size"), bias=keys.flag("mlp_bias"))


def _experts(
    keys: _Keys,
    experts_key: str,
    inner: int,
    *,
    shared_inner: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    bias: bool = False,
) -> ExpertFeedForward:
    experts, active = keys.positive(experts_key), keys.positive("num_experts_per_tok")
    if active > experts:
        raise InputError(
            f"the configuration of '{keys.name}': num_experts_per_tok {active} "
            f"is more than {experts_key} {experts}"
        )
    return ExpertFeedForward(
        experts=experts,
        active=active,
        inner=inner,
        shared_inner=shared_inner,
        shared_gate=shared_gate,
        router_bias=router_bias,
        bias=bias,
    )


def _mixtral(keys: _Keys, _layer: int) -> FeedForward:
    return _experts(keys, "num_local_experts", keys.positive("intermediate_size"))


def _qwen_moe(keys: _Keys, layer: int) -> FeedForward:
    every = keys.positive("decoder_sparse_step")
    if layer in (keys.config.get("mlp_only_layers") or ()) or (layer + 1) % every:
        return _dense(keys, layer)
    shared_inner = keys.count("shared_expert_intermediate_size")
    return _experts(
        keys,
        "num_experts",
        keys.positive("moe_intermediate_size"),
        shared_inner=shared_inner,
        shared_gate=shared_inner > 0,
    )


def _deepseek(keys: _Keys, layer: int) -> FeedForward:
    """The first few layers are dense; later routers carry a correction per expert."""
    every = keys.count("moe_layer_freq", 1) or 1
    if layer < keys.count("first_k_dense_replace") or layer % every:
        return _dense(keys, layer)
    inner = keys.positive("moe_intermediate_size")
    return _experts(
        keys,
        "n_routed_experts",
        inner,
        shared_inner=keys.count("n_shared_experts") * inner,
        router_bias=keys.config.get("topk_method") == "noaux_tc",
    )


def _gpt_oss(keys: _Keys, _layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    return _experts(keys, "num_local_experts", inner, router_bias=True, bias=True)


def _llama4(keys: _Keys, layer: int) -> FeedForward:
    """Experts in each `interleave_moe_layer_step`-th layer, beside one shared expert."""
    every = keys.positive("interleave_moe_layer_step")
    if (layer + 1) % every:
        return DenseFeedForward(inner=keys.positive("intermediate_size_mlp"))
    inner = keys.positive("intermediate_size")
    return _experts(keys, "num_local_experts", inner, shared_inner=inner)


def _minimax(keys: _Keys, _layer: int) -> FeedForward:
    return _experts(
        keys,
        "num_local_experts",
        keys.positive("intermediate_size"),
        shared_inner=keys.count("shared_intermediate_size"),
        router_bias=keys.flag("use_routing_bias"),
    )


_LLAMA = Family(_dense, _no_window, {"max_position_embeddings": 2048})
_QWEN2 = Family(
    _dense, _window_after, {"max_position_embeddings": 32768}, bias="qkv", always_biased=True
)
_QWEN3 = Family(
    _dense, _window_after, {"head_dim": 128, "max_position_embeddings": 32768}, qk_norm="shared"
)
_QWEN_MOE_DEFAULTS = {"decoder_sparse_step": 1, "max_position_embeddings": 32768}
_QWEN2_MOE = _QWEN2._replace(feed_forward=_qwen_moe, defaults=_QWEN_MOE_DEFAULTS)
_QWEN3_MOE = _QWEN3._replace(feed_forward=_qwen_moe, defaults=_QWEN_MOE_DEFAULTS)
_GEMMA2 = Family(
    _dense,
    _window_by_type,
    {
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "head_dim": 256,
        "max_position_embeddings": 8192,
    },
    tied=True,
    norms=4,
)
# The hub's multimodal Gemma 3 files leave out whatever equals the class's defaults.
_GEMMA3 = _GEMMA2._replace(
    qk_norm="shared",
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
)
_DEEPSEEK = Family(_deepseek, _no_window, {"max_position_embeddings": 4096}, latent=True)
_LLAMA4 = Family(
    _llama4,
    _window_llama4,
    {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "smollm3": _LLAMA._replace(tied=True),
        "mistral": Family(
            _dense,
            _window_everywhere,
            {"sliding_window": 4096, "max_position_embeddings": 131072},
            bias="none",
        ),
        "mixtral": Family(
            _mixtral, _window_everywhere, {"max_position_embeddings": 131072}, bias="none"
        ),
        "phi3": Family(_dense, _window_everywhere, {"max_position_embeddings": 4096}, bias="none"),
        "qwen2": _QWEN2,
        "qwen2_moe": _QWEN2_MOE,
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_vl_text": _QWEN3,
        "qwen3_vl_moe_text": _QWEN3_MOE,
        "mimo": _QWEN2._replace(always_biased=False),
        "gemma2": _GEMMA2,
        "gemma3_text": _GEMMA3,
        "glm4": _LLAMA._replace(bias="qkv", norms=4),
        "glm4_moe": Family(
            _deepseek,
            _no_window,
            {"topk_method": "noaux_tc", "use_qk_norm": False, "max_position_embeddings": 131072},
            bias="qkv",
            qk_norm="shared",
        ),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK._replace(
            defaults={**_DEEPSEEK.defaults, "topk_method": "noaux_tc"}
        ),
        "kimi_k2": _DEEPSEEK._replace(defaults={**_DEEPSEEK.defaults, "topk_method": "noaux_tc"}),
        "gpt_oss": Family(
            _gpt_oss,
            _window_by_type,
            {
                "attention_bias": True,
                "sliding_window": 128,
                "sliding_window_pattern": 2,
                "head_dim": 64,
                "max_position_embeddings": 131072,
            },
            sinks=True,
        ),
        "llama4_text": _LLAMA4,
        "minimax_m2": Family(
            _minimax, _no_window, {"max_position_embeddings": 196608}, qk_norm="per_head"
        ),
    }
)

#: What stands in the way of architectures that people will ask for.
_NOT_YET: Mapping[str, str] = MappingProxyType(
    {
        "qwen3_next": "linear attention",
        "qwen3_5_text": "linear attention",
        "qwen3_5_moe_text": "linear attention",
        "kimi_linear": "linear attention",
        "nemotron_h": "Mamba layers",
        "jamba": "Mamba layers",
        "mamba": "a Mamba network",
        "falcon_h1": "Mamba layers",
        "deepseek_v32": "sparse attention",
        "deepseek_v4": "sparse attention",
        "deepseek_ref": "sparse attention",
        "glm_moe_dsa": "sparse attention",
        "minimax_m3": "sparse attention",
        "nemotron-nas": "a network whose layers differ",
        "mimo_v2_flash": "attention whose values are narrower than its keys",
        "gemma4_text": "attention whose heads differ by layer",
    }
)
