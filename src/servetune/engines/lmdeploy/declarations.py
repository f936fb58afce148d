"""Declarations of LMDeploy's settings, read without running it."""

from __future__ import annotations

import ast

from servetune.engines.declared import argparse_settings
from servetune.engines.sources import Declarations, Named, Trees


def _read(trees: Trees) -> Named:
    """`api_server`'s own arguments, and those of the helper functions that it calls."""
    helpers = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    pending, found = ["add_parser_api_server"], {}
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in helpers:
            continue
        seen.add(name)
        found.update(argparse_settings(helpers[name]))
        pending += [
            call.func.attr
            for call in ast.walk(helpers[name])
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "ArgumentHelper"
        ]
    return found


DECLARATIONS = Declarations(("lmdeploy/cli/serve.py", "lmdeploy/cli/utils.py"), _read)
