"""A server in a container, as words of the Docker command line."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from servetune import engines
from servetune.errors import EngineError, InputError
from servetune.hardware import Device
from servetune.servers.launchers.daemon import daemon_version
from servetune.servers.launchers.placement import Placement
from servetune.servers.leftovers import MARKS

HUB = "/root/.cache/huggingface"

#: Variables of the user that count inside a container too; folders of this machine do not.
_PASSED = frozenset({"HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"})

#: Ends the container with its client. The daemon starts containers, so that no process here is
#: a server's parent: killing the client would leave the server. A second of grace, since a
#: servetune that was killed leaves its watchdog no more than two.
_GUARD = """
name=$1; shift
trap 'docker stop --time 1 "$name" >/dev/null 2>&1' TERM
"$@" & client=$!
wait $client; code=$?
while kill -0 $client 2>/dev/null; do wait $client; code=$?; done
exit $code
"""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a server's container.

    Attributes:
        image: Image with its tag.
        mounts: Folders of this machine, each mounted read-only at the same path.
        hub: Folder of downloaded models on this machine; `None` to download inside the container.
        shm_bytes: Size of /dev/shm, through which tensor-parallel workers communicate.
        gpus: Whether it has access to GPUs.
    """

    image: str
    mounts: tuple[Path, ...] = ()
    hub: Path | None = None
    shm_bytes: int = 16 << 30
    gpus: bool = True


def container_for(image: str, model: str, device: Device) -> Container:
    """Container for servers of a model.

    The model's folder is at the same place inside, and downloads of the hub are shared.

    Args:
        image: Name and tag.
        model: Hub id or folder.
        device: Device that servers run on.

    Raises:
        InputError: Docker cannot give such devices to containers, or the model's folder is named
            by a relative path.
    """
    on_gpus = device.architecture != "cpu"
    if on_gpus and device.vendor != "NVIDIA":
        raise InputError(
            f"--launcher docker supports NVIDIA's GPUs, and {device.name} is {device.vendor}'s",
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
    """Refuse, before anything starts, a machine without the Docker command line or its daemon.

    Raises:
        EngineError: One of the two is missing.
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


def docker_command(
    container: Container,
    command: Sequence[str],
    *,
    port: int,
    environment: Mapping[str, str] | None = None,
    passed: Sequence[str] = (),
    placement: Placement | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """The words that run a server's command in a container, in the foreground.

    The container goes when the server ends (`--rm`), hands on signals (`--init`), shares the
    host's network, so that the port is the server's own, and bears a name by which a leftover
    is found: `servetune-PORT`. The image's entry point is replaced by the command's first word.

    Args:
        container: Settings of the container.
        command: Command line as without a container.
        port: Port of the server, for the container's name.
        environment: Environment variables that servetune sets.
        passed: Variables that keep the value they have here, by name alone: a token is not
            written into words that everybody may list.
        placement: Its devices and cores. Inside, the devices are counted from 0, so that no
            `CUDA_VISIBLE_DEVICES` goes with them.
        environ: Environment of this process, for the devices that it may see.
    """
    placement = placement or Placement()
    words = ["docker", "run", "--rm", "--init", f"--name={container_name(port)}", "--network=host"]
    words.append(f"--shm-size={container.shm_bytes}b")
    if container.gpus:
        chosen = ",".join(placement.device_names(environ))
        # The quotes are Docker's: its value is a line of CSV.
        words.append(f'--gpus="device={chosen}"' if chosen else "--gpus=all")
    if placement.cpus:
        words.append(f"--cpuset-cpus={','.join(map(str, placement.cpus))}")
    if placement.numa_node is not None:
        words.append(f"--cpuset-mems={placement.numa_node}")
    words += [f"--volume={folder}:{folder}:ro" for folder in container.mounts]
    if container.hub is not None:
        words += [f"--volume={container.hub}:{HUB}", f"--env=HF_HOME={HUB}"]
    variables = {name: value for name, value in (environment or {}).items() if name not in passed}
    words += [f"--env={name}={value}" for name, value in sorted(variables.items())]
    words += [f"--env={name}" for name in passed]
    return (*words, f"--entrypoint={command[0]}", container.image, *command[1:])


def guarded(command: Sequence[str], port: int) -> tuple[str, ...]:
    """The same as a process whose end, by SIGTERM too, is the container's."""
    return ("/bin/sh", "-c", _GUARD, "servetune-docker", container_name(port), *command)


def passed_names(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Variables that engines in containers shall have as they are here, with servetune's marks."""
    names = os.environ if environ is None else environ
    own = (prefix for each in engines.ENGINES for prefix in engines.engine(each).variable_prefixes)
    prefixes = ("NCCL_", *own)
    chosen = (name for name in names if name in _PASSED or name.startswith(prefixes))
    return (*sorted(chosen), *MARKS)


def container_name(port: int) -> str:
    """Name by which a container of servetune's is found again."""
    return f"servetune-{port}"


def version_in_tag(image: str, engine: str) -> str | None:
    """The engine's version by its image's tag; `None` where name or tag do not tell.

    Example:
        >>> version_in_tag("vllm/vllm-openai:v0.31.0", "vllm")
        '0.31.0'
        >>> version_in_tag("lmsysorg/sglang:latest", "sglang")
        >>> version_in_tag("me/translator:1.2.3", "vllm")
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    known = engines.engine(engine) if engine in engines.ENGINES else None
    called = known.image_word if known is not None else ""
    if not called or not re.search(rf"(?:^|[/_-]){re.escape(called)}(?:$|[/_-])", name):
        return None
    found = re.search(r"(?:^|[v_-])(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)", tag)
    return found[1] if found else None
