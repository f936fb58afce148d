"""Orders keep every trial, and do with servers what they promise."""

import itertools

import pytest

from servetune.trials.order import ORDERS, ordered

GROUPS = [["a1", "a2", "a3"], [], ["c1", "c2", "c3"], ["d1", "d2"]]
ALL = sorted(trial for group in GROUPS for trial in group)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(20))
def test_every_trial_comes_once_with_its_own_configuration(order, seed):
    batches = ordered(GROUPS, order, seed)
    assert sorted(trial for _, trials in batches for trial in trials) == ALL
    for number, trials in batches:
        assert set(trials) <= set(GROUPS[number])
    assert batches == ordered(GROUPS, order, seed)


def test_the_grid_stays_as_it_is_written():
    assert ordered(GROUPS) == [(0, GROUPS[0]), (2, GROUPS[2]), (3, GROUPS[3])]


def test_chance_starts_each_server_once_and_seeds_differ():
    orders = [ordered(GROUPS, "random", seed) for seed in range(20)]
    assert all(len(batches) == 3 for batches in orders)
    assert len({str(batches) for batches in orders}) > 10


def test_interleaving_goes_round():
    batches = ordered([["a1", "a2", "a3"], ["b1", "b2", "b3"]], "interleaved", 1)
    flat = [number for number, trials in batches for _ in trials]
    for turn in range(0, 6, 2):
        assert set(flat[turn : turn + 2]) == {0, 1}, "each configuration once a round"


def test_interleaving_keeps_a_server_where_rounds_meet():
    for seed in range(30):
        batches = ordered(GROUPS, "interleaved", seed)
        assert all(one[0] != other[0] for one, other in itertools.pairwise(batches))
