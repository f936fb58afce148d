"""Networks whose layers differ: the mixer and feed-forward part of each, by model family.

Each function reads one layer of one family's configuration; `hf_config.FAMILIES` refers to
them. Layouts are from the model classes of transformers 5.19 and vLLM 0.32 (2026-11), and
parameter counts were checked against both; from Ling on they are from transformers 5.24 or,
where it has no such class, from vLLM 0.20.
"""

from __future__ import annotations

from typing import Any

from servetune.errors import InputError
from servetune.models.config_keys import Keys
from servetune.models.quantization import canonical_dtype
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    SparseIndex,
    StateSpace,
)

#: Numbers per 32-bit scale of an indexer's 8-bit key (vLLM 0.32).
_INDEX_BLOCK = 128


def _state_dtype(keys: Keys, key: str, default: str = "auto") -> str:
    named = keys.config.get(key)
    if named in (None, "auto"):
        return default
    return canonical_dtype(str(named))


def routed_experts(keys: Keys, experts: int, active: int, **parts: Any) -> ExpertFeedForward:
    if active > experts:
        raise InputError(
            f"the configuration of '{keys.name}': {active} experts per token are more than "
            f"its {experts} experts"
        )
    groups = keys.config.get("n_group")  # read for its cost alone: odd values are none
    if isinstance(groups, bool) or not isinstance(groups, int) or not 0 < groups <= experts:
        groups = None
    return ExpertFeedForward(experts=experts, active=active, groups=groups, **parts)


def latent_attention(keys: Keys, *, rope_dim: int | None = None, **parts: Any) -> LatentAttention:
    """Latent attention from its usual keys, with further `parts` of some families."""
    return LatentAttention(
        heads=keys.positive("num_attention_heads"),
        kv_rank=keys.positive("kv_lora_rank"),
        rope_dim=keys.positive("qk_rope_head_dim") if rope_dim is None else rope_dim,
        nope_dim=keys.positive("qk_nope_head_dim"),
        value_dim=keys.positive("v_head_dim"),
        q_rank=keys.optional("q_lora_rank"),
        **parts,
    )


def grouped_attention(
    keys: Keys,
    heads: int,
    kv_key: str = "num_key_value_heads",
    **parts: Any,
) -> Attention:
    """Attention of some query heads from its usual keys, with further `parts` of some families."""
    bias = keys.flag("attention_bias")
    parts = {"qkv_bias": bias, "output_bias": bias, **parts}
    return Attention(heads=heads, kv_heads=kv_heads_of(keys, heads, kv_key), **parts)


def _index_bytes(dim: int) -> float:
    return dim + dim / _INDEX_BLOCK * 4


# DeepSeek-V3.2 and GLM-5: latent attention over the keys that an indexer selects.


def deepseek_v32(keys: Keys, layer: int, **parts: Any) -> Mixer:
    index = _index(keys, keys.optional("q_lora_rank"))
    return latent_attention(
        keys,
        top_k=keys.positive("index_topk"),
        index=index if _has_index(keys, layer) else None,
        **parts,
    )


def _index(keys: Keys, query_rank: int | None) -> SparseIndex:
    dim = keys.positive("index_head_dim")
    return SparseIndex(
        heads=keys.positive("index_n_heads"),
        dim=dim,
        query_rank=query_rank,
        key_bytes=_index_bytes(dim),
        key_tokens=keys.optional("index_kpool") or 1,
    )


def _has_index(keys: Keys, layer: int) -> bool:
    """Whether a layer has its own indexer instead of an earlier layer's selection (GLM-5.2)."""
    kind = keys.listed("indexer_types", layer)
    if kind is not None:
        return bool(kind == "full")
    pattern = keys.config.get("index_topk_pattern")
    if isinstance(pattern, str) and layer < len(pattern):
        return pattern[layer] != "S"
    every = keys.count("index_topk_freq", 1) or 1
    return max(layer - keys.count("index_skip_topk_offset", 2) + 1, 0) % every == 0


# DeepSeek-V4: a window and compressed earlier blocks; hyper-connections between layers.


def deepseek_v4(keys: Keys, layer: int) -> Mixer:
    ratio = keys.listed("compress_ratios", layer)
    if ratio is None or isinstance(ratio, bool) or not isinstance(ratio, int) or ratio < 0:
        raise keys.wrong(
            f"'compress_ratios' must list a whole number for every layer, got {ratio!r}"
        )
    index = None
    if ratio == 4:  # only the layers with the lower compression have an indexer
        index = _index(keys, keys.positive("q_lora_rank"))
    return CompressedAttention(
        heads=keys.positive("num_attention_heads"),
        head_dim=keys.positive("head_dim"),
        rope_dim=keys.positive("qk_rope_head_dim"),
        q_rank=keys.positive("q_lora_rank"),
        output_groups=keys.positive("o_groups"),
        output_rank=keys.positive("o_lora_rank"),
        window=keys.positive("sliding_window"),
        ratio=ratio,
        overlapping=ratio == 4,
        top_k=keys.positive("index_topk") if index else None,
        index=index,
    )


def deepseek_v4_experts(keys: Keys, layer: int) -> FeedForward:
    """Experts: the first layers route by token table, the others by scores with a bias."""
    inner = keys.positive("moe_intermediate_size")
    return routed_experts(
        keys,
        keys.positive("n_routed_experts"),
        keys.positive("num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("n_shared_experts") * inner,
        router_bias=layer >= keys.count("num_hash_layers"),
    )


def deepseek_v4_hyper_connections(keys: Keys, _layer: int) -> int:
    """Parameters of two mixings of m residual streams: (2 + m)m outputs of m*h inputs each."""
    streams = keys.positive("hc_mult")
    mixed = (2 + streams) * streams
    return 2 * (mixed * streams * keys.positive("hidden_size") + mixed + 3)


def deepseek_v4_last_hyper_connection(keys: Keys, _layers: int) -> int:
    streams = keys.positive("hc_mult")
    return streams * streams * keys.positive("hidden_size") + streams + 1


# GLM-5.3-Flash: KDA, and every fourth layer DeepSeek-V3.2's attention without RoPE, its index of
# pooled keys; hyper-connections between layers (transformers' `glm5_next`, GGUF metadata).


def glm5_next(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer)
    if kind == "deepseek_sparse_attention":
        return deepseek_v32(keys, layer, rope_dim=keys.count("qk_rope_head_dim"))
    if kind != "linear_attention":
        raise keys.not_modelled(f"has layers of type '{kind}'")
    linear = keys.nested("linear_attn_config")
    heads, head_dim = linear.positive("num_heads"), linear.positive("head_dim")
    return _kda(linear, heads, head_dim, decay_rank=head_dim, gate_rank=head_dim)


# Qwen3-Next, Qwen3.5 and Qwen3.6: gated delta nets, and attention with a gate.


def qwen3_next(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer)
    if kind is None:
        every = keys.positive("full_attention_interval")
        kind = "full_attention" if (layer + 1) % every == 0 else "linear_attention"
    if kind == "linear_attention":
        key_heads = keys.positive("linear_num_key_heads")
        value_heads = keys.positive("linear_num_value_heads")
        if value_heads % key_heads:
            raise InputError(
                f"the configuration of '{keys.name}': linear_num_value_heads {value_heads} "
                f"is no multiple of linear_num_key_heads {key_heads}"
            )
        return LinearAttention(
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=keys.positive("linear_key_head_dim"),
            value_dim=keys.positive("linear_value_head_dim"),
            conv_width=keys.positive("linear_conv_kernel_dim"),
            state_dtype=_state_dtype(keys, "mamba_ssm_dtype"),
        )
    if kind != "full_attention":
        raise keys.not_modelled(f"has layers of type '{kind}'")
    heads, head_dim = keys.positive("num_attention_heads"), keys.positive("head_dim")
    gates = heads * head_dim if keys.flag("attn_output_gate", default=True) else 0
    return grouped_attention(keys, heads, head_dim=head_dim, qk_norm=True, gate_columns=gates)


def kv_heads_of(keys: Keys, heads: int, key: str = "num_key_value_heads") -> int:
    kv_heads = keys.optional(key) or heads
    if heads % kv_heads:
        raise InputError(
            f"the configuration of '{keys.name}': {heads} attention heads are no multiple "
            f"of {key} {kv_heads}"
        )
    return kv_heads


def _kda(
    keys: Keys, heads: int, head_dim: int, *, decay_rank: int, gate_rank: int | None = None
) -> LinearAttention:
    """Kimi Delta Attention: linear attention with a decay for each channel of a key."""
    return LinearAttention(
        key_heads=heads,
        value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_width=keys.positive("short_conv_kernel_size"),
        decay="channel",
        decay_rank=decay_rank,
        gate_rank=gate_rank,
        state_dtype="fp32",  # vLLM 0.32 resolves `auto` to it for Kimi's
    )


# Kimi Linear and Kimi K3: KDA, latent attention without RoPE, experts of another width.


def kimi(keys: Keys, layer: int) -> Mixer:
    linear = keys.nested("linear_attn_config")
    linear_layers = linear.members("kda_layers")
    if layer + 1 in linear_layers:  # counted from one
        heads, head_dim = linear.positive("num_heads"), linear.positive("head_dim")
        gate_rank = None if linear.flag("use_full_rank_gate") else head_dim
        return _kda(linear, heads, head_dim, decay_rank=head_dim, gate_rank=gate_rank)
    if linear_layers and layer + 1 not in linear.members("full_attn_layers"):
        raise keys.wrong(f"neither 'kda_layers' nor 'full_attn_layers' names layer {layer + 1}")
    return latent_attention(keys, output_gate=keys.flag("mla_use_output_gate"))


def kimi_experts(keys: Keys, layer: int) -> FeedForward:
    every = keys.count("moe_layer_freq", 1) or 1
    if layer < keys.count("first_k_dense_replace") or layer % every:
        return DenseFeedForward(inner=keys.positive("intermediate_size"))
    inner = keys.positive("moe_intermediate_size")
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive_of("num_experts_per_token", "num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("num_shared_experts") * inner,
        router_bias=True,
        width=keys.optional("routed_expert_hidden_size"),
        width_norm=keys.flag("latent_moe_use_norm"),
    )


def kimi_residuals(keys: Keys, _layer: int) -> int:
    """Parameters of two norms and two weights of earlier blocks' outputs (Kimi K3)."""
    return 4 * keys.positive("hidden_size") if keys.optional("attn_res_block_size") else 0


def kimi_last_residual(keys: Keys, _layers: int) -> int:
    return 2 * keys.positive("hidden_size") if keys.optional("attn_res_block_size") else 0


# MiniMax: lightning attention (Text-01, M1), and a block-sparse indexer (M3).


def minimax_text(keys: Keys, layer: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    head_dim = keys.optional("head_dim") or keys.positive("hidden_size") // heads
    kind = keys.listed("layer_types", layer)
    if kind is None:
        kind = keys.listed("attn_type_list", layer)
    if kind in ("full_attention", 1):
        return Attention(heads=heads, kv_heads=kv_heads_of(keys, heads), head_dim=head_dim)
    if kind not in ("linear_attention", 0):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    return LinearAttention(
        key_heads=heads,
        value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        decay="fixed",
        norm_all_heads=True,
    )


def minimax_m3(keys: Keys, layer: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    sparse = keys.nested("sparse_attention_config")
    index = top_k = None
    if sparse.flag("use_sparse_attention") and sparse.listed("sparse_attention_freq", layer):
        dim = sparse.positive("sparse_index_dim")
        top_k = sparse.positive("sparse_topk_blocks") * sparse.positive("sparse_block_size")
        index = SparseIndex(
            heads=sparse.positive("sparse_num_index_heads"),
            dim=dim,
            key_bytes=2.0 * dim,  # 16 bits by default in vLLM 0.32
            weighted=False,
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads_of(keys, heads),
        head_dim=keys.positive("head_dim"),
        qk_norm=keys.flag("use_qk_norm", default=True),
        top_k=top_k,
        index=index,
    )


def minimax_m3_feed_forward(keys: Keys, layer: int) -> FeedForward:
    if not keys.listed("moe_layer_freq", layer):
        return DenseFeedForward(inner=keys.positive("dense_intermediate_size"))
    shared = keys.count("n_shared_experts") * keys.count("shared_intermediate_size")
    return routed_experts(
        keys,
        keys.positive("num_local_experts"),
        keys.positive("num_experts_per_tok"),
        inner=keys.positive_of("moe_intermediate_size", "intermediate_size"),
        shared_inner=shared,
        router_bias=keys.flag("use_routing_bias"),
    )


# Nemotron-H and Nemotron 3: one part per layer: Mamba, attention, experts or dense.

_NEMOTRON_KINDS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


def _nemotron_kind(keys: Keys, layer: int) -> str:
    kind = keys.listed("layers_block_type", layer)
    if kind is None:
        pattern = keys.config.get("hybrid_override_pattern")
        if not isinstance(pattern, str) or layer >= len(pattern):
            raise keys.wrong("'hybrid_override_pattern' must name every layer")
        kind = _NEMOTRON_KINDS.get(pattern[layer], pattern[layer])
    if kind not in _NEMOTRON_KINDS.values():
        raise keys.not_modelled(f"has layers of type '{kind}'")
    return str(kind)


def nemotron(keys: Keys, layer: int) -> Mixer | None:
    kind = _nemotron_kind(keys, layer)
    if kind == "mamba":
        return StateSpace(
            heads=keys.positive("mamba_num_heads"),
            head_dim=keys.positive("mamba_head_dim"),
            state=keys.positive("ssm_state_size"),
            groups=keys.positive("n_groups"),
            conv_width=keys.positive("conv_kernel"),
            conv_bias=keys.flag("use_conv_bias", default=True),
            bias=keys.flag("mamba_proj_bias"),
            state_dtype=_state_dtype(keys, "mamba_ssm_cache_dtype", default="fp32"),
        )
    if kind != "attention":
        return None
    heads = keys.positive("num_attention_heads")
    head_dim = keys.positive_of("head_dim", "attention_head_dim")
    return grouped_attention(keys, heads, head_dim=head_dim)


def nemotron_feed_forward(keys: Keys, layer: int) -> FeedForward | None:
    """Feed-forward part of two matrices without a gate (squared ReLU)."""
    kind = _nemotron_kind(keys, layer)
    if kind == "mlp":
        inner = keys.positive("intermediate_size")
        return DenseFeedForward(inner=inner, gated=False, bias=keys.flag("mlp_bias"))
    if kind != "moe":
        return None
    return routed_experts(
        keys,
        keys.positive("n_routed_experts"),
        keys.positive("num_experts_per_tok"),
        inner=keys.positive("moe_intermediate_size"),
        shared_inner=keys.count("n_shared_experts", 1)
        * keys.count("moe_shared_expert_intermediate_size"),
        router_bias=True,
        gated=False,
        width=keys.optional("moe_latent_size"),
    )


# Granite 4: Mamba2 or attention, then experts with a dense part beside them, or that part alone.


def granite(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer) or keys.listed("layers_block_type", layer)
    heads = keys.positive("num_attention_heads")
    hidden = keys.positive("hidden_size")
    if kind in ("attention", "full_attention"):
        return grouped_attention(keys, heads, head_dim=hidden // heads)
    if kind not in (None, "mamba", "linear_attention"):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    mamba_heads = keys.positive("mamba_n_heads")
    if keys.positive("mamba_expand") * hidden % mamba_heads:
        raise keys.wrong("'mamba_n_heads' must divide mamba_expand * hidden_size")
    return StateSpace(
        heads=mamba_heads,
        head_dim=keys.positive("mamba_expand") * hidden // mamba_heads,
        state=keys.positive("mamba_d_state"),
        groups=keys.positive("mamba_n_groups"),
        conv_width=keys.positive("mamba_d_conv"),
        conv_bias=keys.flag("mamba_conv_bias", default=True),
        bias=keys.flag("mamba_proj_bias"),
    )


def granite_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    shared = keys.positive("shared_intermediate_size")
    experts = keys.count("num_local_experts")
    if not experts:
        return DenseFeedForward(inner=shared)
    return routed_experts(
        keys,
        experts,
        keys.positive("num_experts_per_tok"),
        inner=keys.positive("intermediate_size"),
        shared_inner=shared,
    )


# Nemotron-NAS: Llama with layers from architecture search, some without attention.


def _nemotron_nas_part(keys: Keys, layer: int, part: str) -> Keys | None:
    block = keys.listed("block_configs", layer)
    table = block.get(part) if isinstance(block, dict) else None
    if not isinstance(table, dict):
        raise keys.wrong(f"'block_configs' must have '{part}' for every layer")
    found = Keys(table, keys.name)
    if found.flag("no_op"):
        return None
    if found.flag("replace_with_linear"):
        raise keys.not_modelled("has layers whose attention or feed-forward part is one matrix")
    return found


def nemotron_nas(keys: Keys, layer: int) -> Mixer | None:
    part = _nemotron_nas_part(keys, layer, "attention")
    if part is None:
        return None
    heads = keys.positive("num_attention_heads")
    hidden = keys.positive("hidden_size")
    return Attention(
        heads=heads,
        kv_heads=heads // part.positive("n_heads_in_group"),
        head_dim=keys.optional("head_dim") or hidden // heads,
        window=part.optional("window_length"),
        qkv_bias=keys.flag("attention_bias"),
        output_bias=keys.flag("attention_bias"),
    )


def nemotron_nas_feed_forward(keys: Keys, layer: int) -> FeedForward | None:
    part = _nemotron_nas_part(keys, layer, "ffn")
    if part is None:
        return None
    inner = part.optional("intermediate_size")
    if inner is None:
        factor = part.config.get("ffn_mult")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            raise InputError(
                f"the configuration of '{keys.name}': 'ffn_mult' must be above zero, got {factor!r}"
            )
        columns = int(2 * factor * keys.positive("hidden_size") / 3)
        inner = -(-columns // 256) * 256
    return DenseFeedForward(inner=inner, bias=keys.flag("mlp_bias"))


def nemotron_nas_norms(keys: Keys, layer: int) -> int:
    """Number of norms: one before each present part."""
    return sum(_nemotron_nas_part(keys, layer, part) is not None for part in ("attention", "ffn"))


# MiMo-V2: values narrower than keys, other head counts in sliding-window layers.


def mimo(keys: Keys, layer: int) -> Mixer:
    windowed = bool(keys.listed("hybrid_layer_pattern", layer))
    prefix = "swa_" if windowed else ""
    heads = keys.positive(f"{prefix}num_attention_heads")
    sinks = "add_swa_attention_sink_bias" if windowed else "add_full_attention_sink_bias"
    return Attention(
        heads=heads,
        kv_heads=kv_heads_of(keys, heads, f"{prefix}num_key_value_heads"),
        head_dim=keys.positive(f"{prefix}head_dim"),
        value_dim=keys.positive(f"{prefix}v_head_dim"),
        window=keys.positive("sliding_window") if windowed else None,
        qkv_bias=keys.flag("attention_bias"),
        sinks=keys.flag(sinks),
    )


def mimo_experts(keys: Keys, layer: int) -> FeedForward:
    if not keys.listed("moe_layer_freq", layer):
        return DenseFeedForward(inner=keys.positive("intermediate_size"))
    inner = keys.positive("moe_intermediate_size")
    return routed_experts(
        keys,
        keys.positive("n_routed_experts"),
        keys.positive("num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("n_shared_experts") * inner,
        router_bias=keys.config.get("topk_method") == "noaux_tc",
    )


# LFM2: gated short convolutions, attention with QK norms in some layers, experts in lfm2_moe.


def lfm2(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer)
    if kind is None:
        listed = keys.config.get("full_attn_idxs") is not None
        short = listed and layer not in keys.members("full_attn_idxs")
        kind = "conv" if short else "full_attention"
    hidden, heads = keys.positive("hidden_size"), keys.positive("num_attention_heads")
    if kind == "full_attention":
        return grouped_attention(keys, heads, head_dim=hidden // heads, qk_norm=True)
    if kind != "conv":
        raise keys.not_modelled(f"has layers of type '{kind}'")
    return StateSpace(
        heads=hidden,
        head_dim=1,
        state=0,
        groups=1,
        conv_width=keys.positive("conv_L_cache"),
        conv_bias=keys.flag("conv_bias"),
        bias=keys.flag("conv_bias"),
    )


def lfm2_feed_forward(keys: Keys, _layer: int) -> FeedForward:
    """Feed-forward part; with `block_auto_adjust_ff_dim` of two thirds of the stated width."""
    inner = keys.positive_of("block_ff_dim", "intermediate_size")
    if keys.flag("block_auto_adjust_ff_dim", default=True):
        factor = keys.config.get("block_ffn_dim_multiplier", 1.0)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            raise keys.wrong(f"'block_ffn_dim_multiplier' must be above zero, got {factor!r}")
        multiple = keys.count("block_multiple_of", 256) or 1
        inner = -(-int(factor * (2 * inner // 3)) // multiple) * multiple
    return DenseFeedForward(inner=inner)


def lfm2_experts(keys: Keys, layer: int) -> FeedForward:
    if layer < keys.count("num_dense_layers"):
        return DenseFeedForward(inner=keys.positive("intermediate_size"))
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive("num_experts_per_tok"),
        inner=keys.positive("moe_intermediate_size"),
        router_bias=keys.flag("use_expert_bias", default=True),
    )


# Step-3.5 and 3.7: more heads in sliding-window layers, one gate per head.


def step(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer) or "full_attention"
    if kind not in ("full_attention", "sliding_attention"):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    other = keys.nested("attention_other_setting")
    source = other if other.config.get("attention_type") == kind else keys
    heads = source.positive("num_attention_heads")
    groups = "num_attention_groups" if "num_attention_groups" in source.config else None
    return Attention(
        heads=heads,
        kv_heads=kv_heads_of(source, heads, groups or "num_key_value_heads"),
        head_dim=source.positive("head_dim"),
        window=keys.positive("sliding_window") if kind == "sliding_attention" else None,
        qk_norm=True,
        gate_columns=heads if keys.flag("use_head_wise_attn_gate") else 0,
    )


def step_feed_forward(keys: Keys, layer: int) -> FeedForward:
    if layer not in _step_expert_layers(keys):
        return DenseFeedForward(inner=keys.positive("intermediate_size"))
    return routed_experts(
        keys,
        keys.positive_of("num_experts", "moe_num_experts", "n_routed_experts"),
        keys.positive_of("num_experts_per_tok", "moe_top_k"),
        inner=keys.positive("moe_intermediate_size"),
        shared_inner=keys.count("share_expert_dim"),
        router_bias=keys.flag("use_moe_router_bias", default=True),
    )


def _step_expert_layers(keys: Keys) -> range | set[int]:
    """Indexes of the layers with experts: listed with commas, or all but the first few."""
    listed = keys.config.get("moe_layers_enum")
    if isinstance(listed, str):
        return {int(number) for number in listed.split(",") if number.strip().isdigit()}
    if isinstance(listed, list | tuple):
        return set(listed)
    return range(keys.count("first_k_dense_replace", 3), keys.positive("num_hidden_layers"))


# Gemma 4: wide heads in full-attention layers, KV sharing between layers, per-layer inputs.


def _gemma4_windowed(keys: Keys, layer: int) -> bool:
    if layer == keys.positive("num_hidden_layers") - 1:
        return False
    kind = keys.listed("layer_types", layer)
    if kind is None:
        return (layer + 1) % keys.positive("sliding_window_pattern") != 0
    if kind not in ("full_attention", "sliding_attention"):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    return bool(kind == "sliding_attention")


def _gemma4_shares_kv(keys: Keys, layer: int) -> bool:
    own = keys.positive("num_hidden_layers") - keys.count("num_kv_shared_layers")
    return layer >= own > 0


def gemma4(keys: Keys, layer: int) -> Mixer:
    windowed = _gemma4_windowed(keys, layer)
    equal = keys.flag("attention_k_eq_v") and not windowed
    heads = keys.positive("num_attention_heads")
    kv_key = "num_key_value_heads"
    if equal and keys.optional("num_global_key_value_heads"):
        kv_key = "num_global_key_value_heads"
    return grouped_attention(
        keys,
        heads,
        kv_key,
        head_dim=keys.positive("head_dim" if windowed else "global_head_dim"),
        window=keys.positive("sliding_window") if windowed else None,
        qk_norm=True,
        key_is_value=equal,
        reuses_kv_cache=_gemma4_shares_kv(keys, layer),
    )


def gemma4_feed_forward(keys: Keys, layer: int) -> FeedForward:
    """Feed-forward part: dense, plus experts with `enable_moe_block`."""
    inner = keys.positive("intermediate_size")
    if keys.flag("use_double_wide_mlp") and _gemma4_shares_kv(keys, layer):
        inner *= 2
    if not keys.flag("enable_moe_block"):
        return DenseFeedForward(inner=inner)
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive("top_k_experts"),
        inner=keys.positive("moe_intermediate_size"),
        shared_inner=inner,
        router_bias=True,
    )


def gemma4_norms(keys: Keys, _layer: int) -> int:
    """Number of norms: around both parts; experts have three more, and a router scale."""
    return 8 if keys.flag("enable_moe_block") else 4


def gemma4_layer_inputs(keys: Keys, _layer: int) -> int:
    width, hidden = keys.count("hidden_size_per_layer_input"), keys.positive("hidden_size")
    return 2 * hidden * width + hidden if width else 0


def gemma4_input_table(keys: Keys, layers: int) -> int:
    """Parameters of the per-layer embeddings and their projection (E2B, E4B)."""
    width = keys.count("hidden_size_per_layer_input")
    if not width:
        return 0
    rows = keys.positive("vocab_size_per_layer_input") + keys.positive("hidden_size")
    return rows * layers * width + width


def _per_layer(keys: Keys, key: str, layer: int, default: int = 0) -> int:
    """Whole number that a file states for all layers or lists for each."""
    value = keys.config.get(key)
    if isinstance(value, list | tuple):
        return Keys({key: keys.listed(key, layer)}, keys.name).count(key, default)
    return keys.count(key, default)


# Ling and Ring (Bailing): experts beside shared ones, the first layers dense.


def bailing(keys: Keys, _layer: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    biased = keys.flag("use_bias")
    return Attention(
        heads=heads,
        kv_heads=kv_heads_of(keys, heads),
        head_dim=keys.optional("head_dim") or keys.positive("hidden_size") // heads,
        qkv_bias=biased or keys.flag("use_qkv_bias"),
        output_bias=biased,
        qk_norm=keys.flag("use_qk_norm"),
    )


def bailing_experts(keys: Keys, layer: int) -> FeedForward:
    biased = keys.flag("use_bias")
    if layer < keys.count("first_k_dense_replace"):
        return DenseFeedForward(inner=keys.positive("intermediate_size"), bias=biased)
    inner = keys.positive("moe_intermediate_size")
    shared = keys.optional("moe_shared_expert_intermediate_size") or inner
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive("num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("num_shared_experts") * shared,
        router_bias=keys.flag("moe_router_enable_expert_bias"),
    )


# Ling 3: KDA with a decay of full rank, and every sixth layer latent attention.


def bailing_hybrid(keys: Keys, layer: int) -> Mixer:
    kind = keys.listed("layer_types", layer)
    if kind is None:
        full = (layer + 1) % keys.positive("layer_group_size") == 0
        kind = "full_attention" if full else "linear_attention"
    if kind == "full_attention":
        return latent_attention(keys)  # without its gate per head, 0.3% of the layer's matrices
    if kind != "linear_attention":
        raise keys.not_modelled(f"has layers of type '{kind}'")
    heads, head_dim = keys.positive("num_attention_heads"), keys.positive("head_dim")
    hidden, width = keys.positive("hidden_size"), heads * head_dim
    # The rank at which two matrices have as many parameters as the one of full rank.
    rank = max(1, round(hidden * width / (hidden + width)))
    return _kda(keys, heads, head_dim, decay_rank=rank)


# Hunyuan: experts beside a dense part in all layers; in Large, every second layer reads the
# keys and values of the one before.


def hunyuan(keys: Keys, layer: int) -> Mixer:
    heads = keys.positive("num_attention_heads")
    stated = keys.optional("head_dim") or keys.optional("attention_head_dim")
    share = keys.count("cla_share_factor", 1) if keys.flag("use_cla") else 1
    return grouped_attention(
        keys,
        heads,
        head_dim=stated or keys.positive("hidden_size") // heads,
        qk_norm=keys.flag("use_qk_norm"),
        reuses_kv_cache=share > 1 and layer % share != 0,
    )


def hunyuan_experts(keys: Keys, layer: int) -> FeedForward:
    """Experts and the dense part; numbers may be listed by layer."""
    inner = keys.positive("intermediate_size")
    experts = _per_layer(keys, "num_experts", layer, 1)
    if experts <= 1:
        return DenseFeedForward(inner=inner, bias=keys.flag("mlp_bias"))
    shared = _per_layer(keys, "num_shared_expert", layer, 1)
    return routed_experts(
        keys,
        experts,
        _per_layer(keys, "moe_topk", layer, 1),
        inner=_per_layer(keys, "moe_intermediate_size", layer) or inner,
        shared_inner=inner * shared if keys.flag("use_mixed_mlp_moe") else 0,
    )


# DBRX: attention and experts in tables of their own.


def dbrx(keys: Keys, _layer: int) -> Mixer:
    heads, hidden = keys.positive("num_attention_heads"), keys.positive("hidden_size")
    if hidden % heads:
        raise keys.wrong("'n_heads' must divide 'd_model'")
    kv_heads = keys.nested("attn_config").count("kv_n_heads", 1) or 1
    if heads % kv_heads:
        raise keys.wrong("'kv_n_heads' must divide 'n_heads'")
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=hidden // heads)


def dbrx_experts(keys: Keys, _layer: int) -> FeedForward:
    table = keys.nested("ffn_config")
    return routed_experts(
        keys,
        table.count("moe_num_experts", 4),
        table.count("moe_top_k", 1),
        inner=table.positive("ffn_hidden_size"),
    )


# Grok: gated experts; in Grok 2 beside a dense part.


def grok_experts(keys: Keys, _layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    return routed_experts(
        keys,
        keys.positive_of("num_experts", "num_local_experts"),
        keys.count("num_experts_per_tok", 2),
        inner=keys.optional("moe_intermediate_size") or inner,
        shared_inner=inner if keys.flag("residual_moe") else 0,
    )


# K-EXAONE: the first layer dense, or those that the file lists.


def exaone_moe_feed_forward(keys: Keys, layer: int) -> FeedForward:
    sparse, kind = keys.listed("is_moe_layer", layer), keys.listed("mlp_layer_types", layer)
    if sparse is None:
        sparse = kind == "sparse" if kind else layer >= keys.count("first_k_dense_replace", 1)
    if not sparse:
        return DenseFeedForward(inner=keys.positive("intermediate_size"))
    inner = keys.positive("moe_intermediate_size")
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive("num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("num_shared_experts", 1) * inner,
        router_bias=True,
    )


# Command A+: the first layers dense and without windows, the others with experts.


def cohere2_moe_window(keys: Keys, layer: int) -> int | None:
    kind = keys.listed("layer_types", layer)
    if kind is None:
        dense = keys.count("first_k_dense_replace")
        every = keys.positive(
            "prefix_dense_sliding_window_pattern" if layer < dense else "sliding_window_pattern"
        )
        place = layer if layer < dense else layer - dense
        kind = "sliding_attention" if (place + 1) % every else "full_attention"
    if kind not in ("full_attention", "sliding_attention"):
        raise keys.not_modelled(f"has layers of type '{kind}'")
    return keys.optional("sliding_window") if kind == "sliding_attention" else None


def cohere2_moe_feed_forward(keys: Keys, layer: int) -> FeedForward:
    kind = keys.listed("mlp_layer_types", layer)
    if kind is None:
        kind = "dense" if layer < keys.count("first_k_dense_replace") else "sparse"
    if kind == "dense":
        stated = keys.optional("prefix_dense_intermediate_size")
        return DenseFeedForward(inner=stated or keys.positive("intermediate_size"))
    inner = keys.positive("intermediate_size")
    return routed_experts(
        keys,
        keys.positive("num_experts"),
        keys.positive("num_experts_per_tok"),
        inner=inner,
        shared_inner=keys.count("num_shared_experts") * inner,
    )


# LongCat-Flash: two layers of attention and a dense part in one, with experts beside the first.


def longcat_layers(keys: Keys) -> int:
    """Layers with one attention each: two for each of the file's."""
    return 2 * keys.positive("num_layers")


def longcat_feed_forward(keys: Keys, layer: int) -> FeedForward:
    """Dense part; in each first of two layers the experts beside it.

    Of the experts that a token chooses some do nothing. It meets as many real ones as their
    share of all is, on average (8 of 12 in LongCat-Flash-Chat).
    """
    inner = keys.positive_of("ffn_hidden_size", "intermediate_size")
    if layer % 2:
        return DenseFeedForward(inner=inner)
    real, idle = keys.positive("n_routed_experts"), keys.count("zero_expert_num")
    chosen = keys.positive_of("moe_topk", "num_experts_per_tok")
    return routed_experts(
        keys,
        real,
        max(1, round(chosen * real / (real + idle))),
        inner=keys.positive_of("expert_ffn_hidden_size", "moe_intermediate_size"),
        shared_inner=inner,
        router_bias=True,
    )


# Arctic: experts beside a dense part as wide as the network, with a norm of their own.


def _arctic_sparse(keys: Keys, layer: int) -> bool:
    return (layer + 1) % keys.positive("moe_layer_frequency") == 0


def arctic_feed_forward(keys: Keys, layer: int) -> FeedForward:
    inner = keys.positive("intermediate_size")
    if not _arctic_sparse(keys, layer):
        return DenseFeedForward(inner=inner)
    return routed_experts(
        keys,
        keys.positive("num_local_experts"),
        keys.count("num_experts_per_tok", 1),
        inner=inner,
        shared_inner=keys.positive("hidden_size") if keys.flag("use_residual") else 0,
    )


def arctic_norms(keys: Keys, layer: int) -> int:
    return 3 if keys.flag("use_residual") and _arctic_sparse(keys, layer) else 2
