"""Few trials instead of a grid: those that promise most, each chosen after the last."""

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.prediction.forecasts import causes_found
from servetune.search import Space, parse_objectives, parse_settings
from servetune.search.strategies import Point
from servetune.search.strategies.guided_set import GuidedSet
from servetune.testing.strategy_contract import StrategyContract
from servetune.trials import StudyContext, predictions, trials_of
from servetune.trials.guided import guided_search, searched_objectives
from servetune.trials.outcomes import outcome_of_record
from servetune.trials.simulated import simulate_trial

MODEL = "Qwen/Qwen3-4B"


def run_with(constraints: str) -> StudyContext:
    return StudyContext(
        model=MODEL,
        engine="simulated",
        simulated=True,
        shape=load_shape(MODEL, catalogue_first=True),
        node=node(gpu="L4", count=4),
        constraints=parse_constraints(constraints),
    )


def grid(run: StudyContext):
    space = Space(
        server=parse_settings("tensor_parallel_size=[1,2,4]", types={}),
        client=parse_settings(
            "max_concurrency=[4,16,64];num_prompts=64;dataset_name=random;"
            "random_input_len=512;random_output_len=64",
            types={},
        ),
    )
    return [trial for group in trials_of(space, run) for trial in group]


def searched(trials, run, *, seed=0):
    points = [Point({**trial.server_args, **trial.client_args}, trial.plan) for trial in trials]
    objectives = searched_objectives(run)
    return guided_search(points, trials, run, objectives, seed=seed, margin=0.02, confidence=0.95)


def record(trial, run, *, slower: float = 1.0):
    """What a machine gives that is slower than the predicted one by a factor."""
    told = simulate_trial(trial, run, cmd="", server_cmd_args=[])
    results = {
        name: value * slower
        if name.endswith("_ms")
        else value / slower
        if name.endswith("throughput")
        else value
        for name, value in told.results.items()
        if isinstance(value, int | float)
    }
    return msgspec.structs.replace(told, results=results)


def best(records, run):
    held = [r for r in records if all(c.holds(r.results) for c in run.constraints)]
    return max(held, key=lambda r: r.results["output_throughput"])


def test_the_first_asked_is_the_fastest_where_nothing_is_near_its_limit():
    run = run_with("itl:mean<=10s")
    trials = grid(run)
    first = searched(trials, run).ask()
    assert first is not None
    assert best([record(trial, run) for trial in trials], run).key == trials[first].key


def test_what_was_measured_moves_what_is_asked_next():
    run = run_with("itl:mean<=60ms")
    trials = grid(run)
    search = searched(trials, run)
    truth = [record(trial, run, slower=1.6) for trial in trials]
    asked = []
    while (index := search.ask()) is not None:
        asked.append(index)
        search.tell(index, outcome_of_record(truth[index], run))
    assert len(set(asked)) == len(asked) <= 4
    found, wanted = best([truth[index] for index in asked], run), best(truth, run)
    assert found.results["output_throughput"] >= 0.95 * wanted.results["output_throughput"]


def test_without_a_machine_nothing_is_promised():
    run = run_with("itl:mean<=60ms")
    with pytest.raises(InputError, match="nothing can be predicted"):
        searched(grid(run), msgspec.structs.replace(run, node=None))


def test_drafts_that_turn_out_wrong_are_given_up_and_what_was_right_is_said():
    """n-grams of which one in ten is right, on a machine that is otherwise as predicted."""
    run = run_with("itl:mean<=10s")
    space = Space(
        server=parse_settings(
            "tensor_parallel_size=[1,4];"
            'speculative_config=[None,{"method":"ngram","num_speculative_tokens":4}]',
            types={},
        ),
        client=parse_settings(
            "max_concurrency=[4,16];num_prompts=64;dataset_name=random;"
            "random_input_len=512;random_output_len=64",
            types={},
        ),
    )
    trials = [trial for group in trials_of(space, run) for trial in group]
    drafting = [trial.plan.draft_tokens is not None for trial in trials]
    assert sum(drafting) == 4
    search = searched(trials, run)
    asked = []
    while (index := search.ask()) is not None:
        plan = trials[index].plan
        if drafting[index]:
            plan = msgspec.structs.replace(plan, draft_acceptance_fraction=0.1)
        true = msgspec.structs.replace(trials[index], plan=plan)
        search.tell(index, outcome_of_record(record(true, run), run))
        asked.append(index)
    assert drafting[asked[0]], "drafts lead by what is assumed"
    assert not drafting[search.pick.index]
    assert sum(drafting[index] for index in asked) == 1, "one trial tells of all drafts"
    (found,) = (each for each in causes_found(search.factors, run.node) if "drafts" in each.name)
    assert str(found).startswith("drafts by ngram: ")
    assert found.factor * found.assumed_fraction < 0.3
    assert found.low_factor < found.factor < found.high_factor < 1


class TestGuided(StrategyContract):
    """The contract of every strategy, kept on trials with the settings of its points."""

    stops_early = True
    resumed_after = (2, 5)

    def make(self, points, *, seed=0):
        run = run_with("itl:mean<=60ms")
        trials = [
            trial
            for point in points
            for group in trials_of(space_of(point), run)
            for trial in group
        ]
        return searched(trials, run)


class OfTheSet:
    """A search whose latency is told as objectives are: larger is better, and above zero."""

    def __init__(self, search):
        self.search, self.ask = search, search.ask

    @property
    def stop(self):
        return self.search.stop

    def tell(self, index, outcome):
        if outcome.counts:
            rate, negative = outcome.objectives
            outcome = msgspec.structs.replace(outcome, objectives=(rate, -1 / negative))
        self.search.tell(index, outcome)


class TestGuidedSet(StrategyContract):
    """The same contract, of the search for the trials that are best in two objectives."""

    stops_early = True
    resumed_after = (2, 5)

    def make(self, points, *, seed=0):
        run = msgspec.structs.replace(
            run_with("itl:mean<=60ms"), objectives=parse_objectives("throughput,e2e_latency")
        )
        trials = [
            trial
            for point in points
            for group in trials_of(space_of(point), run)
            for trial in group
        ]
        search = searched(trials, run)
        assert isinstance(search, GuidedSet)
        return OfTheSet(search)


def test_several_objectives_are_predicted_and_measured_alike():
    """Throughput and latency: many users are best in one, few in the other."""
    run = msgspec.structs.replace(
        run_with("itl:mean<=10s"), objectives=parse_objectives("throughput,e2e_latency:p99")
    )
    trials = grid(run)
    search = searched(trials, run)
    truth = [record(trial, run, slower=1.3) for trial in trials]
    while (index := search.ask()) is not None:
        search.tell(index, outcome_of_record(truth[index], run))
    users = [trials[index].workload.concurrency for index in search.front.members]
    assert users == sorted(users, reverse=True)
    assert {users[0], users[-1]} == {4, 64}
    assert len(search._told) < len(trials)


def space_of(point):
    users = point.settings["max_concurrency"]
    return Space(
        server=parse_settings(
            f"tensor_parallel_size={point.settings['tensor_parallel_size']}", types={}
        ),
        client=parse_settings(
            f"max_concurrency={users};num_prompts=16;dataset_name=random;"
            "random_input_len=64;random_output_len=8",
            types={},
        ),
    )


def p99_of(search, index):
    """Expected ratio of the only limit, and its standard deviation."""
    means, sds = search.expected()
    return float(np.exp(means[1, index])), float(sds[1, index])


def test_a_missed_percentile_says_more_of_like_trials_than_of_others():
    """A trial that is predicted to do the same is no second chance; one of other users is."""
    run = run_with("ttft:p99<=400ms")
    trials = grid(run)
    users = [trial.workload.concurrency for trial in trials]
    measured = users.index(64)
    like = users.index(64, measured + 1)
    other = users.index(4)
    search = searched(trials, run)
    before = {index: p99_of(search, index) for index in (like, other)}
    record_ = record(trials[measured], run)
    slower = record_.results.with_fields(p99_ttft_ms=1.3 * record_.results["p99_ttft_ms"])
    missed = msgspec.structs.replace(record_, results=slower)
    search.tell(measured, outcome_of_record(missed, run))
    moved = {index: p99_of(search, index) for index in (like, other)}
    assert moved[like][0] > 1.08 * before[like][0]
    assert moved[like][0] / before[like][0] > moved[other][0] / before[other][0]
    assert moved[like][1] < 0.8 * before[like][1]


def test_trials_of_every_load_and_layout_are_simulated(monkeypatch):
    """So that percentiles are scaled between trials whose requests wait alike."""
    monkeypatch.setattr(predictions, "_SIMULATED", 12)
    run = run_with("ttft:p99<=400ms")
    space = Space(
        server=parse_settings(
            "tensor_parallel_size=[1,2,4];max_num_seqs=[64,128,256,512]", types={}
        ),
        client=parse_settings(
            "max_concurrency=[4,64];num_prompts=64;dataset_name=random;"
            "random_input_len=512;random_output_len=64",
            types={},
        ),
    )
    trials = [trial for group in trials_of(space, run) for trial in group]
    found = predictions.PredictedTrials(trials, run)
    exact = [simulate_trial(trial, run, cmd="", server_cmd_args=[]).results for trial in trials]
    apart = [
        abs(np.log(mine["p99_ttft_ms"] / its["p99_ttft_ms"]))
        for mine, its in zip(found.results, exact, strict=True)
    ]
    assert sum(each < 1e-9 for each in apart) >= 12
    assert max(apart) < 0.25
    assert found.closer(5)["p99_ttft_ms"] == exact[5]["p99_ttft_ms"]
