"""What companies ask of an endpoint first, JumpStart's models, and asynchronous endpoints."""

from typing import Any

import pytest
from aws_kit import G6, NAME, SELDOM, World, change_in, components, deployment, endpoint

from servetune.deploy import render_sagemaker
from servetune.deploy.aws import apply, delete
from servetune.deploy.aws.account import price_of_product
from servetune.deploy.aws.jumpstart import jumpstart_model
from servetune.deploy.aws.service_model import problems
from servetune.deploy.features import EndpointFeatures
from servetune.deploy.hosting import Hosting, Scaling
from servetune.errors import DeployError, InputError

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
FULL = EndpointFeatures(
    subnet=("subnet-0a1b2c3d", "subnet-0c2d3e4f"), security_group=("sg-0a1b2c3d",), kms_key=KEY,
    network_isolation=True, data_capture="s3://bucket/capture/", data_capture_percent=5,
    tag=("team=search", "cost center=42"), metrics_every_s=10, metrics_path="/metrics",
)  # fmt: skip
STAGED = "s3://bucket/qwen/"


@pytest.mark.parametrize("hosting", [Hosting(instance_types=(G6,)), components()])
def test_network_keys_records_and_tags_are_where_the_service_takes_them(
    world: World, hosting: Hosting
) -> None:
    wanted = deployment(hosting, features=FULL, model_source=STAGED)
    for step in wanted.steps:
        assert problems(step.service, step.operation, step.request) == []
    model, config = wanted.only("model").request, wanted.only("endpoint-config").request
    network = {
        "SecurityGroupIds": ["sg-0a1b2c3d"],
        "Subnets": ["subnet-0a1b2c3d", "subnet-0c2d3e4f"],
    }
    assert (model["VpcConfig"], model["EnableNetworkIsolation"]) == (network, True)
    # The configuration of components has no model that could say it.
    assert config.get("VpcConfig") == (None if hosting.copies is None else network)
    assert config["KmsKeyId"] == KEY
    capture = config["DataCaptureConfig"]
    assert (capture["InitialSamplingPercentage"], capture["KmsKeyId"]) == (5, KEY)
    assert config["MetricsConfig"]["MetricPublishFrequencyInSeconds"] == 10
    metrics = model["PrimaryContainer"]["ContainerMetricsConfig"]["MetricsEndpoints"]
    assert metrics == [{"MetricsEndpointPath": "/metrics", "MetricPublishFrequencyInSeconds": 10}]
    for step in wanted.of_kind("model", "endpoint-config", "endpoint", "component"):
        assert {"Key": "team", "Value": "search"} in step.request["Tags"]
    world.run(apply(wanted, change_in(world, wait=SELDOM)))
    world.run(delete(NAME, change_in(world)))
    assert world.left() == []


def test_features_are_other_resources_and_none_keep_the_names_that_there_were() -> None:
    plain, full = deployment(model_source=STAGED), deployment(model_source=STAGED, features=FULL)
    for kind in ("model", "endpoint-config"):
        assert plain.only(kind).name != full.only(kind).name
    tagged = deployment(model_source=STAGED, features=EndpointFeatures(tag=("a=b",)))
    assert tagged.only("model").name == plain.only("model").name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subnet": ("subnet-1a2b3c4d",)}, "needs subnets and security groups"),
        ({"subnet": ("net",), "security_group": ("sg-1a2b3c4d",)}, "'net' is no subnet"),
        ({"tag": ("team",)}, "'team' is no tag"),
        ({"tag": ("servetune:endpoint=x",)}, "reserved"),
        ({"data_capture": "bucket"}, "names no S3 prefix"),
        ({"metrics_every_s": 7}, "every 7 s"),
        ({"kms_key": "my key"}, "is no KMS key"),
    ],
)
def test_what_the_service_refuses_is_refused_before(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EndpointFeatures(**options)


def test_a_container_without_network_needs_a_staged_model() -> None:
    isolated = EndpointFeatures(network_isolation=True)
    with pytest.raises(InputError, match="cannot fetch Qwen/Qwen3-4B from the hub") as caught:
        deployment(features=isolated)
    assert "servetune stage" in caught.value.hint
    assert deployment(features=isolated, model_source=STAGED)


# Asynchronous endpoints

QUEUED = EndpointFeatures(async_output="s3://bucket/answers/", kms_key=KEY)


def test_an_asynchronous_endpoint_scales_with_its_queue_and_to_zero(world: World) -> None:
    scaling = Scaling(minimum=0, maximum=3, requests_per_copy=20)
    hosting = Hosting(instance_types=(G6,), scaling=scaling, queued=True)
    wanted = deployment(hosting, features=QUEUED)
    for step in wanted.steps:
        assert problems(step.service, step.operation, step.request) == []
    queue = wanted.only("endpoint-config").request["AsyncInferenceConfig"]
    assert queue["ClientConfig"] == {"MaxConcurrentInvocationsPerInstance": 128}  # of the trial
    assert queue["OutputConfig"]["KmsKeyId"] == KEY
    tracked, step_up = wanted.of_kind("scaling-policy")
    assert "ApproximateBacklogSizePerInstance" in str(tracked.request)
    assert step_up.request["PolicyType"] == "StepScaling"
    alarm = wanted.only("alarm").request
    assert alarm["MetricName"] == "HasBacklogWithoutCapacity"
    assert alarm["Dimensions"] == [{"Name": "EndpointName", "Value": NAME}]
    world.run(apply(wanted, change_in(world, wait=SELDOM)))
    world.run(delete(NAME, change_in(world)))
    assert world.left() == []
    readme = render_sagemaker(endpoint(hosting, features=QUEUED)).text("README.md")
    assert "invoke-endpoint-async" in readme
    assert "servetune bench --against" not in readme


def test_a_queue_is_not_for_components_and_zero_not_for_others() -> None:
    with pytest.raises(InputError, match="has no inference components"):
        deployment(components(), features=QUEUED)
    with pytest.raises(InputError, match="asynchronous endpoints scale to zero"):
        Hosting(instance_types=(G6,), scaling=Scaling(minimum=0, maximum=1, requests_per_copy=1))


def test_the_price_of_a_queue_is_its_own_row() -> None:
    def product(usage: str) -> dict[str, Any]:
        price = {"x": {"pricePerUnit": {"USD": "2.5"}}}
        return {
            "product": {"attributes": {"usagetype": f"USE1-{usage}:ml.g6.12xlarge"}},
            "terms": {"OnDemand": {"a": {"priceDimensions": price}}},
        }

    for usage, queued, usd in (
        ("AsyncInf", True, 2.5), ("Host", True, None), ("Host", False, 2.5),
        ("AsyncInf", False, None),
    ):  # fmt: skip
        assert price_of_product(product(usage), queued=queued) == usd


# JumpStart

LLAMA = "meta-textgeneration-llama-3-1-8b-instruct"
PRIVATE = f"s3://jumpstart-private-cache-prod-us-east-1/meta-textgeneration/{LLAMA}/v1.0.0/"
HUB = {
    LLAMA: {"HostingPrepackedArtifactUri": PRIVATE, "HostingEulaUri": "s3://jumpstart/eula.txt"},
    "packed": {"HostingArtifactUri": "s3://jumpstart-cache-prod-us-east-1/packed/infer.tar.gz"},
    "open": {"HostingArtifactUri": "s3://jumpstart-cache-prod-us-east-1/open/v1.0.0/"},
}


def test_a_jumpstart_model_is_found_with_its_licence(world: World) -> None:
    world.double.control.hub = HUB
    found = world.run(jumpstart_model(LLAMA, world.aws()))
    assert (found.uri, found.version) == (PRIVATE, "1.0.0")
    with pytest.raises(InputError, match="has a licence that you must accept") as caught:
        found.require_accepted(accepted=False)
    assert "s3://jumpstart/eula.txt" in caught.value.hint
    world.run(jumpstart_model("open:1.0.0", world.aws())).require_accepted(accepted=False)
    with pytest.raises(DeployError, match="as an archive"):
        world.run(jumpstart_model("packed", world.aws()))
    with pytest.raises(DeployError, match="JumpStart has no model 'none' in us-east-1"):
        world.run(jumpstart_model("none", world.aws()))


def test_licensed_files_are_not_handed_out_without_consent(world: World) -> None:
    refused = deployment(model_source=PRIVATE)
    with pytest.raises(DeployError, match="AcceptEula value must be explicitly defined as True"):
        world.run(apply(refused, change_in(world)))
    accepted = deployment(model_source=PRIVATE, accept_eula=True)
    world.run(apply(accepted, change_in(world, wait=SELDOM)))
