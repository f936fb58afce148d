"""One plan has one answer: the steady state by formula and the engine in virtual time."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "prediction" / "agreement.py"
#: Users under the loads of the benchmark, in turns, so that every engine meets every model with
#: few and many users, and every load; the whole grid takes half an hour.
USERS = (1, 16, 96)
LOADS = 3


@pytest.fixture(scope="module")
def agreement() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agreement", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agreement"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_estimate_and_simulation_agree_over_a_grid(agreement: ModuleType, engine: str) -> None:
    """Half of all plans within 3%, and each within 20% in throughput and end-to-end latency.

    Between tokens 25%, but not where vLLM's cache is the limit: those who lose their place there
    wait between two tokens in the simulator, and before the first by formula.
    """
    loads = itertools.cycle(agreement.LOADS)
    sizes: dict[str, list[float]] = {}
    for place, users, _ in itertools.product(agreement.PLACES, USERS, range(LOADS)):
        load = next(loads)
        row = agreement.compared(engine, place, load, users)
        for name, difference in row.differences().items():
            what = f"{row.model}, {load}, {users} users: {name}"
            sizes.setdefault(name, []).append(abs(difference))
            if name != "tpot_ms":
                assert abs(difference) < 0.2, what
            elif not (row.queued and engine == "vllm"):
                assert abs(difference) < 0.25, what
    for name, found in sizes.items():
        assert np.median(found) < 0.03, name


def test_the_published_short_answers_of_128_users_are_met_by_both(agreement: ModuleType) -> None:
    """Measured: 1,255 tokens/s of text-generation-inference; no constant was fitted to it."""
    row = agreement.compared("tgi", agreement.PLACES[0], "8 / 100", 128)
    assert row.formula.output_tokens_per_s == pytest.approx(1255, rel=0.1)
    assert row.simulated.output_tokens_per_s == pytest.approx(1255, rel=0.1)
