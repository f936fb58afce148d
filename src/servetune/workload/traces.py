"""Request traces: when real requests arrived and how long they were, as lines of text.

Published forms are told apart by the names of their columns (`FORMS`): Mooncake's JSONL,
Azure's CSV of 2023 and 2024, BurstGPT's CSV, and servetune's own, which is also what
`servetune simulate --out` writes of its requests.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from servetune.errors import InputError
from servetune.json_value import JsonMembers
from servetune.workload.request import Piece
from servetune.workload.rows import file_stamp

#: Tokens that one of Mooncake's `hash_ids` stands for (of its first request, 14 for 6,758).
HASHED_TOKENS = 512

#: Cell of a trace: text in a CSV, a number in JSON lines.
Cell: TypeAlias = str | float

#: Most tokens of a prompt or an answer; a larger number is taken for a typing error.
MOST_TOKENS = 10**12


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that somebody's users sent.

    Attributes:
        name: Name of the file that it was read from.
        form: Format of the trace; a key of `FORMS`.
        offsets_s: Seconds from the first request on, never falling.
        pairs: Pairs of (input tokens, output tokens), one for each request.
        hash_ids: Names of the prompt's blocks for each request, equal where the words up to and
            with them are equal; empty where the trace has none.
        pieces: Beginning of each prompt as `Request.prefix`, where the trace has it exactly.
        left_out: Number of requests left out because they have no output token.
    """

    name: str
    form: str
    offsets_s: tuple[float, ...]
    pairs: tuple[tuple[int, int], ...]
    hash_ids: tuple[tuple[int, ...], ...] = ()
    pieces: tuple[tuple[Piece, ...], ...] = ()
    left_out: int = 0

    def prefixes(self) -> tuple[tuple[Piece, ...], ...]:
        """Shared prefix of each prompt, as `Request.prefix`; empty if the trace has none.

        The last block of a prompt is as long as the prompt's rest; blocks that a trace names
        beyond the prompt's length are passed over.
        """
        if self.pieces:
            return self.pieces
        return tuple(
            tuple(
                (block, min(HASHED_TOKENS, input_tokens - HASHED_TOKENS * i))
                for i, block in enumerate(blocks)
                if input_tokens > HASHED_TOKENS * i
            )
            for blocks, (input_tokens, _) in zip(self.hash_ids, self.pairs, strict=False)
        )

    def first(self, count: int) -> Trace:
        """Trace of the first `count` requests.

        Raises:
            InputError: It has fewer.
        """
        if count > len(self.pairs):
            raise InputError(
                f"{self.name} has {len(self.pairs):,} requests, not {count:,}",
                hint="ask for fewer, or leave the number out to replay all of it",
            )
        return msgspec.structs.replace(
            self,
            offsets_s=self.offsets_s[:count],
            pairs=self.pairs[:count],
            hash_ids=self.hash_ids[:count],
            pieces=self.pieces[:count],
        )


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Column names of one kind of trace; letter case does not count.

    Attributes:
        seconds: Function from a time as written to seconds on any clock.
    """

    time: str
    input_tokens: str
    output_tokens: str
    seconds: Callable[[Cell], float]

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.time, self.input_tokens, self.output_tokens


def _seconds(written: Cell) -> float:
    if isinstance(written, bool):
        raise ValueError
    return float(written)


def _milliseconds(written: Cell) -> float:
    return _seconds(written) / 1000


def _clock_seconds(written: Cell) -> float:
    """A date and time; without a zone it is taken for UTC, only differences matter."""
    moment = datetime.fromisoformat(str(written).strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


FORMS: Mapping[str, Form] = {
    # https://github.com/kvcache-ai/Mooncake, FAST25-release/traces, 2025
    "mooncake": Form(
        time="timestamp",
        input_tokens="input_length",
        output_tokens="output_length",
        seconds=_milliseconds,
    ),
    # https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023 and 2024
    "azure": Form(
        time="TIMESTAMP",
        input_tokens="ContextTokens",
        output_tokens="GeneratedTokens",
        seconds=_clock_seconds,
    ),
    # https://github.com/HPMLL/BurstGPT, data/BurstGPT_*.csv
    "burstgpt": Form(
        time="Timestamp",
        input_tokens="Request tokens",
        output_tokens="Response tokens",
        seconds=_seconds,
    ),
    "servetune": Form(
        time="due_s", input_tokens="input_tokens", output_tokens="output_tokens", seconds=_seconds
    ),
}

_COLUMNS_HINT = "; ".join(
    f"{name}: {', '.join(each.columns)}" for name, each in reversed(list(FORMS.items()))
)


def read_trace(
    lines: Iterable[str], *, name: str, time_scale: float = 1.0, most: int | None = None
) -> Trace:
    """A trace from the lines of a CSV with a header, or of JSON objects.

    Times count from the first request. Blank lines are passed over; requests that were
    answered with no token (BurstGPT keeps failures so) are left out and counted.

    Args:
        lines: Lines with or without their ends.
        name: Name of the file, for messages.
        time_scale: Factor on all times: 0.5 is twice the load.
        most: Requests to read; published traces have millions.

    Raises:
        InputError: With the line that cannot be read, runs backwards in time, or has no
            token to ask; or when no request is left.
    """
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise InputError(
            f"time_scale must be positive, got {time_scale:g}",
            hint="0.5 replays twice as fast, 1 as recorded",
        )
    rows = _rows(lines, name)
    offsets_s: list[float] = []
    pairs: list[tuple[int, int]] = []
    hashes: list[tuple[int, ...]] = []
    pieces: list[tuple[Piece, ...]] = []
    start_s: float | None = None
    latest_s, left_out, form_name = -math.inf, 0, ""
    for number, form_name, cells in rows:
        form = FORMS[form_name]
        at = f"{name} line {number}"
        time_s = _time(form, cells, at)
        if time_s < latest_s:
            raise InputError(
                f"{at}: {form.time} {cells[form.time.lower()]} is before the line above it",
                hint="sort the trace by time",
            )
        latest_s = time_s
        start_s = time_s if start_s is None else start_s
        output_tokens = _count(form.output_tokens, cells, at, least=0)
        # A failure may have no prompt either.
        input_tokens = _count(form.input_tokens, cells, at, least=1 if output_tokens else 0)
        if not output_tokens:
            left_out += 1
            continue
        offsets_s.append((time_s - start_s) * time_scale)
        pairs.append((input_tokens, output_tokens))
        hashes.append(_hash_ids(cells, at))
        pieces.append(_pieces(cells, input_tokens, at))
        if len(pairs) == most:
            break
    if not pairs:
        raise InputError(
            f"{name} holds no request"
            + (f": all {left_out} were answered with no token" if left_out else ""),
            hint=f"its columns must be those of one of these: {_COLUMNS_HINT}",
        )
    return Trace(
        name=name,
        form=form_name,
        offsets_s=tuple(offsets_s),
        pairs=tuple(pairs),
        hash_ids=tuple(hashes) if any(hashes) else (),
        pieces=tuple(pieces) if any(pieces) else (),
        left_out=left_out,
    )


def trace_in(path: str, time_scale: float = 1.0, most: int | None = None) -> Trace:
    """Trace in a file; see `read_trace`.

    Raises:
        InputError: The file cannot be read; the message names the line.
    """
    return _trace_in(path, time_scale, most, file_stamp(path))


@functools.lru_cache(maxsize=2)
def _trace_in(path: str, time_scale: float, most: int | None, _stamp: tuple[int, int]) -> Trace:
    try:
        with Path(path).open(encoding="utf-8", newline="") as lines:
            return read_trace(lines, name=path, time_scale=time_scale, most=most)
    except OSError as error:
        raise InputError(
            f"cannot read the trace {path}: {error.strerror}", hint="give a CSV or JSONL file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"the trace {path} is not text", hint="unpack it; give a CSV or JSONL file"
        ) from None


_Row = tuple[int, str, JsonMembers]


def _rows(lines: Iterable[str], name: str) -> Iterator[_Row]:
    """Line number, form and cells (by lower-case column) of every request."""
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise InputError(f"{name} is empty", hint="a trace is CSV with a header, or JSON lines")
    number, line = first[0], first[1].lstrip("\ufeff")
    if line.lstrip().startswith("{"):
        yield from _json_rows(number, line, numbered, name)
    else:
        yield from _csv_rows(number, line, numbered, name)


def _json_rows(
    number: int, line: str, rest: Iterator[tuple[int, str]], name: str
) -> Iterator[_Row]:
    form = ""
    while True:
        try:
            decoded = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise InputError(
                f"{name} line {number} is not a JSON object: {error}",
                hint="each line of the trace is one request",
            ) from None
        cells = {key.lower(): value for key, value in decoded.items()}
        form = form or _form_of(tuple(decoded), f"{name} line {number}")
        yield number, form, cells
        following = next(rest, None)
        if following is None:
            return
        number, line = following


def _csv_rows(number: int, line: str, rest: Iterator[tuple[int, str]], name: str) -> Iterator[_Row]:
    heads = [cell.strip() for cell in next(csv.reader([line]))]
    form = _form_of(heads, f"{name} line {number}")
    lowered = [head.lower() for head in heads]
    for at, text in rest:
        cells = next(csv.reader([text]))
        if len(cells) < len(heads):
            raise InputError(
                f"{name} line {at} has {len(cells)} cells, the header {len(heads)}",
                hint="correct or remove that line",
            )
        yield at, form, dict(zip(lowered, cells, strict=False))


def _form_of(columns: Sequence[str], at: str) -> str:
    present = {column.lower() for column in columns}
    for name, form in FORMS.items():
        if {column.lower() for column in form.columns} <= present:
            return name
    shown = ", ".join(columns)[:200]
    raise InputError(
        f"{at}: columns {shown or 'none'} are those of no known trace",
        hint=f"known are {_COLUMNS_HINT}",
    )


def _cell(column: str, cells: JsonMembers, at: str) -> Cell:
    if column.lower() not in cells:
        raise InputError(f"{at} has no {column}", hint="every request needs it")
    cell: Cell = cells[column.lower()]
    return cell


def _time(form: Form, cells: JsonMembers, at: str) -> float:
    written = _cell(form.time, cells, at)
    try:
        time_s = form.seconds(written)
    except (ValueError, TypeError, OverflowError):
        time_s = math.nan
    if not math.isfinite(time_s):
        kind = "a date and time" if form.seconds is _clock_seconds else "a number"
        raise InputError(
            f"{at}: {form.time} '{written}' is not {kind}", hint="correct or remove that line"
        )
    return time_s


def _count(column: str, cells: JsonMembers, at: str, *, least: int) -> int:
    written = _cell(column, cells, at)
    try:
        number = float("nan") if isinstance(written, bool) else float(written)
    except (ValueError, TypeError):
        number = math.nan
    if not abs(number) <= MOST_TOKENS or number != int(number):
        raise InputError(
            f"{at}: {column} '{written}' is not a number of tokens",
            hint="correct or remove that line",
        )
    if number < least:
        raise InputError(
            f"{at}: {column} {written} is less than {least}", hint="correct or remove that line"
        )
    return int(number)


def _hash_ids(cells: JsonMembers, at: str) -> tuple[int, ...]:
    written = cells.get("hash_ids")
    if written is None or written == "":
        return ()
    try:
        return msgspec.convert(written, tuple[Annotated[int, msgspec.Meta(ge=0)], ...])
    except msgspec.ValidationError:
        raise InputError(
            f"{at}: hash_ids is not a list of whole numbers from 0 on",
            hint="correct or remove that line; only JSON lines have lists, a CSV has none",
        ) from None


def _pieces(cells: JsonMembers, input_tokens: int, at: str) -> tuple[Piece, ...]:
    written = cells.get("prefix")
    if written is None or written == "":
        return ()
    number = Annotated[int, msgspec.Meta(ge=0)]
    try:
        pieces = msgspec.convert(written, tuple[tuple[number, number], ...])
    except msgspec.ValidationError:
        pieces = ((0, 0),)
    if any(tokens < 1 for _, tokens in pieces) or sum(n for _, n in pieces) > input_tokens:
        raise InputError(
            f"{at}: prefix is no list of [id, tokens] within the prompt's {input_tokens:,} tokens",
            hint="correct or remove that line; only JSON lines have lists, a CSV has none",
        )
    return tuple(pieces)
