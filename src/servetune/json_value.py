"""Types of JSON values, for decoders and encoders alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

#: JSON value without members.
JsonScalar: TypeAlias = str | int | float | bool | None
#: Value that can be written as JSON; its type is checked.
JsonValue: TypeAlias = "JsonScalar | Sequence[JsonValue] | Mapping[str, JsonValue]"
#: JSON object under construction, or as it was decoded; the types of its members are not checked.
JsonObject: TypeAlias = dict[str, Any]
#: JSON object that is only read; the types of its members are not checked.
JsonMembers: TypeAlias = Mapping[str, Any]


def plain(value: object) -> Any:
    """Python's own number or list of a NumPy or pandas one; any other value as it is."""
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value
