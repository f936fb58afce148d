"""Laws of arrivals are found again in their own samples."""

import itertools

import numpy as np
import pytest

from servetune.workload import Constant, Gamma, MarkovBursts, Piecewise, Poisson
from servetune.workload.arrivals import Modulated
from servetune.workload.fit_arrivals import _hidden_states, _with_spread, fit_arrivals


def sample(law, count, seed=5):
    return list(itertools.islice(law.offsets_s(np.random.default_rng(seed)), count))


def test_poisson_is_poisson_and_its_rate():
    found = fit_arrivals(sample(Poisson(3.0), 450)).law
    assert isinstance(found, Poisson)
    assert found.rate_per_s == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("burstiness", [0.3, 5.0])
def test_gamma_gaps_have_their_burstiness(burstiness):
    found = fit_arrivals(sample(Gamma(3.0, burstiness), 490)).law
    assert isinstance(found, Gamma)
    assert found.burstiness == pytest.approx(burstiness, rel=0.2)


def test_equal_gaps_are_constant():
    assert fit_arrivals(sample(Constant(4.0), 490)).law == Constant(4.0)


def test_gaps_of_no_known_law_are_a_table():
    law = Modulated(steps=((9.0, 4.0),), gap_points=((0, 0.01), (0.7, 0.1), (0.71, 3), (1, 4)))
    found = fit_arrivals(sample(law, 490)).law
    assert isinstance(found, Modulated)
    assert found.dispersion == pytest.approx(law.dispersion, rel=0.15)


def test_a_rate_that_moves_has_its_steps():
    found = fit_arrivals(sample(Piecewise(((100.0, 1.0), (80.0, 4.0))), 400)).law
    assert isinstance(found, Piecewise)
    assert found.steps[0] == pytest.approx((100, 1.0), rel=0.15)
    assert found.repeat


def test_bursts_have_their_rates_and_how_long_they_last():
    bursts = MarkovBursts((2.0, 40.0), (30.0, 5.0))
    found = fit_arrivals(sample(bursts, 4000)).law
    assert found.dispersion == pytest.approx(bursts.dispersion, rel=0.6)
    mean = found.mean_rate_per_s(1000)
    rates = found.rates_per_s if isinstance(found, MarkovBursts) else np.array(found.factors) * mean
    assert max(rates) == pytest.approx(40, rel=0.15)


@pytest.mark.parametrize("states", [3, 4])
def test_states_of_a_rate_that_is_huge_or_nothing_are_numbers(states):
    rng = np.random.default_rng(0)
    counts = rng.poisson(6000 * (rng.random(3000) < 0.15))
    factors, chances = _hidden_states(counts, np.full(3000, counts.mean()), states)
    assert np.isfinite(factors).all()
    assert np.allclose(chances.sum(axis=1), 1)


@pytest.mark.slow
def test_short_bursts_on_a_rate_that_moves_are_told_from_its_steps():
    steps = ((2400.0, 0.5), (1500.0, 0.25), (600.0, 0.7))
    law = Modulated(steps=steps, factors=(0.6, 1.9), dwell_s=(40.0, 18.0))
    found = fit_arrivals(sample(law, 20_000)).law
    assert isinstance(found, Modulated)
    assert found.factors == pytest.approx(law.factors, rel=0.1)
    assert found.dwell_s == pytest.approx(law.dwell_s, rel=0.25)
    assert len(found.steps) > 12  # three each in ten rounds of the steps


def test_states_that_lie_too_near_are_spread_to_the_variance_of_the_counts():
    law = Modulated(steps=((9.0, 1.0),), factors=(0.5, 3.0), dwell_s=(80.0, 20.0))
    times = np.array(sample(law, 6000))
    flat = Piecewise(((float(times[-1]), 6000 / float(times[-1])),), repeat=True)
    clock = times * flat.steps[0][1]
    near = Modulated(steps=flat.steps, factors=(0.7, 2.2), dwell_s=law.dwell_s)
    assert _with_spread(near, flat, clock).factors == pytest.approx((0.5, 3.0), rel=0.12)


@pytest.mark.parametrize("seed", [3, 4])
def test_uneven_gaps_are_not_taken_for_bursts(seed):
    found = fit_arrivals(sample(Gamma(0.2, 0.6), 600, seed)).law  # states lie nearer by chance
    assert isinstance(found, Gamma)


@pytest.mark.slow
def test_steps_are_seen_behind_bursts():
    steps = ((1800.0, 0.25), (1200.0, 0.7), (900.0, 0.45))
    law = Modulated(steps=steps, factors=(0.7, 2.2), dwell_s=(60.0, 15.0))
    found = fit_arrivals(sample(law, 12_000, seed=1)).law
    assert isinstance(found, Modulated)
    assert len(found.steps) > 9
    assert len(found.factors) == 2


def test_whole_seconds_are_spread_and_stay_poisson():
    found = fit_arrivals(np.floor(sample(Poisson(3.0), 450)))
    assert isinstance(found.law, Poisson)
    assert found.found == ("times are to 1 s: arrivals are spread within",)


def test_a_few_arrivals_tell_no_more_than_a_rate():
    found = fit_arrivals(sample(Gamma(1.0, 0.3), 20))
    assert isinstance(found.law, Poisson)
    assert "no more" in found.found[0]
