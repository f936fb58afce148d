"""Trials as a strategy asks for them: limits, put-off trials, and what is told of earlier calls."""

import msgspec
import pytest

from servetune.clock import VirtualClock
from servetune.hardware import node
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.store import Failure, Results
from servetune.trials import AskedTrials, Budget, ExecutionPolicy, StudyContext, trials_of
from servetune.trials.order import finished_records
from servetune.trials.record import Outcome, record_of

MODEL = "Qwen/Qwen3-4B"
STUDY = StudyContext(
    model=MODEL,
    engine="vllm",
    simulated=False,
    shape=load_shape(MODEL, catalogue_first=True),
    node=node(gpu="L4", count=2),
)


def groups_of(client):
    server = parse_settings("tensor_parallel_size=[1,2]", types={})
    return list(trials_of(Space(server=server, client=parse_settings(client, types={})), STUDY))


GROUPS = groups_of("max_concurrency=[1,2,3];num_prompts=4")
ALL = [trial for group in GROUPS for trial in group]


def record(trial, rate=10.0, failure=None, **fields):
    measured = {"output_throughput": rate, "p99_e2e_latency_ms": 5.0, **fields}
    results = Results() if failure else Results(**measured)
    outcome = Outcome(cmd="", server_cmd_args=[], results=results, failure=failure)
    return record_of(trial, STUDY, outcome)


PUT_OFF = Failure(kind="budget", reason="the budget of 1 h is used up")


def asked(unable=frozenset(), groups=GROUPS, **policy):
    return AskedTrials(groups, unable, STUDY, ExecutionPolicy(**policy))


def run(trials, failure=None):
    """Trials that are asked for until the end, each told as it ended."""
    done = []
    while (found := trials.next()) is not None:
        done.append(found[1].key)
        trials.tell(record(found[1], failure=failure))
    return done


def test_a_grid_is_run_whole_and_says_so():
    trials = asked()
    assert run(trials) == [trial.key for trial in ALL]
    assert str(trials.summary()) == "strategy grid: 6 of 6 trials were run; every trial was run"


def test_an_order_is_that_of_the_grid():
    interleaved = asked(order="interleaved", seed=3)
    numbers = []
    while (found := interleaved.next()) is not None:
        numbers.append(found[0])
        interleaved.tell(record(found[1]))
    assert [sorted(numbers[place : place + 2]) for place in (0, 2, 4)] == [[1, 2]] * 3


def test_a_limit_of_trials_counts_those_of_earlier_calls():
    whole = run(asked(strategy="random", seed=5))
    first, second = (asked(strategy="random", seed=5, max_trials=n) for n in (2, 4))
    assert run(first) == whole[:2]
    for key in whole[:2]:
        second.tell(record(next(trial for trial in ALL if trial.key == key)))
    assert run(second) == whole[2:4]
    assert str(second.summary()) == (
        "strategy random (seed 5): 4 of 6 trials were run; 4 were to be run (--max-trials)"
    )


def test_the_next_trial_is_given_to_the_server_that_has_its_settings_alone():
    trials = asked()
    for trial in GROUPS[0]:
        assert trials.next_on(2) is None
        assert trials.next_on(1) == trial
        trials.tell(record(trial))
    assert trials.next_on(1) is None
    assert trials.next_on(2) == GROUPS[1][0]
    assert trials.of_server(1) == ()
    assert trials.of_server(2) == tuple(GROUPS[1])


async def test_a_budget_ends_a_search_and_puts_the_rest_of_a_grid_off():
    clock = VirtualClock()
    searching, listing = (
        asked(budget=Budget(limit_s=60, clock=clock), **more) for more in ({"max_trials": 5}, {})
    )
    for trials in (searching, listing):
        trials.tell(record(ALL[0]))
    await clock.sleep(61)
    assert searching.next() is None
    assert run(listing, failure=PUT_OFF) == [trial.key for trial in ALL[1:]]
    for trials, reason in ((searching, "60.00 s"), (listing, "1 h")):
        summary = trials.summary()
        assert summary.trial_count == 1
        assert summary.stopped == f"the budget of {reason} is used up"


def test_a_search_ends_with_the_first_trial_that_is_put_off():
    trials = asked(strategy="random", max_trials=4)
    assert len(run(trials, failure=PUT_OFF)) == 1
    assert trials.summary().stopped == PUT_OFF.reason
    assert trials.summary().trial_count == 0


def test_trials_that_cannot_run_are_not_asked_for_and_are_counted():
    unable = frozenset(trial.key for trial in GROUPS[1])
    trials = asked(unable, strategy="random")
    assert set(run(trials)) == {trial.key for trial in GROUPS[0]}
    assert {trial.key for trial in trials.unable} == unable
    assert "3 of 6 trials were run, 3 cannot run here; every" in str(trials.summary())


@pytest.mark.parametrize(("retry_failed", "kept"), [(False, [0, 3, 1]), (True, [0, 1])])
def test_an_interrupted_study_is_told_in_the_order_in_which_its_trials_ended(retry_failed, kept):
    broken = Failure(kind="died", reason="it ended")
    journal = [
        record(ALL[0]),
        record(ALL[1], failure=PUT_OFF),
        record(ALL[2], failure=PUT_OFF),
        record(ALL[3], failure=broken),
        record(ALL[1]),
    ]
    journal = [msgspec.structs.replace(each, provenance={"seed": 1}) for each in journal]
    finished = finished_records(journal, STUDY, retry_failed=retry_failed)
    assert [each.key for each in finished] == [ALL[index].key for index in kept]


def test_starts_are_learnt_from_records_and_a_continued_search_learns_the_same():
    """One server measured all its trials where starts take long, several where they take none."""

    groups = groups_of("max_concurrency=[1,4,16];num_prompts=40")

    def servers(ready_s, told=()):
        trials = asked(groups=groups, strategy="guided", confidence=0.999, margin=0.001)
        for each in told:
            trials.tell(each)
        made = list(told)
        while (found := trials.next()) is not None:
            rate = 10.0 * found[1].workload.concurrency
            made.append(record(found[1], rate, server_ready_s=ready_s))
            trials.tell(made[-1])
        return made

    assert made_on(servers(0.01)) == [2, 1] * 3
    assert made_on(servers(5e4)) == [2, 2, 1, 1, 1, 2]
    whole = servers(5e4)
    assert [each.key for each in servers(5e4, told=whole[:2])] == [each.key for each in whole]


def made_on(records):
    return [each.config.server_args["tensor_parallel_size"] for each in records]


STRATEGIES = ["grid", "random", "guided", "tpe", "nsga2"]


def needing_its_package(strategy):
    if strategy in ("tpe", "nsga2"):
        pytest.importorskip("optuna")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_trial_that_is_put_off_comes_last_and_each_runs_once(strategy):
    needing_its_package(strategy)
    trials = asked(strategy=strategy, confidence=0.999999, margin=1e-6)
    first = trials.next()[1]
    assert trials.put_off(first.key) == ""
    done = run(trials)
    assert len(set(done)) == len(done)
    if strategy != "guided":  # which may be sure without it
        assert sorted(done) == sorted(trial.key for trial in ALL)
        assert done[-1] == first.key
    assert done[0] != first.key


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resumed_search_decides_as_one_whose_trials_were_put_off(strategy):
    needing_its_package(strategy)
    trials = asked(strategy=strategy, seed=2)
    first = trials.next()[1]
    trials.put_off(first.key)
    second = trials.next()[1]
    told = [record(second, rate=20.0), record(first, rate=30.0)]
    resumed = asked(strategy=strategy, seed=2)
    for one in told:
        trials.tell(one)
        resumed.tell(one)
    assert trials.next() == resumed.next()
    assert trials.summary() == resumed.summary()


def test_the_last_trial_and_one_that_ended_are_not_put_off():
    trials = asked()
    for trial in ALL[:-1]:
        trials.tell(record(trial))
    assert trials.put_off(ALL[0].key) == "it has ended"
    assert trials.put_off(ALL[-1].key) == "no other trial is to run before it"
    assert trials.next()[1] == ALL[-1]


def test_several_trials_are_put_off_and_run_in_their_order():
    trials = asked()
    for trial in ALL[:2]:
        assert trials.next()[1] == trial
        assert trials.put_off(trial.key) == ""
    assert run(trials) == [trial.key for trial in (*ALL[2:], *ALL[:2])]


def test_a_search_that_is_sure_without_a_trial_that_was_put_off_says_so():
    trials = asked(strategy="guided", confidence=0.1)
    first = trials.next()[1]
    trials.put_off(first.key)
    assert first.key not in run(trials)
    assert trials.summary().stopped.endswith("; 1 trial put off by hand did not run")


def test_the_regret_so_far_is_that_of_a_guided_search_alone():
    guided, grid = asked(strategy="guided"), asked()
    for trials in (guided, grid):
        assert trials.regret_fraction is None
        trials.tell(record(ALL[0]))
    assert grid.regret_fraction is None
    assert guided.regret_fraction == guided.summary().doubt.regret
