"""Files of a run that servetune wrote, told by their content, and others that bear such a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.store.artifacts import Artifacts
from servetune.store.live import Order, RunStatus
from servetune.store.register import journal_identity
from servetune.store.requests import COLUMNS, RequestLine

#: Logs that a study writes: by trial, start on another node, copy, and number of the start.
_LOG = re.compile(r"server-\d{3,}(-again-\d+)?(-copy\d+)?(-\d+)?\.log")
#: Bytes at the end of a Parquet file that have the names of its columns.
_FOOTER_BYTES = 65536


class RunFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files at the places of a run's.

    Attributes:
        own: Files that servetune wrote.
        others: Files that are not recognised, whoever wrote them.
    """

    own: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()


def run_files(artifacts: Artifacts, configuration: str) -> RunFiles:
    """Files of a run, each recognised by its content; logs by their names.

    Args:
        artifacts: Places of the files.
        configuration: First line of a file of options.
    """
    stem, folder = artifacts.stem, artifacts.folder
    checks: list[tuple[Path, Callable[[Path], bool]]] = [
        (artifacts.journal, lambda path: journal_identity(path) is not None),
        (artifacts.summary, _is_json(_Summary)),
        (artifacts.dashboard, _is_dashboard),
        (artifacts.requests, _begins_with(RequestLine)),
        (artifacts.timelines, _begins_with(_Timeline)),
        (artifacts.status, _is_json(RunStatus)),
        (artifacts.order, _is_json(Order)),
        (artifacts.tags, _is_json(dict[str, str])),
        (artifacts.configuration, lambda path: configuration.encode() in path.read_bytes()[:200]),
        (folder / f"{stem}.requests.csv", _is_requests_csv),
        (folder / f"{stem}.requests.parquet", _is_requests_parquet),
        (folder / f"{stem}.server.json", _is_json(_ServerSide)),
    ]
    if artifacts.logs.is_dir() and not artifacts.logs.is_symlink():
        checks += [
            (path, lambda path: _LOG.fullmatch(path.name) is not None)
            for path in sorted(artifacts.logs.iterdir())
        ]
    own: list[Path] = []
    others: list[Path] = []
    for path, is_own in checks:
        if path.is_symlink() or path.exists():
            (own if path.is_file() and _holds(is_own, path) else others).append(path)
    return RunFiles(own=tuple(own), others=tuple(others))


class _Metadata(msgspec.Struct):
    servetune_schema: int


class _Summary(msgspec.Struct):
    metadata: _Metadata
    test_results: msgspec.Raw


class _Timeline(msgspec.Struct):
    key: str
    timeline: dict[str, Any]


class _ServerSide(msgspec.Struct):
    every_s: float
    totals: dict[str, Any]


def _holds(is_own: Callable[[Path], bool], path: Path) -> bool:
    try:
        return is_own(path)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _is_json(kind: Any) -> Callable[[Path], bool]:
    def decoded(path: Path) -> bool:
        msgspec.json.decode(path.read_bytes(), type=ready(kind))
        return True

    return decoded


def _begins_with(kind: Any) -> Callable[[Path], bool]:
    def decoded(path: Path) -> bool:
        with path.open("rb") as lines:
            msgspec.json.decode(lines.readline(), type=ready(kind))
        return True

    return decoded


def _is_dashboard(path: Path) -> bool:
    content = path.read_bytes()
    return b' id="data">' in content and b"servetune</title>" in content


def _is_requests_csv(path: Path) -> bool:
    with path.open("rb") as lines:
        return lines.readline().decode().rstrip("\n") == ",".join(COLUMNS)


def _is_requests_parquet(path: Path) -> bool:
    content = path.read_bytes()
    footer = content[-_FOOTER_BYTES:]
    return content.startswith(b"PAR1") and b"first_token_s" in footer and b"due_s" in footer
