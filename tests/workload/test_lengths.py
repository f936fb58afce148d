import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload import SHAREGPT, LengthLaws, Observed, workload_from_client_args
from servetune.workload.laws import Always, Normal


def rng():
    return np.random.default_rng(7)


def test_sharegpt_meets_the_published_totals_and_output_percentiles():
    inputs, outputs = SHAREGPT.draw(1000, rng())
    assert (inputs.sum(), outputs.sum()) == (302_118, 195_775)
    median, p95, p99 = np.percentile(outputs, (50, 95, 99))
    assert median == pytest.approx(130, rel=0.1)
    assert p95 == pytest.approx(640, rel=0.1)
    assert p99 == pytest.approx(830, rel=0.1)
    assert inputs.min() >= 1


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_quantile_draws_meet_their_mean_at_any_size(count):
    inputs, outputs = SHAREGPT.draw(count, rng())
    assert len(inputs) == len(outputs) == count
    assert inputs.sum() == pytest.approx(302.118 * count, abs=1)


def test_ranged_lengths_keep_to_their_range_and_mean():
    inputs, _ = LengthLaws.ranged(1000, 10, 0.8).draw(20_000, rng())
    assert inputs.min() >= 800
    assert inputs.max() <= 1000
    assert inputs.mean() == pytest.approx(900, rel=0.01)


def test_observed_lengths_repeat_in_order():
    inputs, outputs = Observed("x", ((1, 2), (3, 4))).draw(3, rng())
    assert inputs.tolist() == [1, 3, 1]
    assert outputs.tolist() == [2, 4, 2]


def test_lengths_that_are_always_equal_are_a_pair():
    assert LengthLaws.fixed(8, 4).fixed_pair == (8, 4)
    assert LengthLaws.ranged(8, 4, 0.5).fixed_pair is None
    assert Observed("x", ((1, 2), (1, 2))).fixed_pair == (1, 2)
    assert Observed("x", ((1, 2), (3, 4))).fixed_pair is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: LengthLaws.fixed(0, 1),
        lambda: LengthLaws.fixed(1, -1),
        lambda: LengthLaws.ranged(1, 1, 1.5),
        lambda: Observed("x", ()),
    ],
)
def test_lengths_without_meaning_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_normal_lengths_are_asked_for_by_their_deviations():
    asked = workload_from_client_args({"random_input_len": 50, "random_input_sd": 5.0})
    assert asked.lengths == LengthLaws(Normal(50, 5), Always(512))
    with pytest.raises(InputError, match="not both"):
        workload_from_client_args({"random_input_sd": 5.0, "random_range_ratio": 0.5})
    with pytest.raises(InputError, match="no negative spread"):
        workload_from_client_args({"random_input_sd": -5.0})
