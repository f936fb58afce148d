"""Servers of a study: which program, where, with which environment; options of `tune`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.engines import DEFAULT_ENGINE, Engine
from servetune.errors import InputError
from servetune.hardware import Node
from servetune.models import NetworkShape
from servetune.option import NonNegative, Positive, option
from servetune.servers.launchers import container_for, environment_of
from servetune.trials import Launch, default_ready_timeout_s

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
"""TCP port."""


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Start and address of a study's servers."""

    group: ClassVar[str] = "Servers"

    launcher: Annotated[
        Literal["process", "docker"],
        option("Kind of server: a process of this machine, or a container on it."),
    ] = "process"
    image: Annotated[
        str | None,
        option("Container image with the engine, for --launcher docker.", metavar="IMAGE"),
    ] = None
    executable: Annotated[
        str | None,
        option(
            "Program of the engine.",
            "--executable",
            f"--{DEFAULT_ENGINE}-executable",
            metavar="PATH",
            default="that of the engine's environment variable, else the one on PATH",
        ),
    ] = None
    server_cmd: Annotated[
        str | None,
        option(
            "Command that starts the server in place of the engine's own; {model}, {host}, {port}, "
            "{settings} and {NAME} of a setting are filled in.",
            metavar="COMMAND",
        ),
    ] = None
    server_env: Annotated[
        tuple[str, ...],
        option(
            "Environment variable of the servers, repeated for several; NAME alone copies this "
            "process's value, also into a container.",
            metavar="NAME[=VALUE]",
        ),
    ] = ()
    server_folder: Annotated[
        Path | None,
        option("Working directory of the servers.", metavar="DIR", default="the current one"),
    ] = None
    url: Annotated[
        str | None,
        option(
            "Address of the server of --engine external, which is neither started nor stopped.",
            metavar="URL",
        ),
    ] = None
    host: Annotated[str, option("Address that servers listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[
        Port | None,
        option("Port that servers listen on.", metavar="PORT", default="a free one"),
    ] = None
    ready_endpoint: Annotated[
        str | None,
        option(
            "Path of the server that answers 200 when it is ready.",
            metavar="PATH",
            default="the engine's",
        ),
    ] = None
    ready_timeout_s: Annotated[
        Positive | None,
        option(
            "Seconds that a server may take to become ready.",
            "--server-timeout",
            metavar="S",
            default="600, and more for large models",
        ),
    ] = None
    request_timeout_s: Annotated[
        Positive,
        option("Seconds after which a request counts as failed.", "--request-timeout", metavar="S"),
    ] = 600.0
    rest_s: Annotated[
        NonNegative,
        option("Pause between two trials on one server, in seconds.", "--rest", metavar="S"),
    ] = 0.0

    def environment(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Variables by value, and names of those to copy from this process.

        Raises:
            InputError: A variable cannot be given.
        """
        return environment_of(self.server_env)

    def require_fit(self, engine: Engine, *, simulated: bool, cluster: bool) -> None:
        """Refuse options that contradict one another, the engine or the place of the servers.

        Args:
            engine: Engine of the servers.
            simulated: Whether trials are simulated.
            cluster: Whether servers run on the nodes of a cluster.

        Raises:
            InputError: Two options contradict, or a folder is not there.
        """
        starts = engine.starts_servers and not simulated
        given: Mapping[str, object] = {
            "--server-env": self.server_env,
            "--server-folder": self.server_folder,
        }
        for name, value in given.items():
            if value and not starts:
                raise InputError(
                    f"{name} is for servers that servetune starts", hint="leave it out"
                )
        if self.server_folder is not None and not self.server_folder.is_dir():
            raise InputError(
                f"--server-folder {self.server_folder} does not exist",
                hint="give a directory of this machine",
            )
        if self.launcher == "docker":
            self._require_container(engine, starts=starts, cluster=cluster)
        elif self.image is not None:
            raise InputError("--image is for --launcher docker", hint="add it, or leave both out")

    def _require_container(self, engine: Engine, *, starts: bool, cluster: bool) -> None:
        if not starts:
            raise InputError(
                "--launcher docker needs an engine whose servers are started", hint="leave it out"
            )
        if cluster:
            raise InputError(
                "--launcher docker is for this machine, and --cluster runs servers on others",
                hint="leave one of them out",
            )
        if self.server_folder is not None:
            raise InputError(
                "--server-folder is for processes, and a container has folders of its own",
                hint="leave it out; the image says where its servers work",
            )
        if self.image is None:
            name = engine.shipping.image if engine.shipping else "NAME"
            raise InputError(
                "--launcher docker needs the engine's image", hint=f"such as --image {name}:TAG"
            )

    def launch(self, model: str, node: Node, shape: NetworkShape | None) -> Launch:
        """Start options of a model's servers on a machine; the schedule's part is not set.

        Raises:
            InputError: No container can have the machine's devices or the model's folder.
        """
        environment, copied = self.environment()
        ready_timeout_s = self.ready_timeout_s
        if ready_timeout_s is None:
            ready_timeout_s = default_ready_timeout_s(shape)
        return Launch(
            executable=self.executable,
            container=container_for(self.image, model, node.device) if self.image else None,
            environment=environment,
            passed=copied,
            folder=self.server_folder.resolve() if self.server_folder else None,
            server_cmd=self.server_cmd,
            url=self.url,
            host=self.host,
            port=self.port,
            ready_path=self.ready_endpoint,
            ready_timeout_s=ready_timeout_s,
            request_timeout_s=self.request_timeout_s,
            rest_s=self.rest_s,
        )
