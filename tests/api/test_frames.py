"""Data frames: every result that lists things has one."""

import sys

import pytest

import servetune as st
from servetune import api
from servetune.api.registry import DeployedRow
from servetune.deploy.aws.status import Row
from servetune.deploy.staging import ModelFile, place
from servetune.errors import InputError
from servetune.store.catalogue_rows import RunRow, TrialRow

MODEL = "Qwen/Qwen3-4B"
MEASURED = "examples/published/qwen3-4b-4xl4.jsonl"

#: Results without a frame, with the reason.
WITHOUT = {
    "DescribedDevice": "one device",
    "Explanation": "one choice, in words",
    "FleetDay": "one day; FleetPlan.df has what it needs",
    "FleetLevel": "one row of FleetPlan.df",
    "KeptResult": "one calibration",
    "MlflowLogger": "a callback",
    "Pick": "one trial, and the limits it is judged by",
    "PlannedServer": "one server; StudyResult.df has its loads",
    "PlannedTime": "one figure",
    "RunProgress": "one moment",
    "Rendered": "files",
    "RenderedEndpoint": "files",
    "Rebuilt": "counts",
    "Registered": "one deployment; DeploymentList.df has all",
    "Reported": "files; Trials.df has what they are about",
    "SimulationProgress": "one moment",
    "TrialDone": "one trial",
    "Finding": "one row of Checkup.df",
    "Machine": "options",
    "Rent": "options",
}


def results():
    for name in api.__all__:
        kind = getattr(api, name)
        if isinstance(kind, type) and not issubclass(kind, st.Request):
            yield name, kind


def test_every_result_that_lists_things_has_a_frame():
    without = {name for name, kind in results() if not hasattr(kind, "df")}
    assert without == WITHOUT.keys()


def made():
    """One result of each kind that is cheap to make, with the number of its rows."""
    checkup = st.doctor()
    yield checkup, len(checkup.findings)
    yield st.CalibrationNames(names=("a", "b")), 2
    yield st.EndpointChange(endpoint="e", changes=("deleted x",)), 1
    row = Row(kind="endpoint", name="e", status="InService")
    yield st.EndpointStatus(endpoint="e", region="us-east-1", rows=(row, row)), 2
    file = ModelFile(path="a", file="b", size_bytes=3)
    yield st.StagingPlan(where=place("s3://bucket/x/"), region="us-east-1", files=(file,)), 1
    suggested = st.calibrate(st.Calibrate(suggest=True, model=MODEL), gpu="L4", runs=2)
    yield suggested, 2
    compared = st.simulate(MODEL, compare=MEASURED)
    yield compared, sum(len(each["gaps"]) for each in compared.to_json()["trials"])
    layouts = st.study_layouts(MEASURED, instances="1,2")
    yield layouts, len(layouts.rows)
    planned = st.tune(
        MODEL, engine="simulated", gpu="L4", server_args={"max_num_seqs": [8, 16]},
        concurrency=[1, 2, 3], dry_run=True,
    )  # fmt: skip
    yield planned, 6
    run = st.simulate(MODEL, gpu="L4", concurrency=2, requests=5)
    yield run, 5
    index_row = RunRow(run="aa", path="/q.jsonl", tags={"best": "", "release": "1.2"})
    yield st.RunList(runs=(index_row, RunRow(run="bb", path="/r.jsonl")), known=2), 2
    trials = tuple(TrialRow(run="aa", number=number, key="k") for number in (1, 2))
    yield st.RunDetails(run=index_row, pick=None, trials=trials, deployments=()), 2
    place_of = {"deployment": "cc", "target": "compose", "name": "m", "region": "", "state": "x"}
    deployed = DeployedRow(**place_of, base="m", images=("a", "b"))
    yield st.DeploymentList(rows=(deployed,), known=1), 1
    ranking = st.estimate(MODEL, gpu="L4", sweep=True, top=3)
    yield ranking, len(ranking.ranked)
    found = st.read(MEASURED)
    yield found, len(found)


def test_a_frame_has_a_row_for_each_thing_and_a_column_for_each_field():
    found = {type(result).__name__: (result, count) for result, count in made()}
    for result, count in found.values():
        assert len(result.df) == count > 0, result
        assert result.polars.shape == result.df.shape
        assert len(list(result.as_rows())) == count
        assert result._repr_html_().count("<tr>") >= min(count, 20)
    assert list(found["Checkup"][0].df.columns) == ["level", "subject", "message", "hint"]
    assert set(found["EndpointStatus"][0].df["status"]) == {"InService"}
    assert {"plan", "concurrency"} <= set(found["SuggestedRuns"][0].df.columns)
    assert {"quantity", "statistic", "error_fraction"} <= set(
        found["SimulationComparison"][0].df.columns
    )
    assert sorted(found["StudyResult"][0].df["client.max_concurrency"]) == [1, 1, 2, 2, 3, 3]


def test_a_frame_without_pandas_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="a data frame needs pandas") as missing:
        _ = st.CalibrationNames(names=()).df
    assert missing.value.hint == "pip install 'servetune[pandas]'"
