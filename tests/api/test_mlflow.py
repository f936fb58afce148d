"""Studies in MLflow's file store; a server that fails costs nothing."""

import socket

import pytest

import servetune as st
from servetune.errors import InputError

QUICK = {
    "model": "Qwen/Qwen3-4B",
    "gpu": "L4",
    "num_gpus": 2,
    "engine": "simulated",
    "server_args": "tensor_parallel_size=[1,2]",
    "concurrency": [2, 4],
    "requests": 20,
    "input_tokens": 64,
    "output_tokens": 16,
}


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("mlflow", reason="pip install 'servetune[mlflow]', which is large")
    return tmp_path / "mlruns"


def runs_of(store, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("servetune")
    return client, client.search_runs([experiment.experiment_id])


@pytest.mark.filterwarnings("default")
def test_a_study_is_a_run_with_a_nested_run_for_each_trial(store, tmp_path, monkeypatch):
    found = st.tune(**QUICK, output_json=tmp_path / "q.json", mlflow=str(store))
    client, runs = runs_of(store, monkeypatch)
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    nested = {run.data.tags["servetune.key"]: run for run in runs if run is not parent}
    assert set(nested) == {record.key for record in found.trials}
    for record in found.trials:
        run = nested[record.key]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["servetune.simulated"] == "true"
        assert run.data.metrics["output_throughput"] == record.results.output_throughput
        assert run.data.params["server.tensor_parallel_size"] in "12"
        assert run.data.params["client.max_concurrency"] in "24"
        assert run.info.status == "FINISHED"
    assert (parent.info.run_name, parent.info.status) == ("q", "FINISHED")
    assert parent.data.tags["servetune.simulated"] == "true"
    files = {each.path for each in client.list_artifacts(parent.info.run_id)}
    assert files == {"q.jsonl", "q.json", "q.html"}


@pytest.mark.filterwarnings("default")
def test_a_server_that_is_not_there_costs_one_note(store, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with caplog.at_level("WARNING", logger="servetune"):
        found = st.tune(**QUICK, output_json=tmp_path / "q.json", mlflow=f"http://127.0.0.1:{port}")
    assert len(found.trials) == 4
    notes = [each for each in caplog.records if "MLflow" in each.getMessage()]
    assert len(notes) == 1


def test_without_the_package_nothing_is_begun(tmp_path, monkeypatch):
    from servetune.api import mlflow_logging

    monkeypatch.setattr(mlflow_logging.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError) as told:
        st.tune(**QUICK, output_json=tmp_path / "q.json", mlflow="mlruns")
    assert "servetune[mlflow]" in told.value.hint
    assert list(tmp_path.iterdir()) == []
