"""What the register of this machine says of a deployment, out of its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from servetune.decoding import ready
from servetune.deploy.bundle import MARKER, PLAN_FILE
from servetune.deploy.cost import cost_of
from servetune.deploy.deployment import (
    DEPLOYMENT_FILE,
    Deployment,
    adapter_name,
    read_deployment,
)
from servetune.deploy.from_trial import TRIAL_FILE, plan_of_trial
from servetune.deploy.names import account_of
from servetune.errors import InputError
from servetune.hardware import Price, instances
from servetune.plan import Plan
from servetune.store import TrialRecord, read_journal, read_json
from servetune.store.register import AdapterLink, DeployedConfig, DeploymentPlace

#: Settings of a trial that every target serves as they were.
_KEPT = ("tensor_parallel", "pipeline_parallel", "max_num_seqs", "max_num_batched_tokens")


class RegisteredBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle as the register has it.

    Attributes:
        place: Place of the deployment.
        config: Configuration of it.
        deployment: Requests that make it; `None` off SageMaker.
        trial: Trial that it rests on; `None` for a bundle of an earlier version.
        plan: Plan that it serves; `None` where it has none that is known.
    """

    place: DeploymentPlace
    config: DeployedConfig
    deployment: Deployment | None = None
    trial: TrialRecord | None = None
    plan: Plan | None = None

    def is_of(self, trial: TrialRecord) -> bool:
        """Whether it serves what a trial ran.

        A bundle writes out what its trial left open, so plans are those of the trials; without its
        trial, only what both set is compared.
        """
        ran = plan_of_trial(trial)
        if self.trial is not None:
            return self.trial.key == trial.key or plan_of_trial(self.trial) == ran
        return self.plan is None or all(
            None in (pair := (getattr(ran, name), getattr(self.plan, name))) or pair[0] == pair[1]
            for name in _KEPT
        )


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle of `servetune deploy`."""
    path = folder / PLAN_FILE
    return path.is_file() and MARKER.encode() in path.read_bytes()


def registered_bundle(folder: Path) -> RegisteredBundle:
    """A bundle's deployment.

    Raises:
        InputError: The folder is no bundle.
        StoreError: A file of it cannot be read.
    """
    if not is_bundle(folder):
        raise InputError(
            f"'{folder}' is no bundle: it has no {PLAN_FILE} of servetune deploy",
            hint="give the folder that servetune deploy --out wrote",
        )
    try:
        return _read(folder)
    except (ValueError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        raise InputError(
            f"the bundle '{folder}' cannot be read: {error}", hint="render it again"
        ) from None


def _read(folder: Path) -> RegisteredBundle:
    about = read_json(folder / PLAN_FILE)
    deployment = None
    if (folder / DEPLOYMENT_FILE).is_file():
        deployment = read_deployment((folder / DEPLOYMENT_FILE).read_text("utf-8"))
    trial = None
    if (folder / TRIAL_FILE).is_file():
        [trial] = read_journal(folder / TRIAL_FILE)
    place = DeploymentPlace(
        target=str(about.get("target", "")),
        name=str(about.get("endpoint_name") or about.get("name") or ""),
        region=str(about.get("region") or ""),
        folder=str(folder.absolute()),
        account=account_of(_role(deployment)),
    )
    plan = (
        msgspec.convert(about["plan"], ready(Plan)) if isinstance(about.get("plan"), dict) else None
    )
    config = _config(about, plan, trial)
    if deployment is not None:
        config = _hosted(config, deployment)
    return RegisteredBundle(
        place=place, config=config, deployment=deployment, trial=trial, plan=plan
    )


def _role(deployment: Deployment | None) -> str:
    """ARN of the role with which an endpoint is made, where its bundle names one."""
    if deployment is None:
        return ""
    return str(deployment.only("model").request.get("ExecutionRoleArn") or "")


def _config(about: dict[str, Any], plan: Plan | None, trial: TrialRecord | None) -> DeployedConfig:
    evidence = about.get("evidence") or {}
    return DeployedConfig(
        model=plan.model if plan else str(about.get("served_model", "")),
        engine=plan.engine if plan else "",
        plan=plan.label if plan else "",
        machine=str(evidence.get("hardware") or ""),
        images=tuple(filter(None, [about.get("image")])),
        run=str(trial.provenance.get("run") or "") if trial else "",
        trial=trial.key if trial else "",
        source=str(evidence.get("source") or ""),
        simulated=bool(evidence.get("simulated")),
        usd_per_hour=trial.metadata.price_per_hour_usd if trial else None,
        price_source=(trial.metadata.price_source or "") if trial else "",
    )


def _hosted(config: DeployedConfig, deployment: Deployment) -> DeployedConfig:
    """The configuration with the instances, price and adapters of an endpoint."""
    hosting = deployment.hosting
    catalogue = instances("sagemaker")
    prices: dict[str, Price | None] = {
        name: catalogue[name].price for name in hosting.instance_types if name in catalogue
    }
    cost = cost_of(hosting, prices)
    price = cost.price
    found = (price.region, price.date, price.source) if price else (cost.reservation_arn,)
    return msgspec.structs.replace(
        config,
        machine=f"{hosting.instance_count}x {' or '.join(hosting.instance_types)}",
        usd_per_hour=cost.usd_per_hour,
        price_source=", ".join(filter(None, found)),
        adapters=tuple(
            AdapterLink(
                name=each.name,
                source=each.artifact_url,
                base=config.model,
                component=adapter_name(deployment.endpoint, each.name),
            )
            for each in hosting.adapters
        ),
    )
