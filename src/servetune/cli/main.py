"""Command `servetune`: dispatch to verbs, and errors as one line, a hint and an exit status."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import click

from servetune import __version__
from servetune.cli.terminal import guard_streams
from servetune.errors import ExitStatus, ServetuneError, UnknownName
from servetune.secret import redacted_text

#: Module, command and summary of each verb. A verb's module is imported when it is called, so that
#: help starts fast.
VERBS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "estimate": (
            "servetune.cli.estimate:estimate",
            "Predict fit, latency, throughput and cost of a model.",
        ),
        "simulate": (
            "servetune.cli.simulate:simulate",
            "Simulate a load in virtual time, request by request.",
        ),
        "bench": (
            "servetune.cli.bench:bench",
            "Load running servers, timed to the token.",
        ),
        "tune": (
            "servetune.cli.tune:tune",
            "Measure or simulate many configurations.",
        ),
        "workloads": (
            "servetune.cli.workloads:workloads",
            "List, check and sample workloads; learn one from a log.",
        ),
        "report": ("servetune.cli.report:report", "Write summary and dashboard of a journal."),
        "ui": ("servetune.cli.ui:ui", "Serve pages that follow running trials."),
        "mcp": ("servetune.cli.mcp:mcp", "Serve tools to agents (Model Context Protocol)."),
        "recommend": (
            "servetune.cli.recommend:recommend",
            "Recommend a configuration, with reasons.",
        ),
        "compare": (
            "servetune.cli.compare:compare",
            "Compare runs before and now; a gate for CI.",
        ),
        "fleet": (
            "servetune.cli.fleet:fleet",
            "Size a fleet for a traffic or a day, at the least cost.",
        ),
        "calibrate": (
            "servetune.cli.calibrate:calibrate",
            "Correct predictions by measured trials.",
        ),
        "deploy": (
            "servetune.cli.deploy:deploy",
            "Deploy a measured configuration to a target.",
        ),
        "runs": (
            "servetune.cli.runs:runs",
            "List, compare, export and query runs and deployments.",
        ),
        "register": (
            "servetune.cli.runs:register",
            "Register a deployment that was made by other means.",
        ),
        "stage": ("servetune.cli.stage:stage", "Upload a model to S3, resumable and verified."),
        "completion": (
            "servetune.cli.completion:completion",
            "Print a shell's script of completions.",
        ),
        "doctor": (
            "servetune.cli.doctor:doctor",
            "Check this machine; findings with remedies.",
        ),
    }
)


#: Words of other tools for what a verb does.
_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "benchmark": "bench",
        "diff": "compare",
        "gate": "compare",
        "optimize": "tune",
        "plot": "report",
        "predict": "estimate",
        "profile": "bench",
        "serve": "simulate --serve",
        "sweep": "tune",
        "view": "report",
    }
)
#: Words of other tools that are commands here, too, with their option for what is an argument here.
_OTHER_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType({"visualize": ("ui", "--data-file")})


class Verbs(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of a command line; another tool's word for it names ours.

        Raises:
            UnknownName: There is no such verb.
        """
        if args[0] in _OTHER_NAMES:
            ours, option = _OTHER_NAMES[args[0]]
            rest = (word.removeprefix(f"{option}=") for word in args[1:] if word != option)
            args = [ours, *rest]
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            other = _ELSEWHERE.get(name)
            raise UnknownName(
                "command", name, VERBS, hint=f"servetune {other} does that" if other else ""
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a reader that went away (`| head`) is no error of ours."""
        try:
            status = super().invoke(ctx)
            if sys.stdout is not None:  # it was closed before we began (`>&-`)
                sys.stdout.flush()
        except BrokenPipeError:
            return 0
        finally:
            _let_go_of_gone_readers()
        return status

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _let_go_of_gone_readers() -> None:
    """Have nothing written at exit to a reader that went away; Python would exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # it was closed before we began
            continue
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.group(
    cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, prog_name="servetune")
def cli() -> None:
    """Find, prove and ship the best way to serve a large language model."""


def main(command: click.Command = cli) -> None:
    """Run the command line, or one command as if it were all of it, and exit: 0 done,
    1 target missed, 2 usage or plan, 3 engine or server, 4 deploy, 130 interrupted.
    """
    guard_streams()
    _print_notes()
    sys.excepthook = _print_traceback
    # Records are many small objects without cycles: a third of the time to read a long journal
    # went into looking for them.
    gc.set_threshold(100_000, 50, 100)
    try:
        status = command.main(standalone_mode=False)
        code = status if isinstance(status, int) else 0
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        code = ExitStatus.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:  # nothing was asked, nothing went wrong
        print(error.format_message(), file=sys.stderr)
        code = error.exit_code
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        _complain(message[:1].lower() + message[1:], _help_of(error))
        code = error.exit_code
    except ServetuneError as error:
        _complain(error.message, error.hint)
        code = error.exit_code
    except OSError as error:
        _complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        code = 2
    sys.exit(code)


def _print_traceback(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Print what was not foreseen, without credentials."""
    import traceback

    print(redacted_text("".join(traceback.format_exception(kind, error, frames))), file=sys.stderr)


class _Terminal(logging.Handler):
    """Notes and progress of the library, a line each on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        from servetune.cli.output import echo

        echo(record.getMessage())


def _print_notes() -> None:
    logger = logging.getLogger("servetune")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_Terminal()]


def _complain(message: str, hint: str = "") -> None:
    print(f"error: {redacted_text(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {redacted_text(hint)}", file=sys.stderr)


def _help_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path} --help" if context else ""
