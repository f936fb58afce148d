"""Guided search for several objectives on points whose true worth is known."""

import numpy as np
import pytest

from servetune.search.beliefs import Forecast
from servetune.search.strategies import Outcome, Point, strategy
from servetune.search.strategies.guided_set import GuidedSet, _better_in_all, _reached


class Space:
    """Points of servers under rising loads: more throughput for less speed of a user."""

    def __init__(self, seed=0, *, servers=10, loads=4, doubt=0.3):
        rng = np.random.default_rng(seed)
        count = servers * loads
        level = np.repeat(rng.normal(0, 0.5, servers), loads)
        load = np.tile(np.linspace(0, 2, loads), servers)
        slopes = rng.uniform(0, 1, count)
        self.predicted = np.stack([level + load, level - 0.8 * load, level - 0.5])
        self.factors = doubt * np.stack([slopes, 1 - slopes], axis=1)
        off = self.factors @ rng.normal(0, 1, 2)
        self.true = self.predicted + np.stack([-off, -off, off])
        self.points = [Point({"n": n}, server=n // loads) for n in range(count)]
        self.rng = rng

    def search(self, *, limited=True, objectives=2, **options):
        count, kept = len(self.points), objectives + limited
        signs = [-1.0] * objectives + [1.0] * limited
        places = [*range(objectives), *([2] if limited else [])]
        forecast = Forecast(
            quantities=self.predicted[places],
            weights=np.stack([sign * np.ones((count, 1)) for sign in signs]),
            factors=self.factors[None],
            names=("links", "memory"),
            near_sd=np.array([0.02]),
            positions=np.arange(count, dtype=float)[None, :, None],
            own_sd=np.array([0.02]),
            alike=np.arange(count),
            noise_sd=np.full(kept, 0.01),
            objective_count=objectives,
        )
        options = {"start_s": np.full(count, 90.0), "load_s": np.full(count, 30.0), **options}
        return GuidedSet(self.points, forecast, **options)

    def measured(self, index, *, limited=True):
        values = np.exp(self.true[:, index] + 0.01 * self.rng.standard_normal(3))
        return Outcome(tuple(map(float, values[:2])), (float(values[2]),) if limited else ())

    def volume(self, indexes, *, slack=0.0):
        """Area of the true results that points reach, of those that hold the limit."""
        held = [index for index in indexes if self.true[2, index] <= slack]
        area = reached = 0.0
        for one, other in sorted(np.exp(self.true[:2, held]).T.tolist(), reverse=True):
            area += one * max(0.0, other - reached)
            reached = max(reached, other)
        return area


def run(space, search, most):
    asked = []
    while len(asked) < most and (index := search.ask()) is not None:
        asked.append(index)
        search.tell(index, space.measured(index))
    return asked


def lacks(space, members):
    """What the front has beyond members, which may miss the limit by the noise."""
    whole = space.volume(range(len(space.points)))
    return (whole / space.volume(members, slack=0.03)) ** 0.5 - 1


def test_it_reaches_more_of_the_front_than_a_search_that_starts_from_nothing():
    guided, sampled = [], []
    for seed in range(6):
        space = Space(seed)
        whole = space.volume(range(len(space.points)))
        search = space.search()
        guided.append(space.volume(run(space, search, 10)) / whole)
        others = strategy("nsga2", space.points, seed=seed, objective_count=2)
        sampled.append(space.volume(run(space, others, 10)) / whole)
    assert np.mean(guided) > 0.97
    assert np.mean(guided) > np.mean(sampled) + 0.1


def test_it_ends_once_nothing_is_missing_and_is_as_sure_as_it_is_right():
    sure, right = [], []
    for seed in range(7):
        space = Space(seed)
        search = space.search()
        asked = run(space, search, 40)
        assert search.stop is not None
        assert len(asked) < 40
        front = search.front
        sure.append(front.best)
        right.append(lacks(space, front.members) <= 0.03)
    assert min(sure) >= 0.95
    assert np.mean(right) >= 0.9


def test_members_hold_every_limit_and_none_is_better_than_another_in_all():
    space = Space(2)
    search = space.search()
    asked = run(space, search, 12)
    members = search.front.members
    assert set(members) <= set(asked)
    assert (space.true[2, list(members)] <= 0.03).all()
    values = space.true[:2, list(members)]
    for one in values.T:
        assert not ((values > one[:, None] + 0.03).all(axis=0)).any()
    assert (np.diff(values[0]) <= 0.03).all()


def test_what_may_be_missing_is_named_with_its_chance_and_the_next_trial_is_among_all():
    space = Space(4)
    search = space.search()
    run(space, search, 3)
    front = search.front
    assert front.rivals
    assert not {index for index, _ in front.rivals} & set(front.members)
    assert sum(chance for _, chance in front.rivals) + front.best == pytest.approx(1, abs=0.3)
    assert front.settles == search.ask()


def test_a_space_in_which_nothing_can_hold_ends_and_says_so():
    space = Space(1)
    space.predicted[2] = 0.9
    space.true[2] = 3.0
    search = space.search()
    asked = run(space, search, 40)
    assert len(asked) < 40
    assert search.front.members == ()
    assert "hold every constraint" in search.stop.words


def test_three_objectives_are_searched_as_two_are():
    space = Space(3)
    search = space.search(objectives=3, limited=False)
    asked = []
    while (index := search.ask()) is not None and len(asked) < 12:
        asked.append(index)
        search.tell(index, Outcome(tuple(map(float, np.exp(space.true[:, index])))))
    assert len(search.front.members) >= 2
    assert 0 < search.front.best <= 1


def test_volumes_are_those_of_the_squares_that_points_reach():
    """Two points reach 3 x 1 and 1 x 2: four units, of which one is in common."""
    both = np.log([[[3.0, 1.0], [1.0, 2.0]]])
    holds = np.array([[True, True]])
    volumes = [
        _reached(both, each, 0).max(axis=2).mean()
        for each in (holds, np.array([[True, False]]), np.array([[False, True]]))
    ]
    whole, one, other = np.array(volumes) / volumes[2] * 2
    assert one == pytest.approx(3, rel=0.02)
    assert whole == pytest.approx(4, rel=0.02)
    assert other == 2


def test_better_in_all_is_better_in_every_objective_by_the_margin():
    objectives = np.log([[[1.0, 1.03, 1.5], [1.0, 1.03, 0.9]]])
    mine = np.array([True, False, False])
    every = np.array([[False, True, True]])
    assert _better_in_all(objectives, every, mine, np.log(1.02)).all()
    assert not _better_in_all(objectives, every, mine, np.log(1.05)).any()
    assert not _better_in_all(objectives, np.array([[False, False, True]]), mine, 0.0).any()
