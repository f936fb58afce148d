"""Figure of an estimate as plain values: the device's roof, the operations under it, where a step's
time goes, and the steady state over the number of users with its interval.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["prefill", "decode"]


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """Compute roof of one dtype (or of several at one rate)."""

    dtype: str
    flops_per_s: float


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """Operation of one step under the roof, on one device."""

    name: str
    kind: str
    phase: Phase
    flops_per_byte: float
    flops_per_s: float
    share_fraction: float


class StepSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Share of one operation in a step's time, operations without a dot included."""

    name: str
    kind: str
    share_fraction: float
    time_ms: float


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """Step with its time, its bottleneck and its slices."""

    phase: Phase
    label: str
    time_ms: float
    bound: str
    slices: tuple[StepSlice, ...]


class BandPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Value at one concurrency, with the interval of its prediction."""

    concurrency: int
    value: float
    low: float
    high: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Quantity over concurrency."""

    title: str
    unit: Literal["ms", "tokens/s"]
    points: tuple[BandPoint, ...]


class RooflineFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Roofline, steps and curves of one plan on one machine.

    Attributes:
        device: Name of the device that the roof is of.
        memory_bytes_per_s: Rate of its memory.
        roofs: Rates of computing, the lowest first.
        dots: Operations of a prefill and of a decode step.
        bars: The same two steps by the time of their operations.
        curves: Steady state over the number of users.
        chosen_concurrency: Concurrency of the best throughput.
        knee_concurrency: Concurrency beyond which latency grows faster than throughput.
        dots_note: Meaning of a dot, as a sentence.
        curves_note: Basis of the intervals, as a sentence.
    """

    device: str
    memory_bytes_per_s: float
    roofs: tuple[Roof, ...]
    dots: tuple[Dot, ...]
    bars: tuple[StepBar, ...]
    curves: tuple[Curve, ...]
    chosen_concurrency: int
    knee_concurrency: int | None
    dots_note: str
    curves_note: str
