"""Hugging Face `config.json` files as `NetworkShape`s.

The table `FAMILIES` holds for each `model_type` what its configuration omits: defaults of the
transformers classes (5.x, 2026), the places of biases and norms, the layers with a window,
the layers with experts. A `model_type` outside the table is refused: a guess could be wrong
by a factor without notice.

Mixers and feed-forward parts of the families are here or, for hybrid networks, in
`hybrids.py`; vision towers are in `vision.py`. Layers used only by speculative decoding
(`num_nextn_predict_layers`) are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from servetune.errors import InputError
from servetune.models import hybrids
from servetune.models.config_keys import Config, Keys
from servetune.models.quantization import (
    DTYPE_BYTES,
    CheckpointStorage,
    canonical_dtype,
    join_parts,
    quantization_from_config,
    quantization_named,
)
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    Layer,
    Mixer,
    NetworkShape,
)
from servetune.models.vision import vision_parameters

#: Keys of the language model in a multimodal configuration.
_TEXT_KEYS = ("text_config", "language_config", "llm_config")

#: Window of one layer in tokens, or None for full attention.
WindowRule = Callable[[Keys, int], int | None]
FeedForwardRule = Callable[[Keys, int], FeedForward | None]
#: Mixer of one layer, for families that `_mixer` does not cover.
MixerRule = Callable[[Keys, int], Mixer | None]
#: Count for one layer: norms, or extra parameters.
CountRule = Callable[[Keys, int], int]


class Family(NamedTuple):
    """Properties of an architecture that its configurations omit.

    Attributes:
        defaults: Defaults of the transformers class, for keys that a file may omit.
        tied: Whether input and output embeddings are one matrix by default.
        bias: Projections with a bias under `attention_bias` (or always).
        always_biased: Whether the bias exists without `attention_bias`.
        qk_norm: QK norm: none, one weight shared by all heads, one per head, or one norm of all
            heads together.
        norms: Norm vectors per layer.
        latent: Whether attention is latent.
        sinks: Whether each head has a learned attention sink.
        window: Rule for the sliding window of each layer.
        feed_forward: Rule for the feed-forward part of each layer.
        mixer: Rule for the mixer of each layer, in hybrid networks.
        norms_of: Rule for the norm vectors, where layers differ.
        extra_layer_parameters: Rule for a layer's parameters outside its parts.
        extra_parameters: Rule for parameters outside layers, embedding and head, given the
            number of layers.
        parallel: Whether attention and feed-forward part run in parallel.
        layer_list: Keys whose list or string has one entry per layer and may replace
            `num_hidden_layers`.
        layer_total: Rule for the number of layers, where it is not `num_hidden_layers`.
        modules: Module names of its checkpoints, where they differ from `_MODULES`.
        renamed: Keys of its configurations -> the usual ones.
    """

    feed_forward: FeedForwardRule
    window: WindowRule
    defaults: Config = MappingProxyType({})
    tied: bool = False
    bias: Literal["none", "qkv", "all"] = "all"
    always_biased: bool = False
    qk_norm: Literal["no", "shared", "per_head", "whole"] = "no"
    norms: int = 2
    latent: bool = False
    sinks: bool = False
    mixer: MixerRule | None = None
    norms_of: CountRule | None = None
    extra_layer_parameters: CountRule | None = None
    extra_parameters: Callable[[Keys, int], int] | None = None
    parallel: Callable[[Keys], bool] | None = None
    layer_list: tuple[str, ...] = ()
    layer_total: Callable[[Keys], int] | None = None
    modules: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    renamed: Mapping[str, str] = MappingProxyType({})


def shape_from_config(config: Config, *, name: str, source: str) -> NetworkShape:
    """Network described by a Hugging Face configuration.

    Args:
        config: Parsed `config.json`, possibly with a nested language model.
        name: Hub id or folder, for messages.
        source: Origin of the configuration.

    Raises:
        InputError: A key is missing or impossible, or the architecture is not modelled.
    """
    outer, keys, family = _open(config, name)
    layer_count = _layer_count(keys, family)
    stored = keys.config.get("quantization_config") or outer.get("quantization_config")
    quantization, kv_cache_dtype = quantization_from_config(stored, layer_count=layer_count)
    singles = _layers(keys, family, layer_count)
    if keys.config.get("expert_dtype") == "fp4" and quantization == "fp8_block":
        # DeepSeek-V4 declares its experts outside the table, which covers the rest.
        quantization = "mxfp4@experts+fp8_block"
    elif quantization != "none":
        singles, quantization = _stored(family, singles, CheckpointStorage(stored), quantization)
    layers = _grouped(singles)
    if kv_cache_dtype == "auto" and isinstance(layers[0].mixer, CompressedAttention):
        kv_cache_dtype = "fp8"  # vLLM 0.32 resolves `auto` to it for DeepSeek-V4
    return NetworkShape(
        name=name,
        architecture=_architecture(outer, keys),
        hidden=keys.positive("hidden_size"),
        layers=layers,
        vocab=keys.positive("vocab_size"),
        tied_embeddings=_tied(outer, keys, family),
        max_context_tokens=keys.positive_of("max_position_embeddings", "model_max_length"),
        dtype=_dtype(outer, keys),
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        source=source,
        extra_parameters=family.extra_parameters(keys, layer_count)
        if family.extra_parameters
        else 0,
        vision_parameters=vision_parameters(outer),
    )


def _layer_count(keys: Keys, family: Family) -> int:
    if family.layer_total is not None:
        return family.layer_total(keys)
    if keys.config.get("num_hidden_layers") is None:
        for key in family.layer_list:
            listed = keys.config.get(key)
            if isinstance(listed, list | tuple | str) and listed:
                return len(listed)
    return keys.positive("num_hidden_layers")


def _open(config: Config, name: str) -> tuple[Config, Keys, Family]:
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
        reason = f" ({_UNSUPPORTED[model_type]})" if model_type in _UNSUPPORTED else ""
        raise InputError(
            f"'{name}' has model_type '{model_type}', which is not modelled yet{reason}",
            hint=f"modelled types are {', '.join(FAMILIES)}",
        )
    family = FAMILIES[model_type]
    given = {
        family.renamed.get(key, key): value for key, value in text.items() if value is not None
    }
    # Null is a value where it has a meaning: no window.
    nulls = {key: None for key in ("sliding_window",) if key in text and text[key] is None}
    return config, Keys({**family.defaults, **given, **nulls}, name), family


def _architecture(outer: Config, keys: Keys) -> str:
    names = outer.get("architectures") or keys.config.get("architectures")
    if isinstance(names, list | tuple) and names:
        return str(names[0])
    return str(keys.config.get("model_type") or outer.get("model_type"))


def _tied(outer: Config, keys: Keys, family: Family) -> bool:
    for config in (keys.config, outer):
        if config.get("tie_word_embeddings") is not None:
            return bool(config["tie_word_embeddings"])
    return family.tied


def _dtype(outer: Config, keys: Keys) -> str:
    """Dtype that engines serve in: fp16 for 32-bit checkpoints (`--dtype auto`)."""
    for config in (keys.config, outer):
        named = config.get("dtype") or config.get("torch_dtype")
        if isinstance(named, str):
            dtype = canonical_dtype(named)
            return "fp16" if DTYPE_BYTES[dtype] > 2 else dtype
    return "bf16"


def _layers(keys: Keys, family: Family, layer_count: int) -> list[Layer]:
    """Layers as groups of one each."""
    return [
        Layer(
            count=1,
            mixer=family.mixer(keys, index) if family.mixer else _mixer(keys, family, index),
            feed_forward=family.feed_forward(keys, index),
            norms=family.norms_of(keys, index) if family.norms_of else family.norms,
            extra_parameters=family.extra_layer_parameters(keys, index)
            if family.extra_layer_parameters
            else 0,
            parallel=family.parallel is not None and family.parallel(keys),
        )
        for index in range(layer_count)
    ]


def _grouped(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers with equal neighbours merged into groups."""
    return tuple(
        msgspec.structs.replace(layer, count=len(list(group))) for layer, group in groupby(layers)
    )


#: Module names of each part's largest matrices, after `layers.N.`.
_MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input": (
            "self_attn.q_proj",
            "self_attn.q_b_proj",
            "self_attn.qkv_proj",
            "conv.in_proj",
            "linear_attn.in_proj_qkv",
            "mixer.in_proj",
            "mixer.q_proj",
            "attn.wq_b",
        ),
        "output": (
            "self_attn.o_proj",
            "self_attn.out_proj",
            "conv.out_proj",
            "linear_attn.out_proj",
            "mixer.out_proj",
            "mixer.o_proj",
            "attn.wo_b",
        ),
        "dense": ("mlp.down_proj", "mixer.down_proj", "ffn.w2", "feed_forward.w2"),
        "shared": (
            "mlp.shared_experts.down_proj",
            "mlp.shared_expert.down_proj",
            "mixer.shared_experts.down_proj",
            "ffn.shared_experts.w2",
        ),
        "experts": (
            "mlp.experts",
            "mlp.experts.0.down_proj",
            "block_sparse_moe.experts.0.w2",
            "mixer.experts.0.down_proj",
            "ffn.experts",
            "feed_forward.experts",
            "experts.0.down_proj",
        ),
    }
)


def _stored(
    family: Family, layers: Sequence[Layer], storage: CheckpointStorage, declared: str
) -> tuple[list[Layer], str]:
    """Layers with their own storage where it differs, and the network's usual storage."""
    called = {**_MODULES, **family.modules}
    found = [
        {part: storage.scheme(index, called[part]) for part in _parts(layer)}
        for index, layer in enumerate(layers)
    ]
    counts: dict[str, Counter[str]] = {}
    for schemes in found:
        for part, scheme in schemes.items():
            counts.setdefault(part, Counter())[scheme] += 1
    usual = {part: tally.most_common(1)[0][0] for part, tally in counts.items()}
    head = quantization_named(declared).covering(("head",))
    network = join_parts({**usual, "head": head.scheme} if head else usual)
    marked = [
        layer
        if all(usual[part] == scheme for part, scheme in schemes.items())
        else msgspec.structs.replace(layer, quantization=join_parts(schemes))
        for layer, schemes in zip(layers, found, strict=True)
    ]
    return marked, network


def _parts(layer: Layer) -> list[str]:
    """Parts of a layer that a quantisation may treat separately."""
    parts = [] if layer.mixer is None else ["input", "output"]
    if isinstance(layer.feed_forward, DenseFeedForward):
        parts.append("dense")
    elif isinstance(layer.feed_forward, ExpertFeedForward):
        parts += ["experts", "shared"] if layer.feed_forward.shared_inner else ["experts"]
    return parts


def _mixer(keys: Keys, family: Family, index: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    if family.latent:
        return hybrids.latent_attention(keys)
    biased = family.bias != "none" and (family.always_biased or keys.flag("attention_bias"))
    return Attention(
        heads=heads,
        kv_heads=hybrids.kv_heads_of(keys, heads),
        head_dim=_head_dim(keys, heads),
        window=_useful_window(keys, family.window(keys, index)),
        qkv_bias=biased,
        output_bias=biased and family.bias == "all",
        qk_norm=family.qk_norm != "no" and keys.flag("use_qk_norm", default=True),
        qk_norm_all_heads=family.qk_norm in ("per_head", "whole"),
        qk_norm_whole=family.qk_norm == "whole",
        sinks=family.sinks,
    )


def _head_dim(keys: Keys, heads: int) -> int:
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


def _useful_window(keys: Keys, window: int | None) -> int | None:
    """Window in tokens; None where it covers the longest context anyway."""
    if window is None or window >= keys.positive("max_position_embeddings"):
        return None
    return window


# Window rules.


def _no_window(_keys: Keys, _layer: int) -> int | None:
    return None


def _window_everywhere(keys: Keys, _layer: int) -> int | None:
    return keys.optional("sliding_window")


def _window_after(keys: Keys, layer: int) -> int | None:
    """Qwen's window: with `use_sliding_window`, from layer `max_window_layers` on."""
    if not keys.flag("use_sliding_window"):
        return None
    if keys.config.get("layer_types") is not None:
        return _window_by_type(keys, layer)
    return keys.optional("sliding_window") if layer >= keys.count("max_window_layers") else None


def _window_by_type(keys: Keys, layer: int) -> int | None:
    """Window by `layer_types`, else in all but every `sliding_window_pattern`-th layer."""
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


def _window_llama4(keys: Keys, layer: int) -> int | None:
    """Llama 4's chunks of `attention_chunk_size`, except in layers without RoPE."""
    if keys.config.get("layer_types") is not None:
        return _window_by_type(keys, layer)
    rotates = keys.listed("no_rope_layers", layer) if keys.config.get("no_rope_layers") else None
    if rotates is None:
        rotates = (layer + 1) % keys.positive("no_rope_layer_interval") != 0
    return keys.optional("attention_chunk_size") if rotates else None


# Feed-forward rules.


def _dense(keys: Keys, _layer: int) -> FeedForward:
    return DenseFeedForward(inner=keys.positive("intermediate_size"), bias=keys.flag("mlp_bias"))


def _dense_alone(keys: Keys, layer: int) -> FeedForward:
    """Dense part of families whose networks of experts have the same `model_type`."""
    if any(keys.count(name, 0) > 1 for name in ("num_experts", "num_local_experts")):
        raise keys.not_modelled("has experts")
    return _dense(keys, layer)


def _experts(keys: Keys, experts_key: str, inner: int, **parts: object) -> ExpertFeedForward:
    experts, active = keys.positive(experts_key), keys.positive("num_experts_per_tok")
    return hybrids.routed_experts(keys, experts, active, inner=inner, **parts)


def _mixtral(keys: Keys, _layer: int) -> FeedForward:
    return _experts(keys, "num_local_experts", keys.positive("intermediate_size"))


def _qwen_moe(keys: Keys, layer: int) -> FeedForward:
    every = keys.positive("decoder_sparse_step")
    if layer in keys.members("mlp_only_layers") or (layer + 1) % every:
        return _dense(keys, layer)
    shared_inner = keys.count("shared_expert_intermediate_size")
    return _experts(
        keys,
        "num_experts",
        keys.positive("moe_intermediate_size"),
        shared_inner=shared_inner,
        shared_gate=shared_inner > 0,
    )


def _deepseek(keys: Keys, layer: int) -> FeedForward:
    """DeepSeek's layers: the first few dense, the others with experts and a router bias."""
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


def _gpt_oss(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    return _experts(keys, "num_local_experts", inner, router_bias=True, bias=True)


def _llama4(keys: Keys, layer: int) -> FeedForward:
    """Llama 4's experts in every `interleave_moe_layer_step`-th layer, with a shared expert."""
    every = keys.positive("interleave_moe_layer_step")
    if (layer + 1) % every:
        return DenseFeedForward(inner=keys.positive("intermediate_size_mlp"))
    inner = keys.positive("intermediate_size")
    return _experts(keys, "num_local_experts", inner, shared_inner=inner)


def _minimax(keys: Keys, _layer: int) -> FeedForward:
    return _experts(
        keys,
        "num_local_experts",
        keys.positive("intermediate_size"),
        shared_inner=keys.count("shared_intermediate_size"),
        router_bias=keys.flag("use_routing_bias"),
    )


def _falcon(keys: Keys, _layer: int) -> Mixer:
    """Falcon's attention: one KV head, or a few with the decoder of the 40B and 180B."""
    heads = keys.positive("num_attention_heads")
    grouped = keys.flag("new_decoder_architecture")
    shared = 1 if keys.flag("multi_query", default=True) else heads
    biased = keys.flag("bias")
    return Attention(
        heads=heads,
        kv_heads=keys.optional("num_kv_heads") or heads if grouped else shared,
        head_dim=_head_dim(keys, heads),
        qkv_bias=biased,
        output_bias=biased,
    )


def _falcon_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.optional("ffn_hidden_size") or 4 * keys.positive("hidden_size")
    return DenseFeedForward(inner=inner, gated=False, bias=keys.flag("bias"))


def _falcon_norms(keys: Keys, _layer: int) -> int:
    """Falcon's norm vectors, biases included; both parts may share one norm."""
    shared = _falcon_parallel(keys) and not keys.flag("new_decoder_architecture")
    return 2 if shared else 4


def _falcon_parallel(keys: Keys) -> bool:
    return keys.flag("new_decoder_architecture") or keys.flag("parallel_attn", default=True)


def _last_norms_bias(keys: Keys, _layers: int) -> int:
    return keys.positive("hidden_size")


def _plain_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    """Two products with biases, as before gates came up."""
    inner = keys.optional("intermediate_size") or 4 * keys.positive("hidden_size")
    return DenseFeedForward(inner=inner, gated=False, bias=True)


def _ungated(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    return DenseFeedForward(inner=inner, gated=False, bias=keys.flag("mlp_bias"))


def _embedding_norm(keys: Keys, layers: int) -> int:
    """Parameters of Bloom's norm after the embedding, with those of the last norm's bias."""
    return 2 * keys.positive("hidden_size") + _last_norms_bias(keys, layers)


def _head_bias(keys: Keys, layers: int) -> int:
    return keys.positive("vocab_size") + _last_norms_bias(keys, layers)


def _mpt(keys: Keys, _layer: int) -> Mixer:
    """MPT's attention: every head has its own keys, unless `kv_n_heads` says otherwise."""
    heads, options = keys.positive("num_attention_heads"), keys.nested("attn_config")
    if not keys.flag("no_bias", default=True):
        raise keys.not_modelled("has biases ('no_bias' is false)")
    grouped = hybrids.kv_heads_of(options, heads, "kv_n_heads")
    kv_heads = 1 if options.config.get("attn_type") == "multiquery_attention" else grouped
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=_head_dim(keys, heads))


def _deci(keys: Keys, _layer: int) -> Mixer:
    """DeciLM's attention with the KV heads of its widest layer, as vLLM holds it in all layers."""
    key, heads = "num_key_value_heads_per_layer", keys.positive("num_attention_heads")
    listed = [Keys({key: each}, keys.name).positive(key) for each in keys.members(key)]
    if not listed:
        return hybrids.grouped_attention(keys, heads, head_dim=_head_dim(keys, heads))
    if len(listed) != keys.positive("num_hidden_layers"):
        raise keys.wrong(f"'{key}' must list every layer")
    most = Keys({key: max(listed)}, keys.name)
    return hybrids.grouped_attention(most, heads, key, head_dim=_head_dim(keys, heads))


def _muse_glimmer(keys: Keys, layer: int) -> Mixer:
    """Muse Glimmer's attention: a gate for each column of its output, QK norm without weights."""
    return _gated_attention(keys, layer)


def _afmoe(keys: Keys, layer: int) -> Mixer:
    """AFMoE's attention (Trinity): as Muse Glimmer's, with weights of the QK norm."""
    return _gated_attention(keys, layer, qk_norm=True)


def _gated_attention(keys: Keys, layer: int, *, qk_norm: bool = False) -> Mixer:
    heads, head_dim = keys.positive("num_attention_heads"), keys.positive("head_dim")
    return hybrids.grouped_attention(
        keys,
        heads,
        head_dim=head_dim,
        window=_useful_window(keys, _window_by_type(keys, layer)),
        qk_norm=qk_norm,
        gate_columns=heads * head_dim,
    )


def _laguna(keys: Keys, layer: int) -> Mixer:
    """Laguna's attention: heads by layer, one gate per head or per column of its output."""
    key, head_dim = "num_attention_heads_per_layer", keys.positive("head_dim")
    heads = keys.positive("num_attention_heads")
    listed = keys.listed(key, layer)
    if listed is not None:
        heads = Keys({key: listed}, keys.name).positive(key)
    gating = keys.config.get("gating", True)
    windowed = keys.listed("layer_types", layer) is not None
    return hybrids.grouped_attention(
        keys,
        heads,
        head_dim=head_dim,
        window=_useful_window(keys, _window_by_type(keys, layer)) if windowed else None,
        qk_norm=True,
        gate_columns=heads if gating in (True, "per-head") else heads * head_dim,
    )


def _laguna_feed_forward(keys: Keys, layer: int) -> FeedForward:
    kind = keys.listed("mlp_layer_types", layer) or ("sparse" if layer else "dense")
    if kind == "dense":
        return _dense(keys, layer)
    return _experts(
        keys,
        "num_experts",
        keys.positive("moe_intermediate_size"),
        shared_inner=keys.count("shared_expert_intermediate_size"),
        router_bias=True,
    )


def _chatglm(keys: Keys, _layer: int) -> Mixer:
    """ChatGLM2's attention, also of ChatGLM3 and the first GLM-4: biases by two switches."""
    heads, biased = keys.positive("num_attention_heads"), keys.flag("add_bias_linear")
    grouped = hybrids.kv_heads_of(keys, heads)
    return Attention(
        heads=heads,
        kv_heads=grouped if keys.flag("multi_query_attention") else heads,
        head_dim=_head_dim(keys, heads),
        qkv_bias=biased or keys.flag("add_qkv_bias"),
        output_bias=biased,
    )


def _chatglm_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    return DenseFeedForward(inner=inner, bias=keys.flag("add_bias_linear"))


def _first_qwen_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    """Feed-forward part of the first Qwen, whose files state twice its width."""
    stated = keys.positive("intermediate_size")
    if stated % 2:
        raise keys.wrong(f"'intermediate_size' must be even, got {stated}")
    return DenseFeedForward(inner=stated // 2)


def _minicpm_feed_forward(keys: Keys, layer: int) -> FeedForward:
    if not keys.count("num_experts"):
        return _dense(keys, layer)
    return _experts(keys, "num_experts", keys.positive("intermediate_size"))


def _jais_feed_forward(keys: Keys, layer: int) -> FeedForward:
    """GPT-2's feed-forward part, with a gate where the activation is SwiGLU."""
    gated = keys.config.get("activation_function") == "swiglu"
    return msgspec.structs.replace(_plain_feed_forward(keys, layer), gated=gated)


def _jais_positions(keys: Keys, layers: int) -> int:
    if keys.config.get("position_embedding_type") == "alibi":
        return _last_norms_bias(keys, layers)
    return _learned_positions(keys, layers)


def _gpt_neo(keys: Keys, layer: int) -> Mixer:
    """GPT-Neo's attention: no biases but the output's, a window in every `local` layer."""
    heads = keys.positive("num_attention_heads")
    kind = _gpt_neo_kind(keys, layer)
    if kind not in ("global", "local"):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    window = keys.positive("window_size") if kind == "local" else None
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=_head_dim(keys, heads),
        window=_useful_window(keys, window),
        output_bias=True,
    )


def _gpt_neo_kind(keys: Keys, layer: int) -> object:
    """Kind of a layer: `attention_types` has groups of kinds and how often each repeats."""
    for group in keys.members("attention_types"):
        kinds, times = group if isinstance(group, list | tuple) and len(group) == 2 else ((), 0)
        if not isinstance(kinds, list | tuple) or not kinds or not isinstance(times, int):
            raise keys.wrong(f"'attention_types' must list kinds and a number, got {group!r}")
        if layer < len(kinds) * times:
            return kinds[layer % len(kinds)]
        layer -= len(kinds) * times
    raise keys.wrong("'attention_types' must cover every layer")


def _persimmon_qk_biases(keys: Keys, _layer: int) -> int:
    """Biases of Persimmon's QK norms."""
    normed = keys.flag("use_qk_norm", default=True)
    return 2 * _head_dim(keys, keys.positive("num_attention_heads")) if normed else 0


def _phimoe_biases(keys: Keys, layers: int) -> int:
    """Biases of the last norm and, where it has one, of the head."""
    head = keys.positive("vocab_size") if keys.flag("lm_head_bias") else 0
    return head + _last_norms_bias(keys, layers)


def _mllama_cross_layers(keys: Keys) -> int:
    total = keys.positive("num_hidden_layers")
    layers = keys.members("cross_attention_layers")
    known = {each for each in layers if isinstance(each, int) and 0 <= each < total}
    if len(known) != len(layers) or len(known) >= total:
        raise keys.wrong("'cross_attention_layers' must list some of the layers by number")
    return len(known)


def _mllama_layers(keys: Keys) -> int:
    """Layers that run for text: those with attention to images are passed over."""
    return keys.positive("num_hidden_layers") - _mllama_cross_layers(keys)


def _mllama_cross_parameters(keys: Keys, _layers: int) -> int:
    """Parameters of the layers for images, which lie in memory, and of the extra embeddings."""
    heads, hidden = keys.positive("num_attention_heads"), keys.positive("hidden_size")
    head_dim = _head_dim(keys, heads)
    key_width = hybrids.kv_heads_of(keys, heads) * head_dim
    attention = 2 * hidden * (heads * head_dim + key_width) + 2 * head_dim
    # Two norms, and two gates of one number each.
    layer = attention + 3 * hidden * keys.positive("intermediate_size") + 2 * hidden + 2
    return _mllama_cross_layers(keys) * layer + 8 * hidden


def _mpt_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.positive("expansion_ratio") * keys.positive("hidden_size")
    return DenseFeedForward(inner=inner, gated=False)


def _learned_positions(keys: Keys, layers: int) -> int:
    table = keys.positive("max_position_embeddings") + keys.count("position_offset")
    return table * keys.positive("hidden_size") + _last_norms_bias(keys, layers)


def _opt_positions(keys: Keys, layers: int) -> int:
    hidden = keys.positive("hidden_size")
    if keys.count("word_embed_proj_dim", hidden) != hidden:
        raise keys.not_modelled("has an embedding narrower than its layers")
    return _learned_positions(keys, layers)


def _stablelm_norms(keys: Keys, _layer: int) -> int:
    """StableLM's norm vectors, biases included; parallel parts share one norm."""
    return 2 if keys.flag("use_parallel_residual") else 4


#: Windows of 4,096 tokens in three of four layers, where a configuration does not say otherwise.
_FOURTH_LAYER_WHOLE = {
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "max_position_embeddings": 2048,
}
#: Experts from the second layer on, chosen with a correction of their scores.
_FIRST_LAYER_DENSE = {
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "max_position_embeddings": 131072,
}
_LLAMA = Family(_dense, _no_window, {"max_position_embeddings": 2048})
_LFM2 = Family(
    hybrids.lfm2_feed_forward,
    _no_window,
    {"conv_L_cache": 3, "max_position_embeddings": 128000},
    tied=True,
    mixer=hybrids.lfm2,
    layer_list=("layer_types",),
    renamed={"tie_embedding": "tie_word_embeddings"},
)
#: GPT-2's names of the usual keys.
_GPT2_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
    }
)
#: Networks of before 2023: biases everywhere, norms with a bias, no gate.
_PLAIN = Family(
    _plain_feed_forward,
    _no_window,
    always_biased=True,
    norms=4,
    extra_parameters=_last_norms_bias,
)
_GPTJ = _PLAIN._replace(
    always_biased=False,
    norms=2,  # one norm with a bias, before both parts
    parallel=lambda _keys: True,
    extra_parameters=_head_bias,
    renamed=_GPT2_KEYS,
)
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
# Multimodal Gemma 3 files on the hub omit values equal to the class's defaults.
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
_DEEPSEEK_V3 = _DEEPSEEK._replace(defaults={**_DEEPSEEK.defaults, "topk_method": "noaux_tc"})
_GLM4_MOE = Family(
    _deepseek,
    _no_window,
    {"topk_method": "noaux_tc", "use_qk_norm": False, "max_position_embeddings": 131072},
    bias="qkv",
    qk_norm="shared",
)
_COHERE = Family(
    _dense,
    _no_window,
    {"use_qk_norm": False, "max_position_embeddings": 8192},
    tied=True,
    qk_norm="per_head",
    norms=1,
    parallel=lambda _keys: True,
)
_DEEPSEEK_V4 = Family(
    hybrids.deepseek_v4_experts,
    _no_window,
    {"sliding_window": 128, "num_hash_layers": 3, "hc_mult": 4},
    mixer=hybrids.deepseek_v4,
    extra_layer_parameters=hybrids.deepseek_v4_hyper_connections,
    extra_parameters=hybrids.deepseek_v4_last_hyper_connection,
)
_GEMMA4 = Family(
    hybrids.gemma4_feed_forward,
    _no_window,
    {
        "vocab_size": 262144,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "max_position_embeddings": 131072,
    },
    tied=True,
    mixer=hybrids.gemma4,
    norms_of=hybrids.gemma4_norms,
    extra_layer_parameters=hybrids.gemma4_layer_inputs,
    extra_parameters=hybrids.gemma4_input_table,
    # Dense part next to the experts, under the name of a dense layer's.
    modules={"shared": ("mlp.down_proj",), "experts": ("experts", "moe.experts")},
)
_QWEN3_5 = Family(
    _dense,
    _no_window,
    {
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "head_dim": 256,
        "full_attention_interval": 4,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 262144,
    },
    mixer=hybrids.qwen3_next,
)
_MINIMAX_TEXT = Family(
    _mixtral,
    _no_window,
    {"max_position_embeddings": 10240000},
    mixer=hybrids.minimax_text,
)
_MINIMAX_M3 = Family(
    hybrids.minimax_m3_feed_forward,
    _no_window,
    {"use_routing_bias": True, "max_position_embeddings": 1048576},
    mixer=hybrids.minimax_m3,
)
# All published Step models have 96 heads in sliding-window layers; their files may omit it.
_STEP = Family(
    hybrids.step_feed_forward,
    _no_window,
    {
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 96,
            "num_attention_groups": 8,
            "head_dim": 128,
        },
        "use_head_wise_attn_gate": True,
        "head_dim": 128,
        "sliding_window": 512,
        "max_position_embeddings": 65536,
    },
    mixer=hybrids.step,
)
_BAILING = Family(
    hybrids.bailing_experts,
    _no_window,
    mixer=hybrids.bailing,
    modules={"input": ("attention.query_key_value",), "output": ("attention.dense",)},
)
_HUNYUAN = Family(
    hybrids.hunyuan_experts,
    _no_window,
    {"max_position_embeddings": 2048},
    mixer=hybrids.hunyuan,
)
#: Names that several families have for DeepSeek's numbers of experts.
_EXPERT_KEYS = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
_LLAMA4 = Family(
    _llama4,
    _window_llama4,
    {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "falcon": Family(
            _falcon_feed_forward,
            _no_window,
            {"max_position_embeddings": 2048},
            tied=True,
            mixer=_falcon,
            norms_of=_falcon_norms,
            extra_parameters=_last_norms_bias,
            parallel=_falcon_parallel,
        ),
        "aquila": _LLAMA,
        "deci": _LLAMA._replace(mixer=_deci),
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
        **dict.fromkeys(
            ("phi3", "phi3_v"),
            Family(_dense, _window_everywhere, {"max_position_embeddings": 4096}, bias="none"),
        ),
        "qwen2": _QWEN2,
        # Their towers are around the network of Qwen2, whose keys older files have outermost.
        **dict.fromkeys(
            ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
            _QWEN2,
        ),
        "qwen2_moe": _QWEN2_MOE,
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_vl_text": _QWEN3,
        "qwen3_vl_moe_text": _QWEN3_MOE,
        "mimo": _QWEN2._replace(always_biased=False),
        "gemma2": _GEMMA2,
        "gemma3_text": _GEMMA3,
        "muse_glimmer_text": Family(
            _dense,
            _no_window,
            {
                "head_dim": 128,
                "sliding_window": 2048,
                "sliding_window_pattern": 4,
                "max_position_embeddings": 131072,
            },
            mixer=_muse_glimmer,
            norms=4,
        ),
        **dict.fromkeys(("glm4", "glm4v_text"), _LLAMA._replace(bias="qkv", norms=4)),
        **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), _GLM4_MOE),
        "deepseek_v2": _DEEPSEEK,
        "mistral4": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK_V3,
        "kimi_k2": _DEEPSEEK_V3,
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
        "glm4_moe_lite": _DEEPSEEK_V3,
        "deepseek_v32": _DEEPSEEK_V3._replace(mixer=hybrids.deepseek_v32),
        "glm_moe_dsa": _DEEPSEEK_V3._replace(mixer=hybrids.deepseek_v32),
        "glm5_next_text": _DEEPSEEK_V3._replace(
            mixer=hybrids.glm5_next,
            defaults={**_DEEPSEEK_V3.defaults, "hc_mult": 4, "max_position_embeddings": 1048576},
            extra_layer_parameters=hybrids.deepseek_v4_hyper_connections,
            extra_parameters=hybrids.deepseek_v4_last_hyper_connection,
        ),
        "deepseek_v4": _DEEPSEEK_V4,
        "deepseek_ref": _DEEPSEEK_V4,
        "kimi_linear": Family(
            hybrids.kimi_experts,
            _no_window,
            mixer=hybrids.kimi,
            extra_layer_parameters=hybrids.kimi_residuals,
            extra_parameters=hybrids.kimi_last_residual,
        ),
        "qwen3_next": _QWEN3_5._replace(feed_forward=_qwen_moe),
        "qwen3_5_text": _QWEN3_5,
        "qwen3_5_moe_text": _QWEN3_5._replace(feed_forward=_qwen_moe),
        "minimax": _MINIMAX_TEXT,
        "minimax_text_01": _MINIMAX_TEXT,
        "minimax_m1": _MINIMAX_TEXT,
        "minimax_m3": _MINIMAX_M3,
        "minimax_m3_text": _MINIMAX_M3,
        "minimax_m3_vl_text": _MINIMAX_M3,
        "nemotron_h": Family(
            hybrids.nemotron_feed_forward,
            _no_window,
            {"max_position_embeddings": 4096},
            mixer=hybrids.nemotron,
            norms=1,
            layer_list=("layers_block_type", "hybrid_override_pattern"),
        ),
        "nemotron-nas": Family(
            hybrids.nemotron_nas_feed_forward,
            _no_window,
            {"max_position_embeddings": 131072},
            mixer=hybrids.nemotron_nas,
            norms_of=hybrids.nemotron_nas_norms,
            layer_list=("block_configs",),
        ),
        "mimo_v2_flash": Family(
            hybrids.mimo_experts,
            _no_window,
            {"max_position_embeddings": 262144, "topk_method": "noaux_tc"},
            mixer=hybrids.mimo,
        ),
        "step3p5": _STEP,
        "step3p7": _STEP,
        "gemma4_text": _GEMMA4,
        "gemma4_unified_text": _GEMMA4,
        "llama4_text": _LLAMA4,
        "granite": _LLAMA._replace(tied=True),
        "olmo2": _LLAMA._replace(qk_norm="whole"),
        "olmo3": _LLAMA._replace(
            window=_window_by_type, qk_norm="whole", defaults=_FOURTH_LAYER_WHOLE
        ),
        "apertus": Family(
            _ungated, _no_window, {"max_position_embeddings": 65536}, qk_norm="shared"
        ),
        "seed_oss": _LLAMA._replace(
            bias="qkv",
            defaults={"attention_bias": True, "max_position_embeddings": 524288},
        ),
        "glm": _LLAMA._replace(
            bias="qkv",
            defaults={"attention_bias": True, "max_position_embeddings": 131072},
        ),
        "hunyuan_v1_dense": _LLAMA._replace(qk_norm="shared"),
        "hy_v3": Family(
            _deepseek,
            _no_window,
            _FIRST_LAYER_DENSE,
            qk_norm="shared",
            renamed=_EXPERT_KEYS,
        ),
        "ernie4_5": _LLAMA._replace(
            tied=True, defaults={"head_dim": 128, "max_position_embeddings": 131072}
        ),
        "ernie4_5_moe": Family(
            _deepseek,
            _no_window,
            _FIRST_LAYER_DENSE,
            tied=True,
            renamed={
                "moe_num_experts": "n_routed_experts",
                "moe_num_shared_experts": "n_shared_experts",
                "moe_k": "num_experts_per_tok",
                "moe_layer_start_index": "first_k_dense_replace",
                "moe_layer_interval": "moe_layer_freq",
            },
        ),
        "exaone": _LLAMA._replace(renamed={"num_layers": "num_hidden_layers"}),
        "exaone4": _LLAMA._replace(
            window=_window_by_type, qk_norm="shared", defaults=_FOURTH_LAYER_WHOLE
        ),
        "internlm3": _LLAMA._replace(defaults={"head_dim": 128, "max_position_embeddings": 32768}),
        "gemma": _LLAMA._replace(
            tied=True, defaults={"head_dim": 256, "max_position_embeddings": 8192}
        ),
        "cohere": _COHERE,
        "cohere2": _COHERE._replace(
            window=_window_by_type,
            defaults={
                **_COHERE.defaults,
                "sliding_window": 4096,
                "sliding_window_pattern": 4,
            },
        ),
        "granitemoe": Family(_mixtral, _no_window, {"max_position_embeddings": 2048}),
        "olmoe": Family(
            _qwen_moe,
            _no_window,
            {"decoder_sparse_step": 1, "max_position_embeddings": 4096},
            qk_norm="whole",
            renamed={"intermediate_size": "moe_intermediate_size"},
        ),
        "granitemoehybrid": Family(
            hybrids.granite_feed_forward,
            _no_window,
            {
                "mamba_expand": 2,
                "mamba_n_heads": 128,
                "mamba_d_state": 256,
                "mamba_n_groups": 1,
                "mamba_d_conv": 4,
                "max_position_embeddings": 2048,
            },
            mixer=hybrids.granite,
            layer_list=("layer_types", "layers_block_type"),
        ),
        "stablelm": _LLAMA._replace(
            bias="qkv",
            qk_norm="per_head",
            norms_of=_stablelm_norms,
            extra_parameters=_last_norms_bias,
            defaults={"use_qk_norm": False, "max_position_embeddings": 4096},
            parallel=lambda keys: keys.flag("use_parallel_residual"),
            renamed={"use_qkv_bias": "attention_bias", "qk_layernorm": "use_qk_norm"},
        ),
        "starcoder2": _PLAIN._replace(window=_window_everywhere, tied=True),
        "gpt_neox": _PLAIN._replace(
            parallel=lambda keys: keys.flag("use_parallel_residual", default=True)
        ),
        "phi": _PLAIN._replace(
            norms=2,  # as in GPT-J
            parallel=lambda _keys: True,
            defaults={"max_position_embeddings": 2048},
            extra_parameters=_head_bias,
        ),
        "gpt2": _PLAIN._replace(tied=True, extra_parameters=_learned_positions, renamed=_GPT2_KEYS),
        "gpt_bigcode": _PLAIN._replace(
            tied=True,
            defaults={"num_key_value_heads": 1},
            extra_parameters=_learned_positions,
            renamed=_GPT2_KEYS,
        ),
        "opt": _PLAIN._replace(
            tied=True,
            defaults={"position_offset": 2},
            extra_parameters=_opt_positions,
            renamed={"ffn_dim": "intermediate_size"},
        ),
        "bloom": _PLAIN._replace(
            tied=True,
            defaults={"max_position_embeddings": 2048},
            extra_parameters=_embedding_norm,
            renamed={
                **_GPT2_KEYS,
                "n_embed": "hidden_size",
                "seq_length": "max_position_embeddings",
            },
        ),
        "gptj": _GPTJ,
        "codegen": _GPTJ,
        "mpt": Family(
            _mpt_feed_forward,
            _no_window,
            {"expansion_ratio": 4, "max_position_embeddings": 2048},
            tied=True,
            mixer=_mpt,
            renamed={
                "d_model": "hidden_size",
                "n_layers": "num_hidden_layers",
                "n_heads": "num_attention_heads",
                "max_seq_len": "max_position_embeddings",
            },
        ),
        "lfm2": _LFM2,
        "lfm2_moe": _LFM2._replace(feed_forward=hybrids.lfm2_experts),
        "ministral3": Family(
            _dense, _window_everywhere, {"max_position_embeddings": 262144}, bias="none"
        ),
        "minimax_m2": Family(
            _minimax, _no_window, {"max_position_embeddings": 196608}, qk_norm="whole"
        ),
        "internlm": _LLAMA._replace(
            defaults={"attention_bias": True, "max_position_embeddings": 2048},
            renamed={"bias": "attention_bias"},
        ),
        "internlm2": _LLAMA._replace(
            bias="none",
            modules={
                "input": ("attention.wqkv",),
                "output": ("attention.wo",),
                "dense": ("feed_forward.w2",),
            },
        ),
        # The files of 13B state `model_max_length` alone.
        "baichuan": _LLAMA._replace(
            bias="none", defaults={}, modules={"input": ("self_attn.W_pack",)}
        ),
        # Its files state the length of training apart from that of the rotary table; vLLM takes
        # the shorter.
        "qwen": Family(
            _first_qwen_feed_forward,
            _no_window,
            {"max_position_embeddings": 8192},
            bias="qkv",
            always_biased=True,
            renamed={
                "kv_channels": "head_dim",
                "seq_length": "max_position_embeddings",
                "max_position_embeddings": "rotary_positions",
            },
        ),
        "chatglm": Family(
            _chatglm_feed_forward,
            _no_window,
            {"num_hidden_layers": 28, "max_position_embeddings": 2048},
            mixer=_chatglm,
            modules={
                "input": ("self_attention.query_key_value",),
                "output": ("self_attention.dense",),
                "dense": ("mlp.dense_4h_to_h",),
            },
            renamed={
                "ffn_hidden_size": "intermediate_size",
                "kv_channels": "head_dim",
                "multi_query_group_num": "num_key_value_heads",
                "num_layers": "num_hidden_layers",
                "padded_vocab_size": "vocab_size",
                "seq_length": "max_position_embeddings",
            },
        ),
        "dbrx": Family(
            hybrids.dbrx_experts,
            _no_window,
            {"max_position_embeddings": 2048},
            mixer=hybrids.dbrx,
            renamed={
                "d_model": "hidden_size",
                "n_layers": "num_hidden_layers",
                "n_heads": "num_attention_heads",
                "max_seq_len": "max_position_embeddings",
            },
        ),
        "phimoe": Family(
            _mixtral,
            _no_window,
            {"max_position_embeddings": 131072},
            norms=4,
            extra_parameters=_phimoe_biases,
        ),
        "grok-1": Family(
            hybrids.grok_experts,
            _no_window,
            {"max_position_embeddings": 8192},
            bias="none",
            norms=4,
        ),
        "hunyuan": _HUNYUAN,
        "hunyuan_v1_moe": _HUNYUAN,
        "bailing_moe": _BAILING,
        "bailing_moe_v2": _BAILING,
        "bailing_hybrid": Family(
            _deepseek,
            _no_window,
            {
                "head_dim": 128,
                "short_conv_kernel_size": 4,
                "layer_group_size": 6,
                "first_k_dense_replace": 2,
                "n_shared_experts": 1,
                "topk_method": "noaux_tc",
                "max_position_embeddings": 262144,
            },
            mixer=hybrids.bailing_hybrid,
            renamed={
                **_EXPERT_KEYS,
                "num_local_experts": "n_routed_experts",
                "num_experts_per_token": "num_experts_per_tok",
            },
        ),
        "dots1": Family(
            _deepseek,
            _no_window,
            {"topk_method": "noaux_tc", "max_position_embeddings": 2048},
            qk_norm="shared",
        ),
        "deepseek": Family(_deepseek, _no_window, {"max_position_embeddings": 2048}),
        "afmoe": Family(
            _deepseek,
            _no_window,
            {
                "head_dim": 128,
                "sliding_window": 1024,
                "sliding_window_pattern": 4,
                "max_position_embeddings": 16384,
                "first_k_dense_replace": 1,
                "topk_method": "noaux_tc",
            },
            mixer=_afmoe,
            norms=4,
            renamed={
                **_EXPERT_KEYS,
                "num_dense_layers": "first_k_dense_replace",
                "global_attn_every_n_layers": "sliding_window_pattern",
            },
        ),
        "arcee": Family(_ungated, _no_window, {"max_position_embeddings": 4096}),
        "laguna": Family(
            _laguna_feed_forward,
            _no_window,
            {"head_dim": 128, "sliding_window": 512, "max_position_embeddings": 131072},
            mixer=_laguna,
        ),
        "minicpm": _LLAMA._replace(feed_forward=_minicpm_feed_forward, tied=True),
        "nemotron": Family(
            _ungated,
            _no_window,
            {"max_position_embeddings": 4096},
            norms=4,
            extra_parameters=_last_norms_bias,
        ),
        # Its norms have no parameters, yet run: they are counted as if they had (0.004%).
        "olmo": _LLAMA,
        "persimmon": _PLAIN._replace(
            qk_norm="shared",
            defaults={"max_position_embeddings": 16384},
            extra_layer_parameters=_persimmon_qk_biases,
            renamed={"qk_layernorm": "use_qk_norm"},
        ),
        "xverse": _LLAMA._replace(feed_forward=_dense_alone),
        "orion": _LLAMA._replace(
            feed_forward=_dense_alone, norms=4, extra_parameters=_last_norms_bias
        ),
        "solar": _LLAMA,
        "solar_open": Family(
            _deepseek,
            _no_window,
            {
                "head_dim": 128,
                "n_shared_experts": 1,
                "topk_method": "noaux_tc",
                "max_position_embeddings": 131072,
            },
            bias="qkv",
        ),
        "sarvam_moe": Family(
            _deepseek,
            _no_window,
            {
                **_FIRST_LAYER_DENSE,
                "head_dim": 64,
                "n_shared_experts": 1,
            },
            bias="qkv",
            qk_norm="shared",
            renamed={**_EXPERT_KEYS, "use_qkv_bias": "attention_bias"},
        ),
        # Its files state the width of a cached vector as `head_dim`.
        "sarvam_mla": _DEEPSEEK_V3._replace(
            defaults={**_FIRST_LAYER_DENSE, "n_shared_experts": 1}, renamed=_EXPERT_KEYS
        ),
        "exaone_moe": Family(
            hybrids.exaone_moe_feed_forward,
            _window_by_type,
            {
                "sliding_window": 4096,
                "sliding_window_pattern": 4,
                "max_position_embeddings": 2048,
            },
            bias="none",
            qk_norm="shared",
        ),
        "cohere2_moe": Family(
            hybrids.cohere2_moe_feed_forward,
            hybrids.cohere2_moe_window,
            {
                "head_dim": 128,
                "sliding_window": 4096,
                "sliding_window_pattern": 4,
                "prefix_dense_sliding_window_pattern": 1,
                "max_position_embeddings": 8192,
            },
            tied=True,
            norms=1,
            parallel=lambda _keys: True,
        ),
        "mllama_text_model": _LLAMA._replace(
            bias="none",
            defaults={
                "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
                "max_position_embeddings": 131072,
            },
            layer_total=_mllama_layers,
            extra_parameters=_mllama_cross_parameters,
        ),
        "longcat_flash": Family(
            hybrids.longcat_feed_forward,
            _no_window,
            {"max_position_embeddings": 131072},
            latent=True,
            layer_total=hybrids.longcat_layers,
        ),
        "arctic": Family(
            hybrids.arctic_feed_forward,
            _no_window,
            {"moe_layer_frequency": 2, "max_position_embeddings": 4096},
            bias="none",
            norms_of=hybrids.arctic_norms,
        ),
        "jais": _PLAIN._replace(
            feed_forward=_jais_feed_forward,
            tied=True,
            extra_parameters=_jais_positions,
            renamed=_GPT2_KEYS,
        ),
        "gpt_neo": _PLAIN._replace(
            tied=True,
            defaults={"window_size": 256, "max_position_embeddings": 2048},
            mixer=_gpt_neo,
            extra_parameters=_learned_positions,
            renamed={"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"},
        ),
        "xglm": _PLAIN._replace(
            tied=True,
            defaults={"max_position_embeddings": 2048},
            renamed={
                "d_model": "hidden_size",
                "num_layers": "num_hidden_layers",
                "attention_heads": "num_attention_heads",
                "ffn_dim": "intermediate_size",
            },
        ),
    }
)

#: Unsupported architectures, with the feature that is not modelled.
_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "jamba": "Mamba-1 layers",
        "mamba": "a Mamba-1 network",
        "falcon_mamba": "a Mamba-1 network",
        "falcon_h1": "attention and Mamba side by side in one layer",
        "gemma3n_text": "layers that predict their own inputs",
        "minicpm3": "latent attention whose cache has the keys and values of every head",
        "phi3small": "block-sparse attention",
        "step3_text": "queries of low rank beside one KV head",
        "rwkv": "a recurrent network",
    }
)
