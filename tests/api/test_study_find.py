"""Studies that find the largest load: simulated ones, and one with a server."""

import shlex
import sys

import pytest

import servetune as st
from servetune.errors import InputError

MODEL = "Qwen/Qwen3-4B"
FIND = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 2,
    "server_args": "tensor_parallel_size=[1,2]",
    "client_args": "num_prompts=40;random_input_len=64;random_output_len=16",
    "find": "max_concurrency",
    "constraints": "itl<=36ms",
}


def test_the_loads_found_are_those_that_a_grid_of_every_load_shows(tmp_path):
    found = st.tune(MODEL, **FIND, output_json=tmp_path / "q.json")
    whole = {**FIND, "find": None, "server_args": "tensor_parallel_size=1"}
    held, fails = found.loads[0].answer.held, found.loads[0].answer.failing
    each = st.tune(
        MODEL, **whole, concurrency=range(1, int(fails) + 2), output_json=tmp_path / "all.json"
    )
    holding = [
        trial.config.client_args["max_concurrency"]
        for trial in each.trials
        if trial.results.mean_itl_ms <= 36
    ]
    assert (max(holding), held, fails) == (held, max(holding), max(holding) + 1)
    assert [load.label for load in found.loads] == [
        "tensor_parallel_size=1",
        "tensor_parallel_size=2",
    ]
    assert found.loads[1].answer.held > held
    assert all(str(load) in str(found) for load in found.loads)
    assert found.pick().record.config.server_args == {"tensor_parallel_size": 2}


def test_a_study_that_was_cut_off_goes_on_with_the_same_trials(tmp_path):
    whole = st.tune(MODEL, **FIND, output_json=tmp_path / "a.json")
    lines = whole.artifacts.journal.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[:5]))
    again = st.tune(MODEL, **FIND, output_json=tmp_path / "b.json", resume=True)
    assert again.artifacts.journal.read_bytes() == whole.artifacts.journal.read_bytes()
    assert again.loads == whole.loads


def test_progress_counts_the_trials_that_a_search_takes(tmp_path):
    events = []
    st.tune(MODEL, **FIND, output_json=tmp_path / "q.json", on_progress=events.append)
    assert [event.done for event in events] == list(range(1, len(events) + 1))
    assert all(event.total >= event.done for event in events)
    assert "max_concurrency=" in str(events[0])


def test_a_rate_is_found_below_the_one_that_the_server_can_follow(tmp_path):
    options = {**FIND, "server_args": (), "client_args": "random_input_len=64;random_output_len=16"}
    options |= {"find": "request_rate=1..200", "constraints": "e2e_latency<=60s"}
    [load] = st.tune(MODEL, **options, output_json=tmp_path / "q.json").loads
    assert load.answer.held < load.answer.failing <= 1.05 * load.answer.held + 0.1
    assert "requests/s" in str(load)


def test_a_dry_run_shows_the_bounds_and_starts_nothing(tmp_path):
    options = {**FIND, "find": "max_concurrency=4..64", "dry_run": True}
    planned = st.tune(MODEL, **options, output_dir=tmp_path)
    assert [server.loads[0]["max_concurrency"] for server in planned.planned] == ["4..64"] * 2
    assert "2 searches for the largest max_concurrency on 2 server" in str(planned)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"constraints": None}, "needs a constraint that holds up to some load"),
        ({"constraints": "request_throughput>=5"}, "needs a constraint that holds up to some load"),
        ({"concurrency": 8}, "max_concurrency states it"),
        ({"client_args": "max_concurrency=[1,2]"}, "max_concurrency states it"),
        ({"rate": 3}, "request_rate has arrivals of its own"),
        ({"find": "request_rate", "rate": 3}, "request_rate states it"),
        ({"parallel": 2}, "--parallel 2 does not"),
        ({"order": "interleaved"}, "--order interleaved does not"),
        ({"strategy": "guided"}, "--strategy guided does not"),
        ({"find": "max_concurrency=9..3"}, "no load lies within these bounds"),
        ({"confidence": 1.0}, "100% sure"),
    ],
)
def test_what_leaves_nothing_to_find_is_refused_before_anything_starts(tmp_path, change, says):
    with pytest.raises(InputError, match=says) as caught:
        st.tune(MODEL, **{**FIND, **change}, output_dir=tmp_path)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_all_loads_of_a_configuration_run_on_one_server(tmp_path):
    program = (
        f"{shlex.quote(sys.executable)} -m servetune.testing.fake_server --port {{port}} "
        "--max-num-seqs 1 --ttft-s 0.004"
    )
    options = {
        "engine": "command", "server_cmd": program, "gpu": "L4", "input_tokens": 8,
        "output_tokens": 4, "requests": 16, "find": "max_concurrency=4..8",
        "constraints": "ttft<=30ms", "processes": "1", "output_dir": tmp_path,
    }  # fmt: skip
    found = st.tune("fake", **options)
    assert [log.name for log in found.artifacts.logs.iterdir()] == ["server-001.log"]
    keys = [record.key for record in found.trials]
    assert len(set(keys)) == len(keys)
    [load] = found.loads
    assert load.answer.run_count == len(keys)
    tried = {record.config.client_args["max_concurrency"] for record in found.trials}
    known = {load.answer.held, load.answer.failing, *load.answer.undecided} - {None}
    assert known <= tried <= set(range(4, 9))
    again = st.tune("fake", **options, resume=True)
    assert again.loads == found.loads
    assert [record.key for record in again.trials] == keys, "nothing was left to run"
