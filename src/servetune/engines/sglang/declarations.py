"""Declarations of SGLang's settings, read without running it."""

from __future__ import annotations

from servetune.engines.declared import annotated_fields, argparse_settings, literal_aliases
from servetune.engines.sources import Declarations, Named, Trees


def _read(trees: Trees) -> Named:
    """Settings by name: annotated fields in `fields/` since 0.5.2x, `add_argument` calls before."""
    aliases = literal_aliases(trees.values())
    found: Named = {}
    for path, tree in trees.items():
        if "/fields/" in path:
            found.update(annotated_fields(tree, aliases))
        elif path.endswith("server_args.py"):
            for name, spec in argparse_settings(tree, aliases).items():
                found.setdefault(name, spec)
    return found


DECLARATIONS = Declarations(
    (
        "sglang/srt/server_args.py",
        "sglang/srt/arg_groups/fields/*.py",
        "sglang/srt/arg_groups/choices.py",
    ),
    _read,
)
