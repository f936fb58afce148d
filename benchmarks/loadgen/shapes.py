"""Token counts by each client against the server's own, for every shape that streams take.

    python benchmarks/loadgen/rivals.py --shapes

A count must be exact: as many tokens as the server sent, in as many answers. What a client
cannot know is not asked: without usage, a chunk has one token here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from clients import Client, Load, Place
from watched import serving, watch

LIMIT_S = 120.0
LOAD = Load(concurrency=8, requests=64, input_tokens=16, output_tokens=101)

SHAPES: Mapping[str, tuple[str, ...]] = {
    "one token a write": (),
    "one token a write, no usage": ("--usage", "none"),
    "usage on every chunk": ("--usage", "every"),
    "usage as the client asks": ("--usage", "asked"),
    "five tokens a chunk": ("--tokens-per-chunk", "5"),
    "five tokens a chunk, usage on every chunk": ("--tokens-per-chunk", "5", "--usage", "every"),
    "bursts of 16 chunks": ("--chunks-per-write", "16"),
    "cut anywhere": ("--split",),
    "cut anywhere, three chunks a write": ("--split", "--chunks-per-write", "3"),
    "CRLF": ("--crlf",),
    "CRLF, cut anywhere": ("--crlf", "--split"),
    "comments": ("--comments",),
    "no trailing newline": ("--no-final-newline",),
    "words like protocol": ("--tricky",),
    "words like protocol, no usage, cut anywhere": ("--tricky", "--usage", "none", "--split"),
    "role first": ("--role-chunk", "--usage", "none"),
    "role at once": ("--role-chunk=early", "--ttft-us", "5000"),
    "reasoning": ("--reasoning", "--usage", "none"),
    "reasoning, other name": ("--reasoning=reasoning", "--usage", "none"),
    "tool calls": ("--tools", "--usage", "none"),
    "reasoning and tool calls": ("--reasoning", "--tools", "--usage", "none"),
    "ended by the connection": ("--content-length", "off"),
    "1 ms between tokens": ("--ttft-us", "5000", "--itl-us", "1000"),
    "all at once": (
        *("--split", "--crlf", "--comments", "--no-final-newline", "--tricky", "--reasoning"),
        *("--tools", "--role-chunk", "--tokens-per-chunk", "3", "--chunks-per-write", "2"),
    ),
}


def check(clients: Sequence[Client], cores: list[int], tokenizer: Path) -> int:
    """Print one row per shape; 1 where a count of servetune's or of a reader's is wrong."""
    able = [client for client in clients if not client.missing()]
    print(f"| shape | {' | '.join(client.name for client in able)} |")
    print(f"|---|{'---|' * len(able)}")
    wrong = 0
    for shape, options in SHAPES.items():
        found = [counted(client, options, cores, tokenizer) for client in able]
        wrong += sum(cell != "exact" for cell, client in zip(found, able, strict=True)
                     if client.share == 1.0)  # fmt: skip
        print(f"| {shape} | {' | '.join(found)} |", flush=True)
    return 1 if wrong else 0


def counted(
    client: Client, options: Sequence[str], cores: list[int], tokenizer: Path, load: Load = LOAD
) -> str:
    """`exact`, or how the client's count differs from what was sent."""
    with tempfile.TemporaryDirectory() as folder, serving(options, cores[-1]) as server:
        place = Place(server.port, Path(folder), tokenizer)
        command = client.command(load, place)
        seen = watch(command, cores[0], cwd=place.folder, limit_s=LIMIT_S)
        truth = server.stop().last(load.requests)
        if seen.exit_code != 0:
            return f"exit code {seen.exit_code}: {seen.last_line}"
        report = client.report(place, seen.output)
    if report.completed != load.requests:
        return f"{report.completed} of {load.requests} answers"
    if report.tokens != truth.tokens:
        return f"{report.tokens} of {truth.tokens} tokens"
    return "exact"
