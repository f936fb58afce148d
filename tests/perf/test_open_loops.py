"""Open loops by formula at rates, lengths and numbers of requests that no benchmark has."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf.roofline import PlannedRun, RunPoint, predict_runs
from servetune.plan import Plan
from servetune.workload import LengthLaws

RATES = (1e-6, 0.1, 1.0, 8.0, 64.0, 512.0, 1e4, 1e6)
MODEL = "Qwen/Qwen3-8B"


def open_loops(
    engine: str, prompt: int, answer: int, requests: int, dispersion: float = 1.0
) -> list[RunPoint]:
    """Runs of one load at all rates."""
    runs = [run_of(engine, prompt, answer, requests, rate, dispersion) for rate in RATES]
    return [each.point for each in predict_runs(runs)]


def run_of(
    engine: str, prompt: int, answer: int, requests: int, rate_per_s: float, dispersion: float
) -> PlannedRun:
    return PlannedRun(
        shape=load_shape(MODEL, catalogue_first=True),
        node=node(gpu="H100"),
        plan=Plan(model=MODEL, engine=engine),
        lengths=LengthLaws.ranged(prompt, answer, 0.5),
        concurrency=1,
        request_count=requests,
        protocol="open",
        rate_per_s=rate_per_s,
        dispersion=dispersion,
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
@pytest.mark.parametrize("dispersion", [1e-3, 1.0, 50.0])
def test_every_rate_has_a_finite_prediction(engine: str, dispersion: float) -> None:
    """Few requests far beyond saturation, and even arrivals, had first tokens of `nan`."""
    loads = list(itertools.product((8, 4000), (1, 32, 512), (1, 2, 20, 1000), RATES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predict_runs([run_of(engine, *load, dispersion) for load in loads])
    for (prompt, answer, requests, rate), point in zip(
        loads, (each.point for each in found), strict=True
    ):
        what = f"{prompt} / {answer}, {requests} at {rate:g}/s"
        assert 0 < point.ttft_ms <= point.e2e_ms * (1 + 1e-9), what
        assert 0 < point.tpot_ms < math.inf, what
        assert point.e2e_ms < math.inf, what
        assert point.output_tokens_per_s <= 1.001 * rate * answer, what


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
@pytest.mark.parametrize(("prompt", "answer"), [(500, 250), (4000, 300), (1000, 8)])
def test_first_tokens_come_later_at_higher_rates(engine: str, prompt: int, answer: int) -> None:
    times = [point.ttft_ms for point in open_loops(engine, prompt, answer, 300)]
    for slower, faster in itertools.pairwise(times):
        assert faster > slower * 0.99
