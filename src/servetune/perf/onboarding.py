"""Row of a device file for an accelerator that nobody has described, from its measured rates.

The law takes shares of a device's peaks (`perf.roofline.tables`). So the row has the peaks of which
the measured rates are those shares: predictions then rest on what the device reaches, whatever its
datasheet says.
"""

from __future__ import annotations

import functools
import math
import statistics

import msgspec

from servetune.hardware.catalog import bundled_links
from servetune.hardware.measured_device import MeasuredRates
from servetune.hardware.rows import DeviceRow, bundled
from servetune.perf.roofline.collectives import all_reduce_law
from servetune.perf.roofline.tables import COEFFICIENTS

#: Beginning of PyTorch's name of silicon -> architecture, the longest first.
_ARCHITECTURES = {
    "gfx942": "cdna3",
    "gfx950": "cdna4",
    "gfx90a": "cdna2",
    "12.1": "blackwell-gb10",
    "12.": "blackwell-rtx",
    "10.": "blackwell",
    "9.0": "hopper",
    "8.9": "ada",
    "8.": "ampere",
    "7.5": "turing",
    "7.": "volta",
}
_LINKS = (
    *(f"pcie{generation}{peers}" for generation in (3, 4, 5) for peers in ("", "-vm", "-p2p")),
    *(f"nvlink{generation}" for generation in (2, 3, 4, 5)),
    "infinity-fabric3",
)
#: Rate of fp4 over that of the faster eight bits where silicon of a compute capability has another
#: than most of its architecture: Blackwell Ultra (NVIDIA HGX B300 datasheet, 2025).
_FP4_RATIOS = {"10.3": 3.0}
#: Bytes of the all-reduce by which a link is recognised: `torch_probe.REDUCED_BYTES`.
_MESSAGE_BYTES = 128 << 20


class Onboarded(msgspec.Struct, frozen=True, kw_only=True):
    """A device's row and what it was made from.

    Attributes:
        assumed: Facts of the row that were not measured.
    """

    row: DeviceRow
    rates: MeasuredRates
    assumed: tuple[str, ...]


def onboarded(rates: MeasuredRates, *, name: str | None = None, today: str) -> Onboarded:
    """Row of a device by its measured rates.

    Args:
        rates: What was measured.
        name: Name of the device; the driver's if omitted.
        today: Date of the measurement.
    """
    known = (each for start, each in _ARCHITECTURES.items() if rates.capability.startswith(start))
    architecture = "cpu" if rates.kind == "cpu" else next(known, rates.capability or "unknown")
    shares = COEFFICIENTS.get(architecture, COEFFICIENTS[""]).gemm
    half = max(rates.tflops.get("bf16", 0.0), rates.tflops.get("fp16", 0.0))
    eight = {
        kind: rate / shares.compute_fraction_8bit
        for kind in ("fp8", "int8")
        if (rate := rates.tflops.get(kind, 0.0)) > half
    }
    assumed = []
    if architecture not in COEFFICIENTS:
        assumed.append("shares of peaks are the middle of other silicon's")
    like = _devices_of(architecture)
    if "fp8" not in rates.tflops and any(each.fp8_tflops for each in like):
        assumed.append(
            "fp8 was not measured, as this PyTorch multiplies none of its types here: weights in "
            "fp8 are priced at the rate of 16 bits"
        )
    four = _fp4_tflops(rates.capability, like, eight)
    if four is not None:
        ratio = four / max(eight.values())
        assumed.append(
            f"fp4 was not measured: its {four:,.0f} TFLOPS are {ratio:g} times the rate of eight "
            "bits, as on catalogued devices of this silicon"
        )
    elif any(each.fp4_tflops for each in like):
        assumed.append("fp4 was not measured: weights in fp4 are priced at the rate of 16 bits")
    found_link = _link_of(rates)
    if found_link is None:
        assumed.append("the link is PCIe 4.0 without peer-to-peer, as one device tells nothing")
    row = DeviceRow(
        name=name or rates.name,
        aliases=(rates.name,) if name not in (None, rates.name) and rates.kind != "cpu" else (),
        vendor=_vendor(rates),
        architecture=architecture,
        memory_mib=rates.memory_mib,
        memory_gb_per_s=_short(rates.read_gb_per_s / shares.memory_fraction),
        bf16_tflops=_short(half / shares.compute_fraction),
        fp8_tflops=_short(eight["fp8"]) if "fp8" in eight else None,
        int8_tflops=_short(eight["int8"]) if "int8" in eight else None,
        fp4_tflops=_short(four) if four is not None else None,
        half_dtype="bf16" if rates.tflops.get("bf16", 0.0) > 0.5 * half else "fp16",
        # Measured products are under the board's power already.
        tdp_watts=None if shares.flops_per_joule else rates.watts,
        link=found_link or "pcie4",
        source=f"measured here ({today}) with PyTorch {rates.torch}: peaks of which the measured "
        "rates are this architecture's shares",
    )
    return Onboarded(row=row, rates=rates, assumed=tuple(assumed))


def as_toml(row: DeviceRow) -> str:
    """The row as a table of a device file."""
    lines = ["[[device]]"]
    for key, value in msgspec.structs.asdict(row).items():
        if value is None or value == () or (key == "dies" and value == 1):
            continue
        # JSON's texts, numbers and lists of texts are TOML's.
        written = f"{value:g}" if isinstance(value, float) else msgspec.json.encode(value).decode()
        lines.append(f"{key} = {written}")
    return "\n".join(lines) + "\n"


@functools.cache
def _devices_of(architecture: str) -> tuple[DeviceRow, ...]:
    """Devices of the catalogue with an architecture."""
    rows = bundled("devices.toml", "device", DeviceRow)
    return tuple(row for row in rows if row.architecture == architecture)


def _fp4_tflops(
    capability: str, like: tuple[DeviceRow, ...], eight: dict[str, float]
) -> float | None:
    """Rate of fp4, which PyTorch's products do not measure, by that of eight bits.

    It is the middle ratio of the catalogue's devices `like` this one to the faster of fp8 and
    int8, as GeForce cards add up fp8 at half of their rate. `None` without such units or rates.
    """
    ratios = [
        row.fp4_tflops / max(row.fp8_tflops or 0.0, row.int8_tflops or 0.0)
        for row in like
        if row.fp4_tflops and (row.fp8_tflops or row.int8_tflops)
    ]
    if not ratios or not eight:
        return None
    ratio = _FP4_RATIOS.get(capability, float(f"{statistics.median(ratios):.2g}"))
    return ratio * max(eight.values())


def _vendor(rates: MeasuredRates) -> str:
    if rates.kind == "xpu":
        return "Intel"
    if rates.kind == "cpu":
        return "CPU"
    return "AMD" if rates.capability.startswith("gfx") else "NVIDIA"


def _link_of(rates: MeasuredRates) -> str | None:
    """Name of the link whose law is nearest to the measured all-reduces."""
    if not rates.reduce_gb_per_s:
        return None

    def misses(name: str) -> float:
        off = 0.0
        for group, rate in rates.reduce_gb_per_s.items():
            sent = _MESSAGE_BYTES * 2 * (group - 1) / group
            law = all_reduce_law(bundled_links()[name], group)
            # Larger groups say more of a machine's switches than of its slots.
            off += abs(math.log(sent / law.seconds(_MESSAGE_BYTES) / 1e9 / rate)) * 2 / group
        return off

    return min(_LINKS, key=misses)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
