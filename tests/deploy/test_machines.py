"""Copies of a bundle, the machines that they are on, and what `bench --against` expects of them."""

import msgspec
import pytest
from aws_kit import components, endpoint
from rendered import MODEL, RENDER, served, tuned

import servetune as st
from servetune.api.bench_baseline import reproducing
from servetune.api.request import request_of
from servetune.deploy import render_sagemaker, write
from servetune.deploy.from_trial import TRIAL_FILE
from servetune.deploy.pods import ClusterOptions
from servetune.hardware import instance
from servetune.perf.copies import host_fraction
from servetune.plan import Plan
from servetune.store import TrialConfig, TrialRecord

#: 100 tokens a second of one copy under eight users.
TRIAL = TrialRecord(
    key="one",
    plan=Plan(model=MODEL),
    config=TrialConfig(client_args={"max_concurrency": 8, "num_prompts": 40}),
    results={"max_concurrency": 8, "completed": 40, "failed": 0, "output_throughput": 100.0},
    metadata={"model_tag": "m"},
)


def cluster(target, *options, device="L4", **fields):
    return RENDER[target](served(tuned("vllm", **fields), device=device), *options)


BUNDLES = {
    "one node": (8, 1, lambda: cluster("kubernetes", tensor_parallel=1, replicas=8)),
    "small nodes": (
        16, 4,
        lambda: cluster("kserve", ClusterOptions(gpus_per_node=4), tensor_parallel=1, replicas=16),
    ),
    "groups of nodes": (
        4, 8,
        lambda: cluster(
            "kubernetes", device="H100", tensor_parallel=8, pipeline_parallel=2, replicas=4
        ),
    ),
    "instances": (
        4, 2,
        lambda: render_sagemaker(endpoint(components(copies=4, instance_count=2))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUNDLES)
def test_only_copies_of_one_machine_take_from_each_other(tmp_path, name):
    copies, machines, made = BUNDLES[name]
    folder = tmp_path / "bundle"
    write(made(), folder)
    (folder / TRIAL_FILE).write_bytes(TRIAL.to_json() + b"\n")
    _, expected = reproducing(
        request_of(st.Bench, None, {"urls": ["http://fleet:8000"], "against": folder, "model": "m"})
    )
    assert expected.results["max_concurrency"] == 8 * copies
    per_copy = expected.results["output_throughput"] / copies
    assert per_copy == pytest.approx(100 * host_fraction(copies / machines))


def test_a_cluster_of_many_machines_costs_each_of_them():
    """Eight copies on two instances: eight times one, less what four on one cost each other."""
    made = served(tuned("vllm", tensor_parallel=1, replicas=8))
    made = msgspec.structs.replace(
        made, node=instance("g6.12xlarge"), measured_copies=1,
        evidence=msgspec.structs.replace(made.evidence, results={"output_throughput": 100.0}),
    )  # fmt: skip
    text = RENDER["kubernetes"](made).text("README.md")
    per_s = 800 * host_fraction(4)
    assert f"8 copies on 2 machines do {host_fraction(4):.1%} of what they would alone" in text
    price = 2 * instance("g6.12xlarge").price.usd_per_hour / 3600 / per_s * 1e6
    assert f"A million output tokens then cost ${price:.2f} on g6.12xlarge" in text
