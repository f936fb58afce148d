"""What measured starts say of the starts of other servers."""

import numpy as np
import pytest

from servetune.search.starts import Starts

ASSUMED_S = np.array([70.0, 70.0, 70.0, 130.0, 130.0])
SERVERS = ["a", "a", "b", "c", "d"]
CHECKPOINTS = ["small", "small", "small", "large", "large"]


def starts(*measured):
    found = Starts(ASSUMED_S, SERVERS, CHECKPOINTS)
    for index, took_s in measured:
        found.tell(index, took_s)
    return found.expected_s()


def test_without_a_measured_start_the_assumption_stands():
    assert list(starts()) == list(ASSUMED_S)
    assert list(starts((0, None), (1, 0.0), (2, float("nan")))) == list(ASSUMED_S)


def test_a_measured_start_tells_most_of_its_server_and_something_of_every_other():
    same, shared, other_server, other_checkpoint, _ = starts((0, 7.0)) / ASSUMED_S
    assert same == shared
    assert 0.1 < same < other_server < other_checkpoint < 0.25


def test_a_start_counts_once_however_many_trials_its_server_had():
    assert list(starts((0, 7.0), (1, 7.0))) == list(starts((0, 7.0)))
    assert list(starts((0, 7.0), (1, 8.0))) != list(starts((0, 7.0)))


def test_a_large_checkpoint_is_told_from_a_small_one_once_both_were_started():
    *_, small, large_measured, large = starts((0, 35.0), (3, 390.0))
    assert small < 0.8 * 70
    assert large_measured > large > 2 * 130


def test_the_order_of_measurements_changes_nothing():
    told = [(0, 30.0), (2, 44.0), (4, 200.0)]
    assert starts(*told) == pytest.approx(starts(*reversed(told)))
