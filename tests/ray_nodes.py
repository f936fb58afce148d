"""A Ray cluster of several nodes on this machine, conducted over standard input.

A line {"add": {...}} starts a node and answers with its id, {"kill": ID} ends one as a machine
that loses its power would, {"remove": ID} one that says so; the end of the input ends all.
"""

import json
import sys

from ray.cluster_utils import Cluster

SMALL = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
}

#: Ray's own defaults need a quarter of a minute to notice that a node is gone.
NOTICED_SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "_system_config": NOTICED_SOON, **SMALL},
    )
    say({"address": cluster.address})
    nodes = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "add" in order:
            node = cluster.add_node(**SMALL, **order["add"])
            nodes[node.node_id] = node
            say({"node_id": node.node_id})
        else:
            graceful = "remove" in order
            node_id = order["remove" if graceful else "kill"]
            cluster.remove_node(nodes.pop(node_id), allow_graceful=graceful)
            say({"gone": node_id})
    cluster.shutdown()


def say(answer: dict) -> None:
    sys.stdout.write(f"@{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
