from __future__ import annotations

import pytest

from servetune.report.quantities import DASH, QUANTITIES, quantity_value, shown


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ms", DASH),
        (float("nan"), "ms", DASH),
        (float("inf"), "tokens/s", DASH),
        (27.64, "ms", "27.6 ms"),
        (61421.8, "ms", "61.42 s"),
        (1471.0, "tokens/s", "1,471 tok/s"),
        (5.596, "requests/s", "5.6 req/s"),
        (1.0862, "USD", "$1.09"),
        (0.012, "fraction", "1.2%"),
    ],
)
def test_a_value_is_written_with_its_unit_and_no_data_is_a_dash(value, unit, text):
    assert shown(value, unit) == text


def test_throughput_per_gpu_counts_the_gpus_in_use():
    assert (
        quantity_value({"output_throughput": 800.0}, "output_throughput_per_gpu", devices=4)
        == 200.0
    )
    assert quantity_value({"output_throughput": 800.0}, "output_throughput_per_gpu") is None


def test_what_one_user_sees_is_the_inverse_of_the_median_time_per_token():
    assert quantity_value({"median_tpot_ms": 25.0}, "user_throughput") == 40.0
    assert quantity_value({}, "user_throughput") is None


def test_every_latency_is_better_when_lower_and_every_rate_when_higher():
    for quantity in QUANTITIES.values():
        assert quantity.maximize == (quantity.unit in ("tokens/s", "requests/s"))
