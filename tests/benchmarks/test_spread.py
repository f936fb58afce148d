"""The spread of errors: what counts how much, and where the ends of an interval lie."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from benchmark_scripts import script


@pytest.fixture(scope="module")
def spread() -> ModuleType:
    return script("prediction/spread.py")


def test_groups_and_sources_weigh_as_the_root_of_what_they_hold(spread: ModuleType) -> None:
    sources = ["large"] * 16 + ["small"]
    groups = [(name, number % 4) for number, name in enumerate(sources)]  # four of four, one of one
    found = spread.weights(groups, sources)
    assert found[:16].sum() == pytest.approx(np.sqrt(4 * np.sqrt(4)))
    assert found[16] == pytest.approx(1.0)


def test_the_ends_hold_their_share_of_the_weight(spread: ModuleType) -> None:
    values = np.random.default_rng(1).normal(size=20_000)
    heavy = np.where(values > 0, 3.0, 1.0)
    low, high = spread.ends(values, heavy, 0.9)
    inside = (low <= values) & (values <= high)
    assert heavy[inside].sum() / heavy.sum() == pytest.approx(0.9, abs=1e-3)
    assert heavy[values < low].sum() == pytest.approx(heavy[values > high].sum(), rel=0.01)
    assert -low < high  # where the weight is
