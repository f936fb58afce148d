"""What measurements say of points that were not measured, and of the causes of all."""

import numpy as np
import pytest

from servetune.search.beliefs import Beliefs, Forecast, sampled


def forecast(*, factors, near_sd=0.0, own_sd=0.0, noise_sd=0.03, positions=None, alike=None):
    """One quantity, one time; factors of shape (points, factors)."""
    factors = np.array(factors, dtype=float)
    count = len(factors)
    return Forecast(
        quantities=np.zeros((1, count)),
        weights=np.ones((1, count, 1)),
        factors=factors[None],
        names=tuple(f"cause {number}" for number in range(factors.shape[1])),
        near_sd=np.array([near_sd]),
        positions=np.zeros((1, count, 1)) if positions is None else np.array(positions)[None],
        own_sd=np.array([own_sd]),
        alike=np.arange(count) if alike is None else np.array(alike),
        noise_sd=np.array([noise_sd]),
    )


def test_a_measurement_moves_points_by_the_causes_that_both_depend_on():
    """Four devices wait for their links; two do in part, one not at all."""
    links, memory = (0.3, 0.0), (0.0, 0.3)
    half = (0.15, 0.15)
    beliefs = Beliefs(forecast(factors=[links, half, memory]), {0: np.array([0.2])})
    ((whole, part, none),), ((measured_sd, part_sd, other_sd),) = beliefs.expected()
    assert whole > part > 0
    assert none == pytest.approx(0)
    assert measured_sd < part_sd < other_sd == pytest.approx(0.3)


def test_beliefs_are_those_of_the_textbook():
    found = Beliefs(forecast(factors=[[0.3], [0.2]], noise_sd=0.1), {0: np.array([0.05])})
    off = 0.05 / np.hypot(1, 0.05 / 1.5)
    ((_, mean),), ((_, sd),) = found.expected()
    assert mean == pytest.approx(0.3 * 0.2 / (0.3**2 + 0.1**2) * off)
    assert sd == pytest.approx(np.sqrt(0.2**2 - (0.3 * 0.2) ** 2 / (0.3**2 + 0.1**2)))


def test_a_factor_is_known_once_points_of_different_slopes_were_measured():
    points = forecast(factors=[[0.3, 0.0], [0.0, 0.3], [0.2, 0.2]])
    before = Beliefs(points, {}).factors()
    assert [(each.mean, each.sd) for each in before] == [(0, 1), (0, 1)]
    link, memory = Beliefs(points, {0: np.array([0.3]), 1: np.array([0.0])}).factors()
    assert link.mean == pytest.approx(1, abs=0.05)
    assert memory.mean == pytest.approx(0, abs=0.05)
    assert max(link.sd, memory.sd) < 0.15


def test_joint_draws_of_points_with_one_cause_move_together():
    beliefs = Beliefs(forecast(factors=[[0.3, 0], [0.3, 0], [0, 0.3]]), {})
    mean, covariance = beliefs.joint(np.array([0, 1, 2]))
    draws = sampled(mean, covariance, 2000, seed=1)
    together = np.corrcoef(draws.T)
    assert together[0, 1] > 0.99
    assert abs(together[0, 2]) < 0.1


def test_predictions_that_turn_out_right_are_trusted_further():
    """Scatter that is not seen among measured points is not expected of the others."""
    positions = [[float(place)] for place in range(30)]
    points = forecast(factors=np.zeros((30, 1)), near_sd=0.2, own_sd=0.1, positions=positions)
    measured = {place: np.array([0.0]) for place in range(0, 20, 2)}
    right = Beliefs(points, measured)
    wrong = Beliefs(points, {at: np.array([0.2 * (-1) ** at * at / 10]) for at in range(1, 20, 2)})
    assert right.scale < 0.5 <= wrong.scale
    assert right.expected()[1][0, -1] < 0.5 * Beliefs(points, {}).expected()[1][0, -1]


def test_measurements_far_beyond_all_doubt_make_every_doubt_larger():
    """A machine that is ten times as fast as predicted is not the one that was described."""
    points = forecast(factors=[[0.3], [0.3], [0.0]], near_sd=0.1, own_sd=0.05)
    usual, surprised = (Beliefs(points, {0: np.array([off])}) for off in (-0.3, -2.3))
    assert usual.surprise == 1
    assert surprised.surprise > 2
    _, (before,) = usual.expected()
    _, (after,) = surprised.expected()
    assert (after > 2 * before).all()


def test_points_that_are_predicted_to_do_the_same_share_all():
    points = forecast(factors=[[0.0]] * 3, own_sd=0.2, alike=[0, 0, 1])
    ((_, twin, other),), _ = Beliefs(points, {0: np.array([0.2])}).expected()
    assert twin > 0.15
    assert other == 0
