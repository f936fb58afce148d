"""What the files of a deployment say beside its requests."""

import os
from pathlib import Path
from typing import Any

import pytest
from aws_kit import G6, NAME, components, endpoint

from servetune.deploy import Bundle, Evidence, render_sagemaker
from servetune.deploy.hosting import Adapter, Hosting, Scaling, parse_routing
from servetune.hardware import instance
from servetune.plan import Plan

GOLDEN = Path(__file__).parent.parent / "golden" / "sagemaker"
MEASURED = Evidence(
    results={"output_throughput": 1471.0}, concurrency=128, engine_version="0.22.1",
    source="q.jsonl, trial 0123456789abcdef",
)  # fmt: skip
ONE_COPY = Plan(
    model="Qwen/Qwen3-4B", tensor_parallel=2, max_num_seqs=128, max_model_len=4096,
    max_num_batched_tokens=8192, gpu_memory_fraction=0.9, prefix_caching=True,
    chunked_prefill=True,
)  # fmt: skip

CASES: dict[str, tuple[Hosting, dict[str, Any]]] = {
    "hosted-components": (
        components(
            adapters=(Adapter(name="fr", artifact_url="s3://bucket/fr.tar.gz"),),
            scaling=Scaling(minimum=0, maximum=8, requests_per_copy=51.2),
        ),
        {"plan": ONE_COPY},
    ),
    "hosted-pools": (
        Hosting(
            instance_types=(G6, "ml.g5.12xlarge"),
            instance_count=2,
            scaling=Scaling(minimum=1, maximum=4, requests_per_copy=102.4),
            routing=parse_routing("prefix-aware:4096:64"),
            provision_timeout_s=600,
        ),
        {},
    ),
    "hosted-reserved": (
        Hosting(
            instance_types=(G6,),
            instance_count=2,
            reservation_arn="arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine",
        ),
        {},
    ),
}


def hosted(hosting: Hosting, **more: Any) -> Bundle:
    nodes = tuple(instance(name, service="sagemaker") for name in hosting.instance_types)
    return render_sagemaker(endpoint(hosting, nodes=nodes, evidence=MEASURED, **more))


@pytest.mark.parametrize("case", CASES)
def test_bundles_are_as_recorded(case: str) -> None:
    """Set SERVETUNE_WRITE_GOLDEN=1 to record them anew, and read the difference."""
    hosting, more = CASES[case]
    made = hosted(hosting, **more)
    folder = GOLDEN / case
    names = ("README.md", "deployment.json")
    if os.environ.get("SERVETUNE_WRITE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_text(made.text(name), "utf-8")
    assert {name: made.text(name) for name in names} == {
        name: (folder / name).read_text("utf-8") for name in names
    }


@pytest.mark.parametrize("case", CASES)
def test_every_file_says_the_same_as_the_deployment(case: str) -> None:
    hosting, more = CASES[case]
    made = hosted(hosting, **more)
    steps = {step["kind"]: step["request"] for step in made.json("deployment.json")["steps"]}
    assert made.json("model.json") == steps["model"]
    assert made.json("endpoint_config.json") == steps["endpoint-config"]
    assert made.json("endpoint.json") == steps["endpoint"]
    assert sorted(made.json("plan.json")["files"]) == sorted(made.names)
    assert "deployment.json" in made.text("README.md")


def test_the_readme_says_what_a_user_does_next_and_what_all_of_it_costs() -> None:
    hosting, more = CASES["hosted-components"]
    text = hosted(hosting, **more).text("README.md")
    for part in (
        "servetune bench --against BUNDLE",
        "servetune deploy apply BUNDLE",
        "servetune deploy delete BUNDLE",
        f"/aws/sagemaker/InferenceComponents/{NAME}-base --region",
        f"`{NAME}-fr` from `s3://bucket/fr.tar.gz`",
        "0 to 8 copies, one more above 51.2 requests in flight each",
        "at most $23.01 an hour for 4 instances (us-east-1, 2026-",
    ):
        assert part in text, part


def test_an_unpriced_type_makes_the_cost_unknown() -> None:
    text = hosted(Hosting(instance_types=("ml.p5e.48xlarge",))).text("README.md")
    assert "cost not known" in text
