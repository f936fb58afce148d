"""When requests arrive: laws of due times, drawn from a generator that is passed in."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from servetune.errors import InputError

__all__ = ["AllAtOnce", "Arrivals", "Constant", "Poisson", "Scheduled"]


class AllAtOnce(msgspec.Struct, frozen=True, tag_field="kind", tag="all_at_once"):
    """Every request is due at the start; with a concurrency limit this is a closed loop."""

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        while True:
            yield 0.0


class Constant(msgspec.Struct, frozen=True, tag_field="kind", tag="constant"):
    """Equal gaps."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _require_rate(self.rate_per_s)

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        count = 0
        while True:
            yield count / self.rate_per_s
            count += 1


class Poisson(msgspec.Struct, frozen=True, tag_field="kind", tag="poisson"):
    """Independent exponential gaps (coefficient of variation 1)."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _require_rate(self.rate_per_s)

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        due_s = 0.0
        while True:
            due_s += float(rng.exponential(1 / self.rate_per_s))
            yield due_s


class Scheduled(msgspec.Struct, frozen=True, tag_field="kind", tag="scheduled"):
    """Times that were seen, such as a trace's; they end."""

    times_s: tuple[float, ...]

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run."""
        yield from self.times_s


Arrivals = AllAtOnce | Constant | Poisson | Scheduled


def _require_rate(rate_per_s: float) -> None:
    if not (np.isfinite(rate_per_s) and rate_per_s > 0):
        raise InputError(
            f"request rate must be positive, got {rate_per_s}",
            hint="leave request_rate out (or 'inf') to send as fast as the concurrency allows",
        )
