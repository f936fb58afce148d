import math

import numpy as np
import pytest

from servetune.search.knee import LoadLevel, knees


def named(levels):
    return {knee.name: knee for knee in knees(levels)}


def single_server_queue(loads, limit=math.inf):
    """M/M/1 with a service time of 1: latency 1 / (1 - load)."""
    return [
        LoadLevel(load=u, throughput=u, latency=1 / (1 - u), holds=1 / (1 - u) <= limit)
        for u in loads
    ]


FINE = np.linspace(0.005, 0.96, 300).tolist()


def test_single_server_queue_doubles_its_latency_at_half_its_load():
    knee = named(single_server_queue(FINE))["doubled_latency"]
    assert knee.load == pytest.approx(0.5, abs=0.005)
    assert knee.latency == pytest.approx(2 * 1.005, rel=0.001)


def test_single_server_queue_has_its_half_latency_knee_at_71_5_percent():
    knee = named(single_server_queue(FINE))["half_latency"]
    assert knee.load == pytest.approx(0.715, abs=0.002)  # Patel's figure


def test_curvature_of_a_single_server_queue_is_where_the_tangent_is_the_chord():
    low, high = FINE[0], FINE[-1]
    tangent = 1 - math.sqrt((1 - low) * (1 - high))
    knee = named(single_server_queue(FINE))["curvature"]
    assert knee.load == pytest.approx(tangent, abs=FINE[1] - FINE[0])


def test_the_knee_by_limit_is_the_largest_load_below_the_first_that_misses():
    knee = named(single_server_queue([0.2, 0.4, 0.6, 0.8], limit=3))["limit"]
    assert (knee.load, knee.latency) == (0.6, pytest.approx(2.5))


def test_users_in_a_closed_loop_have_the_bend_where_the_server_is_full():
    full = 16
    levels = [
        LoadLevel(load=n, throughput=min(n, full), latency=max(1.0, n / full))
        for n in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    found = named(levels)
    assert found["curvature"].load == full
    assert found["doubled_latency"].load == 2 * full
    assert found["half_latency"].load == pytest.approx(2 * full)  # throughput stands still


def test_the_order_of_the_levels_changes_nothing():
    levels = single_server_queue([0.1, 0.3, 0.5, 0.7, 0.9])
    assert knees(levels[::-1]) == knees(levels)


@pytest.mark.parametrize(
    ("loads", "limit", "name", "reason"),
    [
        ([0.1, 0.2, 0.3, 0.4], 9, "doubled_latency", "beyond the measured"),
        ([0.1, 0.2, 0.3, 0.4], 9, "half_latency", "beyond the measured"),
        ([0.1, 0.2, 0.3, 0.4], 9, "curvature", "without a bend"),
        ([0.1, 0.2, 0.3, 0.4], 9, "limit", "every load holds"),
        ([0.1, 0.2, 0.3, 0.4], 1, "limit", "lightest load misses"),
        ([0.1, 0.5, 0.9], 9, "curvature", "too few"),
        ([0.5], 9, "doubled_latency", "too few"),
        ([], 9, "half_latency", "too few"),
    ],
)
def test_a_knee_that_the_levels_do_not_show_has_a_reason(loads, limit, name, reason):
    knee = named(single_server_queue(loads, limit))[name]
    assert (knee.load, knee.latency) == (None, None)
    assert reason in knee.reason


def test_without_constraints_there_is_no_knee_by_limit():
    knee = named([LoadLevel(load=1, throughput=1, latency=1)])["limit"]
    assert knee.reason == "there are no constraints"
