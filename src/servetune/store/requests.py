"""What each request of a trial did: one JSON line per request, beside the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from servetune.metrics import Record
from servetune.store.artifacts import write_pieces

__all__ = ["RequestLine", "write_requests"]


class RequestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request; times are seconds since the run began, `None` where they never came.

    Attributes:
        due_s: When its user would have sent it.
        sent_s: When it left.
        admitted_s: When the engine first took up its prompt.
        first_token_s: When the first token came.
        end_s: When the last came, or the run was stopped.
        outcome: As of `metrics.Record`.
        token_times_s: Of every token, where they were asked for.
    """

    index: int
    due_s: float
    sent_s: float
    admitted_s: float | None
    first_token_s: float | None
    end_s: float
    input_tokens: int
    output_tokens: int
    outcome: str
    token_times_s: tuple[float, ...] | None = None


def write_requests(
    path: Path,
    records: Sequence[Record],
    admitted_s: Sequence[float | None],
    *,
    token_times: bool = False,
) -> None:
    """Write all requests of a trial; the file can be replayed as a trace.

    Raises:
        StoreError: It could not be written.
    """
    lines = (
        msgspec.json.encode(_line(record, at, token_times=token_times)).decode() + "\n"
        for record, at in zip(records, admitted_s, strict=True)
    )
    write_pieces(path, lines)


def _line(record: Record, admitted_s: float | None, *, token_times: bool) -> RequestLine:
    times_s = record.chunk_times_s
    return RequestLine(
        index=record.index,
        due_s=record.due_s,
        sent_s=record.sent_s,
        admitted_s=admitted_s,
        first_token_s=times_s[0] if times_s else None,
        end_s=record.end_s,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        outcome=record.outcome,
        token_times_s=tuple(times_s) if token_times else None,
    )
