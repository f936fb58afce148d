"""Roofline and curves of an estimate: the figure's data, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servetune.api.estimate_text import Split, binding
from servetune.errors import InputError
from servetune.hardware import Device, Node
from servetune.models import NetworkShape
from servetune.perf.roofline import OperatingPoint, Phase
from servetune.report import (
    BandPoint,
    Curve,
    Dot,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
    roofline_html,
    roofline_svg,
)
from servetune.store import require_regular, write_text
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import Workload

_SUFFIXES = (".svg", ".html")


def require_plottable(path: Path) -> None:
    """Refuse a file that the plot cannot go to, before anything is computed.

    Raises:
        InputError: Its ending is neither of the two.
        StoreError: It is no regular file, such as a device or a folder.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(
            f"--plot draws .svg or .html, not '{path.name}'", hint="name the file plan.svg"
        )
    require_regular(path)


def write_plot(path: Path, figure: RooflineFigure) -> None:
    draw = roofline_svg if path.suffix.lower() == ".svg" else roofline_html
    write_text(path, draw(figure))


def roofline_figure(
    best: Split,
    points: Sequence[OperatingPoint],
    node: Node,
    shape: NetworkShape,
    workload: Workload,
) -> RooflineFigure:
    """What the picture shows: the device's roof, each operation's dot, and the curves."""
    answer = best.answer
    roofline, throughput = answer.roofline, answer.best_throughput
    assert roofline is not None
    assert throughput is not None
    pair = workload.lengths.fixed_pair
    load = f"{pair[0]:,} tokens in, {pair[1]:,} out" if pair else f"{workload.name}'s lengths"
    copies = best.plan.replicas * best.plan.data_parallel
    running = max(1, round(throughput.running / copies))
    phases = (
        ("prefill", "one prompt's prefill", roofline.prefill),
        ("decode", f"decode of {running:,} sequences", roofline.decode_at_best),
    )
    dtypes = {part.math_dtype for _, _, phase in phases for part in phase.parts if part.math_dtype}
    band = answer.interval
    measured = "corrected by measured runs" if band.calibrated else "not calibrated here"
    curves = (
        _curve("TTFT", "s", points, "ttft_ms", band.ttft_low_factor, band.ttft_high_factor),
        _curve("ITL", "s", points, "itl_ms", band.low_factor, band.high_factor),
        _curve(
            "Output tokens per second",
            "/s",
            points,
            "output_tokens_per_s",
            1 / band.high_factor,
            1 / band.low_factor,
        ),
    )
    return RooflineFigure(
        title=f"{shape.name} on {node.label}",
        subtitle=f"{best.plan.label} · {load} · predicted by formula, nothing was run",
        device=node.device.name,
        memory_bytes_per_s=node.device.memory_bytes_per_s,
        roofs=tuple(
            Roof(dtype=names, flops_per_s=rate) for names, rate in _roofs(node.device, dtypes)
        ),
        dots=tuple(dot for phase, _, found in phases for dot in _dots(phase, found)),
        bars=tuple(_bar(phase, label, found) for phase, label, found in phases),
        # Answers of one token have no gaps, and nothing at zero is on a logarithmic axis.
        curves=tuple(each for each in curves if all(p.value > 0 for p in each.points)),
        chosen_concurrency=throughput.concurrency,
        footnote=f"Bands: nine of ten runs are expected inside ({measured}; {band.basis}). "
        "Dots: an operation's FLOPs per byte, at the rate that it is predicted to reach on one "
        "device; their area is their share of the step.",
    )


def _roofs(device: Device, dtypes: set[str]) -> list[tuple[str, float]]:
    """Flat parts of the roof; a dtype that this silicon widens shares the wider one's."""
    found: dict[float, list[str]] = {}
    for dtype in sorted(dtypes | {"bf16"}):
        found.setdefault(device.peak_flops(dtype), []).append(
            device.half_dtype if dtype == "bf16" else dtype
        )
    return [(" and ".join(names), rate) for rate, names in sorted(found.items())]


def _dots(phase: str, found: Phase) -> list[Dot]:
    return [
        Dot(
            name=part.name,
            kind=part.kind,
            phase=phase,
            flops_per_byte=part.flops_per_byte,
            flops_per_s=part.flops_per_s,
            share_fraction=part.share_fraction,
        )
        for part in found.parts
        if part.flops_per_byte is not None and part.flops_per_s is not None
    ]


def _bar(phase: str, label: str, found: Phase) -> StepBar:
    return StepBar(
        phase=phase,
        label=label,
        time=format_seconds(found.step_ms / MS_PER_S),
        bound=binding(found),
        slices=tuple(
            StepSlice(
                name=part.name,
                kind=part.kind,
                share_fraction=part.share_fraction,
                time=format_seconds(part.time_ms / MS_PER_S),
            )
            for part in found.parts
        ),
    )


def _curve(
    title: str,
    unit: str,
    points: Sequence[OperatingPoint],
    field: str,
    low_factor: float,
    high_factor: float,
) -> Curve:
    scale = 1 / MS_PER_S if unit == "s" else 1.0
    return Curve(
        title=title,
        unit=unit,
        points=tuple(
            BandPoint(
                concurrency=point.concurrency,
                value=getattr(point, field) * scale,
                low=getattr(point, field) * scale * low_factor,
                high=getattr(point, field) * scale * high_factor,
            )
            for point in points
        ),
    )
