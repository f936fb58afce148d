"""Workload as a TOML file that `read_workload` reads."""

from __future__ import annotations

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


def workload_text(workload: Workload, comments: Sequence[str] = ()) -> str:
    """TOML of a workload: what differs from the defaults, with comments at the top."""
    table = msgspec.to_builtins(workload)
    defaults = msgspec.to_builtins(_DEFAULT)
    lines = [f"# {line}".rstrip() for line in comments]
    for name in _FIRST:
        if table[name] != defaults[name] or name in ("api", "request_count"):
            lines.append(f"{name} = {_value(table[name])}")
    if table["arrivals"] != defaults["arrivals"]:
        kind = _value(table["arrivals"]["kind"])
        lines += ["", "[arrivals]", f"kind = {kind}", *_struct(workload.arrivals)]
    for part in workload.parts:
        lines += ["", *_part(part)]
    return "\n".join(lines) + "\n"


_DEFAULT = Workload(parts=(Part(input_tokens=Always(1), output_tokens=Always(1)),))


def _part(part: Part) -> Iterator[str]:
    yield "[[part]]"
    yield from _struct(part, skip=("prefix", "sessions"))
    for name, value in (("prefix", part.prefix), ("sessions", part.sessions)):
        if value is not None:
            yield f"[part.{name}]"
            yield from _struct(value)


def _struct(value: msgspec.Struct, skip: Sequence[str] = ()) -> Iterator[str]:
    """Members that differ from their defaults; laws as text where that is short."""
    given = value.__struct_fields__[len(value.__struct_fields__) - len(value.__struct_defaults__) :]
    defaults = dict(zip(given, value.__struct_defaults__, strict=False))
    for name in value.__struct_fields__:
        member = getattr(value, name)
        if name in skip or (name in defaults and member == defaults[name]):
            continue
        yield f"{name} = {_law(member) if isinstance(member, Law) else _value(member)}"


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
            inside = (f"{name} = {_value(each)}" for name, each in value.items() if each is not None)
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
