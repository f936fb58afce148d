"""What a table's row does not say, and how it was read so that an engine could run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servetune.engines import WIDEST_FRACTION
from servetune.perf.roofline import ClosedLoopRun

__all__ = ["assumed"]

#: How a table calls one kind of server that does both; `static` batches are such runs too.
_TOGETHER = ("", "agg", "aggregated", "ifb", "static")
_APART = ("disagg", "disaggregated", "pd")

#: Whence `prediction.recipes` knows; a row with settings of its own is priced by `estimate`.
_SO_RUN = "as InferenceMAX ran these settings"


def assumed(row: Mapping[str, str], run: ClosedLoopRun) -> str:
    """How the run differs from the row's own words, for a reader; empty where it does not."""
    return "; ".join(_readings(row, run))


def _readings(row: Mapping[str, str], run: ClosedLoopRun) -> Iterator[str]:
    plan = run.plan
    divided = plan.data_parallel > 1 and row.get("dp", "").strip() in ("", "1", "1.0")
    if divided:
        yield f"attention divided by users over {plan.data_parallel} devices, {_SO_RUN}"
    elif plan.expert_parallel and row.get("moe_ep", "").strip() in ("", "1", "1.0"):
        yield (
            "experts whole on their devices (expert parallelism): split over "
            f"{plan.tensor_parallel * plan.data_parallel} they would not divide"
        )
    elif not plan.expert_parallel and row.get("moe_ep", "").strip() not in ("", "0", "1", "1.0"):
        yield "no expert parallelism: the network has no experts"
    if plan.draft_tokens:
        yield f"{plan.draft_tokens} tokens drafted ahead per step, {_SO_RUN}"
    if run.held_steps:
        yield f"waiting prompts held back for {run.held_steps:.3g} steps, {_SO_RUN}"
    if plan.gpu_memory_fraction == WIDEST_FRACTION:
        yield (
            f"engine's share of memory {WIDEST_FRACTION:g}: its default does not hold the weights "
            "and one request"
        )
    mode = row.get("mode", "").strip().lower()
    if mode in _APART:
        yield (
            f"mode {mode}: priced as one kind of server, as the row does not say which devices "
            "compute prompts; servetune simulate --prefill-replicas plays them apart"
        )
    elif mode not in _TOGETHER:
        yield f"mode {mode} is not known: priced as one kind of server"
