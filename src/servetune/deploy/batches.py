"""Batches in which SageMaker exchanges the instances or the copies of an endpoint that serves."""

from __future__ import annotations

import math

#: Bounds of a batch, as a share of all instances or copies (RollingUpdatePolicy,
#: InferenceComponentRollingUpdatePolicy; SageMaker API reference, November 2026).
LEAST_BATCH, MOST_BATCH = 0.05, 0.5
#: Seconds between two batches, in which alarms are watched.
BATCH_INTERVAL_S = 120
#: SageMaker's bound on the time of all batches, in seconds.
MOST_ROLLOUT_S = 28800


def instance_batch(counts: tuple[int, ...]) -> int | None:
    """The largest batch that is 5% to 50% of each count, `None` where there is none.

    Example:
        >>> [instance_batch((count,)) for count in (1, 2, 3, 8)]
        [None, 1, 1, 4]
    """
    batch = min(counts) // 2
    fits = all(LEAST_BATCH * count <= batch <= MOST_BATCH * count for count in counts)
    return batch if batch and fits else None


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
