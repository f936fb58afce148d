"""Containers whose servetune is gone: Docker's daemon has them, and no process here is theirs.

The guard of a container ends it with its client. What kills the guard too, such as `kill -9` of
the watchdog and of servetune together, leaves a container that holds a port and devices. It is
known by its name and by the owner's mark in its environment.
"""

from __future__ import annotations

import json
import re

import msgspec

from servetune.servers.launchers.daemon import docker_answers
from servetune.servers.launchers.docker import container_name
from servetune.servers.leftovers import LOG_MARK, OWNER_MARK, Leftover, find_leftovers, owner_lives
from servetune.servers.watchdog import descendants

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
