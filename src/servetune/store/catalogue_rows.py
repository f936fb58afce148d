"""Rows of the catalogue: runs, their trials, deployments and load tests of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from servetune.store.register import DeployedConfig, DeploymentPlace

RunState = Literal["running", "ended", "interrupted", "failed", "lost", "gone"]


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """Trial of a run.

    Attributes:
        run: Identity of the run.
        number: Place in the journal, from 1.
        key: Key of the trial.
        status: Status: `ok` or `failed`.
        label: Settings of it that differ in the run.
        server_args: Settings of the server as JSON.
        client_args: Settings of the load as JSON.
        output_throughput: Output tokens per second.
        request_throughput: Requests per second.
        mean_ttft_ms: Mean time to the first token.
        p99_ttft_ms: 99th percentile of the same.
        mean_itl_ms: Mean gap between tokens.
        cost_per_million_tokens: Cost of a million output tokens in dollars.
        failure: Reason why it has no results.
    """

    run: str
    number: int
    key: str
    status: str = "ok"
    label: str = ""
    server_args: str = "{}"
    client_args: str = "{}"
    output_throughput: float | None = None
    request_throughput: float | None = None
    mean_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_itl_ms: float | None = None
    cost_per_million_tokens: float | None = None
    failure: str = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """Run of the catalogue.

    Attributes:
        run: Identity of the run.
        path: Absolute path of its journal.
        copies: Other paths at which the same journal was found.
        state: State: `running`; `ended`; `interrupted`; `failed` for an error of the run itself;
            `lost` where its process ended without a word; `gone` where the journal is not there.
        verb: Verb: `tune`, `bench` or `simulate`; empty where it is not known.
        model: Model as it was named.
        engine: Name of the engine.
        machine: Machine of the servers.
        host: Name of the machine that servetune ran on.
        workload: Digest of what is asked.
        seed: Seed of the load.
        version: Release of servetune.
        began_at: Time of its first start.
        ended_at: Time of its end, or of the last change of its journal.
        simulated: Whether trials are simulated.
        trials: Number of trials.
        failed: Number of trials that failed.
        pick: Recommended trial in words.
        pick_key: Key of it.
        objective: Objective that it is the best in.
        best: Value of it.
        problem: Reason why the journal cannot be read.
        tags: Tags by name; a tag without a value has an empty one.
    """

    run: str
    path: str
    copies: tuple[str, ...] = ()
    state: RunState = "ended"
    verb: str = ""
    model: str = ""
    engine: str = ""
    machine: str = ""
    host: str = ""
    workload: str = ""
    seed: int | None = None
    version: str = ""
    began_at: str = ""
    ended_at: str = ""
    simulated: bool = False
    trials: int = 0
    failed: int = 0
    pick: str = ""
    pick_key: str = ""
    objective: str = ""
    best: float | None = None
    problem: str = ""
    tags: dict[str, str] = {}


class DeploymentRow(msgspec.Struct, frozen=True, kw_only=True):
    """Deployment of the catalogue.

    Attributes:
        deployment: Identity of the deployment.
        place: Place of it.
        state: Last that happened: `rendered`, `registered`, `making`, `serving`, `failed`,
            `updated` or `deleted`; `measured` where it is known by a load test alone.
        config: Configuration that was deployed, or rendered where none was.
        pending: Configuration that was rendered since, where it differs.
        model_package: ARN of its SageMaker model package.
        began_at: Time at which it was first noted.
        changed_at: Time of the last change.
        history: Changes: time, what happened, run and trial.
        configs: Configurations that it had, by their digests.
    """

    deployment: str
    place: DeploymentPlace
    state: str = "measured"
    config: DeployedConfig = DeployedConfig()
    pending: DeployedConfig | None = None
    model_package: str = ""
    began_at: str = ""
    changed_at: str = ""
    history: tuple[tuple[str, str, str, str], ...] = ()
    configs: dict[str, DeployedConfig] = {}


class MeasurementRow(msgspec.Struct, frozen=True, kw_only=True):
    """Load test of a deployment.

    Attributes:
        deployment: Identity of the deployment.
        at: Time of it.
        config: Digest of the configuration that was measured; empty where it is not known.
        run: Identity of the load test's run.
        path: Journal of it.
        trial: Key of its record.
        against: Key of the trial that it was compared with.
        reproduced: Whether it did what that trial did.
        results: Results under the journal's names.
        component: Inference component that was asked.
        simulated: Whether no real server answered.
        changed: Whether the configuration changed while it ran.
    """

    deployment: str
    at: str
    config: str = ""
    run: str = ""
    path: str = ""
    trial: str = ""
    against: str = ""
    reproduced: bool | None = None
    results: dict[str, float] = {}
    component: str = ""
    simulated: bool = False
    changed: bool = False


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a run by its journal; empty where no record tells.

    Attributes:
        trials: Trials in order, without their run.
        about: Further fields of `RunRow` by name.
    """

    trials: tuple[TrialRow, ...]
    about: dict[str, Any] = {}


FactsOf = Callable[[Path], RunFacts]
"""Function that reads a journal; raises `StoreError` where that cannot be."""
