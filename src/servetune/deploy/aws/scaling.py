"""Autoscaling around an update: taken off while instance types change, and put back.

Application Auto Scaling refuses an update that changes the instance type of a variant which is a
scalable target. What was taken off is kept as requests, so that a rolled-back endpoint scales as
it did before.
"""

from __future__ import annotations

from servetune.deploy.alarms import alarm_name
from servetune.deploy.aws.client import AwsError, is_denied
from servetune.deploy.aws.resources import Change
from servetune.deploy.deployment import VARIANT, Deployment, component_name, from_zero_policy
from servetune.json_value import JsonObject

#: Members of a description that the request which makes it has too.
_TARGET = ("ServiceNamespace", "ResourceId", "ScalableDimension", "MinCapacity", "MaxCapacity")
_POLICY = (
    "PolicyName",
    "ServiceNamespace",
    "ResourceId",
    "ScalableDimension",
    "PolicyType",
    "StepScalingPolicyConfiguration",
    "TargetTrackingScalingPolicyConfiguration",
)

#: Operations and requests of Application Auto Scaling, in order.
Requests = list[tuple[str, JsonObject]]


async def take_scaling_off(deployment: Deployment, change: Change) -> Requests:
    """Deregister the scalable targets of an endpoint; what puts them back is returned."""
    found: Requests = []
    service, of = "application-autoscaling", {"ServiceNamespace": "sagemaker"}
    ids = [
        f"endpoint/{deployment.endpoint}/variant/{VARIANT}",
        f"inference-component/{component_name(deployment.endpoint)}",
    ]
    try:
        answer = await change.aws.call(service, "DescribeScalableTargets", ResourceIds=ids, **of)
        for target in answer.get("ScalableTargets", []):
            held = {name: target[name] for name in _TARGET if name in target}
            found.append(("RegisterScalableTarget", held))
            policies = await change.aws.call(
                service, "DescribeScalingPolicies", ResourceId=held["ResourceId"], **of
            )
            found += [
                ("PutScalingPolicy", {name: policy[name] for name in _POLICY if name in policy})
                for policy in policies.get("ScalingPolicies", [])
            ]
            where = {name: held[name] for name in _TARGET[:3]}
            await change.aws.call(service, "DeregisterScalableTarget", **where)
            change.on_progress(f"autoscaling of {held['ResourceId']} is off during the update")
    except AwsError as error:
        if not is_denied(error):
            raise
        change.on_progress(f"autoscaling cannot be taken off: {error.message}")
    return found


async def put_scaling_back(taken_off: Requests, change: Change) -> None:
    """Register targets and policies as they were, and point the alarm from zero to its policy."""
    for operation, request in taken_off:
        answer = await change.aws.call("application-autoscaling", operation, **request)
        name = str(request.get("PolicyName", ""))
        endpoint = name.removesuffix(from_zero_policy(""))
        if operation == "PutScalingPolicy" and name == from_zero_policy(endpoint):
            await _point(alarm_name(endpoint), str(answer["PolicyARN"]), change)
    change.on_progress("autoscaling is as it was before the update")


async def _point(alarm: str, policy_arn: str, change: Change) -> None:
    """Let an alarm call a policy, which has another ARN each time that it is made."""
    answer = await change.aws.call("cloudwatch", "DescribeAlarms", AlarmNames=[alarm])
    settable = (
        "AlarmName", "Namespace", "MetricName", "Dimensions", "Statistic", "Period",
        "EvaluationPeriods", "DatapointsToAlarm", "Threshold", "ComparisonOperator",
        "TreatMissingData",
    )  # fmt: skip
    for found in answer.get("MetricAlarms", []):
        request = {name: found[name] for name in settable if name in found}
        await change.aws.call("cloudwatch", "PutMetricAlarm", **request, AlarmActions=[policy_arn])
