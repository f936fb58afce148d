"""CloudFormation: a template's resources become requests to the other doubles, in their order.

Rules, with the user guide of November 2026 where no other source is named:

- A parameter without a value or default, or against its pattern, makes nothing ("Parameters");
  `deploy` of the AWS CLI keeps the values of the stack where none are given.
- A dynamic reference is the text of the secret, which whoever deploys may read, and no template or
  answer holds it
  ("Get a secret or secret value from Secrets Manager").
- Models and configurations are replaced, endpoints and components updated (`createOnlyProperties`
  of their schemas, cfn-lint 1.58), tags where they are; what has a name of its own is not replaced
  under that name ("Name type"). What is replaced is deleted when all else is done.
- An update has failed where a resource is not as it was asked for ("Resource type handler contract"
  of the CloudFormation CLI's guide), and what it replaces stays. Its own rollback is not played.
- A component's `CopyCount` is written whenever the component is updated (`writeOnlyProperties`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from doubles.control import Refusal

Json = dict[str, Any]

#: Type: service, noun of its operations, member that names it.
_TYPES = {
    "AWS::SageMaker::Model": ("sagemaker", "Model", "ModelName"),
    "AWS::SageMaker::EndpointConfig": ("sagemaker", "EndpointConfig", "EndpointConfigName"),
    "AWS::SageMaker::Endpoint": ("sagemaker", "Endpoint", "EndpointName"),
    "AWS::SageMaker::InferenceComponent": (
        "sagemaker", "InferenceComponent", "InferenceComponentName",
    ),
    "AWS::ApplicationAutoScaling::ScalableTarget": (
        "application-autoscaling", "RegisterScalableTarget", "ResourceId",
    ),
    "AWS::ApplicationAutoScaling::ScalingPolicy": (
        "application-autoscaling", "PutScalingPolicy", "PolicyName",
    ),
    "AWS::CloudWatch::Alarm": ("cloudwatch", "PutMetricAlarm", "AlarmName"),
}  # fmt: skip
_REPLACED = ("AWS::SageMaker::Model", "AWS::SageMaker::EndpointConfig")
_ABSENT = object()


class Stack:
    """One stack.

    Attributes:
        double: Double of AWS that the resources are made in; time passes with its descriptions.
        parameters: Values that were given so far.
        made: Type and properties of each resource, by its logical name.
    """

    def __init__(self, double: Any, secrets: dict[str, str] | None = None) -> None:
        self.double = double
        double.services.secrets |= secrets or {}
        self.parameters: dict[str, Any] = {}
        self.made: dict[str, tuple[str, Json]] = {}

    def deploy(self, template: Json, **given: Any) -> None:
        """Create or update the stack."""
        self.parameters |= given
        values = {name: self._value(name, each) for name, each in template["Parameters"].items()}
        self._template, self._values = template, values
        self._conditions = {
            name: self._evaluated(each) for name, each in template.get("Conditions", {}).items()
        }
        before, self.made = self.made, {}
        for name in self._order():
            resource = template["Resources"][name]
            properties = self._evaluated(resource["Properties"])
            self._put(resource["Type"], properties, before.get(name))
            self.made[name] = (resource["Type"], properties)
        self._delete_replaced(before)

    def _delete_replaced(self, earlier: dict[str, tuple[str, Json]]) -> None:
        for name, (kind, properties) in reversed(earlier.items()):
            _, noun, member = _TYPES[kind]
            kept = self.made.get(name)
            if kind in _REPLACED and (kept is None or kept[1][member] != properties[member]):
                self._call("sagemaker", f"Delete{noun}", {member: properties[member]})

    def _value(self, name: str, parameter: Json) -> Any:
        value = self.parameters.get(name, parameter.get("Default", _ABSENT))
        if value is _ABSENT:
            raise Refusal("ValidationError", f"Parameters: [{name}] must have values")
        if not re.fullmatch(parameter.get("AllowedPattern", ".*"), str(value)):
            raise Refusal("ValidationError", f"Parameter '{name}' must match pattern")
        return int(value) if parameter["Type"] == "Number" else value

    def _order(self) -> list[str]:
        """Logical names, each behind those that it refers to."""
        resources, found = self._template["Resources"], []

        def add(name: str) -> None:
            for other in _references(resources[name]):
                if other in resources and other not in found:
                    add(other)
            if name not in found:
                found.append(name)

        for name in resources:
            add(name)
        return found

    def _evaluated(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._evaluated(each) for each in value]
        if not isinstance(value, dict):
            return value
        functions = {
            "Ref": self._reference,
            "Fn::GetAtt": lambda each: self.made[each[0]][1][each[1]],
            "Fn::If": lambda each: self._evaluated(each[1 if self._conditions[each[0]] else 2]),
            "Fn::Not": lambda each: not self._evaluated(each[0]),
            "Fn::Or": lambda each: any(map(self._evaluated, each)),
            "Fn::Equals": lambda each: len({str(self._evaluated(value)) for value in each}) == 1,
            "Fn::Sub": self._substituted,
        }
        name, item = next(iter(value.items()), ("", None))
        if name in functions:
            return functions[name](item)
        each = {name: self._evaluated(item) for name, item in value.items()}
        return {name: item for name, item in each.items() if item is not _ABSENT}

    def _substituted(self, text: str) -> str:
        text = re.sub(r"\$\{(\w+)\}", lambda found: str(self._reference(found[1])), text)
        secret = re.fullmatch(r"\{\{resolve:secretsmanager:(.+)\}\}", text)
        if secret is None:
            return text
        answer = self._call("secretsmanager", "GetSecretValue", {"SecretId": secret[1]})
        return str(answer["SecretString"])

    def _reference(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return _ABSENT
        if name in self._values:
            return self._values[name]
        kind, properties = self.made[name]
        if kind.endswith("ScalingPolicy"):
            return self.double.services.policies[properties["PolicyName"]]["PolicyARN"]
        return properties[_TYPES[kind][2]]

    def _put(self, kind: str, properties: Json, before: tuple[str, Json] | None) -> None:
        service, noun, member = _TYPES[kind]
        request = dict(properties)
        if kind.endswith("ScalingPolicy"):
            target = self.double.services.targets[request.pop("ScalingTargetId")]
            names = ("ServiceNamespace", "ResourceId", "ScalableDimension")
            request |= {name: target[name] for name in names}
        if service != "sagemaker":
            self._call(service, noun, request)
        elif before is None or (kind in _REPLACED and before[1][member] != request[member]):
            if noun == "Endpoint":
                request.pop("RetainAllVariantProperties", None)
            elif noun == "InferenceComponent":
                request.pop("DeploymentConfig", None)
            self._call(service, f"Create{noun}", request)
        elif _untagged(before[1]) != _untagged(properties):
            if kind in _REPLACED:
                raise Refusal("ValidationError", f"cannot replace custom-named {request[member]}")
            self._update(noun, _untagged(request))
        if noun in ("Endpoint", "InferenceComponent"):
            answer = self._settle(noun, member, request[member])
            config = answer.get("EndpointConfigName")
            if config != request.get("EndpointConfigName"):
                raise Refusal("NotStabilized", f"{request[member]}: {answer['FailureReason']}")

    def _update(self, noun: str, request: Json) -> None:
        if noun == "Endpoint":
            self._call("sagemaker", "UpdateEndpoint", request)
            return
        copies = request.pop("RuntimeConfig", None)
        for name in ("EndpointName", "VariantName"):
            request.pop(name, None)
        self._call("sagemaker", "UpdateInferenceComponent", request)
        name = {"InferenceComponentName": request["InferenceComponentName"]}
        self._settle("InferenceComponent", *next(iter(name.items())))
        if copies is not None:
            self._call(
                "sagemaker", "UpdateInferenceComponentRuntimeConfig",
                {**name, "DesiredRuntimeConfig": copies},
            )  # fmt: skip

    def _settle(self, noun: str, member: str, name: str) -> Json:
        for _ in range(60):
            answer = self._call("sagemaker", f"Describe{noun}", {member: name})
            if answer[f"{noun}Status"] not in ("Creating", "Updating", "RollingBack"):
                break
        if answer[f"{noun}Status"] != "InService":
            raise Refusal("GeneralServiceException", f"{name}: {answer.get('FailureReason')}")
        return answer

    def _call(self, service: str, operation: str, request: Json) -> Json:
        status, answer = self.double.json(service, operation, request)
        if status != 200:
            raise Refusal(answer["__type"], answer["message"])
        return answer or {}


def _untagged(properties: Json) -> Json:
    return {name: each for name, each in properties.items() if name != "Tags"}


def _references(value: Any) -> Iterator[str]:
    """Logical names in a part of a template."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("Ref", "DependsOn"):
                yield item
            elif key == "Fn::GetAtt":
                yield item[0]
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
