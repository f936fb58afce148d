"""Importance of settings, on metrics that follow known laws of them."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import report_records as factory

from servetune.report.importance import all_importances, importances
from servetune.report.ranking import varying
from servetune.store.schema import TrialConfig, TrialRecord

METRIC = ("output_throughput", "mean")


def trials(law, server, client=None, *, keep=None, sampling=None):
    """Trials of a grid of settings, whose throughput is `law` of them."""
    client = client or {}
    names = [*server, *client]
    made = []
    for index, values in enumerate(product(*server.values(), *client.values())):
        if keep and not keep(index):
            continue
        chosen = dict(zip(names, values, strict=True))
        value = law(SimpleNamespace(**chosen))
        results = {"output_throughput": value}
        if sampling:
            ends = [value * (1 - sampling), value * (1 + sampling)]
            results["intervals"] = {"output_throughput": ends}
        made.append(
            TrialRecord(
                key=f"{index:016x}",
                config=TrialConfig(
                    server_args={name: chosen[name] for name in server},
                    client_args={name: chosen[name] for name in client},
                ),
                results=results,
            )
        )
    return made


def importance(records, metric=METRIC):
    [found] = importances(records, varying(records), [metric])
    return found


def by_name(records):
    return {one.name: one for one in importance(records).settings}


def test_shares_on_a_grid_are_those_of_the_analysis_of_variance():
    effects = {"a": {1: 0.0, 2: 0.3, 3: 0.9}, "b": {"x": 0.0, "y": 0.2}, "c": {1: 0, 2: 0, 3: 0}}
    found = by_name(
        trials(
            lambda s: math.exp(sum(effects[name][v] for name, v in vars(s).items())),
            {name: list(each) for name, each in effects.items()},
        )
    )
    variance = {name: np.var(list(each.values())) for name, each in effects.items()}
    for name in effects:
        share = variance[name] / sum(variance.values())
        assert found[name].share_fraction == pytest.approx(share, abs=1e-6)
        change = math.expm1(2 * math.sqrt(variance[name]))
        assert found[name].change_fraction == pytest.approx(change, abs=1e-6)
    assert found["b"].change_fraction == pytest.approx(math.expm1(0.2))  # between its two values
    assert {name: one.standing for name, one in found.items()} == {
        "a": "matters",
        "b": "matters",
        "c": "nothing",
    }
    factors = {level.value: level.factor for level in found["a"].levels}
    assert factors["3"] / factors["1"] == pytest.approx(math.exp(0.9))
    assert [level.trial_count for level in found["a"].levels] == [6, 6, 6]


def test_a_guided_search_gives_the_same_effects_as_its_grid():
    law = lambda s: 100 * s.a**0.7 * (1.3 if s.b else 1)  # noqa: E731
    space = {"a": [1, 2, 4], "b": [True, False], "c": [1, 2, 3]}
    # Where the best is searched, large `a` are tried with `b` far more often than without.
    searched = trials(law, space, keep=lambda index: index in {0, 4, 7, 8, 9, 12, 13, 14, 16})
    whole, part = by_name(trials(law, space)), by_name(searched)
    for name in ("a", "b"):
        ratios = [
            max(level.factor for level in found[name].levels)
            / min(level.factor for level in found[name].levels)
            for found in (whole, part)
        ]
        assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)
        assert part[name].standing == "matters"
    assert part["c"].standing == "nothing"
    assert part["c"].share_fraction == 0


def test_a_setting_that_moves_with_another_one_is_not_credited_with_its_effect():
    rng = np.random.default_rng(1)
    records = trials(
        lambda s: math.exp(0.5 * s.a + 0.01 * rng.standard_normal()),
        {"a": [0, 1], "b": [0, 1], "n": list(range(5))},
    )
    alike = [r for r in records if r.config.server_args["a"] == r.config.server_args["b"]]
    found = by_name([*alike, *(r for r in records[5:15:3])])
    assert found["a"].share_fraction > 0.3
    assert found["b"].share_fraction < 0.01
    assert found["b"].standing == "nothing"


def test_settings_that_matter_only_together_matter():
    found = by_name(
        trials(
            lambda s: 100 * (2 if s.a == s.b else 1),
            {"a": [0, 1], "b": [0, 1], "c": [1, 2, 3, 4]},
        )
    )
    assert found["a"].standing == found["b"].standing == "matters"
    assert found["c"].standing == "nothing"


def test_too_few_trials_for_pairs_leave_open_what_pairs_may_do():
    records = trials(lambda s: 2 if s.a == s.b else 1, {name: [0, 1] for name in "abc"})
    assert {one.standing for one in importance(records).settings} == {"unclear"}


def test_settings_that_always_change_together_cannot_be_told_apart():
    records = trials(
        lambda s: 100 * s.a * s.c,
        {"a": [1, 2], "b": [1, 2], "c": [1, 2, 3, 4]},
        keep=lambda index: index < 4 or index >= 12,
    )
    found = by_name(records)
    assert found["a"].standing == found["b"].standing == "inseparable"
    assert found["c"].standing == "matters"


def test_noise_is_not_a_finding():
    wrong = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = by_name(
            trials(
                lambda s, rng=rng: 100 * s.a * math.exp(0.1 * rng.standard_normal()),
                {"a": [1, 2, 4], "b": [1, 2, 3], "c": [1, 2, 3]},
            )
        )
        assert found["a"].standing == "matters"
        wrong += sum(found[name].standing == "matters" for name in ("b", "c"))
    assert wrong <= 6  # of 40 with a chance of one in twenty each: more in 1 of 100 series


def test_sampling_intervals_say_what_is_noise():
    law = lambda s: 100 * (1.02 if s.a == 2 else 1) * s.b  # noqa: E731
    space = {"a": [1, 2], "b": [1, 2, 3, 4]}
    assert by_name(trials(law, space))["a"].standing == "matters"
    assert by_name(trials(law, space, sampling=0.05))["a"].standing == "nothing"


def test_the_load_does_not_hide_the_server_settings():
    server, client = {"a": [1, 2, 4]}, {"max_concurrency": [1, 32, 1024]}
    alone = by_name(trials(lambda s: s.a, server, client))
    loaded = by_name(trials(lambda s: s.a * s.max_concurrency, server, client))
    assert loaded["a"].share_fraction == pytest.approx(alone["a"].share_fraction)
    assert loaded["a"].share_fraction == pytest.approx(1)
    assert loaded["max_concurrency"].share_fraction == pytest.approx(1)
    assert [loaded[name].side for name in ("a", "max_concurrency")] == ["server", "client"]


def test_many_values_of_a_number_are_a_trend():
    rng = np.random.default_rng(7)
    records = trials(
        lambda s: s.a**0.5 * math.exp(0.02 * rng.standard_normal()),
        {"a": [2**n for n in range(12)], "b": [0, 1]},
    )
    found = by_name(records)
    assert found["a"].share_fraction > 0.98
    first, *_, last = found["a"].levels
    assert (first.value, last.value) == ("1", "2048")
    assert last.factor / first.factor == pytest.approx(2048**0.5, rel=0.05)
    assert len(found["a"].levels) == 5


def test_failed_trials_are_left_out_and_small_runs_say_why():
    records = factory.sweep()
    whole = importance(records)
    assert whole.trial_count == 25
    names = [one.name for one in whole.settings]
    assert names == ["tensor_parallel_size", "max_num_batched_tokens", "max_concurrency"]
    assert whole.settings[0].share_fraction > 0.9
    few = importance(records[:3])
    assert few.settings == ()
    assert few.reason == "3 successful trials are too few: 4 are needed"
    same = [msgspec.structs.replace(records[0], key=str(n)) for n in range(5)]
    assert importance(same).reason.startswith("no setting was varied")


def test_every_metric_with_values_is_analysed():
    found = {(one.metric, one.statistic): one for one in
             all_importances(factory.sweep(), varying(factory.sweep()))}  # fmt: skip
    assert ("ttft", "p99") in found
    assert found["cost_per_million_tokens", "mean"].settings[0].name == "tensor_parallel_size"
    assert ("error_rate", "mean") not in found  # 0 in every trial: no ratio
    assert ("goodput", "mean") not in found  # not measured
