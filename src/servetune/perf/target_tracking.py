"""Target tracking: how an autoscaler changes the number of instances by the requests in flight.

The rules are those of AWS's Application Auto Scaling for the metric of requests in flight that
SageMaker reports every ten seconds, as far as they are published: instances are added and removed
in proportion to the metric over its target, never beyond a range; additions when the metric is
above the target for three periods, removals when it is below nine tenths of it for fifteen minutes;
after a change a cooldown passes, which begins when the change is complete. Where the documents
leave a choice, the slower one is taken: nothing is added while instances start, nor in a cooldown.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Range of a fleet's instances, and the load at which an autoscaler changes their number.

    Attributes:
        minimum: Least instances.
        maximum: Most instances.
        target: Requests in flight per instance.
        period_s: Time between two values of the metric.
        out_periods: Values above the target before instances are added.
        in_periods: Values below `in_fraction` of the target before instances are removed.
        in_fraction: Share of the target below which instances are removed.
        out_cooldown_s: Time after added instances serve until others are added.
        in_cooldown_s: Time after a removal until the next.
    """

    minimum: int
    maximum: int
    target: float
    period_s: float = 10.0
    out_periods: int = 3
    in_periods: int = 90
    in_fraction: float = 0.9
    out_cooldown_s: float = 180.0
    in_cooldown_s: float = 600.0


class TargetTracker:
    """Instances of a fleet under a policy.

    Args:
        policy: The policy.
        start_up_s: Time from the decision to add an instance until it serves.
        count: Instances that serve at the beginning.

    Attributes:
        serving: Instances that serve.
        starting: Instances that are paid for and do not serve yet.
    """

    def __init__(self, policy: ScalingPolicy, start_up_s: float, count: int) -> None:
        self.policy = policy
        self.serving = min(policy.maximum, max(policy.minimum, count))
        self.starting = 0
        self._start_up_s = start_up_s
        self._ready_s = math.inf
        self._out_free_s = self._in_free_s = -math.inf
        self._recent: deque[float] = deque(maxlen=policy.out_periods)
        self._above = self._below = 0

    def advance(self, now_s: float) -> int:
        """Instances that begin to serve by now."""
        if now_s < self._ready_s:
            return 0
        come, self.starting = self.starting, 0
        self.serving += come
        self._ready_s = math.inf
        self._out_free_s = now_s + self.policy.out_cooldown_s
        self._above = self._below = 0  # the metric of another number of instances
        return come

    def observe(self, now_s: float, in_flight: float) -> int:
        """Change by the requests in flight of the whole fleet, now.

        Returns:
            Instances that are removed, as a negative number, or that begin to start.
        """
        policy = self.policy
        metric = in_flight / self.serving
        self._recent.append(metric)
        self._above = self._above + 1 if metric > policy.target else 0
        self._below = self._below + 1 if metric < policy.in_fraction * policy.target else 0
        if self.starting:
            return 0
        if self._above >= policy.out_periods and now_s >= self._out_free_s:
            self.starting = max(0, min(policy.maximum, self._wanted()) - self.serving)
            if self.starting:
                self._ready_s = now_s + self._start_up_s
                self._above = 0
            return self.starting
        if self._below >= policy.in_periods and now_s >= self._in_free_s:
            removed = max(0, self.serving - max(policy.minimum, self._wanted(), 1))
            if removed:
                self.serving -= removed
                self._in_free_s = now_s + policy.in_cooldown_s
                self._recent.clear()
                self._above = self._below = 0
            return -removed
        return 0

    def _wanted(self) -> int:
        """Instances in proportion to the metric over its target."""
        recent = sum(self._recent) / len(self._recent)
        return math.ceil(self.serving * recent / self.policy.target - 1e-9)
