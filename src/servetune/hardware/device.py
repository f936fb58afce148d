"""Machines: an accelerator, how several of them are linked, and what they cost."""

from __future__ import annotations

from typing import Literal

import msgspec

from servetune.errors import PlanError

__all__ = ["Device", "Link", "Node", "Price"]


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator as a program sees it.

    Rates are dense (no structured sparsity) and per device; `None` where the silicon
    has no such path. `memory_bytes` is what the driver reports as total, which is less
    than the number on the box where error correction takes its share.

    `half_dtype` is the 16-bit type that an engine serves in and `bf16_flops` its rate. It is
    fp16 on Volta and Turing, which have no bf16: vLLM and SGLang fall back to fp16 there when
    the dtype is left to them. `tdp_watts` is the board's power limit, or the one that the
    driver enforces here; a low one keeps the clocks below those that the rates assume.
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
    half_dtype: Literal["bf16", "fp16"] = "bf16"
    tdp_watts: float | None = None

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s at which this device multiplies matrices of `dtype`.

        A narrow dtype without a unit of its own is widened to sixteen bits before it is
        multiplied, and so runs at their rate.
        """
        return self._unit_flops(dtype) or self.bf16_flops

    def multiplies(self, dtype: str) -> bool:
        """Whether there is a unit for fp8, int8 or fp4; sixteen bits always have one."""
        return bool(self._unit_flops(dtype))

    def _unit_flops(self, dtype: str) -> float | None:
        rates = {"fp8": self.fp8_flops, "int8": self.int8_flops, "fp4": self.fp4_flops}
        return rates.get(dtype, self.bf16_flops)


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
    """One machine: `device_count` equal devices behind one kind of link.

    `network_bytes_per_s` is what the whole machine sends to others at once, in one direction
    (EFA, InfiniBand or Ethernet); `None` where it is not known.
    """

    name: str
    device: Device
    device_count: int
    link: Link
    cpus: int | None = None
    memory_bytes: float | None = None
    price: Price | None = None
    network_bytes_per_s: float | None = None

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
