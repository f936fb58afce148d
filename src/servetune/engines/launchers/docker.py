"""A server in a container, as words of the Docker command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from servetune.engines.launchers.placement import Placement

__all__ = ["Container", "docker_command"]

HUB = "/root/.cache/huggingface"


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What a server's container is given.

    Attributes:
        image: Name and tag.
        mounts: Folders of this machine, each at the same place inside, to read.
        hub: This machine's folder of downloaded models; `None` to download inside.
        shm_bytes: Of /dev/shm, through which tensor-parallel workers talk.
    """

    image: str
    mounts: tuple[Path, ...] = ()
    hub: Path | None = None
    shm_bytes: int = 16 << 30


def docker_command(
    container: Container,
    command: Sequence[str],
    *,
    port: int,
    environment: Mapping[str, str] | None = None,
    placement: Placement | None = None,
    gpus: bool = True,
) -> tuple[str, ...]:
    """The words that run a server's command in a container, in the foreground.

    The container goes when the server ends (`--rm`), hands on signals (`--init`), shares the
    host's network, so that the port is the server's own, and bears a name by which a leftover
    is found: `servetune-PORT`. The image's entry point is replaced by the command's first word.

    Args:
        container: What it is given.
        command: As it would run without a container.
        port: For the name.
        environment: What servetune sets; the user's own stays outside.
        placement: Its devices and cores. Inside, the devices are counted from 0, so that no
            `CUDA_VISIBLE_DEVICES` goes with them.
        gpus: Whether it sees any.
    """
    placement = placement or Placement()
    inside = sorted((environment or {}).items() - placement.environment({}).items())
    words = ["docker", "run", "--rm", "--init", f"--name=servetune-{port}", "--network=host"]
    words.append(f"--shm-size={container.shm_bytes}b")
    if gpus:
        chosen = ",".join(map(str, placement.devices))
        # The quotes are Docker's: its value is a line of CSV.
        words.append(f'--gpus="device={chosen}"' if chosen else "--gpus=all")
    if placement.cpus:
        words.append(f"--cpuset-cpus={','.join(map(str, placement.cpus))}")
    if placement.numa_node is not None:
        words.append(f"--cpuset-mems={placement.numa_node}")
    words += [f"--volume={folder}:{folder}:ro" for folder in container.mounts]
    if container.hub is not None:
        words.append(f"--volume={container.hub}:{HUB}")
    words += [f"--env={name}={value}" for name, value in inside]
    return (*words, f"--entrypoint={command[0]}", container.image, *command[1:])
