"""Load tests of deployments, as the register of this machine has them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from servetune.api.bench_request import Bench
from servetune.api.notes import note
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


class DeploymentUnderLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Deployment that a load test is of.

    Attributes:
        told: Entry for the register, without results.
        in_service: Digest that the register had of its configuration as the load began.
    """

    told: DeploymentMeasured
    in_service: str


def deployment_under_load(request: Bench, target: Target) -> DeploymentUnderLoad | None:
    """Deployment that a load test will be of; `None` for a server of which nothing is known.

    Args:
        request: Request as it was asked for.
        target: First server that takes the load.
    """
    told = _measured_deployment(request, target)
    if told is None:
        return None
    return DeploymentUnderLoad(told=told, in_service=_in_service(told.place))


def _in_service(place: DeploymentPlace) -> str:
    with suppress(ServetuneError):  # what cannot be read cannot be written either
        return digest_in_service(place)
    return ""


def _measured_deployment(request: Bench, target: Target) -> DeploymentMeasured | None:
    """Deployment with the configuration in service as the load test begins.

    The configuration is that of the bundle where one is named, else the register's last word.
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
            config = _in_service(place)
        component = request.endpoint.adapter or request.endpoint.component or ""
        return DeploymentMeasured(place=place, config=config, component=component)
    if bundled is None or request.server.urls:
        return None
    return DeploymentMeasured(place=bundled.place, config=config)


def note_measured(
    deployment: DeploymentUnderLoad,
    record: TrialRecord,
    comparison: BaselineComparison | None,
    journal: Path | None,
) -> None:
    """Tell the register of a load test of a deployment, and whether that changed meanwhile.

    Args:
        deployment: Deployment, as it was before the load.
        record: Record of the load test.
        comparison: Comparison with the trial that was deployed, where there is one.
        journal: Journal of the load test; `None` where it is not kept.
    """
    numbers = {name: record.results.get(name) for name in _RESULTS}
    told = deployment.told
    changed = _in_service(told.place) != deployment.in_service
    if changed:
        note(
            f"note: the configuration of {told.place.name or told.place.folder} changed while it "
            "was measured, so that the figures are of none; measure it again"
        )
    tell_register(
        msgspec.structs.replace(
            told,
            changed=changed,
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
