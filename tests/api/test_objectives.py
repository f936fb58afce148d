"""Objectives, Pareto sets and ladders from the command line and Python."""

import json

import pytest

import servetune as st
from servetune.errors import InputError

SWEEP = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 2,
    "server_args": "tensor_parallel_size=[1,2]",
    "client_args": "num_prompts=20;random_input_len=64;random_output_len=16",
    "concurrency": [2, 8],
}
LADDER = "tpot<=1s; ttft:p99<=1us; e2e_latency<=1us; then throughput_per_gpu"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Four simulated trials of a study without an objective."""
    folder = tmp_path_factory.mktemp("plain")
    return st.tune("Qwen/Qwen3-4B", **SWEEP, output_json=str(folder / "q.json"))


@pytest.fixture(scope="module")
def laddered(tmp_path_factory):
    """The same trials of a study whose ladder nothing can hold."""
    folder = tmp_path_factory.mktemp("laddered")
    return st.tune("Qwen/Qwen3-4B", **SWEEP, sla=LADDER, output_json=str(folder / "q.json"))


@pytest.mark.parametrize(
    ("objective", "field", "best"),
    [
        ("throughput_per_gpu", "output_throughput_per_gpu", max),
        ("ttft:p99", "p99_ttft_ms", min),
        ("itl:median", "median_itl_ms", min),
        ("e2e_latency:mean", "mean_e2e_latency_ms", min),
        ("tpot", "mean_tpot_ms", min),
        ("request_throughput", "request_throughput", max),
    ],
)
def test_the_best_trial_is_the_best_by_any_metric_and_statistic(plain, objective, field, best):
    pick = st.recommend(plain.artifacts.journal, objective=objective)
    values = [record.results[field] for record in plain.trials]
    assert pick.record.results[field] == best(values)
    assert plain.pick(objective).record.key == pick.record.key
    assert (
        st.read(plain.artifacts.summary, objective=objective).recommend().reasons
        == pick.choice.reasons
    )


def test_several_objectives_are_a_set_in_text_json_summary_and_page(plain, called, tmp_path):
    journal = plain.artifacts.journal
    joined = called("recommend", journal, "--objective", "throughput,ttft:p99", "--json")
    found = json.loads(joined.stdout)
    repeated = ("--objective", "throughput", "--objective", "ttft:p99", "--json")
    assert json.loads(called("recommend", journal, *repeated).stdout) == found
    assert found["objective"] == "throughput,ttft:p99"
    by_key = {record.key: record for record in plain.trials}
    for member in found["pareto"]:
        record = by_key[member["key"]]
        assert member["server_args"] == record.config.server_args
        assert member["values"] == {
            "throughput": record.results["output_throughput"],
            "ttft:p99": record.results["p99_ttft_ms"],
        }
        assert not any(
            other.results["output_throughput"] > record.results["output_throughput"]
            and other.results["p99_ttft_ms"] < record.results["p99_ttft_ms"]
            for other in plain.trials
        )
    [knee] = [member for member in found["pareto"] if member["knee"]]
    assert knee["key"] == found["record"]["key"]
    words = ("--objective", "throughput,ttft:p99", "--output-json", tmp_path / "r.json")
    shown = called("report", journal, *words).stdout
    assert "in the set:" in shown
    summary = json.loads((tmp_path / "r.json").read_text())
    assert sorted(summary["recommended"]) == ["throughput", "throughput,ttft:p99", "ttft:p99"]
    assert summary["recommended"]["throughput,ttft:p99"]["pareto"] == found["pareto"]
    assert summary["pareto"] == [member["key"] for member in found["pareto"]]
    assert "Knee of throughput, ttft:p99" in (tmp_path / "r.html").read_text()


def test_a_study_keeps_its_ladder_for_whoever_reads_its_journal(laddered, called):
    assert laddered.status == 1
    pick = st.recommend(laddered.artifacts.journal)
    assert pick.choice.ladder
    assert (pick.objective, pick.feasible) == ("throughput_per_gpu", False)
    assert pick.record.key == laddered.pick().record.key
    nearest = min(record.results["p99_ttft_ms"] for record in laddered.trials)
    assert pick.record.results["p99_ttft_ms"] == nearest
    assert "rung 2 of 3, ttft:p99<=0.001ms, binds: of 4 trials" in str(pick)
    shown = json.loads(called("recommend", laddered.artifacts.journal, "--json").stdout)
    assert shown["binding"]["name"] == "p99_ttft_ms"
    assert [each["held_count"] for each in shown["reaches"]] == [4, 0, 0]
    assert "SLA: tpot<=1s; ttft:p99<=0.001ms" in str(laddered.trials)
    # Limits of one's own are no ladder, and the objective stays the study's.
    own = st.recommend(laddered.artifacts.journal, constraints="tpot<=1s")
    assert (own.feasible, own.choice.ladder, own.objective) == (True, False, "throughput_per_gpu")


def test_a_ladder_is_the_same_for_finished_trials_as_in_the_study(plain, laddered):
    later = st.recommend(plain.artifacts.journal, sla=LADDER)
    assert later.record.key == laddered.pick().record.key
    assert later.choice.reasons == laddered.pick().choice.reasons
    assert plain.trials.recommend(sla=LADDER).chosen.key == later.record.key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "energy"}, "energy is not measured in a simulation"),
        ({"constraints": "energy_per_token_j<=1"}, "energy is not measured in a simulation"),
        ({"objective": "goodput"}, "a goodput objective needs limits on single requests"),
        ({"objective": "cost"}, "needs the price of the machine"),
        ({"objective": "speed"}, "speed"),
        ({"sla": "then cost"}, "no limit found"),
        ({"sla": "ttft<=1s; then itl", "objective": "cost"}, "--sla ends in itl"),
        ({"sla": "ttft<=1s", "constraints": "ttft<=2s"}, "different limits"),
    ],
)
def test_an_objective_that_no_trial_can_have_is_refused_before_any_runs(tmp_path, options, words):
    with pytest.raises(InputError, match=words) as refused:
        st.tune("Qwen/Qwen3-4B", **SWEEP, **options, output_json=str(tmp_path / "q.json"))
    assert refused.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("objective", ["energy", "throughput,goodput"])
def test_an_objective_that_no_trial_has_is_one_clear_error(plain, tmp_path, objective):
    with pytest.raises(InputError, match="no trial has a value for the ") as refused:
        st.recommend(plain.artifacts.journal, objective=objective)
    assert refused.value.hint
    with pytest.raises(InputError, match="no trial has a value"):
        st.write_report(
            plain.artifacts.journal, objective=objective, output_json=tmp_path / "r.json"
        )
    assert not list(tmp_path.iterdir())


def test_runs_that_differ_by_their_seed_are_one_candidate_also_out_of_a_stream(tmp_path):
    sweep = {**SWEEP, "client_args": f"{SWEEP['client_args']};seed=[1,2]", "concurrency": [8]}
    found = st.tune("Qwen/Qwen3-4B", **sweep, output_json=str(tmp_path / "q.json"))
    pick = st.recommend(found.artifacts.journal)
    assert pick.choice.chosen.label == "TP2 (mean of 2 runs)"
    assert pick.choice.reasons == found.pick().choice.reasons


def test_a_search_goes_by_the_study_s_objective(tmp_path):
    found = st.tune(
        "Qwen/Qwen3-4B",
        **SWEEP,
        objective="ttft:p99",
        max_trials=1,
        output_json=str(tmp_path / "q.json"),
    )
    every = st.tune("Qwen/Qwen3-4B", **SWEEP, output_json=str(tmp_path / "all.json"))
    best = min(every.trials, key=lambda record: record.results["p99_ttft_ms"])
    assert [record.key for record in found.trials] == [best.key]


def test_a_guided_search_of_a_ladder_comes_nearest_to_the_rung_that_nothing_can_hold(
    laddered, tmp_path
):
    found = st.tune(
        "Qwen/Qwen3-4B", **SWEEP, sla=LADDER, max_trials=1, output_json=str(tmp_path / "q.json")
    )
    assert [record.key for record in found.trials] == [laddered.pick().record.key]


@pytest.mark.parametrize(
    "constraints", ["ttft<=1s;ttft>=2s", "ttft<1s;ttft>=1s", "goodput==1;goodput!=1"]
)
def test_constraints_that_exclude_each_other_are_refused(plain, constraints):
    with pytest.raises(InputError, match="no value holds both"):
        st.recommend(plain.artifacts.journal, constraints=constraints)
    for possible in ("ttft<=1s;ttft>=1s", "ttft<=1s;ttft<=2s", "ttft>1s;ttft<2s;itl>=3s"):
        assert st.recommend(plain.artifacts.journal, constraints=possible)


def test_what_predicts_trials_refuses_limits_on_energy(called):
    words = ("estimate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--constraints")
    for verb, said in (("estimate", "an estimate does not predict it"), ("simulate", "simulation")):
        refused = called(verb, *words[1:], "energy_per_token_j<=1")
        assert refused.returncode == 2
        assert said in refused.stderr
