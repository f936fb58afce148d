"""W3C trace context: each request of a run is a trace of its own."""

from __future__ import annotations

import hashlib


def traceparent(run_id: str, index: int) -> str:
    """Value of the W3C `traceparent` header of a run's request.

    Each request is a trace of its own, marked as sampled.

    Example:
        >>> traceparent("run", 7)
        '00-3405e616bfc82a31ae8974fdaccaa023-92c8ae4311b119d8-01'
    """
    trace_id, span_id = trace_ids(run_id, index)
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def trace_ids(run_id: str, index: int) -> tuple[int, int]:
    """The trace's 128 bits and the span's 64, neither of them 0."""
    digest = hashlib.blake2b(f"{run_id}/{index}".encode(), digest_size=24).digest()
    trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    return trace_id or 1, span_id or 1
