"""Search space: combinations of server and client settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec

Value = bool | int | float | str | None


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Axis of a search space: one or more settings that change together.

    Attributes:
        names: Names of the settings; several when they are tied.
        rows: Values for each step of the sweep, each as long as `names`; a single row is a
            fixed setting.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Cartesian product of server axes and client axes.

    Client axes vary fastest, so that all trials of one server are consecutive and a server
    starts once per server configuration.
    """

    server: tuple[Axis, ...] = ()
    client: tuple[Axis, ...] = ()

    def servers(self) -> Iterator[dict[str, Value]]:
        """Server configurations, the last axis varying fastest."""
        return _crossed(self.server)

    def clients(self) -> Iterator[dict[str, Value]]:
        """Client configurations, the last axis varying fastest."""
        return _crossed(self.client)

    def __len__(self) -> int:
        """Number of trials."""
        return math.prod(len(axis.rows) for axis in (*self.server, *self.client))


def _crossed(axes: tuple[Axis, ...]) -> Iterator[dict[str, Value]]:
    for rows in itertools.product(*(axis.rows for axis in axes)):
        yield {
            name: value
            for axis, row in zip(axes, rows, strict=True)
            for name, value in zip(axis.names, row, strict=True)
        }
