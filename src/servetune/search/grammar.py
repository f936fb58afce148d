"""Grammar of sweep arguments, parsed into axes.

    settings := item (";" item)*
    item     := ["--"] name ("*" name)* [":" type] "=" value [" if " test (" and " test)*]
    type     := int | float | bool | str | json | "(" type ("," type)* ")"
    value    := scalar | "[" value ("," value)* "]" | "range(" a "," b ["," step] ")"
              | "logrange(" a "," b ["," count] ")"
    test     := name ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=") value

A scalar is fixed, a list is swept, names joined by `*` are swept together
(`tensor_parallel_size*data_parallel_size=[(1,4),(2,2),(4,1)]`), and a setting with tests exists
only where they all hold. The type comes from the annotation, else from the table, else from the
form of the text. JSON keeps its quotes. Every mistake is an error with its position.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from servetune.errors import GrammarError, InputError, nearest
from servetune.json_value import plain
from servetune.search.conditions import Combination, Condition, Value, number_of
from servetune.search.space import Axis, Space

_TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "json": dict}
_NAME = re.compile(r"(--)?[A-Za-z][\w.-]*$")
_INT = re.compile(r"[+-]?\d+$")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf)$")
_RANGE = re.compile(r"(log)?range\((.*)\)$", re.DOTALL)
_TEST = re.compile(r"\s*([\w.-]+)\s*(==|!=|<=|>=|=|<|>)\s*(.*?)\s*$", re.DOTALL)
_NONE = frozenset({"None", "null"})
_TRUE, _FALSE = frozenset({"true", "True"}), frozenset({"false", "False"})
#: Largest number of values on one axis; more is a typo, or too much for a grid search.
MOST_VALUES = 10_000

_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parse_settings(
    text: str,
    *,
    types: Mapping[str, type],
    known: Collection[str] | None = None,
    kind: str = "setting",
) -> tuple[Axis, ...]:
    """Axes from the text of `--server-args` or `--client-args`.

    Args:
        text: Several settings joined by `;`.
        types: Types by name, where the engine (or the client) has a table.
        known: Valid names; `None` accepts any name.
        kind: Kind of setting for messages, such as "client argument".

    Raises:
        GrammarError: The text does not follow the grammar; it has the position.
    """
    axes: list[tuple[Axis, list[_Piece]]] = []
    seen: dict[str, type] = {}
    for item, at in _split(text, ";", text, 0):
        if not item.strip():
            continue
        setting, *rest = _outside(item, "if", at, text)
        axis, axis_types = _axis(setting[0], at, text, types, known, kind)
        for name, own_type in zip(axis.names, axis_types, strict=True):
            if name in seen:
                raise GrammarError(f"{name} is given twice", text, at)
            seen[name] = own_type or type(None)
        axes.append((axis, rest))
    typed = {**types, **{name: each for name, each in seen.items() if each is not type(None)}}
    return tuple(_with_conditions(axis, rest, text, typed) for axis, rest in axes)


def fixed_settings(text: str, *, types: Mapping[str, type], hint: str = "") -> dict[str, Value]:
    """Settings of one server from the text of `--server-args`, one value each.

    Args:
        text: Several settings joined by `;`.
        types: Types by name, where the engine has a table.
        hint: What to do about a setting with several values.

    Raises:
        InputError: A setting has several values, or the text does not follow the grammar.
    """
    axes = parse_settings(text, types=types)
    for axis in axes:
        if len(axis.rows) > 1:
            raise InputError(
                f"{axis.label} has {len(axis.rows)} values, and a server is started with one",
                hint=hint or "give one value of each setting",
            )
    space = Space(server=axes)
    space.require_sound()
    return next(space.servers())


def parse_combination(text: str, *, types: Mapping[str, type]) -> Combination:
    """Combination of settings from the text of `--forbid`: tests joined by `;`.

    Args:
        text: Tests that must all hold, such as `tensor_parallel_size=4;max_num_seqs>256`.
        types: Types by name, where there is a table.

    Raises:
        GrammarError: The text does not follow the grammar; it has the position.

    Example:
        >>> [str(each) for each in parse_combination("tp=[4,8]; max_num_seqs>256", types={})]
        ['tp=[4,8]', 'max_num_seqs>256']
    """
    found = tuple(
        _condition(piece, at, text, types)
        for piece, at in _split(text, ";", text, 0)
        if piece.strip()
    )
    if not found:
        raise GrammarError("no condition", text, 0, hint=_TEST_HINT)
    return found


def setting_text(name: object, value: object) -> str:
    """Setting in the grammar of `parse_settings`, from a member of a dict.

    A list is swept; a name that is a tuple has its settings tied. A text is read as in the
    grammar, so that `"range(1,9)"` sweeps; one that would be torn apart is quoted.

    Example:
        >>> setting_text("max_num_seqs", [64, 128])
        'max_num_seqs=[64,128]'
        >>> setting_text(("tensor_parallel_size", "data_parallel_size"), [(1, 4), (4, 1)])
        'tensor_parallel_size*data_parallel_size=[(1,4),(4,1)]'

    Raises:
        InputError: The name or the value is of another type.
    """
    names = name if isinstance(name, tuple) else (name,)
    if not all(isinstance(each, str) for each in names):
        raise InputError(f"{name} is no name of a setting", hint="give text, such as max_num_seqs")
    written, value = "*".join(names), plain(value)
    if isinstance(value, list | tuple | range) and not (len(names) > 1 and _is_row(value)):
        return f"{written}=[{','.join(_cell_text(written, each) for each in value)}]"
    return f"{written}={_cell_text(written, value)}"


def _is_row(value: Sequence[object]) -> bool:
    """Whether it is one step of tied settings, not a list of steps."""
    return not any(isinstance(each, list | tuple) for each in value)


def _cell_text(name: str, value: object) -> str:
    """One value in the grammar."""
    if isinstance(value, str | Path):
        return _quoted(name, str(value))
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"({','.join(_cell_text(name, each) for each in value)})"
    with contextlib.suppress(TypeError):
        if isinstance(value, Mapping):
            return json.dumps(value)
    raise InputError(
        f"{name}: a {type(value).__name__} is no value of a setting",
        hint="give a number, a text, True, False, None, a dict (JSON), or a list of them",
    )


def _quoted(name: str, text: str) -> str:
    """Text that the grammar reads as one value."""
    with contextlib.suppress(GrammarError):
        whole = all(len(list(_split(text, mark, text, 0))) == 1 for mark in ";,")
        if whole and text and text == text.strip():
            return text
    quote = next((mark for mark in "\"'" if mark not in text), None)
    if quote is None:
        raise InputError(
            f"{name}: a text with both kinds of quotes cannot be a setting",
            hint="use one kind; JSON may be given as a dict",
        )
    return f"{quote}{text}{quote}"


def _axis(
    item: str,
    at: int,
    text: str,
    types: Mapping[str, type],
    known: Collection[str] | None,
    kind: str,
) -> tuple[Axis, list[type | None]]:
    """Axis of one item, without conditions, and the type of each of its names."""
    left, equals, right = item.partition("=")
    if not equals or not right.strip():
        raise GrammarError(f"'{item.strip()}' has no value", text, at, hint="write name=value")
    names_part, colon, annotation = left.partition(":")
    names = tuple(
        _name(part, at + offset, text, known, kind) for part, offset in _parts(names_part, "*")
    )
    value_at = at + len(left) + 1
    cell_types: list[type | None] = [types.get(name) for name in names]
    if colon:
        cell_types = _annotated(annotation, len(names), text, at + len(names_part) + 1)
    values = _values(right, value_at, text, composite=len(names) > 1)
    rows = [
        tuple(
            _typed(cell, cell_type, names[i], cell_at, text)
            for i, ((cell, cell_at), cell_type) in enumerate(
                zip(_row(value, len(names), names, text), cell_types, strict=True)
            )
        )
        for value in values
    ]
    seen: set[tuple[tuple[type, Value], ...]] = set()
    for (_, value_at), row in zip(values, rows, strict=True):
        marked = tuple((type(cell), cell) for cell in row)  # True is not 1
        if marked in seen:
            raise GrammarError("the same value twice", text, value_at, hint="leave one out")
        seen.add(marked)
    return Axis(names=names, rows=tuple(rows)), cell_types


_TEST_HINT = "write name=value, name!=value or name>value"


def _with_conditions(
    axis: Axis, rest: Sequence[_Piece], text: str, types: Mapping[str, type]
) -> Axis:
    """The axis with the conditions behind its `if`."""
    if not rest:
        return axis
    if len(rest) > 1:
        raise GrammarError("a second 'if'", text, rest[1][1], hint="join conditions with 'and'")
    [(tests, at)] = rest
    conditions = [
        _condition(piece, offset, text, types) for piece, offset in _outside(tests, "and", at, text)
    ]
    for condition in conditions:
        if condition.name in axis.names:
            raise GrammarError(f"{condition.name} is conditional on itself", text, at)
    return msgspec.structs.replace(axis, conditions=tuple(conditions))


def _condition(piece: str, at: int, text: str, types: Mapping[str, type]) -> Condition:
    at += len(piece) - len(piece.lstrip())
    found = _TEST.match(piece)
    if found is None or not found[3]:
        raise GrammarError(
            f"'{piece.strip()}' is no condition",
            text,
            at,
            hint=f"{_TEST_HINT}; a text with ' if ' in it needs quotes",
        )
    name = _name(found[1], at, text, None, "setting")
    value_at = at + found.start(3) - (len(piece) - len(piece.lstrip()))
    cells = _values(found[3], value_at, text, composite=False)
    values = tuple(_typed(cell, types.get(name), name, cell_at, text) for cell, cell_at in cells)
    op = "==" if found[2] == "=" else found[2]
    if op not in ("==", "!=") and (len(values) > 1 or number_of(values[0]) is None):
        raise GrammarError(f"{name} {op} takes one number, got '{found[3]}'", text, value_at)
    return Condition(name=name, op=op, values=values)


def _outside(piece: str, word: str, at: int, text: str) -> list[_Piece]:
    """Parts of a text between a word that stands outside brackets and quotes."""
    spaced = re.sub(r"\s", " ", piece)
    return [
        (piece[start - at : start - at + len(part)], start)
        for part, start in _split(spaced, f" {word} ", text, at)
    ]


def _name(part: str, at: int, text: str, known: Collection[str] | None, kind: str) -> str:
    name = part.strip()
    if not _NAME.match(name):
        raise GrammarError(f"'{name}' is not a name", text, at, hint="write name=value;name=value")
    name = name.removeprefix("--").replace("-", "_")
    if known is not None and name not in known:
        close = nearest(name, known)
        lead = f"did you mean {', '.join(close)}; " if close else ""
        raise GrammarError(
            f"unknown {kind} '{name}'", text, at, hint=f"{lead}known names are {', '.join(known)}"
        )
    return name


def _annotated(annotation: str, count: int, text: str, at: int) -> list[type | None]:
    words = [word.strip() for word in annotation.strip().strip("()").split(",")]
    if len(words) == 1:
        words *= count
    if len(words) != count:
        raise GrammarError(f"{count} names but {len(words)} types", text, at)
    for word in words:
        if word not in _TYPES:
            raise GrammarError(
                f"unknown type '{word}'", text, at, hint=f"types are {', '.join(_TYPES)}"
            )
    return [_TYPES[word] for word in words]


_Piece = tuple[str, int]


def _values(right: str, at: int, text: str, *, composite: bool) -> list[_Piece]:
    """Swept values as text with their positions; a single one for a scalar."""
    value = right.strip()
    at += len(right) - len(right.lstrip())
    if ranged := _RANGE.match(value):
        spread: Iterable[int | float] = (
            _logrange(ranged[2], text, at) if ranged[1] else _range(ranged[2], text, at)
        )
        return [(str(number), at) for number in spread]
    if not value.startswith("["):
        # checks brackets and quotes of scalars as well
        list(_split(value, ";", text, at))
        return [(value, at)]
    if not value.endswith("]"):
        raise GrammarError("unbalanced bracket", text, at)
    pieces = [
        (piece.strip(), offset + len(piece) - len(piece.lstrip()))
        for piece, offset in _split(value[1:-1], ",", text, at + 1)
    ]
    if pieces and not pieces[-1][0]:
        pieces.pop()  # a trailing comma
    if not pieces:
        raise GrammarError("empty list", text, at, hint="give at least one value")
    for piece, offset in pieces:
        if not piece:
            raise GrammarError("empty value in a list", text, offset)
    if composite and not pieces[0][0].startswith(("(", "[")):
        return [(value, at)]  # one tuple written as a list
    return pieces


def _row(value: _Piece, count: int, names: tuple[str, ...], text: str) -> list[_Piece]:
    piece, at = value
    if count == 1:
        return [value]
    if not (piece[0] in "([" and piece.endswith(_CLOSING[piece[0]])):
        raise GrammarError(
            f"{'*'.join(names)} needs {count} values together, got '{piece}'",
            text,
            at,
            hint=f"write [({','.join('1' * count)}),...]",
        )
    cells = [(cell.strip(), cell_at) for cell, cell_at in _split(piece[1:-1], ",", text, at + 1)]
    if len(cells) != count:
        raise GrammarError(f"{count} names but {len(cells)} values in '{piece}'", text, at)
    return cells


def _range(inside: str, text: str, at: int) -> range:
    try:
        numbers = [int(part) for part in inside.split(",")]
        span = range(*numbers) if len(numbers) in (2, 3) else None
    except ValueError:
        span = None
    if span is None:
        raise GrammarError(
            f"cannot read range({inside})",
            text,
            at,
            hint="write range(start,end) or range(start,end,step)",
        )
    if not span:
        raise GrammarError(f"range({inside}) is empty", text, at, hint="the end is not included")
    count = (span[-1] - span[0]) // span.step + 1  # `len` counts up to 2^63 alone
    if count > MOST_VALUES:
        raise GrammarError(
            f"range({inside}) is {count:,} values", text, at, hint="give a larger step"
        )
    return span


def _logrange(inside: str, text: str, at: int) -> list[int | float]:
    """Values in equal ratios: doubling up to the end, or so many with both ends.

    Whole ends give whole numbers, each once.
    """
    parts = [part.strip() for part in inside.split(",")]
    ends = [number for part in parts[:2] if (number := _number(part)) is not None]
    counted = len(parts) == 3 and re.fullmatch(r"\d+", parts[2]) is not None
    if len(ends) < 2 or not (len(parts) == 2 or counted):
        raise GrammarError(
            f"cannot read logrange({inside})",
            text,
            at,
            hint="write logrange(start,end), which doubles, or logrange(start,end,count)",
        )
    first, last = ends
    if not 0 < first < last < math.inf:
        raise GrammarError(
            f"logrange({inside}) needs a start above 0 and a larger end",
            text,
            at,
            hint="the end is included",
        )
    if counted:
        count = int(parts[2])
        if not 2 <= count <= MOST_VALUES:
            raise GrammarError(
                f"logrange({inside}) is {count:,} values", text, at, hint=f"give 2 to {MOST_VALUES}"
            )
        ratio = (last / first) ** (1 / (count - 1))
        spread = [first, *(first * ratio**step for step in range(1, count - 1)), last]
    else:
        spread = [
            math.ldexp(first, step) for step in range(int(math.log2(last / first) + 1e-9) + 1)
        ]
    whole = all(_INT.match(part) for part in parts[:2])
    return list(dict.fromkeys(round(each) if whole else float(f"{each:.6g}") for each in spread))


def _typed(piece: str, value_type: type | None, name: str, at: int, text: str) -> Value:
    if value_type is None or piece in _NONE:
        return _inferred(piece, at, text)
    if value_type is str:
        return _unquoted(piece)
    if value_type is bool:
        if piece in _TRUE or piece in _FALSE:
            return piece in _TRUE
    elif value_type is int:
        number = _number(piece)
        if number is not None and math.isfinite(number) and number == int(number):
            return int(number)
    elif value_type is float:
        number = _number(piece)
        if number is not None:
            return number
    else:
        return _json(piece, at, text)
    raise GrammarError(
        f"{name} takes {_type_name(value_type)}, got '{piece}'",
        text,
        at,
        hint="give one value, or several as a list",
    )


def _inferred(piece: str, at: int, text: str) -> Value:
    if piece in _TRUE or piece in _FALSE:
        return piece in _TRUE
    if piece in _NONE:
        return None
    if _INT.match(piece):
        return int(piece)
    if _FLOAT.match(piece):
        number = float(piece)
        return int(number) if math.isfinite(number) and number.is_integer() else number
    if piece[:1] in "{[":
        return _json(piece, at, text)
    return _unquoted(piece)


def _json(piece: str, at: int, text: str) -> str:
    """JSON text as given; a Python literal is converted to JSON."""
    try:
        json.loads(piece)
    except json.JSONDecodeError:
        try:
            decoded: Any = ast.literal_eval(piece)
            return json.dumps(decoded)
        except (ValueError, SyntaxError, TypeError):
            raise GrammarError(
                f"'{piece}' is not JSON", text, at, hint='quote names: {"method":"ngram"}'
            ) from None
    return piece


def _number(piece: str) -> float | None:
    return float(piece) if _INT.match(piece) or _FLOAT.match(piece) else None


def _unquoted(piece: str) -> str:
    quoted = len(piece) >= 2 and piece[0] == piece[-1] and piece[0] in "'\""
    return piece[1:-1] if quoted else piece


def _type_name(value_type: type) -> str:
    words = {int: "an integer", float: "a number", bool: "true or false"}
    return words.get(value_type, value_type.__name__)


def _parts(text: str, separator: str) -> Iterator[_Piece]:
    at = 0
    for part in text.split(separator):
        yield part, at
        at += len(part) + len(separator)


def _split(piece: str, separator: str, text: str, at: int) -> Iterator[_Piece]:
    """Parts between separators outside brackets and quotes, with their positions."""
    open_brackets: list[tuple[str, int]] = []
    quote, start = "", 0
    for index, char in enumerate(piece):
        if quote:
            quote = "" if char == quote and piece[index - 1] != "\\" else quote
        elif char in "'\"" and _opens_quote(piece, index):
            quote = char
            quote_at = at + index
        elif char in _CLOSING:
            open_brackets.append((char, at + index))
        elif char in _CLOSING.values():
            if not open_brackets or _CLOSING[open_brackets.pop()[0]] != char:
                raise GrammarError(f"unbalanced '{char}'", text, at + index)
        elif not open_brackets and index >= start and piece.startswith(separator, index):
            yield piece[start:index], at + start
            start = index + len(separator)
    if quote:
        raise GrammarError("a quote is not closed", text, quote_at)
    if open_brackets:
        raise GrammarError(f"'{open_brackets[-1][0]}' is not closed", text, open_brackets[-1][1])
    yield piece[start:], at + start


def _opens_quote(piece: str, index: int) -> bool:
    """Whether a quote character begins a value, unlike an apostrophe inside a word."""
    before = piece[:index].rstrip()
    return not before or before[-1] in "=,;:([{"
