"""Requests: all options of one run of a verb as a frozen value.

A request comes from keyword arguments, from a configuration file, or from the command line,
and is checked the same way each time. `fields_of` lists its options for whoever derives
something from them: the command line, the schema, the reference pages.
"""

from __future__ import annotations

import contextlib
import functools
import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from inspect import getdoc
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

import msgspec
from msgspec import inspect

from servetune.decoding import ready
from servetune.errors import InputError, UnknownName
from servetune.json_value import plain
from servetune.option import Member, Option
from servetune.secret import REDACTED, redacted_text
from servetune.store import write_text

#: First line of a configuration file that a run wrote, which a later one may write over.
WRITTEN = "# Options of a finished or running command; --config FILE repeats it."


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request of a verb: all its options as one value.

    Attributes:
        verb: Words that name it on the command line, and its table in a configuration file.
        group: Title of its own options in help; parts that verbs share have their own.
        first: Field that a value without a name sets; the first required one where empty.
        defaults: Words for defaults that differ from those of a shared part, by field.
        most_used: Fields that help lists before all others.
    """

    verb: ClassVar[str] = ""
    group: ClassVar[str] = "Options"
    first: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType({})
    most_used: ClassVar[tuple[str, ...]] = ()


RequestT = TypeVar("RequestT", bound=Request)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a request.

    Attributes:
        name: Name of the field, the keyword argument and the key in a configuration file.
        part: Fields that lead to the struct that declares it; empty for the request itself.
        description: Help text.
        option: Spellings, choices and the rest of its declaration.
        group: Title of its section in help.
        type: Type as msgspec describes it, without the `None` of a union.
        required: Whether it has no default.
        default: Value without it.
        many: Whether it takes several values.
        member: Text of a member, where a dict may stand for its texts.
    """

    name: str
    part: tuple[str, ...]
    description: str
    option: Option
    group: str
    type: inspect.Type
    required: bool
    default: Any
    many: bool
    member: Member | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Spellings on the command line, canonical first."""
        return self.option.names or (f"--{self.name.replace('_', '-')}",)

    def value(self, request: Request) -> Any:
        """The value that a request has for it."""
        return functools.reduce(getattr, (*self.part, self.name), request)


@functools.cache
def fields_of(kind: type[Request]) -> tuple[Field, ...]:
    """The options of a request in the order of its fields, those of its parts in their place.

    A field of the request itself stands in for a part's of the same name.
    """
    found = tuple(_fields(kind, ()))
    own = {each.name for each in found if not each.part}
    return tuple(
        _with_default(each, kind.defaults.get(each.name, ""))
        for each in found
        if not each.part or each.name not in own
    )


def _with_default(field: Field, default: str) -> Field:
    if not default:
        return field
    option = msgspec.structs.replace(field.option, default=default)
    return msgspec.structs.replace(field, option=option)


def _fields(kind: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[Field]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    group = str(getattr(kind, "group", Request.group))
    for each in described.fields:
        if isinstance(each.type, inspect.StructType):
            yield from _fields(each.type.cls, (*path, each.name))
        else:
            yield _field(each, group, path)


def _field(described: inspect.Field, group: str, part: tuple[str, ...]) -> Field:
    kind, declared, text, extra = described.type, Option(), "", {}
    if isinstance(kind, inspect.Metadata):
        extra = kind.extra or {}
        declared = extra.get("option", declared)
        text = (kind.extra_json_schema or {}).get("description", "")
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        [kind] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    many = isinstance(kind, inspect.VarTupleType)
    default = described.default
    if described.default_factory is not msgspec.NODEFAULT:
        default = described.default_factory()
    return Field(
        name=described.name,
        part=part,
        description=text,
        option=declared,
        group=declared.group or group,
        type=kind.item_type if isinstance(kind, inspect.VarTupleType) else kind,
        required=described.required,
        default=None if described.required else default,
        many=many,
        member=extra.get("members"),
    )


def request_of(
    kind: type[RequestT], first: RequestT | str | Path | None, options: Mapping[str, Any]
) -> RequestT:
    """The request that a verb's function was called with.

    Args:
        kind: Type of the verb's request.
        first: The whole request, or the value of its first required field; `None` where that is
            among the options.
        options: Fields by name; they change a request that is given whole.

    Raises:
        InputError: A field has no such value.
        UnknownName: There is no such field.
    """
    if isinstance(first, kind):
        values = {each.name: each.value(first) for each in fields_of(kind)}
        return checked(kind, {**values, **_without_parts(kind, options)})
    if first is None:
        return checked(kind, options)
    name = kind.first or next(each.name for each in fields_of(kind) if each.required)
    if name in options:
        raise InputError(f"{name} is given twice", hint=f"leave {name}= out")
    return checked(kind, {name: first, **options})


def checked(kind: type[RequestT], values: Mapping[str, Any]) -> RequestT:
    """A request of these values, each of its type and within its limits.

    One value may stand for a list of one, `8,32` for a list of numbers, a number or a path for
    its text, and a dict for a list of `NAME=VALUE`.

    Raises:
        InputError: A field lacks a value or cannot have the one it has.
        UnknownName: There is no such field, or no such choice.
    """
    fields = {each.name: each for each in fields_of(kind)}
    values = _without_parts(kind, values)
    for name in values:
        if name not in fields:
            raise _unknown(kind, name)
    values = {
        name: _chosen(fields[name], _as_field(fields[name], value))
        for name, value in values.items()
    }
    values |= {name: _of_run(value) for name, value in values.items() if fields[name].option.of_run}
    for name, value in values.items():
        if REDACTED in str(value):
            raise InputError(
                f"{name} holds {REDACTED}, in the place of a credential that was taken out",
                hint="give the credential itself, on the command line or in a file of your own",
            )
        if any("\x00" in text for text in _texts(value)):
            raise InputError(
                f"{name} holds the character NUL, which no name or file can have",
                hint="leave it out",
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{name} is {value}, which is no number", hint="give a finite one")
    try:
        return msgspec.convert(_nested(fields, values), ready(kind), dec_hook=_decoded)
    except msgspec.ValidationError as error:
        raise _refusal(kind, str(error)) from None


def _of_run(value: Any) -> Any:
    """A path, or several, where a run's name stands for that of its journal."""
    from servetune.api.run_names import journal_of

    if isinstance(value, str | Path):
        return journal_of(Path(value))
    return tuple(map(_of_run, value)) if isinstance(value, list | tuple) else value


def _texts(value: Any) -> Iterator[str]:
    """Texts of a field's value, those of a list one by one."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _without_parts(kind: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the fields of a part, such as `machine=Machine(gpu="L4")`, in its place."""
    of_parts: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        inside = [each.name for each in fields_of(kind) if each.part[-1:] == (name,)]
        if inside and isinstance(value, msgspec.Struct):
            of_parts |= {each: getattr(value, each) for each in inside if hasattr(value, each)}
        else:
            plain[name] = value
    return of_parts | plain


def _unknown(kind: type[Request], name: str) -> UnknownName:
    """Error about a name that is no field; other spellings of an option lead to its field."""
    option = f"--{name.replace('_', '-')}"
    same = [each.name for each in fields_of(kind) if option in each.names]
    hint = f"it is called {same[0]} here" if same else ""
    known = [each.name for each in fields_of(kind)]
    return UnknownName(f"option of {kind.verb or kind.__name__}", name, known, hint=hint)


def _as_field(field: Field, value: Any) -> Any:
    """A value as its field has it: in a list of one, as text, a dict as texts."""
    value = plain(value)
    if isinstance(value, Mapping) and field.option.metavar == "JSON":
        return msgspec.json.encode(value).decode()
    if field.option.metavar == "LIMITS" and isinstance(value, list | tuple):
        return ";".join(map(str, value))
    if not field.many:
        return _scalar(field, value)
    if value is None:
        return ()
    listed = _listed(field, value)
    if listed is None:
        return value
    return tuple(
        text
        for each in listed
        for text in (_member_texts(field, each) if isinstance(each, Mapping) else [each])
    )


def _listed(field: Field, value: Any) -> Iterable[Any] | None:
    """Values of a field that has several; `None` for what is no list."""
    numbers = isinstance(field.type, inspect.IntType | inspect.FloatType)
    if isinstance(value, str) and numbers:
        return (_number(each) for each in value.split(","))
    if isinstance(value, str | int | float | Path):
        return (_scalar(field, value),)
    if isinstance(value, Mapping):
        return (value,) if field.member else None
    return (_scalar(field, each) for each in value) if isinstance(value, Iterable) else None


def _scalar(field: Field, value: Any) -> Any:
    """One plain value of a field: text where it has text, a number where it has a number."""
    if isinstance(value, str) and isinstance(field.type, inspect.IntType | inspect.FloatType):
        return _number(value)
    text = isinstance(field.type, inspect.StrType) and not isinstance(value, bool)
    return str(value) if text and isinstance(value, int | float | Path) else value


def _number(text: str) -> Any:
    """Number of a text; the text where it is none, which its type refuses."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _member_texts(field: Field, values: Mapping[Any, Any]) -> list[str]:
    if field.member is None:
        raise InputError(f"{field.name}: expected text, got a dict", hint=_meaning(field))
    return [field.member(name, value) for name, value in values.items()]


def _nested(fields: Mapping[str, Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, each in the part of the request that declares it."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        place = whole
        for part in fields[name].part:
            place = place.setdefault(part, {})
        place[name] = value
    return whole


def _chosen(field: Field, value: Any) -> Any:
    """A value as its choices spell it; `_` and `-` are the same.

    Raises:
        UnknownName: There is no such choice.
    """
    allowed = field.option.allowed()
    if not allowed or value is None:
        return value
    spelled = {each.replace("_", "-"): each for each in allowed}
    values = value if field.many else (value,)
    for each in values:
        if str(each).replace("_", "-") not in spelled:
            raise UnknownName(field.name.replace("_", " "), str(each), allowed)
    chosen = tuple(spelled[str(each).replace("_", "-")] for each in values)
    return chosen if field.many else chosen[0]


def _decoded(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"expected a path, got {type(value).__name__}")


def _refusal(kind: type[Request], reason: str) -> InputError:
    """Msgspec's message about a path (`$.num_gpus`) in the words of options."""
    message, _, path = reason.partition(" - at `$.")
    name = path.rstrip("`").rpartition(".")[2]
    for json_word, word in (("array", "list"), ("object", "table")):
        message = message.replace(f"`{json_word}", f"`{word}")
    message = message.replace(" | null", "").replace("`null`", "None")
    if name:
        field = next((each for each in fields_of(kind) if each.name == name.split("[")[0]), None)
        return InputError(
            f"{name}: {message[:1].lower()}{message[1:]}".replace("`", ""),
            hint=_meaning(field) if field else "",
        )
    missing = [each.name for each in fields_of(kind) if f"`{each.name}`" in reason]
    if missing:
        return InputError(f"{kind.verb} needs {missing[0]}", hint=f"give {missing[0]}=...")
    return InputError(reason.replace("`", ""))


def _meaning(field: Field) -> str:
    """Hint about a value that its field cannot have."""
    return f"{field.name} is: {field.description.rstrip('.')}"


def given(request: Request) -> tuple[Field, ...]:
    """Options that have another value than their default."""
    return tuple(each for each in fields_of(type(request)) if _differs(request, each))


def _differs(request: Request, field: Field) -> bool:
    return field.required or field.value(request) != field.default


def read_config(path: Path, kind: type[Request]) -> dict[str, Any]:
    """Values that a configuration file has for a verb: its table `[verb]`.

    Raises:
        InputError: It cannot be read, or has no table of the verb.
    """
    try:
        tables: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(
            f"cannot read the configuration {path}: {reason}", hint="give a TOML file"
        ) from None
    values = tables
    for word in kind.verb.split():
        values = values.get(word, {}) if isinstance(values, dict) else {}
    if not isinstance(values, dict) or not values:
        raise InputError(
            f"{path} has no table [{kind.verb.replace(' ', '.')}]",
            hint=f"its tables are {', '.join(tables) or 'none'}",
        )
    return {
        name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }


def to_toml(request: Request) -> str:
    """The configuration that repeats a request: every value that is not `None`.

    Defaults are written out, too, because a later version may have others; credentials are
    taken out.
    """
    lines = [f"[{request.verb.replace(' ', '.')}]"]
    for field in fields_of(type(request)):
        value = field.value(request)
        if value not in (None, ()) and not field.option.hidden:
            lines.append(f"{field.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def write_repeating(request: Request, path: Path) -> None:
    """Write the configuration file with which `--config` repeats a request.

    A file that a user wrote is left as it is.

    Raises:
        StoreError: It could not be written.
    """
    if path.is_file() and not path.read_bytes().startswith(WRITTEN.encode()):
        return
    write_text(path, f"{WRITTEN}\n{to_toml(request)}")


def command_words(request: Request, *, without: Collection[str] = ()) -> tuple[str, ...]:
    """The command line of a request: every option that differs from its default.

    Args:
        request: The request.
        without: Fields that are left out.
    """
    words = ["servetune", *request.verb.split()]
    for field in given(request):
        if field.name in without or field.option.hidden:
            continue
        value, name = field.value(request), field.names[0]
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name.removeprefix('--')}")
            continue
        for each in value if field.many else (value,):
            words += [str(each)] if field.option.position else [name, str(each)]
    return tuple(words)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:  # a JSON string is a TOML basic string
            return msgspec.json.encode(redacted_text(str(value))).decode()


def schema(kind: type[Request]) -> dict[str, Any]:
    """JSON schema of a request, for forms, editors and agents."""

    def described(of: type) -> dict[str, Any]:
        if of is Path:
            return {"type": "string", "format": "path"}
        raise NotImplementedError

    types = []
    for field in fields_of(kind):
        owner = functools.reduce(_part_type, field.part, cast("type[msgspec.Struct]", kind))
        types.append(_types_of(owner)[field.name])
    schemas, _ = msgspec.json.schema_components(types, schema_hook=described)
    properties: dict[str, Any] = {}
    for field, made in zip(fields_of(kind), schemas, strict=True):
        if not field.required:
            made["default"] = msgspec.to_builtins(field.default, enc_hook=str)
        allowed = field.option.allowed()
        if allowed and not field.many:
            nullable = not field.required and field.default is None
            made["enum"] = [*allowed, *([None] if nullable else [])]
        properties[field.name] = made
    return {
        "title": kind.__name__,
        "description": getdoc(kind) or "",
        "type": "object",
        "properties": properties,
        "required": [each.name for each in fields_of(kind) if each.required],
        "additionalProperties": False,
    }


@functools.cache
def _types_of(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Type of each field with its annotations."""
    return get_type_hints(kind, include_extras=True)


@functools.cache
def _part_type(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    [part] = [each.type for each in described.fields if each.name == name]
    assert isinstance(part, inspect.StructType)
    return part.cls
