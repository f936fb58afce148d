"""A law of step times under which every step takes one second, for tests of schedulers."""

from __future__ import annotations

import numpy as np


class OneSecond:
    """Every step takes one second."""

    def seconds(self, *_: float) -> float:
        return 1.0

    def decode_run_s(self, _sequences: int, _context: float, steps: int) -> np.ndarray:
        return np.ones(steps)

    def decode_steps_s(self, _sequences: int, contexts: np.ndarray) -> np.ndarray:
        return np.ones(len(contexts))
