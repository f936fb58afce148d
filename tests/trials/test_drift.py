"""A reference trial that is measured again: when, and what is made of it."""

import datetime as dt

import msgspec
import numpy as np
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.store import Failure, Results
from servetune.trials import AskedTrials, ExecutionPolicy, StudyContext, trials_of
from servetune.trials.drift import drift_note
from servetune.trials.order import finished_records
from servetune.trials.record import Outcome, record_of

MODEL = "Qwen/Qwen3-4B"
STUDY = StudyContext(
    model=MODEL,
    engine="vllm",
    simulated=False,
    shape=load_shape(MODEL, catalogue_first=True),
    node=node(gpu="L4", count=4),
)
GROUPS = list(
    trials_of(
        Space(
            server=parse_settings("tensor_parallel_size=[1,2,4]", types={}),
            client=parse_settings("max_concurrency=[1,2,3,4,8];num_prompts=4", types={}),
        ),
        STUDY,
    )
)


class Machine:
    """Trials are slower by a share with each trial, from some trial on."""

    def __init__(self, *, slower=0.0, hours_each=0.0):
        self.slower, self.hours_each, self.count = slower, hours_each, 0

    def record(self, trial, failure=None):
        users, devices = trial.workload.concurrency, trial.plan.tensor_parallel
        factor = (1 - self.slower) ** self.count
        begun = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
        begun += dt.timedelta(hours=self.hours_each * self.count)
        self.count += 1
        rate = 100.0 * users**0.5 * devices**0.5 * factor
        results = Results(
            output_throughput=rate,
            p99_e2e_latency_ms=1e4 / factor,
            mean_ttft_ms=50.0 / factor,
            mean_tpot_ms=20.0 / factor,
            server_ready_s=30.0,
        )
        outcome = Outcome(
            cmd="",
            server_cmd_args=[],
            results=Results() if failure else results,
            failure=failure,
            provenance={"started_at": begun.isoformat()},
        )
        return record_of(trial, STUDY, outcome)


def asked(**policy):
    return AskedTrials(GROUPS, frozenset(), STUDY, ExecutionPolicy(**policy))


def run(trials, machine, journal=()):
    """Records as a journal gets them until the end."""
    journal = list(journal)
    while (found := trials.next()) is not None:
        assert trials.next() == found, "asking again changes nothing"
        journal.append(trials.kept(machine.record(found[1])))
        trials.tell(journal[-1])
    return journal


def repeats(journal):
    """Position of each repeat in the journal, and that of the trial's first run."""
    keys = [each.key for each in journal]
    return [
        (at, keys.index(each.key))
        for at, each in enumerate(journal)
        if "measured_again" in each.results
    ]


def test_a_grid_repeats_a_trial_of_the_best_server_once_that_tells_of_long_enough():
    """Fifteen trials; the best are the last five. The last has begun with none before it."""
    journal = run(asked(), Machine(slower=0.01))
    assert len(journal) == 16
    assert repeats(journal) == [(15, 0)], "no trial of the best server is old enough"
    assert "of the reference trial fell by" in journal[-1].results["measured_again"]["words"]


def test_a_trial_is_repeated_while_its_server_is_up_and_then_not_before_long():
    """The first server is the best, and comes again among the others."""
    trials = asked(strategy="random", seed=4)
    journal = run(trials, Machine())
    places = repeats(journal)
    assert places
    numbers = {trial.key: at for at, group in enumerate(GROUPS) for trial in group}
    for at, first in places:
        assert at - first >= 8
        assert at == len(journal) - 1 or numbers[journal[at].key] == numbers[journal[at - 1].key]
    assert "ran as before" in trials.summary().drift


@pytest.mark.parametrize(("hours_each", "count"), [(0.0, 0), (0.5, 1)])
def test_few_trials_are_enough_where_they_took_long(hours_each, count):
    journal = run(asked(strategy="random", max_trials=5), Machine(hours_each=hours_each))
    assert len(repeats(journal)) == count


def test_the_first_results_stay_and_the_change_is_said_with_both_trials():
    trials = asked()
    journal = run(trials, Machine(slower=0.02))
    again, first = journal[-1], journal[0]
    assert again.results.output_throughput == first.results.output_throughput
    words = trials.summary().drift
    assert words == again.results["measured_again"]["words"]
    assert words == (
        "output throughput of the reference trial fell by 26%, its mean time to first token rose "
        "by 35%, its mean time per output token rose by 35% between trial 1 and trial 15"
    )
    assert words in str(trials.summary())


def test_doubt_about_a_guided_pick_grows_by_drift():
    doubts, ttft_sds = [], []
    for slower in (0.0, 0.02):
        trials, machine = asked(strategy="guided"), Machine(slower=slower)
        for trial in [trial for group in GROUPS for trial in group][:12]:
            trials.tell(machine.record(trial))
        assert repeats(run(trials, machine))
        _, sds = trials._strategy.expected()
        doubts.append(np.median(sds[0]))
        ttft_sds.append(trials._watch.sds[1])
    assert doubts[1] > 2 * doubts[0]
    assert ttft_sds == [0.0, pytest.approx(0.3, abs=0.15)]


@pytest.mark.parametrize("strategy", ["grid", "guided", "tpe"])
def test_an_interrupted_study_goes_on_with_the_same_decisions(strategy):
    options = {"strategy": strategy, "margin": 0.0001, "confidence": 0.9999, "max_trials": 12}
    whole_search = asked(**options)
    whole = run(whole_search, Machine(slower=0.02))
    for count in (5, len(whole)):
        resumed, machine = asked(**options), Machine(slower=0.02)
        machine.count = count
        kept = [msgspec.structs.replace(each, provenance={**each.provenance}) for each in whole]
        for each in finished_records(kept[:count], STUDY, retry_failed=False):
            resumed.tell(each)
        assert [each.key for each in run(resumed, machine, kept[:count])] == [
            each.key for each in whole
        ]
        assert resumed.summary() == whole_search.summary()


def test_a_repeat_that_is_told_as_it_was_measured_is_one_all_the_same():
    trials, machine, keys = asked(), Machine(slower=0.02), []
    while (found := trials.next()) is not None:
        keys.append(found[1].key)
        trials.tell(machine.record(found[1]))
    assert len(keys) == 16
    assert "fell by 26%" in trials.summary().drift


def test_a_repeat_that_fails_is_said_and_changes_nothing():
    trials, machine = asked(), Machine()
    journal = []
    while (found := trials.next()) is not None:
        failure = Failure(kind="died", reason="it ended") if len(journal) == 15 else None
        journal.append(trials.kept(machine.record(found[1], failure)))
        trials.tell(journal[-1])
    assert len(journal) == 16
    assert journal[-1].status == "ok"
    assert trials.summary().drift == "the reference trial was not measured again: it ended"


def test_a_run_that_ended_early_tells_nothing():
    trial = GROUPS[0][0]
    first, again = Machine().record(trial), Machine(slower=0.5).record(trial)
    cut = again.results.with_fields(ended_reason="ttft:p99<=1s is missed")
    note = drift_note(first.results, msgspec.structs.replace(again, results=cut), between=(1, 9))
    assert not note["drifted"]
    assert "ended early" in note["words"]
