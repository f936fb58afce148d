"""The leanest client in Python, without a record of anything: the yardstick for CPU.

    .venv-vllm/bin/python benchmarks/loadgen/bare_uvloop.py --port 8000

uvloop's Protocol, HTTP chunks and SSE lines cut here, each event decoded by msgspec into typed
structs, one stamp per read. It needs uvloop and msgspec, which the vLLM environment has. Every
answer is taken to be a success.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import resource
import sys
import time

import msgspec
import uvloop

ROUTES = {
    "/v1/completions": '"prompt":"{}"',
    "/v1/chat/completions": '"messages":[{{"role":"user","content":"{}"}}]',
}


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    choices: list[Choice]
    usage: Usage | None = None


decode = msgspec.json.Decoder(Chunk).decode


class Reader(asyncio.Protocol):
    """One connection: asks, reads, and asks again until the run has begun enough requests."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rest = b""
        self.line = b""
        self.in_body = self.chunked = False
        self.sent_s = 0.0
        self.times_s: list[float] = []
        self.tokens = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if self.run.begin():
            self.in_body = False
            self.times_s = []
            self.tokens = 0
            self.sent_s = time.monotonic()
            self.transport.write(self.run.question)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        if self.rest:
            data = self.rest + data
        at = 0
        if not self.in_body:
            at = data.find(b"\r\n\r\n") + 4
            if at < 4:
                self.rest = data
                return
            assert data.startswith(b"HTTP/1.1 200"), data[:80]
            self.in_body = True
            self.chunked = data.find(b"transfer-encoding: chunked", 0, at) >= 0
        if not self.chunked:
            self.rest = b""
            self.take_text(data[at:], now_s)
            return
        length = len(data)
        while (line_end := data.find(b"\r\n", at)) >= 0:
            start = line_end + 2
            size = int(data[at:line_end], 16)
            end = start + size
            if end + 2 > length:
                break
            at = end + 2
            if size == 0:
                self.rest = data[at:]
                self.finish(now_s)
                return
            self.take_text(data[start:end], now_s)
        self.rest = data[at:]

    def take_text(self, text: bytes, now_s: float) -> None:
        lines = (self.line + text).split(b"\n")
        self.line = lines.pop()
        for line in lines:
            if line.startswith(b"data: "):
                self.take_event(line[6:], now_s)

    def take_event(self, event: bytes, now_s: float) -> None:
        if event.startswith(b"[DONE]"):
            return
        chunk = decode(event)
        if chunk.usage is not None:
            self.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            said = choice.delta
            if choice.text or (
                said is not None
                and (said.content or said.reasoning_content or said.reasoning or said.tool_calls)
            ):
                self.times_s.append(now_s)

    def finish(self, now_s: float) -> None:
        if self.line:
            if self.line.startswith(b"data: "):
                self.take_event(self.line[6:], now_s)
            self.line = b""
        self.run.end(self.sent_s, self.times_s, self.tokens or len(self.times_s))
        if self.chunked:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if self.in_body and not self.chunked:
            self.finish(time.monotonic())
            self.run.join()


class Run:
    """A closed loop, and what came of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.wanted = options.requests
        self.begun = self.ended = 0
        self.tokens = self.events = 0
        self.ttft_s: list[float] = []
        self.gaps_s: list[float] = []
        self.over = asyncio.get_running_loop().create_future()
        self.joining: set[asyncio.Task[object]] = set()
        self.port = options.port
        self.question = question(options)

    def join(self) -> None:
        loop = asyncio.get_running_loop()
        making = loop.create_connection(lambda: Reader(self), "127.0.0.1", self.port)
        self.joining.add(task := loop.create_task(making))
        task.add_done_callback(self.joining.discard)

    def begin(self) -> bool:
        if self.begun == self.wanted:
            return False
        self.begun += 1
        return True

    def end(self, sent_s: float, times_s: list[float], tokens: int) -> None:
        self.ended += 1
        self.tokens += tokens
        self.events += len(times_s)
        self.ttft_s.append(times_s[0] - sent_s)
        self.gaps_s.extend(after - before for before, after in itertools.pairwise(times_s))
        if self.ended == self.wanted:
            self.over.set_result(None)


def question(options: argparse.Namespace) -> bytes:
    route = "/v1/completions" if options.completions else "/v1/chat/completions"
    prompt = ROUTES[route].format(" word" * options.input_tokens)
    body = (
        f'{{"model":"fake",{prompt},"stream":true,"temperature":0,"ignore_eos":true,'
        f'"stream_options":{{"include_usage":true}},"max_tokens":{options.output_tokens}}}'
    )
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def law(values: list[float]) -> dict[str, float] | None:
    """Mean, median and 99th percentile in milliseconds."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": 1e3 * sum(ordered) / len(ordered),
        "p50": 1e3 * ordered[len(ordered) // 2],
        "p99": 1e3 * ordered[int(len(ordered) * 0.99)],
    }


async def main(options: argparse.Namespace) -> None:
    run = Run(options)
    gc.freeze()
    gc.disable()
    start_s, start_cpu_s = time.monotonic(), cpu_s()
    for _ in range(min(options.concurrency, options.requests)):
        run.join()
    await run.over
    wall_s, load_cpu_s = time.monotonic() - start_s, cpu_s() - start_cpu_s
    found = {
        "client": "bare-uvloop",
        "requests": run.ended,
        "failed": 0,
        "tokens": run.tokens,
        "events": run.events,
        "wall_s": wall_s,
        "tokens_per_s": run.tokens / wall_s,
        "cpu_s": load_cpu_s,
        "ttft_ms": law(run.ttft_s),
        "itl_ms": law(run.gaps_s),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(found) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--input-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=256)
    parser.add_argument("--completions", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(main(read_options()))
