"""Server processes of a Plan: the engine's command line in a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from servetune.engines.engine import Engine
from servetune.plan.plan import Plan
from servetune.servers.process import ServerOptions, ServerProcess


def launch_environment(
    engine: Engine, plan: Plan, chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The server's whole environment: the engine's wishes, below the user's own, below `chosen`.

    What the plan itself says by a variable is stronger than the user's own: it is what is tried.
    """
    planned = engine.plan_variables(plan)
    return {**engine.environment(plan), **os.environ, **planned, **(chosen or {})}


def server_of(
    engine: Engine,
    plan: Plan,
    *,
    log_path: Path,
    port: int,
    host: str = "127.0.0.1",
    executable: tuple[str, ...] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """The server that an engine would run for a plan, not yet started.

    Args:
        engine: Engine to start.
        plan: Plan to be served.
        log_path: File for its output.
        port: Port to listen on.
        host: Address to listen on.
        executable: The program's first words; `None` finds it on this machine.
        environment: Added to servetune's own environment, and stronger.

    Raises:
        EngineError: The engine is not installed.
        PlanError: The plan sets what servetune itself decides.
    """
    executable = executable or engine.find_executable()
    return ServerProcess(
        engine.command(
            plan,
            host=host,
            port=port,
            executable=executable,
            version=engine.version(executable),
        ),
        log_path=log_path,
        port=port,
        host=host,
        options=ServerOptions(
            name=engine.name,
            ready_path=engine.ready_path,
            environment=launch_environment(engine, plan, environment),
            explain=engine.explain,
        ),
    )
