"""One declaration of an option serves keywords, files, command line and schema."""

import json
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import pytest

import servetune as st
from servetune.api.request import Request, checked, fields_of, given, read_config, schema, to_toml
from servetune.api.request import request_of as made
from servetune.cli.derive import verb
from servetune.cli.main import main
from servetune.errors import InputError, UnknownName
from servetune.option import Count, Positive, argument, option
from servetune.search import parse_settings


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


ROLE = "arn:aws:iam::123456789012:role/servetune"

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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"max_num_seqs": [64, 128], "enforce_eager": True},
            "max_num_seqs=[64,128];enforce_eager=True",
        ),
        ({"gpu_memory_utilization": 0.9, "quantization": None}, None),
        ({("tensor_parallel_size", "data_parallel_size"): [(1, 4), (4, 1)]}, None),
        ({"tensor_parallel_size*data_parallel_size": (2, 2)}, None),
        ({"speculative_config": {"method": "ngram", "n": [1, 2]}}, None),
        ({"compilation_config": [{"level": 0}, {"level": 3}]}, None),
        ({"chat_template": "a; b, c"}, None),
        ({"chat_template": ["a; b", "c, d", "[e"]}, None),
        ({"max_num_seqs": np.arange(8, 25, 8)}, "max_num_seqs=[8,16,24]"),
        ([{"seed": 1}, "max_num_seqs=8"], "seed=1;max_num_seqs=8"),
        ("seed=1", "seed=1"),
    ],
)
def test_a_dict_of_settings_means_what_its_text_means(given, text):
    study = made(st.Study, "m", {"server_args": given})
    written = ";".join(study.server_args)
    assert text in (None, written)
    axes = {axis.names: axis.rows for axis in parse_settings(written, types={})}
    members = given.items() if isinstance(given, dict) else ()
    for name, value in members:
        names = tuple(name.split("*")) if isinstance(name, str) else name
        rows = value if isinstance(value, list | np.ndarray) else [value]
        rows = [row if isinstance(row, tuple) else (row,) for row in rows]
        assert axes[names] == tuple(
            tuple(json.dumps(cell) if isinstance(cell, dict) else cell for cell in row)
            for row in rows
        )


@pytest.mark.parametrize(
    ("kind", "name"),
    [(st.Study, "client_args"), (st.Simulation, "server_args"), (st.Simulation, "client_args")],
)
def test_each_option_of_settings_takes_a_dict(kind, name):
    request = made(kind, "m", {name: {"a": 1, "b": [2, 3]}})
    field = next(each for each in fields_of(kind) if each.name == name)
    assert field.value(request) == ("a=1", "b=[2,3]")


def test_headers_variables_adapters_and_json_take_a_dict():
    request = made(
        st.Bench,
        st.Bench(),
        {"header": {"X-A": "b", "X-C": 1}, "adapters": {"l": 2}, "extra_body": {"n": [1]}},
    )
    assert request.load.header == ("X-A: b", "X-C: 1")
    assert (request.load.adapters, request.load.extra_body) == (("l=2",), '{"n":[1]}')
    study = made(st.Study, "m", {"server_env": {"A": 1, "COPIED": None}})
    assert study.servers.server_env == ("A=1", "COPIED")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"server_args": {"a": object()}}, "a: a object is no value of a setting"),
        ({"server_args": {"a": {1, 2}}}, "a: a set is no value"),
        ({"server_args": {1: 2}}, "1 is no name of a setting"),
        ({"server_args": object()}, "server_args: expected list"),
        ({"server_args": [object()]}, "server_args"),
        ({"client_args": {"a": "both ' and \";"}}, "both kinds of quotes"),
        ({"concurrency": {"a": 1}}, "concurrency: expected list"),
        ({"concurrency": [{"a": 1}]}, "concurrency: expected"),
        ({"concurrency": "8,x"}, "concurrency"),
        ({"concurrency": "8,0"}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"model": {"a": 1}}, "model"),
        ({"num_gpus": object()}, "num_gpus"),
        ({"num_gpus": True}, "num_gpus: expected int, got bool"),
        ({"model": None}, "model: expected str, got None"),
        ({"output_dir": 5}, "output_dir: expected a path, got int"),
        ({"num_gpus": "two"}, "num_gpus"),
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_of_ours(values, message):
    with pytest.raises(InputError) as refusal:
        checked(st.Study, {"model": "m", **values})
    assert message in refusal.value.message
    assert refusal.value.hint


@pytest.mark.parametrize(
    "levels", ["8,32", "8, 32", [8, 32], (8, 32), range(8, 33, 24), np.array([8, 32])]
)
def test_a_list_of_numbers_may_be_text_or_any_sequence(levels):
    assert made(st.Study, "m", {"concurrency": levels}).concurrency == (8, 32)


def test_limits_may_be_a_list():
    study = made(st.Study, "m", {"constraints": ["ttft:p99<=1s", "itl<=50ms"], "slo": ["ttft<=1s"]})
    assert (study.limits.constraints, study.slo) == ("ttft:p99<=1s;itl<=50ms", "ttft<=1s")


def test_text_of_a_number_is_a_number_and_none_no_list():
    study = made(st.Study, "m", {"rate": "4", "num_gpus": "2", "server_args": None})
    assert (study.load.rate, study.machine.num_gpus, study.server_args) == (4.0, 2, ())


def test_a_part_may_be_given_whole():
    machine = st.Machine(gpu="L4", num_gpus=2)
    study = made(st.Study, "m", {"machine": machine})
    assert study.machine == machine
    assert made(st.Study, study, {"machine": st.Machine(gpu="T4")}).machine == st.Machine(gpu="T4")
    assert made(st.Study, "m", {"machine": machine, "num_gpus": 4}).machine.num_gpus == 4


def test_every_verb_can_be_called_with_keywords_alone(tmp_path):
    assert st.estimate(model="Qwen/Qwen3-4B", gpu="L4").feasible
    run = {"model": "Qwen/Qwen3-4B", "gpu": "L4", "concurrency": 2, "requests": 4}
    assert len(st.simulate(**run).run.records) == 4
    assert len(st.tune(**run, engine="simulated", dry_run=True).planned) == 1
    published = "examples/published/qwen3-4b-4xl4.jsonl"
    assert st.recommend(source=published, objective="throughput").feasible
    assert st.render(source=published, dry_run=True).plan.model == "Qwen/Qwen3-4B"
    assert st.study_layouts(source=published).rows
    assert st.plan_staging(
        where="s3://bucket/x/", model="Qwen/Qwen3-4B", as_job=True, role_arn=ROLE
    ).job
    assert isinstance(st.calibrate(list=True).names, tuple)
    with pytest.raises(InputError, match="tune needs model") as missing:
        st.tune(gpu="L4")
    assert missing.value.hint == "give model=..."


def test_a_configuration_file_may_have_a_table_of_settings(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[tune]\nmodel = "m"\nconcurrency = "8,32"\n[tune.server_args]\nseed = [1, 2]\n'
    )
    study = checked(st.Study, read_config(file, st.Study))
    assert (study.server_args, study.concurrency) == (("seed=[1,2]",), (8, 32))


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
