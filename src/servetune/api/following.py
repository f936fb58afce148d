"""Runs in progress as others see them: what one does now, and the order to end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.api.inputs import read_records
from servetune.api.request import Request, request_of
from servetune.errors import ServetuneError, StoreError
from servetune.json_value import JsonObject
from servetune.option import NonNegative, NonNegativeCount, argument, option
from servetune.store import Artifacts, Order, RunStatus, read_status, write_order

#: Seconds between two looks at a run that is waited for.
LOOK_S = 0.25
#: Bytes at the end of a log in which its last lines are looked for.
_LOG_BYTES = 1 << 16

_JOURNAL = argument(
    "Journal (.jsonl) of the run, or the folder of a load test; it need not exist as yet.",
    metavar="JOURNAL",
)

RunPhase = Literal["absent", "running", "ended", "interrupted"]


class Follow(Request, frozen=True, kw_only=True):
    """State of a run in progress, or of one that is over."""

    verb: ClassVar[str] = "follow"

    source: Annotated[Path, _JOURNAL]
    wait_s: Annotated[
        NonNegative, option("Seconds to wait for the end of the run.", "--wait", metavar="S")
    ] = 0.0
    log_lines: Annotated[
        NonNegativeCount, option("Number of last lines of the run's output.", metavar="COUNT")
    ] = 20


class StopRun(Request, frozen=True, kw_only=True):
    """Order to a run in progress to end; trials that have ended are kept."""

    verb: ClassVar[str] = "stop"

    source: Annotated[Path, _JOURNAL]


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run.

    Attributes:
        source: Journal of the run.
        phase: `running`; `ended`; `interrupted` where trials are missing, which `resume` continues;
            `absent` where there is neither a journal nor a status.
        done: Trials that have ended.
        of: Trials that there will be; `None` where it is not known.
        failed: Number of failed trials of a run that is over; `None` of one in progress.
        status: Status that the run itself writes; `None` where it is over.
        log: Last lines of the run's output, where it went to a file beside the journal.
    """

    source: Path
    phase: RunPhase
    done: int = 0
    of: int | None = None
    failed: int | None = None
    status: RunStatus | None = None
    log: str = ""

    def __str__(self) -> str:
        of = "" if self.of is None else f" of {self.of}"
        failed = f", {self.failed} of them failed" if self.failed else ""
        lines = [f"{self.source.name}: {self.phase}, {self.done}{of} trials have ended{failed}"]
        status = self.status
        if status is not None:
            lines += [f"now: {each.label} ({each.stage})" for each in status.running]
            if status.best is not None:
                lines.append(f"best so far: {status.best.label}")
            if status.time_left_s is not None:
                lines.append(f"time left: {status.time_left_s:.0f} s")
        return "\n".join(lines)

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        found: JsonObject = msgspec.to_builtins(self, enc_hook=str)
        return found


def artifacts_of(source: Path) -> Artifacts:
    """Paths of a run's files by its journal, or by the folder of a load test."""
    if source.is_dir():
        return Artifacts(source, "bench")
    return Artifacts(source.parent, source.name.removesuffix(".jsonl").removesuffix(".json"))


def log_beside(artifacts: Artifacts) -> Path:
    """File that the output of a run goes to, where whoever starts it has it written."""
    return artifacts.folder / f"{artifacts.stem}.output.log"


def follow(
    request: Follow | str | Path | None = None,
    /,
    *,
    on_progress: Callable[[RunProgress], None] | None = None,
    **options: object,
) -> RunProgress:
    """State of a run, waited for where asked.

    Args:
        request: The request, or the journal.
        on_progress: Called with each new state while waiting; what it raises ends the wait alone.
        options: Fields of `Follow`.

    Raises:
        StoreError: The status or the journal cannot be read.
    """
    request = request_of(Follow, request, options)
    artifacts = artifacts_of(request.source)
    ends_s = time.monotonic() + request.wait_s
    told: RunProgress | None = None
    while True:
        now = _progress(artifacts, request.log_lines)
        if on_progress is not None and now != told:
            told = now
            on_progress(now)
        left_s = ends_s - time.monotonic()
        if left_s <= 0 or now.phase in {"ended", "interrupted"}:
            return now
        time.sleep(min(LOOK_S, left_s))


def stop(request: StopRun | str | Path | None = None, /, **options: object) -> RunProgress:
    """Order a run to end after what it is doing is put down; it ends within seconds.

    Raises:
        StoreError: No run is in progress there, or the order cannot be written.
    """
    request = request_of(StopRun, request, options)
    artifacts = artifacts_of(request.source)
    status = read_status(artifacts.status)
    if status is None or status.state != "running":
        raise StoreError(f"no run is in progress at {artifacts.journal}")
    write_order(artifacts, Order(run=status.run, action="stop"))
    return _progress(artifacts, 0)


def _progress(artifacts: Artifacts, lines: int) -> RunProgress:
    status = read_status(artifacts.status)
    log = _last_lines(log_beside(artifacts), lines)
    if status is not None and status.state == "running":
        return RunProgress(
            source=artifacts.journal,
            phase="running",
            done=status.done,
            of=status.of,
            status=status,
            log=log,
        )
    if status is None and not artifacts.journal.is_file():
        return RunProgress(source=artifacts.journal, phase="absent", log=log)
    keys: set[str] = set()
    failed: set[str] = set()
    with contextlib.suppress(ServetuneError):  # interrupted before the first trial ended
        for record in read_records(artifacts.journal):
            keys.add(record.key)
            (failed.add if record.status == "failed" else failed.discard)(record.key)
    return RunProgress(
        source=artifacts.journal,
        phase="ended" if status is None else "interrupted",
        done=len(keys),
        of=None if status is None else status.of,
        failed=len(failed),
        log=log,
    )


def _last_lines(path: Path, count: int) -> str:
    if not count or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-count:])
