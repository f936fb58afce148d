"""Deployment and staging from Python: the same decisions as on the command line."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import servetune as st
from servetune.api.request import checked, to_toml
from servetune.errors import InputError, PlanError, UnknownName
from servetune.plan import Plan
from servetune.store import Journal, TrialConfig, TrialRecord, read_journal


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two trials on four L4 GPUs; the second has the higher throughput."""
    path = tmp_path / "q.jsonl"
    with Journal(path) as journal:
        for concurrency in (16, 64):
            plan = Plan(model="Qwen/Qwen3-4B", tensor_parallel=4, max_num_seqs=concurrency)
            journal.append(
                TrialRecord(
                    key=f"trial-{concurrency}",
                    plan=plan,
                    config=TrialConfig(server_args={"max_num_seqs": concurrency}),
                    results={
                        "max_concurrency": concurrency,
                        "output_throughput": 10.0 * concurrency,
                        "median_e2e_latency_ms": 1000.0,
                    },
                    metadata={
                        "model_tag": "Qwen/Qwen3-4B", "gpu_type": "NVIDIA L4", "gpu_count": 4,
                        "framework": "vllm",
                    },
                    provenance={"engine_version": "0.26.0"},
                )
            )  # fmt: skip
    return path


def test_the_best_trial_is_rendered_in_memory(journal: Path) -> None:
    rendered = st.render(journal, dry_run=True, instances=2)
    assert isinstance(rendered, st.RenderedEndpoint)
    assert (rendered.trial.key, rendered.folder) == ("trial-64", None)
    assert rendered.endpoint.hosting.instance_count == 2
    assert rendered.deployment.only("model").request["Tags"]
    assert [path.name for path in journal.parent.iterdir()] == ["q.jsonl"]


@pytest.mark.parametrize("target", ["sagemaker", "compose"])
def test_how_sure_the_choice_is_goes_along_with_the_bundle(tmp_path: Path, target: str) -> None:
    tuned = st.tune(
        "Qwen/Qwen3-4B",
        engine="simulated",
        gpu="L4",
        server_args="max_num_seqs=[4,64]",
        client_args="num_prompts=16;max_concurrency=8",
        output_json=tmp_path / "q.json",
    )
    bundle = st.render(tuned.artifacts.journal, target=target, dry_run=True).bundle
    verdict = tuned.search.doubt.verdict
    assert verdict.endswith("by predictions alone")
    assert f"Choice of this plan: {verdict}" in dict(bundle.files)["README.md"]
    assert verdict in bundle.json("plan.json")["evidence"]["doubt"]
    tuned.artifacts.summary.unlink()
    alone = st.render(tuned.artifacts.journal, target=target, dry_run=True).bundle
    assert alone.json("plan.json")["evidence"]["doubt"] == ""


def test_a_request_is_rendered_as_its_fields_are(journal: Path) -> None:
    request = st.ComposeDeployment(source=journal, out=journal.parent / "a", port=9000)
    first = st.render(request)
    second = st.render(str(journal), target="compose", out=str(journal.parent / "b"), port=9000)
    assert first.bundle == second.bundle
    for folder in "ab":
        text = (journal.parent / folder / "compose.yaml").read_text("utf-8")
        assert '"9000"' in text
    changed = st.render(request, port=9001, dry_run=True)
    assert '"9001"' in changed.bundle.text("compose.yaml")


@pytest.mark.parametrize("kind", [st.SageMakerDeployment, st.KubernetesDeployment])
def test_a_written_configuration_repeats_the_request(journal: Path, kind: type[st.Request]) -> None:
    from servetune.api.request import read_config

    request = checked(kind, {"source": journal, "out": Path("x"), "constraints": "ttft:p99<=1s"})
    file = journal.parent / "run.toml"
    file.write_text(to_toml(request), "utf-8")
    assert checked(kind, read_config(file, kind)) == request


@pytest.mark.parametrize("target", ["sagemaker", "kubernetes", "compose"])
def test_a_storage_that_the_checkpoint_lacks_is_not_rendered(journal: Path, target: str) -> None:
    trial = structs.replace(
        read_journal(journal)[-1], plan=Plan(model="Qwen/Qwen3-4B", quantization="awq")
    )
    narrow = journal.with_name("narrow.jsonl")
    with Journal(narrow) as opened:
        opened.append(trial)
    with pytest.raises(PlanError) as caught:
        st.render(narrow, target=target, dry_run=True)
    assert "Qwen/Qwen3-4B-AWQ" in caught.value.hint


def test_an_unknown_target_or_option_is_named(journal: Path) -> None:
    with pytest.raises(UnknownName, match="nomad"):
        st.render(journal, target="nomad")
    with pytest.raises(UnknownName, match="autoscaler"):
        st.render(journal, target="compose", autoscaler="hpa")
    with pytest.raises(InputError, match="needs a folder"):
        st.render(journal)


def test_what_was_checked_and_its_cost_are_values(journal: Path) -> None:
    rendered = st.render(journal, plan=True, hours=10)
    assert isinstance(rendered, st.RenderedEndpoint)
    report = rendered.report()
    assert report.stops == ()
    assert report.total_usd == pytest.approx(57.52)


def test_a_bundle_is_applied_and_deleted_where_a_loop_runs_already(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubles = pytest.importorskip("doubles", reason="boto3 is not installed (extra 'aws')")
    double = doubles.FakeAws(look_s=120.0)
    for name, value in double.environ.items():
        monkeypatch.setenv(name, value)
    double.control.quota["ml.g6.12xlarge"] = 4
    bundle = journal.parent / "bundle"
    told: list[str] = []
    role = "arn:aws:iam::123456789012:role/SageMakerExecution"

    async def notebook() -> None:
        st.render(journal, out=bundle, endpoint_name="qwen")
        with pytest.raises(InputError, match="nobody agreed to it") as refused:
            st.apply(bundle, role_arn=role)
        assert "yes=True" in refused.value.hint
        with pytest.raises(InputError, match="above --max-hourly"):
            st.apply(bundle, role_arn=role, yes=True, max_hourly_usd=5)
        st.apply(bundle, role_arn=role, poll_s=0, yes=True, on_progress=told.append)
        assert st.status(str(bundle)).serves
        assert st.update(bundle, role_arn=role, poll_s=0).changes == ()
        assert st.orphans() == ()
        assert "deleted endpoint qwen" in st.delete(str(bundle), poll_s=0).changes
        assert not st.status("qwen").rows

    try:
        asyncio.run(notebook())
    finally:
        double.close()
    assert any("InService" in line for line in told)


def test_the_files_of_a_model_are_listed_before_they_are_staged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    plan = st.plan_staging(str(tmp_path), where="s3://bucket/model/")
    assert [each.path for each in plan.files] == ["config.json", "model.safetensors"]
    assert plan.total_bytes == 7
    request = st.Staging(model="Qwen/Qwen3-4B", where="s3://bucket/model/", as_job=True)
    role = "arn:aws:iam::123456789012:role/SageMakerExecution"
    job = st.plan_staging(structs.replace(request, role_arn=role)).job
    assert job is not None
    assert job["RoleArn"] == role
