import math

import pytest

from servetune.metrics import parse_constraints
from servetune.store import Failure, Results, TrialConfig, TrialRecord
from servetune.trials.margins import ASSUMED_SD, RUN_TO_RUN_SD, margin_of, worsened_by_load

LIMITS = parse_constraints("ttft:p99<=200ms;itl<=50ms")


def record(results=None, *, status="ok", simulated=False, **fields):
    return TrialRecord(
        config=TrialConfig(),
        results=Results({"p99_ttft_ms": 100.0, "mean_itl_ms": 40.0} | (results or {})),
        status=status,
        simulated=simulated,
        provenance={} if simulated else {"seed": 1},
        **fields,
    )


def test_the_margin_is_that_of_the_constraint_nearest_to_its_limit():
    assert margin_of(record(), LIMITS).ratio == pytest.approx(0.8)
    assert margin_of(record({"p99_ttft_ms": 300.0}), LIMITS).ratio == pytest.approx(1.5)


def test_its_error_is_that_of_the_interval_and_of_the_variation_between_runs():
    found = margin_of(record({"intervals": {"mean_itl_ms": [36.0, 44.0]}}), LIMITS)
    within = math.log(44 / 36) / 2 / 1.96
    assert found.sd == pytest.approx(math.hypot(within, RUN_TO_RUN_SD))
    assert not found.assumed
    half = margin_of(record({"intervals": {"mean_itl_ms": [36.0, None]}}), LIMITS)
    assert half.sd == pytest.approx(math.hypot(math.log(40 / 36) / 1.96, RUN_TO_RUN_SD))


def test_without_an_interval_an_error_is_assumed_and_said():
    found = margin_of(record(), LIMITS)
    assert found.assumed
    assert found.sd == pytest.approx(math.hypot(ASSUMED_SD, RUN_TO_RUN_SD))


def test_a_simulated_trial_has_no_error():
    assert margin_of(record(simulated=True), LIMITS).sd == 0


@pytest.mark.parametrize(
    "missed",
    [
        record(status="failed", failure=Failure(kind="died", reason="it ended")),
        record({"saturation": {"saturated": True, "words": "the queue grew"}}),
        record({"server": {"saturated": True}}),
        record({"ended_reason": "itl<=50ms is missed: 51 ms or more in 100 answers"}),
        record({"mean_itl_ms": None}),
    ],
)
def test_what_the_server_could_not_bear_is_missed_for_certain(missed):
    assert margin_of(missed, LIMITS).ratio == math.inf


def test_a_trial_that_ended_early_for_another_reason_counts_with_its_figures():
    ended = record({"ended_reason": "the trial's 30 s were over"})
    assert margin_of(ended, LIMITS).ratio == pytest.approx(0.8)


def test_failed_requests_have_the_error_of_a_share():
    limits = parse_constraints("error_rate<=0.02")
    found = margin_of(record({"error_rate": 0.01, "completed": 990, "failed": 10}), limits)
    assert found.ratio == pytest.approx(0.5)
    assert found.sd == pytest.approx(math.hypot(math.sqrt(0.99 / 10), RUN_TO_RUN_SD))
    none = parse_constraints("error_rate<=0")
    assert margin_of(record({"error_rate": 0.0}), none).ratio == 0
    assert margin_of(record({"error_rate": 0.1}), none).ratio == math.inf


def test_limits_that_load_helps_to_hold_are_left_out():
    text = "ttft<=1s;request_throughput>=5;cost_per_million_tokens<=2;e2e_latency>=1s;error_rate<1"
    kept = worsened_by_load(parse_constraints(text))
    assert [limit.metric for limit in kept] == ["ttft", "error_rate"]
