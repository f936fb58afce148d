"""Options of starting servers, and the command that starts one for a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from servetune.engines import Engine, filled_command
from servetune.json_value import JsonObject
from servetune.models import NetworkShape
from servetune.models.counting import weight_bytes
from servetune.plan import Plan
from servetune.servers import ExternalServer, ServerCopies, ServerProcess, claimed_port
from servetune.servers.launchers import (
    Container,
    Placement,
    docker_command,
    passed_names,
    version_in_tag,
)
from servetune.trials.retry import DEFAULT_RETRIES
from servetune.units import GB

DEFAULT_PORT = 8000
#: A server that loads nothing may still import and compile for minutes.
LEAST_READY_S = 600.0
#: Reading speed of a disk whose files are not in memory; network storage is often no faster.
COLD_BYTES_PER_S = 0.2 * GB

#: Server that servetune started, with a process and a log, copies of one, or one that was there
#: already.
Server = ServerProcess | ServerCopies | ExternalServer


class EngineProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Engine as it is installed on the machine of a server.

    Attributes:
        engine: Engine whose options and log the server has.
        executable: First words of its command; empty where the user's command stands in, or
            where a container has the program.
        version: Release, which decides the options; `None` where it is not known.
    """

    engine: Engine
    executable: tuple[str, ...] = ()
    version: str | None = None

    @classmethod
    def installed(cls, engine: Engine, executable: str | None = None) -> EngineProgram:
        """Program on this machine.

        Args:
            engine: Engine to look for.
            executable: Path of its program; `None` for the one that is found.

        Raises:
            EngineError: It is not installed.
        """
        words = engine.find_executable(executable)
        return cls(engine=engine, executable=words, version=engine.version(words))


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Options of starting servers and of waiting for them.

    Attributes:
        executable: Path of the engine; `None` for the one that is found.
        container: Docker container that the command runs in; `None` for a plain process.
        environment: Further variables of the server, which override those that it inherits.
        passed: Names of variables that a container, or a node of a cluster, gets with the
            values that they have here.
        folder: Working directory of the server; `None` for servetune's own.
        server_cmd: Command that stands in for the engine's own; settings are appended.
        url: URL of a server that exists already, for an engine that starts none.
        api_key_env: Environment variable that holds the key for requests to the server.
        cafile: File of certificates to trust instead of the system's.
        trace_headers: Whether each request has a `traceparent` header, of one run per trial.
        spans: Whether the study's spans are sent: the requests of a server are of one trace then,
            and have the header.
        processes: Sender processes of a trial's load; `auto` starts another one when all are busy.
        host: Address that the server listens at.
        port: Port of the server; `None` for a free one.
        ready_path: Path that answers once the server is ready; `None` for the engine's own.
        ready_timeout_s: Time limit from the start of the server until it is ready.
        request_timeout_s: Time limit of each request.
        rest_s: Pause between two trials on one server.
        retries: Largest number of times that a start or a trial is tried again; see `retry`.
        early_stop: Whether a trial ends when it plainly misses a constraint.
        max_trial_s: Time after which a trial ends with what it has; `None` for no limit.
    """

    executable: str | None = None
    container: Container | None = None
    environment: dict[str, str] = {}
    passed: tuple[str, ...] = ()
    folder: Path | None = None
    server_cmd: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    cafile: str | None = None
    trace_headers: bool = False
    spans: bool = False
    processes: int | Literal["auto"] = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    ready_path: str | None = None
    ready_timeout_s: float = 600.0
    request_timeout_s: float = 600.0
    rest_s: float = 0.0
    retries: int = DEFAULT_RETRIES
    early_stop: bool = True
    max_trial_s: float | None = None


def default_ready_timeout_s(shape: NetworkShape | None) -> float:
    """Seconds that a server may take to become ready, by the weights that it has to read.

    Ten minutes for everything else, and the weights from a cold disk at 0.2 GB/s.
    """
    return LEAST_READY_S + (weight_bytes(shape) if shape is not None else 0.0) / COLD_BYTES_PER_S


@contextmanager
def ports_for(engine: Engine, launch: Launch, count: int = 1) -> Iterator[tuple[int, ...]]:
    """Ports for the copies of a server, claimed for the duration of the context.

    An external server has 0.

    Raises:
        PortBusy: Another server of servetune has the port that was named.
    """
    if not engine.starts_servers:
        yield (0,)
        return
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(claimed_port(launch.host, launch.port)) for _ in range(count)
        )


def one_copy(plan: Plan) -> Plan:
    """Plan of each copy of a server; no engine has a setting for their number."""
    return plan if plan.replicas == 1 else msgspec.structs.replace(plan, replicas=1)


def version_of(engine: Engine, launch: Launch, executable: tuple[str, ...]) -> str | None:
    """Release of the engine that will be started, from the program or its image's tag.

    `None` where neither tells, and where the user's own command starts the server.
    """
    if launch.server_cmd is not None:
        return None
    if launch.container is not None:
        return version_in_tag(launch.container.image, engine.name)
    return engine.version(executable) if executable else None


def server_command(
    program: EngineProgram,
    plan: Plan,
    launch: Launch,
    *,
    settings: JsonObject,
    port: int,
    placement: Placement | None = None,
    extra_environment: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Command that starts a server: the engine's own, or the user's with its fields filled.

    For a container the placement and the environment are part of the command.

    Args:
        program: Engine and its release.
        plan: Plan that is served; of several copies the command starts one.
        launch: Options of starting servers.
        settings: Settings of the server, in the engine's words.
        port: Port that it listens at.
        placement: Devices and cores of the server.
        extra_environment: Variables that the trials need besides the engine's own.
    """
    engine, plan = program.engine, one_copy(plan)
    if not engine.starts_servers:
        return ()
    if launch.server_cmd is None:
        command = engine.command(
            plan,
            host=launch.host,
            port=port,
            executable=program.executable or None,
            version=program.version,
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
        environment={**engine.environment(plan), **(extra_environment or {}), **launch.environment},
        passed=[
            name
            for name in dict.fromkeys((*passed_names(), *launch.passed))
            if name not in launch.environment
        ],
        placement=placement,
    )


def written(command: tuple[str, ...], launch: Launch, copies: int = 1) -> str:
    """Command of a server as a shell takes it, with the variables that the user gave.

    A comment says of how many copies it starts one.
    """
    if command and launch.container is None and launch.environment:
        command = (
            "env",
            *(f"{name}={value}" for name, value in launch.environment.items()),
            *command,
        )
    text = shlex.join(command)
    if not text or copies == 1:
        return text
    return f"{text}  # one of {copies} copies, each on devices and a port of its own"


def free_path(path: Path) -> Path:
    """Path that is not taken, with a number behind its stem: logs of earlier trials are kept."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
