"""Scripts of `benchmarks/` as modules, for the tests of what they compute."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def script(path: str) -> ModuleType:
    """The script at a path such as `prediction/spread.py`, imported under its own name."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, FOLDER / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # structs look their own types up
    spec.loader.exec_module(module)
    return module
