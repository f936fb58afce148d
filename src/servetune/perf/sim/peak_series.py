"""Peaks of a quantity over time, in bounded memory."""

from __future__ import annotations


class PeakSeries:
    """Largest value of each stretch of time.

    Stretches are equally long and start at 0; when there are more than `most` of them, two
    neighbours become one. So a run of any length keeps its peaks, and its size has a bound.
    """

    def __init__(self, most: int = 1000, stretch_s: float = 0.01) -> None:
        self._most = most
        self._stretch_s = stretch_s
        self._largest: dict[int, float] = {}

    def note(self, now_s: float, value: float) -> None:
        """Add a value; times may come in any order."""
        place = int(now_s / self._stretch_s)
        while place >= self._most:
            self._stretch_s *= 2
            halved: dict[int, float] = {}
            for old, largest in self._largest.items():
                halved[old // 2] = max(largest, halved.get(old // 2, largest))
            self._largest = halved
            place = int(now_s / self._stretch_s)
        self._largest[place] = max(value, self._largest.get(place, value))

    def points(self) -> tuple[tuple[float, float], ...]:
        """Pairs (start of the stretch in seconds, largest value), of stretches with a value."""
        return tuple(
            (place * self._stretch_s, value) for place, value in sorted(self._largest.items())
        )
