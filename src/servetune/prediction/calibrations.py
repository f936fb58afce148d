"""Calibrations that are kept: named, shown, used and removed.

A calibration comes from measured trials of one model on one kind of machine with one engine,
and corrects predictions for that model, machine and engine alone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE, plan_from_settings
from servetune.errors import InputError, StoreError, UnknownName
from servetune.hardware import Node
from servetune.metrics import summarize
from servetune.models import NetworkShape
from servetune.perf import (
    Anchor,
    Calibration,
    calibrated,
    learned_factors,
    moments_for_features,
    run_features,
)
from servetune.perf.roofline import PlannedRun
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.store import TrialRecord, now_utc, read_json, write_text
from servetune.units import MS_PER_S
from servetune.workload import AllAtOnce, Workload, parse_arrivals, workload_from_client_args

#: Where calibrations are kept instead of the user's configuration folder.
FOLDER_VARIABLE = "SERVETUNE_CALIBRATIONS"

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
#: Simulations of an open loop at most, logarithm of a ratio that is near enough to one, and of the
#: largest factor on steps: what is further off had another cause.
_SECANTS, _NEAR, _REACH = 4, 0.005, 0.7


class AnchorTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Measured trial of a calibration."""

    key: str
    plan: str
    concurrency: int
    anchor: Anchor


class KeptCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration kept under a name, and what it applies to.

    Attributes:
        device: Kind of device that was measured, whatever their number.
        made_at: Wall-clock time, ISO 8601.
    """

    name: str
    model: str
    device: str
    engine: str
    calibration: Calibration
    anchors: tuple[AnchorTrial, ...]
    made_at: str

    def covers(self, *, shape: NetworkShape, device_name: str, engine: str) -> bool:
        """Whether it is of this model on this kind of device with this engine."""
        of = (self.model, self.device, self.engine)
        return of == (shape.name, device_name, engine)

    def require_for(self, *, shape: NetworkShape, node: Node) -> Calibration:
        """The calibration, if it is of this model on this kind of device.

        Raises:
            InputError: It is of another model or device.
        """
        if (self.model, self.device) != (shape.name, node.device.name):
            raise InputError(
                f"calibration '{self.name}' is of {self.model} on {self.device}, not of "
                f"{shape.name} on {node.device.name}",
                hint="measure a trial here and run servetune calibrate on its journal",
            )
        return self.calibration


def from_trials(
    records: Sequence[TrialRecord], *, name: str, shape: NetworkShape, node: Node
) -> KeptCalibration:
    """Calibration by measured trials, closed loops and open ones.

    Raises:
        InputError: None of them can serve: simulated, failed, or without a load.
    """
    usable = [record for record in records if may_anchor(record)]
    if not usable:
        raise InputError(
            "no trial can serve as an anchor",
            hint="anchors are measured trials with max_concurrency or a request_rate, and with a "
            "mean time per output token",
        )
    learned = _learned(usable, shape, node)
    anchors = tuple(_anchor(record, shape, node, learned) for record in usable)
    calibration = calibrated([one.anchor for one in anchors])
    return KeptCalibration(
        name=name,
        model=shape.name,
        device=node.device.name,
        engine=str(usable[0].metadata.engine or DEFAULT_ENGINE),
        calibration=msgspec.structs.replace(calibration, learned=learned),
        anchors=anchors,
        made_at=now_utc(),
    )


def may_anchor(record: TrialRecord) -> bool:
    """Whether a record is of a measured run under a load, with times per token."""
    loaded = record.config.client_args.get("max_concurrency") or _open_loop(record)
    measured = record.status == "ok" and not record.simulated
    tpot_ms = record.results.mean_tpot_ms
    return bool(measured and loaded and tpot_ms and 0 < tpot_ms < math.inf)


def _open_loop(record: TrialRecord) -> bool:
    load = record.config.client_args
    law = str(load.get("arrivals", ""))  # written out it is a law of due times
    return load.get("request_rate") not in (None, "inf") or (
        "=" in law and not isinstance(parse_arrivals(law), AllAtOnce)
    )


def _learned(records: Sequence[TrialRecord], shape: NetworkShape, node: Node) -> dict[str, float]:
    """Factors on the law itself by closed loops, where no fit has seen such silicon."""
    records = [record for record in records if not _open_loop(record)]
    runs = [(_plan_of(record, shape), _workload_of(record)) for record in records]
    return learned_factors(
        [
            PlannedRun(
                shape=shape,
                node=node,
                plan=plan,
                lengths=workload.lengths,
                concurrency=workload.concurrency or 1,
                request_count=workload.request_count,
            )
            for plan, workload in runs
        ],
        [record.results.mean_ttft_ms for record in records],
        [record.results.mean_tpot_ms for record in records],
        warm=all(workload.warmup_count for _, workload in runs),
    )


def _workload_of(record: TrialRecord) -> Workload:
    return workload_from_client_args(
        {k: v for k, v in record.config.client_args.items() if k != "dataset_path"}
    )


def _plan_of(record: TrialRecord, shape: NetworkShape) -> Plan:
    return record.plan or plan_from_settings(  # another tool's record
        str(record.metadata.engine or DEFAULT_ENGINE), shape.name, record.config.server_args
    )


def _anchor(
    record: TrialRecord, shape: NetworkShape, node: Node, learned: dict[str, float]
) -> AnchorTrial:
    """Trial and its simulation, which serves the same requests in the same way.

    Of an open loop the predicted times are those of steps that are off by one factor: slower steps
    keep more requests in flight, so that near saturation its times are off by more than steps are.
    """
    workload, plan = _workload_of(record), _plan_of(record, shape)
    measured_tpot_ms = record.results.mean_tpot_ms
    assert measured_tpot_ms is not None  # of a trial that can serve

    def simulated(step_factor: float) -> _Simulated:
        law = Calibration(tpot_factor=step_factor, learned=learned)
        run = simulate(plan, shape, node, workload, calibration=law)
        means = summarize(run.records, duration_s=run.duration_s, extras=False)
        return _Simulated(
            ttft_ms=means["mean_ttft_ms"],
            tpot_ms=means["mean_tpot_ms"],
            in_flight=len(run.records) / run.duration_s * means["mean_e2e_latency_ms"] / MS_PER_S,
        )

    predicted, step_factor = simulated(1.0), 1.0
    in_flight = float(workload.concurrency or 0)
    if _open_loop(record):
        in_flight = _measured_in_flight(record) or predicted.in_flight
        in_flight = min(in_flight, workload.concurrency or in_flight)
        step_factor, predicted = _with_measured_steps(simulated, predicted, measured_tpot_ms)
    run = PlannedRun(
        shape=shape,
        node=node,
        plan=plan,
        lengths=moments_for_features(workload),
        concurrency=max(1, round(in_flight)),
        request_count=workload.request_count,
    )
    (place,) = run_features([run], in_flight=[max(1.0, in_flight)])
    return AnchorTrial(
        key=record.key,
        plan=plan.label,
        concurrency=max(1, round(in_flight)),
        anchor=Anchor(
            predicted_ttft_ms=predicted.ttft_ms / step_factor,
            predicted_tpot_ms=predicted.tpot_ms / step_factor,
            measured_ttft_ms=record.results.mean_ttft_ms,
            measured_tpot_ms=measured_tpot_ms,
            place=place,
        ),
    )


class _Simulated(NamedTuple):
    """Means of a simulated trial."""

    ttft_ms: float
    tpot_ms: float
    in_flight: float


def _with_measured_steps(
    simulated: Callable[[float], _Simulated], predicted: _Simulated, measured_tpot_ms: float
) -> tuple[float, _Simulated]:
    """Factor on every step with which a trial has its measured time per token, and its means then.

    By secants over logarithms, from no factor to the ratio of measured and predicted time at most,
    which a trial without queues needs.

    Args:
        simulated: Means of the trial by the factor on every step.
        predicted: Means without a factor.
        measured_tpot_ms: Measured time per token.
    """

    def off(means: _Simulated) -> float:
        return math.log(measured_tpot_ms / means.tpot_ms)

    known = [(0.0, predicted)]
    furthest = log = min(max(off(predicted), -_REACH), _REACH)
    while len(known) <= _SECANTS and abs(off(known[-1][1])) > _NEAR:
        known.append((log, simulated(math.exp(log))))
        (before, earlier), (now, means) = known[-2:]
        moved = off(earlier) - off(means)
        if not moved:
            break
        ahead = now + off(means) * (now - before) / moved
        log = min(max(ahead, min(0.0, furthest)), max(0.0, furthest))
    log, means = min(known, key=lambda one: abs(off(one[1])))
    return math.exp(log), means


def _measured_in_flight(record: TrialRecord) -> float | None:
    """Requests in flight of a measured open loop, on average, by Little's law."""
    rate, e2e_ms = record.results.request_throughput, record.results.mean_e2e_latency_ms
    return rate * e2e_ms / MS_PER_S if rate and e2e_ms else None


def keep(kept: KeptCalibration) -> Path:
    """Write a calibration under its name, in place of an older one.

    Raises:
        InputError: The name cannot be a file's.
    """
    path = _path(kept.name)
    write_text(path, msgspec.json.format(msgspec.json.encode(kept), indent=2).decode() + "\n")
    return path


def calibration_named(name: str) -> KeptCalibration:
    """The calibration that was kept under a name.

    Raises:
        UnknownName: There is none.
        StoreError: Its file cannot be read.
    """
    path = _path(name)
    if not path.is_file():
        raise UnknownName(
            "calibration", name, calibration_names(), hint="see servetune calibrate --list"
        )
    raw: Any = read_json(path)
    try:
        return msgspec.convert(raw, ready(KeptCalibration))
    except msgspec.ValidationError as error:
        raise StoreError(f"{path} is not a calibration: {error}") from None


def calibration_names() -> list[str]:
    """Names of all that are kept."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def remove(name: str) -> None:
    """Forget a calibration.

    Raises:
        UnknownName: There is none.
    """
    calibration_named(name)
    _path(name).unlink()


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot name a calibration", hint="use letters, digits, dots and dashes"
        )
    return _folder() / f"{name}.json"


def _folder() -> Path:
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "servetune" / "calibrations"
