"""Nodes of a Ray cluster: connecting to it and listing them.

Ray starts processes on other machines and notices when one is gone. It is an optional
dependency, imported when a cluster is named.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from types import ModuleType

import msgspec

from servetune.errors import InputError, LoadError
from servetune.loadgen import Target

CONNECT_TIMEOUT_S = 3.0
"""Time for the head of a cluster to accept a connection."""

_TYPE = "accelerator_type:"
_START_HINT = (
    "start one with: ray start --head --port 6379, and on each other machine: "
    "ray start --address HEAD:6379"
)


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """Node of a Ray cluster.

    Attributes:
        node_id: Id that Ray gave the node.
        name: Host name of its machine.
        address: IP address at which the other nodes reach it.
        cpus: Cores that Ray may give away.
        gpus: GPUs that Ray may give away.
        gpu_types: GPU types in Ray's spelling, such as `H100`; empty where Ray knows none.
    """

    node_id: str
    name: str
    address: str
    cpus: float = 0.0
    gpus: float = 0.0
    gpu_types: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name, address and start of the id; several nodes may share one machine."""
        return f"{self.name} ({self.address}, {self.node_id[:8]})"


def join_cluster(address: str) -> ModuleType:
    """The module `ray`, connected to the cluster.

    Args:
        address: `auto` for the cluster that this machine is part of, else the head's HOST:PORT.

    Raises:
        InputError: Ray is not installed, or the address is malformed.
        LoadError: No cluster answers there.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise InputError(
            "a cluster is reached through Ray, which is not installed",
            hint="pip install 'servetune[ray]', here and on every node",
        ) from None
    if ray.is_initialized():
        return ray
    _silence_stdout()
    if address != "auto":
        _require_listener(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        where = "this machine is part of no Ray cluster" if address == "auto" else None
        lines = str(error).strip().splitlines()
        raise LoadError(
            where or f"no Ray cluster at {address}: {lines[0] if lines else type(error).__name__}",
            hint=_START_HINT,
        ) from None
    return ray


def _silence_stdout() -> None:
    """Stop Ray from printing complaints of its nodes on standard output, where results go.

    Ray has no option for that, so its printing function is replaced; servetune itself
    reports a lost node.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


def _require_listener(address: str) -> None:
    """Check that something listens at the address; Ray itself takes a minute to find out."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        raise InputError(
            f"'{address}' is no address of a Ray cluster",
            hint="write the head's HOST:PORT, such as 10.0.0.5:6379, or auto",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise LoadError(
            f"no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}",
            hint=_START_HINT,
        ) from None


def cluster_nodes(ray: ModuleType) -> list[ClusterNode]:
    """Nodes that are alive, the head first."""
    found = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        types = [name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)]
        found_node = ClusterNode(
            node_id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            cpus=resources.get("CPU", 0.0),
            gpus=resources.get("GPU", 0.0),
            gpu_types=tuple(sorted(types)),
        )
        is_head = "node:__internal_head__" in resources
        found.append((not is_head, found_node.node_id, found_node))
    return [node for *_, node in sorted(found, key=lambda each: each[:2])]


def sending_nodes(
    address: str, targets: Sequence[Target] = (), node_ids: Sequence[str] = ()
) -> list[ClusterNode]:
    """Nodes that may send load.

    Args:
        address: Cluster, as for `join_cluster`.
        targets: Servers that every node must reach by the same address.
        node_ids: Ids of the nodes to use; empty for all nodes with a core to give.

    Raises:
        InputError: Ray is not installed, or a server is named by an address that means
            another machine on every node.
        LoadError: There is no cluster, or none of its nodes has a core to give.
    """
    found = cluster_nodes(join_cluster(address))
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
