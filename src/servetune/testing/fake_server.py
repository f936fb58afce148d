"""Fake OpenAI-like streaming server with configurable behaviour, which records what it did.

This is a public testing kit: use it for your own client or orchestration as well. It speaks
HTTP on a real socket, keeps the times that it is given, fails on request in every way that
servers fail, and logs when each token really left. It thinks nothing: its words are numbers.

As a process, on a free port, with its log of truth:

    python -m servetune.testing.fake_server --port 0 --ttft-s 0.05 --itl-s 0.01 --truth t.jsonl

prints `listening on PORT` when it accepts connections. In a test:

    from servetune.testing import Behaviour, running_server

    async with running_server(Behaviour(ttft_s=0.05, itl_s=0.01)) as server:
        ...  # server.url, then server.truths

Times are kept on an absolute schedule by asyncio's timers, so a token leaves up to a
millisecond late and never early; the log has the true times on the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from servetune.testing.server import Behaviour, FakeServer


def _parser() -> argparse.ArgumentParser:
    default = Behaviour()
    parser = argparse.ArgumentParser(
        prog="python -m servetune.testing.fake_server",
        description="An OpenAI-like streaming server with known timing and faults on request.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--truth", type=Path, help="file for one JSON line per request served")
    parser.add_argument("--model", default=default.model)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--ttft-s", type=float, default=default.ttft_s)
    parser.add_argument("--itl-s", type=float, default=default.itl_s)
    parser.add_argument("--tokens-per-chunk", type=int, default=default.tokens_per_chunk)
    parser.add_argument(
        "--prefill-s-per-token",
        "--prefix-cost",
        dest="prefill_s_per_token",
        type=float,
        default=default.prefill_s_per_token,
    )
    parser.add_argument("--usage", choices=["continuous", "final", "none"], default=default.usage)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--ready-after-s", type=float, default=default.ready_after_s)
    parser.add_argument("--hang-health", action="store_true")
    parser.add_argument("--die-at-request", type=int)
    parser.add_argument("--no-done", dest="done", action="store_false")
    parser.add_argument("--crlf", action="store_true")
    parser.add_argument(
        "--role-chunk", action=argparse.BooleanOptionalAction, default=default.role_chunk
    )
    parser.add_argument("--split-bytes", type=int)
    parser.add_argument("--silent-every", type=int)
    parser.add_argument("--drop-reused", action="store_true")
    parser.add_argument("--refuse-field", dest="refuse_fields", action="append", default=[])
    parser.add_argument("--fail-status", type=int, default=default.fail_status)
    for fault in ("fail", "stall", "truncate", "disconnect", "malformed", "error", "empty"):
        parser.add_argument(f"--{fault}-share", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=default.seed)
    return parser


async def _serve(behaviour: Behaviour, host: str, port: int, log: TextIO | None) -> None:
    server = FakeServer(behaviour, log=log, on_death=lambda: os._exit(1))
    await server.start(port, host=host)
    sys.stdout.write(f"listening on {server.port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    options = vars(_parser().parse_args(argv))
    host, port, truth = options.pop("host"), options.pop("port"), options.pop("truth")
    behaviour = msgspec.convert(options, Behaviour)
    log = None if truth is None else truth.open("w", encoding="utf-8")
    try:
        asyncio.run(_serve(behaviour, host, port, log))
    except KeyboardInterrupt:
        return
    finally:
        if log is not None:
            log.close()


if __name__ == "__main__":
    main()
