"""Open loops by formula at rates, lengths and numbers of requests that no benchmark has."""

from __future__ import annotations

import itertools
import math
import warnings

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import RunOptions, simulate
from servetune.perf.roofline import PlannedRun, RunPoint, predict_runs
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload
from servetune.workload.arrivals import Poisson

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


def points_at(rates: list[float], **plan: object) -> list[RunPoint]:
    """A network of experts, whose steps are much longer where captured graphs end, at rates."""
    runs = [
        PlannedRun(
            shape=load_shape("Qwen/Qwen3-30B-A3B", catalogue_first=True),
            node=node(gpu="H200", count=4),
            plan=Plan(model="Qwen/Qwen3-30B-A3B", tensor_parallel=4, **plan),  # type: ignore[arg-type]
            lengths=LengthLaws.fixed(128, 32),
            concurrency=1,
            request_count=1000,
            protocol="open",
            rate_per_s=rate,
            warmed=True,
        )
        for rate in rates
    ]
    return [each.point for each in predict_runs(runs)]


@pytest.mark.parametrize("release", ["0.10.2", "0.25.0"])
def test_longer_steps_without_graphs_do_not_overload_an_engine(release: str) -> None:
    """The jump at 512 tokens was taken for a slope: first tokens of 69, 2018 and 263 ms."""
    points = points_at([20 * 1.02**k for k in range(160)], engine="vllm", engine_version=release)
    for slower, faster in itertools.pairwise(points):
        assert 0.98 < faster.ttft_ms / slower.ttft_ms < 1.3
        assert faster.output_tokens_per_s > 0.995 * slower.output_tokens_per_s


def test_first_tokens_at_the_end_of_graphs_are_those_of_the_simulator() -> None:
    shape, machine = (
        load_shape("Qwen/Qwen3-30B-A3B", catalogue_first=True),
        node(gpu="H200", count=4),
    )
    plan = Plan(model=shape.name, engine="vllm", engine_version="0.10.2", tensor_parallel=4)
    rate = 260.0
    load = Workload.of(LengthLaws.fixed(128, 32), request_count=1000, arrivals=Poisson(rate))
    run = simulate(plan, shape, machine, load, options=RunOptions(each_token=False))
    times_ms = [1e3 * record.ttft_s for record in run.records if record.ttft_s is not None]
    (point,) = points_at([rate], engine="vllm", engine_version="0.10.2")
    assert point.ttft_ms == pytest.approx(sum(times_ms) / len(times_ms), rel=0.15)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("tokens", [505, 511, 512, 513, 520])
def test_an_open_loop_at_a_vanishing_rate_is_one_user(engine: str, tokens: int) -> None:
    """A prompt of a fixed length had a spread, which smeared the end of captured graphs."""
    alone = PlannedRun(
        shape=load_shape("openai/gpt-oss-120b", catalogue_first=True),
        node=node(gpu="B200"),
        plan=Plan(model="openai/gpt-oss-120b", engine=engine),
        lengths=LengthLaws.fixed(tokens, 64),
        concurrency=1,
        request_count=1000,
        warmed=True,
    )
    seldom = msgspec.structs.replace(alone, protocol="open", rate_per_s=1e-3)
    closed, opened = (each.point for each in predict_runs([alone, seldom]))
    assert opened.ttft_ms == pytest.approx(closed.ttft_ms, rel=0.02)
    assert opened.tpot_ms == pytest.approx(closed.tpot_ms, rel=0.02)


def test_an_overloaded_run_serves_no_less_at_higher_rates() -> None:
    """Steps that grow for as long as a run lasts were taken for endless: 919, 680, 995 tokens/s."""
    runs = [
        PlannedRun(
            shape=load_shape("meta-llama/Llama-4-Scout-17B-16E-Instruct", catalogue_first=True),
            node=node(gpu="GB10"),
            plan=Plan(
                model="meta-llama/Llama-4-Scout-17B-16E-Instruct",
                engine="vllm",
                engine_version="0.10.2",
                quantization="mxfp4",
                max_model_len=144,
            ),
            lengths=LengthLaws.fixed(16, 128),
            concurrency=1,
            request_count=1000,
            protocol="open",
            rate_per_s=rate,
            warmed=True,
        )
        for rate in (20.0, 50.0, 80.0, 100.0, 200.0)
    ]
    served = [each.point.output_tokens_per_s for each in predict_runs(runs)]
    for slower, faster in itertools.pairwise(served):
        assert faster > 0.98 * slower
    # The simulator has 932 at 50 requests a second and 950 at 100.
    assert served[1] == pytest.approx(932, rel=0.05)
    assert served[3] == pytest.approx(950, rel=0.05)
