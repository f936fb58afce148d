"""Quotas, prices, autoscaling, alarms, logs and secrets: the services beside SageMaker."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from doubles.control import ACCOUNT, ControlPlane, Refusal, snake

Request = dict[str, Any]


class OtherServices:
    """Their state.

    Attributes:
        quota: Listed quotas; the control plane's where a type is left out.
        prices: Instance type -> USD per hour.
        targets, policies, scheduled, alarms: Of autoscaling.
        log_lines: Group -> lines.
        said_s: (group, place of a line) -> when it was said; now where it is not known.
        secrets: ARN -> value.
    """

    def __init__(self, control: ControlPlane) -> None:
        self.control = control
        self.prices: dict[str, float] = {}
        self.targets: dict[str, Request] = {}
        self.policies: dict[str, Request] = {}
        self.scheduled: dict[str, Request] = {}
        self.alarms: dict[str, Request] = {}
        self.policies_made = 0
        self.log_lines: dict[str, list[str]] = {}
        self.said_s: dict[tuple[str, int], float] = {}
        self.secrets: dict[str, str] = {}
        self.more_quotas = 150

    def answer(self, operation: str, request: Request) -> Request:
        answer: Request = getattr(self, snake(operation))(request) or {}
        return answer

    # service-quotas

    def list_service_quotas(self, request: Request) -> Request:
        names = [f"filler {number}" for number in range(self.more_quotas)]
        values = {f"{name} for endpoint usage": n for name, n in self.control.quota.items()}
        every = [{"QuotaName": name, "Value": 1.0} for name in names]
        every += [{"QuotaName": name, "Value": float(value)} for name, value in values.items()]
        start, size = int(request.get("NextToken") or 0), request.get("MaxResults", 100)
        answer: Request = {"Quotas": every[start : start + size]}
        if start + size < len(every):
            answer["NextToken"] = str(start + size)
        return answer

    # pricing

    def get_products(self, request: Request) -> Request:
        wanted = {each["Field"]: each["Value"] for each in request["Filters"]}
        usd = self.prices.get(wanted["instanceName"])
        rows = [self._product(wanted["instanceName"], "AsyncInf", 999.0)]
        if usd is not None:
            rows.append(self._product(wanted["instanceName"], "Host", usd))
        return {"PriceList": [json.dumps(row) for row in rows], "FormatVersion": "aws_v1"}

    @staticmethod
    def _product(name: str, usage: str, usd: float) -> Request:
        price = {"pricePerUnit": {"USD": f"{usd:.10f}"}, "unit": "Hrs"}
        return {
            "product": {"attributes": {"instanceName": name, "usagetype": f"USE1-{usage}:{name}"}},
            "terms": {"OnDemand": {"a.b": {"priceDimensions": {"a.b.c": price}}}},
        }

    # application-autoscaling

    def register_scalable_target(self, request: Request) -> None:
        """RegisterScalableTarget (API reference, November 2026).

        "Any parameters that you don't specify are not changed by this update request"; a new one
        needs both capacities; the current capacity is moved into the range.
        """
        kind, name = request["ResourceId"].split("/")[:2]
        kinds = {"endpoint": "Endpoint", "inference-component": "InferenceComponent"}
        row = self.control.row(kinds[kind], name)
        held = self.targets.get(request["ResourceId"], {})
        if not held and not {"MinCapacity", "MaxCapacity"} <= set(request):
            raise Refusal("ValidationException", "MinCapacity and MaxCapacity are needed")
        target = self.targets[request["ResourceId"]] = held | request
        least, most = target["MinCapacity"], target["MaxCapacity"]
        if kind == "endpoint":
            (variant,) = self.control._variants(row["request"]["EndpointConfigName"])
            count = self.control._count(row, variant)
            if not least <= count <= most:
                self.control.scale(name, max(least, min(count, most)))
        elif not least <= row["copies"] <= most:
            row["copies"] = max(least, min(row["copies"], most))
            row["had"] = min(row["had"], row["copies"])

    def describe_scalable_targets(self, request: Request) -> Request:
        ids = request.get("ResourceIds") or list(self.targets)
        found = [self.targets[name] for name in ids if name in self.targets]
        more = {"RoleARN": f"arn:aws:iam::{ACCOUNT}:role/scaling", "CreationTime": 0.0}
        kinds = ("DynamicScalingIn", "DynamicScalingOut", "ScheduledScaling")
        off = {f"{kind}Suspended": False for kind in kinds}
        return {
            "ScalableTargets": [
                target | more | {"SuspendedState": off | target.get("SuspendedState", {})}
                for target in found
            ]
        }

    def put_scaling_policy(self, request: Request) -> Request:
        if request["ResourceId"] not in self.targets:
            raise Refusal("ObjectNotFoundException", "No scalable target registered")
        name = request["PolicyName"]
        held = self.policies.get(name)
        if held is None:  # each that is made has an identity of its own in its ARN
            self.policies_made += 1
        made = f"{self.policies_made}:policyName/{name}"
        arn = f"arn:aws:autoscaling:us-east-1:{ACCOUNT}:scalingPolicy:{made}"
        arn = held["PolicyARN"] if held else arn
        self.policies[name] = request | {"PolicyARN": arn}
        return {"PolicyARN": arn}

    def describe_scaling_policies(self, request: Request) -> Request:
        names = request.get("PolicyNames")
        found = [
            {**policy, "CreationTime": 0.0, "Alarms": self._calling(policy["PolicyARN"])}
            for policy in self.policies.values()
            if policy["ResourceId"] == request.get("ResourceId", policy["ResourceId"])
            and (names is None or policy["PolicyName"] in names)
        ]
        return {"ScalingPolicies": found}

    def _calling(self, arn: str) -> list[Request]:
        """Alarms that call a policy."""
        return [
            {"AlarmName": name, "AlarmARN": f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{name}"}
            for name, alarm in self.alarms.items()
            if arn in alarm.get("AlarmActions", [])
        ]

    def put_scheduled_action(self, request: Request) -> None:
        if request["ResourceId"] not in self.targets:
            raise Refusal("ObjectNotFoundException", "No scalable target registered")
        self.scheduled[request["ScheduledActionName"]] = request

    def describe_scheduled_actions(self, request: Request) -> Request:
        found = [
            {**action, "ScheduledActionARN": f"arn:{name}", "CreationTime": 0.0}
            for name, action in self.scheduled.items()
            if action["ResourceId"] == request.get("ResourceId", action["ResourceId"])
        ]
        return {"ScheduledActions": found}

    def delete_scaling_policy(self, request: Request) -> None:
        if self.policies.pop(request["PolicyName"], None) is None:
            raise Refusal("ObjectNotFoundException", "No scaling policy found")

    def deregister_scalable_target(self, request: Request) -> None:
        if self.targets.pop(request["ResourceId"], None) is None:
            raise Refusal("ObjectNotFoundException", "No scalable target found")
        # "Deregistering a scalable target deletes the scaling policies and the scheduled actions
        # that are associated with it" (API reference).
        for held in (self.policies, self.scheduled):
            for name in [n for n, p in held.items() if p["ResourceId"] == request["ResourceId"]]:
                del held[name]

    # cloudwatch

    def put_metric_alarm(self, request: Request) -> None:
        """An update "completely overwrites the previous configuration" (API reference)."""
        self.alarms[request["AlarmName"]] = request

    def describe_alarms(self, request: Request) -> Request:
        prefix, names = request.get("AlarmNamePrefix", ""), request.get("AlarmNames")
        return {
            "MetricAlarms": [
                {
                    "ActionsEnabled": True,  # PutMetricAlarm's default
                    **{key: value for key, value in alarm.items() if key != "Tags"},
                    "AlarmName": name,
                    "AlarmArn": f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{name}",
                }
                for name, alarm in self.alarms.items()
                if name.startswith(prefix) and (names is None or name in names)
            ]
        }

    def delete_alarms(self, request: Request) -> None:
        """A wrong name keeps all from being deleted (CloudWatch API reference, DeleteAlarms)."""
        if missing := [name for name in request["AlarmNames"] if name not in self.alarms]:
            raise Refusal("ResourceNotFound", f"{missing[0]} does not exist", 404)
        for name in request["AlarmNames"]:
            del self.alarms[name]

    def list_tags_for_resource(self, request: Request) -> Request:
        name = request["ResourceARN"].rpartition(":alarm:")[2]
        if name not in self.alarms:
            raise Refusal("ResourceNotFoundException", f"{name} does not exist")
        return {"Tags": self.alarms[name].get("Tags", [])}

    # logs

    def describe_log_streams(self, request: Request) -> Request:
        if request["logGroupName"] not in self.log_lines:
            raise Refusal("ResourceNotFoundException", "The specified log group does not exist.")
        return {"logStreams": [{"logStreamName": "AllTraffic/i-0"}]}

    def get_log_events(self, request: Request) -> Request:
        lines = self.log_lines[request["logGroupName"]]
        return {
            "events": [{"timestamp": place, "message": line} for place, line in enumerate(lines)][
                -request.get("limit", 10000) :
            ]
        }

    def filter_log_events(self, request: Request) -> Request:
        """Lines with quoted words of the pattern, any of them where it says `?`, of all streams."""
        if request["logGroupName"] not in self.log_lines:
            raise Refusal("ResourceNotFoundException", "The specified log group does not exist.")
        group = request["logGroupName"]
        words = re.findall(r'"([^"]*)"', request.get("filterPattern", '""'))
        now_s = self.control.now_s()
        events = [
            {"timestamp": int(1000 * self.said_s.get((group, place), now_s)), "message": line}
            for place, line in enumerate(self.log_lines[group])
            if any(word in line for word in words)
        ]
        first_ms, last_ms = request.get("startTime", 0), request.get("endTime", math.inf)
        return {"events": [event for event in events if first_ms <= event["timestamp"] <= last_ms]}

    def say(self, group: str, lines: list[str]) -> None:
        """A container's lines, now."""
        held = self.log_lines.setdefault(group, [])
        for line in lines:
            self.said_s[group, len(held)] = self.control.now_s()
            held.append(line)

    # secretsmanager

    def describe_secret(self, request: Request) -> Request:
        self._secret(request)
        return {"ARN": request["SecretId"], "Name": request["SecretId"].rsplit(":", 1)[-1]}

    def get_secret_value(self, request: Request) -> Request:
        return {"ARN": request["SecretId"], "SecretString": self._secret(request)}

    def _secret(self, request: Request) -> str:
        if request["SecretId"] not in self.secrets:
            raise Refusal("ResourceNotFoundException", "Secrets Manager can't find the secret.")
        return self.secrets[request["SecretId"]]
