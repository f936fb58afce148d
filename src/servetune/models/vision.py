"""Parameter count of a multimodal model's vision tower.

Three layouts cover the published towers whose configuration gives every dimension: Qwen's
(`depth`), Kimi's (`vt_hidden_size`) and Gemma 4's (`gemma4_vision`). Counts were checked
against the model classes of transformers 5.19 (2026-11), except for Kimi K3's tower, whose
class is not in it: it is counted as Kimi K2.5's without biases, which may be wrong by some
millions. Other towers, and those that lack a dimension, count as zero, but for models of the
catalogue, whose entries state the number (`tower_parameters`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from servetune.errors import InputError
from servetune.models.config_keys import Config, Keys


def vision_parameters(config: Config) -> int:
    """Parameters of the vision tower and its projector; zero where unknown.

    Args:
        config: Outer configuration, with its `vision_config`.
    """
    if isinstance(stated := config.get("vision_parameters"), int):
        return stated
    table = config.get("vision_config")
    if not isinstance(table, Mapping):
        return 0
    try:
        return _tower(table, config)
    except InputError:
        return 0  # a known layout that lacks a dimension counts as unknown


def _tower(table: Config, config: Config) -> int:
    keys = Keys(table, "vision_config")
    if "vt_hidden_size" in table:
        return _kimi(keys)
    if table.get("model_type") == "gemma4_vision":
        text = config.get("text_config")
        return _gemma4(keys, Keys(text if isinstance(text, Mapping) else {}, "text_config"))
    if "depth" in table and "num_position_embeddings" in table:
        return _qwen(keys)
    return 0


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _qwen(keys: Keys) -> int:
    """Qwen's tower: multi-frame patches, plain blocks, a merger of `spatial_merge_size`^2."""
    hidden, inner = keys.positive("hidden_size"), keys.positive("intermediate_size")
    pixels = keys.positive("in_channels") * keys.positive("temporal_patch_size")
    pixels *= keys.positive("patch_size") ** 2
    block = 4 * hidden + _linear(hidden, 3 * hidden) + _linear(hidden, hidden)
    block += _linear(hidden, inner) + _linear(inner, hidden)
    merged = hidden * keys.positive("spatial_merge_size") ** 2
    merger = _linear(merged, merged) + _linear(merged, keys.positive("out_hidden_size"))
    mergers = merger + 2 * hidden
    mergers += len(keys.members("deepstack_visual_indexes")) * (merger + 2 * merged)
    positions = keys.positive("num_position_embeddings") * hidden
    return _linear(pixels, hidden) + positions + keys.positive("depth") * block + mergers


def _kimi(keys: Keys) -> int:
    hidden, inner = keys.positive("vt_hidden_size"), keys.positive("vt_intermediate_size")
    attention = keys.optional("qkv_hidden_size") or hidden
    biased = keys.flag("linear_bias", default=True)
    norm = hidden if keys.config.get("norm_type") == "rmsnorm" else 2 * hidden
    block = 2 * norm + _linear(hidden, 3 * attention, bias=biased)
    block += _linear(attention, hidden, bias=biased)
    block += _linear(hidden, inner, bias=biased) + _linear(inner, hidden, bias=biased)
    pixels = 3 * keys.positive("patch_size") ** 2
    patches = _linear(pixels, hidden, bias=keys.flag("patch_embed_proj_bias", default=True))
    positions = keys.positive("init_pos_emb_height") * keys.positive("init_pos_emb_width") * hidden
    sides = keys.members("merge_kernel_size") or (2, 2)
    merged = hidden * math.prod(side for side in sides if isinstance(side, int))
    joint = norm + _linear(merged, merged, bias=biased)
    joint += _linear(merged, keys.positive("text_hidden_size"), bias=biased)
    return patches + positions + keys.positive("vt_num_hidden_layers") * block + norm + joint


def _gemma4(keys: Keys, text: Keys) -> int:
    """Gemma 4's tower: gated blocks, four norms, QK norm, two position tables."""
    hidden, inner = keys.positive("hidden_size"), keys.positive("intermediate_size")
    heads, head_dim = keys.positive("num_attention_heads"), keys.positive("head_dim")
    width, kv_width = heads * head_dim, keys.positive("num_key_value_heads") * head_dim
    block = 2 * hidden * width + 2 * hidden * kv_width + 3 * hidden * inner
    block += 4 * hidden + 2 * head_dim
    tables = 2 * keys.positive("position_embedding_size") * hidden
    patches = 3 * keys.positive("patch_size") ** 2 * hidden
    joint = hidden * text.positive("hidden_size")
    return patches + tables + keys.positive("num_hidden_layers") * block + joint
