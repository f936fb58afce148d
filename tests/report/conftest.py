from __future__ import annotations

import sys
from pathlib import Path

# The factory beside these tests is no package of its own.
sys.path.insert(0, str(Path(__file__).parent))
