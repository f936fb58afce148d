import math

import pytest

from servetune.metrics import Constraint, interval_of, value_of
from servetune.metrics.repeats import mean_results


def run(ttft_ms, half_ms, *, failed=0, **fields):
    return {
        "mean_ttft_ms": ttft_ms,
        "output_throughput": 100.0,
        "completed": 50 - failed,
        "failed": failed,
        "error_rate": failed / 50,
        "quantiles": {"ttft_ms": {"95": ttft_ms * 2, "99": None}},
        "intervals": {"mean_ttft_ms": [ttft_ms - half_ms, ttft_ms + half_ms]},
        **fields,
    }


def test_figures_are_means_and_requests_add_up():
    merged = mean_results([run(90.0, 5), run(110.0, 5, failed=2), run(106.0, 5)])
    assert merged["mean_ttft_ms"] == pytest.approx(102)
    assert merged["error_rate"] == pytest.approx(2 / 150)
    assert (merged["completed"], merged["failed"]) == (148, 2)
    assert value_of(merged, "ttft", "p95") == pytest.approx(204)


def test_a_limit_that_one_run_holds_by_chance_is_missed_by_their_mean():
    limit = Constraint("ttft", "mean", "<=", 100.0)
    runs = [run(95.0, 5), run(108.0, 5)]
    assert limit.holds(runs[0])
    assert not limit.holds(mean_results(runs))


def test_the_interval_of_a_mean_is_narrower_by_the_root_of_the_number_of_runs():
    merged = mean_results([run(100.0, 6)] * 4)
    assert interval_of(merged, "ttft") == pytest.approx((97, 103))
    open_end = run(100.0, 6) | {"intervals": {"mean_ttft_ms": [94.0, None]}}
    low, high = interval_of(mean_results([open_end, run(104.0, 6)]), "ttft")
    assert (low, high) == (pytest.approx(102 - math.hypot(6, 6) / 2), None)


def test_what_a_run_lacks_is_absent():
    lacks = run(100.0, 5) | {"mean_ttft_ms": None, "intervals": None, "quantiles": None}
    merged = mean_results([run(100.0, 5), lacks])
    assert merged["mean_ttft_ms"] is None
    assert interval_of(merged, "ttft") is None
    assert value_of(merged, "ttft", "p95") is None
