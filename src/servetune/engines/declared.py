"""Settings as an engine's own source declares them, read without running it.

Importing an engine takes seconds and often a GPU; its argument parsers are declarations
that a syntax tree shows in milliseconds. Four forms are read: calls of `add_argument`,
annotated fields (`EngineArgs`, `A[int, Arg(...)]`, pydantic models), `click.option`
decorators and typer's annotated parameters. What a value is computed from stays unknown:
then the type is text and the choices are empty, so nothing is refused for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from servetune.engines.settings import SettingSpec, with_underscores

Named = dict[str, SettingSpec]

Meaning = tuple[str, tuple[str, ...]]
"""Kind of a value, and the words that it may be; none where it may be any."""

_SCALARS = ("bool", "int", "float", "str")
#: Functions that read an argument, to the kind of value that they return.
_PARSERS = {
    **{name: name for name in _SCALARS},
    "loads": "json",
    "dict": "json",
    "human_readable_int": "int",
}
_SWITCHES = frozenset({"store_true", "store_false", "store_const"})


def literal_aliases(trees: Iterable[ast.Module]) -> dict[str, Meaning]:
    """Names that stand for a type or a set of words: `CacheDType = Literal["auto", "fp8"]`."""
    found: dict[str, Meaning] = {}
    for tree in trees:
        for node in tree.body:
            target, value = _assignment(node)
            if isinstance(value, ast.List | ast.Tuple | ast.Set) and (words := _texts(value)):
                found[target] = ("str", words)
            elif isinstance(value, ast.Subscript | ast.BinOp):
                found[target] = kind_of(value, found)
    return found


def _assignment(node: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    return "", None


def kind_of(node: ast.expr | None, aliases: Mapping[str, Meaning] | None = None) -> Meaning:
    """Kind and choices of an annotation.

    Of a union the widest member counts: `int | str` is text. A list is what it holds. An
    unknown name is text; a dictionary, or a class of configuration, is JSON.
    """
    aliases = aliases or {}
    kinds: dict[str, None] = {}
    choices: list[str] = []
    for part in _members(node):
        kind, words = _one_kind(part, aliases)
        if kind:
            kinds[kind] = None
        choices += words
    for kind in ("json", "str", "float", "int", "bool"):
        if kind in kinds:
            open_ended = kind == "str" and any(_is_name(part, "str") for part in _members(node))
            return kind, () if open_ended else tuple(dict.fromkeys(choices))
    return "str", ()


def _members(node: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members(node.left)
        yield from _members(node.right)
    elif isinstance(node, ast.Subscript) and _name(node.value) in {"Optional", "Union"}:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in inner:
            yield from _members(part)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _members(_quoted(node.value))
    elif node is not None:
        yield node


def _quoted(annotation: str) -> ast.expr:
    try:
        return ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return ast.Constant(None)


def _one_kind(node: ast.expr, aliases: Mapping[str, Meaning]) -> Meaning:
    name = _name(node)
    if isinstance(node, ast.Constant):  # None
        return "", ()
    if name in _SCALARS:
        return name, ()
    if name in aliases:
        return aliases[name]
    if isinstance(node, ast.Subscript):
        return _subscript_kind(node, aliases)
    if name in {"dict", "Dict"} or name.endswith("Config"):
        return "json", ()
    return "str", ()


def _subscript_kind(node: ast.Subscript, aliases: Mapping[str, Meaning]) -> Meaning:
    name = _name(node.value)
    if name == "Literal":
        values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        words = tuple(v.value for v in values if isinstance(v, ast.Constant))
        if words and all(type(word) is int for word in words):
            return "int", tuple(map(str, words))
        return "str", tuple(str(word) for word in words)
    if name in {"Annotated", "A"} and isinstance(node.slice, ast.Tuple):
        return kind_of(node.slice.elts[0], aliases)
    if name in {"list", "List", "set", "tuple", "Sequence"}:
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        kind, _ = kind_of(inner, aliases)
        return kind, ()
    if name in {"dict", "Dict", "Mapping"}:
        return "json", ()
    return "str", ()


def argparse_settings(tree: ast.AST, aliases: Mapping[str, Meaning] | None = None) -> Named:
    """Settings of all literal `add_argument("--name", ...)` calls below a node."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return settings_of_calls(
        (call for call in calls if _name(call.func) == "add_argument"), aliases or {}
    )


def click_settings(tree: ast.AST, aliases: Mapping[str, Meaning] | None = None) -> Named:
    """Settings of all literal `click.option("--name", ...)` calls below a node."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return settings_of_calls(
        (call for call in calls if _name(call.func) == "option"), aliases or {}
    )


def settings_of_calls(calls: Iterable[ast.Call], aliases: Mapping[str, Meaning]) -> Named:
    found: Named = {}
    for call in calls:
        spec = _setting_of(call, aliases)
        if spec is not None:
            found.setdefault(spec.name, spec)
    return found


def _setting_of(call: ast.Call, aliases: Mapping[str, Meaning]) -> SettingSpec | None:
    words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    long = [word for word in words if isinstance(word, str) and word.startswith("--")]
    if not long:
        return None
    negatable = any("/--no-" in word for word in long)
    names = [with_underscores(word.partition("/")[0]) for word in long]
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    kind, choices = _kind_of_call(given, aliases)
    action = _name(given.get("action"))
    return SettingSpec(
        name=names[0],
        kind="bool" if negatable else kind,
        negatable=negatable or action == "BooleanOptionalAction",
        choices=() if kind == "bool" else choices,
        aliases=tuple(name for name in names[1:] if not name.startswith("no_")),
    )


def _kind_of_call(given: Mapping[str, ast.expr], aliases: Mapping[str, Meaning]) -> Meaning:
    action = given.get("action")
    named = _name(action) or (str(action.value) if isinstance(action, ast.Constant) else "")
    switch = named in _SWITCHES or named.endswith(("BooleanOptionalAction", "StoreTrueAction"))
    if switch or _is_true(given.get("is_flag")):
        return "bool", ()
    stated = given.get("type")
    if isinstance(stated, ast.Call) and _name(stated.func).startswith("Choice"):
        words = _texts(stated.args[0]) if stated.args else ()
        return "str", words
    choices = _texts(given.get("choices")) or _words_of(given.get("choices"), aliases)
    name = _name(stated)
    if name in _PARSERS:
        return _PARSERS[name], () if _PARSERS[name] == "json" else choices
    return _kind_of_default(given.get("default")), choices


def _kind_of_default(node: ast.expr | None) -> str:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return "str"
    return type(value).__name__ if type(value) in (int, float) else "str"


def annotated_fields(
    tree: ast.AST,
    aliases: Mapping[str, Meaning] | None = None,
    *,
    classes: Iterable[str] | None = None,
) -> Named:
    """Settings of a class's annotated fields, inherited ones not included.

    `Field(ge=1)` gives a range; `Arg(no_cli=True)` leaves a field out, `Arg(choices=...)`
    and `Arg(aliases=[...])` are read.
    """
    class_names = None if classes is None else frozenset(classes)
    found: Named = {}
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        if class_names is not None and owner.name not in class_names:
            continue
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                spec = _field(node.target.id, node, aliases or {})
                if spec is not None:
                    found.setdefault(spec.name, spec)
    return found


def _field(name: str, node: ast.AnnAssign, aliases: Mapping[str, Meaning]) -> SettingSpec | None:
    if name.startswith("_") or _name(node.annotation).startswith("ClassVar"):
        return None
    kind, choices = kind_of(node.annotation, aliases)
    keywords = _keywords_of(node)
    if _is_true(keywords.get("no_cli")):
        return None
    if "choices" in keywords:
        choices = _texts(keywords["choices"]) or _words_of(keywords["choices"], aliases)
    if _name(keywords.get("action")) in {"BooleanOptionalAction"}:
        kind = "bool"
    named = _texts(keywords.get("cli_name"))
    own = with_underscores(named[0]) if named else name
    others = tuple(with_underscores(text) for text in _texts(keywords.get("aliases")))
    return SettingSpec(
        name=own,
        kind=kind,
        choices=() if kind in {"bool", "json"} else choices,
        negatable=_name(keywords.get("action")) == "BooleanOptionalAction",
        minimum=_smallest(keywords, kind),
        maximum=_bound(keywords.get("le")),
        aliases=tuple(alias for alias in others if alias != own),
    )


def _keywords_of(node: ast.AnnAssign) -> dict[str, ast.expr]:
    """Keywords of the `Field(...)` or `Arg(...)` that goes with a field."""
    calls: list[ast.expr] = [node.value] if node.value is not None else []
    for part in _members(node.annotation):
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple):
            calls += part.slice.elts[1:]
    keywords: dict[str, ast.expr] = {}
    for call in calls:
        if isinstance(call, ast.Call) and _name(call.func) in {"Field", "Arg"}:
            keywords.update({word.arg: word.value for word in call.keywords if word.arg})
    return keywords


def typer_settings(tree: ast.AST, owner: str, function: str = "__init__") -> Named:
    """Settings of a typer command that is a class or a function: `Annotated[int, Option(...)]`."""
    found: Named = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == function:
                    found.update(_parameters(inner))
    return found


def _parameters(function: ast.FunctionDef) -> Named:
    found: Named = {}
    for argument in function.args.args:
        note = argument.annotation
        if not isinstance(note, ast.Subscript) or not isinstance(note.slice, ast.Tuple):
            continue
        keywords = note.slice.elts[1]
        if not isinstance(keywords, ast.Call) or _name(keywords.func) != "Option":
            continue
        kind, choices = kind_of(note.slice.elts[0])
        found[argument.arg] = SettingSpec(
            name=argument.arg, kind=kind, choices=choices, negatable=kind == "bool"
        )
    return found


def _name(node: object) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _texts(node: ast.expr | None) -> tuple[str, ...]:
    """The words of a literal text, list or tuple; empty where anything is computed."""
    if node is None:
        return ()
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple | set):
        return tuple(str(one) for one in value if one is not None)
    return ()


def _words_of(node: ast.expr | None, aliases: Mapping[str, Meaning]) -> tuple[str, ...]:
    return aliases.get(_name(node), ("", ()))[1]


def _smallest(keywords: Mapping[str, ast.expr], kind: str) -> float | None:
    """`ge`, or `gt`: one more for a whole number, and for others the bound itself."""
    above = _bound(keywords.get("gt"))
    if above is not None:
        return above + 1 if kind == "int" else above
    return _bound(keywords.get("ge"))


def _bound(node: ast.expr | None) -> float | None:
    try:
        value = ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None
    return float(value) if isinstance(value, int | float) else None
