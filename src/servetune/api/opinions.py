"""Predictions of servetune and of NVIDIA's aiconfigurator side by side, never mixed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from servetune.api.estimate_text import Split
from servetune.hardware import Node
from servetune.models import NetworkShape, load_config
from servetune.perf import Calibration
from servetune.perf.roofline import ClosedLoopRun, OperatingPoint, performance_at
from servetune.prediction.aiconfigurator import AiconfiguratorEstimate, estimate_run
from servetune.units import MS_PER_S, format_rate, format_seconds
from servetune.workload import Workload


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency as both predictors see it; `theirs` is aiconfigurator's."""

    ours: OperatingPoint
    theirs: AiconfiguratorEstimate


def side_by_side(
    best: Split,
    model: str,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    calibration: Calibration | None,
) -> list[Compared]:
    """Both predictions for one user, for the best throughput, and for a number between.

    Raises:
        PlanError: aiconfigurator has no answer for this plan.
    """
    throughput = best.answer.best_throughput
    assert throughput is not None
    most = throughput.concurrency
    config = load_config(model)
    compared: list[Compared] = []
    for concurrency in sorted({1, math.isqrt(most), most}):
        run = ClosedLoopRun(
            shape=shape,
            node=node,
            plan=best.plan,
            lengths=workload.lengths,
            concurrency=concurrency,
            request_count=workload.request_count,
        )
        theirs = estimate_run(run, config)
        # It prices whole batches on every rank, so ours is priced with as many users.
        ours = performance_at(
            shape, node, best.plan, workload, theirs.concurrency, calibration=calibration
        )
        if ours.concurrency not in {each.ours.concurrency for each in compared}:
            compared.append(Compared(ours=ours, theirs=theirs))
    return compared


def opinion_text(
    compared: Sequence[Compared], shape: NetworkShape, node: Node, *, alone: bool
) -> Iterator[str]:
    """One row per concurrency and predictor; `alone` leaves servetune's out."""
    head = "SECOND OPINION" if alone else "Second opinion"
    yield f"{head} (arithmetic, nothing was run): {shape.name} on {node.label}"
    yield "  concurrency  predictor       TTFT      TPOT      E2E        out tok/s"
    for one in compared:
        point, theirs = one.ours, one.theirs
        if not alone:
            yield _row(
                point.concurrency,
                "servetune",
                (point.ttft_ms, point.itl_ms, point.e2e_ms),
                point.output_tokens_per_s,
            )
        yield _row(
            theirs.concurrency,
            "aiconfigurator",
            (theirs.ttft_ms, theirs.tpot_ms, theirs.e2e_ms),
            theirs.output_tokens_per_s,
        )
    yield f"  aiconfigurator: NVIDIA's prediction by {compared[0].theirs.predictor}"
    yield "  its numbers are its own: no interval, calibration or factor of servetune is in them"
    if not alone:
        yield "  servetune: the steady state above; TPOT is its mean gap between tokens"
    for warning in dict.fromkeys(one.theirs.warning for one in compared if one.theirs.warning):
        yield f"  aiconfigurator warns: {warning}"


def _row(
    concurrency: int, predictor: str, times_ms: tuple[float, float, float], rate: float
) -> str:
    ttft, tpot, e2e = (format_seconds(time_ms / MS_PER_S) for time_ms in times_ms)
    return (
        f"  {concurrency:>11}  {predictor:<14}  {ttft:<9} {tpot:<9} {e2e:<10} "
        f"{format_rate(rate):>9}"
    )
