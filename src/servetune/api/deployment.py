"""Deployment: the trial that was chosen, rendered for SageMaker, Kubernetes and other targets."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.endpoints import make_endpoint
from servetune.api.noted_deployments import note_rendered
from servetune.api.notes import note
from servetune.api.request import Request, request_of
from servetune.api.shared_options import GoalOptions
from servetune.api.spending import Confirm, Spending
from servetune.api.trials import Trials, read_with_goal
from servetune.api.waiting import Token, Waiting, aws_in, completed, now, role_of
from servetune.deploy import CONTAINERS, usual_container, write
from servetune.deploy.alarms import latency_limit
from servetune.deploy.aws.check import (
    CheckInputs,
    Finding,
    Report,
    check,
    check_live,
    require_go,
)
from servetune.deploy.aws.jumpstart import JUMPSTART, jumpstart_model
from servetune.deploy.bentoml import render_bentoml
from servetune.deploy.bundle import Bundle
from servetune.deploy.command import render_command, render_systemd
from servetune.deploy.compose import render_compose
from servetune.deploy.deployment import Deployment, deployment_of, with_role
from servetune.deploy.endpoint import Endpoint, EndpointOptions, endpoint_of, image_for
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.from_trial import (
    device_of_trial,
    evidence_of,
    explicit_plan,
    instance_of_trial,
    machine_of_trial,
    plan_of_trial,
    saturation_of_trials,
    with_levels,
    with_trial,
)
from servetune.deploy.hosting import HostingOptions
from servetune.deploy.images import named_image
from servetune.deploy.kubernetes import render_kserve, render_kubernetes
from servetune.deploy.launchers import launcher_of
from servetune.deploy.names import require_name, require_region, require_role
from servetune.deploy.pods import ClusterOptions
from servetune.deploy.sagemaker import render_sagemaker
from servetune.deploy.served import Served, ServiceOptions, prepare, version_of
from servetune.engines import check_weights, engine
from servetune.errors import CannotRender, InputError, UnknownName
from servetune.hardware import Node, Price, instance
from servetune.json_value import JsonObject
from servetune.models import NetworkShape, load_shape, weight_bytes
from servetune.option import FleetCount, argument, option
from servetune.plan import Plan
from servetune.search import failed_requests
from servetune.store import TrialRecord

#: Rank of LoRA adapters that is allowed for; an engine's default of 16 refuses many.
LORA_RANK = 64


class TrialChoice(Request, frozen=True, kw_only=True):
    """The trial of a run that is deployed, and the folder that it is rendered into."""

    source: Annotated[
        Path,
        argument(
            "Journal (.jsonl), summary or record (.json) of a run, or its name.",
            metavar="SOURCE",
            of_run=True,
        ),
    ]
    out: Annotated[
        Path | None,
        option("Folder of the bundle; an earlier bundle in it is renewed.", metavar="FOLDER"),
    ] = None
    key: Annotated[
        str | None,
        option("Key of a certain trial.", metavar="KEY", default="the recommended trial"),
    ] = None
    dry_run: Annotated[bool, option("Preview of what would be written; nothing is written.")] = (
        False
    )
    limits: GoalOptions = GoalOptions()

    def trial(self, trials: Trials) -> TrialRecord:
        """The trial of that key, else the best one that holds every constraint.

        Raises:
            InputError: No trial has that key.
            CannotRender: The trial failed, or none holds every constraint.
        """
        if self.key is not None:
            try:
                record = trials.record(self.key)
            except KeyError:
                raise InputError(
                    f"no trial has the key {self.key}", hint="the journal has the keys"
                ) from None
            if record.status == "failed":
                raise CannotRender(f"trial {self.key} failed and cannot be deployed")
            return record
        choice = trials.recommend()
        if choice.chosen is None or not choice.feasible:
            nearest = f"; {choice.chosen.label} comes nearest" if choice.chosen else ""
            raise CannotRender(
                f"no trial meets every constraint{nearest}",
                hint="relax --constraints, or name a trial with --key"
                + (f" {choice.chosen.key}" if choice.chosen else ""),
            )
        return trials.record(choice.chosen.key)


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle and the trial that it rests on.

    Attributes:
        bundle: Files of the bundle.
        plan: Plan that it serves.
        trial: Trial that it rests on.
        folder: Folder that it was written to; `None` where it was not.
    """

    bundle: Bundle
    plan: Plan
    trial: TrialRecord
    folder: Path | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that must be seen before it runs."""
        failing = failed_requests(self.trial.results)
        return (*((failing.sentence,) if failing else ()), *self.bundle.warnings)


class SageMakerDeployment(TrialChoice, frozen=True, kw_only=True):
    """A trial that becomes a SageMaker endpoint."""

    verb: ClassVar[str] = "deploy sagemaker"

    container: Annotated[
        str | None,
        option(
            "Container of SageMaker that runs the engine.",
            choices=tuple(CONTAINERS),
            default="the usual one of the engine",
        ),
    ] = None
    instance: Annotated[
        str | None,
        option(
            "Instance type.",
            metavar="NAME",
            default="the one that was measured, else the cheapest like it",
        ),
    ] = None
    region: Annotated[str | None, REGION] = None
    role_arn: Annotated[
        str | None,
        option("ARN of the execution role.", metavar="ARN", default="given on deploying"),
    ] = None
    endpoint_name: Annotated[
        str | None, option("Name of the endpoint.", metavar="NAME", default="from the model's name")
    ] = None
    model_source: Annotated[
        str | None,
        option(
            "Source that the endpoint loads the model from; a JumpStart model is looked up in AWS.",
            metavar="HUB_ID|s3://..|jumpstart:ID",
            default="the trial's model",
        ),
    ] = None
    accept_eula: Annotated[
        bool, option("Consent to the licence of a JumpStart model, which you have read.")
    ] = False
    image_tag: Annotated[
        str | None,
        option(
            "Tag of the container image.", metavar="TAG", default="nearest to the trial's engine"
        ),
    ] = None
    form: Annotated[
        Literal["requests", "cloudformation"],
        option("Form of the bundle beside its requests: a CloudFormation template.", "--as"),
    ] = "requests"
    plan: Annotated[bool, option("Findings on everything before spending; nothing is made.")] = (
        False
    )
    ask_aws: Annotated[
        bool, option("Permission for --plan to ask AWS (it only reads): quota, price, names.")
    ] = False
    apply: Annotated[
        bool, option("Permission to write the bundle, check it, and make the endpoint.")
    ] = False
    hosting: HostingOptions = HostingOptions()
    features: EndpointFeatures = EndpointFeatures()
    spending: Spending = Spending()
    token: Token = Token()
    waiting: Waiting = Waiting()

    def render(self) -> RenderedEndpoint:
        """The endpoint of these options, checked as far as nothing needs to be asked."""
        self._check_options()
        trials = read_with_goal(self.source, self.limits)
        trial = self.trial(trials)
        found = plan_of_trial(trial)
        container = self.container or usual_container(found.engine)
        measured = _for_lmi(found) if container == "lmi" else found
        first = (
            instance(self.instance, service="sagemaker")
            if self.instance
            else instance_of_trial(trial)
        )
        nodes = self.hosting.nodes(first)
        hosting = self._filling(measured, nodes)
        plan = self._with_adapters(_of_one_copy(measured, hosting))
        if self.image_tag:
            named_image(container, self.image_tag)
        shape, evidence = load_shape(plan.model), evidence_of(trial, self.source, trials.search)
        check_weights(plan, shape)
        image, _ = image_for(plan, container, evidence, self.image_tag)
        version = image.engine_version or engine(plan.engine).assumed_version
        explicit = explicit_plan(plan, shape, first.device, version, trial)
        copies = 1 if hosting.copies is None else measured.replicas * measured.data_parallel
        saturation = saturation_of_trials(trials.records, trial, trials.constraints, copies=copies)
        region = require_region(region_of(self.region))
        endpoint = endpoint_of(
            explicit,
            EndpointOptions(
                nodes=nodes,
                hosting=hosting.resolved(
                    explicit,
                    nodes,
                    saturation,
                    queued=self.features.async_output is not None,
                ),
                region=region,
                container=container,
                model_source=self._source(region),
                features=self.features,
                accept_eula=self.accept_eula,
                endpoint_name=self.endpoint_name,
                role_arn=self.role_arn,
                image_tag=self.image_tag,
                weights_bytes=weight_bytes(shape),
                startup_timeout_s=self.hosting.startup_timeout_s,
                latency_limit=latency_limit(
                    trials.constraints, trial.results.get("p99_e2e_latency_ms")
                ),
            ),
            with_levels(evidence, trials.records, trial, copies=copies),
        )
        if hosting.copies != self.hosting.copies:
            idle = first.device_count - explicit.device_count
            note(
                f"{hosting.copies} copies fill {self.hosting.instances} {first.name}; --copies 1 "
                f"leaves {idle} of its {first.device_count} devices idle"
            )
        rendered = RenderedEndpoint(
            bundle=with_trial(
                render_sagemaker(
                    endpoint,
                    as_stack=self.form == "cloudformation",
                    token_secret=self.token.hf_token_secret,
                ),
                trial,
            ),
            plan=explicit,
            trial=trial,
            folder=None if self.plan or self.dry_run else self.out,
            request=self,
            endpoint=endpoint,
            shape=shape,
        )
        if self.apply:
            require_go(rendered.report())
        elif self.spending.limited and not (self.plan or self.dry_run):
            rendered.require_affordable()
        return rendered

    def _check_options(self) -> None:
        """Raise for what cannot be right, before anything is read."""
        if self.apply + self.plan + self.dry_run > 1:
            raise InputError("--plan, --apply and --dry-run exclude each other", hint="give one")
        if self.out is None and not (self.dry_run or self.plan):
            raise InputError("the bundle needs a folder", hint="give --out FOLDER, or --plan")
        if self.apply and self.form == "cloudformation":
            raise InputError(
                "--apply makes the endpoint itself, a template leaves it to CloudFormation",
                hint="leave --apply out: the bundle's README has the command",
            )
        if self.form == "cloudformation" and self.token.hf_token_from_env:
            raise InputError(
                "a template carries no token",
                hint="put it into Secrets Manager and give --hf-token-secret ARN, which the stack "
                "reads",
            )
        self.token.require()
        if self.region is not None:
            require_region(self.region)
        env_role = os.environ.get("SAGEMAKER_ROLE_ARN") if self.plan else None
        if self.apply:
            role_of(self.role_arn)
        elif role := self.role_arn or env_role:
            require_role(role)
        if self.endpoint_name is not None:
            require_name(self.endpoint_name)

    def _source(self, region: str) -> str | None:
        """The model's source; that of a JumpStart model as AWS lists it.

        Raises:
            InputError: The model's licence is not accepted.
            DeployError: AWS refused, or the model is none that a container can load.
        """
        source = self.model_source or ""
        if not source.startswith(JUMPSTART):
            return self.model_source
        found = completed(jumpstart_model(source.removeprefix(JUMPSTART), aws_in(region)))
        found.require_accepted(accepted=self.accept_eula)
        return found.uri

    def _filling(self, plan: Plan, nodes: tuple[Node, ...]) -> HostingOptions:
        """The hosting, with copies that fill its instances where the trial's leave devices idle."""
        # Without copies --scale counts instances, each of which is then scaled as it was measured.
        if self.hosting.copies is not None or self.hosting.scale or plan.expert_parallel:
            return self.hosting
        each = plan.devices_per_replica // plan.data_parallel
        most = min(node.device_count for node in nodes)
        if most - plan.device_count < each:
            return self.hosting
        copies = most // each
        return msgspec.structs.replace(self.hosting, copies=copies * self.hosting.instances)

    def _with_adapters(self, plan: Plan) -> Plan:
        """A base model that takes LoRA adapters, where the endpoint shall have some.

        Raises:
            InputError: The engine has no adapters here.
        """
        chosen = dict(plan.extra)
        if not self.hosting.adapter or "enable_lora" in chosen:
            return plan
        switch = engine(plan.engine).lora_settings
        if not switch:
            raise InputError(
                f"adapters on {plan.engine} need its own settings for LoRA",
                hint="sweep with enable_lora=true, so that what is measured takes them",
            )
        added: dict[str, Any] = {
            **switch,
            "max_loras": len(self.hosting.adapter),
            "max_lora_rank": LORA_RANK,
        }
        merged = added | chosen
        words = ", ".join(f"{name}={value}" for name, value in merged.items() if name in added)
        note(f"the trial took no adapters; written for them: {words}. Expect other figures")
        return msgspec.structs.replace(plan, extra=tuple(sorted(merged.items())))


class RenderedEndpoint(Rendered, frozen=True, kw_only=True):
    """A SageMaker endpoint, ready to be checked or made.

    Attributes:
        request: Request that it was rendered from.
        endpoint: Decisions that its requests rest on.
        shape: Dimensions of the model.
    """

    request: SageMakerDeployment
    endpoint: Endpoint
    shape: NetworkShape

    @property
    def deployment(self) -> Deployment:
        """The requests that make it."""
        return deployment_of(self.endpoint)

    def report(self, *, ask_aws: bool = False) -> Report:
        """Everything that can be known to go wrong, and the cost.

        Args:
            ask_aws: Whether AWS is asked for quota, price and names; it is only read.
        """
        findings: list[Finding] = []
        prices: dict[str, Price] = {}
        if ask_aws:
            findings, prices = completed(
                check_live(
                    self.deployment,
                    aws_in(self.deployment.region),
                    now=now(),
                    hours=self.request.spending.hours or 1,
                    secret_arn=self.request.token.hf_token_secret,
                )
            )
        options = self.endpoint.options
        facts = CheckInputs(
            plan=self.plan,
            shape=self.shape,
            nodes=options.nodes,
            container=options.container,
            image_tag=self.endpoint.image.tag,
            weights_bytes=options.weights_bytes or 0.0,
            has_token=self.request.token.given,
        )
        types = self.endpoint.hosting.instance_types
        budget = self.request.spending.budget(types, prices)
        report = check(self.deployment, facts, budget, today=now().date())
        return msgspec.structs.replace(report, findings=(*report.findings, *findings))

    def require_affordable(self) -> None:
        """Raise where it would cost more than is allowed, or what it costs is not known.

        Raises:
            InputError: With the cost.
        """
        report = self.report()
        costly = tuple(found for found in report.stops if found.topic in ("cost", "price"))
        require_go(msgspec.structs.replace(report, findings=costly))

    def apply(
        self,
        *,
        on_report: Callable[[Report], None] | None = None,
        on_progress: Callable[[str], None] | None = None,
        confirm: Confirm | None = None,
    ) -> Deployment:
        """Ask AWS what would fail, and make the endpoint.

        Args:
            on_report: Called with what was checked, before anything is made.
            on_progress: Called with each line of progress; the logger where `None`.
            confirm: Asked whether an endpoint of the cost that was told is to be made; without
                it, `yes` must be given.

        Raises:
            InputError: Something would fail, or nobody agreed to the cost; nothing was made.
            DeployError: AWS refused, or the endpoint failed.
        """
        assert self.folder is not None
        role = role_of(self.request.role_arn)
        deployment = with_role(self.deployment, role)
        report = self.report(ask_aws=True)
        if on_report is not None:
            on_report(report)
        require_go(report)
        assert report.cost is not None
        make_endpoint(deployment, self.folder, self.request, report.cost, confirm, on_progress)
        return deployment


class ServiceDeployment(TrialChoice, frozen=True, kw_only=True):
    """A trial that becomes a service off SageMaker."""

    #: Whether it runs in a container, which listens on all addresses and mounts folders.
    in_container: ClassVar[bool] = True

    gpu: Annotated[str | None, option("GPU type.", metavar="NAME", default="the trial's")] = None
    model_source: Annotated[
        str | None,
        option(
            "Source that the server loads the model from.",
            metavar="HUB_ID|FOLDER",
            default="the trial's model",
        ),
    ] = None
    name: Annotated[
        str | None, option("Name of the service.", metavar="NAME", default="from the model's name")
    ] = None
    port: Annotated[int, option("Port to listen on.")] = 8000
    copies: Annotated[
        FleetCount | None,
        option(
            "Number of copies, each as it was measured; 1 leaves other devices idle.",
            metavar="COUNT",
            default="as many as fill the machine that was measured",
        ),
    ] = None

    def render(self) -> Rendered:
        """The bundle of these options.

        Raises:
            InputError: The folder is missing, or the trial's device is not known.
            CannotRender: The target cannot express the Plan.
        """
        if self.out is None and not self.dry_run:
            raise InputError("the bundle needs a folder", hint="give --out FOLDER, or --dry-run")
        trials = read_with_goal(self.source, self.limits)
        trial = self.trial(trials)
        plan, evidence = plan_of_trial(trial), evidence_of(trial, self.source, trials.search)
        if getattr(self, "container", "") == "lmi":
            plan = _for_lmi(plan)
        target = device_of_trial(trial, self.gpu)
        launcher = launcher_of(plan)
        version, _ = version_of(launcher, getattr(self, "image", None), evidence)
        shape = load_shape(plan.model) if launcher.defaults else None
        if shape is not None:
            check_weights(plan, shape)
        served = prepare(
            explicit_plan(plan, shape, target, version, trial),
            self._service(machine_of_trial(trial, target), shape),
            saturation=saturation_of_trials(
                trials.records, trial, trials.constraints, copies=plan.replicas
            ),
            evidence=evidence,
        )
        return Rendered(
            bundle=with_trial(self.bundle(served), trial),
            plan=served.plan,
            trial=trial,
            folder=None if self.dry_run else self.out,
        )

    def bundle(self, served: Served) -> Bundle:
        """The files of a service."""
        raise NotImplementedError

    def _service(self, node: Node, shape: NetworkShape | None) -> ServiceOptions:
        own = {
            name: getattr(self, name)
            for name in ServiceOptions.__struct_fields__
            if hasattr(self, name)
        }
        if own.pop("container", "") == "lmi":  # whose registry is of a region
            own |= {"container": "lmi", "region": require_region(region_of(own["region"]))}
        else:
            own.pop("region", None)
        size = None if shape is None else weight_bytes(shape)
        return ServiceOptions(**own, node=node, weights_bytes=size, mounts=self.in_container)


class ImageDeployment(ServiceDeployment, frozen=True, kw_only=True):
    """A service in an image."""

    image: Annotated[
        str | None,
        option(
            "Container image to run, tag included.", metavar="IMAGE", default="the engine's own"
        ),
    ] = None


class ContainerDeployment(ImageDeployment, frozen=True, kw_only=True):
    """A service in the engine's own container, or in AWS's."""

    container: Annotated[
        Literal["engine", "lmi"],
        option("Container: the engine's own, or AWS's Large Model Inference."),
    ] = "engine"
    region: Annotated[str | None, REGION] = None


class ClusterDeployment(ContainerDeployment, frozen=True, kw_only=True):
    """A service in a Kubernetes cluster."""

    cluster: ClusterOptions = ClusterOptions()
    overlay: Annotated[
        Path | None,
        option(
            "File of partial manifests (YAML or JSON) that are merged into the rendered ones, "
            "as kubectl patch merges them.",
            metavar="FILE",
        ),
    ] = None


class KubernetesDeployment(ClusterDeployment, frozen=True, kw_only=True):
    """A trial that becomes a Kubernetes Deployment, its Service and an autoscaler."""

    verb: ClassVar[str] = "deploy kubernetes"

    autoscaler: Annotated[
        Literal["none", "hpa", "keda"],
        option("Autoscaler that holds each copy at the measured saturation point."),
    ] = "none"

    def bundle(self, served: Served) -> Bundle:
        """Manifests for kubectl."""
        overlay = read_overlay(self.overlay)
        return render_kubernetes(served, self.cluster, autoscaler=self.autoscaler, overlay=overlay)


class KserveDeployment(ClusterDeployment, frozen=True, kw_only=True):
    """A trial that becomes a KServe InferenceService."""

    verb: ClassVar[str] = "deploy kserve"

    def bundle(self, served: Served) -> Bundle:
        """The InferenceService."""
        return render_kserve(served, self.cluster, overlay=read_overlay(self.overlay))


class ComposeDeployment(ContainerDeployment, frozen=True, kw_only=True):
    """A trial that becomes services of Docker Compose."""

    verb: ClassVar[str] = "deploy compose"

    publish: Annotated[
        str,
        option(
            "Address of the machine that ports are published on; other than a loopback one, "
            "clients need an API key.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"

    def bundle(self, served: Served) -> Bundle:
        """The Compose file."""
        return render_compose(served, publish=self.publish)


class BentomlDeployment(ImageDeployment, frozen=True, kw_only=True):
    """A trial that becomes a BentoML service."""

    verb: ClassVar[str] = "deploy bentoml"

    gpu_type: Annotated[
        str | None, option("GPU type in BentoCloud, such as nvidia-l4.", metavar="NAME")
    ] = None

    def bundle(self, served: Served) -> Bundle:
        """The service's folder."""
        return render_bentoml(served, gpu_type=self.gpu_type)


class HostDeployment(ServiceDeployment, frozen=True, kw_only=True):
    """A service on a machine where the engine is installed."""

    in_container: ClassVar[bool] = False

    host: Annotated[str, option("Address to listen on.", metavar="ADDRESS")] = "127.0.0.1"


class SystemdDeployment(HostDeployment, frozen=True, kw_only=True):
    """A trial that becomes units of systemd."""

    verb: ClassVar[str] = "deploy systemd"

    user: Annotated[str, option("User that the server runs as.", metavar="NAME")] = "servetune"

    def bundle(self, served: Served) -> Bundle:
        """The units."""
        return render_systemd(served, user=self.user)


class CommandDeployment(HostDeployment, frozen=True, kw_only=True):
    """A trial that becomes the plain command, as a script."""

    verb: ClassVar[str] = "deploy command"

    def bundle(self, served: Served) -> Bundle:
        """The scripts."""
        return render_command(served)


def read_overlay(path: Path | None) -> tuple[JsonObject, ...]:
    """Partial manifests of a file, in its order; none without a file.

    Raises:
        InputError: The file cannot be read, is neither JSON nor YAML, or is YAML without PyYAML.
    """
    if path is None:
        return ()
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            found = [json.loads(text)]
        else:
            found = list(importlib.import_module("yaml").safe_load_all(text))
    except ModuleNotFoundError:
        raise InputError(
            f"reading {path} needs PyYAML",
            hint="pip install 'servetune[yaml]', or write the overlay as JSON in a .json file",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the overlay {path}: {error}") from None
    except Exception as error:  # YAML's own errors are of a class that may not be here
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise InputError(f"the overlay {path} is not YAML: {error}".replace("\n", " ")) from None
    listed = found[0] if len(found) == 1 and isinstance(found[0], list) else found
    objects = [each for each in listed if each is not None]
    if not all(isinstance(each, dict) for each in objects):
        raise InputError(
            f"the overlay {path} holds what is no object",
            hint="write partial manifests: kind, metadata.name, and what is to change",
        )
    return tuple(objects)


TARGETS: dict[str, type[SageMakerDeployment | ServiceDeployment]] = {
    kind.verb.removeprefix("deploy "): kind
    for kind in (
        SageMakerDeployment,
        KubernetesDeployment,
        KserveDeployment,
        ComposeDeployment,
        SystemdDeployment,
        CommandDeployment,
        BentomlDeployment,
    )
}


def render(
    request: SageMakerDeployment | ServiceDeployment | str | Path | None = None,
    /,
    *,
    target: str = "sagemaker",
    **options: object,
) -> Rendered:
    """Render the best trial of a run for a target; nothing is deployed.

    Args:
        request: The request, or the journal or summary of the run.
        target: `sagemaker`, `kubernetes`, `kserve`, `compose`, `systemd`, `command` or
            `bentoml`, where the first argument is a file.
        options: Fields of the target's request, such as `SageMakerDeployment`.

    Returns:
        The bundle, in memory and, with `out`, in that folder.

    Raises:
        CannotRender: No trial holds the constraints, or the target cannot express its Plan.
        InputError: An option is wrong.
    """
    if target not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    kind = type(request) if isinstance(request, Request) else TARGETS[target]
    kept = request_of(kind, request, options)
    rendered: Rendered = kept.render()
    if rendered.folder is not None:
        write(rendered.bundle, rendered.folder)
        note_rendered(rendered.folder, kept.source, rendered.trial)
    return rendered


def _for_lmi(plan: Plan) -> Plan:
    """LMI has no data parallelism, but starts copies, which for whole models is the same."""
    if plan.data_parallel == 1 or plan.expert_parallel:
        return plan
    note(
        f"LMI has no data parallelism: {plan.data_parallel} engines behind one address become as "
        "many copies of the model"
    )
    return msgspec.structs.replace(
        plan, data_parallel=1, replicas=plan.replicas * plan.data_parallel
    )


def _of_one_copy(plan: Plan, hosting: HostingOptions) -> Plan:
    """The Plan of one component's copy; as it is where there are no components."""
    if hosting.copies is None or plan.expert_parallel:
        return plan
    return msgspec.structs.replace(plan, replicas=1, data_parallel=1)
