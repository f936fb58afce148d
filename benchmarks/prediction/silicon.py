"""The shared development set as nouns of servetune: one measured run per row."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from servetune.engines import resolved
from servetune.errors import ServetuneError
from servetune.hardware import Node
from servetune.models import NetworkShape, shape_from_config
from servetune.perf.roofline.closed_loop import ClosedLoops
from servetune.perf.roofline.closed_loop_runs import closed_loops
from servetune.perf.roofline.operations import operations
from servetune.perf.roofline.similarity import RunFeatures
from servetune.perf.roofline.steady_state import LengthMoments, length_moments
from servetune.perf.roofline.step_laws import PlanBatch
from servetune.plan import Plan
from servetune.prediction.inferencemax import unstated_settings
from servetune.prediction.rows import REQUESTS_PER_USER, run_of
from servetune.workload import LengthLaws
from servetune.workload.laws import Law, Uniform

__all__ = ["Measured", "loops_of", "read"]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what ran, and what was measured.

    Attributes:
        group: What anchors and folds are made of: (model, GPU).
        misfit: Why the plan is said not to fit although it ran, if so.
        speculative: Whether answers were drafted ahead, by `prediction.inferencemax`.
        admission_delay_steps: See `ClosedLoopRun`.
    """

    id: str
    model: str
    gpu: str
    engine: str
    version: str
    precision: str
    shape: NetworkShape
    node: Node
    plan: Plan
    kv_tokens: float
    lengths: LengthLaws
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    misfit: str | None
    speculative: bool
    admission_delay_steps: float

    @property
    def group(self) -> tuple[str, str]:
        return self.model, self.gpu

    @property
    def place(self) -> RunFeatures:
        """Lengths are the nominal ones."""
        return RunFeatures(
            engine=self.engine,
            storage=self.precision,
            devices=self.plan.tensor_parallel * self.plan.data_parallel,
            concurrency=self.concurrency,
            input_tokens=self.nominal_lengths[0],
            output_tokens=self.nominal_lengths[1],
        )

    @property
    def nominal_lengths(self) -> tuple[int, int]:
        """Longest prompt and longest answer, by which its table names the row."""
        return _longest(self.lengths.input_tokens), _longest(self.lengths.output_tokens)

    @property
    def request_count(self) -> int:
        return REQUESTS_PER_USER * self.concurrency


def read(data: Path) -> tuple[list[Measured], dict[str, int]]:
    """All rows whose network is modelled, and for the others why not, with counts."""
    with (data / "silicon_dev.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found, refused = [], {}
    for row in rows:
        try:
            found.append(_measured(row, data / "model_configs"))
        except ServetuneError as error:
            why = error.message.split(":")[0][:90]
            refused[why] = refused.get(why, 0) + 1
    return found, refused


def loops_of(rows: Iterable[Measured]) -> ClosedLoops:
    """The rows' runs side by side."""
    rows = list(rows)
    work = {}
    for row in rows:
        key = _work_key(row)
        if key not in work:
            work[key] = operations(row.plan, row.shape)
    return ClosedLoops(
        PlanBatch([(work[_work_key(row)], row.node, row.plan) for row in rows]),
        [row.plan for row in rows],
        [row.kv_tokens for row in rows],
        [_moments(row.lengths) for row in rows],
        [row.concurrency for row in rows],
        [row.request_count for row in rows],
        admission_delay_steps=[row.admission_delay_steps for row in rows],
    )


def _measured(row: dict[str, str], configs: Path) -> Measured:
    """A row as `servetune estimate --batch --as inferencemax` reads it."""
    run = run_of(row, lambda model: _shape(model, configs), unstated_settings)
    assert isinstance(run.lengths, LengthLaws)
    filled = resolved(run.plan, run.shape, run.node.device)
    loop, (misfit,) = closed_loops([run])
    return Measured(
        id=row["id"],
        model=row["model"],
        gpu=row["gpu"],
        engine=row["engine"],
        version=run.engine_version,
        precision=row["precision_weights"],
        shape=run.shape,
        node=run.node,
        plan=filled,
        kv_tokens=float(loop.kv_tokens[0]),
        lengths=run.lengths,
        concurrency=run.concurrency,
        ttft_ms=float(row["ttft_ms"]),
        tpot_ms=float(row["tpot_ms"]),
        misfit=misfit,
        speculative=run.plan.draft_tokens is not None,
        admission_delay_steps=run.admission_delay_steps,
    )


@functools.cache
def _shape(model: str, configs: Path) -> NetworkShape:
    path = configs / f"{model.replace('/', '--')}_config.json"
    if not path.is_file():
        raise ServetuneError(f"no configuration of {model}")
    return shape_from_config(json.loads(path.read_text()), name=model, source=path.name)


@functools.cache
def _moments(lengths: LengthLaws) -> LengthMoments:
    return length_moments(lengths)


def _work_key(row: Measured) -> tuple[object, ...]:
    plan = row.plan
    return (
        row.model,
        row.shape.quantization,
        plan.engine,
        plan.tensor_parallel,
        plan.data_parallel,
        plan.expert_parallel,
        plan.kv_cache_dtype,
    )


def relative_errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Absolute errors in %."""
    return 100 * np.abs(predicted / measured - 1)


def _longest(law: Law) -> int:
    return law.most if isinstance(law, Uniform) else int(law.draw(1, np.random.default_rng(1))[0])
