import pytest

from servetune.deploy.evidence import Level, saturation_point


def test_the_saturation_point_is_where_the_smallest_latency_has_doubled():
    saturation = saturation_point(
        [Level(32, 400.0), Level(1, 100.0), Level(8, 150.0), Level(16, 250.0)], 1
    )
    assert saturation.per_copy == pytest.approx(12.0)  # halfway between 150 and 250 ms
    assert "doubles" in saturation.rule
    assert saturation.target == 9


def test_limits_decide_where_there_are_some():
    levels = [Level(8, 100.0, True), Level(16, 900.0, True), Level(32, 950.0, False)]
    assert saturation_point(levels, 2).per_copy == 8.0
    assert saturation_point([Level(8, 1.0, False)], 1) is None


def test_a_sweep_that_never_bent_says_so():
    saturation = saturation_point([Level(1, 100.0), Level(4, 120.0)], 1)
    assert saturation.per_copy == 4
    assert "had not doubled" in saturation.rule
    assert saturation_point([Level(4, 1.0)], 1).rule == "the only concurrency that was tried, 4"
    assert saturation_point([], 1) is None


def test_a_target_is_one_request_at_least():
    assert saturation_point([Level(1, 1.0)], 1).target == 1
