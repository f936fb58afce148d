"""Machines: an accelerator, how several of them are linked, and what they cost."""

from __future__ import annotations

import msgspec

from servetune.errors import PlanError

__all__ = ["Device", "Link", "Node", "Price"]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator as a program sees it.

    Rates are dense (no structured sparsity) and per device; `None` where the silicon
    has no such path. `memory_bytes` is what the driver reports as total, which is less
    than the number on the box where error correction takes its share.
    """

    name: str
    vendor: str
    architecture: str
    memory_bytes: float
    memory_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None = None
    int8_flops: float | None = None
    fp4_flops: float | None = None
    link: str = "pcie4"
    source: str = ""

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s at which this device multiplies matrices of `dtype`.

        A narrow dtype without a path of its own is widened before it is multiplied,
        so it runs at the rate of the next wider one.
        """
        ladder = {
            "fp4": (self.fp4_flops, self.fp8_flops, self.bf16_flops),
            "fp8": (self.fp8_flops, self.bf16_flops),
            "int8": (self.int8_flops, self.bf16_flops),
        }.get(dtype, (self.bf16_flops,))
        return next(rate for rate in ladder if rate)


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the devices of one node reach each other.

    `bytes_per_s` is per device and direction. `all_reduce_bytes_per_s` and
    `all_reduce_latency_s` are keyed by nothing but the group size: see
    `perf.roofline.collectives`, which owns the law.
    """

    name: str
    bytes_per_s: float
    peer_to_peer: bool
    source: str = ""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node costs per hour, where and when that was read."""

    usd_per_hour: float
    region: str
    source: str
    date: str


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine: `device_count` equal devices behind one kind of link."""

    name: str
    device: Device
    device_count: int
    link: Link
    cpus: int | None = None
    memory_bytes: float | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        if self.device_count < 1:
            raise PlanError(
                f"a node needs at least one device, got {self.device_count}",
                hint="give --num-gpus 1 or more",
            )

    @property
    def label(self) -> str:
        """For a reader: `4x L4 (ml.g6.12xlarge)`."""
        plain = f"{self.device_count}x {self.device.name}"
        return plain if self.name == plain else f"{plain} ({self.name})"
