"""Deployment: everything that will be asked of AWS, in order, as a value.

`deployment_of` turns a rendered bundle and a Hosting into steps. A step is one request
that makes one thing; things are named by what they hold, so the same deployment finds its
own again and another one makes others.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from servetune.deploy.aws.hosting import Hosting, Scaling
from servetune.deploy.bundle import Bundle
from servetune.deploy.sagemaker import NAME_LIMIT, ROLE_PLACEHOLDER, resource_name
from servetune.errors import CannotRender

__all__ = ["DEPLOYMENT_FILE", "TAG", "Deployment", "Step", "deployment_of", "with_role"]

DEPLOYMENT_FILE = "deployment.json"

#: On everything that is made; its value is the endpoint's name.
TAG = "servetune:endpoint"
#: When the user meant to be done with it; `orphans` lists what is past it.
DELETE_AFTER_TAG = "servetune:delete-after"
VARIANT = "AllTraffic"
INTERNAL_VERSION = 1

#: Which service makes which kind of thing, and by which operation.
OPERATIONS = {
    "model": ("sagemaker", "CreateModel"),
    "endpoint-config": ("sagemaker", "CreateEndpointConfig"),
    "endpoint": ("sagemaker", "CreateEndpoint"),
    "component": ("sagemaker", "CreateInferenceComponent"),
    "adapter": ("sagemaker", "CreateInferenceComponent"),
    "scalable-target": ("application-autoscaling", "RegisterScalableTarget"),
    "scaling-policy": ("application-autoscaling", "PutScalingPolicy"),
    "alarm": ("cloudwatch", "PutMetricAlarm"),
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One request that makes one thing.

    Attributes:
        kind: A key of `OPERATIONS`.
        name: Of the thing, as AWS knows it.
        request: As it is sent, but for the role and a token.
    """

    kind: str
    name: str
    request: dict[str, Any]

    @property
    def service(self) -> str:
        return OPERATIONS[self.kind][0]

    @property
    def operation(self) -> str:
        return OPERATIONS[self.kind][1]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What will stand when all is done.

    Attributes:
        endpoint: Its name.
        region: Where.
        steps: In the order in which they can be made.
        hosting: What they were made from.
        model: Original id of the model, which tokenizers are found by.
        startup_timeout_s: Until a container must answer.
        version: Of this form.
    """

    endpoint: str
    region: str
    steps: tuple[Step, ...]
    hosting: Hosting
    model: str
    startup_timeout_s: int
    version: int = INTERNAL_VERSION

    def of_kind(self, *kinds: str) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind in kinds)

    def only(self, kind: str) -> Step:
        (step,) = self.of_kind(kind)
        return step

    def to_json(self) -> str:
        """For `deployment.json`: indented, with its end of line."""
        return json.dumps(msgspec.to_builtins(self), indent=2, ensure_ascii=False) + "\n"


def read_deployment(text: str) -> Deployment:
    """A Deployment out of `deployment.json`.

    Raises:
        CannotRender: It is none.
    """
    try:
        found = msgspec.json.decode(text.encode(), type=Deployment)
    except msgspec.MsgspecError as error:
        raise CannotRender(
            f"{DEPLOYMENT_FILE} cannot be read: {error}", hint="render the bundle again"
        ) from None
    if found.version > INTERNAL_VERSION:
        raise CannotRender(
            f"{DEPLOYMENT_FILE} was written by a newer servetune", hint="upgrade servetune"
        )
    return found


def with_role(deployment: Deployment, role_arn: str) -> Deployment:
    """The same with the execution role in place of its placeholder."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return role_arn if value == ROLE_PLACEHOLDER else value

    return msgspec.structs.replace(
        deployment,
        steps=tuple(
            msgspec.structs.replace(step, request=filled(step.request)) for step in deployment.steps
        ),
    )


def deployment_of(
    bundle: Bundle, hosting: Hosting, *, delete_after: str | None = None
) -> Deployment:
    """The steps that make a rendered bundle stand as Hosting says.

    Args:
        bundle: Of `render_sagemaker`, for `hosting.instance_types[0]`.
        hosting: Instances, copies, adapters, scaling.
        delete_after: ISO time for the tag by which `orphans` finds what was forgotten.
    """
    about = bundle.json("plan.json")
    endpoint = str(about["endpoint_name"])
    tags = [
        {"Key": TAG, "Value": endpoint},
        {"Key": "servetune:model", "Value": _tag_value(str(about["plan"]["model"]))},
    ]
    if delete_after:
        tags.append({"Key": DELETE_AFTER_TAG, "Value": delete_after})
    model = bundle.json("model.json")
    model["Tags"] = _tagged(model["Tags"], tags)
    rendered = bundle.json("endpoint_config.json")["ProductionVariants"][0]
    timeout_s = int(rendered["ContainerStartupHealthCheckTimeoutInSeconds"])
    variant = _variant(rendered, hosting)
    config = _config(endpoint, model, variant, hosting, model["Tags"])
    name = config["EndpointConfigName"]
    steps = [
        Step(kind="model", name=model["ModelName"], request=model),
        Step(kind="endpoint-config", name=name, request=config),
        Step(
            kind="endpoint",
            name=endpoint,
            request={
                "EndpointName": endpoint,
                "EndpointConfigName": name,
                "Tags": model["Tags"],
            },
        ),
    ]
    scaled = (f"endpoint/{endpoint}/variant/{VARIANT}", "sagemaker:variant:DesiredInstanceCount")
    if hosting.copies is not None:
        base = _component(endpoint, model["ModelName"], hosting, rendered, model["Tags"])
        steps.append(base)
        steps += _adapters(endpoint, base.name, hosting, model["Tags"])
        scaled = (
            f"inference-component/{base.name}",
            "sagemaker:inference-component:DesiredCopyCount",
        )
    if hosting.scaling is not None:
        steps += _scaling(endpoint, *scaled, hosting.scaling)
    return Deployment(
        endpoint=endpoint,
        region=str(about["region"]),
        steps=tuple(steps),
        hosting=hosting,
        model=str(about["plan"]["model"]),
        startup_timeout_s=timeout_s,
    )


def component_name(endpoint: str) -> str:
    """The base component's name, which clients use and updates keep."""
    return resource_name(f"{endpoint}-base")


def adapter_name(endpoint: str, adapter: str) -> str:
    return resource_name(f"{endpoint}-{adapter}")


def _variant(rendered: dict[str, Any], hosting: Hosting) -> dict[str, Any]:
    variant = dict(rendered)
    variant["InitialInstanceCount"] = hosting.instance_count
    variant["RoutingConfig"] = hosting.routing.request()
    if len(hosting.instance_types) > 1:
        del variant["InstanceType"]
        variant["InstancePools"] = [
            {"InstanceType": name, "Priority": place}
            for place, name in enumerate(hosting.instance_types, start=1)
        ]
    else:
        variant["InstanceType"] = hosting.instance_types[0]
    if hosting.provision_timeout_s is not None:
        variant["VariantInstanceProvisionTimeoutInSeconds"] = hosting.provision_timeout_s
    if hosting.reservation_arn:
        variant["CapacityReservationConfig"] = {
            "CapacityReservationPreference": "capacity-reservations-only",
            "MlReservationArn": hosting.reservation_arn,
        }
    if hosting.copies is not None:
        # The model, its time-outs and its data belong to the component.
        for name in (
            "ModelName",
            "InitialVariantWeight",
            "ContainerStartupHealthCheckTimeoutInSeconds",
            "ModelDataDownloadTimeoutInSeconds",
        ):
            variant.pop(name, None)
        if hosting.scaling is not None:
            variant["ManagedInstanceScaling"] = {
                "Status": "ENABLED",
                "MinInstanceCount": -(-hosting.scaling.minimum // hosting.copies_per_instance),
                "MaxInstanceCount": hosting.most_instances,
            }
    return variant


def _config(
    endpoint: str,
    model: dict[str, Any],
    variant: dict[str, Any],
    hosting: Hosting,
    tags: list[dict[str, str]],
) -> dict[str, Any]:
    held = json.dumps([model["ModelName"] if hosting.copies is None else "", variant])
    digest = hashlib.sha256(held.encode()).hexdigest()[:8]
    config: dict[str, Any] = {
        "EndpointConfigName": f"{endpoint[: NAME_LIMIT - 9].rstrip('-')}-{digest}",
        "ProductionVariants": [variant],
        "Tags": tags,
    }
    if hosting.copies is not None:
        config["ExecutionRoleArn"] = model["ExecutionRoleArn"]
    return config


def _component(
    endpoint: str,
    model_name: str,
    hosting: Hosting,
    rendered: dict[str, Any],
    tags: list[dict[str, str]],
) -> Step:
    startup = {
        name: rendered[name]
        for name in (
            "ContainerStartupHealthCheckTimeoutInSeconds",
            "ModelDataDownloadTimeoutInSeconds",
        )
        if name in rendered
    }

    def specification(instance_type: str) -> dict[str, Any]:
        return {
            "ModelName": model_name,
            "StartupParameters": startup,
            "ComputeResourceRequirements": {
                "NumberOfAcceleratorDevicesRequired": float(hosting.devices_per_copy),
                "MinMemoryRequiredInMb": hosting.memory_mib_per_copy[instance_type],
            },
        }

    name = component_name(endpoint)
    request: dict[str, Any] = {
        "InferenceComponentName": name,
        "EndpointName": endpoint,
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
    return Step(kind="component", name=name, request=request)


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
        steps.append(Step(kind="adapter", name=name, request=request))
    return steps


def alarm_name(endpoint: str) -> str:
    return f"servetune-{endpoint}-no-capacity"


def _scaling(endpoint: str, resource: str, dimension: str, scaling: Scaling) -> list[Step]:
    """Track requests in flight per copy; from zero, step up when a request found no copy.

    Target tracking alone never leaves zero, because no copy reports no metric.
    """
    by_component = resource.startswith("inference-component/")
    of = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": resource,
        "ScalableDimension": dimension,
    }
    metric = (
        "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
        if by_component
        else "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    )
    steps = [
        Step(
            kind="scalable-target",
            name=resource,
            request={**of, "MinCapacity": scaling.minimum, "MaxCapacity": scaling.maximum},
        ),
        Step(
            kind="scaling-policy",
            name=f"{endpoint}-requests-in-flight",
            request={
                **of,
                "PolicyName": f"{endpoint}-requests-in-flight",
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": scaling.requests_per_copy,
                    "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
                    "ScaleOutCooldown": scaling.scale_out_cooldown_s,
                    "ScaleInCooldown": scaling.scale_in_cooldown_s,
                },
            },
        ),
    ]
    if scaling.minimum > 0:
        return steps
    policy = f"{endpoint}-from-zero"
    component = resource.removeprefix("inference-component/")
    return [
        *steps,
        Step(
            kind="scaling-policy",
            name=policy,
            request={
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
            kind="alarm",
            name=alarm_name(endpoint),
            request={
                "AlarmName": alarm_name(endpoint),
                "AlarmActions": [],  # the policy's ARN, which is known once it is made
                "Namespace": "AWS/SageMaker",
                "MetricName": "NoCapacityInvocationFailures",
                "Dimensions": [{"Name": "InferenceComponentName", "Value": component}],
                "Statistic": "Maximum",
                "Period": 30,
                "EvaluationPeriods": 1,
                "DatapointsToAlarm": 1,
                "Threshold": 1.0,
                "ComparisonOperator": "GreaterThanOrEqualToThreshold",
                "TreatMissingData": "missing",
                "Tags": [{"Key": TAG, "Value": endpoint}],
            },
        ),
    ]


def _tagged(held: list[dict[str, str]], more: list[dict[str, str]]) -> list[dict[str, str]]:
    merged = {tag["Key"]: tag["Value"] for tag in [*held, *more]}
    return [{"Key": key, "Value": value} for key, value in merged.items()]


def _tag_value(text: str) -> str:
    """What a tag can hold of a text; only letters, digits, spaces and `_.:/=+-@` pass."""
    return "".join(c if c.isalnum() or c in " _.:/=+-@" else "_" for c in text)[:256]
