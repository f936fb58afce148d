"""Results and metadata: typed to read, and exactly as they were written."""

import copy
import json
import pickle

import pytest

from servetune.store import Metadata, Results, record_from_json

LINE = {
    "config": {"client_args": {}, "server_args": {}, "server_cmd_args": []},
    "results": {"zeta": 1, "output_throughput": 12, "duration": 2.5, "completed": "8"},
    "cmd": "vllm serve m",
    "constraints": [],
    "metadata": {"model_tag": "m", "their_field": [1, {"a": None}], "gpu_count": None},
}


def test_fields_are_read_under_names_with_units_whatever_llm_optimizer_calls_them():
    record = record_from_json(LINE)
    assert record.results.duration_s == 2.5
    assert record.results.output_throughput == 12.0
    assert record.results.completed == 8  # other tools write numbers as text
    assert record.metadata.model == "m"


def test_unknown_fields_and_their_order_are_written_as_they_were_read():
    written = json.loads(record_from_json(LINE).to_json())
    assert json.dumps(written["results"]) == json.dumps(LINE["results"])
    assert json.dumps(written["metadata"]) == json.dumps(LINE["metadata"])


@pytest.mark.parametrize("value", [None, "many", [1], {"a": 1}])
def test_a_field_of_another_type_is_none(value):
    assert Results(output_throughput=value).output_throughput is None


def test_a_field_that_is_absent_is_none_and_not_nought():
    assert Results().output_throughput is None
    assert Metadata().gpu_count is None
    assert Results(output_throughput=0).output_throughput == 0.0


def test_they_do_not_change():
    results = Results(completed=1)
    for change in (
        lambda: results.update(completed=2),
        lambda: results.__setitem__("completed", 2),
        lambda: results.pop("completed"),
        results.clear,
    ):
        with pytest.raises(TypeError, match="do not change"):
            change()
    assert results.with_fields(failed=2) == {"completed": 1, "failed": 2}
    assert results == {"completed": 1}


def test_they_travel_between_processes():
    results = Results(completed=1)
    for other in (pickle.loads(pickle.dumps(results)), copy.deepcopy(results)):
        assert (type(other), other) == (Results, results)


def test_parts_are_values():
    results = Results(saturation={"saturated": True, "words": "the queue grew"})
    assert results.saturation.saturated
    assert Results(saturation={"words": "no verdict"}).saturation is None
