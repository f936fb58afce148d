"""An engine is one folder: nobody else compares with an engine's name."""

import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from house import FOREIGN_WORDS, OWN_LISTS, read_house

from servetune.engines import ENGINES, facts_by_table_name

SOURCE = Path(__file__).parents[2] / "src" / "servetune"

#: Variables of other nouns that are named after engines: the route of a request (`loadgen.Api`),
#: how a tool draws lengths from a range, and the form of a log.
OTHER_NOUNS = {"api", "meaning", "form"}

#: Names of engines that are also other words of the field.
AMBIGUOUS = {"max", "command"}
NAMES = (set(ENGINES) | set(facts_by_table_name())) - AMBIGUOUS


def compared_names(tree):
    """Names of engines on either side of a comparison, also within a list of several."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and getattr(node.left, "id", "") not in OTHER_NOUNS:
            for side in (node.left, *node.comparators):
                for part in ast.walk(side):
                    if isinstance(part, ast.Constant) and part.value in NAMES:
                        yield part.lineno, part.value


def test_nobody_else_compares_with_an_engines_name():
    quoted = re.compile("|".join(f"[\"']{re.escape(name)}[\"']" for name in sorted(NAMES)))
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "engines"
        and quoted.search(text := path.read_text("utf-8"))
        for line, name in compared_names(ast.parse(text))
    ]
    assert found == []


def test_no_file_outside_an_engines_folder_names_an_engine():
    """A new file belongs into the engine's folder; one that names none any more leaves the list."""
    assert set(read_house(SOURCE.parent).engine_in_code) == {*OWN_LISTS, *FOREIGN_WORDS}


def test_the_search_finds_comparisons():
    tree = ast.parse('if engine in ("vllm", other) or name != "tgi":\n    pass\n')
    assert [name for _, name in compared_names(tree)] == ["vllm", "tgi"]


def test_inside_the_room_only_an_engines_own_folder_names_it():
    shared = set((SOURCE / "engines").glob("*.py"))
    found = [
        f"{path.name}:{line} {name}"
        for path in sorted(shared)
        for line, name in compared_names(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []
