import doctest
from statistics import NormalDist

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.search import Forecast, Forecasts, forecasts


def ladder(**fields):
    """Twice the users: more throughput, more limit_ratio, up to a little below the limit."""
    return [
        Forecast(objective=100 * 1.7**i, limit_ratio=0.3 * 1.45**i, concurrency=2**i, **fields)
        for i in range(4)
    ]


def test_face_value_picks_the_largest_that_holds_and_confidence_a_smaller_one():
    beliefs = Forecasts(ladder())
    assert 0.9 < 0.3 * 1.45**3 < 1
    assert beliefs.choice(0.5) == 3
    assert beliefs.choice(0.95) == 2


def test_chances_fall_with_burden_and_are_one_half_at_the_limit():
    chances = Forecasts(
        [Forecast(objective=1, limit_ratio=b) for b in (0.5, 0.9, 1.0, 1.3)]
    ).chances()
    assert list(chances) == sorted(chances, reverse=True)
    assert chances[2] == pytest.approx(0.5)


def test_a_measurement_decides_its_own_candidate():
    beliefs = Forecasts(ladder())
    beliefs.tell(3, objective=400, limit_ratio=1.01)
    assert beliefs.chances()[3] == 0
    assert beliefs.choice(0.5) != 3
    beliefs.tell(2, objective=250, limit_ratio=0.99)
    assert beliefs.choice(0.95) == 2


def test_what_is_alike_learns_most_from_a_measurement():
    slow = {"objective": 50.0, "limit_ratio": 1.2}
    others = {
        "layout": Forecast(objective=1, limit_ratio=0.9, storage="fp8", layout=4, concurrency=8),
        "far": Forecast(objective=1, limit_ratio=0.9, storage="fp8", layout=4, concurrency=512),
        "storage": Forecast(objective=1, limit_ratio=0.9, storage="fp8", layout=8, concurrency=8),
        "nothing": Forecast(objective=1, limit_ratio=0.9, storage="bf16", layout=8, concurrency=8),
    }
    measured = Forecast(objective=60, limit_ratio=0.9, storage="fp8", layout=4, concurrency=16)
    beliefs = Forecasts([measured, *others.values()])
    before = beliefs.chances()[1:]
    assert before == pytest.approx([before[0]] * 4)
    beliefs.tell(0, **slow)
    after = dict(zip(others, beliefs.chances()[1:], strict=True))
    assert after["layout"] < after["far"] < before[0]
    assert after["layout"] < after["storage"] < after["nothing"] < before[0]


def test_nothing_is_asked_that_cannot_beat_what_was_measured():
    beliefs = Forecasts(
        [Forecast(objective=10, limit_ratio=0.5), Forecast(objective=5, limit_ratio=0.4)]
    )
    assert beliefs.ask() == 0
    beliefs.tell(0, objective=10, limit_ratio=0.5)
    assert beliefs.ask() is None


def test_nothing_measured_is_asked_again_and_all_are_asked_in_the_end_where_nothing_holds():
    beliefs = Forecasts(ladder())
    asked = []
    while (at := beliefs.ask()) is not None:
        asked.append(at)
        beliefs.tell(at, objective=1, limit_ratio=2.0)
    assert sorted(asked) == [0, 1, 2, 3]
    assert beliefs.choice(0.5) is None


def test_two_measurements_of_a_synthetic_machine_find_nearly_the_best():
    """Errors drawn from the stated law: what the search gains when its picture is true."""
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(60):
        candidates = [
            Forecast(
                objective=80 * 2**i / 2 ** (0.35 * i) * (1 + 0.1 * layout),
                limit_ratio=0.25 * 1.35**i * (1 - 0.08 * layout),
                layout=layout,
                concurrency=2**i,
            )
            for layout in range(3)
            for i in range(7)
        ]
        common = rng.normal(0, 0.12)
        own = rng.normal(0, 0.07, 3)
        errors = [common + own[c.layout] + rng.normal(0, 0.03) for c in candidates]
        truth = [
            {"objective": c.objective * np.exp(-e), "limit_ratio": c.limit_ratio * np.exp(e)}
            for c, e in zip(candidates, errors, strict=True)
        ]
        beliefs = Forecasts(candidates)
        for _ in range(2):
            at = beliefs.ask()
            if at is not None:
                beliefs.tell(at, **truth[at])
        chosen = beliefs.choice(0.8)
        best = max(t["objective"] for t in truth if t["limit_ratio"] <= 1)
        held = chosen is not None and truth[chosen]["limit_ratio"] <= 1
        shares.append(truth[chosen]["objective"] / best if held else 0.0)
    assert np.mean(shares) > 0.9


@pytest.mark.parametrize("bad", [{"objective": 0}, {"limit_ratio": -1.0}, {"concurrency": 0}])
def test_forecasts_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match="must be positive"):
        Forecasts([Forecast(**{"objective": 1.0, "limit_ratio": 1.0, **bad})])


def test_no_candidates_is_no_choice():
    assert Forecasts([]).choice(0.8) is None
    assert Forecasts([]).ask() is None


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(forecasts).failed == 0


def test_the_posterior_is_the_one_of_the_stated_law():
    """One measured run, worked out by hand: covariances as the module's docstring has them."""
    measured = Forecast(objective=60, limit_ratio=0.8, storage="fp8", layout=4, concurrency=8)
    others = {
        # Distance in doublings, same storage, same layout.
        (2, 1, 1): Forecast(objective=1, limit_ratio=0.9, storage="fp8", layout=4, concurrency=32),
        (1, 1, 0): Forecast(objective=1, limit_ratio=0.9, storage="fp8", layout=8, concurrency=4),
        (3, 0, 0): Forecast(objective=1, limit_ratio=0.9, storage="bf16", layout=4, concurrency=64),
    }
    beliefs = Forecasts([measured, *others.values()])
    beliefs.tell(0, objective=50, limit_ratio=1.0)
    total = 0.06**2 + 0.11**2 + 0.07**2 + 0.03**2
    for (apart, stored, laid), chance in zip(others, beliefs.chances()[1:], strict=True):
        shared = 0.06**2 + stored * 0.11**2 * np.exp(-apart / 6)
        shared += laid * 0.07**2 * np.exp(-apart / 3)
        mean = shared / total * np.log(1.0 / 0.8)
        sd = np.sqrt(total - shared**2 / total)
        assert chance == pytest.approx(NormalDist().cdf(-(np.log(0.9) + mean) / sd), rel=1e-9)


@pytest.mark.parametrize(("ratio", "counted"), [(100.0, 0.7), (0.001, -0.7)])
def test_a_run_that_is_far_off_counts_as_twice_the_prediction_and_no_more(ratio, counted):
    def chance(limit_ratio):
        near_half = Forecast(objective=1, limit_ratio=float(np.exp(-counted)))
        beliefs = Forecasts([Forecast(objective=1, limit_ratio=1.0), near_half])
        beliefs.tell(0, objective=1, limit_ratio=limit_ratio)
        return beliefs.chances()[1]

    assert chance(ratio) == pytest.approx(chance(np.exp(counted)))
    assert chance(ratio) != pytest.approx(chance(np.exp(counted * 0.9)), rel=1e-6)


def test_many_measurements_leave_the_spread_of_a_single_run():
    beliefs = Forecasts([Forecast(objective=1, limit_ratio=1.05) for _ in range(41)])
    for at in range(40):
        beliefs.tell(at, objective=1, limit_ratio=1.05)
    [chance] = beliefs.chances()[40:]
    assert chance == pytest.approx(NormalDist().cdf(-np.log(1.05) / 0.03), rel=0.05)


def test_what_was_slower_than_predicted_lowers_what_its_like_promise():
    alike = Forecast(objective=110, limit_ratio=0.3, storage="fp8", layout=4)
    other = Forecast(objective=100, limit_ratio=0.3, storage="bf16", layout=8)
    measured = Forecast(objective=90, limit_ratio=0.3, storage="fp8", layout=4)
    beliefs = Forecasts([measured, alike, other])
    assert beliefs.ask() == 1
    beliefs.tell(0, objective=60, limit_ratio=0.5)
    assert beliefs.ask() == 2


def test_a_limit_is_met_where_it_is_reached_and_not_beyond():
    beliefs = Forecasts(ladder())
    beliefs.tell(0, objective=90, limit_ratio=1.0)
    assert beliefs.chances()[0] == 1
    assert beliefs.choice(0.99) == 0
    beliefs.tell(0, objective=90, limit_ratio=1.0001)
    assert beliefs.chances()[0] == 0
    assert beliefs.choice(0.99) != 0


def test_the_best_of_those_that_hold_is_chosen_and_what_missed_bars_nothing():
    beliefs = Forecasts(ladder())
    beliefs.tell(0, objective=90, limit_ratio=0.4)
    beliefs.tell(1, objective=160, limit_ratio=0.5)
    assert beliefs.choice(0.99) == 1
    beliefs.tell(2, objective=150, limit_ratio=1.0)
    assert beliefs.choice(0.99) == 1
    # One that missed its limit is nothing to beat, however fast it was.
    missed = Forecasts(ladder())
    missed.tell(3, objective=10_000, limit_ratio=1.5)
    assert missed.ask() is not None
    # A gain is worth asking for however small the objective's unit.
    small = Forecasts([Forecast(objective=0.01, limit_ratio=0.5)])
    assert small.ask() == 0


def test_a_chance_of_just_the_confidence_is_enough():
    at_the_limit = Forecasts([Forecast(objective=1, limit_ratio=1.0)])
    assert at_the_limit.choice(0.5) == 0
