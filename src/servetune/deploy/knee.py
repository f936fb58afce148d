"""The measured knee: how many requests in flight a copy serves before more only wait.

It is the load at which autoscaling adds a copy, with headroom for those that arrive while
the copy starts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["HEADROOM", "Knee", "knee_of"]

#: Share of the knee at which another copy is asked for; it takes minutes to come.
HEADROOM = 0.8

#: Of the best throughput, at which the curve counts as flat.
FLAT = 0.9


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where throughput stops growing with concurrency.

    Attributes:
        concurrency: Requests in flight, of all that was measured together.
        output_tokens_per_s: At it.
        points: How many concurrencies were measured; with one, it is that one.
    """

    concurrency: int
    output_tokens_per_s: float
    points: int


def knee_of(points: Iterable[tuple[int, float]]) -> Knee | None:
    """The least concurrency that reaches 90% of the best throughput.

    Half of the mid-range latency, the other usual rule, depends on how far the sweep was
    pushed; this one does not once the curve is flat. `None` without points.

    Example:
        >>> knee_of([(1, 40.0), (16, 500.0), (64, 960.0), (128, 1000.0)]).concurrency
        64

    Args:
        points: Concurrency and output tokens per second, in any order.
    """
    best: dict[int, float] = {}
    for concurrency, throughput in points:
        best[concurrency] = max(throughput, best.get(concurrency, 0.0))
    if not best:
        return None
    top = max(best.values())
    chosen = min(concurrency for concurrency, rate in best.items() if rate >= FLAT * top)
    return Knee(concurrency=chosen, output_tokens_per_s=best[chosen], points=len(best))
