"""What servetune means to reach in each scenario, beside what it did in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Figures = Mapping[str, float]
"""One client's medians: `tokens_per_s`, `cpu_s_per_million`, `peak_mb`, `first_request_s`,
`ttft_p50_ms`, `ttft_p99_ms` (as said) and `true_ttft_p50_ms`."""


@dataclass(frozen=True)
class Target:
    """A limit on one figure of ours, which may be counted from another client's.

    Attributes:
        beside: The client that `figure` also takes, or `None`.
        figure: From our figures and the other's, what is compared with the limit.
        at_least: Whether the limit is a floor instead of a ceiling.
    """

    words: str
    limit: float
    figure: Callable[[Figures, Figures], float]
    beside: str | None = None
    at_least: bool = False


def _apart(name: str) -> Callable[[Figures, Figures], float]:
    return lambda ours, theirs: abs(ours[name] - theirs[name])


START = Target("seconds to the first request", 1.0, lambda ours, _: ours["first_request_s"])
TARGETS: Mapping[str, tuple[Target, ...]] = {
    "fast": (
        Target("tokens/s", 200_000, lambda ours, _: ours["tokens_per_s"], at_least=True),
        START,
    ),
    "bursts": (
        Target("tokens/s", 400_000, lambda ours, _: ours["tokens_per_s"], at_least=True),
        START,
    ),
    "steady": (
        Target(
            "times the CPU of the bare reader under load",
            1.3,
            lambda ours, theirs: ours["cpu_s_per_million"] / theirs["cpu_s_per_million"],
            beside="bare uvloop",
        ),
        Target("ms from the C reader's p50 TTFT", 0.3, _apart("ttft_p50_ms"), "C reader"),
        Target("ms from the C reader's p99 TTFT", 1.0, _apart("ttft_p99_ms"), "C reader"),
        START,
    ),
    "crowd": (
        Target(
            "ms between said and true p50 TTFT",
            5.0,
            lambda ours, _: abs(ours["ttft_p50_ms"] - ours["true_ttft_p50_ms"]),
        ),
        Target("MB at most", 200, lambda ours, _: ours["peak_mb"]),
        START,
    ),
}


def verdicts(scenario: str, ours: Figures, others: Mapping[str, Figures]) -> list[str]:
    """A line for each target of a scenario whose figures were all measured."""
    lines = []
    for target in TARGETS.get(scenario, ()):
        theirs = ours if target.beside is None else others.get(target.beside)
        if theirs is None:
            continue
        found = target.figure(ours, theirs)
        good = found >= target.limit if target.at_least else found <= target.limit
        sign = "≥" if target.at_least else "≤"
        verdict = "reached" if good else "**missed**"
        lines.append(f"- {verdict}: {found:,.3g} {target.words} ({sign} {target.limit:,g})")
    return lines
