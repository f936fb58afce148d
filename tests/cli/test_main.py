import json
import os
import subprocess
import sys

import pytest

import forked
from servetune.cli.main import VERBS


def servetune(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "servetune", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


def test_help_lists_every_verb_and_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['servetune', '--help']\n"
        "from servetune.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as stop: status = stop.code\n"
        "heavy = {'numpy', 'rich', 'asyncio', 'msgspec'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy), status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY [] 0" in done.stdout
    for verb in VERBS:
        assert verb in done.stdout


@pytest.mark.parametrize("verb", [*VERBS, "deploy sagemaker"])
def test_every_verb_explains_itself(verb, called):
    done = called(*verb.split(), "--help")
    assert done.returncode == 0
    assert "Usage: servetune" in done.stdout or "Usage: " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("group", [(), ("deploy",)])
def test_a_group_alone_shows_its_help_and_complains_of_nothing(group):
    done = servetune(*group)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")
    assert "Commands:" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a shell")
def test_a_closed_stdout_is_nobodys_error():
    words = [sys.executable, "-m", "servetune", "estimate", "--model", "Qwen/Qwen3-4B"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words, "--gpu", "L4"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_version():
    assert servetune("--version").stdout.startswith("servetune, version ")


TUNE = ("tune", "--engine", "simulated", "--model", "Qwen/Qwen3-4B", "--instance", "ml.g6.12xlarge")


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (("estimate", "--model", "Qwen/Qwen3-4C", "--gpu", "L4"), "Qwen3-4C", "Qwen3-4B"),
        (("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "L44"), "L44", "L4"),
        (("estimate", "--model", "Qwen/Qwen3-32B", "--gpu", "L4"), "", "hint: "),
        ((*TUNE, "--constraints", "tttf<=5"), "tttf", "ttft"),
        ((*TUNE, "--constraints", "ttft=5"), "cannot read", "hint: "),
        ((*TUNE, "--constraints", "goodput>=5"), "goodput", "--slo"),
        ((*TUNE, "--client-args", "max_concurency=5"), "max_concurency", "max_concurrency"),
        ((*TUNE, "--server-args", "tensor_parallel_size=[1,2"), "not closed", ""),
        ((*TUNE, "--server-args", "tensor_parallel_size=two"), "an integer", ""),
        ((*TUNE, "--server-args", "tensor_parallel_size=3"), "3", "hint: "),
        ((*TUNE, "--server-args", "tensor_parallel_size=8"), "8", "hint: "),
        ((*TUNE, "--gpu", "L4"), "--gpu and --instance", "one of the two"),
        (
            (
                "tune",
                "--engine",
                "simulated",
                "--model",
                "Qwen/Qwen3-4B",
                "--instance",
                "ml.g9.huge",
            ),
            "ml.g9.huge",
            "hint: ",
        ),
        (("report", "none.jsonl"), "none.jsonl is not there", "hint: "),
        (("report", "."), ". holds no journal", ".jsonl or .json of a run"),
        (("recommend", "run.html"), "is a page", ".jsonl or .json of a run"),
        (("recommend", "none.jsonl"), "none.jsonl is not there", "hint: "),
        (("deploy", "sagemaker", "none.json", "--out", "x"), "none.json is not there", "hint: "),
    ],
)
def test_bad_input_is_one_clear_line_and_a_hint_and_nothing_is_written(
    arguments, says, hint, tmp_path
):
    done = forked.run([*forked.COMMAND, *arguments], cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert not lines[0].endswith(".")
    assert says in lines[0]
    assert hint in done.stderr
    assert len(lines) <= 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_options_are_usage_errors():
    done = servetune("tune", "--modle", "x")
    assert done.returncode == 2
    assert "--modle" in done.stderr


def test_estimate_as_data_holds_what_the_text_says():
    arguments = (
        "estimate",
        "--model",
        "Qwen/Qwen3-4B",
        "--gpu",
        "L4",
        "--num-gpus",
        "4",
        "--input-len",
        "1024",
        "--output-len",
        "512",
    )
    text, data = servetune(*arguments), json.loads(servetune(*arguments, "--json").stdout)
    answer = data["chosen"]["answer"]
    assert answer["parameters"] == 4_022_468_096
    assert answer["kv_bytes_per_token"] == 147_456
    assert answer["fits"] is True
    assert len(data["splits"]) == 3
    for heading in (
        "Model and memory",
        "Best latency",
        "Roofline",
        "Concurrency limits",
        "servetune tune --engine vllm",
    ):
        assert heading in text.stdout
    assert data["tune_commands"]["simple"] in text.stdout


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("view", "servetune report does that"),
        ("serve", "servetune simulate --serve does that"),
        ("estimat", "did you mean estimate"),
    ],
)
def test_a_command_of_another_tool_or_misspelt_is_answered_with_ours(called, word, hint):
    done = called(word, "--data-file", "X.json")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: unknown command '{word}'"
    assert hint in done.stderr


def test_every_word_of_another_tool_leads_to_a_verb():
    from servetune.cli.main import _ELSEWHERE, _OTHER_NAMES, VERBS

    others = [*_ELSEWHERE.values(), *(ours for ours, _ in _OTHER_NAMES.values())]
    assert all(ours.split()[0] in VERBS for ours in others)
    assert not (_ELSEWHERE.keys() | _OTHER_NAMES.keys()) & VERBS.keys()
