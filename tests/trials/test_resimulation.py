import msgspec
import pytest

from servetune.errors import InputError, PlanError
from servetune.hardware import node
from servetune.models import load_shape
from servetune.plan import Plan
from servetune.store import TrialConfig, TrialRecord
from servetune.trials import (
    StudyContext,
    Trial,
    simulated_again,
    simulated_with_requests,
    with_fields,
)
from servetune.trials.simulated import MOST_REQUESTS
from servetune.workload import CLIENT_ARGS, workload_from_client_args

RUN = StudyContext(
    model="Qwen/Qwen3-4B",
    engine="simulated",
    simulated=True,
    shape=load_shape("Qwen/Qwen3-4B", catalogue_first=True),
    node=node(gpu="L4", count=2),
)
SHORT = {"random_input_len": 100, "random_output_len": 20}


def trial(**client_args):
    assert client_args.keys() <= CLIENT_ARGS.keys()
    return Trial(
        key="k",
        server_args={},
        client_args=client_args,
        plan=Plan(model=RUN.model, engine="simulated"),
        workload=workload_from_client_args(client_args),
    )


def test_a_closed_loop_has_users_at_work_for_the_whole_duration():
    record, simulation = simulated_with_requests(
        trial(max_concurrency=4, duration_s=300.0, **SHORT), RUN
    )
    assert record.results["duration"] == 300.0
    assert record.results["server"]["unfinished"] == 4
    assert record.results["completed"] + 4 == len(simulation.records)
    assert record.results["concurrency"] == pytest.approx(4, rel=0.01)


def test_an_open_loop_has_as_many_requests_as_its_rate_says():
    _, simulation = simulated_with_requests(
        trial(request_rate=30.0, arrivals="constant", duration_s=100.0, **SHORT), RUN
    )
    assert len(simulation.records) == 3001


@pytest.mark.parametrize(
    ("law", "count", "off"),
    [
        # (30 + 90) / 2 a second for 60 s, then 90: Λ(100 s) = 7,200; even gaps count exactly.
        ("kind=ramp,from_per_s=30,to_per_s=90,over_s=60,gaps=even", 7201, 0),
        ("kind=sine,mean_per_s=30,amplitude_per_s=30,period_s=50,gaps=even", 3001, 1),
        # 1,000 and four times sqrt(1,000 · dispersion) about it.
        ("kind=gamma,rate_per_s=10,burstiness=0.1", 1000, 400),
        ("kind=mmpp,rates_per_s=[0,40],dwell_s=[3,1]", 1000, 990),
    ],
)
def test_a_law_without_a_number_of_requests_fills_the_duration(law, count, off):
    record, simulation = simulated_with_requests(
        trial(arrivals=law, duration_s=100.0, **SHORT), RUN
    )
    assert abs(len(simulation.records) - count) <= off
    assert simulation.records[-1].due_s > 80.0
    asked = record.results["request_rate"]
    assert asked == (10.0 if "rate_per_s=10" in law else None)


def test_requests_on_their_way_at_the_stop_did_not_fail():
    record, _ = simulated_with_requests(trial(request_rate=500.0, duration_s=5.0), RUN)
    results = record.results
    assert results["server"]["saturated"]
    assert results["server"]["unfinished"] > 1000
    assert (results["failed"], results["error_rate"]) == (0, 0.0) or results["completed"] == 0


def test_a_number_of_requests_that_was_asked_for_is_kept():
    record, _ = simulated_with_requests(
        trial(max_concurrency=4, duration_s=300.0, num_prompts=9, **SHORT), RUN
    )
    assert record.results["completed"] == 9
    assert record.results["duration"] < 300.0


@pytest.mark.parametrize(
    "args",
    [{"num_prompts": MOST_REQUESTS + 1}, {"request_rate": 1e6, "duration_s": 1e3}],
)
def test_runs_beyond_memory_are_refused_before_they_begin(args):
    with pytest.raises(InputError, match="does not fit in memory"):
        simulated_with_requests(trial(**args), RUN)


def test_all_at_once_without_users_never_fills_a_duration():
    with pytest.raises(InputError, match="a duration needs arrivals over time"):
        simulated_with_requests(trial(duration_s=10.0), RUN)


def test_replicas_share_the_load_and_are_told_apart():
    one = trial(max_concurrency=64, num_prompts=128, **SHORT)
    two = with_fields(one, RUN, {"replicas": 2})
    assert two.key != one.key
    assert with_fields(one, RUN, {"replicas": 1}) is one
    record, simulation = simulated_with_requests(two, RUN)
    assert "replicas" not in record.cmd
    assert record.plan.replicas == 2
    assert simulation.duration_s < simulated_with_requests(one, RUN)[1].duration_s


def test_more_replicas_than_the_machine_holds_are_refused():
    with pytest.raises(PlanError):
        simulated_with_requests(with_fields(trial(max_concurrency=4), RUN, {"replicas": 3}), RUN)


def test_a_record_played_again_gives_its_own_results():
    record, _ = simulated_with_requests(
        with_fields(trial(max_concurrency=8, num_prompts=40, **SHORT), RUN, {"replicas": 2}), RUN
    )
    measured = msgspec.structs.replace(record, simulated=False)
    assert simulated_again(measured, RUN).results == record.results


def test_a_record_of_another_tool_is_read_from_its_arguments():
    foreign = TrialRecord(
        config=TrialConfig(
            server_args={"tensor_parallel_size": 2},
            client_args={"max_concurrency": 8, "num_prompts": "40", "request_rate": "inf"},
        )
    )
    again = simulated_again(foreign, RUN)
    assert again.plan.tensor_parallel == 2
    assert again.results["completed"] == 40


def test_a_record_whose_data_set_is_gone_is_refused():
    record = TrialRecord(
        config=TrialConfig(client_args={"dataset_name": "trace", "dataset_path": "gone.csv"})
    )
    with pytest.raises(InputError, match=r"cannot read the trace gone\.csv"):
        simulated_again(record, RUN)


@pytest.mark.parametrize("caching", [True, False])
def test_what_a_trace_says_is_shared_is_found_by_a_prefix_cache_alone(caching, tmp_path):
    path = tmp_path / "t.jsonl"
    line = (
        '{{"timestamp": {}, "input_length": 2000, "output_length": 5, "hash_ids": [1, 2, 3, {}]}}\n'
    )
    path.write_text("".join(line.format(i * 9000, 10 + i) for i in range(4)))
    args = {"dataset_name": "trace", "dataset_path": str(path)}
    asked = msgspec.structs.replace(
        trial(),
        client_args=args,
        workload=workload_from_client_args(args, model=RUN.model),
        plan=Plan(model=RUN.model, engine="simulated", prefix_caching=caching),
    )
    record, simulation = simulated_with_requests(asked, RUN)
    first, *later = [one.ttft_s for one in simulation.records]
    assert all((ttft_s < first / 2) is caching for ttft_s in later)
    assert record.results["server"]["cached_fraction"] == pytest.approx(
        0.75 * 3 * 512 / 2000 if caching else 0.0, abs=0.01
    )


def test_of_very_many_requests_gaps_are_means_and_the_record_says_so(monkeypatch):
    asked = trial(max_concurrency=16, num_prompts=60, random_input_len=500, random_output_len=20)
    exact, _ = simulated_with_requests(asked, RUN)
    monkeypatch.setattr("servetune.trials.simulated.MOST_WITH_EACH_TOKEN", 50)
    lean, simulation = simulated_with_requests(asked, RUN)
    assert not exact.results["server"]["itl_is_tpot"]
    assert lean.results["server"]["itl_is_tpot"]
    assert max(len(one.chunk_times_s) for one in simulation.records) == 2
    for name in ("mean_ttft_ms", "p99_tpot_ms", "p99_e2e_latency_ms", "output_throughput"):
        assert lean.results[name] == pytest.approx(exact.results[name], rel=1e-9)
    assert lean.results["p99_itl_ms"] < exact.results["p99_itl_ms"]
