"""Holds a request against botocore's own service model, whole.

boto3 checks required members, unknown keys, unions and lower bounds. The service checks
enum, pattern and upper bounds too, but only when it is asked; this does both.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import botocore.session


@cache
def service(name: str = "sagemaker") -> Any:
    return botocore.session.get_session().get_service_model(name)


def problems(operation: str, request: dict[str, Any]) -> list[str]:
    """What the model objects to, each with its place; empty for a good request."""
    found: list[str] = []
    _walk(request, service().operation_model(operation).input_shape, operation, found)
    return found


def _walk(value: Any, shape: Any, place: str, found: list[str]) -> None:
    wanted = {
        "structure": dict, "map": dict, "list": list, "string": str, "boolean": bool,
        "integer": int, "long": int, "float": (int, float), "double": (int, float),
    }.get(shape.type_name)  # fmt: skip
    if wanted and (
        not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)
    ):
        found.append(f"{place}: {shape.type_name} wanted, got {value!r}")
        return
    _bounds(value, shape, place, found)
    if shape.type_name == "structure":
        found.extend(
            f"{place}: lacks {name}" for name in shape.required_members if name not in value
        )
        found.extend(f"{place}: has no {name}" for name in value if name not in shape.members)
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            found.append(f"{place}: exactly one of {sorted(shape.members)}")
        for name, member in value.items():
            if name in shape.members:
                _walk(member, shape.members[name], f"{place}.{name}", found)
    elif shape.type_name == "list":
        for index, member in enumerate(value):
            _walk(member, shape.member, f"{place}[{index}]", found)
    elif shape.type_name == "map":
        for key, member in value.items():
            _walk(key, shape.key, f"{place} key", found)
            _walk(member, shape.value, f"{place}.{key}", found)


def _bounds(value: Any, shape: Any, place: str, found: list[str]) -> None:
    size = len(value) if isinstance(value, str | list | dict) else value
    lower, upper = shape.metadata.get("min"), shape.metadata.get("max")
    if lower is not None and size < lower:
        found.append(f"{place}: {size} is below {lower}")
    if upper is not None and size > upper:
        found.append(f"{place}: {size} is above {upper}")
    if shape.type_name != "string":
        return
    if getattr(shape, "enum", None) and value not in shape.enum:
        found.append(f"{place}: '{value}' is none of the enum")
    pattern = shape.metadata.get("pattern")
    # Python's re has no \p{..}; the tags' pattern is the only one that uses it.
    if pattern and not re.fullmatch(pattern.replace(r"\p{L}\p{Z}\p{N}", r"\w\s"), value):
        found.append(f"{place}: '{value}' does not match {pattern}")
