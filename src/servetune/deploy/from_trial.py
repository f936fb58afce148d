"""Plan, machine, saturation point and evidence of a trial, for its deployment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from servetune.deploy.bundle import PLAN_FILE, Bundle, json_text
from servetune.deploy.evidence import Evidence, Level, SaturationPoint, saturation_point
from servetune.engines import DEFAULT_ENGINE, plan_from_settings, resolved
from servetune.errors import InputError
from servetune.hardware import (
    Device,
    Node,
    cheapest_instance_with,
    device,
    instance,
    instances,
    node,
)
from servetune.metrics import Constraint
from servetune.models import NetworkShape
from servetune.plan import Plan
from servetune.search import SearchSummary
from servetune.store import TrialRecord

#: The trial that a bundle rests on, as its journal has it.
TRIAL_FILE = "trial.jsonl"


def plan_of_trial(trial: TrialRecord) -> Plan:
    """The Plan of a trial, read from its server's arguments where the record has none.

    The release that a simulation was of is the evidence's (`evidence_of`).

    Raises:
        InputError: The record does not name its model.
    """
    if trial.plan is not None:
        return msgspec.structs.replace(trial.plan, engine_version=None)
    model = trial.metadata.model
    if not model:
        raise InputError("the record does not name its model (metadata.model_tag)")
    engine = str(trial.metadata.engine or trial.results.backend or DEFAULT_ENGINE)
    return plan_from_settings(engine, str(model), trial.config.server_args)


def explicit_plan(
    plan: Plan, shape: NetworkShape | None, target: Device, version: str | None, trial: TrialRecord
) -> Plan:
    """The Plan with all that the trial left open written out.

    First what its server settled at its start, by its log, where the same device will serve; then
    the defaults of the version that are known before a start; none without the network's `shape`.
    The cache's block size is the attention kernel's to choose.
    """
    if trial.metadata.gpu_type == f"{target.vendor} {target.name}".strip():
        settled = (trial.results.startup or {}).get("settled", {})
        opened = {name: value for name, value in settled.items() if getattr(plan, name) is None}
        plan = msgspec.structs.replace(plan, **opened)
    if shape is None:
        return plan
    return msgspec.structs.replace(
        resolved(plan, shape, target, version=version), block_tokens=plan.block_tokens
    )


def evidence_of(trial: TrialRecord, source: Path, search: SearchSummary | None = None) -> Evidence:
    """Evidence of a trial of a journal or summary.

    Args:
        trial: The trial.
        source: Its journal or summary.
        search: What the search that chose it did, where that is known.
    """
    doubt = search.doubt_about(trial.key) if search else None
    metadata, results = trial.metadata, trial.results
    concurrency = results.get("max_concurrency")
    dataset = results.get("dataset_name") or "random"
    return Evidence(
        results=results,
        simulated=trial.simulated,
        concurrency=int(concurrency) if concurrency else None,
        engine=str(metadata.get("framework") or results.get("backend") or DEFAULT_ENGINE),
        engine_version=trial.provenance.get("engine_version")
        or (trial.plan.engine_version if trial.plan else None),
        hardware=f"{metadata.get('gpu_count')}x {metadata.get('gpu_type')}",
        workload=f"{dataset}, {results.get('completed')} requests",
        source=f"{source.name}, trial {trial.key}",
        doubt="; ".join([doubt.verdict, *doubt.open_questions()]) if doubt else "",
    )


def instance_of_trial(trial: TrialRecord) -> Node:
    """The SageMaker instance that was measured, else the cheapest with as many such devices.

    Raises:
        InputError: No instance of the catalogue has them.
    """
    measured = trial.metadata.instance_type
    for name in (str(measured), f"ml.{measured}"):  # an EC2 type is hosted under SageMaker's name
        if name in instances("sagemaker"):
            return instance(name, service="sagemaker")
    gpu = str(trial.metadata.gpu_type or "")
    count = int(trial.metadata.gpu_count or 1)
    offer = cheapest_instance_with(device(gpu), count) if gpu and gpu != "unknown" else None
    if offer is None:
        raise InputError(
            f"no SageMaker instance in the catalogue has {count}x {gpu or 'unknown device'}",
            hint="name one with --instance, such as ml.g6.12xlarge",
        )
    return offer


def machine_of_trial(trial: TrialRecord, target: Device) -> Node:
    """The machine that was measured, or one with as many of another device."""
    measured = str(trial.metadata.instance_type or "").removeprefix("ml.")
    known = instances("ec2").get(measured)
    if known is not None and known.device.name == target.name:
        return known
    return node(gpu=target, count=int(trial.metadata.gpu_count or 1))


def device_of_trial(trial: TrialRecord, gpu: str | None) -> Device:
    """The device of that name, else the one that was measured.

    Raises:
        InputError: The trial does not name its device.
    """
    gpu = gpu or str(trial.metadata.gpu_type or "")
    if not gpu or gpu == "unknown":
        raise InputError(
            "the trial does not say on which device it ran, and defaults depend on it",
            hint="name the device with --gpu, such as --gpu L4",
        )
    return device(gpu)


def saturation_of_trials(
    trials: Sequence[TrialRecord],
    chosen: TrialRecord,
    constraints: tuple[Constraint, ...],
    *,
    copies: int,
) -> SaturationPoint | None:
    """The saturation point of the chosen settings over the concurrencies that were tried with them.

    Args:
        trials: Trials of the whole sweep.
        chosen: The trial that is deployed.
        constraints: Limits that a good trial meets.
        copies: Copies that shared each trial's requests.
    """
    levels = []
    for trial in _of_same_server(trials, chosen):
        results = trial.results
        concurrency = results.get("max_concurrency")
        latency_ms = results.get("median_e2e_latency_ms")
        if concurrency and latency_ms is not None:
            good = all(limit.holds(results) is True for limit in constraints)
            levels.append(Level(int(concurrency), float(latency_ms), good if constraints else None))
    return saturation_point(levels, copies)


def with_levels(
    evidence: Evidence, trials: Sequence[TrialRecord], chosen: TrialRecord, *, copies: int
) -> Evidence:
    """The evidence with the throughput of the chosen settings at each load that was tried.

    Args:
        evidence: Evidence of the chosen trial.
        trials: Trials of the whole sweep.
        chosen: The trial that is deployed.
        copies: Copies that shared each trial's requests.
    """
    levels = {
        float(trial.results["max_concurrency"]) / copies: float(per_s) / copies
        for trial in _of_same_server(trials, chosen)
        if trial.results.get("max_concurrency")
        and (per_s := trial.results.get("output_throughput"))
    }
    return msgspec.structs.replace(evidence, copies=copies, levels=tuple(sorted(levels.items())))


def _of_same_server(trials: Sequence[TrialRecord], chosen: TrialRecord) -> Iterator[TrialRecord]:
    """Trials that ended well with the chosen trial's server."""
    for trial in trials:
        same = trial.config.server_args == chosen.config.server_args and trial.plan == chosen.plan
        if same and trial.status == "ok":
            yield trial


def with_trial(bundle: Bundle, trial: TrialRecord) -> Bundle:
    """The bundle with the trial that `bench --against` proves."""
    about = bundle.json(PLAN_FILE)
    about["files"].append(TRIAL_FILE)
    texts: dict[str, str] = dict(bundle.files)
    texts[PLAN_FILE] = json_text(about)
    texts[TRIAL_FILE] = trial.to_json().decode() + "\n"
    return msgspec.structs.replace(bundle, files=tuple(texts.items()))
