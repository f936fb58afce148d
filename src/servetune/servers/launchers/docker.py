"""Servers in containers: words of the Docker command line, the daemon, and containers left behind.

The guard of a container ends it with its client. What kills the guard too, such as `kill -9` of the
watchdog and of servetune together, leaves a container that holds a port and devices. It is known by
its name and by the owner's mark in its environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from servetune import engines
from servetune.errors import EngineError, InputError
from servetune.hardware import Device
from servetune.servers.launchers.placement import Placement
from servetune.servers.leftovers import (
    LOG_MARK,
    MARKS,
    OWNER_MARK,
    Leftover,
    find_leftovers,
    owner_lives,
)
from servetune.servers.watchdog import descendants

HUB = "/root/.cache/huggingface"

#: Variables of the user that count inside a container too; folders of this machine do not.
_PASSED = frozenset({"HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"})

#: Ends the container with its client. The daemon starts containers, so that no process here is
#: a server's parent: killing the client would leave the server. A second of grace, as the watchdog
#: of a servetune that was killed waits six for the stop to be asked for and done.
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


#: Template for `docker inspect --format` of each container.
INSPECTED = "{{.Name}}\t{{.Config.Image}}\t{{.State.Pid}}\t{{json .Config.Env}}"


class LeftContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container that runs on without the servetune that started it.

    Attributes:
        pid: Id of the container's first process, as this machine counts.
        owner_pid: Process id of the servetune that started it.
        log_path: Path of the server's log.
    """

    name: str
    image: str
    pid: int
    owner_pid: int
    log_path: str

    @property
    def label(self) -> str:
        return f"container {self.name} ({self.image})"


def find_left_containers() -> list[LeftContainer]:
    """Running ones of ours whose servetune has ended; none where no daemon answers."""
    ours = rf"^{container_name(0).removesuffix('0')}[0-9]+$"
    listed = docker_answers("ps", "--filter", f"name={ours}", "--format", "{{.Names}}").split()
    names = [name for name in listed if re.match(ours, name)]
    if not names:
        return []
    lines = docker_answers("inspect", "--format", INSPECTED, *names).splitlines()
    found = [_left(line) for line in lines if line.count("\t") == INSPECTED.count("\t")]
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


def find_strays() -> tuple[list[LeftContainer], list[Leftover]]:
    """Remains of an earlier servetune: containers, and processes that belong to none of them."""
    boxes = find_left_containers()
    inside = {pid for box in boxes for pid in (box.pid, *descendants(box.pid))}
    clients = {f"--name={box.name}" for box in boxes}
    outside = (one for one in find_leftovers() if one.pid not in inside)
    return boxes, [one for one in outside if not clients & set(one.command.split())]


def removal(port: int) -> tuple[str, ...]:
    """The words that end the container of a port, whatever it does."""
    return ("docker", "rm", "--force", container_name(port))


def _left(line: str) -> LeftContainer | None:
    name, image, pid, environment_json = line.split("\t")
    environment = dict(word.partition("=")[::2] for word in json.loads(environment_json) or ())
    owner = environment.get(OWNER_MARK, "")
    if owner_lives(owner) is not False:
        return None
    return LeftContainer(
        name=name.lstrip("/"),
        image=image,
        pid=int(pid),
        owner_pid=int(owner.partition(":")[0]),
        log_path=environment.get(LOG_MARK, ""),
    )


#: The daemon may hang; a run that only wants to start does not wait for it.
PATIENCE_S = 5.0


def docker_answers(*words: str) -> str:
    """Output of `docker WORDS`; empty where it is not installed or fails."""
    if shutil.which("docker") is None:
        return ""
    try:
        answer = subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def daemon_version() -> str | None:
    """Version of the daemon that would start containers; `None` where none answers."""
    return docker_answers("version", "--format", "{{.Server.Version}}").strip() or None
