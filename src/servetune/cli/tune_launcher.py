"""How `tune` starts servers: as plain processes, or in containers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from servetune.engines import Engine
from servetune.engines.launchers import Container
from servetune.errors import EngineError, InputError
from servetune.hardware import Node

__all__ = [
    "LAUNCHERS",
    "container_of",
    "launcher_options",
    "require_docker",
    "require_launcher",
]

LAUNCHERS = ("process", "docker")

Command = Callable[..., Any]


def launcher_options(command: Command) -> Command:
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
    launcher: str, image: str | None, spoken: Engine, *, simulated: bool, cluster: bool
) -> None:
    """Refuse options that do not go together.

    Raises:
        InputError: Such are given.
    """
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


def require_docker() -> None:
    """Refuse, before anything starts, a machine without the Docker command line.

    Raises:
        EngineError: It is not there.
    """
    if shutil.which("docker") is None:
        raise EngineError(
            "docker is not on PATH, and --launcher docker starts servers with it",
            hint="install Docker, or use --launcher process",
        )
