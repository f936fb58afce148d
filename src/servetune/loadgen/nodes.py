"""Machines of a Ray cluster: joined, listed, and their clocks compared with this one's.

Ray is an existing engine that servetune uses and does not imitate: it starts processes on
other machines and notices when one is gone. It is an extra, imported when a cluster is named.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from servetune.errors import InputError, LoadError
from servetune.loadgen.target import Target

__all__ = ["ClockSample", "Clocks", "Machine", "NodeShare", "join", "machines", "require_cluster"]

REACH_S = 3.0
"""For the head of a cluster to accept a connection."""

DRIFT = 1e-4
"""Seconds a second that two clocks may come apart: crystals drift by a third of that, and a
daemon that sets them right makes up the rest."""

_TYPE = "accelerator_type:"
_HEAD = "start one with: ray start --head --port 6379, and on each other machine: ray start --address HEAD:6379"  # noqa: E501


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster.

    Attributes:
        node_id: Ray's name for it.
        name: The machine's own.
        address: Where the others reach it.
        cpus: Cores that Ray may give away.
        gpus: Likewise.
        gpu_types: As Ray calls them, such as `H100`; empty where it knows none.
    """

    node_id: str
    name: str
    address: str
    cpus: float = 0.0
    gpus: float = 0.0
    gpu_types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Enough to tell it from the others, several of which may be on one machine."""
        return f"{self.name} ({self.address}, {self.node_id[:8]})"


class NodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one node did of a run, for the instrument.

    Attributes:
        request_count: Requests of which it told the end.
        clock_offset_s: Its monotonic clock less that of the machine that conducts.
        clock_error_s: By how much that may be wrong: half the quickest round trip.
        lost: Why it was gone before the end; empty where it was not.
    """

    name: str
    request_count: int
    clock_offset_s: float
    clock_error_s: float
    lost: str = ""


def join(address: str) -> Any:
    """The module `ray`, connected to the cluster.

    Args:
        address: `auto` for the cluster that this machine is part of, else the head's HOST:PORT.

    Raises:
        InputError: Ray is not installed, or the address is none.
        LoadError: There is no cluster.
    """
    try:
        import ray
    except ImportError:
        raise InputError(
            "a cluster is reached through Ray, which is not installed",
            hint="pip install 'servetune[ray]', here and on every node",
        ) from None
    if ray.is_initialized():
        return ray
    _keep_off_stdout()
    if address != "auto":
        _require_listener(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        where = "this machine is part of no Ray cluster" if address == "auto" else None
        said = str(error).strip().splitlines()
        raise LoadError(
            where or f"no Ray cluster at {address}: {said[0] if said else type(error).__name__}",
            hint=_HEAD,
        ) from None
    return ray


def _keep_off_stdout() -> None:
    """Ray prints what its machines complain of on standard output, where our results go.

    It has no option against that, so its printer is replaced; a lost node is told by us.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def _require_listener(address: str) -> None:
    """Ray itself takes a minute to say that nobody is there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        raise InputError(
            f"'{address}' is no address of a Ray cluster",
            hint="write the head's HOST:PORT, such as 10.0.0.5:6379, or auto",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise LoadError(
            f"no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}", hint=_HEAD
        ) from None


def machines(ray: Any) -> list[Machine]:
    """The nodes that live, the head first."""
    found = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        types = [name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)]
        machine = Machine(
            node_id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            cpus=resources.get("CPU", 0.0),
            gpus=resources.get("GPU", 0.0),
            gpu_types=tuple(sorted(types)),
        )
        found.append(("node:__internal_head__" not in resources, machine.node_id, machine))
    return [machine for *_, machine in sorted(found, key=lambda each: each[:2])]


def require_cluster(
    address: str, targets: Sequence[Target] = (), node_ids: Sequence[str] = ()
) -> list[Machine]:
    """The nodes that may send, or one line on why there is no use in beginning.

    Raises:
        InputError: Ray is not installed, or a server is named by an address that is another
            machine on every node.
        LoadError: There is no cluster, or it has no node with a core to give.
    """
    found = machines(join(address))
    named = [each for each in found if each.node_id in node_ids]
    chosen = named if node_ids else [each for each in found if each.cpus >= 1]
    if not chosen:
        raise LoadError(
            "the nodes that should send the load are gone"
            if node_ids
            else f"none of the cluster's {len(found)} nodes has a core to give",
            hint="see ray status; ray start --num-cpus says how many a node has",
        )
    several = len({each.address for each in chosen}) > 1
    for target in targets:
        host = target.origin.host
        if several and (host in {"localhost", "::1"} or host.startswith("127.")):
            raise InputError(
                f"{host} is another machine on each of the cluster's nodes",
                hint="name the server by an address that all of them reach",
            )
    return chosen


# clocks


class ClockSample(msgspec.Struct, frozen=True):
    """Another machine's clock, as one round trip showed it.

    Attributes:
        at_s: When, on our clock.
        offset_s: Theirs less ours.
        error_s: The answer was given somewhere within the trip: half of it, at most.
    """

    at_s: float
    offset_s: float
    error_s: float

    @classmethod
    def of(cls, before_s: float, theirs_s: float, after_s: float) -> ClockSample:
        """From our clock before and after, and theirs in between.

        Example:
            >>> ClockSample.of(10.0, 510.5, 11.0)
            ClockSample(at_s=10.5, offset_s=500.0, error_s=0.5)
        """
        middle_s = (before_s + after_s) / 2
        return cls(middle_s, theirs_s - middle_s, (after_s - before_s) / 2)


class Clocks:
    """What is known of another machine's clock; a quick round trip says most.

    A sample is worth less as it ages, by `DRIFT`, so that long runs follow two clocks that
    come apart.
    """

    def __init__(self) -> None:
        self._samples: list[ClockSample] = []

    def add(self, sample: ClockSample) -> None:
        """Take in another round trip; what can never again be the best is forgotten."""
        kept = [each for each in self._samples if _error_s(each, sample.at_s) < sample.error_s]
        self._samples = [*kept, sample]

    def best(self, now_s: float) -> ClockSample:
        """The sample that is wrong by least now, with that error."""
        assert self._samples, "no clock was compared"
        best = min(self._samples, key=lambda each: _error_s(each, now_s))
        return ClockSample(best.at_s, best.offset_s, _error_s(best, now_s))


def _error_s(sample: ClockSample, now_s: float) -> float:
    return sample.error_s + max(0.0, now_s - sample.at_s) * DRIFT
