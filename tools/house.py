"""Figures of the house, for a checkout: sizes, signatures, engine names, options, help texts.

    python tools/house.py [SRC] [--list]      with --list every offender is named

SRC is a checkout or source tree that holds the package `servetune` (default: this one), so that an
older commit is measured by the same script: `git worktree add --detach ../before COMMIT`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
MOST_PARAMETERS = 8


#: Aliases of JSON objects whose members are `Any` (`servetune/json_value.py`).
JSON_TYPES = re.compile(r"\b(JsonObject|JsonMembers|ResultFields)\b")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Engine names as they stand in code; a name that is also an English word is left out ("max",
#: "simulated"), and `transformers` counts where it names the server, not the library.
ENGINE_WORDS = re.compile(
    r"vllm|sglang|lmdeploy|llama[._-]?cpp|tensorrt[._-]?llm|trt[._-]?llm|mlc[._-]?llm|dynamo\b"
    r"|\btgi\b|text-generation-inference|transformers[._-]serve|modular[._-]max",
    re.IGNORECASE,
)
#: Files outside `engines/<name>/` whose code may name engines, with the reason. The list only gets
#: shorter: `tests/contracts/test_an_engine_is_a_folder.py` fails with a file that is not here, and
#: with one that has no need to be (`docs/design/0009`).
OWN_LISTS = {
    "engines/registry.py": "the list of engines",
    "plan/plan.py": "the default engine",
}
FOREIGN_WORDS = {
    "metrics/other_tools.py": "results as `vllm bench serve` writes them",
    "prediction/inferencemax.py": "scripts by which InferenceMAX started its servers",
    "workload/client_args.py": "backends of llm-optimizer's client arguments",
    "workload/laws.py": "samplers of the benchmarks of two engines, `as=`",
    "workload/request_log.py": "forms of traffic logs",
    "api/workloads.py": "likewise, in a help text",
}

#: Values of `--engine`, as comparisons hold them; "max" is a word of laws and intervals too.
ENGINE_VALUES = _words(
    "vllm sglang tgi lmdeploy llama.cpp tensorrt-llm transformers vllm-neuron simulated"
    " external mlc-llm dynamo"
)
#: First words with which a help text does not begin with a noun: pronouns, conjunctions,
#: prepositions, adverbs, auxiliaries and the imperatives that option texts are prone to.
NO_NOUN = _words(
    """
    who whom whose which that what where when whether how why if as so then than it its this these
    those they them their i we you he she there here such and or but nor not no of for from to into
    onto with without within by at in on over under above below between beside besides beyond after
    before during until till since through per about against along among behind down up off out
    also only even just still again always never once already instead else otherwise alone together
    is are was were be been being has have had do does did can could may might must shall should
    will would let said told asked wanted seen taken given allowed found
    add allow apply ask assume begin break bring build buy call choose clear compare compute
    consider continue create delete deploy describe disable do draw drop emit enable estimate
    exclude expect explain export fail fetch fill find fit follow force forget get give go have
    hide hold ignore import include install invoke keep leave make merge move omit open overwrite
    pass pay pick prefer prepare print put raise read refuse reject remove render repeat replace
    require resume retry reuse run save say see select send serve simulate skip sort spread stop
    store take tell treat try turn use verify walk warn watch write
    """
)
#: Words that are a noun as well as a verb, and what follows them as nouns.
NOUN_OR_VERB = _words(
    """
    answer check copy count cut deal end group hand list look mark measure name place play price
    record return set show wait
    """
)
AFTER_A_NOUN = re.compile(
    r"\s*([,.:;(\[]|$)|\s+(of|in|for|to|that|by|under|as|and|or|such|with|without|from|per"
    r"|lengths?|times?|tokens?)\b"
)


@dataclass(frozen=True)
class Function:
    """A function or method: where it stands, its length in lines, its parameters."""

    place: str
    name: str
    lines: int
    parameters: int
    speaks_any: bool
    speaks_json: bool
    is_command: bool

    def __str__(self) -> str:
        return f"{self.place} {self.name}"


@dataclass
class House:
    """What the scan of one source tree found."""

    lines_by_room: Counter[str] = field(default_factory=Counter)
    files_by_room: Counter[str] = field(default_factory=Counter)
    functions: list[Function] = field(default_factory=list)
    engine_in_code: Counter[str] = field(default_factory=Counter)
    engine_in_text: Counter[str] = field(default_factory=Counter)
    engine_comparisons: list[str] = field(default_factory=list)
    attribute_docs: list[tuple[str, str, bool]] = field(default_factory=list)

    def docs_without_noun(self) -> list[str]:
        """Attribute docs that do not begin with a noun."""
        return [
            f"{place}: {text}"
            for place, text, boolean in self.attribute_docs
            if lacks_noun(text, boolean=boolean)
        ]


def read_house(src: Path) -> House:
    """The figures of all modules below `src/servetune`."""
    house, package = House(), src / "servetune"
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        room = relative.parts[0] if len(relative.parts) > 1 else "(top)"
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        house.lines_by_room[room] += text.count("\n")
        house.files_by_room[room] += 1
        house.functions += _functions(nodes, str(relative))
        house.attribute_docs += _attribute_docs(nodes, str(relative))
        if not _of_one_engine(relative) and ENGINE_WORDS.search(text):
            _engine_names(house, nodes, text, str(relative))
    return house


def _of_one_engine(relative: Path) -> bool:
    """Whether a file lies in an engine's own folder, `engines/<name>/` with a row for that name."""
    return (
        relative.parts[0] == "engines"
        and len(relative.parts) > 2
        and relative.parts[1] not in {"launchers", "data"}
    )


def _functions(nodes: list[ast.AST], file: str) -> Iterator[Function]:
    methods = {
        id(child)
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for child in node.body
        if "staticmethod" not in {ast.unparse(one) for one in getattr(child, "decorator_list", ())}
    }
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        annotations = [one.annotation for one in (*every, given.vararg, given.kwarg) if one]
        plan_settings = [ast.unparse(one) for one in (*annotations, node.returns) if one]
        decorators = [ast.unparse(one) for one in node.decorator_list]
        yield Function(
            place=f"{file}:{node.lineno}",
            name=node.name,
            lines=(node.end_lineno or node.lineno) - node.lineno + 1,
            parameters=len(every) - (id(node) in methods),
            speaks_any=any(re.search(r"\bAny\b", one) for one in plan_settings),
            speaks_json=any(JSON_TYPES.search(one) for one in plan_settings),
            is_command=any("option(" in one or ".command" in one for one in decorators),
        )


def _engine_names(house: House, nodes: list[ast.AST], text: str, file: str) -> None:
    docstrings = {id(node) for node in _docstrings(nodes)}
    code = 0
    for node in nodes:
        match node:
            case ast.Constant(value=str(value)) if id(node) not in docstrings:
                code += bool(ENGINE_WORDS.search(value))
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.alias(name=word):
                code += bool(ENGINE_WORDS.search(word))
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word) | ast.arg(arg=word):
                code += bool(ENGINE_WORDS.search(word))
            case ast.ImportFrom(module=str(word)):
                code += bool(ENGINE_WORDS.search(word))
        if _compares_engine(node):
            house.engine_comparisons.append(f"{file}:{node.lineno}")  # type: ignore[attr-defined]
    prose = sum(bool(ENGINE_WORDS.search(str(node.value))) for node in _docstrings(nodes))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    prose += sum(
        bool(ENGINE_WORDS.search(token.string))
        for token in tokens
        if token.type == tokenize.COMMENT
    )
    if code:
        house.engine_in_code[file] = code
    if prose:
        house.engine_in_text[file] = prose


def _compares_engine(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            compared = [node.left, *node.comparators]
        case ast.MatchValue():
            compared = [node.value]
        case _:
            return False
    members = [
        part
        for one in compared
        for part in (one.elts if isinstance(one, ast.Set | ast.Tuple | ast.List) else [one])
    ]
    return any(isinstance(one, ast.Constant) and one.value in ENGINE_VALUES for one in members)


def _docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    """Every string that stands alone as a statement."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as constant):
                yield constant


def _attribute_docs(nodes: list[ast.AST], file: str) -> Iterator[tuple[str, str, bool]]:
    """Place and text of each entry of an `Attributes:` section, and whether it is a boolean."""
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        section = re.search(
            r"^Attributes:\n(.*?)(?=^\S|\Z)", ast.get_docstring(node) or "", re.M | re.S
        )
        types = dict(_annotations(node)) if section else {}
        for name, text in re.findall(
            r"^ {4}(\w+): *\n? *(.*)", section[1] if section else "", re.M
        ):
            yield f"{file} {node.name}.{name}", text, "bool" in types.get(name, "").lower()


def _annotations(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Attribute and type, of a class's fields, properties and assignments in `__init__`."""
    for one in ast.walk(node):
        match one:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                yield name, ast.unparse(kind)
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=kind):
                yield name, ast.unparse(kind)
            case ast.Assign(
                targets=[ast.Attribute(attr=name)], value=ast.Constant(value=bool()) | ast.Compare()
            ):
                yield name, "bool"
            case ast.arg(arg=name, annotation=ast.expr() as kind):
                yield name, ast.unparse(kind)
            case ast.FunctionDef(name=name, returns=ast.expr() as kind):
                yield name, ast.unparse(kind)


def lacks_noun(text: str, *, boolean: bool = False) -> bool:
    """Whether a help text begins with a word that is surely no noun, article or adjective.

    The text of a boolean attribute may begin with "Whether".
    """
    first = re.match(r"\W*([A-Za-z'-]+)", text)
    if first is None:
        return False
    word = first[1].lower()
    if boolean and word == "whether":
        return False
    return word in NO_NOUN or (word in NOUN_OR_VERB and not AFTER_A_NOUN.match(text, first.end()))


#: Runs in a process of its own, so that another tree's package is the one that is imported.
WALK = """
import sys
import click
from servetune.cli.main import cli
def walk(command, path):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))
    for one in command.params:
        if isinstance(one, click.Option):
            text = " ".join((one.help or "").split())
            unlisted = one.hidden or one.is_eager  # --version keeps the words of click
            yield " ".join(path), one.opts[-1] if one.opts else one.name, text, unlisted
import json
json.dump(list(walk(cli, ("servetune",))), sys.stdout)
"""


def read_options(src: Path) -> list[tuple[str, str, str, bool]]:
    """Command, option, help text and whether it is hidden, of every option that the CLI shows."""
    made = subprocess.run(
        [sys.executable, "-c", WALK],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(src)},
    )
    if made.returncode:
        print(f"options: not read: {made.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return [tuple(one) for one in json.loads(made.stdout)]


def show(src: Path, *, listed: bool) -> None:
    """Print all figures; with `listed` the offenders too."""
    house = read_house(src)

    def more(entries: Iterable[str]) -> None:
        if listed:
            for one in entries:
                print(f"    {one}")

    print("lines by room")
    for room, lines in house.lines_by_room.most_common():
        print(f"  {room:<11}{lines:>7,} in {house.files_by_room[room]:>3} files")
    total = sum(house.lines_by_room.values())
    print(f"  {'all':<11}{total:>7,} in {sum(house.files_by_room.values()):>3} files")
    functions = house.functions
    lengths = sorted(one.lines for one in functions)
    deciles = statistics.quantiles(lengths, n=10)
    longest = max(functions, key=lambda one: one.lines)
    print(
        f"functions: {len(functions):,}; lines p50 {statistics.median(lengths):.0f},"
        f" p90 {deciles[8]:.0f}, max {longest.lines} ({longest})"
    )
    wide = sorted(
        (one for one in functions if one.parameters > MOST_PARAMETERS),
        key=lambda one: -one.parameters,
    )
    commands = sum(one.is_command for one in wide)
    print(
        f"functions with more than {MOST_PARAMETERS} parameters: {len(wide)}, {commands} commands"
    )
    more([f"{one.parameters:>3} {one}" for one in wide])
    loose = [one for one in functions if one.speaks_any]
    print(f"signatures with Any: {len(loose)} ({len(loose) / len(functions):.1%})")
    by_room = Counter(one.place.split("/")[0] for one in loose)
    more([f"{room} {count}" for room, count in by_room.most_common()])
    unchecked = sum(one.speaks_json for one in functions)
    print(f"signatures with JSON objects whose members are not checked: {unchecked}")
    print(f"files outside engines/<name>/ whose code names an engine: {len(house.engine_in_code)}")
    more([f"{count:>3} {file}" for file, count in house.engine_in_code.most_common()])
    lists, foreign = (
        [f"{file}: {why}" for file, why in reasons.items() if file in house.engine_in_code]
        for reasons in (OWN_LISTS, FOREIGN_WORDS)
    )
    print(f"  of them the list of engines and the default: {len(lists)}")
    more(lists)
    print(f"  of them words of other tools' files: {len(foreign)}")
    more(foreign)
    prose = set(house.engine_in_text) - set(house.engine_in_code)
    print(f"  and whose comments or docstrings alone do: {len(prose)}")
    more(sorted(prose))
    print(f"comparisons with an engine's name there: {len(house.engine_comparisons)}")
    more(house.engine_comparisons)
    _show_options([one for one in read_options(src) if not one[3]], more)
    bad = house.docs_without_noun()
    print(
        f"attribute docs that do not begin with a noun: {len(bad)} of {len(house.attribute_docs)}"
    )
    more(bad)


def _show_options(
    options: list[tuple[str, str, str, bool]], more: Callable[[Iterable[str]], None]
) -> None:
    if not options:
        return
    names = {option for _, option, _, _ in options}
    texts = len({(option, text) for _, option, text, _ in options})
    print(
        f"options: {len(options)} in all commands, {len(names)} names, {texts} name-and-text pairs"
    )
    bad = sorted({f"{option}: {text}" for _, option, text, _ in options if lacks_noun(text)})
    print(f"option helps that do not begin with a noun: {len(bad)}")
    more(bad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", nargs="?", type=Path, default=SRC)
    parser.add_argument("--list", action="store_true", help="name every offender")
    options = parser.parse_args()
    src = options.src if (options.src / "servetune").is_dir() else options.src / "src"
    show(src.resolve(), listed=options.list)


if __name__ == "__main__":
    main()
