"""How long a loop may rest: never through the end of an answer, never through a token gap.

Waking up costs more than reading, so that a loop whose times are the kernel's does well to let
tokens gather. Two things would suffer: a user whose answer has ended waits for the next request
to leave, and two tokens of one answer that are read together share a time. Answers whose length
was asked for say when they will end; and the gap between reads is known after a few.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["Foresight"]

LONGEST_S = 0.002
UNFORESEEN_S = 0.00025
"""Where ends come unforeseen: what a next request may be late by."""

GAPS_A_REST = 4
"""A rest is at most this fraction of the gap between two reads of one answer."""

SHORTEST_S = 0.00005
EARLY_S = 0.00015
"""How long before an expected end the loop is awake."""

_WEIGHT = 0.1
_TRUSTED_FRACTION = 0.8


class Foresight:
    """What one process has learnt of answers, and which are about to end."""

    __slots__ = ("_ending_s", "_foreseen_fraction", "_gap_s", "_reads_per_token")

    def __init__(self) -> None:
        self._gap_s = 0.0
        self._reads_per_token = 1.0
        self._foreseen_fraction = 0.0
        self._ending_s: dict[Hashable, float] = {}

    def reads_before_last(self, tokens: int) -> int:
        """How many reads an answer of so many tokens takes, but for the last; 0 if unknown."""
        return max(1, round(tokens * self._reads_per_token) - 1) if tokens > 0 else 0

    def read(self, times_s: Sequence[float]) -> None:
        """Some reads of one answer came at these times."""
        if len(times_s) >= 4:
            gap_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
            known_s = self._gap_s or gap_s
            self._gap_s = known_s + _WEIGHT * (gap_s - known_s)

    def nearly_over(self, answer: Hashable, at_s: float) -> None:
        """One read is left of an answer."""
        self._ending_s[answer] = at_s + self._gap_s - EARLY_S

    def over(self, answer: Hashable, reads: int, tokens: int, *, whole: bool) -> None:
        """It ended, after so many reads."""
        foreseen = self._ending_s.pop(answer, None) is not None
        if whole and tokens > 0:
            self._reads_per_token += _WEIGHT * (reads / tokens - self._reads_per_token)
            self._foreseen_fraction += _WEIGHT * (foreseen - self._foreseen_fraction)

    def rest_s(self, now_s: float) -> float:
        """How long nothing suffers from a rest; 0 for not at all."""
        trusted = self._foreseen_fraction > _TRUSTED_FRACTION
        rest_s = min(LONGEST_S if trusted else UNFORESEEN_S, self._gap_s / GAPS_A_REST)
        if self._ending_s:
            until_s = min(self._ending_s.values()) - now_s
            if until_s < -4 * self._gap_s:  # it did not end: not to be waited for without end
                self._ending_s = {
                    answer: at_s
                    for answer, at_s in self._ending_s.items()
                    if at_s - now_s >= -4 * self._gap_s
                }
            elif until_s < rest_s:
                rest_s = until_s
        return rest_s if rest_s >= SHORTEST_S else 0.0
