"""Space: every combination of server and client settings that a search may try."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec

__all__ = ["Axis", "Space", "Value"]

Value = bool | int | float | str | None


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One or more names and the values that they take together.

    Attributes:
        names: Several when they are tied.
        rows: One tuple per step of the sweep, each as long as `names`; a single row is a
            fixed setting.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Axes of the server and of the client, crossed with each other.

    The client's axes turn fastest, so that all trials of one server stand together and
    a server starts once per server configuration.
    """

    server: tuple[Axis, ...] = ()
    client: tuple[Axis, ...] = ()

    def servers(self) -> Iterator[dict[str, Value]]:
        """Every server configuration, the last axis turning fastest."""
        return _crossed(self.server)

    def clients(self) -> Iterator[dict[str, Value]]:
        """Every client configuration, the last axis turning fastest."""
        return _crossed(self.client)

    def __len__(self) -> int:
        """Trials, without making them."""
        return math.prod(len(axis.rows) for axis in (*self.server, *self.client))


def _crossed(axes: tuple[Axis, ...]) -> Iterator[dict[str, Value]]:
    for rows in itertools.product(*(axis.rows for axis in axes)):
        yield {
            name: value
            for axis, row in zip(axes, rows, strict=True)
            for name, value in zip(axis.names, row, strict=True)
        }
