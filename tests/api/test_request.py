"""One declaration of an option serves keywords, files, command line and schema."""

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import pytest

from servetune.api.request import Request, checked, fields_of, given, read_config, schema, to_toml
from servetune.api.request import request_of as made
from servetune.cli.derive import verb
from servetune.cli.main import main
from servetune.errors import InputError, UnknownName
from servetune.option import Count, Positive, argument, option


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    group: ClassVar[str] = "Shared part"

    users: Annotated[Count | None, option("Users at once.", "--users", "-u", default="10")] = None


class Greeting(Request, frozen=True, kw_only=True):
    verb: ClassVar[str] = "greet"

    who: Annotated[str, argument("Name of whoever is greeted.", metavar="WHO")]
    pause_s: Annotated[Positive, option("Pause in seconds.", "--pause", metavar="S")] = 1.5
    loud: Annotated[bool, option("Loudness.")] = False
    polite: Annotated[bool, option("Politeness.")] = True
    words: Annotated[tuple[str, ...], option("Words to use.", "--word")] = ()
    tone: Annotated[str | None, option("Tone.", choices=("warm", "cool", "ice-cold"))] = None
    out: Annotated[Path | None, option("File to write.")] = None
    shared: Shared = Shared()


EVERYTHING = Greeting(
    who="you", pause_s=0.5, loud=True, polite=False, words=("a", 'b"\n'), tone="cool",
    out=Path("x/y"), shared=Shared(users=3),
)  # fmt: skip


def run(arguments, capsys, *, seen):
    @verb(Greeting, json=True)
    def greet(request, *, as_json):
        """Greet WHO."""
        seen.append((request, as_json))
        return 0

    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["greet", *arguments])
        with pytest.raises(SystemExit) as stop:
            main(greet)
        code = stop.value.code
    return code, capsys.readouterr()


def test_the_command_line_makes_the_same_request_as_keywords(capsys):
    seen = []
    words = ["you", "--pause", "0.5", "--loud", "--no-polite", "--word", "a", "--word", 'b"\n']
    words += ["--tone", "cool", "--out", "x/y", "-u", "3", "--json"]
    assert run(words, capsys, seen=seen)[0] == 0
    assert seen == [(EVERYTHING, True)]
    assert seen[0][0] == made(
        Greeting, "you", {f.name: f.value(EVERYTHING) for f in fields_of(Greeting)[1:]}
    )


def test_a_written_configuration_repeats_the_request(tmp_path, capsys):
    file, seen = tmp_path / "run.toml", []
    file.write_text(to_toml(EVERYTHING))
    assert checked(Greeting, read_config(file, Greeting)) == EVERYTHING
    assert run(["--config", str(file)], capsys, seen=seen)[0] == 0
    assert seen == [(EVERYTHING, False)]


def test_the_command_line_goes_before_the_file(tmp_path, capsys):
    file, again, seen = tmp_path / "run.toml", tmp_path / "again.toml", []
    file.write_text(to_toml(EVERYTHING))
    words = ["me", "--config", str(file), "--polite", "--write-config", str(again)]
    assert run(words, capsys, seen=seen)[0] == 0
    changed = msgspec.structs.replace(EVERYTHING, who="me", polite=True)
    assert seen[0][0] == changed
    assert checked(Greeting, read_config(again, Greeting)) == changed


def test_help_has_a_section_for_each_part_and_states_defaults(capsys):
    code, told = run(["--help"], capsys, seen=[])
    assert code == 0
    text = " ".join(told.out.split())
    assert (
        "Options: WHO Name of whoever is greeted. --pause S Pause in seconds. [default: 1.5]"
        in text
    )
    assert "--polite / --no-polite Politeness. [default: on]" in text
    assert "Shared part: -u, --users" in text
    assert "Users at once. [default: 10]" in text


@pytest.mark.parametrize(("word", "name"), [("word", "words"), ("pause", "pause_s")])
def test_another_spelling_of_an_option_leads_to_its_keyword(word, name):
    with pytest.raises(UnknownName) as caught:
        made(Greeting, "you", {word: 1})
    assert caught.value.hint == f"it is called {name} here"


def test_a_wrong_type_is_named_without_words_of_json():
    with pytest.raises(InputError, match=r"^words: expected list, got table$"):
        made(Greeting, "you", {"words": {"a": 1}})
    with pytest.raises(InputError, match=r"^users: expected int, got str$"):
        made(Greeting, "you", {"users": "x"})


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"who": "x", "users": 0}, InputError, "users: expected int >= 1"),
        ({"who": "x", "pause_s": float("nan")}, InputError, "pause_s is nan"),
        ({"who": "x", "pause_s": "long"}, InputError, "pause_s: expected float, got str"),
        ({"who": "x", "tone": "red"}, UnknownName, "unknown tone 'red'"),
        ({"who": "x", "usres": 3}, UnknownName, "unknown option of greet 'usres'"),
        ({}, InputError, "greet needs who"),
    ],
)
def test_a_wrong_value_gets_one_clear_line(values, error, message):
    with pytest.raises(error) as refusal:
        checked(Greeting, values)
    assert message in refusal.value.message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing argument 'WHO'"),
        (["x", "--users", "0"], "'--users'"),
        (["x", "--pause", "inf"], "inf is not a number"),
        (["x", "--tone", "red"], "'red' is not one of 'warm', 'cool'"),
    ],
)
def test_a_wrong_command_line_gets_one_clear_line(words, message, capsys):
    code, told = run(words, capsys, seen=[])
    assert code == 2
    assert message in told.err
    assert "Traceback" not in told.err


def test_a_configuration_of_another_command_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[other]\nwho = 'x'\n")
    with pytest.raises(InputError, match=r"no table \[greet\]"):
        read_config(file, Greeting)
    with pytest.raises(InputError, match="cannot read the configuration"):
        read_config(tmp_path / "none.toml", Greeting)


def test_what_was_given_is_what_differs_from_the_default():
    request = Greeting(who="x", pause_s=1.5, shared=Shared(users=2))
    assert [field.name for field in given(request)] == ["who", "users"]


def test_a_whole_request_can_be_changed_by_keywords():
    assert made(Greeting, EVERYTHING, {"users": 9}).shared.users == 9
    with pytest.raises(InputError, match="who is given twice"):
        made(Greeting, "x", {"who": "y"})


def test_the_schema_has_descriptions_limits_and_choices():
    properties = schema(Greeting)["properties"]
    assert properties["users"]["anyOf"][0] == {"type": "integer", "minimum": 1}
    assert properties["users"]["description"] == "Users at once."
    assert properties["tone"]["enum"] == ["warm", "cool", "ice-cold", None]
    assert schema(Greeting)["required"] == ["who"]


def test_no_credential_reaches_a_written_configuration():
    secret = "hf_" + "a" * 30
    assert secret not in to_toml(msgspec.structs.replace(EVERYTHING, words=(f"token={secret}",)))


@pytest.mark.parametrize("spelled", ["ice-cold", "ice_cold"])
def test_choices_are_the_same_with_dashes_and_underscores(spelled, capsys):
    seen = []
    assert run(["x", "--tone", spelled], capsys, seen=seen)[0] == 0
    assert seen[0][0] == made(Greeting, "x", {"tone": spelled})
    assert seen[0][0].tone == "ice-cold"
