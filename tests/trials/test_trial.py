import pytest

from servetune.hardware import cost_per_million_tokens_usd, instance
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.search import Axis, Space, parse_settings
from servetune.trials import StudyContext, run_trials, trials_of
from servetune.trials.launch import Launch
from servetune.trials.sweep import problem_of
from servetune.workload import CLIENT_ARGS, SHAREGPT, Observed


def space(server="tensor_parallel_size=[1,2]", client="max_concurrency=[2,4];num_prompts=8"):
    return Space(
        server=parse_settings(server, types={}), client=parse_settings(client, types=CLIENT_ARGS)
    )


def run(**more):
    fields = {
        "model": "Qwen/Qwen3-4B",
        "engine": "simulated",
        "simulated": True,
        "shape": load_shape("Qwen/Qwen3-4B", catalogue_first=True),
        "node": instance("ml.g6.12xlarge"),
        "price_per_hour_usd": 5.752,
    }
    return StudyContext(**{**fields, **more})


def grouped(one=None, **more):
    chosen = one or run()
    return list(trials_of(space(**more), chosen))


def records_of(groups, one=None):
    records = []
    run_trials(groups, one or run(), Launch(), logs=None, ended=records.append, say=print)
    return records


def test_trials_are_grouped_by_server_and_every_key_is_its_own():
    groups = grouped()
    assert [len(group) for group in groups] == [2, 2]
    assert all(trial.plan == group[0].plan for group in groups for trial in group)
    assert len({trial.key for group in groups for trial in group}) == 4


def test_a_key_depends_on_what_is_tried_and_on_where():
    (first, *_), *_ = grouped()
    (again, *_), *_ = grouped()
    (elsewhere, *_), *_ = grouped(run(node=instance("ml.g5.12xlarge")))
    (measured, *_), *_ = grouped(run(simulated=False))
    assert first.key == again.key
    assert len({first.key, elsewhere.key, measured.key}) == 3


def test_the_price_is_the_whole_machines():
    (record, *_) = records_of(grouped())
    rate = record.results["output_throughput"]
    assert record.results["cost_per_million_tokens"] == pytest.approx(5.752 / rate / 3600 * 1e6)
    assert record.metadata["gpus_used"] == 1
    assert record.metadata["gpu_count"] == 4
    assert record.results["output_throughput_per_gpu"] == rate


@pytest.mark.parametrize(("price", "rate"), [(None, 5.0), (5.0, None), (5.0, 0.0)])
def test_no_price_or_no_throughput_is_no_cost(price, rate):
    assert cost_per_million_tokens_usd(price, rate) is None


def test_published_cost_check():
    # 1,096 tokens/s at $5.752 an hour: 5.752 / 3.9456 M tokens an hour.
    assert cost_per_million_tokens_usd(5.752, 1096.0) == pytest.approx(1.4578, abs=1e-4)


def test_constraints_percentiles_are_held_exactly():
    limits = parse_constraints("ttft:p97.5<=1s")
    (record, *_) = records_of(grouped(), run(constraints=limits))
    assert "97.5" in record.results["quantiles"]["ttft_ms"]
    assert limits[0].holds(record.results) is not None


def test_a_data_set_file_gives_its_own_lengths(tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "word " * 40}, {"from": "gpt", "value": "word " * 20}]
    path.write_text(f'[{{"conversations": {str(turns).replace(chr(39), chr(34))}}}]')
    client = f"dataset_name=sharegpt;dataset_path={path};num_prompts=3"
    ((trial,),) = grouped(server="tensor_parallel_size=1", client=client)
    assert isinstance(trial.workload.lengths, Observed)
    assert trial.workload.imitated is False
    assert [request.input_tokens for request in trial.workload.requests()] == [50, 50, 50]
    ((imitated,),) = grouped(
        server="tensor_parallel_size=1", client="dataset_name=sharegpt;num_prompts=3"
    )
    assert imitated.workload.lengths == SHAREGPT
    assert imitated.workload.imitated is True


def test_a_named_workload_is_swept_over_users_on_simulated_and_on_real_engines():
    client = "workload=shared_system_prompt;num_prompts=24;max_concurrency=[2,4]"
    (trials,) = grouped(server="enable_prefix_caching=true", client=client)
    assert [trial.workload.concurrency for trial in trials] == [2, 4]
    assert len(trials[0].workload.requests()) == 24
    (measured,) = grouped(run(engine="vllm", simulated=False), server="", client=client)
    assert [trial.workload for trial in measured] == [trial.workload for trial in trials]


def test_a_tgi_that_is_started_is_not_held_to_the_defaults_of_the_one_that_is_simulated():
    client = "num_prompts=4;max_concurrency=2;random_input_len=3000;random_output_len=100"
    for simulated, problem in ((True, "max_model_len is 2,048"), (False, None)):
        one = run(engine="tgi", simulated=simulated)
        (group,) = grouped(one, server="num_shard=[1]", client=client)
        found = problem_of(group[0], one)
        assert (found is None) if problem is None else (problem in found)


@pytest.mark.parametrize(
    ("client_args", "sampling"),
    [
        ({}, "greedy"),
        ({"temperature": 0.7}, "checkpoint"),
        ({"temperature": 0.7, "extra_body": '{"top_p": 0.9}'}, "filtered"),
        ({"temperature": 0.7, "extra_body": '{"top_k": -1}'}, "greedy"),
        ({"extra_body": '{"temperature": 1, "min_p": 0.1}'}, "checkpoint"),
        ({"extra_body": '{"top_k": 20}'}, "greedy"),
    ],
)
def test_sampling_is_the_requests_own_or_the_checkpoints(tmp_path, client_args, sampling):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"top_k": 20, "temperature": 0.6}')
    wanted = Space(
        client=tuple(Axis(names=(name,), rows=((value,),)) for name, value in client_args.items())
    )
    ((trial,),) = trials_of(wanted, run(model=str(tmp_path)))
    assert trial.workload.sampling == sampling
