"""What is known before money is spent: alone, and with AWS asked."""

import datetime as dt
from typing import Any

import msgspec
import pytest
from aws_kit import G6, NAME, World, change_in, components, deployment

from servetune.deploy.aws import Finding, apply, check, check_live
from servetune.deploy.aws.account import price_of_product
from servetune.deploy.aws.check import Budget, CheckInputs, require_go
from servetune.deploy.aws.service_model import problems
from servetune.deploy.hosting import Adapter, Hosting, Routing, Scaling, parse_routing
from servetune.errors import DeployError, InputError, UnknownName
from servetune.hardware import Price, instance
from servetune.models import load_shape, weight_bytes
from servetune.plan import Plan

TODAY = dt.date(2026, 11, 21)
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
SHAPE = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
PLAN = Plan(model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=128, max_model_len=4096)
P5 = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"


def facts(*types: str, **more: Any) -> CheckInputs:
    given: dict[str, Any] = {
        "plan": PLAN,
        "shape": SHAPE,
        "nodes": tuple(instance(name, service="sagemaker") for name in types or (G6,)),
        "container": "lmi",
        "image_tag": "0.36.0-lmi28.0.0-cu130",
        "weights_bytes": weight_bytes(SHAPE),
    }
    return CheckInputs(**(given | more))


def stops(hosting: Hosting | None = None, **more: Any) -> list[str]:
    budget = more.pop("budget", Budget())
    known = more.pop("facts", facts())
    report = check(deployment(hosting, **more), known, budget, today=TODAY)
    return [f"{finding.topic}: {finding.message}" for finding in report.stops]


def test_a_sound_deployment_goes() -> None:
    report = check(deployment(), facts(), Budget(hours=10), today=TODAY)
    assert report.stops == ()
    assert report.total_usd == pytest.approx(57.52)
    require_go(report)


def test_requests_are_held_against_enum_pattern_and_upper_bound() -> None:
    pool = Hosting(instance_types=("ml.g99.xlarge",))
    assert any("none of the" in stop for stop in stops(pool))
    sound = deployment()
    long = msgspec.structs.replace(sound.steps[0], request={**sound.steps[0].request})
    long.request["PrimaryContainer"] = {
        **long.request["PrimaryContainer"], "Environment": {"OPTION_X": "y" * 1025},
    }  # fmt: skip
    wrong = msgspec.structs.replace(sound, steps=(long, *sound.steps[1:]))
    report = check(wrong, facts(), Budget(), today=TODAY)
    assert "1025 characters is above 1024" in report.stops[0].message


def test_every_kind_of_request_satisfies_the_services_models() -> None:
    full = components(
        instance_types=(G6, "ml.g5.12xlarge"),
        adapters=(Adapter(name="a", artifact_url="s3://bucket/a.tar.gz"),),
        scaling=Scaling(minimum=0, maximum=9, requests_per_copy=3),
        routing=Routing(strategy="prefix-aware", prefix_characters=4096, concurrency_limit=64),
        provision_timeout_s=900,
    )
    reserved = Hosting(instance_types=("ml.p5.48xlarge",), reservation_arn=P5)
    for hosting in (full, reserved):
        wanted = deployment(hosting, endpoint_name="e" * 63, model_source="s3://bucket/m/")
        for step in wanted.steps:
            assert problems(step.service, step.operation, step.request) == [], step.kind


def test_an_image_that_the_driver_cannot_run_stops() -> None:
    old = facts(image_tag="0.36.0-lmi24.0.0-cu129")
    assert any("cu129 does not run on al2023" in stop for stop in stops(facts=old))


def test_an_image_that_no_table_knows_is_reported() -> None:
    report = check(deployment(), facts(image_tag="0.99.0-lmi99.0.0-cu130"), Budget(), today=TODAY)
    assert any(f.level == "note" and "no table" in f.message for f in report.findings)


def test_a_model_that_does_not_fit_any_of_the_pool_stops() -> None:
    large = load_shape("meta-llama/Llama-3.3-70B-Instruct", catalogue_first=True)
    plan = Plan(model=large.name, tensor_parallel=4, max_model_len=4096)
    known = facts(plan=plan, shape=large, weights_bytes=weight_bytes(large))
    assert any(stop.startswith("memory: ml.g6.12xlarge") for stop in stops(facts=known))


def test_more_devices_than_an_instance_has_stop() -> None:
    assert any("8 devices are asked" in s for s in stops(components(copies_per_instance=4)))


def test_copies_may_not_reserve_more_host_memory_than_there_is() -> None:
    greedy = components(memory_mib_per_copy={G6: 150 * 1024})
    assert any(stop.startswith("host memory") for stop in stops(greedy))


@pytest.mark.parametrize(("timeout_s", "level"), [(60, "stop"), (300, "note"), (1800, "ok")])
def test_the_health_check_is_held_against_the_time_to_load(timeout_s: int, level: str) -> None:
    report = check(deployment(startup_timeout_s=timeout_s), facts(), Budget(), today=TODAY)
    assert {f.level for f in report.findings if f.topic == "start-up"} == {level}


def test_cost_counts_every_instance_that_scaling_may_reach() -> None:
    scaled = Hosting(
        instance_types=(G6,), scaling=Scaling(minimum=1, maximum=5, requests_per_copy=50)
    )
    report = check(deployment(scaled), facts(), Budget(hours=2), today=TODAY)
    assert report.total_usd == pytest.approx(5 * 5.752 * 2)


def test_max_cost_stops_and_tells_how_long_the_money_lasts() -> None:
    report = check(deployment(), facts(), Budget(hours=24, max_cost_usd=10), today=TODAY)
    (stop,) = report.stops
    assert "above --max-cost $10.00" in stop.message
    assert "1 h 44 min" in stop.hint
    with pytest.raises(InputError, match="above --max-cost"):
        require_go(report)


def test_max_hourly_stops_at_the_most_instances_that_scaling_allows() -> None:
    scaling = Scaling(minimum=1, maximum=4, requests_per_copy=50)
    scaled = Hosting(instance_types=(G6,), scaling=scaling)
    assert stops(scaled, budget=Budget(max_hourly_usd=23.1)) == []
    (stop,) = stops(scaled, budget=Budget(max_hourly_usd=23.0))
    assert "$23.01 an hour for 4 instances at most, above --max-hourly $23.00" in stop


def test_a_reservation_is_not_charged_on_demand() -> None:
    reserved = Hosting(instance_types=(G6,), reservation_arn=P5)
    report = check(deployment(reserved), facts(), Budget(max_cost_usd=1), today=TODAY)
    assert report.total_usd == 0.0
    assert not [finding for finding in report.findings if "$" in finding.message]


def test_an_unpriced_type_stops_unless_it_is_reserved_or_priced() -> None:
    unpriced = "ml.p5e.48xlarge"
    alone = Hosting(instance_types=(unpriced,))
    assert any("no public price" in s for s in stops(alone, facts=facts(unpriced)))
    price = Price(usd_per_hour=40, region="", source="given", date="")
    budget = Budget(prices={unpriced: price})
    assert stops(alone, facts=facts(unpriced), budget=budget) == []
    reserved = Hosting(instance_types=(unpriced,), reservation_arn=P5)
    assert stops(reserved, facts=facts(unpriced)) == []


def test_old_prices_and_those_of_other_regions_are_reported() -> None:
    price = Price(usd_per_hour=5, region="us-west-2", source="list", date="2026-01-01")
    report = check(deployment(), facts(), Budget(prices={G6: price}), today=TODAY)
    (finding,) = (f for f in report.findings if f.topic == "price")
    assert finding.level == "note"
    assert "324 days old" in finding.message
    assert "for us-west-2, not us-east-1" in finding.message


def test_a_gated_model_without_a_token_is_said_before_it_fails() -> None:
    plan = Plan(model="meta-llama/Llama-3.1-8B-Instruct", tensor_parallel=4, max_model_len=4096)

    def notes(*, has_token: bool = False, **more: Any) -> list[str]:
        wanted = deployment(plan=plan, **more)
        report = check(wanted, facts(has_token=has_token), Budget(), today=TODAY)
        return [finding.message for finding in report.findings if finding.topic == "token"]

    (note,) = notes()
    assert "meta-llama/Llama-3.1-8B-Instruct is gated in the hub" in note
    assert notes(has_token=True) == []
    assert notes(model_source="s3://bucket/llama/") == []


def test_licensed_files_of_jumpstart_stop_without_consent() -> None:
    source = "s3://jumpstart-private-cache-prod-us-east-1/llama/v1.0.0/"
    (stop,) = check(deployment(model_source=source), facts(), Budget(), today=TODAY).stops
    assert "--accept-eula" in stop.hint
    assert stops(model_source=source, accept_eula=True) == []


# With AWS asked


def ask(world: World, hosting: Hosting | None = None, **more: Any) -> dict[str, list[Finding]]:
    secret = more.pop("secret_arn", None)
    findings, prices = world.run(
        check_live(deployment(hosting, **more), world.aws(), now=NOW, hours=24, secret_arn=secret)
    )
    world.prices = prices  # type: ignore[attr-defined]
    by_topic: dict[str, list[Finding]] = {}
    for finding in findings:
        by_topic.setdefault(finding.topic, []).append(finding)
    assert world.double.operations() == []
    return by_topic


def test_quota_counts_what_runs_already_over_all_pages(world: World) -> None:
    world.double.control.quota[G6] = 2
    other = deployment(Hosting(instance_types=(G6,), instance_count=2), endpoint_name="other")
    world.run(apply(other, change_in(world)))
    world.double.calls.clear()
    (finding,) = ask(world)["quota"]
    assert finding.level == "stop"
    assert finding.message == f"{G6}: 2 allowed, 2 in use, 1 wanted"
    assert "Service Quotas" in finding.hint


def test_quota_below_what_scaling_may_want_is_a_note(world: World) -> None:
    world.double.control.quota[G6] = 2
    scaling = Scaling(minimum=1, maximum=4, requests_per_copy=10)
    (finding,) = ask(world, Hosting(instance_types=(G6,), scaling=scaling))["quota"]
    assert finding.level == "note"


def test_what_may_not_be_asked_is_a_note(world: World) -> None:
    world.double.denied.add("ListServiceQuotas")
    (finding,) = ask(world)["quota"]
    assert finding.level == "note"
    assert "not authorized" in finding.message


def test_a_taken_name_stops_and_an_own_one_is_gone_on_with(world: World) -> None:
    assert ask(world)["endpoint"][0].level == "ok"
    world.run(apply(deployment(), change_in(world)))
    world.double.calls.clear()
    assert ask(world)["endpoint"][0].level == "note"
    other = Hosting(instance_types=(G6,), instance_count=2)
    assert ask(world, other)["endpoint"][0].level == "stop"


def test_todays_price_is_that_of_hosting(world: World) -> None:
    world.double.services.prices[G6] = 6.25
    ask(world)
    price = world.prices[G6]  # type: ignore[attr-defined]
    assert (price.usd_per_hour, price.date) == (6.25, "2026-11-21")
    row = world.double.services._product(G6, "AsyncInf", 999.0)
    assert price_of_product(row) is None


def plan_row(**more: Any) -> dict[str, Any]:
    return {
        "Status": "Active",
        "TargetResources": ["endpoint"],
        "AvailableInstanceCount": 2,
        "EndTime": (NOW + dt.timedelta(days=9)).timestamp(),
        "ReservedCapacitySummaries": [
            {
                "ReservedCapacityArn": P5.replace("training-plan", "reserved-capacity") + "x" * 9,
                "InstanceType": "ml.p5.48xlarge",
                "TotalInstanceCount": 2,
                "Status": "Active",
            }
        ],
    } | more


@pytest.mark.parametrize(
    ("row", "level", "said"),
    [
        ({}, "ok", "2 of ml.p5.48xlarge free"),
        ({"Status": "Scheduled"}, "stop", "is Scheduled"),
        ({"TargetResources": ["training-job"]}, "stop", "not endpoints"),
        ({"AvailableInstanceCount": 0}, "stop", "0 instances free, 1 wanted"),
        ({"EndTime": (NOW + dt.timedelta(hours=3)).timestamp()}, "stop", "before the 24 h"),
        ({"ReservedCapacitySummaries": []}, "stop", "holds nothing, not ml.p5.48xlarge"),
    ],
)
def test_a_training_plan_must_carry_the_endpoint(
    world: World, row: dict[str, Any], level: str, said: str
) -> None:
    world.double.control.rows["TrainingPlan", "plan"] = {"request": plan_row(**row)}
    hosting = Hosting(instance_types=("ml.p5.48xlarge",), reservation_arn=P5)
    found = ask(world, hosting)
    assert (found["reservation"][0].level, len(found["reservation"])) == (level, 1)
    assert said in found["reservation"][0].message
    assert "quota" not in found


def test_a_plan_that_is_not_there_stops(world: World) -> None:
    hosting = Hosting(instance_types=("ml.p5.48xlarge",), reservation_arn=P5)
    assert "there is no" in ask(world, hosting)["reservation"][0].message


def test_what_is_no_training_plan_cannot_be_looked_up(world: World) -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:ml-reservation/mine"
    (found,) = ask(world, Hosting(instance_types=(G6,), reservation_arn=arn))["reservation"]
    assert found.level == "note"
    assert arn in found.message


def test_missing_files_in_s3_stop(world: World) -> None:
    hosting = components(adapters=(Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz"),))
    found = ask(world, hosting, model_source="s3://bucket/m/")["model"]
    assert [finding.level for finding in found] == ["stop", "stop", "note"]
    assert "s3://bucket/m/config.json is not there" in found[0].message
    client = world.double.clients()("s3")
    client.put_object(Bucket="bucket", Key="m/config.json", Body=b"{}")
    client.put_object(Bucket="bucket", Key="fr.tar.gz", Body=b"x")
    world.double.calls.clear()
    found = ask(world, hosting, model_source="s3://bucket/m/")["model"]
    assert [finding.level for finding in found] == ["ok", "ok", "note"]
    assert "nothing says that s3://bucket/m/ holds all of Qwen/Qwen3-4B" in found[-1].message


@pytest.mark.parametrize(
    ("held", "level", "said"),
    [
        (b'{"model": "Qwen/Qwen3-4B", "revision": "c0ffee"}', "ok", "Qwen3-4B at c0ffee"),
        (b'{"model": "org/other"}', "stop", "holds org/other, the trial was of Qwen/Qwen3-4B"),
        (b'{"model": "/home/me/qwen"}', "note", "holds /home/me/qwen"),
        (b"[]", "note", "nothing says"),
        (b"{", "note", "nothing says"),
    ],
)
def test_what_was_staged_must_be_the_trials_model(
    world: World, held: bytes, level: str, said: str
) -> None:
    client = world.double.clients()("s3")
    client.put_object(Bucket="bucket", Key="m/config.json", Body=b"{}")
    client.put_object(Bucket="bucket", Key="m/servetune-stage.json", Body=held)
    world.double.calls.clear()
    found = ask(world, model_source="s3://bucket/m/")["model"][-1]
    assert found.level == level
    assert said in found.message


@pytest.mark.parametrize(("container", "stopped"), [("vllm", False), ("lmi", True)])
def test_only_one_container_tells_of_its_cache(container: str, stopped: bool) -> None:
    hosting = Hosting(instance_types=(G6,), routing=parse_routing("kv-aware"))
    said = stops(hosting, facts=facts(container=container))
    assert bool([text for text in said if "kv-aware" in text]) == stopped


def test_a_secret_is_looked_for_and_not_read(world: World) -> None:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf"
    assert ask(world, secret_arn=arn)["token"][0].level == "stop"
    world.double.services.secrets[arn] = "the token"
    assert ask(world, secret_arn=arn)["token"][0].level == "ok"
    assert "GetSecretValue" not in world.double.operations(reading=True)


def test_without_credentials_it_is_one_line(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    from servetune.deploy.aws import AwsClient

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    aws = AwsClient("us-east-1", clock=world.clock)
    with pytest.raises(DeployError, match="Unable to locate credentials") as caught:
        world.run(aws.call("sagemaker", "DescribeEndpoint", EndpointName=NAME))
    assert "log in" in caught.value.hint


# Nouns


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("random", {"RoutingStrategy": "RANDOM"}),
        (
            "prefix-aware:4096:64",
            {
                "RoutingStrategy": "PREFIX_AWARE",
                "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 64},
            },
        ),
    ],
)
def test_routing_is_read(text: str, request_: dict[str, Any]) -> None:
    assert parse_routing(text).request() == request_


@pytest.mark.parametrize("text", ["prefix-aware:10", "random:5000", "prefix-aware:a", "p:1:2:3"])
def test_wrong_routing_is_refused(text: str) -> None:
    with pytest.raises((InputError, UnknownName)):
        parse_routing(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"instance_types": ()},
        {"instance_types": (G6, G6)},
        {"instance_count": 0},
        {"copies": 0},
        {"provision_timeout_s": 10},
        {"instance_types": (G6, "ml.g5.12xlarge"), "reservation_arn": P5},
    ],
)
def test_a_hosting_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Hosting(**({"instance_types": (G6,)} | wrong))


def test_equal_deployments_have_equal_names_and_others_other_ones() -> None:
    names = [
        deployment(hosting).only("endpoint-config").name
        for hosting in (
            Hosting(instance_types=(G6,)),
            Hosting(instance_types=(G6,)),
            Hosting(instance_types=(G6,), instance_count=2),
            Hosting(instance_types=(G6,), routing=Routing(strategy="random")),
        )
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3
