"""Budget of a study: how long it may go on, by time or by money."""

from __future__ import annotations

import re
from typing import Self

from servetune.clock import Clock, MonotonicClock
from servetune.errors import InputError
from servetune.units import format_seconds

_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)?")
_SECONDS = {"d": 86_400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0, None: 1.0}


class Budget:
    """Time and money that one call may use, counted from when this was made.

    Money is the machine's price times the time, whether its devices work or not.

    Args:
        limit_s: Time limit; `None` for none.
        max_cost_usd: Limit of the cost; needs a price.
        price_per_hour_usd: Price of the whole machine.
        clock: Monotonic clock, so that setting the wall clock changes nothing.
    """

    def __init__(
        self,
        *,
        limit_s: float | None = None,
        max_cost_usd: float | None = None,
        price_per_hour_usd: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._begin_s = self._clock.now_s()
        limits: list[tuple[float, str]] = []
        if limit_s is not None:
            limits.append((limit_s, f"the budget of {format_seconds(limit_s)} is used up"))
        if max_cost_usd is not None:
            if not price_per_hour_usd:
                raise InputError(
                    "--max-cost needs the machine's price", hint="give it with --price-per-hour"
                )
            seconds = max_cost_usd / price_per_hour_usd * 3600
            reason = f"the budget of ${max_cost_usd:g} is used up (${price_per_hour_usd:g} an hour)"
            limits.append((seconds, reason))
        self._limit: tuple[float, str] | None = min(limits, default=None)

    @classmethod
    def of_rest(cls, rest: tuple[float, str] | None, *, clock: Clock | None = None) -> Self:
        """Budget that another process has left, from now on; see `rest`."""
        budget = cls(clock=clock)
        budget._limit = rest
        return budget

    def rest(self) -> tuple[float, str] | None:
        """Seconds left, and the reason to give when they are over, for another process.

        Clocks of two machines have nothing in common, lengths of time have.
        """
        left_s = self.left_s()
        return None if self._limit is None or left_s is None else (left_s, self._limit[1])

    def exceeded(self) -> str | None:
        """Reason why nothing more may begin; `None` while there is time and money."""
        if self._limit is None or self.used_s() < self._limit[0]:
            return None
        return self._limit[1]

    def used_s(self) -> float:
        return self._clock.now_s() - self._begin_s

    def left_s(self) -> float | None:
        """Seconds left; `None` without a limit."""
        return None if self._limit is None else max(0.0, self._limit[0] - self.used_s())


def parse_duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `30m`, `2h` or `1h30m`.

    Raises:
        InputError: The text is none of these, or empty.
    """
    rest, seconds = text.strip().lower(), 0.0
    while rest:
        match = _PARTS.match(rest)
        if match is None:
            break
        seconds += float(match[1]) * _SECONDS[match[2]]
        rest = rest[match.end() :].lstrip()
    if rest or not 0 < seconds < float("inf"):
        raise InputError(f"'{text}' is no length of time", hint="write it like 90s, 30m or 1h30m")
    return seconds
