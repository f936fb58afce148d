"""Models: dimensions, parameter counts, and bytes of weights and KV cache."""

from servetune.models.counting import (
    active_parameter_count,
    embedding_parameter_count,
    kv_bytes,
    kv_bytes_per_token,
    layer_parameters,
    parameter_count,
    state_bytes_per_sequence,
    vision_parameter_count,
    weight_bytes,
)
from servetune.models.hf_config import shape_from_config
from servetune.models.quantization import (
    CheckpointStorage,
    cache_dtype_bytes,
    canonical_cache_dtype,
    canonical_dtype,
    effective_quantization,
    quantization_from_config,
    quantization_named,
)
from servetune.models.shape import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    NetworkShape,
    StateSpace,
)
from servetune.models.source import (
    cached_snapshot,
    catalogue,
    load_config,
    load_shape,
)

__all__ = [
    "Attention",
    "CheckpointStorage",
    "CompressedAttention",
    "DenseFeedForward",
    "ExpertFeedForward",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "NetworkShape",
    "StateSpace",
    "active_parameter_count",
    "cache_dtype_bytes",
    "cached_snapshot",
    "canonical_cache_dtype",
    "canonical_dtype",
    "catalogue",
    "effective_quantization",
    "embedding_parameter_count",
    "kv_bytes",
    "kv_bytes_per_token",
    "layer_parameters",
    "load_config",
    "load_shape",
    "parameter_count",
    "quantization_from_config",
    "quantization_named",
    "shape_from_config",
    "state_bytes_per_sequence",
    "vision_parameter_count",
    "weight_bytes",
]
