"""Help of every command: nouns, one meaning a name, stated defaults.

The same rules hold for the docs of attributes.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from servetune.cli.main import cli
from servetune.cli.serve_simulated import serve_command

ROOT = Path(__file__).parents[2]
house = runpy.run_path(str(ROOT / "tools" / "house.py"))

#: Names with a different noun in some commands, and why that is right.
DIFFERENT_NOUNS = {
    "--dry-run": "shows what the command would do, which differs by command",
    "--out": "names what the command writes, which differs by command",
    "--compare": "names the records to compare with, of the verb's own kind",
    "--target": "names a quantity of estimate --detail, and where a deployment runs",
}


def context_of(command: click.Command) -> click.Context:
    return click.Context(command, info_name="servetune", **cli.context_settings)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = context_of(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}".strip())


COMMANDS = {**dict(commands(cli, "")), "simulate --serve": serve_command}


def options() -> Iterator[tuple[str, click.Option, str]]:
    """Command, option and its help text without the stated default."""
    for path, command in COMMANDS.items():
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden and not one.is_eager:
                text = " ".join((one.help or "").split())
                yield path, one, re.sub(r" *\[default: [^]]*\]", "", text)


def name_of(one: click.Option) -> str:
    return next((name for name in one.opts if name.startswith("--")), one.opts[0])


def noun_of(text: str) -> str:
    """Head of a help text: what stands before the first punctuation, preposition or clause."""
    head = re.split(
        r"[,.:;(]| (?:of|for|in|that|which|with|from|to|on|by|after|instead|such|as|under|at|per"
        r"|where|between|whose|when|until|shown|given|before|than|into|and)\b",
        text.lower(),
        maxsplit=1,
    )[0]
    return head.removeprefix("the ").removeprefix("a ").strip()


def with_two_meanings() -> set[str]:
    nouns: dict[str, set[str]] = {}
    for _, one, text in options():
        nouns.setdefault(name_of(one), set()).add(noun_of(text))
    return {name for name, found in nouns.items() if len(found) > 1}


def test_the_help_of_an_option_begins_with_a_noun():
    lacking = [
        f"{path} {name_of(one)}" for path, one, text in options() if house["lacks_noun"](text)
    ]
    assert lacking == []


def test_a_word_that_is_noun_and_verb_counts_as_what_it_is():
    lacks_noun = house["lacks_noun"]
    assert not lacks_noun("Name of the endpoint.")
    assert lacks_noun("Name the endpoint.")
    assert lacks_noun("Whether answers are streamed.")
    assert not lacks_noun("Whether answers are streamed.", boolean=True)


def test_the_doc_of_an_attribute_begins_with_a_noun():
    found = house["read_house"](ROOT / "src")
    assert len(found.attribute_docs) > 1000
    assert found.docs_without_noun() == []


def test_an_option_name_has_one_meaning_in_all_commands():
    assert with_two_meanings() - set(DIFFERENT_NOUNS) == set()


def test_a_default_is_stated():
    silent = []
    for path, one, _ in options():
        record = one.get_help_record(context_of(COMMANDS[path]))
        given = one.to_info_dict()["default"]
        if not one.is_flag and given not in (None, "", ()) and "[default" not in (record or "")[1]:
            silent.append(f"{path} {name_of(one)}: {given!r}")
    assert silent == []


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_terminal(width):
    wide = []
    for path, command in COMMANDS.items():
        context = click.Context(
            command, info_name=f"servetune {path}", terminal_width=width, **cli.context_settings
        )
        wide += [
            f"{path}: {line}"
            for line in command.get_help(context).splitlines()
            if len(line) > width
        ]
    assert wide == []


def test_many_options_are_in_titled_groups():
    for path, command in COMMANDS.items():
        shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        if len(shown) > 20:
            page = command.get_help(context_of(command))
            titles = re.findall(r"^(\S.*):$", page, re.M)
            assert len(titles) > 3, f"{path}: {titles}"


@pytest.mark.parametrize("verb", ["estimate", "simulate", "bench", "tune"])
def test_the_options_that_matter_first_are_first_and_stand_once(verb):
    command = COMMANDS[verb]
    page = command.get_help(context_of(command))
    sections = re.split(r"^(\S.*):$", page, flags=re.M)
    assert sections[1] == "Most used"
    assert {parameter.name for parameter in command.params} >= set(command.first)
    assert len(re.findall(r"^  -", sections[2], re.M)) == len(command.first) <= 12
    names = re.findall(r"^  (-\S[^,\s]*)", page, re.M)
    assert len(names) == len(set(names))
