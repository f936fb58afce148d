"""`servetune completion`: a shell's script that completes commands, options and known values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script with which a shell completes commands, options, models and machines.

    \b
    eval "$(servetune completion bash)"            # in ~/.bashrc
    eval "$(servetune completion zsh)"             # in ~/.zshrc
    servetune completion fish | source             # in ~/.config/fish/config.fish
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    known = get_completion_class(shell)
    assert known is not None, "click completes each of these shells"
    root = context.find_root().command
    click.echo(known(root, {}, "servetune", "_SERVETUNE_COMPLETE").source())
    return 0
