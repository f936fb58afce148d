"""What a page is told of its run while it is open."""

from __future__ import annotations

import msgspec

from servetune.store import BestSoFar, RunningTrial, RunStatus
from servetune.store.live import RunState


class StatusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a run for its page; the first fields are of the first running trial.

    Attributes:
        label: Settings of the trial that differ in the study; `None` between two trials.
        stage: Stage of it.
        throughput: Output tokens per second of it so far.
        elapsed_s: Time since its stage began.
        errors: Requests that failed so far, of all running trials.
        best: Best trial so far.
        regret_fraction: Expected share by which the best trial exceeds the best so far.
        time_left_s: Time to the end.
        done: Trials that have ended; `None` where the run tells nothing.
        of: Trials that there will be.
        state: State of the run; `lost` where its process is gone without a word.
        running: All running trials.
        run_elapsed_s: Time since the start of the run.
        refuses_put_off: Reason why no trial can be put off; empty where one can.
        note: Answer of the run to the last order, or what is wrong with its status.
    """

    label: str | None = None
    stage: str | None = None
    throughput: float | None = None
    elapsed_s: float | None = None
    errors: int = 0
    best: BestSoFar | None = None
    regret_fraction: float | None = None
    time_left_s: float | None = None
    done: int | None = None
    of: int | None = None
    state: RunState = "ended"
    running: tuple[RunningTrial, ...] = ()
    run_elapsed_s: float | None = None
    refuses_put_off: str = ""
    note: str = ""


def status_message(status: RunStatus | None) -> StatusMessage:
    """Message of a run's status; `None` where it tells nothing, as one that is long over."""
    if status is None:
        return StatusMessage()
    runs = status.state == "running"
    running = status.running if runs else ()
    first = running[0] if running else None
    return StatusMessage(
        label=first.label if first else None,
        stage=first.stage if first else None,
        throughput=first.throughput if first else None,
        elapsed_s=first.elapsed_s if first else None,
        errors=sum(each.errors for each in running),
        best=status.best,
        regret_fraction=status.regret_fraction,
        time_left_s=status.time_left_s if runs else None,
        done=status.done,
        of=status.of,
        state=status.state,
        running=running,
        run_elapsed_s=status.elapsed_s,
        refuses_put_off=status.refuses_put_off,
        note=status.note,
    )
