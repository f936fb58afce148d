"""Requests of a trial, each with what it did, beside the journal: JSON lines, CSV, Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np

from servetune.decoding import ready
from servetune.errors import StoreError
from servetune.metrics import Record
from servetune.metrics.record import Outcome
from servetune.store.artifacts import write_pieces
from servetune.store.tables import csv_lines, write_parquet_table


class RequestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request of a trial; times are seconds since the run began, `None` where they never came.

    Attributes:
        index: Index of the request in the run.
        due_s: Time at which its user would have sent it.
        sent_s: Time at which it left.
        admitted_s: Time at which the engine first took up its prompt.
        first_token_s: Arrival of the first token.
        end_s: Arrival of the last token, or the time at which the run was stopped.
        input_tokens: Prompt tokens.
        output_tokens: Output tokens.
        outcome: Outcome as of `metrics.Record`.
        token_times_s: Arrival of every token, where they were requested; of every piece of content
            where these hold several.
        chunk_tokens: Tokens of each piece, where not all have one.
        status: HTTP status, where it failed by that.
        detail: Failure in words.
        connect_s: Time spent on a connection of its own.
        session: Conversation that it belongs to.
        turn: Place in the conversation.
        target: Number of the server that answered, from 0.
        model: Adapter that was requested.
        text_characters: Characters of text that arrived.
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
    chunk_tokens: tuple[int, ...] | None = None
    status: int | None = None
    detail: str = ""
    connect_s: float | None = None
    session: int | None = None
    turn: int = 0
    target: int = 0
    model: str = ""
    text_characters: int | None = None


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


class RequestLog:
    """Requests of a run in progress, appended as they end, with the times of their tokens.

    Args:
        path: Path of the file; an older one is replaced with the first requests.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def add(self, records: Iterable[Record]) -> None:
        """Append requests; a process that is killed later leaves them.

        Raises:
            StoreError: They could not be written.
        """
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("wb")
            lines = (_line(record, record.sent_s, token_times=True) for record in records)
            self._file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
            self._file.flush()
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file.

        Raises:
            StoreError: Its last lines could not be written.
        """
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}") from None


def read_requests(path: Path) -> tuple[list[Record], list[float | None]]:
    """Requests of a trial as `write_requests` wrote them, and when each was admitted.

    Raises:
        StoreError: A line is none of a request.
    """
    records, admitted_s = [], []
    decoder = msgspec.json.Decoder(ready(RequestLine))
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise StoreError(
                    f"{path}:{number} is no request of a trial: {error}",
                    hint="move the file away; the report is made without timelines then",
                ) from error
            admitted_s.append(line.admitted_s)
            records.append(_record(line))
    return records, admitted_s


def _record(line: RequestLine) -> Record:
    times_s, tokens = line.token_times_s, line.chunk_tokens or ()
    if times_s is None:
        times_s, tokens = _first_and_last(line)
    return Record(
        index=line.index,
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        due_s=line.due_s,
        sent_s=line.sent_s,
        end_s=line.end_s,
        chunk_times_s=times_s,
        chunk_tokens=tokens,
        outcome=cast("Outcome", line.outcome),
        status=line.status,
        detail=line.detail,
        connect_s=line.connect_s,
        session=line.session,
        turn=line.turn,
        target=line.target,
        model=line.model,
        text_characters=line.text_characters,
    )


def _first_and_last(line: RequestLine) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Times of the first token and of the last, and their tokens, where no others are kept.

    The second has no tokens of its own, and so ends no gap: how the tokens between were spaced is
    not known. The time per output token follows from the two. A failed answer has no last token.
    """
    if line.first_token_s is None:
        return (), ()
    if line.outcome != "ok" or line.output_tokens < 2:
        return (line.first_token_s,), (line.output_tokens,)
    return (line.first_token_s, line.end_s), (line.output_tokens, 0)


def _line(record: Record, admitted_s: float | None, *, token_times: bool) -> RequestLine:
    times_s = record.chunk_times_s
    return RequestLine(
        index=record.index,
        due_s=record.due_s,
        sent_s=record.sent_s,
        admitted_s=admitted_s,
        first_token_s=times_s[0] if len(times_s) else None,
        end_s=record.end_s,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        outcome=record.outcome,
        token_times_s=tuple(times_s) if token_times else None,
        chunk_tokens=tuple(record.chunk_tokens) if token_times and record.chunk_tokens else None,
        status=record.status,
        detail=record.detail,
        connect_s=record.connect_s,
        session=record.session,
        turn=record.turn,
        target=record.target,
        model=record.model,
        text_characters=record.text_characters,
    )


def write_requests_csv(path: Path, records: Sequence[Record]) -> None:
    """One line per request, for a spreadsheet; token times are in the other forms.

    Raises:
        StoreError: It could not be written.
    """
    write_pieces(path, csv_lines(COLUMNS, map(_row, records)))


COLUMNS = (
    "index", "due_s", "sent_s", "first_token_s", "end_s", "ttft_s", "tpot_s", "e2e_s",
    "wait_before_send_s", "connect_s", "input_tokens", "output_tokens", "outcome", "status",
    "detail", "session", "turn", "target", "model",
    "text_characters",
)  # fmt: skip


def _row(record: Record) -> list[Any]:
    times_s = record.chunk_times_s
    return [
        record.index,
        record.due_s,
        record.sent_s,
        times_s[0] if len(times_s) else None,
        record.end_s,
        record.ttft_s,
        record.tpot_s,
        record.e2e_s,
        record.sent_s - record.due_s,
        record.connect_s,
        record.input_tokens,
        record.output_tokens,
        record.outcome,
        record.status,
        record.detail,
        record.session,
        record.turn,
        record.target,
        record.model,
        record.text_characters,
    ]


def write_requests_parquet(path: Path, records: Sequence[Record]) -> None:
    """Write a row per request with the columns of the CSV, the time of every piece of content
    (`chunk_times_s`) and its tokens (`chunk_tokens`, empty for one each).

    Raises:
        StoreError: pyarrow is not installed, or the file could not be written.
    """
    write_parquet_table(path, lambda pa: request_arrays(pa, records))


def request_arrays(pa: Any, records: Sequence[Record]) -> dict[str, Any]:
    """Columns of a table of requests, of the same types for every run."""
    columns = list(zip(*map(_row, records), strict=True)) or [()] * len(COLUMNS)
    kinds = {"outcome": pa.string(), "detail": pa.string(), "model": pa.string()}
    arrays = {  # the same columns of the same types, also where a run has no value of one
        name: pa.array(
            values, type=pa.float64() if name.endswith("_s") else kinds.get(name, pa.int64())
        )
        for name, values in zip(COLUMNS, columns, strict=True)
    }
    arrays["chunk_times_s"] = _lists([record.chunk_times_s for record in records], pa.float64())
    arrays["chunk_tokens"] = _lists([record.chunk_tokens for record in records], pa.int32())
    return arrays


def _lists(values: Sequence[Sequence[float]], kind: object) -> Any:
    """Column of lists, without a Python object for each of their numbers."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = np.concatenate([np.zeros(0), *(np.asarray(each, dtype=np.float64) for each in values)])
    numbers = pa.array(flat).cast(kind)
    return pa.ListArray.from_arrays(pa.array(ends), numbers)
