"""Waiting until a thing rests, with progress and an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from servetune.clock import Clock
from servetune.errors import DeployError
from servetune.units import format_seconds

__all__ = ["Patience", "Seen", "until_rest"]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a thing.

    Attributes:
        status: In AWS's words; `gone` where it is not there.
        moving: Whether it will change by itself.
        reason: Why it failed.
        detail: How far it is, such as `2 of 4 copies`.
    """

    status: str
    moving: bool
    reason: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.status, self.detail) if part)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How often to look and how long.

    Attributes:
        poll_s: Between two looks.
        timeout_s: Until giving up waiting; the thing itself goes on.
        tell_every_s: How often to say that nothing has changed.
    """

    poll_s: float = 15.0
    timeout_s: float = 4200.0
    tell_every_s: float = 120.0


async def until_rest(
    what: str,
    look: Callable[[], Awaitable[Seen]],
    clock: Clock,
    patience: Patience,
    tell: Callable[[str], None],
) -> Seen:
    """Look until the thing rests; each change is told with the time that it took.

    Raises:
        DeployError: It still moves when patience ends.
    """
    begin_s = clock.now_s()
    told, told_s = "", begin_s
    while True:
        seen = await look()
        passed_s = clock.now_s() - begin_s
        if seen.text != told or clock.now_s() - told_s >= patience.tell_every_s:
            tell(f"[{format_seconds(passed_s)}] {what}: {seen.text}")
            told, told_s = seen.text, clock.now_s()
        if not seen.moving:
            return seen
        if passed_s >= patience.timeout_s:
            raise DeployError(
                f"{what} is still {seen.text} after {format_seconds(passed_s)}",
                hint="it goes on without this command: run it again to wait on, or delete",
            )
        await clock.sleep(patience.poll_s)
