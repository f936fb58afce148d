import numpy as np
import pytest

from servetune.search import Candidate, pareto_keys
from servetune.search.pareto import pareto_front

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("points", "maximize", "front"),
    [
        ([], (True,), []),
        ([(3.0,), (5.0,), (4.0,)], (True,), [1]),
        ([(3.0,), (5.0,), (4.0,)], (False,), [0]),
        # More of the first, less of the second: only what is worse in both goes.
        ([(1.0, 1.0), (2.0, 2.0), (1.5, 3.0)], (True, False), [0, 1]),
        # As good in one and better in the other dominates; equals are both kept.
        ([(2.0, 1.0), (2.0, 2.0), (2.0, 1.0)], (True, False), [0, 2]),
        ([(2.0, 1.0), (1.0, 1.0)], (True, False), [0]),
        # What was not measured neither stands on the front nor pushes another off.
        ([(9.0, NAN), (1.0, 1.0)], (True, False), [1]),
        ([(INF, 0.5), (1.0, 1.0)], (True, False), [1]),
        ([(NAN, NAN)], (True, False), []),
    ],
)
def test_the_front_is_what_nothing_else_beats(points, maximize, front):
    assert pareto_front(points, maximize=maximize) == front


def test_the_front_of_many_points_is_that_of_the_definition():
    rng = np.random.default_rng(3)
    for dimensions in (1, 2, 3):
        points = [tuple(row) for row in rng.integers(0, 12, (200, dimensions)).astype(float)]
        beaten = [any(all(map(float.__le__, b, a)) and a != b for b in points) for a in points]
        front = [place for place, is_beaten in enumerate(beaten) if not is_beaten]
        assert pareto_front(points, maximize=(False,) * dimensions) == front


def candidate(key, throughput, e2e_ms, cost=None):
    results = {"output_throughput": throughput, "p99_e2e_latency_ms": e2e_ms}
    if cost is not None:
        results["cost_per_million_tokens"] = cost
    return Candidate(key=key, label=key, results=results)


def test_the_front_of_trials_is_high_throughput_and_low_latency():
    trials = [candidate("fast", 300.0, 900.0), candidate("quick", 200.0, 500.0)]
    assert pareto_keys([*trials, candidate("worse", 199.0, 501.0)]) == ["fast", "quick"]
    assert pareto_keys([*trials, candidate("unknown", 400.0, None)]) == ["fast", "quick"]


def test_cost_counts_only_where_every_trial_has_one():
    dear, cheap = candidate("dear", 300.0, 900.0, 2.0), candidate("cheap", 200.0, 950.0, 1.0)
    assert pareto_keys([dear, cheap]) == ["dear", "cheap"]
    assert pareto_keys([dear, candidate("dearer", 200.0, 950.0, 3.0)]) == ["dear"]
    assert pareto_keys([dear, candidate("unpriced", 200.0, 950.0)]) == ["dear"]
