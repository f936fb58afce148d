"""Every law keeps its promise: each check names its sample size and tolerance.

Tolerances are about four standard deviations of the statistic at that sample size; seeds are
fixed, so a check that passes once passes always.
"""

import itertools
import math
import tomllib

import msgspec
import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload import (
    AllAtOnce,
    Arrivals,
    Constant,
    Gamma,
    MarkovBursts,
    Piecewise,
    Poisson,
    Ramp,
    Scheduled,
    Sine,
    arrivals_of,
    parse_arrivals,
    workload_from_client_args,
)
from servetune.workload.arrivals import LAWS, Modulated

BURSTS = MarkovBursts(rates_per_s=(2.0, 40.0), dwell_s=(9.0, 1.0))

ONE_OF_EACH = (
    AllAtOnce(),
    Constant(4.0),
    Poisson(4.0),
    Gamma(4.0, 0.5),
    BURSTS,
    Piecewise(((10.0, 2.0), (5.0, 0.0), (5.0, 20.0))),
    Ramp(1.0, 9.0, 60.0),
    Sine(5.0, 4.0, 60.0),
    Scheduled((0.0, 0.5, 0.5, 2.0), 2.0),
    Modulated(steps=((60.0, 4.0), (60.0, 1.0)), factors=(0.5, 3.0), dwell_s=(8.0, 2.0)),
)


def times_s(law, count=20_000, seed=3):
    return np.array(list(itertools.islice(law.offsets_s(np.random.default_rng(seed)), count)))


def gaps_s(law, count=20_000):
    return np.diff(times_s(law, count))


def within_s(law, duration_s, seed=3):
    """Times up to `duration_s`."""
    offsets_s = law.offsets_s(np.random.default_rng(seed))
    return np.array(list(itertools.takewhile(lambda due_s: due_s <= duration_s, offsets_s)))


def kolmogorov(sample, cumulative):
    """Largest distance between a sample's distribution and the law's."""
    ordered = np.sort(sample)
    law = cumulative(ordered)
    ranks = np.arange(len(ordered))
    return max((law - ranks / len(ordered)).max(), ((ranks + 1) / len(ordered) - law).max())


def test_constant_gaps_are_equal():
    np.testing.assert_allclose(gaps_s(Constant(4.0)), 0.25)


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    gaps = gaps_s(Poisson(4.0))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)
    # 20,000 gaps: Kolmogorov's distance is below 1.95 / sqrt(n) in 999 of 1,000 samples.
    assert kolmogorov(gaps, lambda t: 1 - np.exp(-4 * t)) < 1.95 / math.sqrt(len(gaps))


def test_a_counted_law_needs_no_number_of_requests():
    args = {"request_rate": 4.0, "arrivals": "kind=poisson,count=60"}
    assert workload_from_client_args(args).request_count == 60
    assert workload_from_client_args({**args, "num_prompts": 20}).request_count == 20


def test_a_counted_poisson_law_ends_at_its_rate_and_its_gaps_are_exponential():
    law = Poisson(4.0, count=2_000)
    due_s = times_s(law)
    assert len(due_s) == 2_000
    assert due_s[-1] == pytest.approx(500.0)
    # A gap's share of the whole is Beta(1, count - 1), whatever the gaps were before.
    beta = lambda t: 1 - (1 - t / 500) ** 1_999  # noqa: E731
    assert kolmogorov(np.diff(due_s, prepend=0.0), beta) < 1.95 / math.sqrt(len(due_s))
    assert [times_s(Poisson(4.0, count=9), seed=seed)[-1] for seed in range(3)] == [2.25] * 3


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0])
def test_gamma_gaps_spread_as_burstiness_says(burstiness):
    gaps = gaps_s(Gamma(4.0, burstiness), 50_000)
    variation = 1 / math.sqrt(burstiness)
    assert gaps.mean() == pytest.approx(0.25, rel=4 * variation / math.sqrt(50_000))
    # The variation's own error grows with the law's kurtosis, 6 / burstiness.
    error = math.sqrt((0.5 + 1.5 / burstiness + variation**2) / 50_000)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=4 * error)


def test_gamma_with_a_shape_of_two_has_that_distribution():
    gaps = gaps_s(Gamma(4.0, 2.0))
    erlang = lambda t: 1 - np.exp(-8 * t) * (1 + 8 * t)  # noqa: E731
    assert kolmogorov(gaps, erlang) < 1.95 / math.sqrt(len(gaps))


def counts_in(law, window_s, windows, seed=3):
    due_s = within_s(law, window_s * windows, seed)
    return np.histogram(due_s, bins=windows, range=(0.0, window_s * windows))[0]


def test_bursts_have_the_mean_rate_and_the_dispersion_of_their_states():
    # 20,000 s are about 2,000 bursts; the mean's standard error is sqrt(33.6 / 116,000) = 1.7 %.
    counts = counts_in(BURSTS, 100.0, 200)
    assert BURSTS.mean_rate_per_s(60.0) == pytest.approx(5.8)
    assert counts.mean() / 100 == pytest.approx(5.8, rel=4 * 0.017)
    # Two states, by Fischer and Meier-Hellstern (1993): 1 + 2 σ1σ2(λ1-λ2)² / ((σ1+σ2)²(λ1σ2+λ2σ1))
    out, back = 1 / 9, 1.0
    heavy = 2 * out * back * 38**2 / ((out + back) ** 2 * (2 * back + 40 * out))
    assert BURSTS.dispersion == pytest.approx(1 + heavy)
    # The variance of 200 counts is known to 10 %, four of these.
    assert counts.var() / counts.mean() == pytest.approx(BURSTS.dispersion, rel=0.4)


def test_bursts_correlate_as_long_as_they_last():
    # 200,000 windows of half a second: 10,000 bursts, of which one in eight outlasts the
    # longest lag, so that covariances are known to 4 %. The rate's covariance is
    # π1π2(λ1-λ2)² e^-(σ1+σ2)t; averaged over two windows a lag apart it is that, times
    # (sinh(x)/x)² with x = (σ1+σ2) w/2.
    width_s, decay = 0.5, 1 / 9 + 1
    counts = counts_in(BURSTS, width_s, 200_000).astype(float)
    x = decay * width_s / 2
    smooth = (math.sinh(x) / x) ** 2 * width_s**2
    for lag in (1, 2, 4):
        seen = np.cov(counts[:-lag], counts[lag:])[0, 1]
        expected = 0.9 * 0.1 * 38**2 * math.exp(-decay * lag * width_s) * smooth
        assert seen == pytest.approx(expected, rel=0.15)
    # Ten dwell times of the burst later nothing is left of it.
    far = np.corrcoef(counts[:-40], counts[40:])[0, 1]
    assert abs(far) < 0.02


def test_a_state_may_be_silent_and_there_may_be_three():
    law = MarkovBursts((0.0, 10.0, 50.0), (2.0, 1.0, 1.0))
    # 2,000 runs of 5 s each: stationary from the first moment on.
    firsts = [len(within_s(law, 1.0, seed)) for seed in range(2_000)]
    error = math.sqrt(law.dispersion * 15 / 2_000)
    assert np.mean(firsts) == pytest.approx(15.0, abs=4 * error)


@pytest.mark.parametrize(
    "law",
    [
        Piecewise(((50.0, 20.0), (20.0, 0.0), (30.0, 60.0), (50.0, 5.0))),
        Piecewise(((30.0, 5.0), (20.0, 50.0)), repeat=True),
        Ramp(1.0, 40.0, 120.0),
        Ramp(40.0, 1.0, 120.0),
        Ramp(0.0, 30.0, 200.0),
        Ramp(1.0, 50.0, 150.0, shape="exponential"),
        Ramp(50.0, 2.0, 100.0, shape="exponential"),
        Ramp(7.0, 7.0, 100.0, shape="exponential"),
        Sine(20.0, 20.0, 60.0),
        Sine(20.0, 10.0, 50.0, phase_s=37.5),
    ],
    ids=repr,
)
class TestMovingRates:
    def test_the_count_by_any_moment_is_the_integral_of_the_rate(self, law):
        """Time change: with Λ as its clock any such process is Poisson of rate one."""
        due_s = within_s(law, 150.0)
        counts = np.array([law.mean_rate_per_s(t) * t for t in due_s])
        gaps = np.diff(counts, prepend=0.0)
        # 1,000 to 4,000 gaps, to 999 of 1,000 samples.
        assert kolmogorov(gaps, lambda g: 1 - np.exp(-g)) < 1.95 / math.sqrt(len(gaps))
        assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / math.sqrt(len(gaps))

    def test_the_mean_rate_is_the_rate_seen(self, law):
        runs = [len(within_s(law, 150.0, seed)) for seed in range(40)]
        mean = law.mean_rate_per_s(150.0) * 150
        assert np.mean(runs) == pytest.approx(mean, abs=4 * math.sqrt(mean / 40))

    def test_even_arrivals_come_whenever_one_more_is_expected(self, law):
        even = msgspec.structs.replace(law, gaps="even")
        due_s = within_s(even, 150.0)
        counts = np.array([law.mean_rate_per_s(t) * t if t else 0.0 for t in due_s])
        np.testing.assert_allclose(counts, np.arange(len(due_s)), atol=1e-6)
        assert (np.diff(due_s) > 0).all()

    def test_times_never_fall(self, law):
        assert (gaps_s(law, 3_000) >= 0).all()


def test_a_rate_has_its_shape_at_known_moments():
    def rate_at(law, t):
        return (law.mean_rate_per_s(t + 1e-3) * (t + 1e-3) - law.mean_rate_per_s(t) * t) / 1e-3

    assert rate_at(Ramp(2.0, 10.0, 80.0), 40.0) == pytest.approx(6.0, rel=1e-3)
    assert rate_at(Ramp(2.0, 8.0, 80.0, shape="exponential"), 40.0) == pytest.approx(4.0, rel=1e-3)
    assert rate_at(Ramp(2.0, 10.0, 80.0), 500.0) == pytest.approx(10.0)
    assert rate_at(Sine(5.0, 4.0, 60.0), 15.0) == pytest.approx(9.0, rel=1e-3)
    assert rate_at(Sine(5.0, 4.0, 60.0, phase_s=45.0), 1e-3) == pytest.approx(1.0, rel=1e-3)
    assert rate_at(Piecewise(((10.0, 2.0), (10.0, 7.0))), 15.0) == pytest.approx(7.0)
    assert rate_at(Piecewise(((10.0, 2.0), (10.0, 7.0))), 95.0) == pytest.approx(7.0)
    assert rate_at(Piecewise(((10.0, 2.0), (10.0, 7.0)), repeat=True), 42.0) == pytest.approx(2.0)


def test_nothing_arrives_in_a_pause_and_arrivals_may_end():
    law = Piecewise(((10.0, 30.0), (10.0, 0.0), (10.0, 30.0), (1.0, 0.0)))
    due_s = times_s(law, 100_000)
    assert not ((due_s > 10) & (due_s < 20)).any()
    assert due_s.max() < 30
    assert 450 < len(due_s) < 750
    assert times_s(Ramp(20.0, 0.0, 30.0), 100_000).max() <= 30


def test_all_at_once_is_due_at_the_start():
    assert set(itertools.islice(AllAtOnce().offsets_s(np.random.default_rng(0)), 5)) == {0.0}
    assert AllAtOnce().mean_rate_per_s(60.0) is None


def test_seen_times_are_stretched_and_counted():
    law = Scheduled((0.0, 1.0, 1.0, 4.0), time_scale=2.0)
    assert times_s(law).tolist() == [0.0, 2.0, 2.0, 8.0]
    assert law.mean_rate_per_s(4.0) == 0.75
    assert law.mean_rate_per_s(8.0) == 0.5


@pytest.mark.parametrize("law", ONE_OF_EACH, ids=lambda law: type(law).__name__)
def test_laws_round_trip_through_json_and_toml(law):
    again = msgspec.json.decode(msgspec.json.encode(law), type=Arrivals)
    assert again == law
    assert hash(again) == hash(law)
    assert times_s(again, 50).tolist() == times_s(law, 50).tolist()
    table = msgspec.to_builtins(law)
    assert arrivals_of(table) == law
    assert LAWS[table["kind"]] is type(law)


def test_a_table_of_toml_is_a_law():
    table = tomllib.loads('kind = "mmpp"\nrates_per_s = [2, 40]\ndwell_s = [9, 1]\n')
    assert arrivals_of(table) == BURSTS


def test_every_law_is_in_the_table():
    assert {type(law) for law in ONE_OF_EACH} == set(LAWS.values()) == set(Arrivals.__args__)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("law", [Constant, Poisson, Gamma])
def test_rates_without_meaning_are_refused(law, rate):
    with pytest.raises(InputError, match="rate"):
        law(rate)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gamma(1.0, 0.0), "burstiness"),
        (lambda: Gamma(1.0, math.inf), "burstiness"),
        (lambda: MarkovBursts((1.0,), (1.0,)), "two states"),
        (lambda: MarkovBursts((1.0, 2.0), (1.0,)), "1 times for 2 rates"),
        (lambda: MarkovBursts((0.0, 0.0), (1.0, 1.0)), "no rate above 0"),
        (lambda: MarkovBursts((1.0, -2.0), (1.0, 1.0)), "rate of -2"),
        (lambda: MarkovBursts((1.0, 2.0), (1.0, 0.0)), "dwell_s"),
        (lambda: Piecewise(()), "empty"),
        (lambda: Piecewise(((0.0, 1.0),)), "steps"),
        (lambda: Piecewise(((1.0, 0.0),)), "no rate above 0"),
        (lambda: Ramp(1.0, 2.0, 0.0), "over_s"),
        (lambda: Ramp(0.0, 0.0, 9.0), "both 0"),
        (lambda: Ramp(0.0, 5.0, 9.0, shape="exponential"), "from_per_s"),
        (lambda: Ramp(-1.0, 5.0, 9.0), "from_per_s"),
        (lambda: Sine(4.0, 5.0, 60.0), "amplitude_per_s"),
        (lambda: Sine(4.0, 2.0, 0.0), "period_s"),
        (lambda: Sine(4.0, 2.0, 60.0, phase_s=math.nan), "phase_s"),
        (lambda: Poisson(4.0, count=0), "count must be positive"),
        (lambda: Scheduled((1.0, 0.5)), "never fall"),
        (lambda: Scheduled((-1.0, 0.5)), "never fall"),
        (lambda: Scheduled((0.0,), 0.0), "time_scale"),
    ],
)
def test_laws_without_meaning_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


class TestModulated:
    """Steps, states and gaps: alone each is a law that is known, together their rates multiply."""

    def test_states_alone_are_a_markov_modulated_process(self):
        law = Modulated(steps=((10.0, 2.0),), factors=(1.0, 20.0), dwell_s=(9.0, 1.0))
        assert law.dispersion == pytest.approx(BURSTS.dispersion)
        assert law.mean_rate_per_s(60) == pytest.approx(BURSTS.mean_rate_per_s(60))
        times = times_s(law, 40_000)
        assert len(times) / times[-1] == pytest.approx(5.8, rel=0.08)
        counts = np.histogram(times, np.arange(0, times[-1], 100))[0]
        assert counts.var() / counts.mean() == pytest.approx(law.dispersion, rel=0.35)

    def test_steps_alone_have_their_rates_again_and_again(self):
        law = Modulated(steps=((100.0, 2.0), (50.0, 0.0), (50.0, 20.0)))
        times = times_s(law)
        within = times % 200
        assert not ((within > 100) & (within < 150)).any()
        rounds = times[-1] / 200
        assert (within > 150).sum() / rounds == pytest.approx(1000, rel=0.03)
        assert law.mean_rate_per_s(200) == pytest.approx(6.0)

    def test_gaps_are_those_of_the_table_over_the_rate(self):
        law = Modulated(steps=((9.0, 4.0),), gap_points=((0, 0), (0.5, 0.2), (1, 4)))
        gaps = gaps_s(law)
        mean = (0.5 * 0.1 + 0.5 * 2.1) * 4  # of the table, in gaps of rate 4
        assert gaps.mean() == pytest.approx(0.25, rel=0.02)
        assert (gaps < 0.2 / mean).mean() == pytest.approx(0.5, abs=0.015)
        assert law.dispersion == pytest.approx(gaps.var() / gaps.mean() ** 2, rel=0.05)

    def test_a_last_step_of_zero_ends_the_arrivals(self):
        law = Modulated(steps=((10.0, 2.0), (1.0, 0.0)), repeat=False)
        assert times_s(law)[-1] <= 10

    def test_chances_of_jumps_decide_what_follows(self):
        law = Modulated(
            steps=((1.0, 1.0),),
            factors=(0.1, 1.0, 30.0),
            dwell_s=(10.0, 10.0, 10.0),
            jumps=((0, 1, 0), (0.5, 0, 0.5), (0, 1, 0)),
        )
        assert law.mean_rate_per_s(1) == pytest.approx(0.25 * 0.1 + 0.5 * 1.0 + 0.25 * 30)

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("steps=[(9,1)],factors=[1,2]", "dwell_s"),
            ("steps=[(9,1)],factors=[1,2],dwell_s=[1,1],jumps=[[0,1]]", "jumps"),
            ("steps=[(9,1)],factors=[1,2],dwell_s=[1,1],jumps=[[1,0],[1,0]]", "followed by none"),
            ("steps=[(9,1)],gap_points=[(0,2),(1,1)]", "gap_points"),
            ("steps=[(9,0)]", "rate above 0"),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, text, word):
        with pytest.raises(InputError, match=word):
            parse_arrivals(f"kind=modulated,{text}")
