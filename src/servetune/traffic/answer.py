"""Answers: pieces of content with their times and tokens, and how they ended.

The rules for every dialect:

- A *piece* is an event that carries content: text, reasoning or part of a tool call. An empty
  event, such as the one that only names the role, is none, so the time to first token is the time
  to the first piece.
- A server that sends its usage along with every event (some do on request) says how many
  tokens a piece has. Tokens whose text was held back, as half a UTF-8 character is, belong to the
  next piece, and those left at the end (an unprinted last token) to the last one.
- Where usage comes only at the end, tokens are spread evenly over the pieces.
- Where it never comes, every piece counts as one token.
- A stream needs its end: `[DONE]`, a finish reason, or a last usage. Without one it is truncated,
  though tokens came.
"""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.secret import beginning
from servetune.traffic.sse import DONE, LONGEST_EVENT_BYTES, Events

EXCERPT_CHARACTERS = 300
KEPT_BYTES = 64 * 1024
"""Bytes kept of an error's body; a whole answer that is not streamed is kept whole."""

LARGEST_BODY_BYTES = 64 << 20
"""Most bytes of an answer that is not streamed."""

MOST_PIECES = 1 << 20
MOST_CHARACTERS = 64 << 20
"""Most pieces and characters of a stream, several times the longest answer of any model."""

MOST_PROMPT_TOKENS = (1 << 31) - 1
USUAL_TOKENS = 1 << 16
"""Tokens that any answer may have, whatever its request asked for."""

MOST_TIMES_REQUESTED = 64
"""Most tokens of a longer answer, as a multiple of what was requested; each takes memory."""

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Answer:
    """Answer to one request, read as it arrives; a dialect says what an event means.

    Attributes:
        times_s: Arrival times of the pieces.
        counts: Tokens of each piece.
        prompt_tokens: Prompt tokens by the server's count, template included; `None` without one.
        total_tokens: Output tokens by the server's count.
        texts: Text of the pieces, where it is kept.
        characters: Characters of text that came, reasoning and tool calls included.
        most_tokens: Most output tokens that the server is believed to have sent.
    """

    __slots__ = (
        "_accounted_tokens",
        "_done_s",
        "_ends",
        "_even",
        "_events",
        "_failure",
        "_keeps_text",
        "_kept",
        "_status",
        "_streamed",
        "characters",
        "counts",
        "most_tokens",
        "prompt_tokens",
        "texts",
        "times_s",
        "total_tokens",
    )  # fmt: skip

    def __init__(self, *, streamed: bool = True, keep_text: bool = False) -> None:
        self._streamed = streamed
        self._keeps_text = keep_text
        self._events = Events()
        self._kept: bytearray | None = None  # the body, where it is no stream
        self._status: int | None = None
        self._failure: tuple[str, int | None, str] | None = None
        self._done_s: float | None = None
        self._ends = False
        self._even = False
        self._accounted_tokens = 0
        self.characters = 0
        self.most_tokens = MOST_PIECES
        self.times_s: list[float] = []
        self.counts: list[int] = []
        self.prompt_tokens: int | None = None
        self.total_tokens: int | None = None
        self.texts: list[str] = []

    @property
    def _is_good(self) -> bool:
        return self._status is not None and 200 <= self._status < 300

    # while it arrives

    def named(self, error_name: str) -> None:
        """Take the name of an error from the head, as AWS's services send it; see
        `sagemaker_answer`.
        """

    def head(self, status: int, content_type: str) -> None:
        """Take status and content type, once the head is complete."""
        self._status = status
        if not 200 <= status < 300 or not self._streamed:
            self._kept = bytearray()
        elif content_type not in {"text/event-stream", ""}:
            self._kept = bytearray()
            self._fail("malformed", f"asked for a stream, was sent {excerpt(content_type)}")

    def take(self, pieces: list[bytes], times_s: list[float]) -> str:
        """Take pieces of the body; never raises for what a server sent.

        Returns:
            Reason to read no more of it; empty while more is welcome.
        """
        kept = self._kept
        if kept is None:
            events = self._events
            self._read_all(*events.take(pieces, times_s))
            characters = self.characters
            if events.too_long or len(self.times_s) > MOST_PIECES or characters > MOST_CHARACTERS:
                return self._refuse(self._excess())
            return ""
        if self._failure is None and self._is_good:
            kept += b"".join(pieces)
            if len(kept) > LARGEST_BODY_BYTES:
                kept.clear()
                return self._refuse(f"a body of more than {LARGEST_BODY_BYTES >> 20} MiB")
        elif len(kept) < KEPT_BYTES:
            kept += b"".join(pieces)
        else:
            return self._refuse(f"an error of more than {KEPT_BYTES >> 10} KiB")
        return ""

    def _excess(self) -> str:
        """Bound that a stream has exceeded."""
        if self._events.too_long:
            return f"an event of more than {LONGEST_EVENT_BYTES >> 20} MiB"
        if len(self.times_s) > MOST_PIECES:
            return f"more than {MOST_PIECES:,} pieces of content"
        return f"more than {MOST_CHARACTERS:,} characters of text"

    def _refuse(self, detail: str) -> str:
        """The reason of the failure, which is the first one that there was."""
        self._fail("malformed", detail)
        assert self._failure is not None
        return self._failure[2]

    def _read_all(self, events: list[bytes], times_s: list[float]) -> None:
        read = self._read
        for event, at_s in zip(events, times_s, strict=True):
            if event == DONE:
                self._done_s = at_s
            elif event and self._failure is None:
                try:
                    read(event, at_s)
                except _UNREADABLE as error:
                    self._fail("malformed", f"not a chunk: {error} in {excerpt(event)}")

    def _read(self, event: bytes, at_s: float) -> None:
        """Read an event of this dialect; raises if it cannot be decoded."""
        raise NotImplementedError

    def _read_whole(self, body: bytes) -> None:
        """Read an answer that came in one piece, as requested."""
        raise NotImplementedError

    def _note_tokens(self, prompt: int | None, output: int | None) -> None:
        if prompt is not None:
            self.prompt_tokens = prompt
        if output is not None:
            self.total_tokens = output

    def _add_piece(self, at_s: float, so_far_tokens: int | None) -> None:
        """Add a piece; `so_far_tokens` is the server's count including it, if the server counts."""
        if so_far_tokens is None:
            self._even = True
            new_tokens = 1
        else:
            new_tokens = so_far_tokens - self._accounted_tokens
            if new_tokens < 1:
                if self.times_s:
                    return  # more text of a token that was counted already
                new_tokens = 1
        self.times_s.append(at_s)
        self.counts.append(new_tokens)
        self._accounted_tokens += new_tokens

    def _fail(self, outcome: str, detail: str, status: int | None = None) -> None:
        if self._failure is None:
            self._failure = (outcome, status, detail)

    def _fail_in_stream(self, words: str, code: int | None) -> None:
        self._fail("http_status", f"error in the stream: {words}", code)

    # when it is over

    def settle(
        self, outcome: str, status: int | None, detail: str, end_s: float
    ) -> tuple[str, int | None, str]:
        """Outcome, status and detail, from the content and from how the exchange ended."""
        settled = self._settle(outcome, status, detail, end_s)
        counts = (self.prompt_tokens or 0, self.total_tokens or 0)
        most = max(counts[1], self._accounted_tokens)
        if min(counts) >= 0 and counts[0] <= MOST_PROMPT_TOKENS and most <= self.most_tokens:
            return settled
        # Counts that no answer can have are ignored.
        self.prompt_tokens = self.total_tokens = None
        self.counts = [1] * len(self.times_s)
        if settled[0] != "ok":
            return settled
        return "malformed", status, f"the server counts {counts[0]} and {counts[1]} tokens"

    def _settle(
        self, outcome: str, status: int | None, detail: str, end_s: float
    ) -> tuple[str, int | None, str]:
        if status is not None and not 200 <= status < 300:
            return "http_status", status, excerpt(_plain_words(bytes(self._kept or b"")))
        if self._done_s is None and outcome != "ok":
            return outcome, status, detail
        if self._kept is None:
            left = self._events.close()
            self._read_all(left, [end_s] * len(left))
        elif self._failure is None:
            self._settle_whole()
        if self._failure is not None:
            outcome, code, detail = self._failure
            return outcome, code or status, detail
        if not self._ends and self._done_s is None:
            return "truncated", status, f"the stream ended unmarked after {self._received()}"
        return self._settle_content(status)

    def _settle_content(self, status: int | None) -> tuple[str, int | None, str]:
        if not self.times_s and not self.total_tokens:
            return "empty", status, "the answer has no token"
        silent = self._kept is None and not self.times_s
        return "ok", status, "none of the tokens carried text" if silent else ""

    def _settle_whole(self) -> None:
        try:
            self._read_whole(bytes(self._kept or b""))
        except _UNREADABLE as error:
            self._fail("malformed", f"not an answer: {error}")

    def end_s(self, outcome: str, end_s: float) -> float:
        """Time at which the answer was complete: the message's end, or `[DONE]` if that was
        lost.
        """
        return end_s if outcome == "ok" or self._done_s is None else self._done_s

    def tokens(self) -> tuple[list[float], list[int], int]:
        """Times and tokens of the pieces, and the number of output tokens.

        The tokens of the pieces add up to the number of output tokens, unless no piece
        came at all. Every piece has one token at least.
        """
        times_s, counts, total = self.times_s, self.counts, self.total_tokens
        if not times_s or not total:
            return times_s, counts, len(times_s) or (total or 0)
        if self._even or total < self._accounted_tokens:
            counts = spread(total, len(times_s))
            times_s = [at_s for at_s, count in zip(times_s, counts, strict=True) if count]
            return times_s, [count for count in counts if count], total
        return times_s, [*counts[:-1], counts[-1] + total - self._accounted_tokens], total

    def packed(self) -> tuple[bytes, bytes, int]:
        """Times as packed doubles, counts as packed ints (empty where each is one), and the sum."""
        times_s, counts, output_tokens = self.tokens()
        if not self._streamed:
            return b"", b"", output_tokens
        several = b"" if max(counts, default=1) == 1 else array("i", counts).tobytes()
        return array("d", times_s).tobytes(), several, output_tokens

    def _received(self) -> str:
        count = len(self.times_s)
        return f"{count} piece{'' if count == 1 else 's'} of content"


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


# OpenAI's completions and chat routes


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Content(msgspec.Struct, gc=False):
    """A chat delta, or the message of a whole answer."""

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Content | None = None
    message: _Content | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None
    code: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class OpenAiAnswer(Answer):
    """Completions and chat completions, streamed or whole."""

    __slots__ = ()

    def _read(self, event: bytes, at_s: float) -> None:
        chunk = _decode_chunk(event)
        if chunk.error is not None or chunk.object == "error":
            self._fail_in_stream(*_error_words(chunk))
            return
        so_far = None
        usage = chunk.usage
        if usage is not None:
            so_far = usage.completion_tokens
            self._note_tokens(usage.prompt_tokens, so_far)
        choices = chunk.choices
        if not choices:
            self._ends = self._ends or usage is not None
            return
        has_content = False
        for choice in choices:
            if choice.finish_reason is not None:
                self._ends = True
            content = choice.delta
            text = choice.text if content is None else content.content
            characters = len(text) if isinstance(text, str) and text else _characters(choice)
            if characters:
                has_content = True
                self.characters += characters
        if has_content:
            self._add_piece(at_s, so_far)
            if self._keeps_text:
                self.texts.append(_words(choices[0]))

    def _read_whole(self, body: bytes) -> None:
        chunk = _decode_chunk(body)
        if chunk.error is not None or chunk.object == "error":
            self._fail_in_stream(*_error_words(chunk))
            return
        self._ends = True
        if chunk.usage is not None:
            self._note_tokens(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        choices = chunk.choices or []
        self.characters = sum(map(_characters, choices))
        if self.characters:
            self._add_piece(0.0, None)
            if self._keeps_text:
                self.texts.append(_words(choices[0]))


def _characters(choice: _Choice) -> int:
    """Characters of a choice's content; of a tool call, those of its JSON."""
    if choice.text:
        return len(choice.text)
    content = choice.delta or choice.message
    if content is None:
        return 0
    if content.content:
        return len(content.content)
    for text in (content.reasoning_content, content.reasoning, content.refusal):
        if text:
            return len(text)
    return sum(map(len, content.tool_calls or ())) + sum(
        map(len, (content.function_call or {}).values())
    )


def _words(choice: _Choice) -> str:
    """Text that the next turn of a conversation continues: the answer without its reasoning."""
    if choice.text:
        return choice.text
    content = choice.delta or choice.message
    return content.content if content is not None and isinstance(content.content, str) else ""


def _error_words(chunk: _Chunk) -> tuple[str, int | None]:
    """Text of an error, and its status where it names one."""
    error = chunk.error if chunk.error is not None else {"message": chunk.message}
    if not isinstance(error, dict):
        return excerpt(str(error)), None
    words = error.get("message") or error
    code = error.get("code", chunk.code)
    status = code if isinstance(code, int) and 400 <= code <= 599 else None
    return excerpt(str(words)), status


# OpenAI's responses route


class _ResponseUsage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _ResponseUsage | None = None
    error: Any = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    output_text: str | None = None


class _ResponseEvent(msgspec.Struct):
    type: str = ""
    delta: Any = None
    response: _Response | None = None
    message: Any = None
    code: Any = None
    error: Any = None


_decode_response_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_RESPONSE_ENDS = {"response.completed", "response.incomplete"}


class ResponsesAnswer(Answer):
    """Responses route: every kind of delta is content, `response.completed` the end."""

    __slots__ = ()

    def _read(self, event: bytes, at_s: float) -> None:
        decoded = _decode_response_event(event)
        if decoded.type.endswith(".delta"):
            if decoded.delta:
                self.characters += len(str(decoded.delta))
                self._add_piece(at_s, None)
                if self._keeps_text and decoded.type == "response.output_text.delta":
                    self.texts.append(str(decoded.delta))
        elif decoded.type in _RESPONSE_ENDS:
            self._ends = True
            if decoded.response is not None:
                self._note_usage(decoded.response.usage)
        elif decoded.type in {"error", "response.failed"} or decoded.error is not None:
            error = (
                decoded.error or (decoded.response and decoded.response.error) or decoded.message
            )
            self._fail_in_stream(*_error_words(_Chunk(error=error or decoded.type)))

    def _note_usage(self, usage: _ResponseUsage | None) -> None:
        if usage is not None:
            self._note_tokens(usage.input_tokens, usage.output_tokens)

    def _read_whole(self, body: bytes) -> None:
        decoded = _decode_response(body)
        if decoded.error is not None:
            self._fail_in_stream(*_error_words(_Chunk(error=decoded.error)))
            return
        self._ends = True
        self._note_usage(decoded.usage)
        if decoded.output or decoded.output_text:
            self._add_piece(0.0, None)
            whole = decoded.output_text
            texts = [whole] if whole else _texts_of(decoded.output or [])
            self.characters = sum(map(len, texts))
            if self._keeps_text:
                self.texts += texts


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Message(msgspec.Struct):
    content: list[_Part]


def _texts_of(items: list[msgspec.Raw]) -> list[str]:
    """Text of a whole answer: its messages, without reasoning or tool calls."""
    words: list[str] = []
    for item in items:
        with contextlib.suppress(*_UNREADABLE):
            message = msgspec.json.decode(item, type=_Message)
            words += [one.text for one in message.content if one.type == "output_text" and one.text]
    return words


# one event per token


class _Token(msgspec.Struct, gc=False):
    text: str = ""
    special: bool = False


class _Details(msgspec.Struct):
    generated_tokens: int | None = None
    prefill: list[msgspec.Raw] | None = None
    input_length: int | None = None


class _TokenEvent(msgspec.Struct):
    token: _Token | None = None
    generated_text: str | None = None
    details: _Details | None = None
    error: Any = None


_decode_token = msgspec.json.Decoder(_TokenEvent).decode
_decode_token_whole = msgspec.json.Decoder(_TokenEvent | list[_TokenEvent]).decode


class TokenEventAnswer(Answer):
    """One event per token; the last one has the whole text."""

    __slots__ = ()

    def _read(self, event: bytes, at_s: float) -> None:
        decoded = _decode_token(event)
        if decoded.error is not None:
            self._fail_in_stream(excerpt(str(decoded.error)), None)
            return
        if decoded.token is not None:
            self.characters += len(decoded.token.text)
            self._add_piece(at_s, None)
            if self._keeps_text and not decoded.token.special:
                self.texts.append(decoded.token.text)
        if decoded.generated_text is not None:
            self._ends = True
            self._note_details(decoded.details)

    def _note_details(self, details: _Details | None) -> None:
        if details is None:
            return
        prompt = details.input_length
        if prompt is None and details.prefill:
            prompt = len(details.prefill)
        self._note_tokens(prompt, details.generated_tokens)

    def _read_whole(self, body: bytes) -> None:
        decoded = _decode_token_whole(body)
        if isinstance(decoded, list):
            decoded = decoded[0] if decoded else _TokenEvent()
        if decoded.error is not None:
            self._fail_in_stream(excerpt(str(decoded.error)), None)
            return
        self._ends = True
        self._note_details(decoded.details)
        if decoded.generated_text:
            self.characters = len(decoded.generated_text)
            self._add_piece(0.0, None)
            if self._keeps_text:
                self.texts.append(decoded.generated_text)


# events with all the text so far


class _GrownMeta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: Any = None


class _GrownText(msgspec.Struct):
    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: _GrownMeta | None = None
    error: Any = None


_decode_grown = msgspec.json.Decoder(_GrownText).decode
_decode_grown_whole = msgspec.json.Decoder(_GrownText | list[_GrownText]).decode


class GrownTextAnswer(Answer):
    """Every event has all the text so far, and its token count.

    A server started with `--incremental-streaming-output` sends the new text alone.
    """

    __slots__ = ("_last",)

    def __init__(self, *, streamed: bool = True, keep_text: bool = False) -> None:
        super().__init__(streamed=streamed, keep_text=keep_text)
        self._last = ""

    def _read(self, event: bytes, at_s: float) -> None:
        decoded = _decode_grown(event)
        if decoded.error is not None:
            self._fail_in_stream(*_error_words(_Chunk(error=decoded.error)))
            return
        meta = decoded.meta_info or _GrownMeta()
        self._note_tokens(meta.prompt_tokens, meta.completion_tokens)
        if meta.finish_reason is not None:
            self._ends = True
            self._note_abort(meta.finish_reason)
        if decoded.text or decoded.output_ids:
            text = decoded.text or ""
            grown = text.startswith(self._last)
            self.characters = len(text) if grown else self.characters + len(text)
            self._last = text
            self._add_piece(at_s, meta.completion_tokens)
            if self._keeps_text and decoded.text:
                before = "".join(self.texts)
                grown = decoded.text.startswith(before)
                self.texts[:] = [decoded.text if grown else before + decoded.text]

    def _note_abort(self, reason: object) -> None:
        if isinstance(reason, dict) and reason.get("type") == "abort":
            code = reason.get("status_code")
            status = code if isinstance(code, int) and 400 <= code <= 599 else None
            self._fail_in_stream(excerpt(str(reason.get("message") or "aborted")), status)

    def _read_whole(self, body: bytes) -> None:
        decoded = _decode_grown_whole(body)
        if isinstance(decoded, list):
            decoded = decoded[0] if decoded else _GrownText()
        if decoded.error is not None:
            self._fail_in_stream(*_error_words(_Chunk(error=decoded.error)))
            return
        self._ends = True
        meta = decoded.meta_info or _GrownMeta()
        self._note_tokens(meta.prompt_tokens, meta.completion_tokens)
        self._note_abort(meta.finish_reason)
        if decoded.text or decoded.output_ids:
            self.characters = len(decoded.text or "")
            self._add_piece(0.0, None)
            if self._keeps_text and decoded.text:
                self.texts.append(decoded.text)


# embeddings


class _Embeddings(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None
    code: Any = None


_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode


class EmbeddingsAnswer(Answer):
    """Embeddings: vectors instead of tokens; an answer without output tokens is whole."""

    __slots__ = ("_vector_count",)

    def __init__(self, *, streamed: bool = False, keep_text: bool = False) -> None:
        super().__init__(streamed=False)
        self._vector_count = 0

    def _read_whole(self, body: bytes) -> None:
        decoded = _decode_embeddings(body)
        if decoded.error is not None or decoded.object == "error":
            error = _Chunk(error=decoded.error, message=decoded.message, code=decoded.code)
            self._fail_in_stream(*_error_words(error))
            return
        self._ends = True
        self._vector_count = len(decoded.data or ())
        if decoded.usage is not None:
            self._note_tokens(decoded.usage.prompt_tokens, 0)

    def _settle_content(self, status: int | None) -> tuple[str, int | None, str]:
        if not self._vector_count:
            return "empty", status, "the answer has no vector"
        return "ok", status, ""


ANSWERS: Mapping[str, Callable[..., Answer]] = {
    "completions": OpenAiAnswer,
    "chat": OpenAiAnswer,
    "responses": ResponsesAnswer,
    "token_events": TokenEventAnswer,
    "grown_texts": GrownTextAnswer,
    "embeddings": EmbeddingsAnswer,
}
"""Answer class by form, as `workload/data/apis.toml` names them."""


# texts


def _plain_words(body: bytes) -> bytes | str:
    """Message inside an error's JSON, or the body as it is."""
    try:
        chunk = _decode_chunk(body)
    except _UNREADABLE:
        return body
    if chunk.error is None and chunk.message is None:
        return body
    return _error_words(chunk)[0]


def excerpt(words: bytes | str) -> str:
    """Text on one line, cut to what a record keeps."""
    text = words if isinstance(words, str) else words.decode("utf-8", "replace")
    line = " ".join(text.split())
    if len(line) <= EXCERPT_CHARACTERS:
        return line
    return beginning(line, EXCERPT_CHARACTERS - 1) + "…"
