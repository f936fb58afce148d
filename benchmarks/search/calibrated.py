"""Table of how often picks that were said to be sure were within the margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LEVELS = ((0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01))


def print_calibration(picks: Sequence[tuple[float, bool]]) -> None:
    """Print, by stated probability, the number of picks and the share that was right.

    Args:
        picks: Stated probability of each pick to be within the margin, and whether it was.
    """
    if not picks:
        return
    print("\n| said to be best within 2% | picks | were |\n|---|--:|--:|")
    said, were = np.array([s for s, _ in picks]), np.array([w for _, w in picks])
    for low, high in _LEVELS:
        mine = (said >= low) & (said < high)
        if mine.any():
            print(f"| {low:.0%} to {min(high, 1):.0%} | {mine.sum()} | {were[mine].mean():.0%} |")
