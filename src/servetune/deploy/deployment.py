"""Deployment: all requests to AWS that make an endpoint, in order, as a value.

A step is one request that makes one resource. Resources are named by a digest of their
contents, so the same deployment finds its own again and another one makes others.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from servetune.decoding import ready
from servetune.deploy.alarms import alarm_name, no_capacity_alarm, rollback_alarms
from servetune.deploy.batches import instances_for
from servetune.deploy.bundle import json_text
from servetune.deploy.endpoint import Endpoint, EndpointOptions
from servetune.deploy.hosting import Hosting, Scaling
from servetune.deploy.images import ami_version
from servetune.deploy.names import digest_name, resource_name
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

DEPLOYMENT_FILE = "deployment.json"

#: Tag of every resource; its value is the endpoint's name.
TAG = "servetune:endpoint"
#: Tag of an endpoint that its user asked to end, with the ISO time; `orphans` lists what is past
#: it. Written when the endpoint is made, never when its bundle is rendered.
DELETE_AFTER_TAG = "servetune:delete-after"
#: Value of that tag where an end that was asked for was taken back.
NO_END = "never"
#: Tag with the identity in AWS that made a resource.
OWNER_TAG = "servetune:owner"
VARIANT = "AllTraffic"
FORM_VERSION = 1

#: Kind of resource: (service, operation that makes it).
OPERATIONS = {
    "model": ("sagemaker", "CreateModel"),
    "endpoint-config": ("sagemaker", "CreateEndpointConfig"),
    "endpoint": ("sagemaker", "CreateEndpoint"),
    "component": ("sagemaker", "CreateInferenceComponent"),
    "adapter": ("sagemaker", "CreateInferenceComponent"),
    "scalable-target": ("application-autoscaling", "RegisterScalableTarget"),
    "scaling-policy": ("application-autoscaling", "PutScalingPolicy"),
    "alarm": ("cloudwatch", "PutMetricAlarm"),
    "rollback-alarm": ("cloudwatch", "PutMetricAlarm"),
}


class Step(msgspec.Struct, frozen=True):
    """One request that makes one resource.

    Attributes:
        kind: Key of `OPERATIONS`.
        name: Name of the resource in AWS.
        request: Members of the request, without a role that is not known yet and without a token.
    """

    kind: str
    name: str
    request: JsonObject

    @property
    def service(self) -> str:
        return OPERATIONS[self.kind][0]

    @property
    def operation(self) -> str:
        return OPERATIONS[self.kind][1]

    def with_members(self, **members: object) -> Step:
        """The same with members of its request added or replaced."""
        return msgspec.structs.replace(self, request={**self.request, **members})


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """All resources of one endpoint.

    Attributes:
        endpoint: Name of the endpoint.
        region: AWS region.
        steps: Requests in the order in which they can be made.
        hosting: Instances, copies, adapters and scaling that they were made from.
        model: Original id of the model, by which tokenizers are found.
        startup_timeout_s: Time until a container must answer.
        rollback_alarms: Alarms that an update makes first, and that roll it back.
        version: Version of this form.
    """

    endpoint: str
    region: str
    steps: tuple[Step, ...]
    hosting: Hosting
    model: str
    startup_timeout_s: int
    rollback_alarms: tuple[Step, ...] = ()
    version: int = FORM_VERSION

    def of_kind(self, *kinds: str) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind in kinds)

    def only(self, kind: str) -> Step:
        (step,) = self.of_kind(kind)
        return step

    @property
    def scaled(self) -> dict[str, str]:
        """What Application Auto Scaling changes: the base component, else the variant."""
        if self.hosting.copies is not None:
            return scaled_component(component_name(self.endpoint))
        return scaled_variant(self.endpoint)

    def to_json(self) -> str:
        """Text of `deployment.json`: indented, with its end of line."""
        return json_text(msgspec.to_builtins(self))


def read_deployment(text: str) -> Deployment:
    """A Deployment out of `deployment.json`.

    Raises:
        CannotRender: It is none.
    """
    try:
        found = msgspec.json.decode(text.encode(), type=ready(Deployment))
    except msgspec.MsgspecError as error:
        raise CannotRender(
            f"{DEPLOYMENT_FILE} cannot be read: {error}", hint="render the bundle again"
        ) from None
    if found.version > FORM_VERSION:
        raise CannotRender(
            f"{DEPLOYMENT_FILE} was written by a newer servetune", hint="upgrade servetune"
        )
    return found


def with_role(deployment: Deployment, role_arn: str) -> Deployment:
    """The same with the execution role in the requests that take one."""
    kinds = ("model",) if deployment.hosting.copies is None else ("model", "endpoint-config")
    return msgspec.structs.replace(
        deployment,
        steps=tuple(
            step.with_members(ExecutionRoleArn=role_arn) if step.kind in kinds else step
            for step in deployment.steps
        ),
    )


def with_tags(deployment: Deployment, *, owner: str = "", delete_after: str = "") -> Deployment:
    """The same with what is known only when it is made: its maker, and when it shall end.

    Args:
        deployment: The deployment; a time that an earlier version wrote into it goes.
        owner: Identity in AWS, on every resource that has tags.
        delete_after: ISO time, on the endpoint.
    """

    def tagged(step: Step) -> Step:
        if "Tags" not in step.request:
            return step
        ends = delete_after if step.kind == "endpoint" else ""
        kept = {tag["Key"]: tag["Value"] for tag in step.request["Tags"]}
        kept |= {OWNER_TAG: _tag_value(owner), DELETE_AFTER_TAG: ends}
        tags = [{"Key": key, "Value": value} for key, value in kept.items() if value]
        return step.with_members(Tags=tags)

    return msgspec.structs.replace(
        deployment,
        steps=tuple(map(tagged, deployment.steps)),
        rollback_alarms=tuple(map(tagged, deployment.rollback_alarms)),
    )


def deployment_of(endpoint: Endpoint) -> Deployment:
    """The steps that make an endpoint, in the order in which they can be made."""
    hosting, options = endpoint.hosting, endpoint.options
    digest = _digest(endpoint)
    tags = _tags(endpoint, digest)
    model = _model(endpoint, digest_name(endpoint.name, digest), tags)
    config = _config(endpoint, model, tags)
    steps = [
        Step("model", model["ModelName"], model),
        Step("endpoint-config", config["EndpointConfigName"], config),
        Step(
            "endpoint",
            endpoint.name,
            {
                "EndpointName": endpoint.name,
                "EndpointConfigName": config["EndpointConfigName"],
                "Tags": tags,
            },
        ),
    ]
    scaled = scaled_variant(endpoint.name)
    watched = {"EndpointName": endpoint.name, "VariantName": VARIANT}
    if hosting.copies is not None:
        base = _component(endpoint, model["ModelName"], tags)
        steps += [base, *_adapters(endpoint.name, base.name, hosting, tags)]
        scaled = scaled_component(base.name)
        watched = {"InferenceComponentName": base.name}
    if hosting.scaling is not None:
        queued = options.features.async_output is not None
        steps += _scaling(endpoint.name, scaled, hosting.scaling, queued=queued)
    return Deployment(
        endpoint=endpoint.name,
        region=options.region,
        steps=tuple(steps),
        hosting=hosting,
        model=endpoint.plan.model,
        startup_timeout_s=endpoint.startup_timeout_s,
        rollback_alarms=tuple(
            Step("rollback-alarm", alarm["AlarmName"], alarm)
            for alarm in rollback_alarms(
                endpoint.name,
                [{"Name": name, "Value": value} for name, value in watched.items()],
                options.latency_limit,
                [{"Key": TAG, "Value": endpoint.name}],
            )
        ),
    )


def scaled_variant(endpoint: str) -> dict[str, str]:
    """Members by which Application Auto Scaling names an endpoint's instances."""
    return _scaled(f"endpoint/{endpoint}/variant/{VARIANT}", "variant:DesiredInstanceCount")


def scaled_component(component: str) -> dict[str, str]:
    """Members by which Application Auto Scaling names a component's copies."""
    return _scaled(f"inference-component/{component}", "inference-component:DesiredCopyCount")


def _scaled(resource: str, dimension: str) -> dict[str, str]:
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": resource,
        "ScalableDimension": f"sagemaker:{dimension}",
    }


def component_name(endpoint: str) -> str:
    """Name of the base component, which clients use and updates keep."""
    return resource_name(f"{endpoint}-base")


def adapter_name(endpoint: str, adapter: str) -> str:
    """Name of the component that serves a LoRA adapter."""
    return resource_name(f"{endpoint}-{adapter}")


def _digest(endpoint: Endpoint) -> str:
    """Digest of what the model is: other settings make other resources, equal ones find theirs."""
    features = endpoint.options.features
    more = {**features.of_model(), **features.of_container(), **_licence(endpoint.options)}
    held = json_text(
        [
            endpoint.image_uri,
            endpoint.node.name,
            endpoint.source,
            endpoint.environment,
            endpoint.startup_timeout_s,
            *([more] if more else []),
        ]
    )
    return hashlib.sha256(held.encode()).hexdigest()


def _tags(endpoint: Endpoint, digest: str) -> list[dict[str, str]]:
    values = {
        **endpoint.options.features.tags(),
        TAG: endpoint.name,
        "servetune:plan": digest[:16],
        "servetune:model": _tag_value(endpoint.plan.model),
    }
    return [{"Key": key, "Value": value} for key, value in values.items() if value]


def _model(endpoint: Endpoint, name: str, tags: list[dict[str, str]]) -> JsonObject:
    container: JsonObject = {
        "Image": endpoint.image_uri,
        "Environment": dict(endpoint.environment),
        **endpoint.options.features.of_container(),
    }
    if endpoint.source.startswith("s3://"):
        container["ModelDataSource"] = {
            "S3DataSource": {
                "S3Uri": endpoint.source,
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
                **_licence(endpoint.options),
            }
        }
    return {
        "ModelName": name,
        **_role(endpoint.options),
        **endpoint.options.features.of_model(),
        "PrimaryContainer": container,
        "Tags": tags,
    }


def _licence(options: EndpointOptions) -> JsonObject:
    """The user's consent to the licence of a JumpStart model, which the service demands."""
    return {"ModelAccessConfig": {"AcceptEula": True}} if options.accept_eula else {}


def _role(options: EndpointOptions) -> dict[str, str]:
    return {"ExecutionRoleArn": options.role_arn} if options.role_arn else {}


def _timeouts(endpoint: Endpoint) -> dict[str, int]:
    """Time-outs of start-up and, for a model in S3, of its download."""
    timeouts = {"ContainerStartupHealthCheckTimeoutInSeconds": endpoint.startup_timeout_s}
    if endpoint.source.startswith("s3://"):
        timeouts["ModelDataDownloadTimeoutInSeconds"] = endpoint.startup_timeout_s
    return timeouts


def _variant(endpoint: Endpoint, model_name: str) -> JsonObject:
    hosting = endpoint.hosting
    startup, *download = _timeouts(endpoint).items()
    alone = hosting.copies is None  # else model and time-outs belong to the component
    types = hosting.instance_types
    variant: JsonObject = {
        "VariantName": VARIANT,
        **({"ModelName": model_name} if alone else {}),
        **({"InstanceType": types[0]} if len(types) == 1 else {}),
        "InitialInstanceCount": hosting.instance_count,
        **({"InitialVariantWeight": 1.0} | dict([startup]) if alone else {}),
        "InferenceAmiVersion": ami_version(endpoint.image),
        "RoutingConfig": hosting.routing.request(),
        **(dict(download) if alone else {}),
    }
    if len(types) > 1:
        variant["InstancePools"] = [
            {"InstanceType": name, "Priority": place} for place, name in enumerate(types, start=1)
        ]
    if hosting.provision_timeout_s is not None:
        variant["VariantInstanceProvisionTimeoutInSeconds"] = hosting.provision_timeout_s
    if hosting.reservation_arn:
        variant["CapacityReservationConfig"] = {
            "CapacityReservationPreference": "capacity-reservations-only",
            "MlReservationArn": hosting.reservation_arn,
        }
    if hosting.copies is not None:
        variant["ManagedInstanceScaling"] = _managed(hosting, hosting.copies, endpoint)
    return variant


def _managed(hosting: Hosting, copies: int, endpoint: Endpoint) -> JsonObject:
    """The range in which SageMaker adds and takes instances as copies need a place.

    Without it an update has no place for the new copies beside the old ones on instances that are
    full: with it SageMaker adds an instance for that time (aws-samples,
    sagemaker-genai-hosting-examples, 03-features/deployment/ic_rolling_deployment.ipynb).
    """
    least, most = hosting.instance_count, copies
    if hosting.scaling is not None:
        least = -(-hosting.scaling.minimum // hosting.copies_per_instance)
        most = max(copies, hosting.scaling.maximum)
    room = instances_for(most, hosting.copies_per_instance, endpoint.startup_timeout_s)
    return {
        "Status": "ENABLED",
        "MinInstanceCount": least,
        "MaxInstanceCount": max(room, hosting.most_instances),
    }


def _config(endpoint: Endpoint, model: JsonObject, tags: list[dict[str, str]]) -> JsonObject:
    variant = _variant(endpoint, model["ModelName"])
    alone = endpoint.hosting.copies is None
    concurrency = endpoint.evidence.concurrency if endpoint.evidence else None
    features = endpoint.options.features.of_config(alone=alone, concurrency=concurrency)
    held = json.dumps(
        [model["ModelName"] if alone else "", variant, *([features] if features else [])]
    )
    digest = hashlib.sha256(held.encode()).hexdigest()
    return {
        "EndpointConfigName": digest_name(endpoint.name, digest),
        "ProductionVariants": [variant],
        **features,
        "Tags": tags,
        **({} if alone else _role(endpoint.options)),
    }


def _component(endpoint: Endpoint, model_name: str, tags: list[dict[str, str]]) -> Step:
    hosting = endpoint.hosting

    def specification(instance_type: str) -> JsonObject:
        return {
            "ModelName": model_name,
            "StartupParameters": _timeouts(endpoint),
            "ComputeResourceRequirements": {
                "NumberOfAcceleratorDevicesRequired": float(hosting.devices_per_copy),
                "MinMemoryRequiredInMb": hosting.memory_mib_per_copy[instance_type],
                **(
                    {}
                    if hosting.cpu_cores_per_copy is msgspec.UNSET
                    else {"NumberOfCpuCoresRequired": hosting.cpu_cores_per_copy}
                ),
            },
        }

    name = component_name(endpoint.name)
    request: JsonObject = {
        "InferenceComponentName": name,
        "EndpointName": endpoint.name,
        "VariantName": VARIANT,
        "RuntimeConfig": {"CopyCount": hosting.copies},
        "Tags": tags,
    }
    if len(hosting.instance_types) == 1:
        request["Specification"] = specification(hosting.instance_types[0])
    else:
        request["Specifications"] = [
            {"InstanceType": instance_type, **specification(instance_type)}
            for instance_type in hosting.instance_types
        ]
    return Step("component", name, request)


def _adapters(endpoint: str, base: str, hosting: Hosting, tags: list[dict[str, str]]) -> list[Step]:
    steps = []
    for adapter in hosting.adapters:
        name = adapter_name(endpoint, adapter.name)
        if name == base:
            raise CannotRender(
                f"adapter '{adapter.name}' has the base component's name", hint="call it otherwise"
            )
        request = {
            "InferenceComponentName": name,
            "EndpointName": endpoint,
            "Specification": {
                "BaseInferenceComponentName": base,
                "Container": {"ArtifactUrl": adapter.artifact_url},
            },
            "Tags": tags,
        }
        steps.append(Step("adapter", name, request))
    return steps


def in_flight_policy(endpoint: str) -> str:
    """Name of the scaling policy that holds requests in flight per copy."""
    return f"{endpoint}-requests-in-flight"


def from_zero_policy(endpoint: str) -> str:
    """Name of the scaling policy that makes the first copy."""
    return f"{endpoint}-from-zero"


def _scaling(endpoint: str, of: dict[str, str], scaling: Scaling, *, queued: bool) -> list[Step]:
    """Track requests in flight per copy, or in the queue of an asynchronous endpoint.

    Target tracking alone never leaves zero, because no copy reports no metric: from zero, a step
    up when a request found no copy, or waits where no instance runs.
    """
    policy, resource = in_flight_policy(endpoint), of["ResourceId"]
    steps = [
        Step(
            "scalable-target",
            resource,
            {**of, "MinCapacity": scaling.minimum, "MaxCapacity": scaling.maximum},
        ),
        Step(
            "scaling-policy",
            policy,
            {
                **of,
                "PolicyName": policy,
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": scaling.requests_per_copy,
                    **_tracked_metric(endpoint, resource, queued=queued),
                    "ScaleOutCooldown": scaling.scale_out_cooldown_s,
                    "ScaleInCooldown": scaling.scale_in_cooldown_s,
                },
            },
        ),
    ]
    return steps if scaling.minimum > 0 else steps + _steps_from_zero(endpoint, of)


def _tracked_metric(endpoint: str, resource: str, *, queued: bool) -> JsonObject:
    """Metric that a policy holds; the queue's is that of AWS's guide to asynchronous endpoints."""
    if queued:
        return {
            "CustomizedMetricSpecification": {
                "MetricName": "ApproximateBacklogSizePerInstance",
                "Namespace": "AWS/SageMaker",
                "Dimensions": [{"Name": "EndpointName", "Value": endpoint}],
                "Statistic": "Average",
            }
        }
    metric = (
        "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
        if resource.startswith("inference-component/")
        else "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    )
    return {"PredefinedMetricSpecification": {"PredefinedMetricType": metric}}


def _steps_from_zero(endpoint: str, of: dict[str, str]) -> list[Step]:
    """The policy that makes the first copy, and the alarm that calls it."""
    policy = from_zero_policy(endpoint)
    kind, _, name = of["ResourceId"].partition("/")
    watched = name if kind == "inference-component" else None
    return [
        Step(
            "scaling-policy",
            policy,
            {
                **of,
                "PolicyName": policy,
                "PolicyType": "StepScaling",
                "StepScalingPolicyConfiguration": {
                    "AdjustmentType": "ChangeInCapacity",
                    "MetricAggregationType": "Maximum",
                    "Cooldown": 60,
                    "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
                },
            },
        ),
        Step(
            "alarm",
            alarm_name(endpoint),
            no_capacity_alarm(endpoint, watched, [{"Key": TAG, "Value": endpoint}]),
        ),
    ]


def _tag_value(text: str) -> str:
    """What a tag can hold of a text; only letters, digits, spaces and `_.:/=+-@` pass."""
    return "".join(c if c.isalnum() or c in " _.:/=+-@" else "_" for c in text)[:256]


#: Beginnings of hub ids whose files need an accepted licence and a token (hub, November 2026).
_GATED = ("meta-llama/", "google/gemma-", "CohereLabs/", "CohereForAI/")


def needs_token(deployment: Deployment) -> bool:
    """Whether the container loads a model that the hub hands out for a token alone."""
    container = deployment.only("model").request["PrimaryContainer"]
    return "ModelDataSource" not in container and deployment.model.startswith(_GATED)
