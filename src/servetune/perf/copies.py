"""Copies on one machine: how much less they do than as many machines with one copy each.

They share the host's cores and memory, the way to its devices, and the router before them, so that
N copies do less than N times one. The share is that of a resource which all must take in turn for a
small part of their time: `1 / (1 + CONTENTION * (N - 1))`, as in the universal scalability law.
"""

from __future__ import annotations

CONTENTION = 0.0007
"""Part of a copy's time in which others wait for what is shared.

The JumpStart study (January 2024) states the direction: N replicas on one instance do less than N
times one. How much less, no published run shows: eight copies of Llama 2 13B under TGI on
ml.p4d.24xlarge answered 24.7 to 28.0 requests a second in the 90 s in which 100 to 500 users sent
(multi-replica study of that month), 0.91 to 1.04 and at the median 1.02 of eight times what one
copy is predicted to (prompts of 1,000 tokens, answers of 50; `tests/perf/test_copies.py`). The
number is chosen so small that eight copies lose half a percent, which those runs could not show.
A machine of your own may differ: `deploy study` takes what a sweep measured on a full machine.
"""


def host_fraction(copies: float, machines: int = 1) -> float:
    """Throughput of so many copies on so many machines over that of as many alone; 1 for one each.

    Where several machines share copies unevenly it is of the mean. A copy that spans machines
    shares none of them.

    Example:
        >>> host_fraction(1), round(host_fraction(8), 3), host_fraction(8, machines=8)
        (1.0, 0.995, 1.0)
    """
    return 1 / (1 + CONTENTION * (max(1.0, copies / machines) - 1))
