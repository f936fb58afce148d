"""Page of an estimate: its figures' data, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from servetune.api.choosing import Selection, offer_interval
from servetune.api.estimate_load import LoadCurve
from servetune.api.estimate_text import Split, binding
from servetune.api.wording import basis_text
from servetune.engines import priced_release
from servetune.errors import InputError
from servetune.hardware import Device, Node
from servetune.models import NetworkShape
from servetune.perf.roofline import OperatingPoint
from servetune.perf.roofline import Phase as FoundPhase
from servetune.perf.roofline.accuracy import Ran
from servetune.perf.sweep import Offer
from servetune.plan import Plan
from servetune.report import (
    BandPoint,
    Curve,
    Dot,
    EstimateHeading,
    MachineCost,
    Phase,
    Roof,
    RooflineFigure,
    StepBar,
    StepSlice,
    cheapest_first,
    estimate_page,
)
from servetune.store import require_regular, write_text
from servetune.workload import Workload


def require_plottable(path: Path) -> None:
    """Refuse a file that the page cannot go to, before anything is computed.

    Raises:
        InputError: It does not end in .html.
        StoreError: It is no regular file, such as a device or a folder.
    """
    if path.suffix.lower() != ".html":
        images = path.suffix.lower() in (".svg", ".png")
        raise InputError(
            f"--plot writes a page, and '{path.name}' does not end in .html",
            hint=f"name it {path.stem or 'plan'}.html"
            + ("; the page saves each figure as SVG or PNG" if images else ""),
        )
    require_regular(path)


def write_roofline(
    path: Path, best: Split, load: LoadCurve, node: Node, shape: NetworkShape, workload: Workload
) -> None:
    """Write the page of one plan on one machine."""
    heading = _heading(shape, node.label, workload, best.plan, best.plan.label)
    write_text(path, estimate_page(heading, roofline=roofline_figure(best, load, node)))


def write_machines(path: Path, offers: Sequence[Offer], selection: Selection) -> None:
    """Write the page of several machines."""
    where = f"{len(offers)} machines"
    heading = _heading(selection.shape, where, selection.workload, selection.plan, "")
    write_text(path, estimate_page(heading, machines=offer_costs(offers, selection)))


def _heading(
    shape: NetworkShape, where: str, workload: Workload, plan: Plan, label: str
) -> EstimateHeading:
    pair = workload.lengths.fixed_pair
    return EstimateHeading(
        title=f"{shape.name} on {where}",
        model=shape.name,
        machine=where,
        engine=", ".join(part for part in (priced_release(plan).engine, label) if part),
        workload=(
            f"{pair[0]:,} tokens in, {pair[1]:,} out" if pair else f"{workload.name}'s lengths"
        ),
    )


def offer_costs(offers: Sequence[Offer], selection: Selection) -> tuple[MachineCost, ...]:
    """Costs of machines with the intervals of their predictions, cheapest first."""
    ran = Ran.of(selection.workload.lengths)
    return cheapest_first(_offer_cost(offer, selection.shape, ran) for offer in offers)


def _offer_cost(offer: Offer, shape: NetworkShape, ran: Ran) -> MachineCost:
    node, best = offer.node, offer.best
    price = node.price
    if best is None:
        return MachineCost(
            machine=node.label,
            label="",
            cost=None,
            usd_per_hour=price.usd_per_hour if price else None,
            holds=False,
            missed=offer.why_not,
            predicted=True,
        )
    rate = best.point.output_tokens_per_s
    interval = offer_interval(offer, shape, ran)
    cost = best.cost_per_million_tokens_usd
    return MachineCost(
        machine=node.label,
        label=f"{best.plan.label}, {best.point.concurrency:,} users",
        cost=cost,
        low=cost * interval.low_factor if cost is not None else None,
        high=cost * interval.high_factor if cost is not None else None,
        usd_per_hour=price.usd_per_hour if price else None,
        price_source=price.source if price else "",
        copies=best.plan.replicas * best.plan.data_parallel,
        output_tokens_per_s=rate,
        missed="" if cost is not None else offer.why_not or "its price is not known",
        predicted=True,
    )


def roofline_figure(best: Split, load: LoadCurve, node: Node) -> RooflineFigure:
    """What the page shows of a plan: the roof, each operation's dot, the steps and the curves."""
    answer = best.answer
    roofline, throughput = answer.roofline, answer.best_throughput
    assert roofline is not None
    assert throughput is not None
    copies = best.plan.replicas * best.plan.data_parallel
    running = max(1, round(throughput.running / copies))
    phases: tuple[tuple[Phase, str, FoundPhase], ...] = (
        ("prefill", "one prompt's prefill", roofline.prefill),
        ("decode", f"decode of {running:,} sequences", roofline.decode_at_best),
    )
    dtypes = {part.math_dtype for _, _, phase in phases for part in phase.parts if part.math_dtype}
    points = [(point, load.interval(point.concurrency)) for point in load.points]
    band = answer.interval
    measured = "corrected by measured runs" if band.calibrated else "not calibrated here"
    curves = (
        _curve(
            "TTFT", "ms", [(p, p.ttft_ms, i.ttft_low_factor, i.ttft_high_factor) for p, i in points]
        ),
        _curve("ITL", "ms", [(p, p.itl_ms, i.low_factor, i.high_factor) for p, i in points]),
        _curve(
            "Output throughput",
            "tokens/s",
            [(p, p.output_tokens_per_s, 1 / i.high_factor, 1 / i.low_factor) for p, i in points],
        ),
    )
    return RooflineFigure(
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
        knee_concurrency=load.knee.concurrency,
        dots_note="A dot is an operation's FLOPs per byte, at the rate that it is predicted to "
        "reach on one device; its area is its share of the step.",
        curves_note=f"Predicted by formula, nothing was run. Nine of ten runs are expected inside "
        f"the intervals ({measured}; {basis_text(band)}).",
    )


def _roofs(device: Device, dtypes: set[str]) -> list[tuple[str, float]]:
    """Flat parts of the roof; a dtype that this silicon widens shares the wider one's."""
    found: dict[float, list[str]] = {}
    for dtype in sorted(dtypes | {"bf16"}):
        found.setdefault(device.peak_flops(dtype), []).append(
            device.half_dtype if dtype == "bf16" else dtype
        )
    return [(" and ".join(names), rate) for rate, names in sorted(found.items())]


def _dots(phase: Phase, found: FoundPhase) -> list[Dot]:
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


def _bar(phase: Phase, label: str, found: FoundPhase) -> StepBar:
    return StepBar(
        phase=phase,
        label=label,
        time_ms=found.step_ms,
        bound=binding(found),
        slices=tuple(
            StepSlice(
                name=part.name,
                kind=part.kind,
                share_fraction=part.share_fraction,
                time_ms=part.time_ms,
            )
            for part in found.parts
        ),
    )


def _curve(
    title: str,
    unit: Literal["ms", "tokens/s"],
    points: Sequence[tuple[OperatingPoint, float, float, float]],
) -> Curve:
    """Curve of points, each with its value and the factors of its interval."""
    return Curve(
        title=title,
        unit=unit,
        points=tuple(
            BandPoint(
                concurrency=point.concurrency, value=value, low=value * low, high=value * high
            )
            for point, value, low, high in points
        ),
    )
