"""Packing of servers onto devices, so that as many as possible run side by side."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.errors import PlanError


class DeviceBlocks:
    """Devices of one machine, by number, free or taken.

    A block of 2 begins at an even number, one of 4 at a multiple of four: boards join their devices
    in such pairs and fours, and returned blocks fit together again (the buddy system of Knowlton,
    Communications of the ACM 8, 1965).
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken: set[int] = set()

    def take(self, device_count: int) -> tuple[int, ...] | None:
        """First free block; `None` while there is none.

        Raises:
            PlanError: The machine has fewer devices.
        """
        if device_count > self.count:
            raise PlanError(
                f"the plan needs {device_count} devices and the machine has {self.count}",
                hint="use a smaller tensor_parallel_size, or name a larger machine",
            )
        step = _next_power_of_two(device_count)
        for begin in range(0, self.count, step):
            block = range(begin, begin + device_count)
            if block.stop <= self.count and not self._taken & set(block):
                self._taken |= set(block)
                return tuple(block)
        if device_count == step:
            return None
        for begin in range(self.count - device_count + 1):  # 3, 5, 6 of 8: wherever they fit
            block = range(begin, begin + device_count)
            if not self._taken & set(block):
                self._taken |= set(block)
                return tuple(block)
        return None

    def give_back(self, block: Sequence[int]) -> None:
        self._taken -= set(block)


def packed(counts: Sequence[int]) -> list[int]:
    """Order in which to place plans of so many devices each, as places in `counts`.

    Large ones first, equal ones as they stand. What is left at the end is small, so that the
    machine stays full to the last (Graham's bound for longest-first, SIAM Journal on Applied
    Mathematics 17, 1969, with devices for lengths), and equal sizes together leave no gaps.
    """
    return sorted(range(len(counts)), key=lambda place: -counts[place])


def parallel_servers_for(parallel: int | None, device_count: int, smallest: int) -> int:
    """Number of servers that may be under load at once.

    Args:
        parallel: Number that the user asks for; `None` for as many as there is room for.
        device_count: Devices of the machine.
        smallest: Devices of the smallest plan.

    Raises:
        PlanError: There is no room for so many.
    """
    most = max(1, device_count // max(1, smallest))
    if parallel is None:
        return most
    if parallel > most:
        raise PlanError(
            f"--parallel {parallel} needs {parallel * smallest} devices, the machine has "
            f"{device_count}",
            hint=f"give --parallel {most} at most, or --parallel auto",
        )
    return parallel


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
