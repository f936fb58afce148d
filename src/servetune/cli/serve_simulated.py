"""`servetune simulate --serve`: a simulated engine that answers HTTP."""

from __future__ import annotations

from typing import Any

import click

from servetune import api
from servetune.cli.derive import DerivedCommand, verb
from servetune.cli.output import echo
from servetune.errors import NotSimulated, PlanError


class ServerCommand(DerivedCommand):
    """A command whose options that it does not know are the engine's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {
            "ignore_unknown_options": True,
            "help_option_names": ["-h", "--help"],
        }


@verb(api.SimulationServer, command=ServerCommand)
def serve_command(request: api.SimulationServer) -> int:
    """Serve MODEL as a real engine would, with simulated timing and filler for text.

    ENGINE_ARGS are the engine's own, such as --max-num-seqs 64 --tensor-parallel-size 2
    --host 127.0.0.1 --port 8000 --served-model-name NAME; --seed seeds the faults. No
    accelerator is needed: the machine named with --gpu or --instance is simulated.

    \b
    servetune simulate --serve Qwen/Qwen3-4B --gpu L4 --max-num-seqs 64
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    try:
        api.serve_simulation(request)
    except NotSimulated:  # a real one would start: its log would not end so
        raise
    except PlanError as error:  # the end of a real server's log, and its status
        echo(f"ValueError: {error.message}")
        if error.hint:
            echo(f"hint: {error.hint}")
        return 1
    return 0


class Servable(DerivedCommand):
    """A command that `--serve` turns into another, whatever else its own words are.

    Attributes:
        text: Help of `--serve`.
    """

    text = "HTTP server that answers as the engine would; see simulate --serve --help."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--serve"],
                is_flag=True,
                expose_value=False,
                help=self.text,
            )
        )

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of this command, or of the other where `--serve` is among the words."""
        if "--serve" not in args:
            return super().make_context(info_name, args, parent, **extra)
        left = [word for word in args if word != "--serve"]
        return self.served().make_context(f"{info_name} --serve", left, parent, **extra)

    def served(self) -> click.Command:
        """The command that `--serve` turns this one into."""
        return serve_command


if __name__ == "__main__":
    from servetune.cli.main import main

    main(serve_command)
