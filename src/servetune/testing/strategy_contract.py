"""Contract of a search strategy, as tests that anyone may run on one of their own.

    from servetune.testing.strategy_contract import StrategyContract

    class TestMine(StrategyContract):
        def make(self, points, *, seed=0):
            return Mine(points, seed=seed)

pytest collects the subclass. The space has log-spaced, unordered and conditional settings, a
forbidden combination, and some points whose measurement fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from servetune.search.strategies import Outcome, Point, Strategy

Measure = Callable[[Point], Outcome]


def example_points() -> list[Point]:
    """Points of a server with an optional draft model: 33 on 11 servers."""
    servers = [
        {"tensor_parallel_size": devices, "kv_cache_dtype": dtype, **draft}
        for devices in (1, 2, 4)
        for dtype in ("auto", "fp8")
        for draft in ({}, {"draft_tokens": 3})
        if not (devices == 4 and dtype == "fp8" and draft)  # a forbidden combination
    ]
    return [
        Point(
            {**settings, "max_concurrency": users},
            server=tuple(sorted(settings.items())),
        )
        for settings in servers
        for users in (8, 32, 128)
    ]


def example_outcome(point: Point) -> Outcome:
    """Throughput and negative latency under a latency limit; drafts beyond 64 users fail."""
    devices = int(point.settings["tensor_parallel_size"] or 0)
    users = int(point.settings["max_concurrency"] or 0)
    drafts = int(point.settings.get("draft_tokens") or 0)
    if drafts and users > 64:
        return Outcome(failed=True)
    rate_per_s = 100 * devices**0.7 * math.log2(1 + users) * (1.3 if drafts else 1.0)
    rate_per_s *= 1.1 if point.settings["kv_cache_dtype"] == "fp8" else 1.0
    latency_s = 10 * users / rate_per_s
    return Outcome((rate_per_s, -latency_s), (latency_s / 1.2,))


def decisions(
    strategy: Strategy, points: Sequence[Point], measure: Measure = example_outcome
) -> list[tuple[int, Outcome]]:
    """Points that a strategy asks for until it stops, with their outcomes."""
    made: list[tuple[int, Outcome]] = []
    while (index := strategy.ask()) is not None:
        made.append((index, measure(points[index])))
        strategy.tell(*made[-1])
    return made


class StrategyContract:
    """Promises that every strategy keeps; subclasses say how one is made."""

    #: Whether it may stop before every point is measured.
    stops_early = False
    #: Numbers of told outcomes after which an interrupted search is continued.
    resumed_after: tuple[int, ...] = (0, 1, 2, 5, 13, 32)

    def make(self, points: Sequence[Point], *, seed: int = 0) -> Strategy:
        """A new strategy for these points."""
        raise NotImplementedError

    def test_each_point_is_asked_at_most_once_until_the_search_ends(self) -> None:
        points = example_points()
        strategy = self.make(points)
        asked = [index for index, _ in decisions(strategy, points)]
        assert len(set(asked)) == len(asked)
        assert set(asked) <= set(range(len(points)))
        assert self.stops_early or len(asked) == len(points)

    def test_it_says_why_it_stopped_and_only_then(self) -> None:
        points = example_points()[:4]
        strategy = self.make(points)
        for _ in points:
            index = strategy.ask()
            assert (index is None) == (strategy.stop is not None)
            if index is not None:
                strategy.tell(index, example_outcome(points[index]))
        assert strategy.ask() is None
        assert strategy.stop is not None
        assert strategy.stop.words
        assert self.stops_early or strategy.stop.kind == "all_measured"

    def test_asking_again_before_the_outcome_is_told_changes_nothing(self) -> None:
        points = example_points()
        strategy, asked_twice = self.make(points), self.make(points)
        for _ in range(6):
            index = strategy.ask()
            assert asked_twice.ask() == asked_twice.ask() == index
            if index is None:
                break
            for each in (strategy, asked_twice):
                each.tell(index, example_outcome(points[index]))

    def test_the_same_seed_makes_the_same_decisions(self) -> None:
        points = example_points()
        for seed in (0, 7):
            first = decisions(self.make(points, seed=seed), points)
            assert decisions(self.make(points, seed=seed), points) == first

    def test_an_interrupted_search_goes_on_with_the_same_decisions(self) -> None:
        points = example_points()
        whole = decisions(self.make(points, seed=3), points)
        for count in self.resumed_after:
            resumed = self.make(points, seed=3)
            for index, outcome in whole[:count]:
                resumed.tell(index, outcome)
            assert decisions(resumed, points) == whole[count:], f"resumed after {count}"

    def test_points_that_were_told_unasked_are_not_asked_for(self) -> None:
        points = example_points()
        strategy = self.make(points)
        for index in range(0, len(points), 2):
            strategy.tell(index, example_outcome(points[index]))
        asked = {index for index, _ in decisions(strategy, points)}
        assert not {index for index in asked if index % 2 == 0}

    def test_a_search_in_which_every_measurement_fails_ends(self) -> None:
        points = example_points()
        strategy = self.make(points)
        assert decisions(strategy, points, lambda _: Outcome(failed=True))
        assert strategy.stop is not None

    def test_outcomes_without_a_finite_objective_are_survived(self) -> None:
        points = example_points()[:9]
        for value in (math.nan, math.inf, -math.inf):
            strategy = self.make(points)
            index = strategy.ask()
            assert index is not None
            strategy.tell(index, Outcome((value, -1.0), (0.5,)))
            decisions(strategy, points)

    def test_the_best_of_a_space_that_is_measured_whole_is_found(self) -> None:
        points = example_points()
        made = decisions(self.make(points), points)
        held = [outcome.objectives[0] for _, outcome in made if outcome.holds]
        every = (example_outcome(point) for point in points)
        best = max(each.objectives[0] for each in every if each.holds)
        assert max(held) == best or (self.stops_early and len(made) < len(points))

    def test_a_space_of_one_point_is_measured_once(self) -> None:
        points = example_points()[:1]
        assert [index for index, _ in decisions(self.make(points), points)] == [0]
