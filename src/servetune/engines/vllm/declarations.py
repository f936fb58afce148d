"""Declarations of vLLM's settings, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import msgspec

from servetune.engines.declared import Meaning, annotated_fields, literal_aliases, settings_of_calls
from servetune.engines.settings import SettingSpec
from servetune.engines.sources import Declarations, Named, Trees


def _read(trees: Trees) -> Named:
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
            if isinstance(function, ast.FunctionDef) and function.name in _FUNCTIONS:
                found.update(_borrowing(function, classes, aliases))
    for owner in ("BaseFrontendArgs", "FrontendArgs"):
        for name, spec in classes.get(owner, {}).items():
            kind = "json" if name in _JSON else spec.kind
            found[name] = msgspec.structs.replace(spec, kind=kind, negatable=kind == "bool")
    return found


#: `_customize_cli_kwargs` reads these lists as JSON.
_JSON = ("allowed_origins", "allowed_methods", "allowed_headers")
_FUNCTIONS = ("add_cli_args", "make_arg_parser", "_add_offload_args", "add_args")


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
            borrowed = _borrowed(call, owners, classes)
            # A class is text here: the field of the same name may tell more.
            if borrowed and borrowed.kind == "str" and not borrowed.choices:
                borrowed = classes.get("EngineArgs", {}).get(name, borrowed)
            found[name] = _merged(spec, borrowed) if borrowed else spec
    return found


def _borrowed(
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


def _merged(spec: SettingSpec, borrowed: SettingSpec) -> SettingSpec:
    return msgspec.structs.replace(
        spec,
        kind=borrowed.kind,
        negatable=borrowed.kind == "bool",
        choices=borrowed.choices,
        minimum=borrowed.minimum,
        maximum=borrowed.maximum,
    )


DECLARATIONS = Declarations(
    (
        "vllm/engine/arg_utils.py",
        "vllm/config/*.py",
        "vllm/entrypoints/launchers/cli_args.py",
        "vllm/entrypoints/openai/cli_args.py",
        "vllm/entrypoints/common/cli_args.py",
    ),
    _read,
)
