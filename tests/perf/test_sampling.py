"""Top-k and top-p cost kernels over the whole vocabulary, which greedy sampling does not run."""

from __future__ import annotations

import msgspec
import pytest

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import estimate, performance_at, simulate
from servetune.perf.roofline import OperatingPoint
from servetune.perf.roofline.factors import run_coefficients
from servetune.plan import Plan
from servetune.trials.trial import StudyContext, workload_of
from servetune.workload import LengthLaws, Workload

SHAPE = load_shape("meta-llama/Llama-3.1-8B", catalogue_first=True)
H100, MI300X = node(gpu="H100"), node(gpu="MI300X")
GREEDY = Workload.of(LengthLaws.fixed(220, 200), request_count=512, concurrency=256)
FILTERED, CHECKPOINT = (
    msgspec.structs.replace(GREEDY, sampling=name) for name in ("filtered", "checkpoint")
)
PLAN = Plan(model="m")


def at_once(plan: Plan, load: Workload, on: object = H100) -> OperatingPoint:
    return performance_at(SHAPE, on, plan, load, 256)  # type: ignore[arg-type]


def lost(plan: Plan, load: Workload) -> float:
    """Share of the requests per second of greedy sampling that is lost."""
    return 1 - at_once(plan, load).requests_per_s / at_once(plan, GREEDY).requests_per_s


def test_runs_of_llama_3_lose_what_vllm_measured() -> None:
    """47.40 requests/s greedy, 40.20 by sorting, 47.15 by FlashInfer (pull request 11394)."""
    sorting = msgspec.structs.replace(PLAN, engine_version="0.12.0")
    assert lost(sorting, FILTERED) == pytest.approx(1 - 40.20 / 47.40, abs=0.04)
    assert 0 < lost(PLAN, FILTERED) < 0.025


def test_later_releases_filter_faster() -> None:
    releases = ("0.12.0", "0.19.0", "0.33.0")
    losses = [
        lost(msgspec.structs.replace(PLAN, engine_version=release), FILTERED)
        for release in releases
    ]
    assert losses == sorted(losses, reverse=True)


def test_a_server_that_ignores_the_checkpoint_filters_only_what_requests_ask() -> None:
    ignoring = msgspec.structs.replace(PLAN, extra=(("generation-config", "vllm"),))
    assert at_once(PLAN, CHECKPOINT) == at_once(PLAN, FILTERED)
    assert at_once(ignoring, CHECKPOINT) == at_once(ignoring, GREEDY) == at_once(PLAN, GREEDY)
    assert at_once(ignoring, FILTERED) == at_once(PLAN, FILTERED)


def test_devices_whose_kernels_nobody_timed_are_priced_as_greedy() -> None:
    assert at_once(PLAN, FILTERED, MI300X) == at_once(PLAN, GREEDY, MI300X)


def test_the_simulator_and_the_formula_lose_alike() -> None:
    sorting = msgspec.structs.replace(PLAN, engine_version="0.12.0")
    spent_s = [simulate(sorting, SHAPE, H100, load).duration_s for load in (GREEDY, FILTERED)]
    assert 1 - spent_s[0] / spent_s[1] == pytest.approx(lost(sorting, FILTERED), abs=0.03)


def test_an_estimate_says_what_it_priced() -> None:
    priced, plain = (estimate(SHAPE, H100, PLAN, load).notes for load in (CHECKPOINT, GREEDY))
    (said,) = set(priced) - set(plain)
    assert said.startswith("top-k and top-p by the checkpoint's generation_config.json are priced")
    assert "generation_config=vllm" in said


def test_penalties_cost_what_vllm_measured_per_row_and_token() -> None:
    """6 ms a step at 4,096 tokens, 47 ms at 28,000: four users, 16 drafts (pull request 47540)."""
    plan = msgspec.structs.replace(PLAN, draft_tokens=16)
    users, measured_s = 4, {4096: 6e-3, 28_000: 47e-3}
    for longest, expected_s in measured_s.items():
        load = Workload.of(LengthLaws.fixed(16, round(longest * 5 / 4)), concurrency=users)
        penalised = msgspec.structs.replace(load, penalties="requests")
        plain, found = (
            run_coefficients(H100.device, plan, SHAPE, each) for each in (load, penalised)
        )
        added_s = users * (found.host.sequence_s - plain.host.sequence_s)
        assert added_s == pytest.approx(expected_s, rel=0.1)


def test_penalties_cost_more_with_long_answers_and_nothing_where_the_checkpoint_is_ignored() -> (
    None
):
    def slowdown(output_tokens: int, plan: Plan = PLAN) -> float:
        load = Workload.of(LengthLaws.fixed(220, output_tokens), concurrency=64)
        penalised = msgspec.structs.replace(load, penalties="checkpoint")
        rates = [
            performance_at(SHAPE, H100, plan, each, 64).requests_per_s for each in (load, penalised)
        ]
        return rates[0] / rates[1]

    assert 1 < slowdown(100) < slowdown(2000)
    ignoring = msgspec.structs.replace(PLAN, extra=(("generation-config", "vllm"),))
    assert slowdown(2000, ignoring) == 1


@pytest.mark.parametrize(
    ("body", "penalties"),
    [
        ('{"repetition_penalty": 1.1}', "requests"),
        ('{"presence_penalty": 0.0, "repetition_penalty": 1.0}', "none"),
        ("", "none"),
    ],
)
def test_requests_with_penalties_are_told_by_their_body(body: str, penalties: str) -> None:
    study = StudyContext(model="m", engine="vllm", simulated=True, shape=SHAPE, node=H100)
    assert workload_of({"extra_body": body} if body else {}, study).penalties == penalties
