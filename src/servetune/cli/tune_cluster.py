"""Whose machines the servers of `tune` run on: this one, a cluster's, or somebody else's."""

from __future__ import annotations

from servetune.cli.course import Asked, require_own_servers, require_this_machine
from servetune.cluster import cluster_nodes, join_cluster
from servetune.engines import Engine
from servetune.errors import InputError
from servetune.trials import Launch, StudyContext, Trial

__all__ = ["gpus_of", "require_cluster", "require_place"]


def require_place(
    spoken: Engine, asked: Asked, cluster: str | None, *, simulated: bool, job: bool
) -> None:
    """Refuse options that have no meaning where the servers are.

    Raises:
        InputError: Such are given.
    """
    if not spoken.starts_servers:
        require_own_servers(asked)
    if cluster is None:
        return
    require_this_machine(asked, job=job)
    if simulated:
        raise InputError(
            "--cluster is for servers, the simulated engine needs none",
            hint="leave it out, or measure servetune simulate --serve with --server-cmd",
        )


def require_cluster(
    groups: list[list[Trial]], run: StudyContext, launch: Launch, cluster: str
) -> None:
    """Refuse, before a journal is begun, what the cluster could not run."""
    from servetune.cluster import require_capacity

    require_capacity(groups, run, launch, cluster)


def gpus_of(
    cluster: str, gpu: str | None, num_gpus: int | None, instance_name: str | None
) -> tuple[str | None, int | None]:
    """The machine that trials run on is a node of the cluster, not the one that is here."""
    from servetune.cluster import gpus_of_cluster, most_gpus

    if instance_name is not None:
        return gpu, num_gpus
    nodes = cluster_nodes(join_cluster(cluster))
    if gpu is not None:
        return gpu, num_gpus or most_gpus(nodes, gpu)
    found = gpus_of_cluster(nodes)
    return (None, num_gpus) if found is None else (found[0], num_gpus or found[1])
