"""One grammar for laws of lengths and of arrivals: `kind=gamma,rate_per_s=4,burstiness=0.5`.

    law   := name "=" value ("," name "=" value)*
    value := number | true | false | word | "[" [value ("," value)*] "]" | the same in "()"

Names and values are those of a table in TOML, so that both are read into the same types:

    [arrivals]
    kind = "gamma"
    rate_per_s = 4
    burstiness = 0.5
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec

from servetune.decoding import ready
from servetune.errors import GrammarError, InputError, UnknownName, nearest
from servetune.json_value import JsonMembers


class KindOfLaw(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="law"
):
    """Law whose `kind` names it in text, TOML and JSON."""


L = TypeVar("L", bound=KindOfLaw)
#: Structs that a law can be, by the value of `kind`.
Kinds: TypeAlias = Mapping[str, type[L]]
#: Value as a law's text has it.
Written: TypeAlias = "str | int | float | bool | list[Written]"

_NAME = re.compile(r"\s*([A-Za-z_][\w-]*)\s*=")
_SCALAR = re.compile(r"\s*([^\s,;\[\]()=]+)")
_WORDS: Mapping[str, bool] = {"true": True, "True": True, "false": False, "False": False}
_CLOSING = {"[": "]", "(": ")"}


def law_of_text(text: str, kinds: Kinds[L], noun: str, *, defaults: JsonMembers | None = None) -> L:
    """Law that a line of text names.

    Args:
        text: Text such as `kind=mmpp,rates_per_s=[2,40],dwell_s=[30,5]`.
        kinds: Laws that it may be.
        noun: Quantity that they are laws of, for messages.
        defaults: Values of keys that the law has and the text leaves out.

    Raises:
        GrammarError: With the position of the mistake, and the known names.
    """
    cells = _Reader(text).cells()
    if "kind" not in cells:
        raise GrammarError(
            f"{noun} need a kind", text, 0, hint=f"write kind=NAME,...; names are {_names(kinds)}"
        )
    law = cells["kind"]
    if not isinstance(law.value, str) or law.value not in kinds:
        raise GrammarError(
            f"unknown kind of {noun} '{law.value}'",
            text,
            law.at,
            hint=_known(str(law.value), kinds),
        )
    known = ("kind", *kinds[law.value].__struct_encode_fields__)
    for name, cell in cells.items():
        if name not in known:
            raise GrammarError(
                f"kind={law.value} has no '{name}'", text, cell.name_at, hint=_known(name, known)
            )
    values = {name: cell.value for name, cell in cells.items()}
    for name, value in (defaults or {}).items():
        if name in known:
            values.setdefault(name, value)
    try:
        return law_of(values, kinds, noun)
    except InputError as error:
        # A law's complaint begins with the name of the key that it is about.
        culprit = cells.get(error.message.split(" ", 1)[0])
        at = culprit.at if culprit else law.at
        raise GrammarError(error.message, text, at, hint=error.hint) from None


def law_of(table: Mapping[str, object], kinds: Kinds[L], noun: str) -> L:
    """Law that a table of TOML or JSON describes.

    Raises:
        UnknownName: There is no such kind.
        InputError: A key is unknown or missing, or a value has no meaning.
    """
    kind = str(table.get("kind"))
    if kind not in kinds:
        raise UnknownName(f"kind of {noun}", kind, kinds)
    try:
        return msgspec.convert(dict(table), ready(kinds[kind]))
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):  # a law's own complaint, as msgspec wraps it
            raise error.__cause__ from None
        raise _plain(str(error), kinds[kind], kind) from None


def format_law(law: msgspec.Struct) -> str:
    """Line of text that reads as this law; keys with their default value are left out."""
    table = msgspec.to_builtins(law)
    ends = zip(
        reversed(law.__struct_encode_fields__), reversed(law.__struct_defaults__), strict=False
    )
    defaults = dict(ends)
    kept = {name: value for name, value in table.items() if defaults.get(name, ...) != value}
    return ",".join(f"{name}={_written(value)}" for name, value in kept.items())


def pairs_of(text: str) -> dict[str, Written]:
    """Names and values of a line of text, without looking at what they mean.

    Raises:
        GrammarError: With the position of the mistake.
    """
    return {name: cell.value for name, cell in _Reader(text).cells().items()}


class _Cell(NamedTuple):
    value: Written
    at: int
    name_at: int


class _Reader:
    """Reads one line from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def cells(self) -> dict[str, _Cell]:
        found: dict[str, _Cell] = {}
        while True:
            match = _NAME.match(self._text, self._at)
            if match is None:
                raise self._error("a name and '=' must stand here", hint="write name=value,...")
            name, name_at = match[1].replace("-", "_"), match.start(1)
            if name in found:
                raise GrammarError(
                    f"{name} is given twice", self._text, name_at, hint="leave one of them out"
                )
            self._at = match.end()
            self._skip()
            at = self._at
            found[name] = _Cell(self._value(), at, name_at)
            self._skip()
            if self._at == len(self._text):
                return found
            self._expect(",", "between one value and the next name")

    def _value(self) -> Written:
        self._skip()
        closing = _CLOSING.get(self._text[self._at : self._at + 1])
        if closing:
            return self._list(closing)
        match = _SCALAR.match(self._text, self._at)
        if match is None:
            raise self._error("a value must stand here", hint="a number, a word, or [a,b,...]")
        self._at = match.end()
        return _scalar(match[1])

    def _list(self, closing: str) -> list[Written]:
        opened = self._at
        self._at += 1
        values: list[Written] = []
        while True:
            self._skip()
            here = self._text[self._at : self._at + 1]
            if here == closing:
                self._at += 1
                return values
            if not here:
                raise GrammarError(
                    f"this bracket is never closed, '{closing}' is missing", self._text, opened
                )
            if values:
                self._expect(",", "between the values of a list")
            values.append(self._value())

    def _expect(self, character: str, where: str) -> None:
        if self._text[self._at : self._at + 1] != character:
            raise self._error(f"'{character}' must stand {where}")
        self._at += 1

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _error(self, message: str, hint: str = "") -> GrammarError:
        return GrammarError(message, self._text, self._at, hint=hint)


def _scalar(word: str) -> Written:
    if word in _WORDS:
        return _WORDS[word]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word.strip("\"'")


def _written(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_written(each) for each in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _plain(complaint: str, law: type[msgspec.Struct], kind: str) -> InputError:
    """Message for a complaint of msgspec, such as "Expected `float`, got `str` - at `$.mean`"."""
    names = law.__struct_encode_fields__
    quoted = re.findall(r"`([^`]*)`", complaint)
    if "missing required field" in complaint:
        return InputError(
            f"kind={kind} needs {quoted[0]}",
            hint=f"write {quoted[0]}=...; it takes {_names(names)}",
        )
    if "unknown field" in complaint:
        return InputError(f"kind={kind} has no '{quoted[0]}'", hint=_known(quoted[0], names))
    place = re.search(r"\$\.(\w+)", complaint)
    name = place[1] if place else kind
    problem = complaint.partition(" - at ")[0].replace("`", "")
    words = get_args(get_type_hints(law).get(name))
    hint = f"it is one of {_names(words)}" if words and isinstance(words[0], str) else _FORMS
    return InputError(f"{name} cannot be read: {problem[:1].lower()}{problem[1:]}", hint=hint)


_FORMS = "numbers are written 4 or 0.5, lists [2,40], steps [(60,2),(60,8)]"


def _known(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    lead = f"did you mean {', '.join(close)}; " if close else ""
    return f"{lead}known names are {_names(known)}"


def _names(known: Iterable[str]) -> str:
    return ", ".join(known)
