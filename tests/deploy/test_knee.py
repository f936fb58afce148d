import pytest

from servetune.deploy.knee import Level, knee_of


def test_the_knee_is_where_the_smallest_latency_has_doubled():
    knee = knee_of([Level(32, 400.0), Level(1, 100.0), Level(8, 150.0), Level(16, 250.0)], 1)
    assert knee.per_copy == pytest.approx(12.0)  # halfway between 150 and 250 ms
    assert "doubles" in knee.rule
    assert knee.target == 9


def test_limits_decide_where_there_are_some():
    levels = [Level(8, 100.0, True), Level(16, 900.0, True), Level(32, 950.0, False)]
    assert knee_of(levels, 2).per_copy == 8.0
    assert knee_of([Level(8, 1.0, False)], 1) is None


def test_a_sweep_that_never_bent_says_so():
    knee = knee_of([Level(1, 100.0), Level(4, 120.0)], 1)
    assert knee.per_copy == 4
    assert "had not doubled" in knee.rule
    assert knee_of([Level(4, 1.0)], 1).rule == "the only concurrency that was tried, 4"
    assert knee_of([], 1) is None


def test_a_target_is_one_request_at_least():
    assert knee_of([Level(1, 1.0)], 1).target == 1
