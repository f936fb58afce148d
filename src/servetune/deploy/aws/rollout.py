"""Roll-outs: how an update exchanges instances and copies, how long that takes, what stands beside.

`running` looks at an endpoint; all else is pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.deploy.aws.drift import difference
from servetune.deploy.aws.orphans import usd_per_hour
from servetune.deploy.aws.resources import describe
from servetune.deploy.batches import (
    BAKE_S,
    BATCH_INTERVAL_S,
    MOST_ROLLOUT_S,
    all_at_once,
    copy_batch,
    instance_batch,
    rolling_update,
)
from servetune.deploy.deployment import Deployment, Step
from servetune.deploy.startup import PROVISION_S
from servetune.errors import InputError
from servetune.json_value import JsonObject

#: Seconds beside those of capacity and start-up: routing, draining, descriptions.
MARGIN_S = 600


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint runs before an update.

    Attributes:
        config: Name of its configuration.
        variants: Variants of that configuration.
        instances: Instances that run.
        copies: Copies of the base component; `None` where there is none.
        exchanges_copies: Whether the base component is otherwise than the deployment's.
    """

    config: str
    variants: tuple[JsonObject, ...] = ()
    instances: int = 1
    copies: int | None = None
    exchanges_copies: bool = False

    @property
    def has_components(self) -> bool:
        """Whether it is made for inference components."""
        return bool(self.variants) and "ModelName" not in self.variants[0]

    @property
    def machines(self) -> list[list[str]]:
        """Instance types of each variant, which autoscaling keeps from changing."""
        return machines(self.variants)

    def usd_per_hour(self, prices: Mapping[str, float | None]) -> float | None:
        """Price of its instances on demand; `None` where a type has none, or nothing is known."""
        counted = [
            {"VariantName": each.get("VariantName"), "CurrentInstanceCount": self.instances}
            for each in self.variants
        ]
        return usd_per_hour(list(self.variants), counted, prices) if self.variants else None


def machines(variants: tuple[JsonObject, ...]) -> list[list[str]]:
    """Instance types of each variant of a configuration."""
    return [
        [str(pool["InstanceType"]) for pool in variant.get("InstancePools") or [variant]]
        for variant in variants
    ]


async def running(deployment: Deployment, aws: AwsClient) -> Running | None:
    """What the endpoint of a deployment runs now, `None` where it is not there."""
    answer = await describe(aws, "endpoint", deployment.endpoint)
    if answer is None:
        return None
    name = str(answer.get("EndpointConfigName", ""))
    config = await describe(aws, "endpoint-config", name) or {}
    counts = [
        int(each["DesiredInstanceCount"])
        for each in answer.get("ProductionVariants", [])
        if "DesiredInstanceCount" in each
    ]
    copies, exchanges = None, False
    for step in deployment.of_kind("component"):
        existing = await describe(aws, "component", step.name)
        if existing is not None:
            copies = (existing.get("RuntimeConfig") or {}).get("DesiredCopyCount")
            exchanges = is_otherwise(step, existing)
    return Running(
        config=name,
        variants=tuple(config.get("ProductionVariants", ())),
        instances=max(counts, default=deployment.hosting.instance_count),
        copies=copies,
        exchanges_copies=exchanges,
    )


def is_otherwise(component: Step, existing: JsonObject) -> bool:
    """Whether a component's description has other settings than its step."""
    key = "Specifications" if "Specifications" in component.request else "Specification"
    return bool(difference(component.request[key], existing.get(key)))


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange of instances or copies.

    Attributes:
        config: `DeploymentConfig` of its request, without alarms; empty for SageMaker's own way.
        beside: New instances that run beside the old ones, at most.
        limit_s: Seconds until SageMaker gives it up.
    """

    config: JsonObject
    beside: int
    limit_s: int

    @property
    def wait_s(self) -> float:
        """Seconds in which it has ended, a rollback included."""
        return 2.0 * self.limit_s + MARGIN_S


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """All exchanges of an update.

    Attributes:
        instances: Exchange of the instances; `None` where they stay.
        copies: Exchange of the copies; `None` where they stay.
        before: Instances that run before it.
        after: Instances that run after it.
    """

    instances: Exchange | None = None
    copies: Exchange | None = None
    before: int = 1
    after: int = 1

    @property
    def beside(self) -> int:
        """New instances that run beside the old ones, at most."""
        return max((each.beside for each in (self.instances, self.copies) if each), default=0)

    def peak_usd_per_hour(self, old_usd: float | None, new_usd: float | None) -> float | None:
        """Price per hour of all instances at the most while it goes on.

        Args:
            old_usd: Price per hour of all instances that run before it.
            new_usd: Price per hour of one new instance.
        """
        if not self.beside:
            return 0.0
        if old_usd is None or new_usd is None:
            return None
        found = [0.0]
        if self.instances:
            first = old_usd + self.instances.beside * new_usd
            # The last batch of old ones stands beside all new ones.
            last = self.after * new_usd + self.instances.beside * old_usd / max(1, self.before)
            found += [first, last] if self.instances.beside < self.after else [first]
        if self.copies:
            found.append((self.after + self.copies.beside) * new_usd)
        return max(found)


def rollout_of(
    deployment: Deployment, running: Running, canary_percent: int | None = None
) -> Rollout:
    """How an update exchanges what runs for a deployment.

    Raises:
        InputError: There are too few instances for a canary, or no place for a batch of copies.
    """
    hosting = deployment.hosting
    # Counts that autoscaling chose are kept.
    after = running.instances if hosting.scaling else hosting.instance_count
    instances = None
    if running.config != deployment.only("endpoint-config").name:
        instances = _of_instances(deployment, (running.instances, after), canary_percent)
    elif canary_percent is not None:
        _require_splittable(deployment, (running.instances, after))
    return Rollout(
        instances=instances,
        copies=_of_copies(deployment, running, after) if running.exchanges_copies else None,
        before=running.instances,
        after=after,
    )


def _of_instances(
    deployment: Deployment, counts: tuple[int, int], canary_percent: int | None
) -> Exchange:
    """By canary, in batches, or all at once beside the old ones.

    SageMaker takes no batch of one instance, which is 100% of it. An endpoint of components gets
    no policy, for which SageMaker exchanges all instances at once.
    """
    after = counts[-1]
    if canary_percent is not None:
        _require_splittable(deployment, counts)
    if deployment.hosting.copies is not None:
        return Exchange(config={}, beside=after, limit_s=_limit_s(deployment, steps=1))
    batch = instance_batch(counts)
    if batch is not None and canary_percent is None:
        limit_s = _limit_s(deployment, steps=math.ceil(max(counts) / batch))
        config = rolling_update("INSTANCE_COUNT", batch, limit_s)
        return Exchange(config=config, beside=batch, limit_s=limit_s)
    limit_s = _limit_s(deployment, steps=1) + 2 * BAKE_S
    config = all_at_once(min(MOST_ROLLOUT_S, limit_s), canary_percent)
    return Exchange(config=config, beside=after, limit_s=limit_s)


def _of_copies(deployment: Deployment, running: Running, instances: int) -> Exchange:
    """In the least batches that SageMaker takes, where there is a place for one.

    Args:
        deployment: The deployment.
        running: What runs before the update.
        instances: Instances once those are exchanged.
    """
    hosting, startup_s = deployment.hosting, deployment.startup_timeout_s
    copies = running.copies if running.copies is not None else hosting.copies or 1
    if hosting.scaling is None and hosting.copies is not None:
        copies = min(copies, hosting.copies)  # fewer are taken away before, more made afterwards
    batch = copy_batch(copies, startup_s)
    needed = math.ceil((copies + batch) / hosting.copies_per_instance)
    managed = deployment.only("endpoint-config").request["ProductionVariants"][0].get(
        "ManagedInstanceScaling", {}
    )  # fmt: skip
    most = max(instances, int(managed.get("MaxInstanceCount", 0)))
    if needed > most:
        raise InputError(
            f"{copies} copies fill {instances} instances, and {batch} new ones beside them need "
            f"{needed}, where the bundle allows {most}",
            hint="render the bundle again, so that SageMaker may add an instance for the update; "
            "with a larger --scale MIN:MAX or --copies where more copies run than it has",
        )
    steps = math.ceil(copies / batch) if batch else 0
    limit_s = _limit_s(deployment, steps=steps, starts=copies)
    config = rolling_update("COPY_COUNT", batch, limit_s) if copies > 1 else {}
    return Exchange(config=config, beside=max(0, needed - instances), limit_s=limit_s)


def _limit_s(deployment: Deployment, *, steps: int, starts: int | None = None) -> int:
    """Seconds for so many batches: capacity once, each start-up, and the watch between them.

    Args:
        deployment: Start-up time-out and instance types.
        steps: Batches.
        starts: Copies that start one after another; once for each batch where `None`.
    """
    hosting = deployment.hosting
    provision_s = len(hosting.instance_types) * (hosting.provision_timeout_s or PROVISION_S)
    starts_s = (steps if starts is None else starts) * deployment.startup_timeout_s
    return min(MOST_ROLLOUT_S, provision_s + starts_s + steps * BATCH_INTERVAL_S + MARGIN_S)


def _require_splittable(deployment: Deployment, counts: tuple[int, ...]) -> None:
    if deployment.hosting.copies is not None:
        raise InputError(
            "a canary is of instances, and this endpoint is made of inference components",
            hint="leave --canary out: copies are exchanged in batches",
        )
    if min(counts) < 2:
        raise InputError(
            "one instance cannot be split into a canary and the rest",
            hint="leave --canary out, or deploy with --instances 2 or more",
        )
