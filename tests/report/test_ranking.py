from __future__ import annotations

import msgspec
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.plan.plan import Plan
from servetune.report import candidates_of, check_constraints, label_of, picks, ranked, varying
from servetune.report.ranking import devices_of
from servetune.store.schema import TrialConfig, record_from_json

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def test_only_what_was_swept_names_a_trial():
    records = factory.sweep()
    names = varying(records)
    assert names.server == ("tensor_parallel_size", "max_num_batched_tokens")
    assert names.client == ("max_concurrency",)
    assert label_of(records[0], names) == "TP1 · batched tokens 4096 · concurrency 32"


def test_a_setting_that_only_some_records_name_varies():
    one, other = factory.record(), factory.record()
    other = msgspec.structs.replace(
        other,
        config=TrialConfig(
            server_args={**other.config.server_args, "enforce_eager": True},
            client_args=other.config.client_args,
        ),
    )
    names = varying([one, other])
    assert names.server == ("enforce_eager",)
    assert [label_of(r, names) for r in (one, other)] == ["enforce_eager –", "enforce_eager True"]


def test_a_single_trial_is_named_by_its_server_settings():
    record = factory.record()
    assert label_of(record, varying([record])) == "TP4 · batched tokens 8192"


def test_failed_trials_are_no_candidates():
    records = factory.sweep()
    assert len(candidates_of(records)) == 25
    assert len(ranked(records, LIMITS)) == 25


def test_repeats_of_a_trial_are_one_candidate_judged_by_their_mean():
    def run(seed, throughput, *, key, plan=True):
        one = factory.sweep()[0]
        config = msgspec.structs.replace(
            one.config, client_args={**one.config.client_args, **({"seed": seed} if seed else {})}
        )
        results = one.results.with_fields(output_throughput=throughput)
        return msgspec.structs.replace(
            one, key=key, config=config, results=results, plan=Plan(model="m") if plan else None
        )

    other = msgspec.structs.replace(run(None, 105.0, key="other"), metadata={"gpu_type": "B"})
    runs = [run(None, 90.0, key="one"), run(2, 110.0, key="two"), run(3, 100.0, key="three")]
    once, twice = candidates_of([*runs, other])
    assert (once.key, once.results["output_throughput"]) == ("one", 100.0)
    assert once.label == "TP1 · batched tokens 4096 (mean of 3 runs)"
    assert picks([*runs, other], ())["throughput"].chosen.key == twice.key == "other"
    benched = [run(None, 90.0, key="a", plan=False), run(2, 110.0, key="b", plan=False)]
    assert len(candidates_of(benched)) == 2, "two servers may have had one address"


def test_each_pick_is_the_best_of_those_that_meet_every_constraint():
    records = factory.sweep()
    chosen = {name: pick.chosen for name, pick in picks(records, LIMITS).items()}
    by_key = {r.key: r for r in records}
    meeting = [r for r in records if r.status == "ok" and check_constraints(r, LIMITS).meets_all]
    assert list(chosen) == ["throughput", "latency", "cost"]
    assert by_key[chosen["throughput"].key].results["output_throughput"] == max(
        r.results["output_throughput"] for r in meeting
    )
    assert by_key[chosen["latency"].key].results["p99_e2e_latency_ms"] == min(
        r.results["p99_e2e_latency_ms"] for r in meeting
    )


def test_without_prices_there_is_no_cost_pick():
    foreign = [record_from_json(factory.foreign_json(users)) for users in (32, 64)]
    assert picks(foreign, ())["cost"].chosen is None


def test_standing_tells_missed_from_not_measured():
    record = factory.record(1, 8192, 128)
    limits = parse_constraints("e2e_latency:p99<=60s;goodput>=1;error_rate<=0.01")
    standing = check_constraints(record, limits)
    assert [c.metric for c in standing.missed] == ["e2e_latency"]
    assert [c.metric for c in standing.unknown] == ["goodput"]
    assert [c.metric for c in standing.met] == ["error_rate"]
    assert not standing.meets_all


def test_trials_that_meet_all_come_first_and_then_the_fastest():
    order = ranked(factory.sweep(), LIMITS)
    meets = [check_constraints(r, LIMITS).meets_all for r in order]
    assert meets == sorted(meets, reverse=True)
    rates = [
        r.results["output_throughput"] for r in order if check_constraints(r, LIMITS).meets_all
    ]
    assert rates == sorted(rates, reverse=True)


def test_trials_with_too_many_failed_requests_stand_below_the_others_of_their_standing():
    records = factory.dirty_sweep()
    order = [
        (not check_constraints(r, LIMITS).meets_all, r.results["error_rate"] > 0.01)
        for r in ranked(records, LIMITS)
    ]
    assert order == sorted(order)
    assert (False, True) in order
    chosen = picks(records, LIMITS)["throughput"].chosen
    assert chosen is not None
    assert ranked(records, LIMITS)[0].key == chosen.key
    own = parse_constraints("error_rate<=0.5")
    rates = [r.results["output_throughput"] for r in ranked(records, own)]
    assert rates == sorted(rates, reverse=True)


def test_devices_are_those_of_the_plan_and_not_of_the_machine():
    record = factory.record(2)
    foreign = record_from_json(factory.foreign_json())
    planned = msgspec.structs.replace(record, plan=Plan(model="m", tensor_parallel=2, replicas=2))
    bare = msgspec.structs.replace(foreign, config=TrialConfig())
    assert devices_of(planned) == 4
    assert devices_of(record) == 2
    assert devices_of(foreign) == 4
    assert devices_of(bare) == 4  # nothing says how it was split: the machine's count
