"""Time of collectives among devices: all-reduce, all-gather and exchanges of tokens.

    time = latency(group, size) + message_bytes / rate(group, link, size)

Both are of a part of the law, by the size of the message: kernels differ. The parts of NVLink's
generations, of other switched fabrics, and of PCIe where devices read each other's memory
(peer-to-peer) and where every byte goes through the host's are in `data/collectives.toml`, with
their sources.
Rates are shares of the link's. Bundled links over PCIe have sixteen lanes of their generation; a
user's own file describes slots with fewer (`docs/guides/your-own-hardware.md`). Machines of one
device (DGX Spark) have rows of their own.

Two machines of eight devices: published outputs of `all_reduce_perf`. All adapters of a machine
carry a reduction together (1, 2 and 4 H100 of each machine take 0.27, 0.13 and 0.067 s for one
tensor, NVIDIA/nccl 1250). Small messages take 33 us on H100 with InfiniBand, 45 to 49 on A100 with
RoCE, MI355X and RTX, 125 to 200 in two clouds. Of their adapters' rate together 16 to 64 MB reach
0.43 to 0.68 on H100 (0.16 to 0.50 in a cloud), 0.56 to 0.77 on A100, 0.44 to 0.72 on MI355X. No
served run was read for these numbers; seven of DeepSeek-R1 on two machines of H20 judged them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from servetune.bundled import bundled
from servetune.hardware.device import Link

#: Rate per direction from which a link counts as a switched fabric, not PCIe (gen 6 x16: 128 GB/s).
FABRIC_BYTES_PER_S = 130e9
#: Latency of a reduction among machines, and its share of their adapters' rate together.
_NETWORK_LATENCY_S, _NETWORK_SHARE = 4.5e-5, 0.6
#: Most of a link's rate that machines of a rack are taken to reach.
_FABRIC_SHARE = 0.8
#: Share of its own adapter's rate at which a device exchanges tokens with other machines' (0.97 by
#: `alltoall_perf` on two of MI355X).
_ADAPTER_SHARE = 0.9
#: NCCL all-gather over all-reduce of equal total size: 0.52-0.68 over all systems.
GATHER_SHARE = 0.6
#: Most parts of a law.
PARTS = 3


class Part(NamedTuple):
    """A line, `latency_s + message_bytes / bytes_per_s`, and the shortest message that it is of."""

    from_bytes: float
    latency_s: float
    bytes_per_s: float


class Collective(msgspec.Struct, frozen=True):
    """Time of a message by its size: a line for each part, shortest messages first."""

    parts: tuple[Part, ...]

    def seconds(self, message_bytes: float) -> float:
        part = _holding(self.parts, message_bytes)
        return part.latency_s + message_bytes / part.bytes_per_s

    @property
    def latency_s(self) -> float:
        """Time of the shortest message."""
        return self.parts[0].latency_s

    @property
    def bytes_per_s(self) -> float:
        """Rate of long messages."""
        return self.parts[-1].bytes_per_s

    def at_least(self, latency_s: float) -> Collective:
        """This law where no message takes less than `latency_s`."""
        return Collective(
            tuple(part._replace(latency_s=max(part.latency_s, latency_s)) for part in self.parts)
        )


def _line(latency_s: float, bytes_per_s: float) -> Collective:
    return Collective((Part(0.0, latency_s, bytes_per_s),))


#: Law of one device, which waits for nobody.
_ALONE = _line(0.0, math.inf)


@functools.lru_cache(maxsize=256)
def all_reduce_law(link: Link, group: int) -> Collective:
    """The all-reduce law of `group` devices; `message_bytes` is one device's tensor.

    Group sizes between the measured ones (2, 4, 8) are interpolated in logarithms; larger ones
    have the shares of eight, and latencies that continue the last slope.
    """
    if group == 1:
        return _ALONE
    ring = 2 * (group - 1) / group  # bytes sent per device and byte of message
    network = _common_network(link, group)
    if network is not None:
        rate = min(network * _NETWORK_SHARE, link.bytes_per_s * _FABRIC_SHARE)
        return _line(_NETWORK_LATENCY_S, rate / ring)
    link_bytes_per_s = link.rate_among(group)
    rows = _rows_at(_rows_of(link, link_bytes_per_s), group)
    return Collective(
        _rising(
            [
                Part(row.from_bytes, row.latency_s, row.rate_fraction * link_bytes_per_s / ring)
                for row in rows
            ]
        )
    )


def exchange_law(link: Link, group: int) -> Collective:
    """The law of tokens that `group` devices send each other's experts; `message_bytes` as above.

    Inside a machine all are gathered. Beyond it each device sends its own by its own adapter.
    """
    if _common_network(link, group) is None:
        return all_reduce_law(link, group)
    ring = 2 * (group - 1) / group
    return _line(_NETWORK_LATENCY_S, link.rate_among(group) * _ADAPTER_SHARE / ring)


def _common_network(link: Link, group: int) -> float | None:
    """Rate from one machine to others where the law of all networks holds, in bytes/s.

    `None` inside a machine, and of a link between machines of one device that has rows.
    """
    if link.most_devices == 1 and link.name in _sections():
        return None
    return link.network_bytes_per_s(group)


class _Row(NamedTuple):
    """A part of the law before the rate of a link is known."""

    from_bytes: float
    latency_s: float
    rate_fraction: float


#: Group of devices to its parts.
_Rows = Mapping[int, tuple[_Row, ...]]


@functools.cache
def _sections() -> Mapping[str, _Rows]:
    """Kind of link, or name of one, to the rows of its groups."""
    found: dict[str, _Rows] = {}
    for kind, section in bundled("perf.roofline", "data/collectives.toml").items():
        links = section.get("links", ())
        rows = {
            int(group): tuple(
                _Row(size, 1e-6 * latency_us, share) for size, latency_us, share in row
            )
            for group, row in section.items()
            if group != "links"
        }
        found |= dict.fromkeys((kind, *links), rows)
    return found


def _rows_of(link: Link, link_bytes_per_s: float) -> _Rows:
    """Rows of a link that joins devices at this rate."""
    if link_bytes_per_s >= FABRIC_BYTES_PER_S:
        return _sections().get(link.name, _sections()["fabric"])
    slot = "peer" if link.peer_to_peer else "staged"
    whole = link_bytes_per_s == link.bytes_per_s  # not what joins cards beyond a bridge
    return _sections().get(link.name if whole else slot, _sections()[slot])


def _rows_at(rows: _Rows, group: int) -> tuple[_Row, ...]:
    """Rows of a group of any size."""
    if group in rows:
        return rows[group]
    sizes = sorted(rows)
    high = next((size for size in sizes if size > group), sizes[-1])
    low = sizes[sizes.index(high) - 1]
    weight = math.log(group / high) / math.log(high / low)  # negative between the two
    if group > high:
        growth = (rows[high][0].latency_s / rows[low][0].latency_s) ** weight
        return tuple(row._replace(latency_s=row.latency_s * growth) for row in rows[high])
    found = []
    for row in rows[high]:
        below = _holding(rows[low], row.from_bytes)
        latency_s = row.latency_s * (row.latency_s / below.latency_s) ** weight
        fraction = row.rate_fraction * (row.rate_fraction / below.rate_fraction) ** weight
        found.append(_Row(row.from_bytes, latency_s, fraction))
    return tuple(found)


def _rising(parts: Sequence[Part]) -> tuple[Part, ...]:
    """These parts, each from where it takes longer than the one before at the latest.

    A part that would take less at its own beginning begins where the two lines cross: rows are of
    several machines and rates, and a longer message takes no less.
    """
    found = [parts[0]]
    for part in parts[1:]:
        before = found[-1]
        slower = 1 / before.bytes_per_s - 1 / part.bytes_per_s
        crossing = (part.latency_s - before.latency_s) / slower if slower > 0 else math.inf
        begins = max(before.from_bytes, min(part.from_bytes, crossing))
        found.append(part._replace(from_bytes=begins))
    return tuple(found)


_Held = TypeVar("_Held", Part, _Row)


def _holding(parts: Sequence[_Held], message_bytes: float) -> _Held:
    """Part that holds for a message of this size."""
    return [part for part in parts if part.from_bytes <= message_bytes][-1]
