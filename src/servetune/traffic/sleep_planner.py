"""SleepPlanner: how long the loop may sleep while tokens gather.

A wake-up costs more CPU than reading, so a loop whose times come from the kernel does well to let
tokens gather. Two things would suffer from sleeping too long: the next request of a user whose
answer has ended, and the times of two tokens of one answer that are read together. Answers whose
length was requested say when they will end, and the gap between reads is known after a few.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

LONGEST_S = 0.004
UNPREDICTED_S = 0.00025
"""Longest sleep where the ends of answers cannot be predicted: lateness of a next request."""

GAPS_PER_SLEEP = 3
"""Smallest number of sleeps in the gap between two reads of one answer."""

SHORTEST_S = 0.00005
EARLY_S = 0.00015
"""Time before an expected end at which the loop is awake."""

_WEIGHT = 0.1
_SLIGHT_WEIGHT = 0.002
_TRUSTED_FRACTION = 0.8


class SleepPlanner:
    """Statistics of one process's answers, and those that are about to end.

    Answers are expected to have the requested length until some had another. Progress is counted in
    the pieces in which a server sends an answer, as one read may bring two of them.
    """

    __slots__ = (
        "_ending_s",
        "_gap_s",
        "_pieces_at_end",
        "_pieces_per_read",
        "_pieces_per_token",
        "_predicted_fraction",
    )

    def __init__(self) -> None:
        self._gap_s = 0.0
        self._pieces_per_token = 1.0
        self._pieces_per_read = 0.0
        self._pieces_at_end = 0.0
        self._predicted_fraction = 1.0
        self._ending_s: dict[Hashable, float] = {}

    def reads_left(self, tokens: int, pieces: int = 0) -> int:
        """Reads until the end of an answer of so many tokens, after so many pieces; 0 if
        unknown.
        """
        if tokens <= 0:
            return 0
        pieces_left = tokens * self._pieces_per_token - pieces
        return max(0, round(pieces_left / (self._pieces_per_read or 1.0)))

    def read(self, times_s: Sequence[float], pieces: int) -> None:
        """Add reads of one answer: their times, and how many pieces they had together."""
        reads = len(times_s)
        if reads >= 4:
            gap_s = (times_s[-1] - times_s[0]) / (reads - 1)
            known_s = self._gap_s or gap_s
            self._gap_s = known_s + _WEIGHT * (gap_s - known_s)
            if pieces:
                self._pieces_per_read = _usual(self._pieces_per_read, pieces / reads)

    def expect_end(self, answer: Hashable, at_s: float) -> None:
        """Expect the end of an answer of which one read is left."""
        self._ending_s[answer] = at_s + self._gap_s - EARLY_S

    def ended(self, answer: Hashable, tokens: int, pieces: int, last: tuple[int, int]) -> None:
        """Add an answer that ended as it should: its pieces, and its last reads with theirs."""
        predicted = self._ending_s.pop(answer, None) is not None
        self._predicted_fraction += _WEIGHT * (predicted - self._predicted_fraction)
        reads, last_pieces = last
        per_read = self._pieces_per_read or 1.0
        at_end = last_pieces - (reads - 1) * per_read  # in the very last read
        self._pieces_at_end = _usual(self._pieces_at_end, at_end)
        if tokens > 0:
            counted = pieces + last_pieces - self._pieces_at_end + per_read
            self._pieces_per_token += _WEIGHT * (counted / tokens - self._pieces_per_token)

    def forget(self, answer: Hashable) -> None:
        """Drop an answer that will not end as it should."""
        self._ending_s.pop(answer, None)

    def sleep_s(self, now_s: float) -> float:
        """Time that the loop may sleep now; 0 for not at all."""
        trusted = self._predicted_fraction > _TRUSTED_FRACTION
        sleep_s = min(LONGEST_S if trusted else UNPREDICTED_S, self._gap_s / GAPS_PER_SLEEP)
        if self._ending_s:
            until_s = min(self._ending_s.values()) - now_s
            if (
                until_s < -4 * self._gap_s
            ):  # it did not end: it must not keep the loop awake for ever
                self._ending_s = {
                    answer: at_s
                    for answer, at_s in self._ending_s.items()
                    if at_s - now_s >= -4 * self._gap_s
                }
            elif until_s < sleep_s:
                sleep_s = until_s
        return sleep_s if sleep_s >= SHORTEST_S else 0.0


def _usual(known: float, observed: float) -> float:
    """Estimate of a usual number: a smaller one replaces it, a larger one moves it little."""
    if not known:
        return observed
    return min(observed, known + _SLIGHT_WEIGHT * (observed - known))
