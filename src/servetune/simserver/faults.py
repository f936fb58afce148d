"""Faults on demand, by which clients are tested."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from servetune.errors import InputError

Fault = Literal["error", "stall", "truncate", "disconnect"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults and their frequency. Seconds are real ones, whatever the speed.

    Attributes:
        slow_start_s: Time for which the port is closed, as it is while a real server loads weights.
        die_after_s: Time from the beginning of listening to the end of the process.
        oom_at_start: Whether the process ends for lack of memory instead of listening.
        oom_at_concurrency: Number of running sequences at which it ends for lack of memory.
        error_fraction: Share of requests that are answered with status 500.
        stall_fraction: Share of requests whose streams stop sending and stay open.
        truncate_fraction: Share of requests whose streams end early, without an error.
        disconnect_fraction: Share of requests whose connections are closed before the end.
        after_tokens: Tokens after which a stream breaks; `None` for half of its tokens.
        seed: Seed of the draws, one for each request in order of arrival.
    """

    slow_start_s: float = 0.0
    die_after_s: float | None = None
    oom_at_start: bool = False
    oom_at_concurrency: int | None = None
    error_fraction: float = 0.0
    stall_fraction: float = 0.0
    truncate_fraction: float = 0.0
    disconnect_fraction: float = 0.0
    after_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(fraction for _, fraction in self.fractions) > 1:
            raise InputError(
                "the fractions of requests with a fault are more than 1 together",
                hint="a request has one fault at most; lower them",
            )

    @property
    def fractions(self) -> tuple[tuple[Fault, float], ...]:
        return (
            ("error", self.error_fraction),
            ("stall", self.stall_fraction),
            ("truncate", self.truncate_fraction),
            ("disconnect", self.disconnect_fraction),
        )

    @property
    def text(self) -> str:
        """Description of the faults for the log; empty without any."""
        default = Faults()
        return ", ".join(
            f"{name}={value}"
            for name in self.__struct_fields__
            if name != "seed" and (value := getattr(self, name)) != getattr(default, name)
        )


class FaultDraws:
    """The fault of each request, one after another."""

    def __init__(self, faults: Faults) -> None:
        self._fractions = faults.fractions
        self._rng = random.Random(faults.seed)  # noqa: S311 - faults, not secrets

    def next(self) -> Fault | None:
        """The next request's fault; every request draws once, so that seeds stay in step."""
        draw, below = self._rng.random(), 0.0
        for fault, fraction in self._fractions:
            below += fraction
            if draw < below:
                return fault
        return None
