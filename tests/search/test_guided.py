"""Guided search on points whose true worth is known."""

import msgspec
import numpy as np
import pytest

from servetune.search.beliefs import Forecast
from servetune.search.strategies import Outcome, Point
from servetune.search.strategies.guided import Guided, _below


class Space:
    """Points with two causes: layouts that wait for links, and others that wait for memory."""

    def __init__(self, seed=0, *, count=40, doubt=0.3):
        rng = np.random.default_rng(seed)
        slopes = rng.uniform(0, 1, count)
        self.factors = doubt * np.stack([slopes, 1 - slopes], axis=1)
        self.predicted = np.stack([rng.normal(5, 0.3, count), rng.normal(-0.3, 0.3, count)])
        true = self.factors @ rng.normal(0, 1, 2)
        self.true = self.predicted + np.stack([-true, true])
        self.points = [Point({"n": n}, server=n // 4) for n in range(count)]
        holds = self.true[1] <= 0
        self.best = float(np.exp(self.true[0][holds]).max()) if holds.any() else None
        self.rng = rng

    def search(self, **options):
        count = len(self.points)
        forecast = Forecast(
            quantities=self.predicted,
            weights=np.stack([-np.ones((count, 1)), np.ones((count, 1))]),
            factors=self.factors[None],
            names=("links", "memory"),
            near_sd=np.array([0.02]),
            positions=np.arange(count, dtype=float)[None, :, None],
            own_sd=np.array([0.02]),
            alike=np.arange(count),
            noise_sd=np.array([0.01, 0.01]),
        )
        options = {"start_s": np.full(count, 90.0), "load_s": np.full(count, 30.0), **options}
        return Guided(self.points, forecast, **options)

    def measured(self, index):
        rate, ratio = np.exp(self.true[:, index] + 0.01 * self.rng.standard_normal(2))
        return Outcome((float(rate),), (float(ratio),))

    def run(self, search, most=40):
        for _ in range(most):
            index = search.ask()
            if index is None:
                break
            search.tell(index, self.measured(index))
        return search


@pytest.mark.slow
def test_few_measurements_find_a_point_near_the_best_and_say_how_sure_they_are():
    sure, right, used = [], [], []
    for seed in range(30):
        space = Space(seed)
        if space.best is None:
            continue
        search = space.run(space.search(), most=12)
        pick = search.pick
        assert pick.index is not None
        used.append(len(search._told))
        worth = np.exp(space.true[0, pick.index])
        right.append(worth >= 0.97 * space.best and space.true[1, pick.index] <= 0.02)
        sure.append(pick.best)
    assert np.mean(used) <= 6
    assert np.mean(right) >= 0.85
    assert np.mean(right) >= np.mean(sure) - 0.1


def first_and_third_server(start_s):
    """Servers of the first and third point, where one load says as much as another."""
    space = Space(3)
    space.predicted[0], space.predicted[1] = 5.0, -2.0
    search = space.search(start_s=np.full(40, start_s))
    asked = []
    for _ in range(3):
        asked.append(search.ask())
        search.tell(asked[-1], space.measured(asked[-1]))
    return [space.points[index].server for index in (asked[0], asked[2])]


def test_a_start_is_avoided_where_it_takes_long():
    first, third = first_and_third_server(start_s=1e4)
    assert first == third
    first, third = first_and_third_server(start_s=0.0)
    assert first != third


def third_server(start_s, took_s):
    """Whether the third point is asked of the first one's server, once that took so long."""
    space = Space(3)
    space.predicted[0], space.predicted[1] = 5.0, -2.0
    search = space.search(start_s=np.full(40, start_s))
    asked = []
    for _ in range(3):
        asked.append(search.ask())
        outcome = space.measured(asked[-1])
        search.tell(asked[-1], msgspec.structs.replace(outcome, start_s=took_s))
    return space.points[asked[0]].server == space.points[asked[2]].server


def test_starts_that_were_measured_count_rather_than_those_assumed():
    assert third_server(start_s=1e4, took_s=None)
    assert not third_server(start_s=1e4, took_s=0.5)
    assert not third_server(start_s=1.0, took_s=None)
    assert third_server(start_s=1.0, took_s=1e4)


def test_points_that_cannot_run_or_surely_miss_a_limit_are_left_out_and_counted():
    space = Space(1)
    space.predicted[:, 0] = np.nan
    space.predicted[1, 1:5] = 4.0
    search = space.search()
    assert search.left_out == {"cannot run": 1, "most probably miss a limit": 4}
    asked = set()
    while (index := search.ask()) is not None:
        asked.add(index)
        search.tell(index, space.measured(index))
    assert not asked & {0, 1, 2, 3, 4}


def test_a_space_in_which_nothing_can_hold_ends_and_says_so():
    space = Space(1)
    space.predicted[1] = 0.9 + 0 * space.predicted[1]
    space.true[1] = 3.0
    search = space.run(space.search())
    assert search.pick.index is None
    assert search.stop is not None
    assert len(search._told) < 40


def test_a_choice_by_predictions_alone_is_less_sure_than_a_measured_one():
    space = Space(5)
    guess = int(np.argmax(np.where(space.predicted[1] <= 0, space.predicted[0], -np.inf)))
    alone = space.search().doubt_about(guess)
    measured = space.run(space.search()).pick
    assert alone.index == guess
    assert alone.best < measured.best
    assert alone.settles is not None
    assert sum(p for _, p in alone.rivals) + alone.best == pytest.approx(1, abs=0.3)


def test_the_normal_distribution_function_is_right():
    z = np.array([-3.0, -1.0, 0.0, 0.5, 2.0])
    expected = [0.0013499, 0.1586553, 0.5, 0.6914625, 0.9772499]
    assert _below(z) == pytest.approx(expected, abs=1e-6)


def far_off(space, index):
    """A forecast that is 60% too high wherever it was not looked at closely."""
    logs = space.predicted[:, index].copy()
    space.predicted[0, index] += 0.5
    return logs


def test_a_point_is_predicted_closely_before_it_is_asked_for():
    space = Space(3)
    close = {index: far_off(space, index) for index in range(0, 40, 2)}
    looked: list[int] = []

    def closer(index):
        looked.append(index)
        return close.get(index, space.predicted[:, index])

    search = space.search(closer=closer)
    first = search.ask()
    assert first is not None
    assert first in looked
    known = close.get(first, space.predicted[:, first])
    assert known[1] < 0, "what is close to the truth holds its limit"
    search.tell(first, Outcome((float(np.exp(known[0])),), (float(np.exp(known[1])),)))
    assert search.expected()[0][:, first] == pytest.approx(known, abs=0.01)


@pytest.mark.slow
def test_a_search_that_is_told_its_outcomes_at_once_goes_on_like_one_that_asked():
    space = Space(5)
    close = {index: far_off(space, index) for index in range(0, 40, 3)}

    def closer(index):
        return close.get(index, space.predicted[:, index])

    asked = space.search(closer=closer, confidence=0.9999)
    told = []
    while len(told) < 5 and (index := asked.ask()) is not None:
        told.append((index, space.measured(index)))
        asked.tell(*told[-1])
    assert len(told) > 1
    resumed = space.search(closer=closer, confidence=0.9999)
    for each in told:
        resumed.tell(*each)
    assert resumed.ask() == asked.ask()
    assert resumed.pick == asked.pick
    asked.drifted(np.array([0.1]))
    resumed.drifted(np.array([0.1]))
    assert (resumed.ask(), resumed.pick) == (asked.ask(), asked.pick)
