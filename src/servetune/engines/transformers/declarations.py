"""Declarations of the settings of `transformers serve`, read without running it."""

from __future__ import annotations

from servetune.engines.declared import typer_settings
from servetune.engines.sources import Declarations, Named, Trees


def _read(trees: Trees) -> Named:
    return {name: spec for t in trees.values() for name, spec in typer_settings(t, "Serve").items()}


DECLARATIONS = Declarations(("transformers/cli/serve.py",), _read)
