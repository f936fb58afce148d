"""OpenAI's completions and chat routes: what is sent, and what an answer says.

What counts as what:

- A *piece* is a chunk that carries content: text, reasoning or part of a tool call. An
  empty chunk, such as the one that only names the role, is none, so the time to first
  token is the time to the first piece.
- A server that sends its usage along with every chunk (vLLM does on request) says how many
  tokens a piece has. Tokens whose text was held back, as half a UTF-8 character is, belong
  to the next piece, and what is left at the end (an unprinted last token) to the last one.
- Where usage comes only at the end, tokens are spread evenly over the pieces.
- Where it never comes, every piece is taken for one token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.errors import InputError
from servetune.loadgen.connection import Exchange
from servetune.loadgen.sse import DONE, EventSplitter
from servetune.loadgen.target import Api, Target
from servetune.metrics.record import Outcome, Record
from servetune.workload.prompts import Prompt
from servetune.workload.request import Request
from servetune.workload.workload import Workload

__all__ = ["ROUTES", "Answer", "Route", "payload", "spread"]

EXCERPT_CHARACTERS = 300
KEPT_BYTES = 64 * 1024
"""Of an error's body; a whole answer that is not streamed is kept whole."""


class Route(msgspec.Struct, frozen=True):
    """One way of asking: where, and how a prompt is put."""

    path: str
    prompt_members: Callable[[Prompt], dict[str, Any]]


def _as_prompt(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt.text if prompt.token_ids is None else prompt.token_ids}


def _as_messages(prompt: Prompt) -> dict[str, Any]:
    if prompt.text is None:
        raise InputError(
            "the chat route takes words, and the prompts are token ids",
            hint="use the completions route, or prompts made by text_prompts",
        )
    return {"messages": [{"role": "user", "content": prompt.text}]}


ROUTES: Mapping[Api, Route] = {
    "completions": Route("/v1/completions", _as_prompt),
    "chat": Route("/v1/chat/completions", _as_messages),
}


def payload(target: Target, workload: Workload, request: Request, prompt: Prompt) -> bytes:
    """The whole HTTP request, ready to be written to a connection."""
    route = ROUTES[_api(target, workload)]
    members: dict[str, Any] = {
        "model": target.model,
        **route.prompt_members(prompt),
        "max_tokens": request.output_tokens,
        "temperature": target.temperature,
        "stream": target.stream,
    }
    if target.stream:
        members["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if workload.ignore_eos:
        members["ignore_eos"] = True
    if target.send_min_tokens:
        members["min_tokens"] = request.output_tokens
    for text in (workload.extra_body, target.extra_body):
        members.update(_extra_members(text))
    wanted = {name: value for name, value in members.items() if value is not None}
    body = msgspec.json.encode(wanted)
    accept = "text/event-stream" if target.stream else "application/json"
    return (
        target.head("POST", route.path, accept=accept)
        + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def _api(target: Target, workload: Workload) -> Api:
    api = target.api or workload.api
    for known in ROUTES:
        if api == known:
            return known
    raise InputError(f"unknown API '{api}'", hint=f"known are {', '.join(ROUTES)}")


def _extra_members(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(
            f"extra_body is not a JSON object: {error}",
            hint='write it like {"top_k": 1}',
        ) from error


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Content(msgspec.Struct):
    """A chat delta, or the message of a whole answer."""

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Content | None = None
    message: _Content | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None
    code: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """What one response says, taken in as it arrives. Implements `connection.Reader`.

    Attributes:
        piece_times_s: Clock times at which content came.
        prompt_tokens: As the server counts them, template and all; `None` if it does not.
    """

    __slots__ = (
        "_accounted_tokens", "_counts", "_done_s", "_ends", "_even", "_events", "_failure",
        "_kept", "_status", "_streamed", "_total_tokens", "piece_times_s", "prompt_tokens",
    )  # fmt: skip

    def __init__(self, *, streamed: bool = True) -> None:
        self._streamed = streamed
        self._events = EventSplitter()
        self._kept: bytearray | None = None  # the body, where it is no stream
        self._status: int | None = None
        self._failure: tuple[Outcome, int | None, str] | None = None
        self._done_s: float | None = None
        self._ends = False
        self._counts: list[int] = []
        self._even = False
        self._accounted_tokens = 0
        self._total_tokens: int | None = None
        self.piece_times_s: list[float] = []
        self.prompt_tokens: int | None = None

    # connection.Reader

    def head(self, status: int, content_type: str) -> None:
        self._status = status
        if not 200 <= status < 300 or not self._streamed:
            self._kept = bytearray()
        elif content_type not in {"text/event-stream", ""}:
            self._kept = bytearray()
            self._fail("malformed", f"asked for a stream, was sent {content_type}")

    def body(self, data: bytes, at_s: float) -> None:
        if self._kept is None:
            for event in self._events.feed(data):
                self._take(event, at_s)
        elif not self._streamed or len(self._kept) < KEPT_BYTES:
            self._kept += data

    def _take(self, event: bytes, at_s: float) -> None:
        if event == DONE:
            self._done_s = at_s
            return
        if not event or self._failure is not None:
            return
        try:
            chunk = _decode_chunk(event)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail("malformed", f"not a chunk: {error} in {_excerpt(event)}")
            return
        if chunk.error is not None or chunk.object == "error":
            self._fail_in_stream(chunk)
            return
        self._count(chunk, at_s)

    def _count(self, chunk: _Chunk, at_s: float) -> None:
        so_far = self._note_usage(chunk.usage)
        choices = chunk.choices
        if not choices:
            self._ends = self._ends or chunk.usage is not None
            return
        has_content = False
        for choice in choices:
            has_content = has_content or _has_content(choice)
            self._ends = self._ends or choice.finish_reason is not None
        if has_content:
            self._add_piece(at_s, so_far)

    def _note_usage(self, usage: _Usage | None) -> int | None:
        if usage is None:
            return None
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self._total_tokens = usage.completion_tokens
        return usage.completion_tokens

    def _add_piece(self, at_s: float, so_far_tokens: int | None) -> None:
        if so_far_tokens is None:
            self._even = True
            new_tokens = 1
        else:
            new_tokens = so_far_tokens - self._accounted_tokens
            if new_tokens < 1:
                if self.piece_times_s:
                    return  # more text of a token that has been counted
                new_tokens = 1
        self.piece_times_s.append(at_s)
        self._counts.append(new_tokens)
        self._accounted_tokens += new_tokens

    def _fail(self, outcome: Outcome, detail: str, status: int | None = None) -> None:
        if self._failure is None:
            self._failure = (outcome, status, detail)

    def _fail_in_stream(self, chunk: _Chunk) -> None:
        words, code = _error_words(chunk)
        self._fail("http_status", f"error in the stream: {words}", code)

    # when it is over

    def settle(self, exchange: Exchange) -> tuple[Outcome, int | None, str]:
        """Outcome, status and what was seen, from what came and how it ended."""
        status = exchange.status
        if status is not None and not 200 <= status < 300:
            return "http_status", status, _excerpt(_plain_words(bytes(self._kept or b"")))
        if self._done_s is None and exchange.outcome != "ok":
            return exchange.outcome, status, exchange.detail
        if self._kept is None:
            for event in self._events.close():
                self._take(event, exchange.end_s)
        elif self._failure is None:
            self._read_whole()
        if self._failure is not None:
            outcome, code, detail = self._failure
            return outcome, code or status, detail
        if not self._ends and self._done_s is None:
            return "truncated", status, f"the stream ended unmarked after {self._seen()}"
        if not self.piece_times_s and not self._total_tokens:
            return "empty", status, "the answer has no token"
        silent = self._kept is None and not self.piece_times_s
        return "ok", status, "none of the tokens carried text" if silent else ""

    def end_s(self, exchange: Exchange) -> float:
        """When the answer was complete: the message's end, or `[DONE]` where that was lost."""
        if exchange.outcome == "ok" or self._done_s is None:
            return exchange.end_s
        return self._done_s

    def tokens(self) -> tuple[list[float], list[int], int]:
        """Times and tokens of the pieces, and the number of output tokens.

        The tokens of the pieces add up to the number of output tokens, unless no piece
        came at all. Every piece has one token at least.
        """
        times_s, counts, total = self.piece_times_s, self._counts, self._total_tokens
        if not times_s or not total:
            return times_s, counts, len(times_s) or (total or 0)
        if self._even or total < self._accounted_tokens:
            counts = spread(total, len(times_s))
            times_s = [at_s for at_s, count in zip(times_s, counts, strict=True) if count]
            return times_s, [count for count in counts if count], total
        return times_s, [*counts[:-1], counts[-1] + total - self._accounted_tokens], total

    def record(
        self,
        request: Request,
        exchange: Exchange,
        *,
        due_s: float,
        start_s: float,
        input_tokens: int,
    ) -> Record:
        """What the request did, in seconds since the run began."""
        outcome, status, detail = self.settle(exchange)
        times_s, counts, output_tokens = self.tokens()
        return Record(
            index=request.index,
            input_tokens=input_tokens if self.prompt_tokens is None else self.prompt_tokens,
            output_tokens=output_tokens,
            due_s=due_s - start_s,
            sent_s=exchange.sent_s - start_s,
            end_s=self.end_s(exchange) - start_s,
            chunk_times_s=tuple([at_s - start_s for at_s in times_s]) if self._streamed else (),
            chunk_tokens=tuple(counts) if self._streamed and max(counts, default=1) > 1 else (),
            outcome=outcome,
            status=status,
            detail=detail,
        )

    def _seen(self) -> str:
        count = len(self.piece_times_s)
        return f"{count} piece{'' if count == 1 else 's'} of content"

    def _read_whole(self) -> None:
        """Take in an answer that came in one piece, as asked."""
        try:
            chunk = _decode_chunk(bytes(self._kept or b""))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail("malformed", f"not an answer: {error}")
            return
        if chunk.error is not None or chunk.object == "error":
            self._fail_in_stream(chunk)
            return
        self._ends = True
        self._note_usage(chunk.usage)
        if any(_has_content(choice) for choice in chunk.choices or []):
            self._add_piece(0.0, None)


def spread(tokens: int, pieces: int) -> list[int]:
    """Tokens per piece when only their sum is known: as even as whole numbers allow.

    With fewer tokens than pieces the first piece has one, and some have none.

    Example:
        >>> spread(7, 3), spread(2, 4)
        ([2, 2, 3], [1, 0, 1, 0])
    """
    if tokens >= pieces:
        bounds = [i * tokens // pieces for i in range(pieces + 1)]
    else:
        bounds = [-(-i * tokens // pieces) for i in range(pieces + 1)]
    return [after - before for before, after in itertools.pairwise(bounds)]


def _has_content(choice: _Choice) -> bool:
    if choice.text:
        return True
    said = choice.delta or choice.message
    return said is not None and bool(
        said.content
        or said.reasoning_content
        or said.reasoning
        or said.tool_calls
        or said.function_call
        or said.refusal
    )


def _error_words(chunk: _Chunk) -> tuple[str, int | None]:
    """What an error says, and its status where it names one."""
    error = chunk.error if chunk.error is not None else {"message": chunk.message}
    if not isinstance(error, dict):
        return _excerpt(str(error)), None
    words = error.get("message") or error
    code = error.get("code", chunk.code)
    status = code if isinstance(code, int) and 400 <= code <= 599 else None
    return _excerpt(str(words)), status


def _plain_words(body: bytes) -> bytes | str:
    """The message inside an error's JSON, or the body as it is."""
    try:
        chunk = _decode_chunk(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body
    if chunk.error is None and chunk.message is None:
        return body
    return _error_words(chunk)[0]


def _excerpt(words: bytes | str) -> str:
    text = words if isinstance(words, str) else words.decode("utf-8", "replace")
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT_CHARACTERS else line[: EXCERPT_CHARACTERS - 1] + "…"
