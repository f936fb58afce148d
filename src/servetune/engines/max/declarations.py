"""Declarations of MAX's settings, read without running it."""

from __future__ import annotations

import msgspec

from servetune.engines.declared import annotated_fields, click_settings, literal_aliases
from servetune.engines.sources import Declarations, Named, Trees

#: Classes whose fields `max serve` turns into options (`_entrypoints/cli/config.py`).
_CLASSES = (
    "PipelineConfig",
    "PipelineRuntimeConfig",
    "MAXModelConfig",
    "KVCacheConfig",
    "LoRAConfig",
    "ProfilingConfig",
    "SamplingConfig",
    "SpeculativeConfig",
    "DenoisingCacheSettings",
)
_NESTED = frozenset(
    {"device_specs", "in_dtype", "out_dtype", "model", "models", "draft_model", "sampling"}
    | {"profiling", "lora", "speculative", "runtime", "kv_cache", "denoising_cache"}
)


def _read(trees: Trees) -> Named:
    aliases = literal_aliases(trees.values())
    found: Named = {}
    for path, tree in trees.items():
        if "_entrypoints" in path:
            for name, spec in click_settings(tree, aliases).items():
                found.setdefault(name, spec)
        for name, spec in annotated_fields(tree, aliases, classes=_CLASSES).items():
            if name not in _NESTED:
                found[name] = msgspec.structs.replace(spec, negatable=spec.kind == "bool")
    named = found.pop("model_path", None)
    if named is not None:
        found["model"] = msgspec.structs.replace(named, name="model", aliases=("model_path",))
    return found


DECLARATIONS = Declarations(
    (
        "max/_entrypoints/pipelines.py",
        "max/_entrypoints/cli/config.py",
        "max/pipelines/**/*config*.py",
        "max/pipelines/lib/config/*.py",
    ),
    _read,
)
