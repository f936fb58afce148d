"""CloudFormation template of a deployment: the same requests as resources of a stack.

The properties of CloudFormation's resources are the members of the API's requests, so each step
becomes a resource of its own; names that one step takes from another become references, by which
the stack knows their order.
"""

from __future__ import annotations

from servetune.deploy.deployment import Deployment, Step, from_zero_policy
from servetune.errors import CannotRender
from servetune.json_value import JsonObject

TEMPLATE_FILE = "template.json"

_TYPES = {
    "model": "AWS::SageMaker::Model",
    "endpoint-config": "AWS::SageMaker::EndpointConfig",
    "endpoint": "AWS::SageMaker::Endpoint",
    "component": "AWS::SageMaker::InferenceComponent",
    "adapter": "AWS::SageMaker::InferenceComponent",
    "scalable-target": "AWS::ApplicationAutoScaling::ScalableTarget",
    "scaling-policy": "AWS::ApplicationAutoScaling::ScalingPolicy",
    "alarm": "AWS::CloudWatch::Alarm",
}
_ROLE = {"Ref": "ExecutionRoleArn"}


def template(deployment: Deployment) -> JsonObject:
    """The template, with the execution role as its parameter.

    Raises:
        CannotRender: CloudFormation has no property for a member of a request (cfn-lint 1.58).
    """
    if "ContainerMetricsConfig" in deployment.only("model").request["PrimaryContainer"]:
        raise CannotRender(
            "CloudFormation's model has no path of metrics",
            hint="leave --metrics-path out, or make the endpoint with servetune deploy apply",
        )
    role = deployment.only("model").request.get("ExecutionRoleArn")
    names = _logical_names(deployment)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"SageMaker endpoint {deployment.endpoint} of {deployment.model}",
        "Parameters": {
            "ExecutionRoleArn": {
                "Type": "String",
                "Description": "ARN of the role that the containers run as",
                "AllowedPattern": r"^arn:aws[a-z\-]*:iam::\d{12}:role/.+$",
                **({"Default": role} if role else {}),
            }
        },
        "Resources": {
            names[step.kind, step.name]: {
                "Type": _TYPES[step.kind],
                **_depends(step, deployment, names),
                "Properties": _properties(step, deployment, names),
            }
            for step in deployment.steps
        },
        "Outputs": {"EndpointName": {"Value": _attribute("Endpoint", "EndpointName")}},
    }


def _logical_names(deployment: Deployment) -> dict[tuple[str, str], str]:
    """Names of the resources in the template; a second one of a kind has a number."""
    found: dict[tuple[str, str], str] = {}
    for kind in _TYPES:
        stem = "".join(part.title() for part in kind.split("-"))
        for number, step in enumerate(deployment.of_kind(kind), start=1):
            found[kind, step.name] = stem if number == 1 else f"{stem}{number}"
    return found


def _depends(step: Step, deployment: Deployment, names: dict[tuple[str, str], str]) -> JsonObject:
    """The order that no reference tells: a component is there before what stands on it."""
    if step.kind not in ("scalable-target", "adapter"):
        return {}
    kind = "endpoint" if deployment.hosting.copies is None else "component"
    return {"DependsOn": names[kind, deployment.only(kind).name]}


def _attribute(logical: str, name: str) -> JsonObject:
    return {"Fn::GetAtt": [logical, name]}


def _properties(
    step: Step, deployment: Deployment, names: dict[tuple[str, str], str]
) -> JsonObject:
    held = dict(step.request)
    if step.kind == "model":
        held["ExecutionRoleArn"] = _ROLE
    elif step.kind == "endpoint-config":
        held["ProductionVariants"] = [_linked(each) for each in held["ProductionVariants"]]
        if deployment.hosting.copies is not None:
            held["ExecutionRoleArn"] = _ROLE
    elif step.kind == "endpoint":
        held["EndpointConfigName"] = _attribute("EndpointConfig", "EndpointConfigName")
        if deployment.hosting.scaling:  # else an update would undo what autoscaling chose
            held["RetainAllVariantProperties"] = True
    elif step.kind in ("component", "adapter"):
        held["EndpointName"] = _attribute("Endpoint", "EndpointName")
        if "Specification" in held:
            held["Specification"] = _linked(held["Specification"])
        else:
            held["Specifications"] = [_linked(each) for each in held["Specifications"]]
    elif step.kind == "scaling-policy":
        for name in ("ServiceNamespace", "ResourceId", "ScalableDimension"):
            del held[name]
        held["ScalingTargetId"] = {"Ref": "ScalableTarget"}
    elif step.kind == "alarm":
        policy = names["scaling-policy", from_zero_policy(deployment.endpoint)]
        held["AlarmActions"] = [{"Ref": policy}]
    return held


def _linked(part: JsonObject) -> JsonObject:
    """A variant or a component's specification, with its model as a reference."""
    return {**part, "ModelName": _attribute("Model", "ModelName")} if "ModelName" in part else part
