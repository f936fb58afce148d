"""The number that decodes in a run that ends, beside a run that is counted step by step."""

from __future__ import annotations

import numpy as np
import pytest

from servetune.perf.roofline.filling import filling_of

#: Requests of the counted run; they come evenly in a time of one.
REQUESTS = 2000


@pytest.mark.parametrize("lasting", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_moments_are_those_of_a_counted_run(lasting: float) -> None:
    times = np.linspace(0, 1 + lasting, 200_001)
    came = REQUESTS * np.minimum(times, 1)
    decoding = came - REQUESTS * np.clip(times - lasting, 0, 1)
    beside_token = np.average(decoding, weights=decoding)
    spread = np.sqrt(np.average((decoding - beside_token) ** 2, weights=decoding))
    coming = times <= 1
    found = filling_of(np.array([beside_token]), np.array([REQUESTS]))
    assert found.lasting == pytest.approx(lasting, rel=0.01)
    assert found.most == pytest.approx(decoding.max(), rel=0.01)
    assert found.tokens_spread == pytest.approx(spread, rel=0.02, abs=1)
    assert found.prompts == pytest.approx(decoding[coming].mean(), rel=0.01)
    assert found.prompts_spread == pytest.approx(decoding[coming].std(), rel=0.02)
    assert found.coming == pytest.approx(decoding[coming].sum() / decoding.sum(), rel=0.01)


def test_the_last_request_decodes_beside_more_where_steps_grow() -> None:
    """Requests that came late while a run filled are then the nearer in steps."""
    found = filling_of(np.array([500.0]), np.array([1000.0]))
    means = [float(found.last(np.array([growth]))[0][0]) for growth in (1.0, 2.0, 8.0)]
    assert means == sorted(means)
    assert found.most[0] / 2 == pytest.approx(means[0], rel=0.01)
    assert means[-1] < found.most[0]
