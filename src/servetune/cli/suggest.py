"""What `servetune calibrate --suggest` prints: runs to measure, their worth, the commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from servetune.cli.estimate_commands import anchor_commands
from servetune.cli.output import print_json
from servetune.errors import InputError
from servetune.hardware import Node
from servetune.models import NetworkShape, load_shape
from servetune.perf import Suggestion, suggested_runs
from servetune.perf.sweep import layouts
from servetune.plan import Plan
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import Workload

__all__ = ["tell_suggestion"]


def tell_suggestion(
    model: str | None,
    node: Node,
    workload: Workload,
    *,
    quantizations: Sequence[str],
    most_users: int,
    count: int,
    name: str | None,
    as_json: bool,
) -> int:
    """Print which runs of a model on a machine to measure first.

    Raises:
        InputError: Nobody said which model, or nothing of it runs there.
    """
    if model is None:
        raise InputError("--suggest needs --model", hint="name it as servetune estimate does")
    shape = load_shape(model)
    longest = math.ceil(workload.longest_tokens() / 1024) * 1024
    roomy = Plan(model=model, max_model_len=min(shape.max_context_tokens, longest))
    plans = [
        layout
        for quantization in quantizations or (None,)
        for layout in layouts(
            msgspec.structs.replace(roomy, quantization=_or_none(quantization)), shape, node
        )
    ]
    found = suggested_runs(plans, shape, node, workload, count=count, most_users=most_users)
    commands = anchor_commands(found.runs, node, workload, name or "here")
    if as_json:
        print_json({"node": node, "workload": workload, "suggested": found, "commands": commands})
        return 0
    for line in _text(found, shape, node, commands):
        print(line)
    return 0


def _or_none(quantization: str | None) -> str | None:
    """`none` is the checkpoint as it is, which engines are not told."""
    return None if quantization in (None, "none") else quantization


def _text(
    found: Suggestion, shape: NetworkShape, node: Node, commands: Sequence[str]
) -> Iterator[str]:
    yield (
        f"Measure these of {found.candidates:,} runs of {shape.name} on {node.label} "
        "(nothing was run)"
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
