"""Hardware types: device, link between devices, node and price."""

from __future__ import annotations

from typing import Literal

import msgspec

from servetune.errors import PlanError


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator.

    Rates are dense (no structured sparsity) and per device; `None` where the hardware has no
    such unit. `memory_bytes` is the total reported by the driver and `memory_bytes_per_s` what is
    left of the bandwidth, both below the nominal numbers where error correction takes a share.

    `half_dtype` is the 16-bit type that engines serve in and `bf16_flops` its rate. It is fp16
    on Volta and Turing, which have no bf16: engines then choose fp16 by default.
    `tdp_watts` is the board's power limit, or the one that the driver enforces; a low limit
    keeps clocks below those that the rates assume.
    `matrix_share` is the matrix rate for each FLOP/s of the plain units, over that of boards of the
    same silicon that are sold with all of it, which have 1: GeForce cards add up products of 8 and
    16 bits at half of the rate. Whatever else holds a kernel back holds such a board back less.
    `dies` is the number of devices as which engines see it; the numbers are of all together.
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
    matrix_share: float = 1.0
    dies: int = 1

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s at which this device multiplies matrices of `dtype`.

        A narrow dtype without a unit of its own is widened to 16 bits first and runs at that
        rate.
        """
        return self._unit_flops(dtype) or self.bf16_flops

    def multiplies(self, dtype: str) -> bool:
        """Whether the device multiplies `dtype` natively; always true for 16 bits."""
        return bool(self._unit_flops(dtype))

    def _unit_flops(self, dtype: str) -> float | None:
        rates = {"fp8": self.fp8_flops, "int8": self.int8_flops, "fp4": self.fp4_flops}
        return rates.get(dtype, self.bf16_flops)


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interconnect between the devices of one node.

    `perf.roofline.collectives` derives the time of an all-reduce from it.

    Attributes:
        bytes_per_s: Rate per device and direction.
        peer_to_peer: Whether devices read each other's memory.
        most_devices: Largest group that it joins; `None` for any.
        beyond_bytes_per_s: Rate of what joins larger groups.
        adapters: Whether that is a network, with an adapter for each device of a machine of
            `most_devices`: they carry what the machine exchanges with others together.
    """

    name: str
    bytes_per_s: float
    peer_to_peer: bool
    source: str = ""
    most_devices: int | None = None
    beyond_bytes_per_s: float | None = None
    adapters: bool = False

    def network_bytes_per_s(self, group: int) -> float | None:
        """Rate at which one machine of a group sends to others; `None` inside a machine."""
        if not self.adapters or self.most_devices is None or self.beyond_bytes_per_s is None:
            return None
        return self.most_devices * self.beyond_bytes_per_s if group > self.most_devices else None

    def rate_among(self, group: int) -> float:
        """Rate per device and direction in a group of so many devices, in bytes/s."""
        if self.most_devices is None or group <= self.most_devices:
            return self.bytes_per_s
        return self.beyond_bytes_per_s or self.bytes_per_s


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hourly price of one node, with region, source and date."""

    usd_per_hour: float
    region: str
    source: str
    date: str


def cost_per_million_tokens_usd(
    price_per_hour_usd: float | None, tokens_per_s: float | None
) -> float | None:
    """Dollars for a million tokens at this rate: price / (rate x 3600) x 10^6.

    The price is the whole node's, whether a plan uses all of its devices or not: that is what
    the bill says.
    """
    if not price_per_hour_usd or not tokens_per_s:
        return None
    return price_per_hour_usd / (tokens_per_s * 3600) * 1e6


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine: `device_count` equal devices joined by one kind of link.

    `network_bytes_per_s` is the machine's total network bandwidth in one direction (EFA,
    InfiniBand or Ethernet); `None` where unknown.
    """

    name: str
    device: Device
    device_count: int
    link: Link
    cpus: int | None = None
    memory_bytes: float | None = None
    price: Price | None = None

    def cost_per_million_tokens_usd(self, tokens_per_s: float | None) -> float | None:
        """Dollars for a million tokens at this rate; `None` without a price."""
        return cost_per_million_tokens_usd(
            self.price.usd_per_hour if self.price else None, tokens_per_s
        )

    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.device_count < 1:
            raise PlanError(
                f"a node needs at least one device, got {self.device_count}",
                hint="give --num-gpus 1 or more",
            )

    @property
    def label(self) -> str:
        """Display name: `4x L4 (ml.g6.12xlarge)`."""
        plain = f"{self.device_count}x {self.device.name}"
        return plain if self.name == plain else f"{plain} ({self.name})"
