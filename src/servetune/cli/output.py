"""Output of every verb: progress on stderr, data on stdout."""

from __future__ import annotations

import contextlib
import sys

import msgspec

from servetune.secret import redacted_text


def echo(text: str) -> None:
    """Say something about progress, credentials taken out; nobody listening is no reason to
    stop a run.
    """
    with contextlib.suppress(BrokenPipeError):
        print(redacted_text(text), file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    """The result as indented JSON; non-finite numbers become null."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
