"""Request logs: requests of a user's own traffic, as lengths, times and hashes of their beginnings.

No text is kept: a prompt becomes one number for each block of its characters (or tokens), equal
where the words up to and with that block are equal. The numbers are salted by the process and are
never written. A line that cannot be read is counted and passed over.

    form        what it is                                       has
    openai      JSON lines of requests to an OpenAI-style API    text or usage, times
    sagemaker   data capture of Amazon SageMaker, JSON lines     text or usage, times to the second
    vllm        log of a vLLM server, "Received request"         text or token ids, max_tokens
    mooncake    Mooncake's trace                                 lengths, hashes of 512 tokens
    azure       Azure's LLM inference trace, CSV                 lengths
    burstgpt    BurstGPT's trace, CSV                            lengths
    servetune   what `workloads sample --out` writes             lengths
"""

from __future__ import annotations

import ast
import base64
import binascii
import csv
import gzip
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.units import MS_PER_S, counted
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.traces import FORMS, HASHED_TOKENS, MOST_TOKENS

LogForm = Literal["openai", "sagemaker", "vllm", "mooncake", "azure", "burstgpt", "servetune"]

Hashes = NDArray[np.uint64]

#: Characters of a block of text, about four tokens, and ids of a block of token ids.
BLOCK_CHARACTERS, BLOCK_IDS = 16, 4

CHARACTERS_PER_TOKEN = 4.0
"""Characters of a token of English text, where neither usage nor a tokenizer tells."""

#: Lines by which the form of a log is detected, and examples of unreadable lines that are told.
_LINES_TO_DETECT, _EXAMPLES = 400, 3

_WORD = (1 << 64) - 1

#: Seconds above which a number of them is a time since 1970.
_YEARS_S = 1e8

#: Seconds since 1970 at the beginning of 2200; a later time is in a unit that is not known.
_LATEST_S = 7_258_118_400.0


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a log.

    Attributes:
        at_s: Time of arrival on any clock, in seconds.
        end_s: Time of the end of its answer; `None` where the log does not tell, or tells one
            before `at_s`.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        hashes: Number of each full block of the prompt, equal where all words up to its end are.
        block_tokens: Tokens of a block.
        whole: Number of the whole prompt; `None` where it has no messages.
        borders: Numbers of the prompt up to each earlier message, shortest first.
        session: Number of the conversation that the log names.
        streamed: Whether its answer was streamed.
        chat: Whether it has messages.
    """

    at_s: float
    end_s: float | None
    input_tokens: int
    output_tokens: int
    hashes: Hashes
    block_tokens: float
    whole: int | None = None
    borders: tuple[int, ...] = ()
    session: int | None = None
    streamed: bool | None = None
    chat: bool = False


class RequestLog(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a log in the order of their arrival.

    Attributes:
        name: Name of the file or folder.
        form: Form of its lines.
        requests: Requests that could be read and were answered.
        unreadable: Number of lines that could not be read.
        examples: First of these, by line and reason.
        unanswered: Number of requests left out because they failed or have no answer.
        outside: Number of requests before `since` or after `until`.
        notes: Assumptions, as sentences.
    """

    name: str
    form: str
    requests: tuple[LoggedRequest, ...]
    unreadable: int = 0
    examples: tuple[str, ...] = ()
    unanswered: int = 0
    outside: int = 0
    notes: tuple[str, ...] = ()


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """Count of tokens where the log has none.

    Attributes:
        tokenizer: Tokenizer of the model.
        characters_per_token: Ratio where there is no tokenizer.
    """

    tokenizer: ModelTokenizer | None = None
    characters_per_token: float = CHARACTERS_PER_TOKEN

    def tokens(self, text: str) -> int:
        """Tokens of a text."""
        if self.tokenizer is not None:
            return max(1, self.tokenizer.counts([text], specials=False)[0])
        return max(1, round(len(text) / self.characters_per_token))


class _Unreadable(Exception):
    """Reason for which a line is passed over; it never quotes the line."""


class _Read(msgspec.Struct, kw_only=True):
    """Request in the making: what a line says, before tokens are counted."""

    at_s: float
    end_s: float | None = None
    early_end: bool = False  # whether it has an end that is before its time
    input_tokens: int | None = None
    output_tokens: int | None = None
    refused_lengths: int = 0  # lengths that it has and that are no number of tokens
    text: str | None = None
    answer: str | None = None
    ends: tuple[int, ...] = ()
    blocks: Hashes | None = None
    block_tokens: float = 0.0
    session: int | None = None
    streamed: bool | None = None
    most_tokens: int | None = None
    failed: bool = False
    zoned: frozenset[bool] = frozenset()  # whether its times have a zone


def read_log(
    path: str | Path,
    *,
    form: LogForm | None = None,
    counting: Counting | None = None,
    since_s: float = -math.inf,
    until_s: float = math.inf,
) -> RequestLog:
    """Requests of a log; see the module's table of forms.

    Args:
        path: File, or folder of files as SageMaker captures them; names may end in `.gz`.
        form: Form of the lines; detected where not given.
        counting: Count of tokens where the log has none.
        since_s: Time from which requests are taken, on the log's clock.
        until_s: Time up to which they are taken.

    Raises:
        InputError: It cannot be read, its form is not known, or it holds no request.
    """
    name = str(path)
    form = form or _detected(name)
    counter = _Counter(counting or Counting())
    unreadable: list[str] = []
    unanswered = outside = bad = 0
    found: list[LoggedRequest] = []
    zones: dict[bool, str] = {}
    for where, read in _READERS[form](_lines(name)):
        if not isinstance(read, str) and not 0 <= read.at_s < _LATEST_S:
            read = _no_time(read.at_s, form)  # noqa: PLW2901 - the line is passed over
        if isinstance(read, str):
            bad += 1
            if len(unreadable) < _EXAMPLES:
                unreadable.append(f"{where}: {read}")
            continue
        if not since_s <= read.at_s <= until_s:
            outside += 1
            continue
        made = counter.request(read)
        if made is None:
            unanswered += 1
            continue
        for zoned in read.zoned:
            zones.setdefault(zoned, where)
        if len(zones) > 1:
            raise InputError(
                f"{zones[False]} has a time without a zone, and {zones[True]} one with it",
                hint="they may be hours apart: write the zone of each time (Z, +02:00), or seconds "
                "since 1970",
            )
        found.append(made)
    found.sort(key=lambda each: each.at_s)
    if not found:
        raise InputError(
            f"{name} holds no request that could be read as {form}",
            hint=_nothing_hint(form, unreadable, unanswered, outside, counter.refused),
        )
    return RequestLog(
        name=name,
        form=form,
        requests=tuple(found),
        unreadable=bad,
        examples=tuple(unreadable),
        unanswered=unanswered,
        outside=outside,
        notes=tuple(counter.notes()),
    )


def time_of(written: object) -> float:
    """Seconds of a time as logs write it: seconds to nanoseconds since 1970, or a date and time.

    A date without a zone is taken for UTC.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(written, bool) or written is None:
        raise ValueError
    try:
        number = float(written)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError from None
    except (TypeError, ValueError):
        text = str(written).strip().replace(",", ".")
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(number):
        raise ValueError
    for least, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if abs(number) >= least:
            return number / unit
    return number


def has_zone(written: object) -> bool:
    """Whether a time that `time_of` reads is one moment everywhere: not a date without a zone."""
    try:
        return math.isfinite(float(written))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return datetime.fromisoformat(str(written).strip().replace(",", ".")).tzinfo is not None


# How lines are found


_Line = tuple[str, str]
_Found = tuple[str, "_Read | str"]


def _lines(name: str) -> Iterator[_Line]:
    """Place and text of every line that is not blank."""
    path = Path(name)
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not files:
        raise InputError(f"the folder {name} holds no file", hint="give a log, or its folder")
    try:
        for file in files:
            opened = gzip.open if file.suffix == ".gz" else open
            with opened(file, "rt", encoding="utf-8", errors="replace", newline="") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield f"{file} line {number}", line.lstrip("\ufeff")
    except OSError as error:
        raise InputError(
            f"cannot read the log {name}: {error.strerror or error}",
            hint="give a file of lines, a folder of such files, or .gz",
        ) from None


def _detected(name: str) -> LogForm:
    first = ""
    for where, line in islice(_lines(name), _LINES_TO_DETECT):
        if _RECEIVED.search(line):
            return "vllm"
        if not first:
            first = line
            found = _form_of_csv(line)
            if found:
                return found
        if line.lstrip().startswith("{"):
            try:
                return _form_of_json(_json(line))
            except _Unreadable:
                continue
        del where
    if not first:
        raise InputError(f"{name} is empty", hint="give a log with a request on each line")
    raise InputError(
        f"cannot tell what kind of log {name} is",
        hint=f"name it with --format, one of {', '.join(get_args(LogForm))}",
    )


def _cells(line: str) -> list[str]:
    """Cells of a line of CSV; none of one that is not CSV, or whose cells are too long for it."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _form_of_csv(line: str) -> LogForm | None:
    present = {cell.strip().lower() for cell in _cells(line)}
    return next(
        (
            name  # type: ignore[misc]
            for name, form in FORMS.items()
            if {column.lower() for column in form.columns} <= present
        ),
        None,
    )


def _form_of_json(row: JsonMembers) -> LogForm:
    if "captureData" in row:
        return "sagemaker"
    present = {key.lower() for key in row}
    for name in ("mooncake", "servetune"):
        if {column.lower() for column in FORMS[name].columns} <= present:
            return name
    return "openai"


def _json(line: str) -> JsonObject:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        raise _Unreadable("no JSON object") from None
    except RecursionError:
        raise _Unreadable("it is nested too deeply") from None


_UNITS: Mapping[str, str] = {
    "mooncake": "milliseconds",
    "azure": "a date and time",
    "burstgpt": "seconds",
    "servetune": "seconds",
}


def _no_time(at_s: float, form: str) -> str:
    """Reason for which a request with such a time is passed over."""
    units = _UNITS.get(form, "a date and time, or seconds, ms, µs or ns since 1970")
    return f"its time, {at_s:.6g} s since 1970, is not from 1970 to 2199: write {units}"


def _nothing_hint(
    form: str, unreadable: Sequence[str], unanswered: int, outside: int, refused: int
) -> str:
    if outside:
        return f"{_are(outside, 'request')} before --since or after --until-time"
    if unanswered and form == "vllm":
        return (
            f"{unanswered:,} requests are without prompt or answer; vLLM logs prompts of newer "
            "releases at level DEBUG, answers with --enable-log-outputs"
        )
    if unanswered and refused:
        return f"{_lengths_refused(refused)}, and the log has no text to count"
    if unanswered:
        return f"{unanswered:,} requests have no length of prompt and answer, or failed"
    return unreadable[0] if unreadable else "--format names the form of its lines"


# How lines are read


def _each(read: Callable[[str], _Read]) -> Callable[[Iterable[_Line]], Iterator[_Found]]:
    """Reader of a log whose lines stand for themselves."""

    def reader(lines: Iterable[_Line]) -> Iterator[_Found]:
        for where, line in lines:
            try:
                yield where, read(line)
            except _Unreadable as error:
                yield where, str(error)

    return reader


def _openai(line: str) -> _Read:
    row = _json(line)
    body = _inner(row, ("request", "request_body", "body", "input", "payload", "params"))
    answer = _inner(row, ("response", "response_body", "output", "completion", "result"))
    return _exchange(row, body or row, answer if answer is not None else row)


def _sagemaker(line: str) -> _Read:
    row = _json(line)
    capture = row.get("captureData")
    about = row.get("eventMetadata")
    if not isinstance(capture, dict) or not isinstance(about, dict):
        raise _Unreadable("no captureData and eventMetadata")
    sent, got = (_captured(capture.get(name)) for name in ("endpointInput", "endpointOutput"))
    if not isinstance(sent, dict):
        raise _Unreadable("its input is no JSON object")
    return _exchange({"timestamp": about.get("inferenceTime")}, sent, got)


def _captured(part: Any) -> Any:
    """Content that SageMaker captured: JSON where it is JSON, else text."""
    if not isinstance(part, dict) or not isinstance(part.get("data"), str):
        return None
    data = part["data"]
    if part.get("encoding") == "BASE64":
        try:
            data = base64.b64decode(data, validate=True).decode("utf-8", errors="replace")
        except (binascii.Error, ValueError):
            raise _Unreadable("its data is not base64") from None
    return _decoded(data)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def _inner(row: JsonMembers, names: Sequence[str]) -> Any:
    """Content of the first of these members, with that of its own `body`."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
            value = _decoded(value)
        if value is not None and value != "":
            body = value.get("body") if isinstance(value, dict) else None
            if isinstance(body, str):
                body = _decoded(body)
            return body if body is not None else value
    return None


_TIMES = (
    "timestamp", "@timestamp", "start_time", "startTime", "request_time", "created_at",
    "createdAt", "arrival_time", "time", "ts", "datetime", "date", "created",
)  # fmt: skip
_END_TIMES = ("end_time", "endTime", "completed_at", "completedAt", "finished_at", "response_time")
_LATENCIES = (
    ("latency_ms", MS_PER_S), ("duration_ms", MS_PER_S), ("elapsed_ms", MS_PER_S),
    ("response_ms", MS_PER_S), ("latency_s", 1.0), ("duration_s", 1.0), ("latency", 1.0),
    ("duration", 1.0), ("elapsed", 1.0),
)  # fmt: skip
_SESSIONS = ("conversation_id", "session_id", "thread_id", "chat_id", "sessionId", "conversationId")


def _exchange(row: JsonMembers, body: Any, answer: Any) -> _Read:
    """Request and answer of an OpenAI-style API, or of TGI's, with what the log says of them."""
    sent: JsonMembers = body if isinstance(body, Mapping) else {"prompt": body}
    got = _streamed_answer(answer) if isinstance(answer, str) else answer
    if isinstance(got, list):
        got = got[0] if got else {}
    answered: JsonMembers = got if isinstance(got, Mapping) else {}
    start = _first_time(row, _TIMES) or _first_time(answered, _TIMES)
    if start is None:
        raise _Unreadable("no time that can be read (timestamp, created, start_time, ...)")
    at_s, zoned = start
    end_s, end_zoned = _end(row, start) or (None, zoned)
    pieces = _pieces(sent)
    usage = next((u for u in (row.get("usage"), answered.get("usage")) if isinstance(u, dict)), {})
    text = "".join(pieces)
    ends: list[int] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    early = end_s is not None and end_s < at_s
    prompt, prompt_refused = _tokens(usage, "prompt_tokens", "input_tokens")
    output, output_refused = _tokens(usage, "completion_tokens", "output_tokens")
    return _Read(
        at_s=at_s,
        end_s=None if early else end_s,
        early_end=early,
        input_tokens=prompt,
        output_tokens=output,
        refused_lengths=prompt_refused + output_refused,
        text=text or None,
        ends=tuple(ends) if isinstance(sent.get("messages"), list) else (),
        answer=_answer_text(row, answered, got),
        session=_session(row, sent),
        streamed=bool(sent["stream"]) if "stream" in sent else None,
        failed=_failed(row, answered),
        # A small number is a time since some start, or no time at all: `response_time` of 0.8.
        zoned=frozenset((zoned, end_zoned if (end_s or 0) > _YEARS_S else zoned)),
    )


def _first_time(row: JsonMembers, names: Sequence[str]) -> tuple[float, bool] | None:
    """First of these times that can be read, in seconds, and whether it has a zone."""
    for name in names:
        if row.get(name) is not None:
            try:
                return time_of(row[name]), has_zone(row[name])
            except ValueError:
                continue
    return None


def _end(row: JsonMembers, start: tuple[float, bool]) -> tuple[float, bool] | None:
    """End of an answer by its latency or a time of its own; `None` where the log has neither.

    A negative latency counts where there is nothing else.
    """
    early = None
    for name, per_s in _LATENCIES:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            end = start[0] + min(max(value, -_LATEST_S), _LATEST_S) / per_s, start[1]
            if value >= 0:
                return end
            early = early or end
    return _first_time(row, _END_TIMES) or early


def _tokens(usage: JsonMembers, *names: str) -> tuple[int | None, bool]:
    """First of these that is a number of tokens, and whether one is there but none is one."""
    present = [usage[name] for name in names if usage.get(name) is not None]
    for value in present:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if whole and 0 <= value <= MOST_TOKENS and value == int(value):
            return int(value), False
    return None, bool(present)


def _pieces(sent: JsonMembers) -> list[str]:
    """Texts of a prompt in the order in which a server has them; tools first."""
    tools = sent.get("tools")
    first = [msgspec.json.encode(tools).decode()] if tools else []
    messages = sent.get("messages")
    if isinstance(messages, list):
        return [*first, *(_message(each) for each in messages)]
    for name in ("prompt", "inputs", "input", "text"):
        value = sent.get(name)
        if isinstance(value, str):
            return [*first, value]
        if isinstance(value, list) and value:
            parts = [_message(each) if isinstance(each, dict) else str(each) for each in value]
            return [*first, " ".join(parts)]
    return []


def _message(message: Any) -> str:
    if not isinstance(message, dict):
        raise _Unreadable("a message is no object")
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = " ".join(text for text in texts if isinstance(text, str))
    calls = message.get("tool_calls")
    called = msgspec.json.encode(calls).decode() if calls else ""
    role = message.get("role") or message.get("from") or "user"
    return f"{role}\n{content or message.get('value') or ''}{called}\n"


def _answer_text(row: JsonMembers, answered: JsonMembers, got: Any) -> str | None:
    choices = answered.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            called = msgspec.json.encode(calls).decode() if calls else ""
            return f"{message.get('content') or ''}{called}" or None
        text = choices[0].get("text")
        return text if isinstance(text, str) else None
    for name in ("generated_text", "output_text", "completion", "answer", "text", "content"):
        if answered is not row and isinstance(answered.get(name), str):
            return str(answered[name])
    return got if isinstance(got, str) else None


def _streamed_answer(text: str) -> Any:
    """Answer of server-sent events as one object; other text as it is."""
    events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    if not events:
        return text
    words: list[str] = []
    usage: Any = None
    for event in events:
        chunk = _decoded(event)
        if not isinstance(chunk, dict):
            continue
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {} if isinstance(choice, dict) else {}
            words.append(str(delta.get("content") or choice.get("text") or ""))
        token = chunk.get("token")
        if isinstance(token, dict):
            words.append(str(token.get("text") or ""))
    return {"generated_text": "".join(words), "usage": usage}


def _session(row: JsonMembers, sent: JsonMembers) -> int | None:
    inner = sent.get("metadata")
    for place in (row, sent, inner if isinstance(inner, dict) else {}):
        for name in _SESSIONS:
            if isinstance(place.get(name), str | int) and place.get(name) != "":
                return hash(str(place[name]))
    return None


def _failed(row: JsonMembers, answered: JsonMembers) -> bool:
    status = row.get("status_code", row.get("status"))
    bad = isinstance(status, int) and status >= 400
    return bad or bool(row.get("error")) or bool(answered.get("error"))


# vLLM's log: lines that belong together by the request's id

_RECEIVED = re.compile(r"Received request (?P<id>[^\s:]+): ")
_PROMPT_OF = re.compile(r"\bRequest (?P<id>[^\s:]+) prompt: ")
_GENERATED = re.compile(
    r"Generated response (?P<id>[^\s:]+)(?: \(streaming (?P<part>\w+)\))?: output: "
)
_CLOCK = re.compile(
    r"(?P<full>\d{4}-\d\d-\d\d[ T])?(?P<day>\d\d-\d\d )?(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
)
_LITERAL = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_IDS = re.compile(r"token_ids: (?:\[|\()([\d, ]*)")
_MOST = re.compile(r"\bmax_tokens=(\d+)")

#: A leap year, for dates without one.
_SOME_YEAR = 2024


def _vllm(lines: Iterable[_Line]) -> Iterator[_Found]:
    """Requests of a server's log; those whose answers it has tell their lengths."""
    open_: dict[str, tuple[str, _Read]] = {}
    latest_s, year = -math.inf, _SOME_YEAR
    for where, line in lines:
        received, asked = _RECEIVED.search(line), _PROMPT_OF.search(line)
        made = _GENERATED.search(line)
        match = received or asked or made
        if match is None:
            continue
        at_s = _clock(line[: match.start()], year)
        if at_s is None:
            yield where, "no time before the message"
            continue
        if at_s < latest_s - 300 * 86_400:  # the new year
            year += 1
            at_s = _clock(line[: match.start()], year) or at_s
        latest_s = at_s
        name = re.sub(r"-\d+$", "", match["id"]) if match["id"].count("-") > 1 else match["id"]
        if received:
            if name in open_:
                yield open_.pop(name)
            most = _MOST.search(line)
            read = _Read(at_s=at_s, most_tokens=int(most[1]) if most else None)
            _add_prompt(read, line[match.end() :].removeprefix("prompt: "))
            open_[name] = (where, read)
        elif name in open_:
            read = open_[name][1]
            rest = line[match.end() :]
            if asked:
                _add_prompt(read, rest)
                continue
            literal = _LITERAL.match(rest)
            text = _literal(literal[0]) if literal else ""
            delta = made is not None and made["part"] == "delta"
            read.answer = (read.answer or "") + text if delta else text
            ids = _IDS.search(rest, literal.end() if literal else 0)
            if ids and ids[1].strip():
                count = ids[1].count(",") + 1
                read.output_tokens = count + (read.output_tokens or 0 if delta else 0)
            read.end_s = at_s
    yield from open_.values()


def _clock(text: str, year: int) -> float | None:
    found = list(_CLOCK.finditer(text))
    if not found:
        return None
    last = found[-1]
    day = last["full"] or (f"{year}-{last['day']}" if last["day"] else f"{year}-01-01 ")
    try:
        return time_of(f"{day.strip()} {last['time']}")
    except ValueError:
        return None


def _add_prompt(read: _Read, rest: str) -> None:
    """Prompt of a line that has it, as text or as token ids."""
    literal = _LITERAL.match(rest)
    if literal:
        read.text = _literal(literal[0]) or None
    ids = _IDS.search(rest, literal.end() if literal else 0)
    if ids and ids[1].strip():
        numbers = np.fromstring(ids[1], dtype=np.int64, sep=",")
        read.input_tokens = len(numbers)
        read.blocks = _hashed_ids(numbers)
        read.block_tokens = BLOCK_IDS


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text[1:-1]


# Traces of lengths


def _trace(form_name: str) -> Callable[[Iterable[_Line]], Iterator[_Found]]:
    form = FORMS[form_name]

    def reader(lines: Iterable[_Line]) -> Iterator[_Found]:
        heads: list[str] | None = None
        for where, line in lines:
            try:
                if line.lstrip().startswith("{"):
                    cells = {key.lower(): value for key, value in _json(line).items()}
                else:
                    row = _cells(line)
                    lowered = [cell.strip().lower() for cell in row]
                    if {column.lower() for column in form.columns} <= set(lowered):
                        heads = lowered  # of each file of a folder
                        continue
                    if heads is None or len(row) < len(heads):
                        raise _Unreadable("fewer cells than the header")
                    cells = dict(zip(heads, row, strict=False))
                yield where, _trace_row(cells)
            except _Unreadable as error:
                yield where, str(error)

    def _trace_row(cells: JsonMembers) -> _Read:
        try:
            written = cells[form.time.lower()]
            at_s = form.seconds(written)
            prompt = float(cells[form.input_tokens.lower()])
            answer = float(cells[form.output_tokens.lower()])
        except (KeyError, ValueError, TypeError, OverflowError):
            raise _Unreadable(f"needs {', '.join(form.columns)}") from None
        if not math.isfinite(at_s):
            raise _Unreadable("its time is no number")
        if not (0 <= prompt <= MOST_TOKENS and 0 <= answer <= MOST_TOKENS):
            raise _Unreadable(f"a length is not from 0 to {MOST_TOKENS:g} tokens")
        read = _Read(
            at_s=at_s,
            input_tokens=int(prompt),
            output_tokens=int(answer),
            zoned=frozenset((has_zone(written),)),
        )
        ids = cells.get("hash_ids")
        if isinstance(ids, list) and ids:
            try:
                numbers = np.array(ids, dtype=np.int64)
            except (ValueError, TypeError, OverflowError):
                raise _Unreadable("hash_ids is no list of whole numbers") from None
            full = int(prompt) // HASHED_TOKENS  # the last block is not full, and equal by chance
            read.blocks = numbers[:full].astype(np.uint64)
            read.block_tokens = HASHED_TOKENS
        return read

    return reader


_READERS: Mapping[str, Callable[[Iterable[_Line]], Iterator[_Found]]] = {
    "openai": _each(_openai),
    "sagemaker": _each(_sagemaker),
    "vllm": _vllm,
    **{name: _trace(name) for name in ("mooncake", "azure", "burstgpt", "servetune")},
}


# From what was read to requests


class _Counter:
    """Counts tokens where a log has none, and remembers what was assumed."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._counted = self._at_most = self._ends = self._early_ends = 0
        self.refused = 0

    def request(self, read: _Read) -> LoggedRequest | None:
        """The request without its text; `None` where it failed or a length is not known."""
        if read.failed:
            return None
        self.refused += read.refused_lengths
        prompt = self._prompt(read)
        answer = self._answer(read)
        if not prompt or not answer:
            return None
        self._ends += read.early_end or read.end_s is not None
        self._early_ends += read.early_end
        hashes, block_tokens, whole = read.blocks, read.block_tokens, None
        borders: tuple[int, ...] = ()
        if hashes is None:
            hashes = np.zeros(0, dtype=np.uint64)
            if read.text:
                hashes, at = _hashed_text(read.text, read.ends)
                block_tokens = BLOCK_CHARACTERS * prompt / len(read.text)
                borders, whole = at[:-1], at[-1] if at else None
        return LoggedRequest(
            at_s=read.at_s,
            end_s=read.end_s,
            input_tokens=prompt,
            output_tokens=answer,
            hashes=hashes,
            block_tokens=block_tokens,
            whole=whole,
            borders=borders,
            session=read.session,
            streamed=read.streamed,
            chat=bool(read.ends),
        )

    def _prompt(self, read: _Read) -> int | None:
        if read.input_tokens is not None or read.text is None:
            return read.input_tokens
        self._counted += 1
        return self._counting.tokens(read.text)

    def _answer(self, read: _Read) -> int | None:
        if read.output_tokens is not None:
            return read.output_tokens
        if read.answer:
            self._counted += 1
            return self._counting.tokens(read.answer)
        if read.most_tokens is not None and read.end_s is None:
            self._at_most += 1
        return read.most_tokens

    def notes(self) -> Iterator[str]:
        """Assumptions, as sentences."""
        if self.refused:
            yield f"{_lengths_refused(self.refused)}: not used"
        if self._counted:
            how = (
                "with the tokenizer"
                if self._counting.tokenizer is not None
                else f"at {self._counting.characters_per_token:g} characters a token; --tokenizer "
                "counts them"
            )
            why = "not in the log, or not used" if self.refused else "not in the log"
            yield f"{_are(self._counted, 'length')} {why}: counted {how}"
        if self._at_most:
            yield (
                f"{self._at_most:,} answers are not in the log: taken to be as long as their "
                "max_tokens"
            )
        if self._early_ends:
            yield (
                f"{self._early_ends:,} of {counted(self._ends, 'end')} of answers are before their "
                "requests and not used: their latency is negative, or their time is in another "
                "unit or zone"
            )


def _are(count: int, noun: str, of: str = "") -> str:
    return f"{counted(count, noun)}{of} {'is' if count == 1 else 'are'}"


def _lengths_refused(count: int) -> str:
    return f"{_are(count, 'length', ' of the log')} no whole number from 0 to {MOST_TOKENS:g}"


def _hashed_text(text: str, ends: Sequence[int]) -> tuple[Hashes, tuple[int, ...]]:
    """Number of each full block of a text, and of the text up to each of some ends."""
    count, number = len(text) // BLOCK_CHARACTERS, 0
    numbers = []
    for i in range(count):
        number = hash((number, text[i * BLOCK_CHARACTERS : (i + 1) * BLOCK_CHARACTERS])) & _WORD
        numbers.append(number)
    borders = []
    for end in ends:
        full, rest = divmod(end, BLOCK_CHARACTERS)
        begun = numbers[full - 1] if full else 0
        borders.append(hash((begun, text[end - rest : end], end)) & _WORD)
    return np.array(numbers, dtype=np.uint64), tuple(borders)


def _hashed_ids(ids: NDArray[np.int64]) -> Hashes:
    numbers, number = [], 0
    for i in range(len(ids) // BLOCK_IDS):
        block = ids[i * BLOCK_IDS : (i + 1) * BLOCK_IDS]
        number = hash((number, _SALT, block.tobytes())) & _WORD
        numbers.append(number)
    return np.array(numbers, dtype=np.uint64)


#: Text, so that hashes of numbers alone are salted by the process as well.
_SALT = "ids"
