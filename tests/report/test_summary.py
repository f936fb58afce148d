from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
import report_records as factory
from report_golden import assert_golden

import servetune as st
from servetune.errors import SchemaTooNew, StoreError
from servetune.metrics import parse_constraints
from servetune.models import load_config
from servetune.report import records_from_summary, summary, summary_json
from servetune.report.summary import simulated_accuracy
from servetune.store.schema import TrialConfig

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def shape(value):
    """Names and kinds of a document, lists by their first element."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def test_the_document_has_the_names_that_scripts_read():
    assert_golden(
        "summary_shape.json",
        json.dumps(shape(json.loads(summary_json(factory.sweep(), LIMITS))), indent=1) + "\n",
    )


def test_the_best_configurations_and_their_constrained_twins():
    best = summary(factory.sweep(), LIMITS)["best_configurations"]
    assert set(best) == {
        f"best_{kind}_throughput{twin}"
        for kind in ("output", "input", "request")
        for twin in ("", "_constrained")
    }
    free, held = best["best_output_throughput"], best["best_output_throughput_constrained"]
    assert set(free) == {"throughput", "config", "cmd"}
    assert free["config"]["client_args"]["max_concurrency"] == 128
    assert held["config"]["client_args"]["max_concurrency"] == 64
    assert free["throughput"] > held["throughput"]
    assert "--tensor-parallel-size=4" in held["cmd"]


def test_where_nothing_meets_the_constraints_the_twin_is_null():
    document = summary(factory.sweep(), parse_constraints("ttft<1ms"))
    assert document["best_configurations"]["best_output_throughput_constrained"] is None
    assert document["recommended"]["throughput"]["feasible"] is False


def test_equal_records_give_equal_bytes_whatever_the_order_of_their_settings():
    one = factory.sweep()
    turned = [
        msgspec.structs.replace(
            r,
            config=TrialConfig(
                server_args=dict(reversed(r.config.server_args.items())),
                client_args=r.config.client_args,
                server_cmd_args=r.config.server_cmd_args,
            ),
        )
        for r in factory.sweep()
    ]
    assert one == turned
    assert summary_json(one, LIMITS) == summary_json(turned, LIMITS)


def test_the_metadata_counts_failures_and_says_what_was_simulated():
    metadata = summary(factory.sweep(), LIMITS)["metadata"]
    assert (metadata["total_tests"], metadata["failed_tests"]) == (27, 2)
    assert metadata["simulated"] is True
    assert summary(factory.measured(), LIMITS)["metadata"]["simulated"] is False
    both = [*factory.sweep(), *factory.measured()]
    assert summary(both, LIMITS)["metadata"]["simulated"] == "mixed"


def test_numbers_that_are_not_finite_are_null():
    record = factory.record()
    odd = msgspec.structs.replace(
        record, results={**record.results, "mean_ttft_ms": float("nan"), "goodput": float("inf")}
    )
    text = summary_json([odd], ()).decode()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["test_results"][0]["results"]["goodput"] is None


def test_an_empty_run_has_a_summary_too():
    document = json.loads(summary_json([], LIMITS))
    assert document["metadata"]["total_tests"] == 0
    assert document["recommended"]["cost"]["key"] is None
    assert document["test_results"] == []


def test_a_summary_is_read_back_without_loss():
    records = factory.sweep()
    assert records_from_summary(json.loads(summary_json(records, LIMITS))) == records


def test_another_tools_summary_lends_its_metadata_to_silent_records():
    row = {**factory.foreign_json(), "metadata": {}}
    raw = {
        "metadata": {
            "gpu_type": "NVIDIA L4",
            "gpu_count": 4,
            "model_tag": "m",
            "constraints": [{"name": "p99_ttft_ms", "op": "<", "value": 500}],
        },
        "best_configurations": {},
        "test_results": [row],
    }
    (record,) = records_from_summary(raw)
    assert record.metadata == {"gpu_type": "NVIDIA L4", "gpu_count": 4, "model_tag": "m"}
    assert [c.label for c in record.limits()] == ["ttft:p99<500ms"]
    assert not record.simulated


def test_single_records_and_lists_are_read():
    raw = factory.foreign_json()
    assert records_from_summary(raw) == records_from_summary([raw])


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"a": 1}, "neither a summary nor trial records"),
        ("text", "neither a summary nor trial records"),
        ({"test_results": 3}, "'test_results' is not a list"),
        ({"test_results": [1]}, "test_results[0]: not a trial record"),
        ([{"config": {}, "results": {}}, {}], "record 2: not a trial record"),
    ],
)
def test_what_is_no_summary_is_refused_with_its_place(raw, said):
    with pytest.raises(StoreError) as caught:
        records_from_summary(raw)
    assert said in caught.value.message
    assert str(caught.value) == caught.value.message


def test_a_newer_schema_is_refused():
    with pytest.raises(SchemaTooNew):
        records_from_summary({**factory.foreign_json(), "servetune_schema": 99})


def test_the_published_records_keep_every_value():
    shared = Path(os.environ.get("SERVETUNE_SHARED") or Path(__file__).parents[3] / "shared")
    path = shared / "data" / "aws_l4_records.jsonl"
    if not path.exists():
        pytest.skip("the published records are not beside this checkout")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    document = json.loads(summary_json(records_from_summary(rows), LIMITS))
    for row, kept in zip(rows, document["test_results"], strict=True):
        assert kept["results"] == row["results"]
        assert kept["config"] == row["config"]
        assert kept["metadata"] == row["metadata"]
    best = document["best_configurations"]
    assert best["best_output_throughput"]["config"]["client_args"]["max_concurrency"] == 128
    assert (
        best["best_output_throughput_constrained"]["config"]["client_args"]["max_concurrency"] == 64
    )


@pytest.mark.parametrize("model", ["Qwen/Qwen3-4B", "Qwen/Qwen3-4B-AWQ", "unsloth/Qwen3-4B"])
def test_accuracy_is_told_of_every_name_that_the_catalogue_reads(model):
    record = st.simulate(model, gpu="L4", concurrency=2, requests=4, output_tokens=4).record
    assert "measured rows" in simulated_accuracy([record])


def test_accuracy_is_what_a_trial_recorded_also_of_a_folder_or_a_device_of_ones_own(tmp_path):
    config = load_config("Qwen/Qwen3-4B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    load = {"concurrency": 2, "requests": 4, "output_tokens": 4, "max_model_len": 8192}
    record = st.simulate(str(tmp_path), gpu="L4", **load).record
    assert "measured rows" in simulated_accuracy([record])
    metadata = {**record.metadata, "gpu_type": "a device that nobody described"}
    elsewhere = msgspec.structs.replace(record, metadata=type(record.metadata)(metadata))
    assert simulated_accuracy([elsewhere]) == simulated_accuracy([record])
    old = msgspec.structs.replace(elsewhere, interval=None)
    assert simulated_accuracy([old]) == ""
