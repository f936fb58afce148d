import numpy as np
import pytest

from servetune.metrics.columns import columns_of
from servetune.metrics.steady import in_system_means, littles_law


def test_the_number_in_the_system_is_integrated_exactly():
    due_s, end_s = np.array([0.0, 1.0, 2.5]), np.array([2.0, 4.0, 3.0])
    means = in_system_means(due_s, end_s, np.array([0.0, 1.0, 2.0, 4.0]))
    np.testing.assert_allclose(means, [1.0, 2.0, (2 + 0.5) / 2])


def test_over_a_run_that_begins_and_ends_empty_littles_law_has_no_residual(open_loop):
    columns = columns_of(open_loop(0.7, 400))
    law = littles_law(columns, 0.0, float(columns.end_s.max()))
    assert law.residual == pytest.approx(0, abs=1e-9)


def test_over_a_steady_stretch_the_residual_is_small_and_over_a_growing_queue_it_is_not(open_loop):
    columns = columns_of(open_loop(70, 5000, servers=100, capacity_per_s=100))
    assert abs(littles_law(columns, 10.0, 60.0).residual) < 0.05
    growing = columns_of(open_loop(1.5, 1000))
    assert abs(littles_law(growing, 100.0, 600.0).residual) > 0.1


def test_no_time_has_no_law(open_loop):
    assert littles_law(columns_of(open_loop(1.0, 5)), 3.0, 3.0) is None
