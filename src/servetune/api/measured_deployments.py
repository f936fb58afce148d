"""Load tests of deployments, as the register of this machine has them."""

from __future__ import annotations

from pathlib import Path

from servetune.api.bench_request import Bench
from servetune.api.registration import tell_register
from servetune.errors import ServetuneError
from servetune.loadgen import Target
from servetune.report.baseline import BaselineComparison
from servetune.store import TrialRecord
from servetune.store.register import DeploymentMeasured, DeploymentPlace

#: Results of a load test that tables of deployments show.
_RESULTS = (
    "max_concurrency", "request_rate", "completed", "error_rate", "request_throughput",
    "output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_e2e_latency_ms",
)  # fmt: skip


def note_measured(
    request: Bench,
    target: Target,
    record: TrialRecord,
    comparison: BaselineComparison | None,
    journal: Path | None,
) -> None:
    """Tell the register of a load test, where it was one of a deployment.

    Args:
        request: Request as it was asked for.
        target: First server that took the load.
        record: Record of the load test.
        comparison: Comparison with the trial that was deployed, where there is one.
        journal: Journal of the load test; `None` where it is not kept.
    """
    place = _place(request, target)
    if place is None:
        return
    numbers = {name: record.results.get(name) for name in _RESULTS}
    tell_register(
        DeploymentMeasured(
            place=place,
            model=record.metadata.model or "",
            run=str(record.provenance.get("run") or ""),
            path=str(journal.absolute()) if journal else "",
            trial=record.key,
            against=comparison.key if comparison else "",
            reproduced=comparison.reproduced if comparison and comparison.concluded else None,
            component=request.endpoint.adapter or request.endpoint.component or "",
            results={name: v for name, v in numbers.items() if isinstance(v, int | float)},
        )
    )


def _place(request: Bench, target: Target) -> DeploymentPlace | None:
    """Deployment that a load test was of; `None` for a server of which nothing is known."""
    folder, signing = request.baseline.against, target.signing
    bundled = None
    if folder is not None and folder.is_dir():
        from servetune.deploy.registry import registered_bundle

        try:
            bundled = registered_bundle(folder).place
        except (ServetuneError, OSError):  # it is no bundle that can be read
            return None
    if bundled is not None and bundled.target != "sagemaker":
        return bundled
    if request.endpoint.sagemaker:
        region = signing.region if signing is not None else request.endpoint.region or ""
        return DeploymentPlace(target="sagemaker", name=request.endpoint.sagemaker, region=region)
    return None if request.server.urls else bundled
