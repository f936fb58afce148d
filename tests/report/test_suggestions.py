from __future__ import annotations

import msgspec
import report_records as factory

from servetune.report import suggestions


def with_results(record, **changes):
    return msgspec.structs.replace(record, results={**record.results, **changes})


def test_a_slow_first_token_suggests_a_smaller_batch():
    record = with_results(factory.record(), mean_ttft_ms=500.1, mean_itl_ms=20.0)
    (said,) = suggestions(record)
    assert "TTFT" in said
    assert "smaller batch" in said
    assert suggestions(with_results(record, mean_ttft_ms=500.0)) == []


def test_long_gaps_suggest_tensor_parallelism():
    (said,) = suggestions(with_results(factory.record(), mean_itl_ms=50.5))
    assert "tensor parallelism" in said


def test_a_plateau_of_the_same_server_suggests_scaling_out():
    light = with_results(factory.record(users=32), output_throughput=1000.0)
    heavy = with_results(
        factory.record(users=64), output_throughput=1030.0, mean_itl_ms=20.0, mean_ttft_ms=20.0
    )
    (said,) = suggestions(heavy, [light, heavy])
    assert "+3.0% from max_concurrency 32 to 64" in said
    assert suggestions(with_results(heavy, output_throughput=1100.0), [light, heavy]) == []


def test_another_server_configuration_shows_no_plateau():
    other = with_results(factory.record(tp=2, users=32), output_throughput=1000.0)
    heavy = with_results(factory.record(users=64), output_throughput=1000.0, mean_itl_ms=20.0)
    assert suggestions(heavy, [other, heavy]) == []


def test_a_failed_trial_suggests_nothing():
    failed = next(r for r in factory.sweep() if r.status == "failed")
    assert suggestions(failed, factory.sweep()) == []
