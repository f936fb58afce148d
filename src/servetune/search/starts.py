"""Seconds that starts of servers take: assumed at first, then as measured.

The logarithm of measured over assumed seconds is a sum of normal parts: one that all starts of a
study have in common (the engine, the disk), one of a checkpoint, one of a server's settings, and
chance. So a measured start says most of the same server, much of servers of its checkpoint, and a
little less of all others; the assumption is what is left of it where nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Standard deviations of the parts: all starts, a checkpoint's, a server's, chance. Judgements:
#: a start of a tiny model takes a tenth of what is assumed, one that compiles everything thrice.
_ALL, _CHECKPOINT, _SERVER, _CHANCE = 0.9, 0.3, 0.2, 0.15


class Starts:
    """What is known of the starts of some servers.

    Args:
        assumed_s: Seconds that the start of each point's server is assumed to take, shape (N,).
        servers: Server of each point.
        checkpoints: Checkpoint that each point's server loads; all the same if omitted.
    """

    def __init__(
        self,
        assumed_s: Array,
        servers: Sequence[Hashable],
        checkpoints: Sequence[Hashable] = (),
    ) -> None:
        self._assumed_s, self._servers = assumed_s, servers
        self._checkpoints = checkpoints or ("",) * len(servers)
        self._measured: dict[tuple[Hashable, float], tuple[int, float]] = {}

    def tell(self, index: int, took_s: float | None) -> None:
        """Take the seconds of a point's start; the points of one running server share a start."""
        if took_s is not None and took_s > 0 and math.isfinite(took_s):
            off = math.log(took_s / max(self._assumed_s[index], 1e-3))
            self._measured.setdefault((self._servers[index], took_s), (index, off))

    def expected_s(self) -> Array:
        """Seconds that the start of each point's server is expected to take, shape (N,)."""
        if not self._measured:
            return self._assumed_s
        points = [index for index, _ in self._measured.values()]
        offs = np.array([off for _, off in self._measured.values()])
        among = self._in_common(points) + _CHANCE**2 * np.eye(len(points))
        whole = range(len(self._servers))
        return np.asarray(
            self._assumed_s * np.exp(np.linalg.solve(among, offs) @ self._in_common(points, whole))
        )

    def _in_common(self, points: Sequence[int], others: Sequence[int] | None = None) -> Array:
        others = points if others is None else others
        found = np.full((len(points), len(others)), _ALL**2)
        for sd, of in ((_CHECKPOINT, self._checkpoints), (_SERVER, self._servers)):
            numbers: dict[Hashable, int] = {}
            here, there = (
                np.array([numbers.setdefault(of[at], len(numbers)) for at in each])
                for each in (points, others)
            )
            found += sd**2 * (here[:, None] == there[None])
        return found
