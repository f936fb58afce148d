"""Search space: combinations of server and client settings."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from servetune.errors import InputError
from servetune.search.conditions import Combination, Condition, Value

_NOTHING: Mapping[str, Value] = MappingProxyType({})


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Axis of a search space: one or more settings that change together.

    Attributes:
        names: Names of the settings; several when they are tied.
        rows: Values for each step of the sweep, each as long as `names`; a single row is a
            fixed setting.
        conditions: Conditions that must all hold for the settings to exist; where one does not,
            a configuration is without them.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    conditions: Combination = ()

    @property
    def label(self) -> str:
        """Names as the grammar writes them."""
        return "*".join(self.names)


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Combinations of server and client settings.

    They are the product of the axes, where conditional settings exist only where their conditions
    hold, less the forbidden combinations. Client axes vary fastest, so that all trials of one
    server are consecutive and a server starts once per server configuration. No configuration
    comes twice.

    Attributes:
        server: Axes of the servers, whose conditions are on settings of servers.
        client: Axes of the load, whose conditions are on any setting.
        forbidden: Combinations left out, each of conditions that must all hold.
    """

    server: tuple[Axis, ...] = ()
    client: tuple[Axis, ...] = ()
    forbidden: tuple[Combination, ...] = ()

    def servers(self) -> Iterator[dict[str, Value]]:
        """Server configurations that have a load, the last axis varying fastest."""
        own = [each for each in self.forbidden if not self._of_load(each)]
        crossing = self._joined()
        for settings in _crossed(self.server, _NOTHING, own):
            if not crossing or next(self.clients(settings), None) is not None:
                yield settings

    def clients(self, server: Mapping[str, Value] = _NOTHING) -> Iterator[dict[str, Value]]:
        """Client configurations of a server, the last axis varying fastest.

        Args:
            server: Configuration of the server, which conditions of the load may ask for.
        """
        own = [each for each in self.forbidden if self._of_load(each)]
        return _crossed(self.client, server, own)

    def __len__(self) -> int:
        """Number of trials, without listing them: values that conditions treat alike are one."""
        return min(sum(weight for weight, _ in self._classes()), sys.maxsize)

    def require_sound(self) -> None:
        """Refuse a space without trials, or with conditions that contradict it.

        Raises:
            InputError: A condition is on a setting that is nowhere or has no value for it, two
                settings wait for each other, a conditional setting is in no trial, or every
                combination is forbidden. The message names what contradicts.
        """
        for axes, visible in ((self.server, self.server), (self.client, self._axes)):
            for axis in axes:
                for condition in axis.conditions:
                    words = f"{axis.label} exists only if {_text(axis.conditions)}"
                    _require_meaning(condition, visible, words)
            _dependent_last(axes)
        for each in self.forbidden:
            for condition in each:
                _require_meaning(condition, self._axes, f"{_text(each, ';')} is forbidden")
        self._require_trials()

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return (*self.server, *self.client)

    def _of_load(self, combination: Combination) -> bool:
        """Whether a forbidden combination is decided by the load, or by load and server."""
        loads = {name for axis in self.client for name in axis.names}
        return any(condition.name in loads for condition in combination)

    def _joined(self) -> bool:
        """Whether the loads of a server depend on the server."""
        servers = {name for axis in self.server for name in axis.names}
        of_loads = [axis.conditions for axis in self.client]
        of_loads += [each for each in self.forbidden if self._of_load(each)]
        return any(condition.name in servers for each in of_loads for condition in each)

    def _classes(self) -> Iterator[tuple[int, set[tuple[str, ...]]]]:
        """Number of trials that all conditions treat alike, and the axes that these have."""
        judged: dict[str, list[Condition]] = {}
        for combination in (*(axis.conditions for axis in self._axes), *self.forbidden):
            for condition in combination:
                judged.setdefault(condition.name, []).append(condition)
        server = [_Alike(axis, judged) for axis in self.server]
        client = [_Alike(axis, judged) for axis in self.client]
        few = Space(
            server=tuple(each.axis for each in server),
            client=tuple(each.axis for each in client),
            forbidden=self.forbidden,
        )
        for server_args in few.servers():
            there = [each for each in server if each.axis.names[0] in server_args]
            weight = math.prod(each.count(server_args) for each in there)
            for client_args in few.clients(server_args):
                loads = [each for each in client if each.axis.names[0] in client_args]
                yield (
                    weight * math.prod(each.count(client_args) for each in loads),
                    {each.axis.names for each in (*there, *loads)},
                )

    def _require_trials(self) -> None:
        """Refuse a space without a trial, or a conditional setting that is in none."""
        missing = {axis.names: axis for axis in self._axes if axis.conditions}
        count = 0
        for weight, there in self._classes():
            count += weight
            for names in missing.keys() & there:
                del missing[names]
            if count and not missing:
                return
        if not count:
            raise InputError(
                f"every combination is forbidden by {self._contradiction()}",
                hint="forbid less, or sweep more values",
            )
        for axis in missing.values():
            raise InputError(
                f"{axis.label} exists only if {_text(axis.conditions)}, which no trial has",
                hint="change the condition, or leave the setting out",
            )

    def _contradiction(self) -> str:
        """The fewest forbidden combinations that leave nothing, with the values they concern."""
        needed = list(self.forbidden)
        for each in self.forbidden:
            fewer = [other for other in needed if other is not each]
            if not len(msgspec.structs.replace(self, forbidden=tuple(fewer))):
                needed = fewer
        names = {condition.name for each in needed for condition in each}
        values = "; ".join(_values_text(axis) for axis in self._axes if names & set(axis.names))
        return f"{' and '.join(_text(each, ';') for each in needed)}, where {values}"


class _Alike:
    """Axis with one of the rows that all conditions treat alike, and the numbers of such rows."""

    def __init__(self, axis: Axis, judged: Mapping[str, Sequence[Condition]]) -> None:
        first: dict[tuple[bool, ...], tuple[Value, ...]] = {}
        self._counts: dict[tuple[tuple[type, Value], ...], int] = {}
        for row in axis.rows:
            verdicts = tuple(
                condition.holds_for(value)
                for name, value in zip(axis.names, row, strict=True)
                for condition in judged.get(name, ())
            )
            kept = first.setdefault(verdicts, row)
            self._counts[_typed(kept)] = self._counts.get(_typed(kept), 0) + 1
        self.axis = msgspec.structs.replace(axis, rows=tuple(first.values()))

    def count(self, settings: Mapping[str, Value]) -> int:
        """Number of rows like the one that a configuration has."""
        return self._counts[_typed(settings[name] for name in self.axis.names)]


def _typed(row: Iterable[Value]) -> tuple[tuple[type, Value], ...]:
    """Key of a row; `True` and 1 are two values."""
    return tuple((type(value), value) for value in row)


def _require_meaning(condition: Condition, axes: Iterable[Axis], words: str) -> None:
    """Refuse a condition on a setting that no axis has, or that no value of its axis meets."""
    names = {name: axis for axis in axes for name in axis.names}
    axis = names.get(condition.name)
    if axis is None:
        raise InputError(
            f"{words}, and there is no setting {condition.name} in the space",
            hint=f"settings are {', '.join(names) or 'none'}; give {condition.name} a value",
        )
    column = axis.names.index(condition.name)
    if not any(condition.holds_for(row[column]) for row in axis.rows):
        raise InputError(
            f"{words}, and {condition} never holds: {_values_text(axis)}",
            hint="change the condition, or leave it out",
        )


def _dependent_last(axes: Sequence[Axis]) -> list[Axis]:
    """Axes after those that their conditions are on, else in their order.

    Raises:
        InputError: Two wait for each other.
    """
    left, placed = list(axes), []
    while left:
        waiting = {name for axis in left for name in axis.names}
        free = next(
            (axis for axis in left if not waiting & {each.name for each in axis.conditions}), None
        )
        if free is None:
            raise InputError(
                f"{' and '.join(axis.label for axis in left)} are conditional on each other",
                hint="leave a condition out",
            )
        left.remove(free)
        placed.append(free)
    return placed


def _crossed(
    axes: Sequence[Axis], given: Mapping[str, Value], forbidden: Sequence[Combination]
) -> Iterator[dict[str, Value]]:
    """Configurations of axes beside given settings, the last axis varying fastest."""
    if not forbidden and not any(axis.conditions for axis in axes):
        for rows in itertools.product(*(axis.rows for axis in axes)):
            yield {
                name: value
                for axis, row in zip(axes, rows, strict=True)
                for name, value in zip(axis.names, row, strict=True)
            }
        return
    placed = _dependent_last(axes)
    own = {name for axis in axes for name in axis.names}
    for settings in _extended(placed, _decided(placed, forbidden), dict(given)):
        yield {name: value for name, value in settings.items() if name in own}


def _decided(axes: Sequence[Axis], forbidden: Sequence[Combination]) -> list[list[Combination]]:
    """Forbidden combinations that can be judged once an axis has its row, for each axis."""
    place = {name: number for number, axis in enumerate(axes) for name in axis.names}
    decided: list[list[Combination]] = [[] for _ in axes]
    for each in forbidden:
        last = max((place.get(condition.name, -1) for condition in each), default=-1)
        if last >= 0:
            decided[last].append(each)
    return decided


def _extended(
    axes: Sequence[Axis], decided: Sequence[Sequence[Combination]], settings: dict[str, Value]
) -> Iterator[dict[str, Value]]:
    """Settings with those of the axes, without what is forbidden."""
    if not axes:
        yield settings
        return
    axis, *others = axes
    exists = all(condition.holds(settings) for condition in axis.conditions)
    for row in axis.rows if exists else ((),):
        with_row = {**settings, **dict(zip(axis.names, row, strict=exists))}
        if not any(_holds(each, with_row) for each in decided[0]):
            yield from _extended(others, decided[1:], with_row)


def _holds(combination: Combination, settings: Mapping[str, Value]) -> bool:
    return all(condition.holds(settings) for condition in combination)


def _text(combination: Combination, separator: str = " and ") -> str:
    return separator.join(str(condition) for condition in combination)


def _values_text(axis: Axis) -> str:
    """Values of an axis for a message, the first few of many."""
    cells = [str(row[0]) if len(row) == 1 else f"({','.join(map(str, row))})" for row in axis.rows]
    shown = cells if len(cells) <= _MOST_SHOWN else [*cells[: _MOST_SHOWN - 1], "..."]
    return f"{axis.label} is {' or '.join(shown)}"


_MOST_SHOWN = 8
