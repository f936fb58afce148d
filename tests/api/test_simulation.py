"""Load options of `simulate`: what they mean, and what a record keeps of them."""

import logging
from pathlib import Path

import pytest

import servetune as st
from servetune.api.request import checked
from servetune.api.simulation import simulated_trial
from servetune.errors import InputError, PlanError

MODEL = "Qwen/Qwen3-4B"
LAW = "kind=uniform,min=5,max=9"
USERS = {"concurrency": 4, "requests": 20}


def trial_of(**options):
    return simulated_trial(checked(st.Simulation, {"model": MODEL, "gpu": "L4", **options}))[0]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {}),
        ({"input_tokens": 100, "output_tokens": "20"},
         {"random_input_len": 100, "random_output_len": 20}),
        ({"input_tokens": 100, "input_sd": 9.0}, {"random_input_len": 100, "random_input_sd": 9.0}),
        ({"range_ratio": 0.5}, {"random_range_ratio": 0.5}),
        ({"input_tokens": LAW}, {"input_tokens": LAW}),
        ({"prefix_tokens": 80, "prefixes": 3}, {"random_prefix_len": 80, "num_prefixes": 3}),
        ({"client_args": "random_prefix_len=80", "prefixes": 3},
         {"random_prefix_len": 80, "num_prefixes": 3}),
        ({"shared_prefix_tokens": 80, "prefixes": 3}, {"shared_prefix": 80, "prefixes": 3}),
        ({"distinct_prompts": 3}, {"distinct_prompts": 3}),
        ({"dataset": "sharegpt"}, {"dataset_name": "sharegpt"}),
        ({"seed": 1}, {"seed": 1}),
        ({"turns": 3, "think_s": 2.0}, {"turns": "3", "think_s": 2.0}),
        ({"adapters": ("a=3", "b")}, {"lora": "a=3,b"}),
    ],
)  # fmt: skip
def test_a_record_has_the_client_arguments_that_say_the_same(options, kept):
    trial = trial_of(**USERS, **options)
    assert trial.client_args == {"max_concurrency": 4, "num_prompts": 20, **kept}
    client_args = ";".join(f"{name}={value}" for name, value in trial.client_args.items())
    assert trial_of(client_args=client_args).workload == trial.workload


def test_lengths_without_a_number_are_those_of_a_study():
    workload = trial_of(concurrency=4).workload
    assert workload.request_count == 1000
    assert {(one.input_tokens, one.output_tokens) for one in workload.requests()} == {(1024, 512)}


def test_prompts_that_are_asked_again_are_found_in_the_cache():
    load = {**USERS, "input_tokens": 200, "output_tokens": 5, "requests": 40}
    again, new = (
        st.simulate(MODEL, gpu="L4", **load, **more) for more in ({"distinct_prompts": 4}, {})
    )
    assert "prompt tokens found in the cache  8" in str(again)  # whole blocks, not all of a prompt
    assert again.run.duration_s < 0.8 * new.run.duration_s


def test_a_prefix_is_put_before_the_prompt_and_a_shared_prefix_is_part_of_it():
    before = trial_of(**USERS, input_tokens=100, prefix_tokens=80).workload.requests()
    within = trial_of(**USERS, input_tokens=100, shared_prefix_tokens=80).workload.requests()
    assert {one.input_tokens for one in before} == {180}
    assert {one.input_tokens for one in within} == {100}


def test_a_trace_is_named_by_a_path_and_recorded_as_ever(tmp_path):
    path = Path(tmp_path / "t.csv")
    path.write_text("due_s,input_tokens,output_tokens\n0,100,20\n1.5,50,10\n")
    found = st.simulate(MODEL, gpu="L4", trace=path, time_scale=2.0)
    assert [one.due_s for one in found.run.records] == [0.0, 3.0]
    assert found.record.config.client_args == {
        "dataset_name": "trace", "dataset_path": str(path), "time_scale": 2.0
    }  # fmt: skip
    assert f"trace {path}, times x 2, seed 1" in found.heading


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shared_prefix_tokens": 80},
         "4 users, random lengths, 80 tokens at the beginning of each of 1 kind, seed 1"),
        ({"prefix_tokens": 80, "prefixes": 2}, "80 tokens before each of 2 kinds, seed 1"),
        ({"distinct_prompts": 4}, "4 different prompts, seed 1"),
        ({"client_args": "rate=3"}, "3 requests/s, poisson, at most 4 in flight"),
    ],
)  # fmt: skip
def test_the_heading_describes_the_load(options, said):
    assert said in st.simulate(MODEL, gpu="L4", **USERS, input_tokens=100, **options).heading


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client_args": "input_tokens=5", "input_tokens": 9}, "--input-tokens and the client"),
        ({"client_args": "random_input_len=5", "input_tokens": 9}, "random_input_len is given"),
        ({"client_args": "random_input_sd=5", "input_tokens": LAW},
         "the client argument random_input_sd are the same"),
        ({"range_ratio": 0.5, "output_tokens": LAW},
         "the client argument random_range_ratio are the same"),
        ({"prefix_tokens": 5, "shared_prefix_tokens": 9}, "random_prefix_len are the same"),
        ({"client_args": "concurrency=5"}, "the client argument concurrency are the same"),
        ({"until": "ttft:p99±5%"}, "does not end at a precision"),
        ({"turn_tokens": "9"}, "--turn-tokens has no meaning without --turns"),
        ({"workload": "multi_turn_chat", "output_tokens": 9}, "has its own prompts"),
        ({"trace": "gone.csv", "dataset": "sharegpt"}, "a trace has requests of its own"),
        ({"dataset": "sharegpt", "distinct_prompts": 5},
         "sharegpt has prompts of its own, --distinct-prompts cannot be combined"),
        ({"client_args": "dataset_name=sharegpt", "shared_prefix_tokens": 5},
         "sharegpt has prompts of its own, --shared-prefix cannot be combined"),
    ],
)  # fmt: skip
def test_options_that_contradict_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        trial_of(**{**USERS, **options})


@pytest.mark.parametrize(
    "words", ["concurrency=4", "rate=3", "arrivals=kind=constant,rate_per_s=3"]
)
def test_client_arguments_may_say_when_requests_come(words):
    assert trial_of(client_args=words).workload.request_count == 1000


def test_nothing_says_when_requests_come():
    with pytest.raises(InputError, match="the workload has no arrivals"):
        trial_of(requests=5)


def test_options_of_the_sender_are_noted_as_without_effect(caplog):
    with caplog.at_level(logging.WARNING, "servetune"):
        trial = trial_of(**USERS, warmup=3, client_args="disable_ignore_eos=true")
    assert "without effect on the simulation: --warmup, --stop-at-eos" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "servetune"):
        st.tune(MODEL, engine="simulated", gpu="L4", **USERS, no_stream=True, dry_run=True)
    assert "without effect on the simulation: --no-stream" in caplog.text
    assert trial.workload.warmup_count == 3


def test_a_result_shows_its_table_and_not_every_request():
    found = st.simulate("Qwen/Qwen3-4B", gpu="L4", rate=2, requests=20)
    assert repr(found) == str(found)
    assert " ".join(found.heading.split()) in " ".join(str(found).split())
    assert len(str(found)) < 5_000
    assert "\x1b" not in str(found)


def test_trials_show_their_ranking():
    trials = st.read("examples/published/qwen3-4b-4xl4.jsonl")
    assert "Throughput pick: concurrency 128" in repr(trials)


def test_progress_counts_the_requests_in_virtual_time():
    moments = []
    options = {"gpu": "L4", "concurrency": 8, "input_tokens": 64, "output_tokens": 16}
    found = st.simulate(MODEL, **options, requests=250, on_progress=moments.append)
    assert [each.done for each in moments] == [*range(3, 250, 3), 250]
    assert {each.total for each in moments} == {250}
    times = [each.time_s for each in moments]
    assert times == sorted(times)
    assert times[-1] == max(record.end_s for record in found.run.records)
    silent = st.simulate(MODEL, **options, requests=250)
    assert silent.record.results == found.record.results


def test_progress_counts_the_trials_of_a_comparison():
    moments = []
    st.simulate(compare="examples/published/qwen3-4b-4xl4.jsonl", on_progress=moments.append)
    assert [(each.done, each.total, each.time_s) for each in moments] == [
        (done, 3, None) for done in (1, 2, 3)
    ]


def test_what_a_callback_raises_ends_the_simulation(tmp_path):
    def stop(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        st.simulate(MODEL, gpu="L4", concurrency=2, on_progress=stop, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_simulation_states_the_interval_of_its_means_and_warns_near_a_cliff():
    calm = st.simulate("Qwen/Qwen3-4B", gpu="H100", concurrency=4, requests=20)
    assert calm.interval.low_factor < 1 < calm.interval.high_factor
    assert "within a factor of" in calm.heading
    assert calm.cliff == ""
    full = st.simulate("Qwen/Qwen3-4B", gpu="L4", rate=4, requests=200)
    assert "the cache was 100% full" in full.cliff
    assert "over three seeds" in full.heading
    # Open loops are further off than closed ones.
    assert full.interval.high_factor > calm.interval.high_factor


@pytest.mark.parametrize(
    ("load", "warns"),
    [
        ({"rate": 0.2}, False),  # seven at once
        ({"rate": 1.0}, True),
        ({"rate": 1.0, "replicas": 2, "num_gpus": 2}, False),
        ({"rate": 2.4, "replicas": 2, "num_gpus": 2}, True),
        ({"rate": 5.0}, False),  # far beyond: all wait
        ({"rate": 0.1, "concurrency": 16}, False),  # a limit that nobody reaches
        ({"concurrency": 16}, True),
    ],
)
def test_a_simulation_warns_where_requests_in_flight_nearly_fill_their_places(load, warns):
    answer = {"requests": 300, "input_tokens": 500, "output_tokens": 200}
    found = st.simulate(MODEL, gpu="L4", server_args={"max_num_seqs": 16}, **answer, **load)
    assert ("max_num_seqs" in found.cliff) == warns
    assert ("over three seeds" in found.cliff) == warns


@pytest.mark.parametrize("users", [17, 32])
def test_a_simulation_says_that_users_wait_who_have_no_place(users):
    answer = {"requests": 200, "input_tokens": 500, "output_tokens": 200}
    found = st.simulate(MODEL, gpu="L4", server_args="max_num_seqs=16", concurrency=users, **answer)
    waiting = f"{users} users have 16 places by max_num_seqs, so {users - 16} of them wait"
    assert found.cliff.startswith(f"past a cliff: {waiting}")
    assert waiting in found.heading


@pytest.mark.parametrize(
    ("engine", "rate", "queues"),
    [("sglang", 0.9, True), ("sglang", 0.2, False), ("vllm", 0.9, False)],
)
def test_a_simulation_warns_where_requests_queue_beside_a_cache_that_is_not_full(
    engine, rate, queues
):
    found = st.simulate("Qwen/Qwen3-4B", gpu="L4", engine=engine, rate=rate, requests=600)
    assert not found.run.saturated
    assert ("half of the requests waited" in found.cliff) == queues


def test_requests_of_one_moment_wait_without_a_warning():
    found = st.simulate(MODEL, gpu="H100", client_args="request_rate=inf", requests=100)
    assert found.cliff == ""


@pytest.mark.parametrize("engine", ["sglang", "tgi"])
def test_an_order_that_an_engine_does_not_know_is_refused(engine):
    with pytest.raises(PlanError, match="order by priority is not simulated") as refused:
        st.simulate(
            "Qwen/Qwen3-4B", gpu="L4", engine=engine, concurrency=4, requests=20,
            server_args="scheduling_policy=priority", allow_unknown=True,
        )  # fmt: skip
    assert "leave scheduling_policy out" in refused.value.hint
