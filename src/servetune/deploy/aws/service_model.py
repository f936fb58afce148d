"""Check of a request by the service's own model, before it is sent.

boto3 checks required members, unknown keys, unions and lower bounds. Enums, patterns and
upper bounds are in the same model, but only the service checks them, after an upload or
a wait. Here all of it is checked in a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from servetune.errors import DeployError
from servetune.json_value import JsonObject

_TYPES: dict[str, type | tuple[type, ...]] = {
    "structure": dict,
    "map": dict,
    "list": list | tuple,  # type: ignore[dict-item]
    "string": str,
    "boolean": bool,
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
}

#: Property classes that Python's `re` lacks, as ranges that mean the same for a name or a tag.
_CLASSES = {
    r"\p{L}\p{Z}\p{N}": r"\w\s",
    r"\p{L}\p{M}\p{Z}\p{S}\p{N}\p{P}": r" -\U0010ffff",
    r"\p{Print}+": r"[ -\U0010ffff]+",
}

#: Ranges of UTF-16 halves, by which the model says "any character".
_HALVES = re.compile(r"\\uD800\\uDC00-\\uDBFF\\uDFFF")

#: Count behind the end of a text, which means nothing: its length has bounds of its own.
_COUNTED_END = re.compile(r"\$\{\d+,\d+\}$")


@cache
def _model(service: str) -> Any:
    try:
        import botocore.session
    except ImportError:
        raise DeployError(
            "boto3 is not installed, and its service model checks every request",
            hint="pip install 'servetune[aws]'",
        ) from None
    return botocore.session.get_session().get_service_model(service)


def problems(service: str, operation: str, request: JsonObject) -> list[str]:
    """Violations of the service's model, each with its place; empty for a good request.

    Example:
        >>> problems("sagemaker", "DescribeEndpoint", {"EndpointName": "under_score"})
        ["EndpointName: 'under_score' does not match [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"]
    """
    shape = _model(service).operation_model(operation).input_shape
    if shape is None:
        return [f"{operation} takes nothing"] if request else []
    return list(_walk(request, shape, ""))


def _walk(value: Any, shape: Any, place: str) -> Iterator[str]:
    where = place.lstrip(".") or "request"
    expected = _TYPES.get(shape.type_name)
    if expected is not None and (
        not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool)
    ):
        yield f"{where}: {shape.type_name} wanted, got {value!r}"
        return
    yield from _bounds(value, shape, where)
    if shape.type_name == "structure":
        yield from _members(value, shape, where)
        for name, item in value.items():
            if name in shape.members:
                yield from _walk(item, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        for index, item in enumerate(value):
            yield from _walk(item, shape.member, f"{place}[{index}]")
    elif shape.type_name == "map":
        for key, item in value.items():
            yield from _walk(key, shape.key, f"{place}.{key}")
            yield from _walk(item, shape.value, f"{place}.{key}")


def _members(value: JsonObject, shape: Any, where: str) -> Iterator[str]:
    for name in shape.required_members:
        if name not in value:
            yield f"{where}: lacks {name}"
    for name in value:
        if name not in shape.members:
            yield f"{where}: has no {name}"
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield f"{where}: exactly one of {', '.join(sorted(shape.members))}"


def _bounds(value: Any, shape: Any, where: str) -> Iterator[str]:
    size = len(value) if isinstance(value, str | list | dict) else value
    lower, upper = shape.metadata.get("min"), shape.metadata.get("max")
    if lower is not None and size < lower:
        yield f"{where}: {_measured(value, size)} is below {lower}"
    if upper is not None and size > upper:
        yield f"{where}: {_measured(value, size)} is above {upper}"
    if shape.type_name != "string":
        return
    if getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{where}: '{value}' is none of the {len(shape.enum)} values that are allowed"
    pattern = shape.metadata.get("pattern")
    if pattern and not _readable(pattern).fullmatch(value):
        yield f"{where}: '{value}' does not match {pattern}"


def _measured(value: Any, size: Any) -> str:
    return f"{size} characters" if isinstance(value, str) else str(size)


@cache
def _readable(pattern: str) -> re.Pattern[str]:
    for theirs, ours in _CLASSES.items():
        pattern = pattern.replace(theirs, ours)
    pattern = _COUNTED_END.sub("", pattern)
    return re.compile(_HALVES.sub("\U00010000-\U0010ffff", pattern))
