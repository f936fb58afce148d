"""Catalogue of workloads: what each stands for, and the errors of a file that describes one."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.errors import InputError, nearest
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.arrivals import arrivals_of, parse_arrivals
from servetune.workload.laws import parse_law
from servetune.workload.parts import DataSet, Documents, Images, Part, Prefix, Sessions
from servetune.workload.presets import preset, preset_names, preset_text, user_workloads
from servetune.workload.workload import LAW_KEYS, Workload, workload_of

BUILT_IN = "built-in"
"""Source of a workload that comes with servetune."""


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How others measured a workload: the table `[published]` of its file.

    Attributes:
        source: Publication, in words.
        concurrency: Concurrencies that were measured.
        constraints: Limits that were stated, as `--constraints` takes them.
    """

    source: str = ""
    concurrency: tuple[int, ...] = ()
    constraints: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Workload of the catalogue.

    Attributes:
        name: Name, or path of a file.
        source: `built-in`, or the path of its file.
        workload: The workload.
        published: Publication that measured it.
    """

    name: str
    source: str
    workload: Workload
    published: Published = Published()


def entry(name: str | Path) -> Entry:
    """Workload of the catalogue by name or file.

    Raises:
        UnknownName: It is no name, and no file.
        InputError: The file cannot be read, with the line or the key.
    """
    text, workload = str(name), preset(name)
    if text in preset_names():
        return Entry(
            name=text,
            source=BUILT_IN,
            workload=workload,
            published=_published(tomllib.loads(preset_text(text)), text),
        )
    path = user_workloads().get(text, Path(text))
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Entry(
        name=workload.name,
        source=str(path),
        workload=workload,
        published=_published(table, str(path)),
    )


def _published(table: JsonMembers, where: str) -> Published:
    try:
        return msgspec.convert(table.get("published", {}), ready(Published))
    except msgspec.ValidationError as error:
        raise InputError(
            f"{where}: published: {error}",
            hint="it has source, concurrency = [1, 2] and constraints",
        ) from None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Error of a workload's file.

    Attributes:
        line: Line of the file, from 1; `None` where it concerns the whole.
        key: Key that it is about, with its tables; empty where it concerns the whole.
        message: Error in words.
        hint: Remedy in words.
    """

    line: int | None
    key: str
    message: str
    hint: str = ""


def problems_in(path: str | Path) -> tuple[Problem, ...]:
    """Every error of a workload's file, in the order of its lines.

    Raises:
        InputError: There is no such file, or it is not text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the workload {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the workload {path} is not text") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        message = re.sub(r" \(at .*\)$", "", str(error))
        hint = "text stands in quotes; a table is [name], each part is [[part]]"
        line = int(at[1]) if at else len(text.splitlines())
        return (Problem(line=line, key="", message=f"no TOML: {message}", hint=hint),)
    found = list(_Checker(text).problems(table))
    if not found:
        found += _whole(table, Path(path))
    return tuple(sorted(found, key=lambda each: each.line or 0))


def _whole(table: JsonObject, path: Path) -> Iterator[Problem]:
    """Errors that only show when requests are made."""
    try:
        workload_of({"name": path.stem, **table}, where=str(path)).requests()
    except InputError as error:
        message = error.message.removeprefix(f"{path}: ")
        yield Problem(line=None, key="", message=message, hint=error.hint)


#: Struct of each table of a part.
_TABLES: Mapping[str, type[msgspec.Struct]] = {
    "sessions": Sessions,
    "prefix": Prefix,
    "documents": Documents,
    "images": Images,
    "dataset": DataSet,
}

_ALONE: JsonObject = {"input_tokens": 1, "output_tokens": 1}
_PLACE = re.compile(r" - at `\$\.?(.*)`$")


class _Checker:
    """Checks the keys of a file one by one, so that one error does not hide the next."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def problems(self, table: JsonObject) -> Iterator[Problem]:
        """Errors of the file's tables."""
        parts = table.get("part", [])
        known = {*Workload.__struct_fields__} - {"parts"} | {"part", "published"}
        for key, value in table.items():
            if key == "part":
                continue
            if key not in known:
                yield self._unknown(key, known, "")
            elif key == "published":
                yield from self._converted(Published, value, key)
            elif key == "arrivals":
                yield from self._arrivals(value)
            else:
                rest: JsonObject = {} if key == "trace" else {"part": [_ALONE]}
                yield from self._refused(functools.partial(workload_of, {key: value, **rest}), key)
        if not isinstance(parts, list) or not all(isinstance(each, dict) for each in parts):
            yield self._at("part", "parts are tables", "each begins with a line [[part]]")
            return
        if not parts and "trace" not in table:
            yield Problem(
                line=None,
                key="part",
                message="there is no part",
                hint="add [[part]] with input_tokens and output_tokens, or a trace",
            )
        for number, part in enumerate(parts, start=1):
            yield from self._part(part, number)

    def _part(self, part: JsonObject, number: int) -> Iterator[Problem]:
        own: JsonObject = {}
        sound = True
        for key, value in part.items():
            name = f"part[{number}].{key}"
            if key not in Part.__struct_fields__:
                yield self._unknown(name, Part.__struct_fields__, f"part[{number}].")
                sound = False
            elif key in LAW_KEYS:
                errors = list(self._law(value, name))
                yield from errors
                own[key] = 1 if errors else value
            elif key in _TABLES and isinstance(value, dict):
                errors = list(self._table(_TABLES[key], value, name))
                yield from errors
                if not errors:
                    own[key] = value
            else:
                own[key] = value
        if sound:
            yield from self._refused(lambda: workload_of({"part": [own]}), f"part[{number}]")

    def _table(self, kind: type[msgspec.Struct], value: JsonObject, name: str) -> Iterator[Problem]:
        own, errors = dict(value), []
        for key, member in value.items():
            if key not in kind.__struct_fields__:
                errors.append(self._unknown(f"{name}.{key}", kind.__struct_fields__, f"{name}."))
                del own[key]
            elif key in LAW_KEYS or (key == "tokens" and kind is Documents):
                found = list(self._law(member, f"{name}.{key}"))
                errors += found
                own[key] = 1 if found else member
        yield from errors
        if not errors:
            laws = {
                key: msgspec.to_builtins(parse_law(member))
                if key in LAW_KEYS or (key == "tokens" and kind is Documents)
                else member
                for key, member in own.items()
            }
            yield from self._converted(kind, laws, name)

    def _law(self, value: Any, name: str) -> Iterator[Problem]:
        yield from self._refused(lambda: parse_law(value), name)

    def _arrivals(self, value: Any) -> Iterator[Problem]:
        def read() -> None:
            parse_arrivals(value) if isinstance(value, str) else arrivals_of(value)

        yield from self._refused(read, "arrivals")

    def _converted(self, kind: type[msgspec.Struct], value: Any, name: str) -> Iterator[Problem]:
        yield from self._refused(lambda: msgspec.convert(value, ready(kind)), name)

    def _refused(self, read: Callable[[], object], name: str) -> Iterator[Problem]:
        """Error with which a value is refused, at the key that it names."""
        try:
            read()
        except InputError as error:
            message = error.message.removeprefix("the workload: ")
            yield self._told(message, error.hint, name)
        except msgspec.ValidationError as error:
            cause = error.__cause__
            if isinstance(cause, InputError):
                yield self._told(cause.message, cause.hint, name)
            else:
                yield self._told(str(error), "", name)

    def _told(self, message: str, hint: str, name: str) -> Problem:
        place = _PLACE.search(message)
        message = _PLACE.sub("", message).replace("`", "")
        inside = re.sub(r"\[[.\d]*\]", "", place[1]).rpartition(".")[2] if place else ""
        missing = re.search(r"missing required field (\w+)", message)
        if missing:
            message, hint = f"{missing[1]} is missing", f"add {missing[1]} = ..."
        hint = "" if hint == "see docs/guides/workloads.md" else hint
        key = f"{name}.{inside}" if inside and inside not in (name, "parts") else name
        return self._at(key, message, hint or "docs/guides/workloads.md has every key")

    def _unknown(self, name: str, known: Iterable[str], prefix: str) -> Problem:
        key = name.removeprefix(prefix)
        close = nearest(key, sorted(known))
        hint = f"did you mean {', '.join(close)}" if close else f"keys are {', '.join(known)}"
        return self._at(name, f"there is no key {key}", hint)

    def _at(self, name: str, message: str, hint: str) -> Problem:
        return Problem(line=self._line(name), key=name, message=message, hint=hint)

    def _line(self, name: str) -> int | None:
        """Line of a key such as `part[2].sessions.turns`: the nearest that is written so."""
        path = re.sub(r"\[\d+\]", "", name).split(".")
        number = re.match(r"part\[(\d+)\]", name)
        begin, end = self._section(int(number[1]) if number else 0)
        keys = path[1:] if number else path
        at: int | None = begin + 1 if number else None
        for key in keys:
            named = _written(key)
            found = (i for i in range(begin, end) if named.match(self._lines[i]))
            place = next(found, None)
            if place is None:
                break
            at, begin = place + 1, place
        return at

    def _section(self, number: int) -> tuple[int, int]:
        """Lines of a part, or of all before the first part for 0, from and up to."""
        heads = [
            i for i, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*part\s*\]\]", line)
        ]
        starts = [0, *heads, len(self._lines)]
        if number == 0 or number >= len(starts) - 1:
            return 0, len(self._lines)
        return starts[number], starts[number + 1]


def _written(key: str) -> re.Pattern[str]:
    """Lines that write a key: as a table, before `=`, or within an inline table."""
    name = re.escape(key)
    table = rf"\[+\s*(\w+\.)*{name}\s*\]"
    own, inline = rf"([\w.]+\.)?{name}\s*[=.]", rf".*[{{,]\s*{name}\s*="
    return re.compile(rf"\s*({table}|{own}|{inline})")


def described_keys(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Meaning of each attribute of a struct, from its documentation."""
    import inspect

    text = inspect.getdoc(kind) or ""
    _, _, attributes = text.partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        begun = re.match(r" {4}(\w+): (.*)", line)
        if begun:
            name = begun[1]
            found[name] = begun[2].strip()
        elif line.startswith(" " * 8) and name:
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    base = kind.__mro__[1]
    if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
        return {**described_keys(base), **found}
    return found
