"""Checks before spending: everything that can be known to go wrong.

`check` needs no account and no network: requests against the service's model, image
against driver, memory, time-outs, price. `check_live` asks AWS, and only reads: quota,
reservation, existing endpoints, and whether the model's files are in S3.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Literal

import msgspec

from servetune.deploy.aws.account import in_use, listed_prices, quotas
from servetune.deploy.aws.client import AwsClient, AwsError, is_missing
from servetune.deploy.aws.jumpstart import LICENSED
from servetune.deploy.aws.resources import describe, staged_model
from servetune.deploy.aws.rollout import Rollout, Running
from servetune.deploy.aws.service_model import problems
from servetune.deploy.containers import CONTAINERS, container_named
from servetune.deploy.cost import Cost, cost_of
from servetune.deploy.deployment import Deployment, needs_token, with_role
from servetune.deploy.images import ami_version, images, named_image
from servetune.deploy.startup import (
    ENGINE_START_S,
    FASTEST_BYTES_PER_S,
    LEAST_ENGINE_START_S,
    SLOW_BYTES_PER_S,
)
from servetune.engines.memory import check_fits, concurrent_sequences
from servetune.errors import InputError, PlanError
from servetune.hardware.device import Node, Price
from servetune.json_value import JsonObject
from servetune.models.shape import NetworkShape
from servetune.plan.plan import Plan
from servetune.units import GB, GIB, MIB, format_bytes, format_seconds, format_usd

#: Role in place of the user's where requests are only checked.
_ANY_ROLE = "arn:aws:iam::123456789012:role/checked"

#: Age in days from which a price is reported as old.
OLD_DAYS = 90


class Finding(msgspec.Struct, frozen=True):
    """Result of one check.

    Attributes:
        level: `ok`, `note` for what the user should know, `stop` for what would fail.
        topic: Subject of the check, a word or two.
        message: Result, in one line.
        hint: Way to go on.
    """

    level: Literal["ok", "note", "stop"]
    topic: str
    message: str
    hint: str = ""


class CheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a deployment beside its requests.

    Attributes:
        plan: Plan of one instance, or of one copy where there are components.
        shape: Dimensions of the network.
        nodes: Instance types of the hosting, in its order.
        container: Key of the containers.
        image_tag: Tag of the image.
        weights_bytes: Size of the published model.
        has_token: Whether the container gets a token of the hub.
    """

    plan: Plan
    shape: NetworkShape
    nodes: tuple[Node, ...]
    container: str
    image_tag: str
    weights_bytes: float
    has_token: bool = False


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limit of what the endpoint may cost.

    Attributes:
        hours: Time that the endpoint shall stand.
        max_cost_usd: Cost of all hours at most; `None` for no bound.
        max_hourly_usd: Cost of one hour at most, with the most instances that scaling allows, and
            during an update.
        prices: Prices by instance type, where they are not the catalogue's.
    """

    hours: float = 24.0
    max_cost_usd: float | None = None
    max_hourly_usd: float | None = None
    prices: dict[str, Price] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, and the cost.

    Attributes:
        findings: Findings in the order of the checks.
        usd_per_hour: Cost at the most instances that scaling allows, of the dearest type.
        hours: Time that `total_usd` covers.
        total_usd: Cost of all hours; `None` where a type has no price.
        cost: Price of the instances; `None` where only requests were checked.
    """

    findings: tuple[Finding, ...]
    usd_per_hour: float | None = None
    hours: float = 24.0
    total_usd: float | None = None
    cost: Cost | None = None

    @property
    def stops(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "stop")


def check(deployment: Deployment, facts: CheckInputs, budget: Budget, *, today: dt.date) -> Report:
    """Checks that need neither account nor network."""
    findings = [
        *_requests(deployment),
        *_image(deployment, facts),
        *_memory(deployment, facts),
        *_time(deployment, facts),
        *_routing(deployment, facts),
        *gated(deployment, has_token=facts.has_token),
        *_licence(deployment),
    ]
    nodes = {node.name: node.price for node in facts.nodes}
    prices = {**nodes, **budget.prices}
    cost = cost_of(deployment.hosting, prices)
    if cost.reservation_arn is None:
        findings += [
            _priced(name, price, deployment.region, today)
            for name in deployment.hosting.instance_types
            if (price := prices.get(name)) is not None
        ]
    per_hour = cost.most_usd_per_hour
    return Report(
        findings=(*findings, *cost_findings(cost, budget)),
        usd_per_hour=per_hour,
        hours=budget.hours,
        total_usd=None if per_hour is None else per_hour * budget.hours,
        cost=cost,
    )


def _requests(deployment: Deployment) -> Iterator[Finding]:
    filled = with_role(deployment, _ANY_ROLE)
    wrong = [
        f"{step.operation} {problem}"
        for step in filled.steps
        for problem in problems(step.service, step.operation, step.request)
    ]
    for problem in wrong:
        yield Finding("stop", "request", problem)
    if not wrong:
        yield Finding(
            "ok", "requests", f"{len(filled.steps)} requests satisfy the services' models"
        )


def _image(deployment: Deployment, facts: CheckInputs) -> Iterator[Finding]:
    known = {image.tag for image in images(facts.container)}
    if facts.image_tag in known:
        yield Finding("ok", "image", f"{facts.image_tag} is in the table, for {deployment.region}")
    else:
        yield Finding(
            "note",
            "image",
            f"{facts.image_tag} is in no table of ours",
            "check that it exists in the region's registry",
        )
    image, _ = named_image(facts.container, facts.image_tag)
    needed = ami_version(image)
    variant = deployment.only("endpoint-config").request["ProductionVariants"][0]
    host = variant.get("InferenceAmiVersion")
    if host == needed:
        yield Finding("ok", "driver", f"{image.cuda} runs on {host}")
    else:
        yield Finding(
            "stop",
            "driver",
            f"{image.cuda} does not run on {host or 'the default host image'}",
            f"InferenceAmiVersion must be {needed}",
        )


def _memory(deployment: Deployment, facts: CheckInputs) -> Iterator[Finding]:
    hosting, plan = deployment.hosting, facts.plan
    for node in facts.nodes:
        per_instance = hosting.copies_per_instance if hosting.copies else 1
        devices = per_instance * plan.device_count
        if devices > node.device_count:
            yield Finding(
                "stop",
                "devices",
                f"{devices} devices are asked of {node.name}, which has {node.device_count}",
            )
            continue
        try:
            memory = check_fits(plan, facts.shape, node.device)
        except PlanError as error:
            yield Finding("stop", "memory", f"{node.name}: {error.message}", error.hint)
            continue
        longest = plan.max_model_len or facts.shape.max_context_tokens or 4096
        together = concurrent_sequences(plan, facts.shape, node.device, longest)
        yield Finding(
            "ok",
            "memory",
            f"{node.name}: {format_bytes(memory.weights_bytes)} of weights on each "
            f"{format_bytes(memory.device_bytes)} device, cache for {memory.kv_tokens:,} tokens "
            f"({together} sequences of the longest)",
        )
        yield from _host_memory(deployment, node)


def _host_memory(deployment: Deployment, node: Node) -> Iterator[Finding]:
    hosting = deployment.hosting
    if hosting.copies is None or node.memory_bytes is None:
        return
    each = hosting.memory_mib_per_copy[node.name] * MIB
    needed = each * hosting.copies_per_instance
    if needed > node.memory_bytes:
        yield Finding(
            "stop",
            "host memory",
            f"{hosting.copies_per_instance} copies reserve {format_bytes(needed)} of "
            f"{node.name}'s {format_bytes(node.memory_bytes)}",
            "reserve less with --memory-mib",
        )


def _time(deployment: Deployment, facts: CheckInputs) -> Iterator[Finding]:
    given_s = deployment.startup_timeout_s
    least_s = LEAST_ENGINE_START_S + facts.weights_bytes / FASTEST_BYTES_PER_S
    slow_s = ENGINE_START_S + facts.weights_bytes / SLOW_BYTES_PER_S
    text = (
        f"{format_seconds(given_s)} for image, {facts.weights_bytes / GIB:.1f} GiB of weights "
        "and engine"
    )
    if given_s < least_s:
        yield Finding(
            "stop",
            "start-up",
            f"{text}: even at {FASTEST_BYTES_PER_S / GB:g} GB/s it takes {format_seconds(least_s)}",
            "raise --startup-timeout-s (SageMaker allows 3600)",
        )
    elif given_s < slow_s:
        yield Finding(
            "note",
            "start-up",
            f"{text}: from a slow hub (100 MB/s) it takes {format_seconds(slow_s)}",
            "stage the model in S3 (servetune stage), or raise --startup-timeout-s",
        )
    else:
        yield Finding("ok", "start-up", f"{text} is enough from a slow hub")
    environment = deployment.only("model").request["PrimaryContainer"]["Environment"]
    inner = environment.get("OPTION_MODEL_LOADING_TIMEOUT")
    if inner and int(inner) > given_s:
        yield Finding(
            "stop",
            "start-up",
            f"the container may load for {inner} s, its health check ends after {given_s} s",
        )


def _routing(deployment: Deployment, facts: CheckInputs) -> Iterator[Finding]:
    """Only some containers report their caches to SageMaker (ProductionVariant, 2026-11)."""
    knowing = " or ".join(name for name, one in CONTAINERS.items() if one.knows_caches)
    if (
        deployment.hosting.routing.strategy == "kv-aware"
        and not container_named(facts.container).knows_caches
    ):
        yield Finding(
            "stop",
            "routing",
            f"kv-aware routing is for container {knowing}, not {facts.container}",
            f"give --container {knowing}, or --routing prefix-aware",
        )


def _licence(deployment: Deployment) -> Iterator[Finding]:
    """Whether the licence of files that the service hands out only for it is accepted."""
    container = deployment.only("model").request["PrimaryContainer"]
    source = container.get("ModelDataSource", {}).get("S3DataSource", {})
    if source.get("S3Uri", "").startswith(LICENSED) and not source.get("ModelAccessConfig"):
        yield Finding(
            "stop",
            "licence",
            f"{source['S3Uri']} is handed out only to who accepts its licence",
            "read it, then give --accept-eula",
        )


def gated(deployment: Deployment, *, has_token: bool) -> Iterator[Finding]:
    """Whether the container may fetch its model from the hub."""
    if has_token or not needs_token(deployment):
        return
    yield Finding(
        "note",
        "token",
        f"{deployment.model} is gated in the hub: without a token the container cannot fetch it",
        "give --hf-token-secret ARN or --hf-token-from-env, or stage the model (servetune stage)",
    )


def cost_findings(cost: Cost, budget: Budget) -> Iterator[Finding]:
    """Whether an endpoint costs no more than it may."""
    if cost.reservation_arn:
        yield Finding("note", "price", cost.lines[0])
        return
    per_hour = cost.most_usd_per_hour
    if per_hour is None:
        yield Finding(
            "stop",
            "price",
            f"no public price of {cost.instance_type} is known",
            "give --price-per-hour, or let --ask-aws ask the Price List",
        )
        return
    total = per_hour * budget.hours
    hourly = (
        f"{format_usd(per_hour)} an hour for {cost.most_instances} "
        f"{'instances' if cost.most_instances > 1 else 'instance'} at most"
    )
    message = f"{hourly}, {format_usd(total)} for {budget.hours:g} h"
    peak = cost.peak_usd_per_hour
    if budget.max_hourly_usd is not None and (peak is None or peak > per_hour):
        yield from _during_update(cost, peak, budget.max_hourly_usd)
    if budget.max_hourly_usd is not None and per_hour > budget.max_hourly_usd:
        yield Finding(
            "stop",
            "cost",
            f"{hourly}, above --max-hourly {format_usd(budget.max_hourly_usd)}",
            "take fewer instances or a smaller --scale, or raise --max-hourly",
        )
    elif budget.max_cost_usd is not None and total > budget.max_cost_usd:
        yield Finding(
            "stop",
            "cost",
            f"{message}, above --max-cost {format_usd(budget.max_cost_usd)}",
            f"{format_usd(budget.max_cost_usd)} last "
            f"{format_seconds(3600 * budget.max_cost_usd / per_hour)}: lower --hours or the "
            "instances",
        )
    else:
        yield Finding("ok", "cost", message)


def _during_update(cost: Cost, peak: float | None, max_hourly_usd: float) -> Iterator[Finding]:
    """Whether old and new instances together stay within the limit of an hour."""
    if peak is None:
        text = f"what runs now has no known price, so --max-hourly {format_usd(max_hourly_usd)}"
        yield Finding("stop", "cost", f"{text} cannot be held", "leave --max-hourly out")
    elif peak > max_hourly_usd:
        yield Finding(
            "stop",
            "cost",
            f"{format_usd(peak)} an hour during the update, with {cost.beside} more instances "
            f"beside the old, above --max-hourly {format_usd(max_hourly_usd)}",
            "raise --max-hourly for the update; or delete and apply, with no endpoint meanwhile",
        )


def _priced(name: str, price: Price, region: str, today: dt.date) -> Finding:
    message = f"{name} {format_usd(price.usd_per_hour)} an hour"
    notes = []
    try:
        age_days = (today - dt.date.fromisoformat(price.date)).days
    except ValueError:
        age_days = 0
    if age_days > OLD_DAYS:
        notes.append(f"{age_days} days old")
    if price.region and price.region != region:
        notes.append(f"for {price.region}, not {region}")
    source = f" ({', '.join(part for part in (price.source, price.date, *notes) if part)})"
    return Finding(
        "note" if notes else "ok",
        "price",
        message + source,
        "--ask-aws asks the Price List" if notes else "",
    )


async def check_live(
    deployment: Deployment,
    aws: AwsClient,
    *,
    now: dt.datetime,
    hours: float,
    secret_arn: str | None = None,
) -> tuple[list[Finding], dict[str, Price]]:
    """Checks that ask AWS without changing anything; and today's prices.

    A request that is not permitted is a note, not a stop.
    """
    findings: list[Finding] = []
    prices: dict[str, Price] = {}
    # Functions, because a coroutine that is never awaited is a warning.
    looks: tuple[tuple[str, Callable[[], Coroutine[None, None, list[Finding]]]], ...] = (
        ("endpoint", partial(_existing, deployment, aws)),
        ("quota", partial(_quota, deployment, aws)),
        ("reservation", partial(_reservation, deployment, aws, now, hours)),
        ("model", partial(_artifacts, deployment, aws)),
        ("token", partial(_secret, aws, secret_arn)),
        ("price", partial(_prices, deployment, aws, now, prices)),
    )
    for topic, findings_of in looks:
        try:
            findings += await findings_of()
        except AwsError as error:
            findings.append(Finding("note", topic, f"not known: {error.message}", error.hint))
    return findings, prices


async def _existing(deployment: Deployment, aws: AwsClient) -> list[Finding]:
    answer = await describe(aws, "endpoint", deployment.endpoint)
    if answer is None:
        free = f"the name '{deployment.endpoint}' is free"
        return [Finding("ok", "endpoint", free)]
    running = answer.get("EndpointConfigName")
    same = running == deployment.only("endpoint-config").name
    return [
        Finding(
            "note" if same else "stop",
            "endpoint",
            f"'{deployment.endpoint}' is there ({answer['EndpointStatus']}) with "
            f"{'these' if same else 'other'} settings",
            "" if same else "use servetune deploy update, or another --endpoint-name",
        )
    ]


async def _quota(
    deployment: Deployment, aws: AwsClient, *, wanted: Mapping[str, int] | None = None
) -> list[Finding]:
    """Whether the quota is enough; `wanted` are the instances by type that an update needs."""
    hosting = deployment.hosting
    if hosting.reservation_arn:
        return []
    counts = wanted or {}
    allowed = await quotas(aws, hosting.instance_types)
    held = await in_use(aws, but=deployment.endpoint)
    findings = []
    for name in hosting.instance_types:
        if name not in allowed:
            findings.append(Finding("note", "quota", f"AWS lists no quota for {name}"))
            continue
        free = allowed[name] - held[name]
        text = f"{name}: {allowed[name]} allowed, {held[name]} in use"
        count = counts.get(name, hosting.instance_count)
        if free < count:
            level: Literal["ok", "note", "stop"] = "stop"
            text += f", {count} wanted"
        elif free < hosting.most_instances:
            level = "note"
            text += f", scaling may want {hosting.most_instances}"
        else:
            level = "ok"
        hint = "" if level == "ok" else f"raise '{name} for endpoint usage' in Service Quotas"
        findings.append(Finding(level, "quota", text, hint))
    return findings


async def check_rollout(
    deployment: Deployment, rollout: Rollout, running: Running, aws: AwsClient
) -> list[Finding]:
    """Whether quota or reservation have the instances that an update runs beside the old ones.

    A request that is not permitted is a note, not a stop.
    """
    held = {name for types in running.machines for name in types}
    wanted = {
        name: rollout.beside + (rollout.before if name in held else 0)
        for name in deployment.hosting.instance_types
    }
    try:
        found = await _quota(deployment, aws, wanted=wanted)
        return found + await _free_reserved(deployment, rollout.beside, aws)
    except AwsError as error:
        return [Finding("note", "quota", f"not known: {error.message}", error.hint)]


async def _free_reserved(deployment: Deployment, count: int, aws: AwsClient) -> list[Finding]:
    """Whether a training plan has so many instances free."""
    arn = deployment.hosting.reservation_arn
    if arn is None or ":training-plan/" not in arn or not count:
        return []
    plan = await aws.call("sagemaker", "DescribeTrainingPlan", TrainingPlanName=arn)
    free = int(plan.get("AvailableInstanceCount", 0))
    if free >= count:
        return []
    return [
        Finding(
            "stop",
            "reservation",
            f"{plan['TrainingPlanName']} has {free} instances free, and an update needs {count} "
            "beside those that run",
            "delete and apply, with no endpoint meanwhile, or update without the reservation",
        )
    ]


async def _reservation(
    deployment: Deployment, aws: AwsClient, now: dt.datetime, hours: float
) -> list[Finding]:
    arn = deployment.hosting.reservation_arn
    if arn is None:
        return []
    if ":training-plan/" not in arn:
        message = f"only training plans can be looked up, and {arn} is none"
        return [Finding("note", "reservation", message)]
    plan = await aws.call_or_none("sagemaker", "DescribeTrainingPlan", TrainingPlanName=arn)
    if plan is None:
        return [Finding("stop", "reservation", f"there is no {arn}")]
    wrong = _reservation_problems(deployment, plan, now, hours)
    if wrong:
        return [Finding("stop", "reservation", text) for text in wrong]
    return [
        Finding(
            "ok",
            "reservation",
            f"{plan['TrainingPlanName']}: {plan.get('AvailableInstanceCount', 0)} of "
            f"{deployment.hosting.instance_types[0]} free until {plan.get('EndTime', 'its end')}",
        )
    ]


def _reservation_problems(
    deployment: Deployment, plan: JsonObject, now: dt.datetime, hours: float
) -> list[str]:
    """Reasons for which a training plan cannot carry the endpoint."""
    name, wrong = plan["TrainingPlanName"], []
    if plan["Status"] != "Active":
        begins = f", begins {plan['StartTime']}" if plan.get("StartTime") else ""
        wrong.append(f"{name} is {plan['Status']}{begins}")
    if "endpoint" not in plan.get("TargetResources", []):
        wrong.append(f"{name} is for {', '.join(plan.get('TargetResources', []))}, not endpoints")
    types = {each["InstanceType"] for each in plan.get("ReservedCapacitySummaries", [])}
    needed = deployment.hosting.instance_types[0]
    if needed not in types:
        wrong.append(f"{name} holds {', '.join(sorted(types)) or 'nothing'}, not {needed}")
    free = plan.get("AvailableInstanceCount", 0)
    if free < deployment.hosting.instance_count:
        wrong.append(
            f"{name} has {free} instances free, {deployment.hosting.instance_count} wanted"
        )
    end = plan.get("EndTime")
    if end is not None and end < now + dt.timedelta(hours=hours):
        wrong.append(f"{name} ends {end}, before the {hours:g} h are over")
    return wrong


async def _artifacts(deployment: Deployment, aws: AwsClient) -> list[Finding]:
    """Whether the model's and the adapters' files are in S3."""
    findings = []
    container = deployment.only("model").request["PrimaryContainer"]
    uri = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri")
    for kind, place in [
        ("model", f"{uri}config.json" if uri else None),
        *((adapter.name, adapter.artifact_url) for adapter in deployment.hosting.adapters),
    ]:
        if place is None:
            continue
        bucket, _, key = place.removeprefix("s3://").partition("/")
        try:
            await aws.call("s3", "HeadObject", Bucket=bucket, Key=key)
        except AwsError as error:
            if not is_missing(error):
                raise
            findings.append(
                Finding(
                    "stop",
                    "model",
                    f"{kind}: {place} is not there",
                    "upload it with servetune stage",
                )
            )
        else:
            findings.append(Finding("ok", "model", f"{place} is there"))
    if uri and not uri.startswith("s3://jumpstart-"):
        findings.append(await _staged(deployment, uri, aws))
    return findings


async def _staged(deployment: Deployment, uri: str, aws: AwsClient) -> Finding:
    """Whether the staged model is the trial's."""
    found = await staged_model(uri, aws)
    if found is None:
        return Finding(
            "note",
            "model",
            f"nothing says that {uri} holds all of {deployment.model}",
            "servetune stage checks what is there, sends what is missing and says so",
        )
    model, revision = found
    if model != deployment.model:
        paths = any(name.startswith(("/", ".", "~")) for name in (model, deployment.model))
        return Finding(
            "note" if paths else "stop",
            "model",
            f"{uri} holds {model}, the trial was of {deployment.model}",
            "give another --model-source",
        )
    at = f" at {revision}" if revision else ""
    return Finding("ok", "model", f"{uri} holds all of {model}{at}")


async def _secret(aws: AwsClient, arn: str | None) -> list[Finding]:
    if arn is None:
        return []
    answer = await aws.call_or_none("secretsmanager", "DescribeSecret", SecretId=arn)
    if answer is None:
        return [Finding("stop", "token", f"there is no secret {arn}")]
    return [Finding("ok", "token", f"secret {answer.get('Name', arn)} is there")]


async def _prices(
    deployment: Deployment, aws: AwsClient, now: dt.datetime, prices: dict[str, Price]
) -> list[Finding]:
    types, queued = deployment.hosting.instance_types, deployment.hosting.queued
    today = now.date().isoformat()
    prices.update(await listed_prices(aws, types, today=today, queued=queued))
    return []


def require_go(report: Report) -> None:
    """Raise for the first thing that would fail.

    Raises:
        InputError: With its line and hint.
    """
    if report.stops:
        first, *others = report.stops
        more = f" (and {len(others)} more: see --plan)" if others else ""
        raise InputError(f"{first.topic}: {first.message}{more}", hint=first.hint)
