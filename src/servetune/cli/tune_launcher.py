"""How `tune` starts servers: as plain processes, or in containers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from servetune.engines import Engine
from servetune.errors import EngineError, InputError
from servetune.hardware import Node
from servetune.secret import is_secret_name, looks_secret
from servetune.servers.launchers import Container, daemon_version
from servetune.servers.leftovers import MARKS

__all__ = [
    "LAUNCHERS",
    "container_of",
    "environment_of",
    "launcher_options",
    "require_docker",
    "require_launcher",
]

LAUNCHERS = ("process", "docker")

Command = Callable[..., Any]


#: What servetune gives to each server, or marks it with.
_DECIDED = ("CUDA_VISIBLE_DEVICES", *MARKS)


def launcher_options(command: Command) -> Command:
    command = click.option(
        "--server-folder",
        type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
        default=None,
        help="Where servers work. [default: here]",
    )(command)
    command = click.option(
        "--server-env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="A variable of the servers' environment; NAME alone hands on this one's, also into "
        "a container. May be given several times.",
    )(command)
    command = click.option(
        "--image", default=None, metavar="IMAGE", help="With the engine, for --launcher docker."
    )(command)
    return click.option(
        "--launcher",
        type=click.Choice(LAUNCHERS),
        default="process",
        show_default=True,
        help="What servers run as: processes of this machine, or containers on it.",
    )(command)


def require_launcher(
    launcher: str,
    image: str | None,
    spoken: Engine,
    *,
    simulated: bool,
    cluster: bool,
    server_env: Sequence[str] = (),
    folder: Path | None = None,
) -> None:
    """Refuse options that do not go together.

    Raises:
        InputError: Such are given.
    """
    for option, given in (("--server-env", server_env), ("--server-folder", folder)):
        if given and (simulated or not spoken.starts_servers):
            raise InputError(f"{option} is about servers that are started", hint="leave it out")
    if launcher == "process":
        if image is not None:
            raise InputError("--image is for --launcher docker", hint="add it, or leave both out")
        return
    if simulated or not spoken.starts_servers:
        raise InputError(
            "--launcher docker needs an engine whose servers are started", hint="leave it out"
        )
    if cluster:
        raise InputError(
            "--launcher docker is for this machine, and --cluster runs servers on others",
            hint="leave one of them out",
        )
    if folder is not None:
        raise InputError(
            "--server-folder is about processes, and a container has folders of its own",
            hint="leave it out; the image says where its servers work",
        )
    if image is None:
        raise InputError(
            "--launcher docker needs the engine's image",
            hint="such as --image vllm/vllm-openai:v0.32.0",
        )


def container_of(image: str | None, model: str, node: Node) -> Container | None:
    """What servers' containers are given; `None` for plain processes.

    A model's folder is at the same place inside, and the hub's downloads are shared.

    Raises:
        InputError: Docker has no words for the devices, or the model's folder has no whole path.
    """
    if image is None:
        return None
    on_gpus = node.device.architecture != "cpu"
    if on_gpus and node.device.vendor != "NVIDIA":
        raise InputError(
            f"--launcher docker hands on NVIDIA's GPUs, and {node.device.name} is "
            f"{node.device.vendor}'s",
            hint="use --launcher process",
        )
    folder = Path(model)
    if folder.is_dir() and not folder.is_absolute():
        raise InputError(
            f"--model {model} is a folder below the current one, which a container has not",
            hint=f"give its whole path: --model {folder.absolute()}",
        )
    hub = Path(os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface")))
    return Container(
        image=image,
        mounts=(folder,) if folder.is_dir() else (),
        hub=hub if hub.is_dir() else None,
        gpus=on_gpus,
    )


def environment_of(given: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What `--server-env` says: variables with their values, and names to be handed on.

    Raises:
        InputError: A name cannot be one, is not set here, is servetune's to give, or is a
            secret's with its value, which would stand in the journal.
    """
    chosen: dict[str, str] = {}
    passed: dict[str, None] = {}
    for one in given:
        name, has_value, value = one.partition("=")
        _require_variable(name, value if has_value else None)
        if has_value:
            chosen[name] = value
        else:
            passed[name] = None
    return chosen, tuple(passed)


def _require_variable(name: str, value: str | None) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise InputError(
            f"--server-env {name}: that is no name of a variable", hint="give NAME or NAME=VALUE"
        )
    if name in _DECIDED:
        raise InputError(
            f"{name} is decided by servetune and cannot be given by --server-env",
            hint="set CUDA_VISIBLE_DEVICES for servetune itself",
        )
    if value is None and name not in os.environ:
        raise InputError(f"--server-env {name}: it is not set here", hint="give NAME=VALUE")
    if value is not None and (is_secret_name(name) or looks_secret(value)):
        raise InputError(
            f"--server-env {name}=...: a secret would stand in the journal",
            hint=f"set it here and hand it on by its name: --server-env {name}",
        )


def require_docker() -> None:
    """Refuse, before anything starts, a machine without the Docker command line or its daemon.

    Raises:
        EngineError: It is not there.
    """
    if shutil.which("docker") is None:
        raise EngineError(
            "docker is not on PATH, and --launcher docker starts servers with it",
            hint="install Docker, or use --launcher process",
        )
    if daemon_version() is None:
        raise EngineError(
            "Docker's daemon does not answer, and --launcher docker starts servers with it",
            hint="see what `docker version` says: start it (systemctl start docker), or join the "
            "group docker",
        )
