"""Checks before the first server of a study is started."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.engines import Engine, words_of
from servetune.errors import EngineError, InputError
from servetune.hardware import Node
from servetune.servers import ExternalServer, require_free_port
from servetune.servers.gpus import Card
from servetune.servers.launchers import require_docker
from servetune.trials.launch import Launch, one_copy, version_of
from servetune.trials.trial import Trial


def require_launch(engine: Engine, launch: Launch) -> None:
    """Refuse a launch that the engine cannot have.

    Raises:
        InputError: `external` without a URL, `command` without a command, or the other way round.
    """
    if not engine.starts_servers:
        if not launch.url:
            raise InputError(
                "--engine external needs the server's address",
                hint="give --url http://HOST:PORT",
            )
        if launch.server_cmd is not None:
            raise InputError(
                "--engine external starts nothing, and --server-cmd starts a server",
                hint="leave one of them out",
            )
        ExternalServer(launch.url)
    elif launch.url:
        raise InputError("--url is for a server that runs already", hint="add --engine external")
    if engine.needs_command and launch.server_cmd is None:
        raise InputError(
            "--engine command needs a command line",
            hint="give --server-cmd 'PROGRAM {model} --port {port} {settings}'",
        )
    if launch.server_cmd is not None:
        words_of(launch.server_cmd)


def require_server(
    engine: Engine,
    launch: Launch,
    groups: Sequence[list[Trial]],
    *,
    dry_run: bool,
    allow_unknown: bool = False,
) -> tuple[str, ...]:
    """Refuse what no server could be started with.

    Args:
        engine: Engine of the servers.
        launch: Start options of the servers.
        groups: Trials by server configuration.
        dry_run: Whether nothing will be started, so that nothing need be installed.
        allow_unknown: Whether settings that no table has are passed on.

    Returns:
        Notes on settings that the installed version could not be asked about.

    Raises:
        EngineError: The engine, or Docker where it runs in a container, is not installed.
        InputError: Copies of a server are to be started where only one can be.
        PlanError: The engine has no such setting, or it cannot have that value.
        PortBusy: Another process listens on the port that was named.
    """
    _require_copies(engine, launch, groups)
    executable: tuple[str, ...] = ()
    own_command = launch.server_cmd is None
    if launch.container is not None and not dry_run:
        require_docker()
    elif own_command and not dry_run:
        try:
            executable = engine.find_executable(launch.executable)
        except EngineError as error:
            if engine.simulated_as:
                error.hint += (
                    f"; with --engine {engine.simulated_as} and --gpu the same runs without any"
                )
            raise
    notes: dict[str, None] = {}
    if own_command:
        version = version_of(engine, launch, executable)
        for plan in {one_copy(group[0].plan): None for group in groups if group}:
            found = engine.check(
                plan,
                version=version,
                executable=executable or None,
                allow_unknown=allow_unknown,
            )
            notes.update(dict.fromkeys(found))
    if launch.port is not None and engine.starts_servers and not dry_run:
        require_free_port(launch.host, launch.port)
    return () if dry_run else tuple(notes)


def _require_copies(engine: Engine, launch: Launch, groups: Sequence[list[Trial]]) -> None:
    """Refuse copies of a server that is not started, or whose port is named.

    Raises:
        InputError: They are asked for.
    """
    if all(group[0].plan.replicas == 1 for group in groups if group):
        return
    if not engine.starts_servers:
        raise InputError(
            "replicas starts copies of a server, and --engine external starts none",
            hint="leave it out; bench spreads a load over several URLs",
        )
    if launch.port is not None:
        raise InputError(
            "copies of a server cannot all have one port", hint="leave --port or replicas out"
        )


def require_idle_gpus(visible: Sequence[Card], node: Node, groups: Sequence[list[Trial]]) -> None:
    """Refuse plans that need more GPUs than are visible, and GPUs that another process uses.

    Args:
        visible: GPUs that can be used here; none where that is not known.
        node: Machine that trials run on.
        groups: Trials by server configuration.

    Raises:
        EngineError: There are too few, or one of those that servers would use is busy.
    """
    if not visible:
        return
    most = max((trial.plan.device_count for group in groups for trial in group), default=0)
    if most > len(visible):
        raise EngineError(
            f"a plan needs {most} GPUs and {len(visible)} are visible here",
            hint="use a smaller tensor_parallel_size, or add devices to CUDA_VISIBLE_DEVICES",
        )
    busy = [card for card in visible[: node.device_count] if not card.idle]
    if busy:
        raise EngineError(
            busy[0].label + (f", and {len(busy) - 1} more GPUs are busy" if busy[1:] else ""),
            hint="end what uses it, or choose others with CUDA_VISIBLE_DEVICES and --num-gpus",
        )
