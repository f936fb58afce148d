"""Faults on demand, by which clients are tested."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.errors import InputError
from servetune.option import Count, Fraction, NonNegative, NonNegativeCount, option

Fault = Literal["error", "stall", "truncate", "disconnect"]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults and their frequency. Seconds are real ones, whatever the speed."""

    group: ClassVar[str] = "Faults"

    slow_start_s: Annotated[
        NonNegative,
        option("Seconds for which the port is closed at first.", "--slow-start", metavar="S"),
    ] = 0.0
    die_after_s: Annotated[
        NonNegative | None,
        option(
            "Seconds from the beginning of listening to the end of the process.",
            "--die-after",
            metavar="S",
        ),
    ] = None
    oom_at_start: Annotated[
        bool, option("End of the process for lack of memory instead of listening.")
    ] = False
    oom_at_concurrency: Annotated[
        Count | None,
        option(
            "Running sequences at which the process ends for lack of memory.", metavar="SEQUENCES"
        ),
    ] = None
    error_fraction: Annotated[
        Fraction,
        option("Share of requests answered with status 500.", "--error-rate", metavar="FRACTION"),
    ] = 0.0
    stall_fraction: Annotated[
        Fraction,
        option(
            "Share of requests whose streams stop sending and stay open.",
            "--stall-rate",
            metavar="FRACTION",
        ),
    ] = 0.0
    truncate_fraction: Annotated[
        Fraction,
        option(
            "Share of requests whose streams end early, without an error.",
            "--truncate-rate",
            metavar="FRACTION",
        ),
    ] = 0.0
    disconnect_fraction: Annotated[
        Fraction,
        option(
            "Share of requests whose connections are closed before the end.",
            "--disconnect-rate",
            metavar="FRACTION",
        ),
    ] = 0.0
    after_tokens: Annotated[
        NonNegativeCount | None,
        option(
            "Tokens after which a stream with a fault breaks.",
            "--stall-after",
            metavar="TOKENS",
            default="half of its tokens",
        ),
    ] = None

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
            if (value := getattr(self, name)) != getattr(default, name)
        )


class FaultDraws:
    """The fault of each request, one after another."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self._fractions = faults.fractions
        self._rng = random.Random(seed)  # noqa: S311 - faults, not secrets

    def next(self) -> Fault | None:
        """The next request's fault; every request draws once, so that seeds stay in step."""
        draw, below = self._rng.random(), 0.0
        for fault, fraction in self._fractions:
            below += fraction
            if draw < below:
                return fault
        return None
