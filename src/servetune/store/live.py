"""Status of a run in progress, and orders to it: two small files beside its journal.

The run writes its status about once a second and takes it away when all is done; it stays behind
where the run was interrupted. Orders are files of whoever follows the run; each names the run that
it is for, so that one from before its start means nothing.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from servetune.decoding import ready
from servetune.errors import SchemaTooNew, StoreError
from servetune.processes import ProcessMark
from servetune.store.artifacts import Artifacts, write_text

#: Version of both files' form.
LIVE_SCHEMA = 1
#: Age at which the status of a run elsewhere, whose process cannot be looked up, is one of the
#: past.
STALE_S = 15.0

RunState = Literal["running", "ended", "lost"]
Action = Literal["stop", "put_off"]
T = TypeVar("T")


class RunningTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Trial that is running now.

    Attributes:
        label: Settings of it that differ in the study.
        stage: Stage: `starting server`, `warm-up`, `measuring`, ...
        key: Key of the trial; empty for a load without one.
        throughput: Output tokens per second so far; `None` before the first answer.
        errors: Requests that failed so far.
        elapsed_s: Time since its stage began.
    """

    label: str
    stage: str
    key: str = ""
    throughput: float | None = None
    errors: int = 0
    elapsed_s: float = 0.0


class BestSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """Best trial so far.

    Attributes:
        label: Settings of it that differ in the study.
        metric: Title of the objective that it is the best in.
        value: Value of it.
    """

    label: str
    metric: str
    value: float | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a run as its file has it.

    Attributes:
        run: Name of this start of the run, by chance.
        process: Process that writes it.
        state: State of the run: `running`, or `ended` where it was interrupted.
        verb: Verb of the run: `tune` or `bench`.
        model: Model as it was named.
        running: Trials that are running, the first begun first.
        done: Trials that have ended.
        of: Trials that there will be, as far as it is known.
        best: Best trial so far.
        regret_fraction: Expected share by which the best trial exceeds the best so far, of a guided
            search.
        time_left_s: Time to the end, by the budget or by the trials so far.
        elapsed_s: Time since the start of the run.
        refuses_put_off: Reason why no trial can be put off; empty where one can.
        note: Answer to the last order.
        written_unix_s: Time of writing.
        schema: Version of the form.
    """

    run: str
    process: ProcessMark
    state: RunState = "running"
    verb: str = "tune"
    model: str = ""
    running: tuple[RunningTrial, ...] = ()
    done: int = 0
    of: int = 0
    best: BestSoFar | None = None
    regret_fraction: float | None = None
    time_left_s: float | None = None
    elapsed_s: float = 0.0
    refuses_put_off: str = ""
    note: str = ""
    written_unix_s: float = 0.0
    schema: int = LIVE_SCHEMA

    def seen(self, now_unix_s: float) -> RunStatus:
        """Status as it is now: `lost` where its process is gone without a word."""
        if self.state != "running":
            return self
        lives = self.process.lives()
        if lives is None:
            lives = now_unix_s - self.written_unix_s < STALE_S
        return self if lives else msgspec.structs.replace(self, state="lost")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Order to a run.

    Attributes:
        run: Name of the start that it is for.
        action: Action: `stop`, or `put_off` of a trial.
        trial: Key of the trial.
        schema: Version of the form.
    """

    run: str
    action: Action
    trial: str = ""
    schema: int = LIVE_SCHEMA


class _Form(msgspec.Struct):
    schema: int = LIVE_SCHEMA


def write_status(artifacts: Artifacts, status: RunStatus) -> None:
    """Write the status, with the time, in place of the last one; it need not outlast a power cut.

    Raises:
        StoreError: It could not be written.
    """
    stamped = msgspec.structs.replace(status, written_unix_s=time.time())
    write_text(artifacts.status, msgspec.json.encode(stamped).decode(), lasting=False)


def read_status(path: Path) -> RunStatus | None:
    """Status of a run as it is now; `None` without one.

    Raises:
        StoreError: It cannot be read.
        SchemaTooNew: A newer servetune wrote it.
    """
    status = _read(path, RunStatus)
    return None if status is None else status.seen(time.time())


def write_order(artifacts: Artifacts, order: Order) -> None:
    """Write an order in place of one that was not obeyed yet; one to stop stays.

    Raises:
        StoreError: It could not be written.
    """
    with contextlib.suppress(StoreError):
        waiting = _read(artifacts.order, Order)
        if waiting is not None and waiting.run == order.run and waiting.action == "stop":
            return
    write_text(artifacts.order, msgspec.json.encode(order).decode(), lasting=False)


def take_order(artifacts: Artifacts, run: str) -> Order | None:
    """Order to this start of a run, which is taken away; `None` without one.

    One to another start, or one that cannot be read, is taken away and means nothing.
    """
    taken = artifacts.order.with_name(f"{artifacts.order.name}.taken")
    try:
        artifacts.order.replace(taken)  # so that an order written meanwhile stays for the next look
        order = _read(taken, Order)
    except FileNotFoundError:
        return None
    except (OSError, StoreError):
        order = None
    with contextlib.suppress(OSError):
        taken.unlink(missing_ok=True)
    return order if order is not None and order.run == run else None


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    try:
        schema = msgspec.json.decode(raw, type=ready(_Form)).schema
        if schema > LIVE_SCHEMA:
            raise SchemaTooNew(schema, LIVE_SCHEMA)
        return msgspec.json.decode(raw, type=ready(kind))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
