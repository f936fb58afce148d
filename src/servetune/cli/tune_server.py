"""What `servetune tune` refuses before the first server is started."""

from __future__ import annotations

import re
from collections.abc import Iterable

from servetune.cli.output import echo
from servetune.cli.tune_launcher import require_docker
from servetune.engines import Engine, words_of
from servetune.errors import EngineError, InputError
from servetune.servers import ExternalServer, require_free_port
from servetune.trials import Launch, Trial
from servetune.trials.launch import version_of

__all__ = ["needed_client_args", "require_launch", "require_server"]


def needed_client_args(spoken: Engine, given: Iterable[str]) -> list[str]:
    """What the engine's clients need and the user has not said, as further client arguments."""
    text = ";".join(given)
    needed = [
        f"{name}={value}"
        for name, value in spoken.client_args.items()
        if not re.search(rf"(?:^|[;\s]){name}\s*=", text)
    ]
    if needed:
        echo(f"note: {spoken.title} is asked with --client-args {';'.join(needed)}")
    return needed


def require_launch(spoken: Engine, launch: Launch) -> None:
    """Refuse options that the engine cannot go with.

    Raises:
        InputError: `external` without a URL, `command` without a command, or the other way round.
    """
    if not spoken.starts_servers:
        if not launch.url:
            raise InputError(
                "--engine external needs to know where the server is",
                hint="give --url http://HOST:PORT",
            )
        if launch.server_cmd is not None:
            raise InputError(
                "--engine external starts nothing, and --server-cmd starts a server",
                hint="leave one of them out",
            )
        ExternalServer(launch.url)
    elif launch.url:
        raise InputError(
            "--url is for a server that is there already", hint="add --engine external"
        )
    if spoken.needs_command and launch.server_cmd is None:
        raise InputError(
            "--engine command needs a command line",
            hint="give --server-cmd 'PROGRAM {model} --port {port} {settings}'",
        )
    if launch.server_cmd is not None:
        words_of(launch.server_cmd)


def require_server(
    spoken: Engine, launch: Launch, groups: Iterable[list[Trial]], *, dry_run: bool
) -> None:
    """Refuse what no server could be started with; say what stands in for the unknown.

    Raises:
        EngineError: The engine, or Docker where it is to run in a container, is not installed.
        PlanError: The engine has no such setting, or it cannot have that value.
        PortBusy: Somebody listens on the port that was named.
    """
    executable: tuple[str, ...] = ()
    own = launch.server_cmd is None
    if launch.container is not None and not dry_run:
        require_docker()
    elif own and not dry_run:
        try:
            executable = spoken.find_executable(launch.executable)
        except EngineError as error:
            if spoken.simulated_as:  # whose scheduler the simulation plays
                error.hint += "; with --engine simulated and --gpu the same runs without any"
            raise
    version = version_of(spoken, launch, executable)
    if own:
        plans = {group[0].plan: None for group in groups if group}
        notes: dict[str, None] = {}
        for plan in plans:
            said = spoken.check(plan, version=version, executable=executable or None)
            notes.update(dict.fromkeys(said))
        for note in () if dry_run else notes:
            echo(f"note: {note}")
    if launch.port is not None and spoken.starts_servers and not dry_run:
        require_free_port(launch.host, launch.port)
