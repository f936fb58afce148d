"""Registry of deployments: what deploy, bench and register tell of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import servetune as st
from servetune.errors import DeployError, InputError
from servetune.store import Journal, TrialConfig, TrialRecord
from servetune.store.catalogue import catalogue_path
from servetune.store.register import read_register

pytest.importorskip("boto3", reason="boto3 is not installed (extra 'aws')")

from doubles import FakeAws

ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
NAME = "servetune-Qwen-Qwen3-4B"
RUN = "0123456789ab"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two measured trials of one run on four L4 GPUs."""
    path = tmp_path / "q.jsonl"
    with Journal(path, run=RUN) as journal:
        for concurrency in (16, 64):
            server_args = {
                "tensor_parallel_size": 1, "data_parallel_size": 4, "max_num_seqs": 64,
                "max_model_len": 4096, "max_num_batched_tokens": 8192,
            }  # fmt: skip
            journal.append(
                TrialRecord(
                    key=f"trial-{concurrency}",
                    config=TrialConfig(
                        server_args=server_args, client_args={"max_concurrency": concurrency}
                    ),
                    results={
                        "max_concurrency": concurrency, "output_throughput": 10.0 * concurrency,
                        "median_e2e_latency_ms": 1000.0, "completed": 500, "error_rate": 0.0,
                    },
                    metadata={
                        "model_tag": "Qwen/Qwen3-4B", "gpu_type": "L4", "gpu_count": 4,
                        "framework": "vllm", "instance_type": "ml.g6.12xlarge",
                    },
                    provenance={"engine_version": "0.22.1"},
                )
            )  # fmt: skip
    return path


def rows(**options: Any) -> list[Any]:
    return list(st.list_deployments(**options).rows)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """A double of AWS, to which everything in this process goes."""
    double = FakeAws(look_s=120.0)
    for name, value in double.environ.items():
        monkeypatch.setenv(name, value)
    double.control.quota["ml.g6.12xlarge"] = 4
    yield double
    double.close()


def test_an_endpoint_is_followed_from_its_bundle_to_its_end(
    journal: Path, fake: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.s3.put("bucket", "fr.tar.gz", b"")
    st.rebuild_runs(".")
    adapter = "fr=s3://bucket/fr.tar.gz"
    st.render(journal, out="b", copies=4, adapter=adapter)
    [row, of_adapter] = rows()
    assert (row.state, row.target, row.name, row.region) == (
        "rendered", "sagemaker", NAME, "us-east-1",
    )  # fmt: skip
    assert (row.run, row.trial, row.base) == (RUN, "trial-64", "Qwen/Qwen3-4B")
    assert (row.machine, row.usd_per_hour) == ("1x ml.g6.12xlarge", 5.752)
    assert "us-east-1" in row.price_source
    assert "djl-inference" in row.images[0]
    assert (of_adapter.adapter, of_adapter.base) == ("fr", "Qwen/Qwen3-4B")
    assert [each.adapter for each in rows(adapter="fr", base="qwen3")] == ["fr"]
    assert rows(base="llama") == rows(target="compose") == []

    st.apply("b", role_arn=ROLE, yes=True, poll_s=0)
    assert rows()[0].state == "serving"
    # Somebody elsewhere has the same rows from AWS alone.
    monkeypatch.setenv("SERVETUNE_HOME", str(Path("other").absolute()))
    st.register_deployment(NAME)
    for own, ours in zip(rows(), (row, of_adapter), strict=True):
        assert (own.base, own.engine, own.machine, own.usd_per_hour, own.images) == (
            ours.base, ours.engine, ours.machine, ours.usd_per_hour, ours.images,
        )  # fmt: skip
    assert rows(adapter="fr")[0].state == "registered"
    assert rows()[0].account == "123456789012"  # of the endpoint's ARN
    monkeypatch.setenv("SERVETUNE_HOME", str(Path("home").absolute()))
    st.render(journal, out="b", key="trial-16", copies=4, adapter=adapter)
    assert (rows()[0].trial, rows()[0].pending) == ("trial-64", "trial-16")
    assert [each.run for each in st.show_run(RUN).deployments] == [RUN, RUN]
    st.delete("b", poll_s=0)
    assert rows()[0].state == "deleted"


def test_a_change_a_load_test_and_an_end_by_name_are_told_of_the_same_endpoint(
    journal: Path, fake: FakeAws
) -> None:
    def figures() -> tuple[Any, ...]:
        return row.measurements, row.earlier_measurements, row.output_throughput

    st.render(journal, out="b")
    st.apply("b", role_arn=ROLE, yes=True, poll_s=0)
    record = st.bench(
        sagemaker=NAME, region="us-east-1", model="Qwen/Qwen3-4B", requests=2, input_tokens=8,
        output_tokens=4, concurrency=2, warmup=0, processes=1, out="load",
    ).record  # fmt: skip
    st.render(journal, out="b", key="trial-16")
    [row] = rows()
    assert (row.region, row.account) == ("us-east-1", "123456789012")
    assert figures() == (1, 0, record.results["output_throughput"])  # what waits is not in service

    st.update("b", role_arn=ROLE, yes=True, poll_s=0, hours=1e-6)
    [row] = rows()
    assert (row.state, row.trial, row.pending) == ("updated", "trial-16", "")
    assert figures() == (0, 1, None)
    assert "before a change" in str(st.list_deployments())
    [_, row] = rows(earlier=True)
    assert (row.state, row.trial) == ("earlier", "trial-64")
    assert figures() == (1, 0, record.results["output_throughput"])

    # A test against a bundle is of the bundle's configuration, whatever was last heard of.
    st.render(journal, out="b", key="trial-64")
    st.bench(sagemaker=NAME, region="us-east-1", against="b", requests=2, processes=1)
    [row] = rows()
    assert (row.trial, figures()[:2]) == ("trial-16", (0, 2))

    st.orphans(region="us-east-1", delete=True, poll_s=0)
    assert rows()[0].state == "updated"  # it is in service, and nobody named it
    st.orphans(region="us-east-1", delete=True, name=NAME, poll_s=0)
    assert rows()[0].state == "deleted"


def test_a_load_test_that_an_update_overtakes_is_of_neither_configuration(
    journal: Path, fake: FakeAws, caplog: Any
) -> None:
    from servetune.api.measured_deployments import deployment_under_load, note_measured
    from servetune.api.run_facts import facts_of
    from servetune.loadgen import Target
    from servetune.store.catalogue import Catalogue

    st.render(journal, out="b")
    st.apply("b", role_arn=ROLE, yes=True, poll_s=0)
    st.render(journal, out="b", key="trial-16")
    bench = st.Bench()
    asked = structs.replace(
        bench, endpoint=structs.replace(bench.endpoint, sagemaker=NAME, region="us-east-1")
    )
    deployment = deployment_under_load(asked, Target(base_url="http://127.0.0.1:1", model="m"))
    record = TrialRecord(config=TrialConfig(), results={"output_throughput": 640.0})
    st.update("b", role_arn=ROLE, yes=True, poll_s=0, hours=1e-6)
    note_measured(deployment, record, None, None)
    [row] = rows()
    assert (row.trial, row.measurements, row.earlier_measurements) == ("trial-16", 0, 1)
    assert f"{NAME} changed while it was measured" in caplog.text
    with Catalogue(facts_of) as index:
        assert [(each.changed, each.config) for each in index.measurements()] == [(True, "")]


def test_an_update_that_aws_rolls_back_is_told_as_failed(journal: Path, fake: FakeAws) -> None:
    st.render(journal, out="b")
    st.apply("b", role_arn=ROLE, yes=True, poll_s=0)
    st.render(journal, out="b", key="trial-16", copies=4)
    with pytest.raises(DeployError, match="an update cannot change"):
        st.update("b", role_arn=ROLE, yes=True, poll_s=0)
    assert rows()[0].state == "failed"


def test_an_endpoint_that_aws_refuses_is_no_deployment_that_serves(
    journal: Path, fake: FakeAws
) -> None:
    st.render(journal, out="b")
    fake.control.no_capacity.add("ml.g6.12xlarge")
    with pytest.raises(DeployError):
        st.apply("b", role_arn=ROLE, yes=True, poll_s=0)
    assert rows()[0].state == "failed"


def test_a_register_that_cannot_be_written_stops_no_deployment(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "file" / "home"))
    assert st.render(journal, target="compose", out="b").folder == Path("b")
    assert caplog.text.count("the catalogue does not learn of this") == 1
    st.render(journal, target="compose", out="b")
    assert (tmp_path / "b" / "compose.yaml").is_file()


def test_a_load_test_of_a_bundle_is_linked_to_it(journal: Path, tmp_path: Path) -> None:
    import asyncio
    import threading

    from servetune.testing import Behaviour, FakeServer

    st.render(journal, target="compose", out="b")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = FakeServer(Behaviour(model="Qwen/Qwen3-4B"))
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        st.bench(
            server.url, against="b", requests=4, input_tokens=8, output_tokens=4, out="proof",
            processes=1, copies=4,
        )  # fmt: skip
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
    [row] = rows()
    assert (row.target, row.state, row.measurements) == ("compose", "rendered", 1)
    assert row.reproduced is not None
    assert row.output_throughput
    [bench] = [each for each in st.list_runs().runs if each.verb == "bench"]
    assert row.measured_run == bench.run


def test_a_load_test_that_shows_nothing_is_neither_reproduced_nor_not(journal: Path) -> None:
    from servetune.api.measured_deployments import deployment_under_load, note_measured
    from servetune.loadgen import Target
    from servetune.report.baseline import compare_with_baseline

    st.render(journal, target="compose", out="b")
    record = TrialRecord(config=TrialConfig(), results={"output_throughput": 640.0})
    asked = structs.replace(
        st.Bench(), baseline=structs.replace(st.Bench().baseline, against=Path("b"))
    )
    deployment = deployment_under_load(asked, Target(base_url="http://127.0.0.1:1", model="m"))
    for baseline, reproduced in (({}, None), (dict(record.results), True)):
        compared = compare_with_baseline(baseline, dict(record.results))
        note_measured(deployment, record, compared, None)
        assert rows()[0].reproduced is reproduced
    assert not rows()[0].measured_simulated
    assert "SIMULATED" not in str(st.list_deployments())
    note_measured(deployment, structs.replace(record, simulated=True), None, None)
    assert next(iter(st.list_deployments().as_rows()))["measured_simulated"]
    assert " SIMULATED" in str(st.list_deployments())


def test_what_was_deployed_by_other_means_is_registered_with_its_trial(
    journal: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("servetune.api.registry.described", _refused)
    st.rebuild_runs(".")
    with pytest.raises(InputError, match=r"no folder 'by-hand', and AWS does not confirm"):
        st.register_deployment("by-hand")
    assert rows() == []
    made = st.register_deployment("by-hand", run=RUN, trial="1", force=True)
    assert (made.config.trial, made.config.model) == ("trial-16", "Qwen/Qwen3-4B")
    assert "registered by its name alone" in caplog.text
    [row] = rows(run=RUN)
    assert (row.name, row.state, row.trial) == ("by-hand", "registered", "trial-16")
    assert (
        st.register_deployment("by-hand", run=RUN, force=True).config.trial == "trial-64"
    )  # the pick
    for wrong in ({"run": RUN, "trial": "3"}, {"trial": "1"}, {"run": "nosuch"}):
        with pytest.raises(InputError):
            st.register_deployment("by-hand", force=True, **wrong)
    with pytest.raises(InputError, match="no bundle"):
        st.register_deployment("no/bundle")
    with pytest.raises(InputError, match="is no bundle"):
        st.register_deployment(".")
    with pytest.raises(InputError, match="--files is of runs"):
        st.remove_run("by-hand", files=True, yes=True)
    with pytest.raises(InputError, match=r"deployment by-hand \(registered\) from the registry"):
        st.remove_run("by-hand")
    st.remove_run("by-hand", yes=True)
    assert rows() == []
    catalogue_path().unlink()  # and it stays so when the catalogue is made again
    assert rows() == []


async def _refused(*_: Any) -> None:
    raise DeployError("AWS cannot be reached")


def test_a_model_package_has_the_container_and_the_trial_of_its_bundle(journal: Path) -> None:
    moto = pytest.importorskip("moto")
    import boto3

    with moto.mock_aws():
        st.render(journal, out="b")
        first = st.register_deployment("b", model_package="qwen-group")
        again = st.register_deployment("b", model_package="qwen-group")
        assert first.package is not None
        assert first.package.created
        assert again.package == structs.replace(first.package, created=False)
        client = boto3.client("sagemaker", region_name="us-east-1")
        listed = client.list_model_packages(ModelPackageGroupName="qwen-group")
        assert len(listed["ModelPackageSummaryList"]) == 1
        found = client.describe_model_package(ModelPackageName=first.package.arn)
    [container] = found["InferenceSpecification"]["Containers"]
    given = json.loads(Path("b/model.json").read_text())["PrimaryContainer"]
    assert container["Image"] == given["Image"]
    assert container["Environment"] == given["Environment"]
    types = found["InferenceSpecification"]["SupportedRealtimeInferenceInstanceTypes"]
    assert types == ["ml.g6.12xlarge"]
    about = found["CustomerMetadataProperties"]
    assert (about["servetune:run"], about["servetune:trial"]) == (RUN, "trial-64")
    assert about["servetune:output_throughput"] == "640"
    assert found["ModelApprovalStatus"] == "PendingManualApproval"
    [row] = rows()
    assert (row.model_package, row.state) == (first.package.arn, "registered")


def test_a_bundle_is_registered_with_trials_of_its_plan_alone(journal: Path) -> None:
    st.render(journal, target="compose", out="c")
    with Journal(journal, run=RUN, resume=True) as more:
        whole = json.loads(journal.read_text("utf-8").splitlines()[-1])
        settings = {**whole["config"]["server_args"], "max_num_seqs": 32}
        other = TrialConfig(server_args=settings, client_args={"max_concurrency": 128})
        results = {"max_concurrency": 128, "output_throughput": 9999.0, "completed": 500}
        more.append(
            TrialRecord(key="trial-128", config=other, results=results, metadata=whole["metadata"])
        )
    st.rebuild_runs(".")
    before = len(read_register().entries)
    with pytest.raises(InputError, match=r"'c' does not serve what trial 3 .*max_num_seqs=32") as e:
        st.register_deployment("c", run=RUN, trial="3")
    assert "leave --trial out" in e.value.hint
    Path("c/trial.jsonl").rename("kept")  # as bundles of earlier versions are
    with pytest.raises(InputError, match="does not serve"):
        st.register_deployment("c", run=RUN, trial="3")
    assert st.register_deployment("c", run=RUN, trial="1").config.trial == "trial-16"
    Path("kept").rename("c/trial.jsonl")
    assert len(read_register().entries) == before + 1
    assert st.register_deployment("c", run=RUN).config.trial == "trial-64"  # not the run's pick


def test_a_service_off_sagemaker_has_no_model_package(journal: Path) -> None:
    st.render(journal, target="compose", out="c")
    before = len(read_register().entries)
    with pytest.raises(InputError, match="of compose"):
        st.register_deployment("c", model_package="group")
    assert len(read_register().entries) == before
