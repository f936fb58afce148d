"""Fake streaming server: its behaviour, its record of true times, and its sockets."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TextIO

import httptools
import msgspec

from servetune.engines import DEFAULT_ENGINE
from servetune.engines.metrics import metric_prefix
from servetune.json_value import JsonObject

Fault = Literal["fail", "stall", "truncate", "disconnect", "malformed", "error", "empty"]
Usage = Literal["continuous", "final", "none"]

PREPARED_CHUNK_YIELD = 16
"""Chunks written in one go when there is no time between them."""


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of the server. Shares are of requests, drawn with `seed`, from 0 to 1.

    Attributes:
        model: Model name that it serves; any other is answered with 404.
        max_model_len: Maximum of prompt and answer together; longer requests are answered with 400.
        ttft_s: Time from a request's last byte, or the end of its wait in the queue, to its first
            token.
        itl_s: Time between two chunks.
        tokens_per_chunk: Tokens of every chunk; the last one has the rest.
        prefill_s_per_token: Time added to `ttft_s` for each token of the prompt.
        usage: Place of the token counts: in every chunk, at the end if the client asks for them, or
            nowhere.
        max_num_seqs: Requests served at once; others wait in order of arrival.
        ready_after_s: Time for which `/health` answers 503.
        hang_health: Whether `/health` never answers.
        die_at_request: Number of the request at whose arrival the server ends abruptly, from 1.
        done: Whether streams end in `[DONE]`.
        crlf: Whether lines end in CRLF.
        role_chunk: Whether chat streams start with a chunk that has no content.
        split_bytes: Size of the HTTP chunks that events are cut into.
        silent_every: Interval of chunks that have tokens and no text.
        drop_reused: Whether a second request on a connection finds it closed.
        refuse_fields: Members of the body that are answered with 422.
        fail_status: HTTP status of the requests in `fail_share`.
        stall_share: Share of requests whose streams stop half-way and stay open.
        truncate_share: Share of requests whose streams end half-way, without an error.
        disconnect_share: Share of requests whose connections are closed half-way.
        malformed_share: Share of requests that get invalid JSON half-way.
        error_share: Share of requests that get an error in place of a chunk half-way.
        empty_share: Share of requests whose streams end before the first token, without an error.
    """

    model: str = "fake"
    max_model_len: int | None = None
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    prefill_s_per_token: float = 0.0
    usage: Usage = "continuous"
    max_num_seqs: int | None = None
    ready_after_s: float = 0.0
    hang_health: bool = False
    die_at_request: int | None = None
    done: bool = True
    crlf: bool = False
    role_chunk: bool = True
    split_bytes: int | None = None
    silent_every: int | None = None
    drop_reused: bool = False
    refuse_fields: tuple[str, ...] = ()
    fail_status: int = 500
    fail_share: float = 0.0
    stall_share: float = 0.0
    truncate_share: float = 0.0
    disconnect_share: float = 0.0
    malformed_share: float = 0.0
    error_share: float = 0.0
    empty_share: float = 0.0
    seed: int = 1

    def fault(self, draw: float) -> Fault | None:
        """The fault of a request that drew this number from [0, 1)."""
        shares: tuple[tuple[Fault, float], ...] = (
            ("fail", self.fail_share),
            ("stall", self.stall_share),
            ("truncate", self.truncate_share),
            ("disconnect", self.disconnect_share),
            ("malformed", self.malformed_share),
            ("error", self.error_share),
            ("empty", self.empty_share),
        )
        below = 0.0
        for fault, share in shares:
            below += share
            if draw < below:
                return fault
        return None


class Truth(msgspec.Struct, kw_only=True):
    """True times of one request, on the machine's monotonic clock.

    Attributes:
        received_s: Time at which the request's last byte was read.
        begun_s: Time at which its wait in the queue ended.
        sent_s: Times just before each chunk was passed to the kernel.
        tokens: Token counts of these chunks.
        whole: Whether it was answered to the end.
    """

    index: int
    received_s: float
    begun_s: float = 0.0
    prompt_tokens: int = 0
    sent_s: list[float] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    fault: Fault | None = None
    whole: bool = False

    @property
    def ttft_s(self) -> float | None:
        return self.sent_s[0] - self.received_s if self.sent_s else None


class FakeServer:
    """The server, once started; counts and truths may be read at any time.

    Attributes:
        truths: One per generation request, in order of arrival.
        bodies: JSON bodies of the generation requests, in order of arrival.
        running_count: Requests being answered now; `peak_running_count` the most ever.
        waiting_count: Requests in the queue.
        connection_count: Connections accepted so far.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        log: TextIO | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.behaviour = behaviour
        self.truths: list[Truth] = []
        self.bodies: list[JsonObject] = []
        self.running_count = 0
        self.waiting_count = 0
        self.peak_running_count = 0
        self.peak_waiting_count = 0
        self.connection_count = 0
        self.open_count = 0
        self.peak_open_count = 0
        self.port = 0
        self._log = log
        self._on_death = on_death or self.die
        self._rng = random.Random(behaviour.seed)  # noqa: S311 - faults, not secrets
        self._slots = asyncio.Semaphore(behaviour.max_num_seqs or sys.maxsize)
        self._connections: set[_Connection] = set()
        self._started_s = 0.0
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0, *, host: str = "127.0.0.1") -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self), host, port, backlog=4096
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._started_s = time.monotonic()

    def die(self) -> None:
        """Stop listening and drop every connection, as a killed process would."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.drop()

    async def close(self) -> None:
        self.die()
        await asyncio.gather(
            *(one.task for one in tuple(self._connections) if one.task is not None),
            return_exceptions=True,
        )

    # what it answers

    async def answer(self, connection: _Connection, method: str, path: str, body: bytes) -> None:
        """Answer one request on its connection."""
        if method == "POST" and path in {"/v1/completions", "/v1/chat/completions"}:
            await self._generate(connection, body, chat="chat" in path)
        elif method == "GET" and path == "/health":
            if self.behaviour.hang_health:
                await asyncio.get_running_loop().create_future()
            ready = time.monotonic() - self._started_s >= self.behaviour.ready_after_s
            connection.reply(200 if ready else 503, b"" if ready else b"not ready", "text/plain")
        elif method == "GET" and path == "/v1/models":
            models = {"object": "list", "data": [{"id": self.behaviour.model, "object": "model"}]}
            connection.reply(200, msgspec.json.encode(models))
        elif method == "GET" and path == "/metrics":
            connection.reply(200, self.metrics().encode(), "text/plain; version=0.0.4")
        else:
            connection.reply(404, _error(f"no route {method} {path}", 404))

    def metrics(self) -> str:
        """Counts under the default engine's names; without a cache every look-up misses."""
        prompt_tokens = sum(truth.prompt_tokens for truth in self.truths)
        label = f'{{engine="0",model_name="{self.behaviour.model}"}}'
        values = {
            "num_requests_running": self.running_count,
            "num_requests_waiting": self.waiting_count,
            "kv_cache_usage_perc": 0.0,
            "num_preemptions_total": 0,
            "prefix_cache_queries_total": prompt_tokens,
            "prefix_cache_hits_total": 0,
            "prompt_tokens_total": prompt_tokens,
            "generation_tokens_total": sum(sum(truth.tokens) for truth in self.truths),
            "request_success_total": sum(truth.whole for truth in self.truths),
        }
        lines, prefix = [], metric_prefix(DEFAULT_ENGINE)
        for name, value in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# TYPE {prefix}{name} {kind}")
            lines.append(f"{prefix}{name}{label} {float(value)}")
        return "\n".join(lines) + "\n"

    def refusal(self, body: JsonObject, prompt_tokens: int) -> tuple[int, str] | None:
        """Status and words for a request that is not served."""
        how = self.behaviour
        for name in how.refuse_fields:
            if name in body:
                return 422, f"Unexpected field: {name}"
        if body.get("model") != how.model:
            return 404, f"The model `{body.get('model')}` does not exist."
        requested = prompt_tokens + int(body.get("max_tokens") or 16)
        if how.max_model_len is not None and requested > how.max_model_len:
            return 400, (
                f"This model's maximum context length is {how.max_model_len} tokens. "
                f"However, you requested {requested} tokens."
            )
        return None

    async def _generate(self, connection: _Connection, raw: bytes, *, chat: bool) -> None:
        truth = Truth(index=len(self.truths), received_s=time.monotonic())
        self.truths.append(truth)
        if len(self.truths) == self.behaviour.die_at_request:
            self._on_death()
            return
        try:
            body = msgspec.json.decode(raw, type=JsonObject)
        except msgspec.MsgspecError as error:
            connection.reply(400, _error(str(error), 400))
            return
        self.bodies.append(body)
        truth.prompt_tokens = _prompt_tokens(body)
        truth.fault = self.behaviour.fault(self._rng.random())
        refusal = self.refusal(body, truth.prompt_tokens)
        if refusal is None and truth.fault == "fail":
            refusal = self.behaviour.fail_status, "told to fail"
        if refusal is not None:
            status, words = refusal
            connection.reply(status, _error(words, status))
            return
        await self._take_turn(connection, truth, body, chat=chat)

    async def _take_turn(
        self, connection: _Connection, truth: Truth, body: JsonObject, *, chat: bool
    ) -> None:
        self.waiting_count += self._slots.locked()
        queued = self._slots.locked()
        self.peak_waiting_count = max(self.peak_waiting_count, self.waiting_count)
        try:
            await self._slots.acquire()
        finally:
            self.waiting_count -= queued
        self.running_count += 1
        self.peak_running_count = max(self.peak_running_count, self.running_count)
        try:
            truth.begun_s = time.monotonic()
            answer = _Answer(self.behaviour, connection, truth, body, chat=chat)
            await (answer.stream() if body.get("stream") else answer.whole())
        finally:
            self.running_count -= 1
            self._slots.release()
            if self._log is not None:
                self._log.write(msgspec.json.encode(truth).decode() + "\n")
                self._log.flush()

    # connections

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self.connection_count += 1
        self.open_count += 1
        self.peak_open_count = max(self.peak_open_count, self.open_count)

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self.open_count -= 1


class _Answer:
    """One answer: what it says, and when."""

    def __init__(
        self,
        how: Behaviour,
        connection: _Connection,
        truth: Truth,
        body: JsonObject,
        *,
        chat: bool,
    ) -> None:
        self._how = how
        self._connection = connection
        self._truth = truth
        self._chat = chat
        self._tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        options = body.get("stream_options") or {}
        self._usage_at_end = how.usage != "none" and bool(options.get("include_usage"))
        self._usage_always = how.usage == "continuous" and bool(
            options.get("continuous_usage_stats")
        )
        self._newline = b"\r\n" if how.crlf else b"\n"

    async def whole(self) -> None:
        """The answer in one piece."""
        how = self._how
        count = -(-self._tokens // how.tokens_per_chunk)
        await self._until(self._first_due_s() + (count - 1) * how.itl_s)
        text = "".join(_word(i) for i in range(self._tokens))
        content = (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        answer: JsonObject = {"choices": [{"index": 0, **content, "finish_reason": "length"}]}
        if how.usage != "none":
            answer["usage"] = self._usage(self._tokens)
        self._truth.sent_s.append(time.monotonic())
        self._truth.tokens.append(self._tokens)
        self._connection.reply(200, msgspec.json.encode(answer))
        self._truth.whole = True

    async def stream(self) -> None:
        """The answer chunk by chunk, with the fault that it drew."""
        fault = self._truth.fault
        self._connection.begin_stream()
        if self._chat and self._how.role_chunk:
            self._event(self._chunk({"role": "assistant", "content": ""}, 0))
        sizes = self._sizes()
        if fault == "empty":
            await self._until(self._first_due_s())
        else:
            await self._send_chunks(sizes if fault is None else sizes[: len(sizes) // 2])
        if not await self._break(fault):
            return
        if fault is None:
            self._end()
        elif fault == "empty" and self._how.done:
            self._data(b"[DONE]")
        self._connection.end_stream()
        self._truth.whole = fault is None

    def _sizes(self) -> list[int]:
        whole, rest = divmod(self._tokens, self._how.tokens_per_chunk)
        return [self._how.tokens_per_chunk] * whole + [rest] * bool(rest)

    async def _send_chunks(self, sizes: Sequence[int]) -> None:
        how, sent = self._how, 0
        first_due_s = self._first_due_s()
        for i, size in enumerate(sizes):
            await self._until(first_due_s + i * how.itl_s)
            if not how.itl_s and i % PREPARED_CHUNK_YIELD == 0:
                await asyncio.sleep(0)
            silent = how.silent_every is not None and (i + 1) % how.silent_every == 0
            text = "" if silent else "".join(_word(sent + j) for j in range(size))
            sent += size
            chunk = self._chunk(text, sent)
            # Stamped before the write: a client on another core may see the bytes at once.
            self._truth.sent_s.append(time.monotonic())
            self._truth.tokens.append(size)
            self._event(chunk)

    async def _break(self, fault: Fault | None) -> bool:
        """Do what the fault says; whether the message still ends as HTTP messages do."""
        if fault == "stall":
            await asyncio.get_running_loop().create_future()
        if fault == "disconnect":
            self._connection.drop()
            return False
        if fault == "malformed":
            self._data(b'{"choices": [{"text": "')
        if fault == "error":
            self._data(_error("the engine gave up", 500))
        return True

    def _end(self) -> None:
        sent = sum(self._truth.tokens)
        self._event(self._chunk("", sent, finish_reason="length"))
        if self._usage_at_end:
            self._event({"object": "chunk", "choices": [], "usage": self._usage(sent)})
        if self._how.done:
            self._data(b"[DONE]")

    def _chunk(
        self, content: str | dict[str, str], sent: int, *, finish_reason: str | None = None
    ) -> JsonObject:
        choice: JsonObject = {"index": 0, "finish_reason": finish_reason}
        if self._chat:
            choice["delta"] = content if isinstance(content, dict) else {"content": content}
        else:
            choice["text"] = content
        chunk: JsonObject = {"id": f"fake-{self._truth.index}", "choices": [choice]}
        if self._usage_always:
            chunk["usage"] = self._usage(sent)
        return chunk

    def _usage(self, output_tokens: int) -> dict[str, int]:
        prompt_tokens = self._truth.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }

    def _event(self, chunk: JsonObject) -> None:
        self._data(msgspec.json.encode(chunk))

    def _data(self, data: bytes) -> None:
        self._connection.send_part(
            b"data: " + data + self._newline * 2, cut_bytes=self._how.split_bytes
        )

    def _first_due_s(self) -> float:
        how, truth = self._how, self._truth
        return truth.begun_s + how.ttft_s + how.prefill_s_per_token * truth.prompt_tokens

    async def _until(self, due_s: float) -> None:
        early_s = due_s - time.monotonic()
        if early_s > 0:
            await asyncio.sleep(early_s)


class _Connection(asyncio.Protocol):
    """One client's connection; httptools calls its `on_*` methods while it is fed."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body = bytearray()
        self._served_count = 0
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.drop()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._served_count += 1
        if self._server.behaviour.drop_reused and self._served_count > 1:
            self.drop()
            return
        method = self._parser.get_method().decode()
        path = self._url.decode("latin-1").partition("?")[0]
        self.task = asyncio.create_task(self._server.answer(self, method, path, bytes(self._body)))

    # writing

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        self._write(
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def begin_stream(self) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def send_part(self, data: bytes, *, cut_bytes: int | None) -> None:
        """Part of a stream, in one HTTP chunk or in several of a given size."""
        step = cut_bytes or len(data)
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self._write(b"%x\r\n%b\r\n" % (len(part), part))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


@asynccontextmanager
async def running_server(behaviour: Behaviour | None = None) -> AsyncIterator[FakeServer]:
    """A server in this process, on a free port of the loopback interface."""
    server = FakeServer(behaviour or Behaviour())
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def _prompt_tokens(body: JsonObject) -> int:
    """Length of the prompt: its ids, or its words."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.split())
    messages = body.get("messages") or []
    return sum(len(str(message.get("content", "")).split()) for message in messages)


def _word(i: int) -> str:
    return f" {i}"


def _error(words: str, status: int) -> bytes:
    error = {"message": words, "type": "fake", "code": status}
    return msgspec.json.encode({"error": error})
