"""Alarms of an endpoint: what wakes it from zero copies, and what rolls an update back."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from servetune.json_value import JsonObject
from servetune.metrics import Constraint

ALARM_PREFIX = "servetune-"
#: What alarms watch: requests that found no copy, server errors, and latency above the limit.
ALARM_KINDS = ("no-capacity", "5xx", "latency")

#: Share of requests that may end with a server error during an update.
MOST_ERRORS_FRACTION = 0.01
#: Latency at which an update rolls back where the sweep had no limit: so many times the measured.
MOST_SLOWDOWN = 2.0


class LatencyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Latency above which an update is rolled back.

    Attributes:
        statistic: `mean`, `median` or a percentile such as `p99`.
        limit_s: End-to-end latency in seconds.
        source: Origin of the limit, for a reader.
    """

    statistic: str
    limit_s: float
    source: str


def alarm_name(endpoint: str, kind: str = "no-capacity") -> str:
    """Name of an alarm of an endpoint; `kind` is one of `ALARM_KINDS`."""
    return f"{ALARM_PREFIX}{endpoint}-{kind}"


def latency_limit(
    constraints: Sequence[Constraint], p99_e2e_latency_ms: float | None
) -> LatencyLimit | None:
    """The end-to-end limit of a sweep, else twice what was measured; `None` where neither is known.

    Limits on first tokens are left out: CloudWatch's ModelLatency lasts until the whole answer.
    """
    for each in constraints:
        if each.metric == "e2e_latency" and each.op in ("<", "<=") and each.statistic != "std":
            return LatencyLimit(
                statistic=each.statistic, limit_s=each.value / 1000, source=f"limit {each.label}"
            )
    if not p99_e2e_latency_ms:
        return None
    return LatencyLimit(
        statistic="p99",
        limit_s=MOST_SLOWDOWN * p99_e2e_latency_ms / 1000,
        source=f"{MOST_SLOWDOWN:g} times the p99 of the trial",
    )


def no_capacity_alarm(
    endpoint: str, component: str | None, tags: list[dict[str, str]]
) -> JsonObject:
    """Request of the alarm of a request that no copy could take.

    Args:
        endpoint: Name of the endpoint.
        component: Component that was found without a copy; `None` for an asynchronous endpoint,
            whose queue waits where no instance runs.
        tags: Tags of the alarm.
    """
    watched = {
        "MetricName": "NoCapacityInvocationFailures",
        "Dimensions": [{"Name": "InferenceComponentName", "Value": component}],
        "Period": 30,
        "EvaluationPeriods": 1,
        "DatapointsToAlarm": 1,
    }
    if component is None:
        watched = {
            "MetricName": "HasBacklogWithoutCapacity",
            "Dimensions": [{"Name": "EndpointName", "Value": endpoint}],
            "Period": 60,
            "EvaluationPeriods": 2,
            "DatapointsToAlarm": 2,
        }
    return {
        "AlarmName": alarm_name(endpoint),
        "AlarmActions": [],  # the policy's ARN, which is known once it is made
        "Namespace": "AWS/SageMaker",
        **watched,
        "Statistic": "Maximum",
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "missing",
        "Tags": tags,
    }


def rollback_alarms(
    endpoint: str,
    dimensions: list[dict[str, str]],
    limit: LatencyLimit | None,
    tags: list[dict[str, str]],
) -> list[JsonObject]:
    """Requests of the alarms that roll an update back: server errors, and latency where limited.

    ModelLatency is in microseconds, Invocation5XXErrors 1 or 0 for each request (SageMaker
    developer guide, "Metrics in Amazon CloudWatch", November 2026).
    """

    def alarm(kind: str, description: str, **more: object) -> JsonObject:
        return {
            "AlarmName": alarm_name(endpoint, kind),
            "AlarmDescription": description,
            "Namespace": "AWS/SageMaker",
            "Dimensions": dimensions,
            "Period": 60,
            "ComparisonOperator": "GreaterThanThreshold",
            "TreatMissingData": "notBreaching",
            "Tags": tags,
            **more,
        }

    found = [
        alarm(
            "5xx",
            f"more than {MOST_ERRORS_FRACTION:.0%} of requests fail in the container",
            MetricName="Invocation5XXErrors",
            Statistic="Average",
            EvaluationPeriods=1,
            Threshold=MOST_ERRORS_FRACTION,
        )
    ]
    if limit is not None:
        percentile = "p50" if limit.statistic == "median" else limit.statistic
        mean = limit.statistic == "mean"
        found.append(
            alarm(
                "latency",
                f"{limit.statistic} above {limit.limit_s:g} s: {limit.source}",
                MetricName="ModelLatency",
                **({"Statistic": "Average"} if mean else {"ExtendedStatistic": percentile}),
                EvaluationPeriods=2,
                Threshold=limit.limit_s * 1e6,
            )
        )
    return found
