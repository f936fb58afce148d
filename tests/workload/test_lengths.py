import numpy as np
import pytest

from servetune.errors import InputError
from servetune.workload import (
    SHAREGPT,
    Fixed,
    Normal,
    Observed,
    UniformRange,
    workload_from_client_args,
)


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


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_quantile_draws_meet_their_mean_at_any_size(count):
    inputs, outputs = SHAREGPT.draw(count, rng())
    assert len(inputs) == len(outputs) == count
    assert inputs.sum() == pytest.approx(302.118 * count, abs=1)


def test_uniform_range_keeps_to_its_range_and_mean():
    inputs, _ = UniformRange(1000, 10, 0.8).draw(20_000, rng())
    assert inputs.min() >= 800
    assert inputs.max() <= 1000
    assert inputs.mean() == pytest.approx(900, rel=0.01)


def test_observed_lengths_repeat_in_order():
    inputs, outputs = Observed("x", ((1, 2), (3, 4))).draw(3, rng())
    assert inputs.tolist() == [1, 3, 1]
    assert outputs.tolist() == [2, 4, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(0, 1),
        lambda: Fixed(1, -1),
        lambda: UniformRange(1, 1, 1.5),
        lambda: Observed("x", ()),
    ],
)
def test_lengths_without_meaning_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_gaussian_lengths_keep_mean_and_deviation_and_their_bounds():
    law = Normal(input_tokens=1000, output_tokens=20, input_sd_tokens=200, output_sd_tokens=30)
    inputs, outputs = law.draw(50_000, np.random.default_rng(7))
    assert inputs.mean() == pytest.approx(1000, abs=4 * 200 / 50_000**0.5)
    assert inputs.std() == pytest.approx(200, rel=0.02)
    assert (outputs.min(), outputs.max()) == (1, 39)
    assert outputs.mean() == pytest.approx(20, abs=0.3)
    assert outputs.std() < 30


def test_gaussian_lengths_are_asked_for_by_their_deviations():
    asked = workload_from_client_args({"random_input_len": 50, "random_input_sd": 5.0})
    assert asked.lengths == Normal(input_tokens=50, output_tokens=512, input_sd_tokens=5.0)
    with pytest.raises(InputError, match="not both"):
        workload_from_client_args({"random_input_sd": 5.0, "random_range_ratio": 0.5})
    with pytest.raises(InputError, match="0 or more"):
        workload_from_client_args({"random_input_sd": -5.0})
