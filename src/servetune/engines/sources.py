"""Where each engine declares its settings, and how its declarations are read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from servetune.engines.declared import (
    Meaning,
    annotated_fields,
    argparse_settings,
    click_settings,
    literal_aliases,
    settings_of_calls,
    typer_settings,
)
from servetune.engines.settings import SettingSpec

__all__ = ["DECLARATIONS", "Declarations", "read_declarations"]

Named = dict[str, SettingSpec]
Trees = Mapping[str, ast.Module]


class Declarations(msgspec.Struct, frozen=True):
    """Files of an engine's package that declare its settings, and their reader.

    Attributes:
        patterns: Globs below the folder that packages are installed in.
        read: From file name to syntax tree, to settings by name.
    """

    patterns: tuple[str, ...]
    read: Callable[[Trees], Named]


def read_declarations(engine: str, site_packages: Path) -> Named:
    """The settings that the package installed in a folder declares; empty where there is none."""
    declarations = DECLARATIONS.get(engine)
    if declarations is None:
        return {}
    paths = sorted({path for one in declarations.patterns for path in site_packages.glob(one)})
    trees = {
        path.relative_to(site_packages).as_posix(): tree
        for path in paths
        if (tree := _tree(path)) is not None
    }
    return declarations.read(trees) if trees else {}


def _tree(path: Path) -> ast.Module | None:
    """`None` for a file that needs a newer Python to read; a bundled table then stands in."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _vllm(trees: Trees) -> Named:
    """`EngineArgs` borrows types from the classes of `vllm.config`; the frontend has its own."""
    aliases = literal_aliases(trees.values())
    classes = {
        node.name: annotated_fields(node, aliases, classes=[node.name])
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found: Named = {}
    for tree in trees.values():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.name in _VLLM_FUNCTIONS:
                found.update(_borrowing(function, classes, aliases))
    for owner in ("BaseFrontendArgs", "FrontendArgs"):
        for name, spec in classes.get(owner, {}).items():
            kind = "json" if name in _VLLM_JSON else spec.kind
            found[name] = msgspec.structs.replace(spec, kind=kind, negatable=kind == "bool")
    return found


#: `_customize_cli_kwargs` reads these lists as JSON.
_VLLM_JSON = ("allowed_origins", "allowed_methods", "allowed_headers")
_VLLM_FUNCTIONS = ("add_cli_args", "make_arg_parser", "_add_offload_args", "add_args")


def _borrowing(
    function: ast.FunctionDef, classes: Mapping[str, Named], aliases: Mapping[str, Meaning]
) -> Named:
    """Calls such as `group.add_argument("--dtype", **model_kwargs["dtype"])`."""
    owners = {
        node.targets[0].id: node.value.args[0].id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "get_kwargs"
        and isinstance(node.value.args[0], ast.Name)
    }
    found: Named = {}
    for call in ast.walk(function):
        if not isinstance(call, ast.Call):
            continue
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        for name, spec in settings_of_calls([call], aliases).items():
            lent = _lent(call, owners, classes)
            if lent and lent.kind == "str" and not lent.choices:  # a class: the field may say more
                lent = classes.get("EngineArgs", {}).get(name, lent)
            found[name] = _merged(spec, lent) if lent else spec
    return found


def _lent(
    call: ast.Call, owners: Mapping[str, str], classes: Mapping[str, Named]
) -> SettingSpec | None:
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Dict) and None in value.keys:  # {**kwargs["dtype"], "default": 1}
            value = value.values[value.keys.index(None)]
        if (
            keyword.arg is None
            and isinstance(value, ast.Subscript)
            and isinstance(value.value, ast.Name)
            and isinstance(value.slice, ast.Constant)
        ):
            owner = owners.get(value.value.id, "")
            return classes.get(owner, {}).get(str(value.slice.value))
    return None


def _merged(spec: SettingSpec, lent: SettingSpec) -> SettingSpec:
    return msgspec.structs.replace(
        spec,
        kind=lent.kind,
        negatable=lent.kind == "bool",
        choices=lent.choices,
        minimum=lent.minimum,
        maximum=lent.maximum,
    )


def _sglang(trees: Trees) -> Named:
    """Fields of namespaces since 0.5.2x, calls of `add_argument` before."""
    aliases = literal_aliases(trees.values())
    found: Named = {}
    for path, tree in trees.items():
        if "/fields/" in path:
            found.update(annotated_fields(tree, aliases))
        elif path.endswith("server_args.py"):
            for name, spec in argparse_settings(tree, aliases).items():
                found.setdefault(name, spec)
    return found


def _lmdeploy(trees: Trees) -> Named:
    """`api_server`'s own arguments, and those of the helper functions that it calls."""
    helpers = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    wanted, found = ["add_parser_api_server"], {}
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen or name not in helpers:
            continue
        seen.add(name)
        found.update(argparse_settings(helpers[name]))
        wanted += [
            call.func.attr
            for call in ast.walk(helpers[name])
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "ArgumentHelper"
        ]
    return found


def _transformers(trees: Trees) -> Named:
    return {name: spec for t in trees.values() for name, spec in typer_settings(t, "Serve").items()}


def _tensorrt_llm(trees: Trees) -> Named:
    """The decorators of `serve`, which is what `trtllm-serve MODEL` runs."""
    found: Named = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "serve":
                for decorator in node.decorator_list:
                    found.update(click_settings(decorator))
    return found


#: Classes whose fields `max serve` turns into options (`_entrypoints/cli/config.py`).
_MAX_CLASSES = (
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
_MAX_NESTED = frozenset(
    {"device_specs", "in_dtype", "out_dtype", "model", "models", "draft_model", "sampling"}
    | {"profiling", "lora", "speculative", "runtime", "kv_cache", "denoising_cache"}
)


def _max(trees: Trees) -> Named:
    aliases = literal_aliases(trees.values())
    found: Named = {}
    for path, tree in trees.items():
        if "_entrypoints" in path:
            for name, spec in click_settings(tree, aliases).items():
                found.setdefault(name, spec)
        for name, spec in annotated_fields(tree, aliases, classes=_MAX_CLASSES).items():
            if name not in _MAX_NESTED:
                found[name] = msgspec.structs.replace(spec, negatable=spec.kind == "bool")
    named = found.pop("model_path", None)
    if named is not None:
        found["model"] = msgspec.structs.replace(named, name="model", aliases=("model_path",))
    return found


DECLARATIONS: Mapping[str, Declarations] = MappingProxyType(
    {
        "vllm": Declarations(
            (
                "vllm/engine/arg_utils.py",
                "vllm/config/*.py",
                "vllm/entrypoints/launchers/cli_args.py",
                "vllm/entrypoints/openai/cli_args.py",
                "vllm/entrypoints/common/cli_args.py",
            ),
            _vllm,
        ),
        "sglang": Declarations(
            (
                "sglang/srt/server_args.py",
                "sglang/srt/arg_groups/fields/*.py",
                "sglang/srt/arg_groups/choices.py",
            ),
            _sglang,
        ),
        "lmdeploy": Declarations(("lmdeploy/cli/serve.py", "lmdeploy/cli/utils.py"), _lmdeploy),
        "transformers": Declarations(("transformers/cli/serve.py",), _transformers),
        "tensorrt-llm": Declarations(("tensorrt_llm/commands/serve.py",), _tensorrt_llm),
        "max": Declarations(
            (
                "max/_entrypoints/pipelines.py",
                "max/_entrypoints/cli/config.py",
                "max/pipelines/**/*config*.py",
                "max/pipelines/lib/config/*.py",
            ),
            _max,
        ),
    }
)
