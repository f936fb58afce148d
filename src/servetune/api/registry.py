"""Registry of deployments: what was deployed where, from which trial, and what it did then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular
from servetune.api.light import whole_record
from servetune.api.notes import note
from servetune.api.request import Request, request_of
from servetune.api.run_facts import facts_of
from servetune.api.waiting import aws_in, completed
from servetune.deploy.aws.described import DescribedEndpoint, described
from servetune.deploy.aws.packages import ModelPackage, Packaged, make_package, packaged
from servetune.deploy.from_trial import plan_of_trial
from servetune.deploy.names import require_name, require_region
from servetune.deploy.registry import RegisteredBundle, registered_bundle
from servetune.errors import DeployError, InputError, ServetuneError
from servetune.hardware import instances
from servetune.option import argument, option
from servetune.store import TrialRecord
from servetune.store.catalogue import Catalogue
from servetune.store.catalogue_rows import DeploymentRow, MeasurementRow, RunRow
from servetune.store.register import (
    DeployedConfig,
    DeploymentNoted,
    DeploymentPlace,
    append_entry,
)


class ListDeployments(Request, frozen=True, kw_only=True):
    """Deployments that are listed, each adapter in a row of its own."""

    verb: ClassVar[str] = "runs deployments"
    first: ClassVar[str] = "base"

    base: Annotated[
        str | None, option("Base model, of adapters too: a part of its name.", metavar="MODEL")
    ] = None
    adapter: Annotated[str | None, option("LoRA adapter: a part of its name.", metavar="NAME")] = (
        None
    )
    target: Annotated[
        str | None, option("Target, such as sagemaker or compose.", metavar="TARGET")
    ] = None
    run: Annotated[
        str | None, option("Name of the run whose trials were deployed.", metavar="RUN")
    ] = None
    earlier: Annotated[
        bool,
        option(
            "Load tests of earlier configurations too, each configuration in a row of its own.",
            "--all",
        ),
    ] = False


class RegisterDeployment(Request, frozen=True, kw_only=True):
    """A deployment that was made by other means, or a bundle, for the registry."""

    verb: ClassVar[str] = "register"

    target: Annotated[
        str, argument("Folder of a bundle, or an endpoint's name.", metavar="BUNDLE|ENDPOINT")
    ]
    region: Annotated[str | None, REGION] = None
    force: Annotated[
        bool, option("Permission to register an endpoint that AWS does not confirm.")
    ] = False
    run: Annotated[
        str | None,
        option("Name of the run of its trial.", metavar="RUN", default="the bundle's"),
    ] = None
    trial: Annotated[
        str | None,
        option(
            "Key of the trial, or its number in runs show.",
            metavar="KEY|N",
            default="the bundle's, else the run's pick",
        ),
    ] = None
    model_package: Annotated[
        str | None,
        option(
            "Group in SageMaker's model registry in which a model package of it is made; the "
            "group is made where it is missing.",
            metavar="GROUP",
        ),
    ] = None


class DeployedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment, or an adapter of one, as a row.

    Attributes:
        deployment: Identity of the deployment.
        target: Target: `sagemaker`, `kubernetes`, `compose`, ...
        name: Name of the endpoint or service.
        region: AWS region.
        account: Number of the AWS account; empty where it is not known.
        state: Last that happened to it; `earlier` for a configuration that it had before.
        base: Model that is served; of an adapter the model that it adapts.
        adapter: Name of the LoRA adapter; empty for the deployment itself.
        engine: Engine that serves it.
        plan: Plan in words.
        machine: Instance type or devices, with their number.
        images: Container images.
        usd_per_hour: Price of the first instances; `None` where it is not known.
        price_source: Source and date of the price.
        run: Identity of the run that it comes from.
        trial: Key of the trial.
        simulated: Whether the trial was simulated.
        pending: Key of a trial that was rendered since and is not deployed yet.
        model_package: ARN of its SageMaker model package.
        folder: Folder of its bundle.
        changed_at: Time of the last change.
        config: Digest of the configuration; empty where it is not known.
        measurements: Number of load tests of this configuration.
        earlier_measurements: Number of load tests of the deployment's other configurations.
        measured_at: Time of the last load test of this configuration.
        measured_run: Identity of its run.
        measured_simulated: Whether no real server answered it, and its figures are simulated.
        reproduced: Whether it did what the trial did.
        output_throughput: Output tokens per second of the last load test.
        p99_ttft_ms: 99th percentile of its time to the first token.
        error_rate: Share of its requests that failed.
    """

    deployment: str
    target: str
    name: str
    region: str
    state: str
    base: str
    account: str = ""
    adapter: str = ""
    engine: str = ""
    plan: str = ""
    machine: str = ""
    images: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    price_source: str = ""
    run: str = ""
    trial: str = ""
    simulated: bool = False
    pending: str = ""
    model_package: str = ""
    folder: str = ""
    changed_at: str = ""
    config: str = ""
    measurements: int = 0
    earlier_measurements: int = 0
    measured_at: str = ""
    measured_run: str = ""
    measured_simulated: bool = False
    reproduced: bool | None = None
    output_throughput: float | None = None
    p99_ttft_ms: float | None = None
    error_rate: float | None = None


class DeploymentList(Tabular, frozen=True, kw_only=True):
    """Deployments and their adapters, the last changed first.

    Attributes:
        rows: A row for each.
        known: Number of all deployments of the catalogue.
    """

    rows: tuple[DeployedRow, ...]
    known: int

    def as_rows(self) -> Iterable[TableRow]:
        """One row per deployment, and per adapter; images are text."""
        return (
            {**msgspec.structs.asdict(row), "images": ", ".join(row.images)} for row in self.rows
        )

    def __str__(self) -> str:
        from servetune.report import as_text, deployments_table

        return as_text(deployments_table(self.rows))


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment in the registry.

    Attributes:
        deployment: Identity of the deployment.
        place: Place of it.
        config: Configuration of it.
        package: Model package, where one was asked for.
    """

    deployment: str
    place: DeploymentPlace
    config: DeployedConfig
    package: ModelPackage | None = None


def list_deployments(
    request: ListDeployments | str | None = None, /, **options: object
) -> DeploymentList:
    """Deployments of this machine and their adapters, the last changed first.

    Args:
        request: The request, or a part of the base model's name.
        options: Fields of `ListDeployments`.

    Raises:
        InputError: No run has the given name, or several have.
        StoreError: A newer version made the catalogue.
    """
    request = request_of(ListDeployments, request, options)
    with Catalogue(facts_of) as index:
        run = index.find(request.run).run if request.run else ""
        rows = deployed_rows(index, run=run, earlier=request.earlier)
        known = len(index.deployments())

    def fits(row: DeployedRow) -> bool:
        return (
            _has(row.base, request.base)
            and _has(row.adapter, request.adapter)
            and request.target in (None, row.target)
        )

    return DeploymentList(rows=tuple(filter(fits, rows)), known=known)


def deployed_rows(
    index: Catalogue, *, run: str = "", earlier: bool = False
) -> tuple[DeployedRow, ...]:
    """Rows of all deployments, or of those of a run, adapters below theirs.

    Figures are of the present configuration; with `earlier` rows of earlier ones that were measured
    are below.
    """
    measured: dict[str, list[MeasurementRow]] = {}
    for each in index.measurements():
        measured.setdefault(each.deployment, []).append(each)
    rows: list[DeployedRow] = []
    for deployment in index.deployments():
        runs = {deployment.config.run}
        if deployment.pending is not None:
            runs.add(deployment.pending.run)
        if run and run not in runs:
            continue
        tests = measured.get(deployment.deployment, [])
        now = deployment.config.digest
        if deployment.state == "measured" and tests:  # of which load tests alone tell
            now = tests[-1].config
        rows += _rows_of(deployment, deployment.config, now, tests)
        for digest in dict.fromkeys(each.config for each in reversed(tests) if earlier):
            config = deployment.configs.get(digest, DeployedConfig(model=deployment.config.model))
            before = msgspec.structs.replace(deployment, state="earlier", pending=None)
            if digest != now:
                found = _rows_of(before, config, digest, tests)
                rows += [row for row in found if row.measurements]
    return tuple(rows)


def _rows_of(
    row: DeploymentRow, config: DeployedConfig, digest: str, tests: list[MeasurementRow]
) -> Iterable[DeployedRow]:
    """Rows of a deployment in one configuration: its own, and its adapters'."""
    place = row.place
    adapters = {each.component or each.name: each for each in config.adapters}
    own = DeployedRow(
        deployment=row.deployment,
        target=place.target,
        name=place.name,
        region=place.region,
        account=place.account,
        state=row.state,
        base=config.model,
        engine=config.engine,
        plan=config.plan,
        machine=config.machine,
        images=config.images,
        usd_per_hour=config.usd_per_hour,
        price_source=config.price_source,
        run=config.run,
        trial=config.trial,
        simulated=config.simulated,
        pending=row.pending.trial if row.pending else "",
        model_package=row.model_package,
        folder=place.folder,
        changed_at=row.changed_at,
        config=digest,
    )
    yield _with_measured(own, [each for each in tests if each.component not in adapters])
    for component, adapter in adapters.items():
        of_adapter = msgspec.structs.replace(
            own, adapter=adapter.name, base=adapter.base or config.model, usd_per_hour=None
        )
        yield _with_measured(of_adapter, [each for each in tests if each.component == component])


def _with_measured(row: DeployedRow, tests: list[MeasurementRow]) -> DeployedRow:
    """The row with the figures of its last load test; `tests` are of all configurations."""
    own = [each for each in tests if each.config == row.config]
    row = msgspec.structs.replace(
        row, measurements=len(own), earlier_measurements=len(tests) - len(own)
    )
    if not own:
        return row
    last = own[-1]
    return msgspec.structs.replace(
        row,
        measured_at=last.at,
        measured_run=last.run,
        measured_simulated=last.simulated,
        reproduced=last.reproduced,
        output_throughput=last.results.get("output_throughput"),
        p99_ttft_ms=last.results.get("p99_ttft_ms"),
        error_rate=last.results.get("error_rate"),
    )


def register_deployment(
    request: RegisterDeployment | str | None = None, /, **options: object
) -> Registered:
    """Take a deployment that was made by other means, or a bundle, into the registry.

    Args:
        request: The request, or the bundle's folder, or the endpoint's name.
        options: Fields of `RegisterDeployment`.

    Raises:
        InputError: It is no bundle, no run or trial has that name, the target has no model
            packages, or AWS knows no such endpoint and it is not forced.
        DeployError: AWS refused.
        StoreError: The register could not be written.
    """
    request = request_of(RegisterDeployment, request, options)
    folder = Path(request.target)
    bundle = registered_bundle(folder) if folder.is_dir() else None
    if bundle is None and os.sep in request.target:
        raise InputError(
            f"there is no bundle in '{request.target}'", hint="give a folder or a name"
        )
    if bundle is not None and bundle.deployment is None and request.model_package:
        raise InputError(
            f"a model package is of SageMaker, and {folder} is of {bundle.place.target}",
            hint="leave --model-package out, or give a bundle of deploy sagemaker",
        )
    found, trial = _trial(request, bundle)
    if bundle is not None:
        place, config, content = bundle.place, bundle.config, None
    else:
        place, config, content = _endpoint(request)
    if found is not None and trial is not None:
        config = _with_trial(config, found, trial)
    trial = trial or (bundle.trial if bundle else None)
    known: list[str] = []
    with Catalogue(facts_of) as index:
        earlier = index.deployment(place)
        known += [earlier.model_package] if earlier and earlier.model_package else []
        if earlier is not None and not config.run and earlier.config.trial == config.trial:
            config = msgspec.structs.replace(config, run=earlier.config.run)
    package = None
    if request.model_package:
        require_name(request.model_package)
        content = _content(bundle, content, config, trial)
        package = completed(
            make_package(aws_in(place.region), request.model_package, content, known)
        )
    append_entry(
        DeploymentNoted(
            place=place,
            action="registered",
            config=config,
            model_package=package.arn if package else "",
        )
    )
    identity = earlier.deployment if earlier and not place.account else place.identity
    return Registered(deployment=identity, place=place, config=config, package=package)


def _content(
    bundle: RegisteredBundle | None,
    hosted_content: Packaged | None,
    config: DeployedConfig,
    trial: TrialRecord | None,
) -> Packaged:
    """What a model package is made of, from the bundle or from what AWS tells.

    Raises:
        DeployError: AWS does not tell the endpoint's container.
    """
    if bundle is not None and bundle.deployment is not None:
        return packaged(bundle.deployment, config, trial)
    if hosted_content is None:
        raise DeployError(
            "AWS does not tell the container of this endpoint, which a package needs",
            hint="give its bundle instead of its name",
        )
    return msgspec.structs.replace(hosted_content, config=config, trial=trial)


def _endpoint(
    request: RegisterDeployment,
) -> tuple[DeploymentPlace, DeployedConfig, Packaged | None]:
    """An endpoint by its name, as AWS describes it.

    Raises:
        InputError: AWS does not confirm it, and it is not forced.
    """
    region = require_region(region_of(request.region))
    place = DeploymentPlace(target="sagemaker", name=require_name(request.target), region=region)
    prices = {
        name: node.price.usd_per_hour if node.price else None
        for name, node in instances("sagemaker").items()
    }
    found: DescribedEndpoint | None = None
    try:
        found = completed(described(aws_in(region), place.name, prices))
    except ServetuneError as error:
        doubt = f"AWS does not confirm the endpoint: {error.message}"
    else:
        doubt = f"AWS knows no endpoint {place.name} in {region}"
    if found is None:
        if not request.force:
            raise InputError(
                f"there is no folder '{request.target}', and {doubt}",
                hint="give a bundle's folder, an endpoint and its --region, or --force",
            )
        note(f"note: {place.name} is registered by its name alone: {doubt}")
        return place, DeployedConfig(), None
    place = msgspec.structs.replace(place, account=found.account)
    if found.container is None:
        return place, found.config, None
    content = {
        "Image": found.container.image,
        "Environment": dict(found.container.environment),
    }
    packed = Packaged(container=content, instance_types=found.instance_types, config=found.config)
    return place, found.config, packed


def _trial(
    request: RegisterDeployment, bundle: RegisteredBundle | None
) -> tuple[RunRow | None, TrialRecord | None]:
    """The run and trial that the options name.

    Raises:
        InputError: There is no such run or trial, or the bundle is not of it.
    """
    if request.run is None:
        if request.trial is not None:
            raise InputError("--trial is one of a run", hint="give --run RUN too")
        return None, None
    with Catalogue(facts_of) as index:
        run = index.find(request.run)
        trials = index.trials(run.run)
    of_bundle = bundle.trial.key if bundle and bundle.trial else ""
    named = request.trial or next((row.key for row in trials if row.key == of_bundle), run.pick_key)
    key = next((row.key for row in trials if named in (str(row.number), row.key)), None)
    if key is None:
        raise InputError(
            f"run {run.run} has no trial '{named}'" if named else f"run {run.run} has no pick",
            hint=f"servetune runs show {run.run} numbers its {len(trials)} trials",
        )
    try:
        record = whole_record(Path(run.path), key)
    except KeyError:
        raise InputError(f"the journal {run.path} has no trial {key} any more") from None
    if bundle is not None and not bundle.is_of(record):
        ran = plan_of_trial(record)
        serves = plan_of_trial(bundle.trial) if bundle.trial else bundle.plan or ran
        raise InputError(
            f"the bundle '{request.target}' does not serve what trial {named} of run {run.run} "
            f"ran: {serves.model} {serves.label}, not {ran.model} {ran.label}",
            hint="leave --trial out, which takes the bundle's own, or render that trial: "
            f"servetune deploy {bundle.place.target} {run.path} --key {key}",
        )
    return run, record


def _with_trial(config: DeployedConfig, run: RunRow, trial: TrialRecord) -> DeployedConfig:
    """The configuration as one of a trial; what AWS or a bundle says of it stays."""
    metadata, plan = trial.metadata, trial.plan
    return msgspec.structs.replace(
        config,
        model=config.model or metadata.model or "",
        engine=config.engine or metadata.engine or "",
        plan=config.plan or (plan.label if plan else ""),
        run=run.run,
        trial=trial.key,
        source=run.path,
        simulated=trial.simulated,
    )


def _has(text: str, part: str | None) -> bool:
    return part is None or part.lower() in text.lower()
