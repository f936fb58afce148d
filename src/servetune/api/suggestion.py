"""Suggestion of runs to measure: which, their worth, and the commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from servetune.api.estimate_commands import anchor_commands
from servetune.hardware import Node
from servetune.models import load_shape
from servetune.perf import Suggestion, suggested_runs
from servetune.perf.sweep import layouts
from servetune.plan import Plan
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import Workload


class SuggestedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs to measure first: those after which least is in doubt.

    Attributes:
        node: Machine to measure on.
        workload: Lengths of the requests.
        suggested: The runs, and the doubt before and after them.
        commands: Commands that measure them and keep what they say.
        model: Name of the network.
    """

    node: Node
    workload: Workload
    suggested: Suggestion
    commands: tuple[str, ...]
    model: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "node": self.node,
            "workload": self.workload,
            "suggested": self.suggested,
            "commands": self.commands,
        }

    def __str__(self) -> str:
        return "\n".join(_text(self.suggested, self.model, self.node, self.commands))


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that may be served, of which some are to be measured.

    Attributes:
        model: Hub id, folder, or a name of the catalogue.
        node: Machine.
        workload: Lengths of the requests.
        quantizations: Number formats of the weights; none for the checkpoint's.
        most_users: Highest concurrency.
    """

    model: str
    node: Node
    workload: Workload
    quantizations: tuple[str, ...] = ()
    most_users: int = 256


def suggest_runs(candidates: Candidates, *, count: int, name: str) -> SuggestedRuns:
    """The runs to measure first.

    Args:
        candidates: Model, machine and settings that may be served.
        count: Number of runs.
        name: Name of the calibration that the commands keep.

    Raises:
        PlanError: No plan of the model runs on the machine.
    """
    node, workload = candidates.node, candidates.workload
    shape = load_shape(candidates.model)
    longest = math.ceil(workload.longest_tokens() / 1024) * 1024
    roomy = Plan(model=candidates.model, max_model_len=min(shape.max_context_tokens, longest))
    plans = [
        layout
        for quantization in candidates.quantizations or (None,)
        for layout in layouts(
            msgspec.structs.replace(roomy, quantization=_or_none(quantization)), shape, node
        )
    ]
    found = suggested_runs(
        plans, shape, node, workload, count=count, most_users=candidates.most_users
    )
    return SuggestedRuns(
        node=node,
        workload=workload,
        suggested=found,
        commands=tuple(anchor_commands(found.runs, node, workload, name)),
        model=shape.name,
    )


def _or_none(quantization: str | None) -> str | None:
    """`none` is the checkpoint as it is, an engine's own default."""
    return None if quantization in (None, "none") else quantization


def _text(found: Suggestion, model: str, node: Node, commands: Sequence[str]) -> Iterator[str]:
    yield (
        f"Measure these of {found.candidates:,} runs of {model} on {node.label} (nothing was run)"
    )
    yield ""
    yield "  #  users  TTFT      ITL       plan"
    for number, run in enumerate(found.runs, start=1):
        times = "  ".join(
            f"{format_seconds(each / MS_PER_S):<8}"
            for each in (run.point.ttft_ms, run.point.itl_ms)
        )
        yield f"{number:>3}  {run.point.concurrency:>5}  {times}  {run.plan.label}"
    yield ""
    yield (
        "Expected error in time per token over all of them, as a standard deviation: "
        f"{_percent(found.doubt_before)} now, {_percent(found.doubt_after)} after"
    )
    yield ""
    yield from commands


def _percent(log_sd: float) -> str:
    return f"{100 * math.expm1(log_sd):.0f}%"
