from __future__ import annotations

import msgspec
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import suggestions


def with_results(record, **changes):
    return msgspec.structs.replace(record, results={**record.results, **changes})


def rated(record, rate, **changes):
    usual = {"mean_itl_ms": 20.0, "mean_ttft_ms": 20.0}
    return with_results(record, output_throughput=rate, **{**usual, **changes})


def test_a_slow_first_token_names_the_lighter_load_that_was_shorter():
    record = rated(factory.record(), 1000.0, mean_ttft_ms=500.1)
    assert suggestions(record) == [
        "mean TTFT 500.1 ms is above 500 ms: a lighter load was not tried"
    ]
    light = rated(factory.record(users=16), 600.0, mean_ttft_ms=90.0)
    (text, _) = suggestions(record, [light, record])
    assert text == "mean TTFT 500.1 ms is above 500 ms: with concurrency 16 it was 90.0 ms"
    assert suggestions(rated(record, 1000.0, mean_ttft_ms=500.0)) == []


def test_long_gaps_never_suggest_a_split_that_was_tried_and_was_longer():
    record = rated(factory.record(tp=2), 1000.0, mean_itl_ms=50.5)
    (untried,) = suggestions(record)
    assert "were not tried" in untried
    longer = rated(factory.record(tp=4), 700.0, mean_itl_ms=80.0)
    said = suggestions(record, [record, longer])
    assert said == [
        "mean ITL 50.5 ms is above 50 ms: no other split of the GPUs was shorter",
        "TP4 was slower: -30% output tokens/s",
    ]
    shorter = rated(factory.record(tp=4), 1200.0, mean_itl_ms=30.0)
    said = suggestions(record, [record, shorter])
    assert said == [
        "mean ITL 50.5 ms is above 50 ms: with TP4 it was 30.0 ms",
        "TP4 was faster: +20% output tokens/s",
    ]


def test_a_setting_without_effect_is_named_with_its_effect():
    trials = [
        rated(factory.record(batched=batched), rate)
        for batched, rate in ((4096, 1000.0), (8192, 1001.0), (16384, 1002.0))
    ]
    (text,) = suggestions(trials[0], trials)
    assert text == "batched tokens changed nothing: 0.2% of the output tokens/s between 3 values"


def test_a_setting_is_judged_at_the_same_load_alone():
    mine = rated(factory.record(users=64), 1000.0)
    elsewhere = rated(factory.record(tp=2, users=32), 5000.0)
    alone = rated(factory.record(users=32), 600.0)
    assert suggestions(mine, [mine, elsewhere, alone]) == [
        "throughput still grows (+67% from 32 to 64): try 96 to 128 users next"
    ]
    here = rated(factory.record(tp=2, users=64), 800.0)
    assert "TP2 was slower at concurrency 64: -20% output tokens/s" in suggestions(
        mine, [mine, elsewhere, alone, here]
    )


def test_loads_between_the_last_that_holds_and_the_first_that_does_not():
    limits = parse_constraints("ttft<=100ms")
    light = rated(factory.record(users=16), 700.0)
    good = rated(factory.record(users=32), 1000.0)
    late = rated(factory.record(users=64), 1500.0, mean_ttft_ms=140.0)
    (text,) = suggestions(good, [light, good, late], limits)
    assert text == ("the constraints hold with 32 users and not with 64: try 40 to 56 next")
    near = rated(factory.record(users=34), 1050.0, mean_ttft_ms=140.0)
    (text,) = suggestions(good, [light, good, near], limits)
    assert text == ("the constraints hold with 32 users and not with 34: try 33 next")


def test_a_plateau_of_the_same_server_suggests_scaling_out():
    light = rated(factory.record(users=32), 1000.0)
    heavy = rated(factory.record(users=64), 1030.0)
    (text,) = suggestions(heavy, [light, heavy])
    assert "+3.0% from max_concurrency 32 to 64" in text
    assert "flattened" not in " ".join(suggestions(rated(heavy, 1100.0), [light, heavy]))


def test_another_server_configuration_shows_no_plateau():
    other = rated(factory.record(tp=2, users=32), 1000.0)
    heavy = rated(factory.record(users=64), 1000.0)
    assert suggestions(heavy, [other, heavy]) == []


def test_a_failed_trial_suggests_nothing_and_is_no_evidence():
    failed = next(r for r in factory.sweep() if r.status == "failed")
    assert suggestions(failed, factory.sweep()) == []
    mine = rated(factory.record(), 1000.0)
    mostly_failed = rated(factory.record(tp=2), 3000.0, failed=900, error_rate=0.9)
    assert suggestions(mine, [mine, mostly_failed]) == []


def test_splits_that_are_swept_as_pairs_are_one_setting():
    def laid(tensor, data, rate):
        record = rated(factory.record(tp=tensor), rate)
        args = {**record.config.server_args, "data_parallel_size": data}
        config = msgspec.structs.replace(record.config, server_args=args)
        return msgspec.structs.replace(record, config=config)

    trials = [laid(1, 4, 2000.0), laid(2, 2, 1500.0), laid(4, 1, 900.0)]
    (text,) = suggestions(trials[0], trials)
    assert text.startswith("TP2 DP2 was slower: -25%")


def test_a_plateau_is_less_than_five_percent_from_two_thirds_of_the_load():
    light = rated(factory.record(users=32), 1000.0)

    def flattened(users, rate):
        heavy = rated(factory.record(users=users), rate)
        return any("flattened" in text for text in suggestions(heavy, [light, heavy]))

    assert flattened(48, 1049.0)
    assert not flattened(48, 1051.0)
    assert not flattened(47, 1049.0)


def test_values_within_one_percent_changed_nothing():
    mine = rated(factory.record(), 1000.0)
    said = [
        suggestions(mine, [mine, rated(factory.record(batched=4096), rate)])
        for rate in (1009.9, 1010.2)
    ]
    assert "changed nothing" in said[0][0]
    assert "was faster" in said[1][0]
