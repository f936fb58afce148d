import itertools

import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload import AllAtOnce, Constant, Poisson


def gaps_s(law, count=20_000):
    times = list(itertools.islice(law.offsets_s(np.random.default_rng(3)), count))
    return np.diff(times)


def test_constant_gaps_are_equal():
    np.testing.assert_allclose(gaps_s(Constant(4.0)), 0.25)


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    gaps = gaps_s(Poisson(4.0))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.03)
    share_below_mean = (gaps < 0.25).mean()
    assert share_below_mean == pytest.approx(1 - np.exp(-1), abs=0.01)


def test_all_at_once_is_due_at_the_start():
    assert set(itertools.islice(AllAtOnce().offsets_s(np.random.default_rng(0)), 5)) == {0.0}


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rates_without_meaning_are_refused(rate):
    with pytest.raises(InputError, match="rate"):
        Poisson(rate)
