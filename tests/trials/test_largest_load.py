"""Searches for the largest load: keys of runs, resumed decisions, servers that fail, and words."""

import math
import random

import msgspec
import pytest

from servetune.errors import InputError, UnknownName
from servetune.hardware import node
from servetune.metrics import parse_constraints
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.store import Failure, Results
from servetune.trials import ExecutionPolicy, LargestLoads, LoadKnob, StudyContext, trials_of
from servetune.trials.record import Outcome, record_of

MODEL = "Qwen/Qwen3-4B"
LIMITS = parse_constraints("ttft<=100ms;request_throughput>=5")
STUDY = StudyContext(
    model=MODEL, engine="vllm", simulated=False, shape=None, node=None, constraints=LIMITS
)
#: Users that each configuration bears.
BEARS = {1: 11.5, 2: 37.5}


def searches(find="max_concurrency", *, study=STUDY, client="num_prompts=400", **policy):
    knob = LoadKnob.parse(find)
    space = Space(
        server=parse_settings("tensor_parallel_size=[1,2]", types={}),
        client=parse_settings(f"{client};{knob.name}={knob.lowest:g}", types={}),
    )
    groups = list(trials_of(space, study))
    return LargestLoads(groups, knob, study, ExecutionPolicy(**policy))


def record(trial, *, rng=None, failure=None, study=STUDY, throughput=10.0):
    """Record of a trial whose TTFT is at its limit with as many users as the server bears."""
    args = trial.client_args
    load = args.get("max_concurrency", args.get("request_rate"))
    ratio = load / BEARS[trial.server_args["tensor_parallel_size"]]
    ttft_ms = 100 * ratio * math.exp(rng.gauss(0, 0.05) if rng else 0)
    results = Results(
        mean_ttft_ms=ttft_ms,
        mean_e2e_latency_ms=50 + 10 * ratio**3,
        p99_e2e_latency_ms=100.0,
        output_throughput=min(load, 30) * 10.0,
        request_throughput=throughput,
        intervals={"mean_ttft_ms": [ttft_ms * 0.95, ttft_ms * 1.05]},
    )
    outcome = Outcome(
        cmd="", server_cmd_args=[], results=Results() if failure else results, failure=failure,
        provenance={"seed": 1},
    )  # fmt: skip
    return record_of(trial, study, outcome)


def run(search, **options):
    """Trials that are asked for until the end, each told as it ended."""
    told = []
    while (found := search.next()) is not None:
        told.append(record(found[1], **options))
        search.tell(told[-1])
        assert len(told) < 100
    return told


def test_each_configuration_has_its_largest_load_and_one_server_at_a_time():
    search = searches()
    told = run(search)
    sizes = [each.config.server_args["tensor_parallel_size"] for each in told]
    assert sizes == sorted(sizes)
    for found, size in zip(search.found(), (1, 2), strict=True):
        assert found.label == f"tensor_parallel_size={size}"
        assert found.answer.held <= BEARS[size] < found.answer.failing
        assert found.answer.failing < 1.4 * found.answer.held
        assert found.answer.confidence >= 0.95
        assert found.answer.run_count == sizes.count(size)
        assert found.knees[0].load == found.answer.held
    assert search.summary().trial_count == len(told) == search.expected_count


def test_every_run_has_a_key_of_its_own_and_a_repeat_has_another_seed():
    told = run(searches())
    assert len({each.key for each in told}) == len(told)
    by_load = {}
    for each in told:
        place = (each.config.server_args["tensor_parallel_size"],)
        place += (each.config.client_args["max_concurrency"],)
        by_load.setdefault(place, []).append(each.config.client_args.get("seed"))
    repeated = [seeds for seeds in by_load.values() if len(seeds) > 1]
    assert repeated, "the loads near the limit are run again"
    assert all(seeds == [None, 2, 3][: len(seeds)] for seeds in by_load.values())


def test_an_interrupted_search_goes_on_with_the_same_decisions():
    rng = random.Random(5)
    whole, told = searches(), []
    while (found := whole.next()) is not None:
        told.append(record(found[1], rng=rng))
        whole.tell(told[-1])
    for count in range(0, len(told), 3):
        again = searches()
        for each in rng.sample(told[:count], count):
            assert again.has(each)
            again.tell(each)
            again.tell(each)  # as a journal may hold it twice
        found = again.next()
        assert found is not None
        assert found[1].key == told[count].key


def test_records_of_other_trials_are_not_taken():
    search = searches()
    theirs = run(searches(client="num_prompts=401"))
    assert not any(map(search.has, theirs))
    for each in theirs:
        search.tell(each)
    assert (search.summary().trial_count, search.found()) == (0, ())


def test_a_server_that_does_not_start_is_not_asked_for_other_loads():
    for failure in (
        Failure(kind="not_ready", reason="it did not answer"),
        Failure(kind="does_not_fit", reason="too large"),
    ):
        search = searches()
        _, trial = search.next()
        search.tell(record(trial, failure=failure))
        assert search.next()[0] == 2
        assert f"no largest load: {failure.reason}" in str(search.found()[0])


def test_a_server_whose_start_failed_with_that_reason_is_not_asked_again():
    search = searches()
    died = Failure(kind="died", reason="it ended with 1")
    for reason, server in (("another", 1), (died.reason, 2)):
        broken = record(search.next()[1], failure=died)
        attempts = [{"of": "start", "reason": reason}]
        search.tell(msgspec.structs.replace(broken, provenance={"attempts": attempts}))
        assert (search.next() or (None,))[0] == (2 if server == 1 else None)


def test_a_server_that_dies_under_a_load_has_failed_that_load():
    search = searches("max_concurrency=8..64")
    search.tell(record(search.next()[1]))
    _, trial = search.next()
    assert trial.client_args["max_concurrency"] == 16
    search.tell(record(trial, failure=Failure(kind="died", reason="out of memory")))
    assert 8 < search.next()[1].client_args["max_concurrency"] < 16


def test_a_search_ends_where_the_budget_does_and_with_the_number_of_trials():
    search = searches(max_trials=4)
    assert len(run(search)) == 4
    assert "4 were to be run" in search.summary().stopped
    search = searches()
    put_off = Failure(kind="budget", reason="the budget of 1 h is used up")
    assert len(run(search, failure=put_off)) == 1
    assert (search.summary().trial_count, search.found()) == (0, ())


def test_a_strategy_may_choose_the_configurations():
    numbers = {
        seed: run(searches(strategy="random", order="random", seed=seed))[0].config.server_args
        for seed in range(6)
    }
    assert len({repr(each) for each in numbers.values()}) == 2


def test_users_are_no_more_than_requests_and_requests_grow_where_they_are_not_given():
    [found] = {f.answer.held for f in _bear_all(searches(client="num_prompts=40"))}
    assert found == 40
    search = searches(client="random_input_len=8")
    trial = search.next()[1]
    assert trial.client_args["num_prompts"] == 1000
    for each in run(search):
        args = each.config.client_args
        assert args["num_prompts"] == max(1000, 4 * args["max_concurrency"])


def _bear_all(search):
    while (found := search.next()) is not None:
        light = {**found[1].client_args, "max_concurrency": 1}
        cheap = record(msgspec.structs.replace(found[1], client_args=light))
        config = msgspec.structs.replace(cheap.config, client_args=found[1].client_args)
        search.tell(msgspec.structs.replace(cheap, config=config))
    return search.found()


def test_the_words_name_limit_loads_confidence_knees_and_what_else_is_missed():
    search = searches()
    run(search, throughput=4.2)
    text = str(search.found()[0])
    assert "tensor_parallel_size=1: ttft<=100ms: held up to " in text
    assert "% sure, " in text
    assert "request_throughput>=5 is missed there: 4.2" in text
    assert "by half latency" in text
    assert "by doubled latency" in text
    assert "by curvature" in text


def test_the_summary_says_how_sure_the_best_configuration_is():
    search = searches()
    told = run(search)
    doubt = search.summary().doubt
    best = search.found()[1]
    (picked,) = (each for each in told if each.key == doubt.key)
    assert picked.config.client_args["max_concurrency"] == best.answer.held
    assert doubt.label == "tensor_parallel_size=2"
    assert doubt.best > 0.99
    assert doubt.holds["ttft<=100ms"] >= best.answer.confidence
    assert "tensor_parallel_size=2 is within 2% of the best with" in str(search.summary())


def test_configurations_that_bear_alike_are_not_told_apart(monkeypatch):
    monkeypatch.setitem(BEARS, 1, 28.5)
    monkeypatch.setitem(BEARS, 2, 29.5)
    search = searches()
    run(search)
    doubt = search.summary().doubt
    assert 0.3 < doubt.best < 0.9
    assert [each.label for each in doubt.rivals] != [doubt.label]
    assert doubt.best + sum(each.best for each in doubt.rivals) == pytest.approx(1, abs=0.02)


def test_the_doubt_is_about_those_that_were_searched_and_a_simulation_has_none():
    search = searches(max_trials=5)
    told = run(search)
    assert {each.config.server_args["tensor_parallel_size"] for each in told} == {1}
    assert search.summary().doubt.among == "the 1 of 2 searched"
    assert "within 2% of the best of the 1 of 2 searched with" in str(search.summary())
    virtual = msgspec.structs.replace(STUDY, simulated=True)
    search = searches(study=virtual)
    run(search, study=virtual)
    assert search.summary().doubt is None


def test_the_best_is_the_best_within_the_margin_as_often_as_it_is_said_to_be(monkeypatch):
    rng, said, right = random.Random(2), [], []
    for _ in range(40):
        bears = {size: math.exp(rng.uniform(3.0, 3.3)) for size in (1, 2)}
        for size, users in bears.items():
            monkeypatch.setitem(BEARS, size, users)
        search = searches()
        told = run(search, rng=rng)
        doubt = search.summary().doubt
        (picked,) = (each for each in told if each.key == doubt.key)
        mine = math.floor(bears[picked.config.server_args["tensor_parallel_size"]])
        said.append(doubt.best)
        right.append(max(map(math.floor, bears.values())) <= mine * 1.02)
    assert sum(right) >= sum(said) - 4


def test_a_prediction_is_where_the_search_begins():
    limits = parse_constraints("tpot<=40ms")
    study = msgspec.structs.replace(
        STUDY,
        shape=load_shape(MODEL, catalogue_first=True),
        node=node(gpu="L4", count=2),
        constraints=limits,
    )
    client = "num_prompts=30;random_input_len=32;random_output_len=8"
    starts = []
    for limit in ("tpot<=36ms", "tpot<=45ms"):
        known = msgspec.structs.replace(study, constraints=parse_constraints(limit))
        starts.append(searches(study=known, client=client).next()[1].client_args["max_concurrency"])
    assert 1 < starts[0] < starts[1] <= 30


@pytest.mark.parametrize(
    ("text", "name", "least", "most"),
    [
        ("max_concurrency", "max_concurrency", None, None),
        ("concurrency=8..512", "max_concurrency", 8, 512),
        (" request_rate = 0.5 .. 40 ", "request_rate", 0.5, 40),
        ("rate=..40", "request_rate", None, 40),
        ("rate=2..", "request_rate", 2, None),
    ],
)
def test_a_setting_to_find_is_read_with_its_bounds(text, name, least, most):
    assert LoadKnob.parse(text) == LoadKnob(name=name, least=least, most=most)


@pytest.mark.parametrize(
    "text", ["max_concurrency=8", "rate=5..2", "max_concurrency=0..4", "concurrency=1.5..3", ""]
)
def test_bounds_without_a_load_are_refused(text):
    with pytest.raises(InputError) as caught:
        LoadKnob.parse(text)
    assert caught.value.hint


def test_a_setting_that_is_no_load_is_refused_with_those_that_are():
    with pytest.raises(UnknownName, match="'num_prompts'"):
        LoadKnob.parse("num_prompts=1..5")
