"""Disaggregated prefill: transfer of prompts' key-value caches to the ranks that decode."""

from __future__ import annotations

import msgspec

from servetune.engines import Memory
from servetune.errors import PlanError, UnknownName
from servetune.hardware.device import Node
from servetune.perf.roofline.collectives import FABRIC_BYTES_PER_S, all_reduce_law
from servetune.plan import Plan


class CacheTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """An affine law: `latency_s + moved bytes / bytes_per_s`; an engine sends one at a time.

    Attributes:
        latency_s: Latency of every transfer.
        bytes_per_s: Rate at which one engine sends, all of its devices together.
        bytes_per_token: Size of the cache per token, all devices together.
        bytes_per_sequence: Size of the state that a sequence has besides.
    """

    latency_s: float
    bytes_per_s: float
    bytes_per_token: float
    bytes_per_sequence: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.bytes_per_s <= 0:
            raise PlanError(
                f"no transfer of a cache has {self.bytes_per_s} bytes/s after {self.latency_s} s",
                hint="give a rate above 0 and a latency of 0 or more",
            )

    def seconds(self, tokens: int) -> float:
        moved_bytes = tokens * self.bytes_per_token + self.bytes_per_sequence
        return self.latency_s + moved_bytes / self.bytes_per_s


def cache_transfer_of(
    plan: Plan, node: Node, divided: Memory, *, network: bool = False
) -> CacheTransfer:
    """Transfer between two engines of a resolved plan on one machine.

    Each device sends its part of the cache to its like in the other engine, at the rate that two
    devices on this link reach. On a switched fabric the parts travel side by side; on PCIe
    they share the way through the host.

    Args:
        plan: Resolved.
        node: Machine whose link, or network, carries the cache.
        divided: Division of a device's memory by the plan.
        network: Whether the engines are on two such machines, each of which sends at its
            `network_bytes_per_s`. The latency stays the link's: no table of networks is at hand.

    Raises:
        PlanError: The machine's network is not known.
    """
    parts = plan.tensor_parallel * plan.pipeline_parallel
    longest = all_reduce_law(node.link, 2).parts[-1]
    bytes_per_s = longest.bytes_per_s
    if node.link.bytes_per_s >= FABRIC_BYTES_PER_S:
        bytes_per_s *= parts
    if network:
        if node.network_bytes_per_s is None:
            raise PlanError(
                f"the network of {node.label} is not known",
                hint="name an instance whose network is in the catalogue, such as --instance "
                "g6.12xlarge, or let the node's link carry the cache",
            )
        bytes_per_s = node.network_bytes_per_s
    return CacheTransfer(
        latency_s=longest.latency_s,
        bytes_per_s=bytes_per_s,
        bytes_per_token=parts * divided.kv_bytes_per_token,
        bytes_per_sequence=parts * divided.state_bytes_per_sequence,
    )


class PrefillPool(msgspec.Struct, frozen=True):
    """Copies of an engine that compute prompts for those that decode.

    Attributes:
        replicas: Number of copies.
        transfer: Transfer of the cache from any of them.
    """

    replicas: int
    transfer: CacheTransfer


def prefill_pool_of(
    plan: Plan, node: Node, divided: Memory, transfer: CacheTransfer | None = None
) -> PrefillPool | None:
    """Prefill pool of a resolved plan; `None` if it has none.

    Raises:
        PlanError: The network that is to carry the caches is not known.
    """
    if plan.prefill_replicas is None:
        return None
    if transfer is None:
        transfer = cache_transfer_of(plan, node, divided, network=_by_network(plan))
    return PrefillPool(plan.prefill_replicas, transfer)


def _by_network(plan: Plan) -> bool:
    """Whether caches travel between machines, by the plan's `kv_link`."""
    if plan.kv_link not in (None, "node", "network"):
        raise UnknownName("kv_link", plan.kv_link, ("node", "network"))
    return plan.kv_link == "network"
