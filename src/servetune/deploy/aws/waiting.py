"""Waiting until a resource does not change by itself any more, with progress and an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from servetune.clock import Clock
from servetune.errors import DeployError
from servetune.units import format_seconds

OnProgress = Callable[[str], None]


class ResourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a resource at one moment.

    Attributes:
        status: State in AWS's words; `gone` where it is not there.
        changing: Whether it will change by itself.
        reason: Reason of a failure.
        detail: Progress, such as `2 of 4 copies`.
    """

    status: str
    changing: bool
    reason: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.status, self.detail) if part)


class WaitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Interval and time-out of waiting for a resource.

    Attributes:
        poll_s: Seconds between two descriptions.
        timeout_s: Seconds until waiting ends; the resource itself goes on.
        report_every_s: Seconds between two lines of progress where nothing has changed.
        chosen: Whether the user gave the time-out, which then nothing lengthens.
    """

    poll_s: float = 15.0
    timeout_s: float = 4200.0
    report_every_s: float = 120.0
    chosen: bool = False


async def wait_until_stable(
    what: str,
    current: Callable[[], Awaitable[ResourceStatus]],
    clock: Clock,
    wait: WaitOptions,
    on_progress: OnProgress,
) -> ResourceStatus:
    """Poll until the resource is stable; each change is reported with the time that it took.

    Raises:
        DeployError: It still changes when waiting ends.
    """
    begin_s = clock.now_s()
    reported, reported_s = "", begin_s
    while True:
        status = await current()
        passed_s = clock.now_s() - begin_s
        if status.text != reported or clock.now_s() - reported_s >= wait.report_every_s:
            on_progress(f"[{format_seconds(passed_s)}] {what}: {status.text}")
            reported, reported_s = status.text, clock.now_s()
        if not status.changing:
            return status
        if passed_s >= wait.timeout_s:
            raise DeployError(
                f"{what} is still {status.text} after {format_seconds(passed_s)}",
                hint="it goes on without this command: run it again to wait on, or delete",
            )
        await clock.sleep(wait.poll_s)
