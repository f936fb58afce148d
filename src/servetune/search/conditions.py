"""Conditions on settings: where a setting exists, and which combinations are left out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

Value = bool | int | float | str | None

#: Operators that compare with one value.
_ORDERED: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Condition on one setting of a configuration.

    A setting that the configuration lacks meets no condition, not even `!=`.

    Attributes:
        name: Name of the setting.
        op: `==` (one of the values), `!=` (none of them), `<`, `<=`, `>` or `>=`.
        values: Values to compare with; one for an order.
    """

    name: str
    op: str
    values: tuple[Value, ...]

    def holds(self, settings: Mapping[str, Value]) -> bool:
        """Whether a configuration meets it.

        Example:
            >>> Condition(name="max_num_seqs", op=">", values=(256,)).holds({"max_num_seqs": 512})
            True
        """
        return self.name in settings and self.holds_for(settings[self.name])

    def holds_for(self, value: Value) -> bool:
        """Whether a value of the setting meets it; only numbers have an order."""
        if self.op in _ORDERED:
            number, limit = number_of(value), number_of(self.values[0])
            return number is not None and limit is not None and _ORDERED[self.op](number, limit)
        found = any(same_value(value, each) for each in self.values)
        return found == (self.op == "==")

    def __str__(self) -> str:
        values = ",".join(str(value) for value in self.values)
        listed = f"[{values}]" if len(self.values) > 1 else values
        return f"{self.name}{'=' if self.op == '==' else self.op}{listed}"


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are equal; `True` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def number_of(value: Value) -> int | float | None:
    """The value where it is a number; `None` for text, `True`, `False` and no value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


Combination = tuple[Condition, ...]
"""Conditions that must all hold."""
