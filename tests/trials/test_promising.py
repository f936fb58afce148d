"""Few trials instead of a grid: those that promise most, each chosen after the last."""

import msgspec
import pytest

from servetune.errors import InputError
from servetune.hardware import node
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.trials import StudyContext, trials_of
from servetune.trials.promising import Promising
from servetune.trials.record import Outcome, record_of
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
    promising = Promising(trials, run)
    first = promising.next([])
    assert first is not None
    assert best([record(trial, run) for trial in trials], run).key == first.key


def test_what_was_measured_moves_what_is_asked_next():
    run = run_with("itl:mean<=60ms")
    trials = grid(run)
    promising = Promising(trials, run)
    truth = {trial.key: record(trial, run, slower=1.6) for trial in trials}
    records = []
    for _ in range(3):
        trial = promising.next(records)
        assert trial is not None
        assert trial.key not in {each.key for each in records}
        records.append(truth[trial.key])
    found, wanted = best(records, run), best(list(truth.values()), run)
    assert found.results["output_throughput"] >= 0.95 * wanted.results["output_throughput"]


def test_a_trial_that_failed_is_not_asked_for_again():
    run = run_with("itl:mean<=60ms")
    trials = grid(run)
    promising = Promising(trials, run)
    first = promising.next([])
    failed = msgspec.structs.replace(
        record_of(first, run, Outcome(cmd="", server_cmd_args=[])), status="failed"
    )
    second = promising.next([failed])
    assert second is not None
    assert second.key != first.key


def test_nothing_more_is_asked_once_all_has_been_measured():
    run = run_with("itl:mean<=60ms")
    trials = grid(run)
    assert Promising(trials, run).next([record(trial, run) for trial in trials]) is None


def test_without_a_machine_nothing_is_promised():
    run = run_with("itl:mean<=60ms")
    with pytest.raises(InputError, match="nothing can be predicted"):
        Promising(grid(run), msgspec.structs.replace(run, node=None))
