import doctest
import math
import random

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.search import bracket
from servetune.search.bracket import Bracket, combined


def found(search, margin, sd=0.0, rng=None):
    """Answer of a search after running every load that it asks for, and these loads."""
    asked = []
    while (load := search.ask()) is not None:
        noise = rng.gauss(0, sd) if rng else 0.0
        search.tell(load, margin(load) * math.exp(noise), sd)
        asked.append(load)
        assert len(asked) < 200
    return search.answer, asked


@pytest.mark.parametrize("largest", [1, 2, 3, 17, 100, 511])
def test_without_noise_neighbouring_numbers_or_five_percent_are_found(largest):
    answer, asked = found(Bracket(most=2000), lambda load: load / (largest + 0.5))
    assert answer.held <= largest < answer.failing
    assert answer.failing - answer.held == 1 or answer.failing / answer.held <= 1.05
    assert (answer.confidence, answer.undecided, answer.contradictions) == (1.0, (), ())
    assert len(asked) == len(set(asked)) == answer.run_count <= 16


def test_a_rate_is_found_to_the_resolution_and_has_few_digits():
    answer, asked = found(Bracket(least=0.1, whole=False, resolution=0.02), lambda load: load / 3.3)
    assert answer.held <= 3.3 < answer.failing <= answer.held * 1.02
    assert all(load == float(f"{load:.3g}") for load in asked)


def test_a_good_start_saves_runs():
    _, from_least = found(Bracket(), lambda load: load / 200)
    _, from_guess = found(Bracket(start=190, first_growth=1.3), lambda load: load / 200)
    assert len(from_guess) < 0.6 * len(from_least)


def test_a_start_that_fails_goes_down_to_the_least():
    answer, asked = found(Bracket(least=4, start=300), lambda load: load / 3)
    assert (answer.held, answer.failing) == (None, 4)
    assert asked == sorted(asked, reverse=True)


def test_a_bound_that_holds_ends_the_search():
    answer, _ = found(Bracket(most=48), lambda load: load / 1000)
    assert (answer.held, answer.failing) == (48, None)


def test_bounds_that_are_equal_are_one_run():
    assert found(Bracket(least=8, most=8), lambda load: load / 9)[0].held == 8
    assert found(Bracket(least=8, most=8), lambda load: load / 7)[0].failing == 8


def test_a_load_near_the_limit_is_run_again_until_it_is_told():
    search = Bracket(most=64, start=20, most_runs=4)
    answer, asked = found(search, lambda load: load / 20.9, sd=0.03)
    assert asked.count(20) == 3
    assert answer.held == 20 < answer.failing
    assert asked.count(answer.held) >= asked.count(answer.failing)


def test_a_load_at_the_limit_is_not_run_again_and_again():
    answer, asked = found(Bracket(most=64, start=20), lambda load: load / 20, sd=0.03)
    assert asked.count(20) == 1
    assert answer.undecided == (20,)
    assert answer.held < 20 < answer.failing


def test_a_margin_that_hardly_changes_with_load_ends_the_search_with_a_wide_answer():
    answer, asked = found(Bracket(most=512), lambda load: (load / 60.5) ** 0.03, sd=0.02)
    assert len(answer.undecided) == bracket.MOST_UNDECIDED
    assert answer.held < 60 < (answer.failing or 512)
    assert len(asked) < 20


def test_a_load_that_the_server_cannot_bear_fails_at_once():
    answer, asked = found(
        Bracket(), lambda load: math.inf if load > 10 else 0.5 * load / 10, sd=0.05
    )
    assert (answer.held, answer.failing) == (10, 11)
    assert len(asked) == len(set(asked))


def test_the_same_runs_in_any_order_lead_to_the_same_decision():
    rng, search = random.Random(3), Bracket(start=40)
    told = []
    while (load := search.ask()) is not None:
        shuffled = Bracket(start=40)
        for each in rng.sample(told, len(told)):
            shuffled.tell(*each)
        assert shuffled.ask() == load
        told.append((load, load / 57 * math.exp(rng.gauss(0, 0.05)), 0.05))
        search.tell(*told[-1])
    assert len(told) == search.answer.run_count > 6


def test_a_load_that_fails_below_one_that_holds_is_repeated_and_said():
    search = Bracket(most=64)
    search.tell(64, 0.8, 0.01)
    search.tell(16, 1.2, 0.01)
    answer, asked = found(search, lambda load: 1.2 if load >= 16 and load != 64 else 0.8, sd=0.01)
    assert (asked.count(16), asked.count(64)) == (2, 2)
    assert answer.contradictions == (16,)
    assert (answer.held, answer.failing) == (15, 16)


def test_a_failure_by_chance_is_outvoted_when_it_is_repeated():
    search = Bracket(most=64)
    search.tell(64, 0.9, 0.02)
    search.tell(16, 1.06, 0.02)
    answer, _ = found(search, lambda load: 0.9 * (load / 64) ** 0.1, sd=0.02)
    assert answer.contradictions == ()
    assert answer.held == 64


@pytest.mark.parametrize("sd", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("steepness", [0.5, 2.0])
def test_the_stated_confidence_is_calibrated_on_noisy_curves(sd, steepness):
    runs, right, stated = 250, 0, 0.0
    for seed in range(runs):
        rng = random.Random(seed)
        limit = 2 ** rng.uniform(1, 9)
        search = Bracket(most=1024, confidence=0.9, start=limit * rng.choice((0.1, 0.8, 1.3)))
        answer, _ = found(search, lambda load, at=limit: (load / at) ** steepness, sd, rng)
        largest = math.floor(limit)
        right += (answer.held or 0) <= largest < (answer.failing or math.inf)
        stated += answer.confidence
    assert stated / runs >= 0.9
    assert right / runs >= stated / runs - 0.02  # standard error of the share: 1%


def test_noise_widens_the_answer_instead_of_making_it_wrong():
    widths = []
    for sd in (0.01, 0.1):
        gaps = []
        for seed in range(40):
            answer, _ = found(Bracket(), lambda load: load / 90.5, sd, random.Random(seed))
            gaps.append(math.log(answer.failing / answer.held))
        widths.append(sum(gaps) / len(gaps))
    assert widths[1] > 2 * widths[0]


def test_runs_that_differ_more_than_their_errors_make_the_mean_less_certain():
    assert combined([(0.1, 0.02), (0.1, 0.02)]) == pytest.approx((0.1, 0.02 / math.sqrt(2)))
    mean, sd = combined([(0.0, 0.02), (0.2, 0.02)])
    assert (mean, sd) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize(
    "wrong", [{"least": 0}, {"least": 9, "most": 8}, {"confidence": 1}, {"most_runs": 0}]
)
def test_bounds_without_a_load_and_impossible_certainty_are_refused(wrong):
    with pytest.raises(InputError):
        Bracket(**wrong)


def test_the_docstring_shows_a_search():
    assert doctest.testmod(bracket).failed == 0


def test_possible_largest_loads_lie_in_the_gap_that_is_left_and_beyond_it_by_its_doubt():
    even = (np.arange(1000) + 0.5) / 1000
    sure, _ = found(Bracket(most=2000), lambda load: load / 23.5)
    assert set(sure.drawn(even, whole=True)) == {23}
    rate, _ = found(Bracket(least=0.1, whole=False), lambda load: load / 3.3)
    drawn = rate.drawn(even, whole=False)
    assert rate.held <= drawn.min() <= drawn.max() <= rate.failing
    assert np.median(drawn) == pytest.approx(math.sqrt(rate.held * rate.failing), rel=1e-3)
    noisy, _ = found(Bracket(most=2000), lambda load: load / 23.5, 0.1, random.Random(3))
    outside = noisy.drawn(even, whole=False)
    share = ((outside < noisy.held) | (outside >= noisy.failing)).mean()
    assert 0 < share <= 1 - noisy.confidence + 0.002


def test_a_load_that_was_not_exceeded_may_be_larger_only_while_the_search_goes_on():
    even = (np.arange(100) + 0.5) / 100
    search = Bracket(most=64)
    for load in (16, 32):
        search.tell(load, load / 100)
    assert search.answer.drawn(even, whole=True).max() == 32
    open_ = search.answer.drawn(even, whole=True, ended=False)
    assert open_.min() >= 32
    assert open_.max() == pytest.approx(63, abs=1)


def test_possible_largest_loads_are_as_likely_as_they_are_said_to_be():
    """Where the true one lies among draws is even: few are beyond nine tenths of them."""
    rng, places = random.Random(11), []
    even = (np.arange(400) + 0.5) / 400
    for _ in range(150):
        true = math.exp(rng.uniform(2, 5))
        search = Bracket(most=4000, confidence=0.95)
        answer, _ = found(search, lambda load, true=true: load / true, 0.06, rng)
        drawn = answer.drawn(even, whole=False)
        places.append((drawn < true).mean())
    inside = np.mean([0.05 <= place <= 0.95 for place in places])
    assert inside >= 0.88
    assert 0.35 <= np.mean(places) <= 0.65
