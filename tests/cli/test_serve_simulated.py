"""One option turns a command into the server's, whatever else that command takes."""

import click
import pytest
from click.testing import CliRunner

from servetune.cli.serve_simulated import Servable


@click.command(cls=Servable)
@click.option("--model", required=True)
@click.option("--gpu", default=None)
def simulate(*, model, gpu):
    click.echo(f"simulated {model} on {gpu}")


@click.group()
def cli():
    pass


cli.add_command(simulate, "simulate")


def run(*words):
    return CliRunner().invoke(cli, ["simulate", *words])


def test_without_serve_the_command_is_what_it_was():
    assert run("--model", "m", "--gpu", "L4").output == "simulated m on L4\n"
    assert "--serve" in run("--help").output
    assert run("--model", "m", "--max-num-seqs", "8").exit_code == 2


@pytest.mark.parametrize("words", [("--serve", "--help"), ("-h", "--serve")])
def test_with_serve_help_is_the_servers(words):
    said = run(*words).output
    assert "ENGINE_ARGS" in said
    assert "--oom-at-start" in said


def test_with_serve_the_engines_words_are_read_and_refused_before_anything_starts():
    done = run("--serve", "Qwen/Qwen3-4B", "--gpu", "L4", "--max-num-seq", "8")
    assert done.exception.message == "unrecognized arguments: --max-num-seq"
    assert run("--serve", "--gpu", "L4").exception.message == "no model is named"


def test_a_plan_that_the_engine_refuses_ends_as_its_log_does(capsys):
    words = ("--serve", "Qwen/Qwen3-4B", "--gpu", "L4", "--max-model-len", "100000")
    assert cli.main(["simulate", *words], standalone_mode=False) == 1
    assert "ValueError: max_model_len 100000" in capsys.readouterr().err
