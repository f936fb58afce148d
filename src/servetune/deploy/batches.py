"""Batches in which SageMaker exchanges the instances or the copies of an endpoint that serves."""

from __future__ import annotations

import math

from servetune.json_value import JsonObject

#: Bounds of a batch, as a share of all instances or copies (RollingUpdatePolicy,
#: InferenceComponentRollingUpdatePolicy; SageMaker API reference, November 2026).
LEAST_BATCH, MOST_BATCH = 0.05, 0.5
#: Seconds between two batches, in which alarms are watched.
BATCH_INTERVAL_S = 120
#: Seconds in which alarms are watched once all traffic, or the canary's, is on the new instances.
BAKE_S = 300
#: SageMaker's bound on the time of all batches, in seconds.
MOST_ROLLOUT_S = 28800


def batch_of_any(fewest: int, most: int, *, largest: bool) -> int | None:
    """A batch that is 5% to 50% of any count in a range, `None` where there is none.

    Args:
        fewest: Least count.
        most: Greatest count.
        largest: Whether it is the largest such batch, else the least.

    Example:
        >>> [batch_of_any(4, most, largest=True) for most in (4, 40, 41)]
        [2, 2, None]
    """
    least, greatest = math.ceil(LEAST_BATCH * most), math.floor(MOST_BATCH * fewest)
    if least > greatest or not greatest:
        return None
    return greatest if largest else least


def instance_batch(counts: tuple[int, ...]) -> int | None:
    """The largest batch that is 5% to 50% of each count, `None` where there is none.

    Example:
        >>> [instance_batch((count,)) for count in (1, 2, 3, 8)]
        [None, 1, 1, 4]
    """
    return batch_of_any(min(counts), max(counts), largest=True)


def copy_batch(copies: int, startup_s: float) -> int:
    """The least batch of copies whose exchanges end within SageMaker's bound.

    A single copy is above the bound of 50%: SageMaker exchanges it without a policy, by a new one
    beside it.

    Example:
        >>> [copy_batch(copies, startup_s=600) for copies in (0, 1, 8, 30)]
        [0, 1, 1, 2]
    """
    if copies < 2:
        return copies
    steps = max(2, int(MOST_ROLLOUT_S // (startup_s + BATCH_INTERVAL_S)))
    return max(math.ceil(LEAST_BATCH * copies), math.ceil(copies / steps))


def instances_for(copies: int, copies_per_instance: int, startup_s: float) -> int:
    """Instances that hold so many copies and a batch of new ones beside them.

    SageMaker makes the copies of a batch before it takes the old ones away.
    """
    return math.ceil((copies + copy_batch(copies, startup_s)) / copies_per_instance)


def rolling_update(unit: str, batch: int, limit_s: int) -> JsonObject:
    """The policy that exchanges so many at a time, and goes back in the same steps.

    Without `RollbackMaximumBatchSize` a rollback makes the whole old fleet again at once.

    Args:
        unit: INSTANCE_COUNT or COPY_COUNT.
        batch: Instances or copies that are exchanged together.
        limit_s: Seconds until SageMaker gives it up.
    """
    size = {"Type": unit, "Value": batch}
    return {
        "RollingUpdatePolicy": {
            "MaximumBatchSize": size,
            "RollbackMaximumBatchSize": size,
            "WaitIntervalInSeconds": BATCH_INTERVAL_S,
            "MaximumExecutionTimeoutInSeconds": limit_s,
        }
    }


def all_at_once(limit_s: int, canary_percent: int | None = None) -> JsonObject:
    """The policy that makes all new instances beside the old ones before traffic moves.

    Args:
        limit_s: Seconds until SageMaker gives it up.
        canary_percent: Share of the traffic that moves first; `None` where all moves together.
    """
    traffic: JsonObject = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": BAKE_S}
    if canary_percent is not None:
        size = {"Type": "CAPACITY_PERCENT", "Value": canary_percent}
        traffic = {**traffic, "Type": "CANARY", "CanarySize": size}
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": traffic,
            "MaximumExecutionTimeoutInSeconds": limit_s,
        }
    }
