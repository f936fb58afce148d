"""Commands in the documents: each is one that the program takes."""

import re
import shlex
from pathlib import Path

import pytest

from servetune import api
from servetune.api.study_setup import _space
from servetune.cli import derive
from servetune.cli.main import cli
from servetune.engines import engine, plan_from_settings, simulated_studies
from servetune.metrics import parse_constraints

ROOT = Path(__file__).parents[2]
#: Pages of decisions quote commands of their day, generated pages those of the help.
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent.name != "design"
]
#: Commands whose answer is arithmetic: they are run as well.
RUNS = re.compile(r"servetune estimate (?!.*(--sweep|all\b|--batch|--plot|--calibration|--estimator))")


def commands(page):
    """Commands of a page's blocks, continued lines joined, without what a shell does around them."""
    for block in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", page.read_text(), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"^(\$ |[A-Z_]+=\S* )+", "", line.strip())
            if re.match(r"servetune [a-z]+ ", command) and "..." not in command:
                yield " ".join(command.split())


FOUND = [(page, command) for page in PAGES for command in commands(page)]


class Parsed(Exception):
    """The command line was a request; nothing of it was done."""

    def __init__(self, request):
        super().__init__()
        self.request = request


def words_of(command):
    """Words of a command up to a comment, a pipe or a redirection."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("|<>&;"):
            break
        words.append(word)
    return words[1:]


@pytest.fixture
def request_of(monkeypatch):
    def parsed(*arguments):
        raise Parsed(checked(*arguments))

    checked = derive.checked
    monkeypatch.setattr(derive, "checked", parsed)

    def of(command):
        with pytest.raises(Parsed) as stop:
            cli.main(words_of(command), standalone_mode=False)
        return stop.value.request

    return of


def test_commands_are_found():
    assert len(FOUND) > 60
    assert len({page for page, _ in FOUND}) > 10


@pytest.mark.parametrize(
    ("page", "command"), [pytest.param(*each, id=f"{each[0].name}: {each[1]}") for each in FOUND]
)
def test_a_command_is_one_that_the_program_takes(page, command, request_of):
    if command.startswith("servetune completion"):  # its one argument is click's
        return
    request = request_of(command)
    limits = getattr(request, "limits", None)
    if limits is not None and limits.constraints:
        parse_constraints(limits.constraints)
    if isinstance(request, api.Study):
        swept = engine(simulated_studies().get(request.engine, request.engine))
        for settings in _space(request, swept).servers():
            plan_from_settings(swept.name, request.model, settings)


@pytest.mark.parametrize(
    "command", [command for _, command in FOUND if RUNS.match(command)], ids=str
)
def test_an_estimate_of_the_documents_has_an_answer(command, called):
    done = called(*words_of(command))
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout
