"""Devices are never given twice and fit together again; parallel servers fill the machine."""

import random

import pytest

from servetune.errors import PlanError
from servetune.trials.parallel import DeviceBlocks, packed, parallel_servers_for


def test_four_of_one_then_two_of_two():
    devices = DeviceBlocks(4)
    ones = [devices.take(1) for _ in range(4)]
    assert ones == [(0,), (1,), (2,), (3,)]
    assert devices.take(1) is None
    for block in ones:
        devices.give_back(block)
    assert [devices.take(2), devices.take(2), devices.take(2)] == [(0, 1), (2, 3), None]


def test_pairs_and_fours_begin_where_boards_join_them():
    devices = DeviceBlocks(8)
    devices.take(1)
    assert devices.take(2) == (2, 3)
    assert devices.take(4) == (4, 5, 6, 7)
    assert devices.take(2) is None, "device 1 alone is no pair"
    assert devices.take(1) == (1,)


def test_odd_counts_take_what_is_left():
    devices = DeviceBlocks(8)
    assert devices.take(3) == (0, 1, 2)
    assert devices.take(3) == (4, 5, 6)
    assert DeviceBlocks(6).take(5) == (0, 1, 2, 3, 4)
    assert DeviceBlocks(6).take(6) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("seed", range(10))
def test_no_device_is_ever_given_twice(seed):
    rng, devices, held = random.Random(seed), DeviceBlocks(8), []
    for _ in range(500):
        if held and rng.random() < 0.5:
            devices.give_back(held.pop(rng.randrange(len(held))))
        else:
            block = devices.take(rng.choice([1, 1, 2, 2, 4, 3]))
            if block is not None:
                held.append(block)
        used = [device for block in held for device in block]
        assert len(used) == len(set(used))
        assert all(0 <= device < 8 for device in used)


def test_more_than_there_are_is_refused():
    with pytest.raises(PlanError, match="needs 8 devices and the machine has 4"):
        DeviceBlocks(4).take(8)


def test_large_plans_come_first_and_equal_ones_as_they_stand():
    assert packed([1, 2, 1, 4, 2]) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize(
    ("parallel", "devices", "smallest", "parallel_servers"),
    [
        (None, 4, 1, 4),
        (None, 4, 2, 2),
        (None, 4, 3, 1),
        (2, 4, 1, 2),
        (1, 1, 1, 1),
        (None, 1, 4, 1),
    ],
)
def test_lanes(parallel, devices, smallest, parallel_servers):
    assert parallel_servers_for(parallel, devices, smallest) == parallel_servers


def test_more_lanes_than_devices_are_refused():
    with pytest.raises(PlanError, match="--parallel 3 needs 6 devices, the machine has 4"):
        parallel_servers_for(3, 4, 2)
