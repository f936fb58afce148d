"""Autoscaling around an update: taken off while instance types change, and put back.

Application Auto Scaling refuses an update that changes the instance type of a variant which is a
scalable target, and with a target its policies and scheduled actions go. What was taken off stands
in the state file before it goes, so that a run which is killed leaves it to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.deploy.aws.client import AwsError
from servetune.deploy.aws.resources import Change
from servetune.deploy.aws.state import TakenOff
from servetune.deploy.deployment import (
    Deployment,
    component_name,
    from_zero_policy,
    in_flight_policy,
    scaled_component,
    scaled_variant,
)
from servetune.json_value import JsonObject

_SERVICE = "application-autoscaling"
#: Members of a description that the request which makes it has too.
_OF = ("ServiceNamespace", "ResourceId", "ScalableDimension")
_TARGET = (*_OF, "MinCapacity", "MaxCapacity", "SuspendedState")
_POLICY = (
    *_OF,
    "PolicyName",
    "PolicyType",
    "StepScalingPolicyConfiguration",
    "TargetTrackingScalingPolicyConfiguration",
    "PredictiveScalingPolicyConfiguration",
)
_ACTION = (
    *(*_OF, "ScheduledActionName", "Schedule", "Timezone"),
    *("StartTime", "EndTime", "ScalableTargetAction"),
)
_ALARM = (
    *("AlarmName", "AlarmDescription", "ActionsEnabled", "OKActions", "InsufficientDataActions"),
    *("Namespace", "MetricName", "Dimensions", "Statistic", "ExtendedStatistic", "Period", "Unit"),
    *("EvaluationPeriods", "DatapointsToAlarm", "Threshold", "ComparisonOperator"),
    *("TreatMissingData", "EvaluateLowSampleCountPercentile", "Metrics", "ThresholdMetricId"),
)


def own_policies(endpoint: str) -> tuple[str, ...]:
    """Names of the scaling policies that servetune makes; all others are somebody else's."""
    return in_flight_policy(endpoint), from_zero_policy(endpoint)


async def take_scaling_off(deployment: Deployment, change: Change) -> None:
    """Deregister the scalable targets of an endpoint; the state keeps what puts them back."""
    component = scaled_component(component_name(deployment.endpoint))
    ids = [scaled_variant(deployment.endpoint)["ResourceId"], component["ResourceId"]]
    try:
        answer = await change.aws.call(
            _SERVICE, "DescribeScalableTargets", ServiceNamespace="sagemaker", ResourceIds=ids
        )
        found = [await _taken(each, change) for each in answer.get("ScalableTargets", [])]
    except AwsError as error:
        change.excuse(error, "autoscaling cannot be taken off")
        return
    if found:
        change.state.took_off(tuple(found))
    for each in found:
        try:
            where = {name: each.target[name] for name in _OF}
            await change.aws.call(_SERVICE, "DeregisterScalableTarget", **where)
            change.on_progress(f"autoscaling of {each.resource} is off during the update")
        except AwsError as error:
            change.state.put_back(each.resource)  # it never went
            change.excuse(error, "autoscaling cannot be taken off")


async def _taken(target: JsonObject, change: Change) -> TakenOff:
    """A target with all that goes with it, as requests."""
    of = {name: target[name] for name in ("ServiceNamespace", "ResourceId")}
    answer = await change.aws.call(_SERVICE, "DescribeScalingPolicies", **of)
    policies = answer.get("ScalingPolicies", [])
    actions = await scheduled_actions(of, change)
    return TakenOff(
        target=_members(target, _TARGET),
        policies=tuple(_members(policy, _POLICY) for policy in policies),
        policy_arns={str(each["PolicyName"]): str(each["PolicyARN"]) for each in policies},
        alarms={
            str(policy["PolicyName"]): tuple(str(alarm["AlarmName"]) for alarm in policy["Alarms"])
            for policy in policies
            # Those of other policies are the service's, which makes them with the policy.
            if policy["PolicyType"] == "StepScaling" and policy.get("Alarms")
        },
        actions=tuple(_members(action, _ACTION) for action in actions),
    )


async def scheduled_actions(of: Mapping[str, object], change: Change) -> list[JsonObject]:
    """Scheduled actions of a target; none, and a line, where they may not be looked at."""
    try:
        answer = await change.aws.call(_SERVICE, "DescribeScheduledActions", **of)
    except AwsError as error:
        change.excuse(error, f"scheduled actions of {of['ResourceId']} go unseen, if there are any")
        return []
    found: list[JsonObject] = answer.get("ScheduledActions", [])
    return found


def _members(description: JsonObject, names: tuple[str, ...]) -> JsonObject:
    return {name: description[name] for name in names if name in description}


async def put_scaling_back(deployment: Deployment, change: Change, *, as_before: bool) -> None:
    """Put back what an update took off, this run's or an earlier one's; then the state forgets it.

    Args:
        deployment: The deployment of the update.
        change: Clients, state and progress.
        as_before: Whether the old settings serve on, so that all comes back as it was; else what
            servetune made is the new bundle's, and only what somebody else made comes back.
    """
    own = own_policies(deployment.endpoint)
    for each in change.state.state.taken_off:
        others = [policy for policy in each.policies if policy["PolicyName"] not in own]
        policies = each.policies if as_before else others
        is_ours = len(others) < len(each.policies)
        of_bundle = each.resource in {step.name for step in deployment.of_kind("scalable-target")}
        if of_bundle and not as_before:  # its range is the bundle's, and stands
            if any(each.target.get("SuspendedState", {}).values()):
                suspended = _members(each.target, (*_OF, "SuspendedState"))
                await change.aws.call(_SERVICE, "RegisterScalableTarget", **suspended)
        elif as_before or others or each.actions or not is_ours:
            await change.aws.call(_SERVICE, "RegisterScalableTarget", **each.target)
        for policy in policies:
            answer = await change.aws.call(_SERVICE, "PutScalingPolicy", **policy)
            name = str(policy["PolicyName"])
            moved = (each.policy_arns.get(name, ""), str(answer["PolicyARN"]))
            await _point(each.alarms.get(name, ()), *moved, change)
        for action in each.actions:
            await change.aws.call(_SERVICE, "PutScheduledAction", **action)
        change.state.put_back(each.resource)
        back = "is as it was before the update" if as_before else "is back"
        change.on_progress(f"autoscaling of {each.resource} {back}")


async def _point(alarms: tuple[str, ...], old_arn: str, new_arn: str, change: Change) -> None:
    """Let alarms that called a policy call it again, which has another ARN each time it is made."""
    if not alarms:
        return
    answer = await change.aws.call("cloudwatch", "DescribeAlarms", AlarmNames=list(alarms))
    for found in answer.get("MetricAlarms", []):
        actions = [new_arn if arn == old_arn else arn for arn in found.get("AlarmActions", [])]
        request = {**_members(found, _ALARM), "AlarmActions": actions}
        try:
            await change.aws.call("cloudwatch", "PutMetricAlarm", **request)
        except AwsError as error:
            lost = f"alarm {found['AlarmName']} calls a policy that is gone; let it call {new_arn}"
            change.excuse(error, lost)
