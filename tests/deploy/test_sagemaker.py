import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore_check import problems, service

from servetune.deploy import (
    Bundle,
    EndpointOptions,
    Evidence,
    endpoint_of,
    parse_environment,
    render_sagemaker,
)
from servetune.deploy.containers import container_named
from servetune.deploy.images import regions
from servetune.deploy.names import resource_name
from servetune.deploy.startup import startup_timeout_s
from servetune.errors import DeployError, UnknownName
from servetune.hardware.device import Device, Link, Node, Price
from servetune.plan.plan import Plan

GOLDEN = Path(__file__).parent.parent / "golden" / "sagemaker"
ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"

L4 = Device(
    name="L4", vendor="nvidia", architecture="ada", memory_bytes=23034 * 2**20,
    memory_bytes_per_s=300e9, bf16_flops=121e12,
)  # fmt: skip
H200 = msgspec.structs.replace(L4, name="H200", memory_bytes=141 * 2**30)
PCIE = Link(name="pcie4", bytes_per_s=32e9, peer_to_peer=False)
PRICE = Price(usd_per_hour=5.752, region="us-east-1", source="AWS Price List", date="2026-09-27")
G6 = Node(name="ml.g6.12xlarge", device=L4, device_count=4, link=PCIE, price=PRICE)
P5E = Node(name="ml.p5e.48xlarge", device=H200, device_count=8, link=PCIE)

#: The third of the published records of the walk-through: concurrency 128 on 4x L4.
MEASURED = Evidence(
    results={
        "request_throughput": 7.513804538186389,
        "output_throughput": 1471.0,
        "median_ttft_ms": 301.5,
        "p99_e2e_latency_ms": 61421.0,
        "error_rate": 0.0,
    },
    concurrency=128,
    engine="vllm",
    engine_version="0.22.1",
    hardware="4x NVIDIA L4",
    workload="sharegpt, 1000 requests",
    source="journal.jsonl, trial 0123456789abcdef",
)
PLAN = Plan(
    model="Qwen/Qwen3-4B", tensor_parallel=4, max_num_batched_tokens=8192, max_num_seqs=256,
    max_model_len=40960, gpu_memory_fraction=0.92, prefix_caching=True, chunked_prefill=True,
)  # fmt: skip


def render(plan: Plan = PLAN, **more: Any) -> Bundle:
    evidence = more.pop("evidence", MEASURED)
    options = EndpointOptions(nodes=(more.pop("instance", G6),), **more)
    return render_sagemaker(endpoint_of(plan, options, evidence))


def altered(plan: Plan = PLAN, **fields: Any) -> Plan:
    return msgspec.structs.replace(plan, **fields)


REQUESTS = {
    "CreateModel": "model.json",
    "CreateEndpointConfig": "endpoint_config.json",
    "CreateEndpoint": "endpoint.json",
}

CASES: dict[str, dict[str, Any]] = {
    "lmi-0.22.1": {"container": "lmi", "weights_bytes": 8.05e9},
    "lmi-0.11.1-copies": {
        "container": "lmi",
        "plan": altered(tensor_parallel=1, replicas=4, max_num_seqs=32),
        "evidence": msgspec.structs.replace(MEASURED, engine_version="0.11.1"),
    },
    "vllm-0.27.1": {
        "container": "vllm",
        "plan": altered(prefix_caching=False),
        "evidence": msgspec.structs.replace(MEASURED, engine_version="0.27.1"),
    },
    "vllm-0.16.0-s3-simulated": {
        "container": "vllm",
        "plan": altered(engine="simulated", tensor_parallel=2, replicas=2),
        "evidence": msgspec.structs.replace(MEASURED, engine_version="0.16.0", simulated=True),
        "model_source": "s3://models/qwen3-4b",
        "region": "eu-west-1",
        "weights_bytes": 8.05e9,
    },
    "hf-vllm-0.25.1": {
        "container": "hf-vllm",
        "plan": altered(prefix_caching=False),
        "evidence": msgspec.structs.replace(MEASURED, engine_version="0.25.1"),
    },
    "sglang-0.5.17-copies": {
        "container": "sglang",
        "plan": altered(engine="sglang", tensor_parallel=2, replicas=2, prefix_caching=False),
        "evidence": msgspec.structs.replace(MEASURED, engine="sglang", engine_version="0.5.17"),
    },
    "tgi-3.3.6-s3": {
        "container": "tgi",
        "plan": altered(engine="tgi", chunked_prefill=None),
        "evidence": msgspec.structs.replace(MEASURED, engine="tgi", engine_version="3.3.6"),
        "model_source": "s3://models/qwen3-4b",
    },
    "vllm-unpriced": {
        "container": "vllm",
        "plan": altered(tensor_parallel=8),
        "instance": P5E,
        "evidence": None,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_bundles_are_as_recorded(case: str) -> None:
    """Set SERVETUNE_WRITE_GOLDEN=1 to record them anew, and read the difference."""
    bundle = render(**CASES[case])
    folder = GOLDEN / case
    # Policies are enforced in tests/deploy/test_policies.py, which says more than their text.
    names = [name for name in bundle.names if not name.endswith(("-policy.json", "-trust.json"))]
    if os.environ.get("SERVETUNE_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_text(bundle.text(name), "utf-8")
    assert {name: bundle.text(name) for name in names} == {
        name: (folder / name).read_text("utf-8") for name in names
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operation", REQUESTS)
def test_every_request_satisfies_botocores_own_model(case: str, operation: str) -> None:
    request = render(**CASES[case], role_arn=ROLE).json(REQUESTS[operation])
    assert problems(operation, request) == []


def test_the_check_itself_finds_what_boto3_lets_pass() -> None:
    """Enum, pattern, upper bound, unknown and missing members: each must be seen."""
    bundle = render(role_arn=ROLE)
    config = bundle.json("endpoint_config.json")
    variant = config["ProductionVariants"][0]
    variant |= {
        "InstanceType": "ml.g99.xlarge",
        "ContainerStartupHealthCheckTimeoutInSeconds": 9999,
        "Colour": "red",
    }
    config["EndpointConfigName"] = "a_b"
    found = "\n".join(problems("CreateEndpointConfig", config))
    for part in ("none of the enum", "9999 is above 3600", "has no Colour", "does not match"):
        assert part in found
    assert problems("CreateEndpoint", {"EndpointName": "a" * 64})[:2] == [
        "CreateEndpoint: lacks EndpointConfigName",
        "CreateEndpoint.EndpointName: 64 is above 63",
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_environment_in_every_file_is_the_same_and_reads_back_as_the_plan(case: str) -> None:
    bundle = render(**CASES[case])
    env = bundle.json("environment.json")
    assert bundle.json("model.json")["PrimaryContainer"]["Environment"] == env
    container = bundle.json("plan.json")["container"]
    written = msgspec.convert(bundle.json("plan.json")["plan"], Plan)
    copies = written.replicas if container != "lmi" else 1
    expected = altered(
        written,
        engine=container_named(container).dialect,
        replicas=written.replicas // copies,
        data_parallel=written.data_parallel * copies,
    )
    assert parse_environment(container, env) == expected


# The trap: a container's own default of 32 sequences under a benchmark of 128.

SEQUENCES = {"lmi": "OPTION_MAX_ROLLING_BATCH_SIZE", "vllm": "SM_VLLM_MAX_NUM_SEQS"}


@pytest.mark.parametrize("container", SEQUENCES)
@pytest.mark.parametrize("concurrency", [32, 128, 700])
def test_what_was_benchmarked_at_a_concurrency_may_run_at_it(
    container: str, concurrency: int
) -> None:
    evidence = msgspec.structs.replace(MEASURED, concurrency=concurrency)
    bundle = render(altered(max_num_seqs=None), container=container, evidence=evidence)
    assert int(bundle.json("environment.json")[SEQUENCES[container]]) >= max(128, concurrency)
    assert any("left these open" in text and "max_num_seqs" in text for text in bundle.warnings)


@pytest.mark.parametrize("container", SEQUENCES)
def test_a_plan_with_nothing_chosen_is_written_out_all_the_same(container: str) -> None:
    env = render(Plan(model="gpt2", tensor_parallel=4), container=container).json(
        "environment.json"
    )
    plan = parse_environment(container, env)
    for field in (
        "max_num_seqs", "max_num_batched_tokens", "gpu_memory_fraction", "prefix_caching",
        "chunked_prefill",
    ):  # fmt: skip
        assert getattr(plan, field) is not None, field
    assert plan.tensor_parallel == 4


def test_fewer_sequences_than_each_copy_had_in_flight_is_reported() -> None:
    four = altered(tensor_parallel=1, replicas=4, max_num_seqs=31)
    assert any("below the 32 requests" in text for text in render(four).warnings)
    enough = altered(four, max_num_seqs=32)
    assert not any("in flight at concurrency" in text for text in render(enough).warnings)


def test_large_devices_get_vllms_larger_defaults() -> None:
    bundle = render(Plan(model="gpt2", tensor_parallel=8), instance=P5E, evidence=None)
    plan = parse_environment("lmi", bundle.json("environment.json"))
    assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (1024, 8192)


# Evidence, prices and warnings


def test_a_simulated_result_says_so_everywhere() -> None:
    bundle = render(evidence=msgspec.structs.replace(MEASURED, simulated=True, engine_version=None))
    assert "SIMULATED" in bundle.text("README.md").split("## Price")[0]
    assert any("SIMULATED" in text for text in bundle.warnings)
    assert bundle.json("plan.json")["simulated"] is True
    assert "SIMULATED" not in render().text("README.md")


def test_every_warning_is_in_the_readme_and_in_plan_json() -> None:
    bundle = render(altered(tensor_parallel=1, max_num_seqs=8), model_source="org/other")
    assert len(bundle.warnings) >= 3
    for text in bundle.warnings:
        assert text in bundle.text("README.md")
    assert bundle.json("plan.json")["warnings"] == list(bundle.warnings)


def test_the_price_has_source_date_and_a_cost_per_million_tokens() -> None:
    text = render().text("README.md")
    assert "$5.75 per hour" in text
    assert "2026-09-27; AWS Price List" in text
    # 5.752 / 3600 / 1471 * 1e6
    assert "a million output tokens cost $1.09" in text
    assert render().json("plan.json")["usd_per_million_output_tokens"] == pytest.approx(
        1.08618, 1e-4
    )
    assert "eu-west-1 may differ" in render(region="eu-west-1").text("README.md")


def test_an_engine_whose_version_is_not_known_warns_of_the_newest_image() -> None:
    measured = Evidence(results={"output_throughput": 1.0}, concurrency=8)
    (warning,) = [text for text in render(evidence=measured).warnings if "version" in text]
    assert "does not say which version of vllm" in warning
    assert "--image-tag" in warning
    named = render(evidence=measured, image_tag="0.36.0-lmi28.0.0-cu130")
    assert not [text for text in named.warnings if "which version" in text]


def test_an_unpriced_type_gets_no_made_up_cost() -> None:
    bundle = render(instance=P5E)
    readme = bundle.text("README.md")
    assert "No public price" in readme
    assert "$" not in readme.split("## Price")[1].split("## Deploy")[0]
    assert bundle.json("plan.json")["price"] is None
    assert bundle.json("plan.json")["usd_per_million_output_tokens"] is None


def test_idle_devices_are_counted_and_lmi_is_kept_from_filling_them() -> None:
    bundle = render(altered(tensor_parallel=1))
    assert any("3 of 4 devices" in text for text in bundle.warnings)
    assert bundle.json("environment.json")["SERVING_MAX_WORKERS"] == "1"


def test_a_tail_beyond_the_invocation_limit_is_reported() -> None:
    assert any("61 s" in text and "60 s" in text for text in render().warnings)


def test_non_finite_results_become_null() -> None:
    evidence = msgspec.structs.replace(MEASURED, results={"output_throughput": float("nan")})
    assert render(evidence=evidence).json("plan.json")["evidence"]["results"] == {
        "output_throughput": None
    }


# Names, images and hosts


def test_resource_names_are_safe_and_short() -> None:
    limit = service().shape_for("EndpointName")
    for text in ("Qwen/Qwen3-4B", "a" * 200, "--x--", "möd_el..v1", "", "a" * 55 + "/" + "b" * 40):
        name = resource_name(text)
        assert problems("DescribeEndpoint", {"EndpointName": name}) == [], (name, limit)
    assert resource_name("a" * 200) != resource_name("a" * 201)


def test_an_endpoint_name_of_63_characters_leaves_room_for_the_others() -> None:
    bundle = render(endpoint_name="e" * 63, role_arn=ROLE)
    for operation, file in REQUESTS.items():
        assert problems(operation, bundle.json(file)) == []


def test_other_settings_make_other_resources_and_equal_ones_the_same() -> None:
    names = [
        render(plan).json("endpoint.json")["EndpointConfigName"]
        for plan in (PLAN, altered(), altered(max_num_seqs=255))
    ]
    assert names[0] == names[1] != names[2]
    assert render() == render()


def test_the_image_follows_the_measured_engine_and_the_host_its_cuda() -> None:
    for version, tag, host in (
        ("0.11.1", "lmi17.0.0-cu128", "al2-ami-sagemaker-inference-gpu-3-1"),
        ("0.22.1", "lmi26.0.0-cu130", "al2023-ami-sagemaker-inference-gpu-4-1"),
    ):
        bundle = render(evidence=msgspec.structs.replace(MEASURED, engine_version=version))
        assert tag in bundle.json("model.json")["PrimaryContainer"]["Image"]
        variant = bundle.json("endpoint_config.json")["ProductionVariants"][0]
        assert variant["InferenceAmiVersion"] == host


def test_a_switched_off_feature_moves_the_choice_to_an_image_that_can_say_it() -> None:
    evidence = msgspec.structs.replace(MEASURED, engine_version="0.11.1")
    bundle = render(altered(prefix_caching=False), evidence=evidence)
    assert "lmi26" in bundle.json("model.json")["PrimaryContainer"]["Image"]
    assert any("0.11.1" in text and "0.22.1" in text for text in bundle.warnings)


def test_every_region_has_an_image() -> None:
    for region in regions():
        request = render(region=region, role_arn=ROLE).json("model.json")
        assert problems("CreateModel", request) == []
        assert f".{region}." in request["PrimaryContainer"]["Image"]


def test_the_time_out_grows_with_the_model_within_sagemakers_bounds() -> None:
    assert startup_timeout_s(None) == 1800
    assert startup_timeout_s(8e9) == 720
    assert startup_timeout_s(8e9, copies=4) == 1320
    assert startup_timeout_s(1e12) == 3600
    variant = render(startup_timeout_s=900).json("endpoint_config.json")["ProductionVariants"][0]
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == 900


def test_a_model_in_s3_is_mounted_by_sagemaker() -> None:
    bundle = render(model_source="s3://models/qwen")
    source = bundle.json("model.json")["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert source["S3Uri"] == "s3://models/qwen/"
    assert bundle.json("environment.json")["HF_MODEL_ID"] == "/opt/ml/model"


# Bad input: one clear line before anything is written


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"region": "us-east-9"}, UnknownName, "us-east-9"),
        ({"container": "triton"}, UnknownName, "triton"),
        ({"instance": msgspec.structs.replace(G6, name="4x L4")}, UnknownName, "type '4x L4'"),
        (
            {"plan": altered(tensor_parallel=8)},
            DeployError,
            "takes 8 devices, ml.g6.12xlarge has 4",
        ),
        ({"role_arn": "arn:aws:iam::12:role/x"}, DeployError, "not the ARN of a role"),
        ({"endpoint_name": "a" * 64}, DeployError, r"64 characters"),
        ({"endpoint_name": "my_endpoint"}, DeployError, "not a name that SageMaker takes"),
        ({"model_source": "/home/me/model"}, DeployError, "cannot reach the model"),
        ({"model_source": "s3://b"}, DeployError, "no S3 prefix"),
        ({"startup_timeout_s": 30}, DeployError, "60 to 3600"),
        ({"image_tag": "latest"}, DeployError, "does not tell"),
        ({"plan": altered(extra=(("hf_token", "secret"),))}, DeployError, "credential"),
    ],
)
def test_bad_input_is_one_clear_line(
    more: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        render(**more)
    assert "\n" not in str(caught.value)
    assert getattr(caught.value, "hint", "")


def test_the_role_is_in_the_request_once_it_is_given() -> None:
    assert "ExecutionRoleArn" not in render().json("model.json")
    assert render(role_arn=ROLE).json("model.json")["ExecutionRoleArn"] == ROLE


def test_a_planted_token_never_reaches_a_file() -> None:
    token = "hf_" + "Zz9" * 12
    evidence = msgspec.structs.replace(
        MEASURED,
        results={"cmd": f"vllm serve m --hf-token {token}", "env": {"HF_TOKEN": "plain-secret"}},
        source=f"journal with {token}",
    )
    bundle = render(evidence=evidence)
    everything = "".join(text for _, text in bundle.files)
    assert token not in everything
    assert "plain-secret" not in everything
    assert "[redacted]" in bundle.text("plan.json")
    with pytest.raises(DeployError) as caught:
        render(altered(model=f"org/{token}"))
    assert token not in str(caught.value)


def test_json_files_end_with_a_newline_and_hold_no_placeholder() -> None:
    bundle = render()
    for name, text in bundle.files:
        assert text.endswith("\n"), name
        if name.endswith(".json"):
            json.loads(text)
            assert "${" not in text


DRAFTING = [
    name
    for name, given in CASES.items()
    if given.get("plan", PLAN).engine in ("vllm", "simulated", "sglang", "tgi") and "plan" in given
]


@pytest.mark.parametrize("case", DRAFTING)
def test_drafted_tokens_reach_the_container_and_what_only_predicts_does_not(case: str) -> None:
    given = CASES[case]
    drafting = altered(
        given["plan"], draft_tokens=3, draft_method="ngram", draft_acceptance_fraction=0.5
    )
    environment = render(**{**given, "plan": drafting}).json("environment.json")
    assert not any("acceptance" in f"{name}{said}".lower() for name, said in environment.items())
    back = parse_environment(given["container"], environment)
    assert (back.draft_tokens, back.draft_method) == (3, "ngram")
