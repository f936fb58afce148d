"""Makes the doubles beside the tests importable; pytest's importlib mode does not."""

import sys
from pathlib import Path

for _folder in ("loadgen", "deploy"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))
