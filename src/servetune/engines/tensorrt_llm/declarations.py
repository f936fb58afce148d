"""Declarations of TensorRT-LLM's settings, read without running it."""

from __future__ import annotations

import ast

from servetune.engines.declared import click_settings
from servetune.engines.sources import Declarations, Named, Trees


def _read(trees: Trees) -> Named:
    """The decorators of `serve`, which is what `trtllm-serve MODEL` runs."""
    found: Named = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "serve":
                for decorator in node.decorator_list:
                    found.update(click_settings(decorator))
    return found


DECLARATIONS = Declarations(("tensorrt_llm/commands/serve.py",), _read)
