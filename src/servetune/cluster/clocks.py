"""Monotonic clocks of other nodes, compared with this machine's by round trips."""

from __future__ import annotations

import msgspec

DRIFT = 1e-4
"""Largest rate at which two clocks come apart, in seconds per second: crystals drift by a third
of that, and a daemon that adjusts a clock makes up the rest."""


class ClockSample(msgspec.Struct, frozen=True):
    """Offset of another machine's clock, as one round trip showed it.

    Attributes:
        at_s: Time of the sample on this machine's clock.
        offset_s: Other clock less this one.
        error_s: Bound of the offset's error: half the round trip.
    """

    at_s: float
    offset_s: float
    error_s: float

    @classmethod
    def of(cls, before_s: float, theirs_s: float, after_s: float) -> ClockSample:
        """Sample from this clock before and after a call, and the other clock during it.

        Example:
            >>> ClockSample.of(10.0, 510.5, 11.0)
            ClockSample(at_s=10.5, offset_s=500.0, error_s=0.5)
        """
        middle_s = (before_s + after_s) / 2
        return cls(middle_s, theirs_s - middle_s, (after_s - before_s) / 2)


class Clocks:
    """Samples of another machine's clock; the quickest round trip has the smallest error.

    The error of a sample grows with its age by `DRIFT`, so that long runs follow two clocks
    that come apart.
    """

    def __init__(self) -> None:
        self._samples: list[ClockSample] = []

    def add(self, sample: ClockSample) -> None:
        """Add a round trip; samples that can never be the best again are dropped."""
        kept = [each for each in self._samples if _error_s(each, sample.at_s) < sample.error_s]
        self._samples = [*kept, sample]

    def best(self, now_s: float) -> ClockSample:
        """Sample with the smallest error now, and that error."""
        assert self._samples, "no clock was compared"
        best = min(self._samples, key=lambda each: _error_s(each, now_s))
        return ClockSample(best.at_s, best.offset_s, _error_s(best, now_s))


def _error_s(sample: ClockSample, now_s: float) -> float:
    return sample.error_s + max(0.0, now_s - sample.at_s) * DRIFT
