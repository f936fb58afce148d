"""A trial in virtual time: no server, no clock, the same answer every time."""

from __future__ import annotations

from typing import Any

from servetune.errors import PlanError
from servetune.hardware.device import Node
from servetune.metrics import Constraint, summarize
from servetune.models.shape import NetworkShape
from servetune.perf import Calibration
from servetune.perf.sim import simulate
from servetune.plan.plan import Plan
from servetune.store import Failure, TrialRecord
from servetune.trials.trial import Run, Trial, record_of
from servetune.workload import Workload

__all__ = ["simulate_trial", "simulated_results"]


def simulated_results(
    plan: Plan,
    shape: NetworkShape,
    node: Node,
    workload: Workload,
    *,
    request_limits: tuple[Constraint, ...] = (),
    percentiles: tuple[float, ...] = (),
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """What the simulator says a trial's results would be, under the journal's names.

    Raises:
        PlanError: The plan does not fit the model or the machine.
    """
    simulation = simulate(plan, shape, node, workload, calibration=calibration)
    duration_s = max(record.end_s for record in simulation.records)
    results = summarize(
        simulation.records,
        duration_s=duration_s,
        per_request_limits=request_limits,
        further_percentiles=percentiles,
    )
    results["server"] = {
        "steps": simulation.steps,
        "busy_fraction": simulation.busy_s / duration_s if duration_s else None,
        "kv_peak_fraction": simulation.kv_peak_fraction,
        "preemptions": simulation.preemptions,
    }
    return results


def simulate_trial(trial: Trial, run: Run, *, cmd: str, server_cmd_args: list[str]) -> TrialRecord:
    """Run a trial in virtual time; a plan that cannot run becomes a failed record."""
    assert run.shape is not None
    assert run.node is not None
    results: dict[str, Any] | None = None
    failure: Failure | None = None
    try:
        results = simulated_results(
            trial.plan,
            run.shape,
            run.node,
            trial.workload,
            request_limits=run.request_limits,
            percentiles=percentiles_of(run.constraints),
            calibration=run.calibration.calibration if run.calibration else None,
        )
    except PlanError as error:
        failure = Failure(kind="does_not_fit", reason=error.message)
    return record_of(
        trial, run, cmd=cmd, server_cmd_args=server_cmd_args, results=results, failure=failure
    )


def percentiles_of(constraints: tuple[Constraint, ...]) -> tuple[float, ...]:
    """Percentiles that constraints speak of, so that records hold them exactly."""
    return tuple(float(c.statistic[1:]) for c in constraints if c.statistic[0] == "p")
