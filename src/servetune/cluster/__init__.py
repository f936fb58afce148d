"""Load and trials on the nodes of a Ray cluster, through one actor protocol."""

from servetune.cluster.nodes import cluster_nodes, join_cluster, sending_nodes
from servetune.cluster.placement import gpus_of_cluster, most_gpus, require_capacity
from servetune.cluster.senders import ClusterSenders
from servetune.cluster.trials import ClusterEvents, run_trials_on_cluster

__all__ = [
    "ClusterEvents",
    "ClusterSenders",
    "cluster_nodes",
    "gpus_of_cluster",
    "join_cluster",
    "most_gpus",
    "require_capacity",
    "run_trials_on_cluster",
    "sending_nodes",
]
