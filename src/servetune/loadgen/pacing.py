"""When requests leave: due times on an absolute schedule, and how late each departure is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeVar

from servetune.clock import Clock

__all__ = ["pace"]


class _Due(Protocol):
    @property
    def due_s(self) -> float: ...


T = TypeVar("T", bound=_Due)


async def pace(
    due: Sequence[T], clock: Clock, start_s: float
) -> AsyncGenerator[tuple[T, float], None]:
    """Yield each thing no earlier than it is due, with how late it came in seconds.

    The schedule is absolute: a late departure moves none of those after it, and those that
    are overdue follow at once, each with its own lateness. asyncio's selector wakes up on
    whole milliseconds, so up to one millisecond of lateness is usual.

    Args:
        due: In order of `due_s`, which counts from the start.
        clock: Tells and passes the time.
        start_s: The start on that clock.
    """
    for thing in due:
        early_s = start_s + thing.due_s - clock.now_s()
        while early_s > 0:
            await clock.sleep(early_s)
            early_s = start_s + thing.due_s - clock.now_s()
        yield thing, -early_s
