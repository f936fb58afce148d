"""How the servers of a run are started and asked, and what a plan is started with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from servetune.engines import Engine, filled_command
from servetune.plan import Plan
from servetune.servers import ExternalServer, ServerProcess, claimed_port
from servetune.servers.launchers import (
    Container,
    Placement,
    docker_command,
    passed_names,
    version_in_tag,
)
from servetune.trials.retry import DEFAULT_RETRIES

__all__ = [
    "DEFAULT_PORT",
    "Launch",
    "Server",
    "free_path",
    "port_for",
    "server_command",
    "version_of",
    "written",
]

DEFAULT_PORT = 8000

#: Ours, with a process and a log, or somebody's, with neither.
Server = ServerProcess | ExternalServer


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are started and asked.

    Attributes:
        executable: Path of the engine; `None` for the one that is found.
        container: In which the command runs, by Docker; `None` for a plain process.
        environment: Further variables of the server, stronger than those that it inherits.
        passed: Names of variables that a container, or a node of a cluster, shall have as they
            are here.
        folder: Where it works; `None` is where servetune does.
        server_cmd: Command that stands in for the engine's own; settings are appended.
        url: Of a server that is there already, for an engine that starts none.
        port: `None` for a free one.
        ready_path: `None` for the engine's own.
        ready_timeout_s: From start to ready.
        request_timeout_s: Per request.
        rest_s: Pause between two trials on one server.
        retries: How often a start or a trial is tried again at most; see `retry`.
        early_stop: Whether a trial ends when it plainly misses a constraint.
        max_trial_s: After which a trial ends with what it has; `None` for no limit.
        load_node: Node of the Ray cluster that sends the load, by Ray's id, where it is not
            this machine; a core of it is set aside already.
    """

    executable: str | None = None
    container: Container | None = None
    environment: dict[str, str] = {}
    passed: tuple[str, ...] = ()
    folder: Path | None = None
    server_cmd: str | None = None
    url: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    ready_path: str | None = None
    ready_timeout_s: float = 600.0
    request_timeout_s: float = 600.0
    rest_s: float = 0.0
    retries: int = DEFAULT_RETRIES
    early_stop: bool = True
    max_trial_s: float | None = None
    load_node: str | None = None


@contextmanager
def port_for(engine: Engine, launch: Launch) -> Iterator[int]:
    """A port for one server, for as long as this lasts; a server that is there has its own.

    Raises:
        PortBusy: The one that was named is another server's of ours.
    """
    if not engine.starts_servers:
        yield 0
        return
    with claimed_port(launch.host, launch.port) as port:
        yield port


def version_of(engine: Engine, launch: Launch, executable: tuple[str, ...]) -> str | None:
    """Of the engine that will be started: the program's own, or what its image's tag says.

    `None` where neither tells, and where the user's own command starts the server.
    """
    if launch.server_cmd is not None:
        return None
    if launch.container is not None:
        return version_in_tag(launch.container.image, engine.name)
    return engine.version(executable) if executable else None


def server_command(
    engine: Engine,
    plan: Plan,
    launch: Launch,
    *,
    settings: dict[str, Any],
    executable: tuple[str, ...] | None,
    port: int,
    version: str | None = None,
    placement: Placement | None = None,
    wished: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The words that start a server: the engine's own, or the user's with its places filled.

    In a container the place and the environment are among the words.

    Args:
        engine: Whose words they are.
        plan: What is served.
        launch: How.
        settings: Of the server.
        executable: The engine's first words; `None` for those it has on any machine.
        port: Where it listens.
        version: Of the engine, whose words change with it; `None` for the newest that is known.
        placement: Its devices and cores.
        wished: Environment that the trials want besides the engine's own.
    """
    if not engine.starts_servers:
        return ()
    if launch.server_cmd is None:
        command = engine.command(
            plan, host=launch.host, port=port, executable=executable, version=version
        )
    else:
        command = filled_command(
            launch.server_cmd,
            model=plan.model,
            host=launch.host,
            port=port,
            settings=settings,
            spell=engine.server_cmd_args,
        )
    if launch.container is None:
        return command
    return docker_command(
        launch.container,
        command,
        port=port,
        environment={**engine.environment(plan), **(wished or {}), **launch.environment},
        passed=[
            name
            for name in dict.fromkeys((*passed_names(), *launch.passed))
            if name not in launch.environment
        ],
        placement=placement,
    )


def written(command: tuple[str, ...], launch: Launch) -> str:
    """A server's command for a shell, with the variables that the user gave to it."""
    if not command or launch.container is not None or not launch.environment:
        return shlex.join(command)
    said = (f"{name}={value}" for name, value in launch.environment.items())
    return shlex.join(("env", *said, *command))


def free_path(path: Path) -> Path:
    """The path, or with a number behind its stem: logs of earlier trials are kept."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
