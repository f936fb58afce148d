"""A Ray cluster of several nodes on this machine, conducted over standard input.

A line {"add": {...}} starts a node and answers with its id, {"kill": ID} ends one as a machine
that loses its power would; the end of the input ends all.
"""

import json
import sys

from ray.cluster_utils import Cluster

SMALL = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    say({"address": cluster.address})
    nodes = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "add" in order:
            node = cluster.add_node(**SMALL, **order["add"])
            nodes[node.node_id] = node
            say({"node_id": node.node_id})
        else:
            cluster.remove_node(nodes.pop(order["kill"]), allow_graceful=False)
            say({"killed": True})
    cluster.shutdown()


def say(answer: dict) -> None:
    sys.stdout.write(f"@{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
