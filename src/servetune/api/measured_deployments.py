"""Load tests of deployments, as the register of this machine has them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from servetune.api.bench_request import Bench
from servetune.api.registration import tell_register
from servetune.errors import ServetuneError
from servetune.loadgen import Target
from servetune.report.baseline import BaselineComparison
from servetune.store import TrialRecord
from servetune.store.deployments import digest_in_service
from servetune.store.register import DeploymentMeasured, DeploymentPlace

#: Results of a load test that tables of deployments show.
_RESULTS = (
    "max_concurrency", "request_rate", "completed", "error_rate", "request_throughput",
    "output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_e2e_latency_ms",
)  # fmt: skip


def measured_deployment(request: Bench, target: Target) -> DeploymentMeasured | None:
    """Deployment that a load test will be of, with the configuration in service as it begins;
    `None` for a server of which nothing is known.

    The configuration is that of the bundle where one is named, else the register's last word.

    Args:
        request: Request as it was asked for.
        target: First server that takes the load.
    """
    folder, signing = request.baseline.against, target.signing
    bundled = None
    if folder is not None and folder.is_dir():
        from servetune.deploy.registry import registered_bundle

        try:
            bundled = registered_bundle(folder)
        except (ServetuneError, OSError):  # it is no bundle that can be read
            return None
    config = bundled.config.digest if bundled is not None else ""
    if bundled is not None and bundled.place.target != "sagemaker":
        return DeploymentMeasured(place=bundled.place, config=config)
    if request.endpoint.sagemaker:
        from servetune.api.bench_endpoint import callers_account

        place = DeploymentPlace(
            target="sagemaker",
            name=request.endpoint.sagemaker,
            region=signing.region if signing is not None else request.endpoint.region or "",
            account=callers_account(request),
        )
        if bundled is None:
            with suppress(ServetuneError):  # what cannot be read cannot be written either
                config = digest_in_service(place)
        component = request.endpoint.adapter or request.endpoint.component or ""
        return DeploymentMeasured(place=place, config=config, component=component)
    if bundled is None or request.server.urls:
        return None
    return DeploymentMeasured(place=bundled.place, config=config)


def note_measured(
    deployment: DeploymentMeasured,
    record: TrialRecord,
    comparison: BaselineComparison | None,
    journal: Path | None,
) -> None:
    """Tell the register of a load test of a deployment.

    Args:
        deployment: Deployment, as it was before the load.
        record: Record of the load test.
        comparison: Comparison with the trial that was deployed, where there is one.
        journal: Journal of the load test; `None` where it is not kept.
    """
    numbers = {name: record.results.get(name) for name in _RESULTS}
    tell_register(
        msgspec.structs.replace(
            deployment,
            model=record.metadata.model or "",
            run=str(record.provenance.get("run") or ""),
            path=str(journal.absolute()) if journal else "",
            trial=record.key,
            simulated=record.simulated,
            against=comparison.key if comparison else "",
            reproduced=comparison.reproduced if comparison and comparison.concluded else None,
            results={name: v for name, v in numbers.items() if isinstance(v, int | float)},
        )
    )
