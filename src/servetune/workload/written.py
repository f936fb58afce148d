"""Workload as a TOML file that `read_workload` reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from servetune.workload.laws import Always, Law, format_length
from servetune.workload.parts import Part
from servetune.workload.workload import Workload

#: Characters of a value beside its key; longer lists have a line for each member or a few.
_WIDTH = 100

#: Members of a workload in the order in which a file has them, before its parts.
_FIRST = (
    "summary", "api", "stream", "ignore_eos", "request_count", "concurrency", "think_s",
    "duration_s", "until", "seed", "tokenizer", "extra_body", "sampling", "adapters", "trace",
)  # fmt: skip


class Setting(msgspec.Struct, frozen=True):
    """One setting of a workload that differs from its default.

    Attributes:
        place: Tables that it is in, such as `part[1].sessions`; empty for the workload's own.
        kind: Struct that has it.
        key: Key in the file.
        value: Value as the file has it.
    """

    place: str
    kind: type[msgspec.Struct]
    key: str
    value: str


def settings_of(workload: Workload) -> Iterator[Setting]:
    """Settings of a workload that differ from the defaults, in the order of a file."""
    for name in _FIRST:
        value = getattr(workload, name)
        if value != getattr(_DEFAULT, name) or name in ("api", "request_count"):
            yield Setting("", Workload, name, _value(value))
    if workload.arrivals != _DEFAULT.arrivals:
        kind = str(workload.arrivals.__struct_config__.tag)
        yield Setting("arrivals", type(workload.arrivals), "kind", _value(kind))
        yield from _struct(workload.arrivals, "arrivals")
    for number, part in enumerate(workload.parts, start=1):
        place = f"part[{number}]"
        yield from _struct(part, place, skip=tuple(_TABLES))
        for name in _TABLES:
            if getattr(part, name) is not None:
                yield from _struct(getattr(part, name), f"{place}.{name}")


def workload_text(workload: Workload, comments: Sequence[str] = ()) -> str:
    """TOML of a workload: what differs from the defaults, with comments at the top."""
    lines = [f"# {line}".rstrip() for line in comments]
    place = ""
    for setting in settings_of(workload):
        if setting.place != place:
            place = setting.place
            lines += ["", _head(place)] if "." not in place else [_head(place)]
        lines.append(f"{setting.key} = {setting.value}")
    return "\n".join(lines) + "\n"


_DEFAULT = Workload(parts=(Part(input_tokens=Always(1), output_tokens=Always(1)),))

#: Tables of a part.
_TABLES = ("prefix", "sessions", "documents", "images", "dataset")


def _head(place: str) -> str:
    """Line that begins a table."""
    table = re.sub(r"\[\d+\]", "", place)
    return f"[[{table}]]" if place.endswith("]") else f"[{table}]"


def _struct(value: msgspec.Struct, place: str, skip: Sequence[str] = ()) -> Iterator[Setting]:
    """Members that differ from their defaults; laws as text where that is short."""
    names = value.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(value.__struct_defaults__), strict=False))
    for name in names:
        member = getattr(value, name)
        if name in skip or (name in defaults and member == defaults[name]):
            continue
        text = _law(member) if isinstance(member, Law) else _value(member)
        yield Setting(place, type(value), name, text)


def _law(law: Law) -> str:
    if isinstance(law, Always):
        return str(law.tokens)
    text = format_length(law)
    return _value(text) if len(text) <= _WIDTH else _value(law)


def _value(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
        case str():  # a JSON string is a TOML basic string
            return msgspec.json.encode(value).decode()
        case Mapping():
            inside = (
                f"{name} = {_value(each)}" for name, each in value.items() if each is not None
            )
            return f"{{ {', '.join(inside)} }}"
        case _:
            return _list([_value(each) for each in value])


def _list(members: Sequence[str]) -> str:
    text = f"[{', '.join(members)}]"
    if len(text) <= _WIDTH:
        return text
    lines: list[str] = [""]
    for member in members:
        if lines[-1] and len(lines[-1]) + len(member) + 2 > _WIDTH:
            lines.append("")
        lines[-1] += f"{member}, "
    return "[\n" + "\n".join(f"  {line.rstrip()}" for line in lines) + "\n]"
