import pytest

from servetune.errors import StoreError
from servetune.store import record_from_json, trial_key
from servetune.store.schema import SCHEMA

#: What llm-optimizer writes: neither a key nor anything else of ours.
FOREIGN = {
    "config": {"server_args": {"tp": 2}, "client_args": {"max_concurrency": 8}},
    "results": {"backend": "sglang", "duration": 1.5},
    "metadata": {"model_tag": "org/model", "gpu_type": "L4", "gpu_count": 2},
}


def test_a_key_is_the_same_in_every_release():
    same = {"model": "m", "engine": "vllm", "server_args": {"a": 1}, "client_args": {"b": 2}}
    assert trial_key(**same) == "05d25a56db95daeb"
    keys = {
        trial_key(**{**same, **change})
        for change in (
            {}, {"model": "n"}, {"engine": "tgi"}, {"server_args": {}}, {"client_args": {}},
            {"node": "8xH100"}, {"simulated": True},
        )
    }  # fmt: skip
    assert len(keys) == 7


def test_another_tools_record_has_the_key_of_what_it_tried():
    key = record_from_json(FOREIGN).key
    assert key == trial_key(
        model="org/model",
        engine="sglang",
        server_args={"tp": 2},
        client_args={"max_concurrency": 8},
        node="2xL4",
    )
    named = {**FOREIGN, "metadata": {**FOREIGN["metadata"], "framework": "vllm"}}
    assert record_from_json(named).key == trial_key(
        model="org/model",
        engine="vllm",
        server_args={"tp": 2},
        client_args={"max_concurrency": 8},
        node="2xL4",
    )
    assert record_from_json({"config": {}, "results": {}}).key == trial_key(
        model="", engine="", server_args={}, client_args={}, node="x"
    )
    assert record_from_json({**FOREIGN, "key": "mine"}).key == "mine"


def test_what_was_written_by_this_release_is_read_and_by_a_newer_one_is_not():
    assert record_from_json({**FOREIGN, "servetune_schema": SCHEMA}).servetune_schema == SCHEMA
    with pytest.raises(StoreError):
        record_from_json({**FOREIGN, "servetune_schema": SCHEMA + 1})


@pytest.mark.parametrize(
    "raw", [None, [], {"config": {}}, {"results": {}}, {"config": 1, "results": {}}]
)
def test_what_is_no_record_says_what_one_needs(raw):
    with pytest.raises(StoreError, match="not a trial record: it needs 'config' and 'results'"):
        record_from_json(raw)


def test_limits_of_the_run_are_read_and_another_tools_are_passed_over():
    raw = {
        **FOREIGN,
        "constraints": [
            {"name": "nonsense", "op": "<=", "value": 1.0},
            {"name": "p99_ttft_ms", "op": "<=", "value": 500.0},
        ],
    }
    [limit] = record_from_json(raw).limits()
    assert (limit.metric, limit.statistic, limit.op, limit.value) == ("ttft", "p99", "<=", 500.0)
