"""Conclusions of published studies that predictions must reproduce.

The walk-through is Qwen3-4B on four L4 (llm-optimizer, 2025). Its records of four devices were seen
when the share of a host's memory path was chosen (`perf.roofline.collectives`); what it says of one
and two devices was not. The JumpStart study of January 2024 is of text-generation-inference: its
four A10G ahead of eight A100 for one user, and its eight A10G, were seen when that engine's host
time per device and the share of eight devices were chosen. Its Mixtral was known to be predicted
too fast when that engine's source was read for how it multiplies experts. Nothing else is fitted.
Beside this file: refusals and time limits (`test_timeouts.py`, tests/simserver), servers that fail
(tests/e2e/test_simulated_server.py), the study's arithmetic (tests/theory/test_formula_sheet.py)
and its figure of 128 users (`test_agreement.py`).
"""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path

import pytest

from servetune.errors import DoesNotFit
from servetune.hardware import instance
from servetune.models import load_shape
from servetune.perf import Calibration, performance_at
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.prediction.calibrations import from_trials
from servetune.store.journal import read_journal
from servetune.workload import LengthLaws, Workload
from servetune.workload.lengths import SHAREGPT

QWEN = load_shape("Qwen/Qwen3-4B", catalogue_first=True)
G6 = instance("ml.g6.12xlarge")
RECORDS = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
#: Users to requests per second of four devices, as published.
PUBLISHED = {32: 5.60, 64: 6.62, 128: 7.51}


def served(
    degree: int, users: int, budget: int = 8192, calibration: Calibration | None = None
) -> tuple[float, float]:
    """Requests per second, and the 99th percentile of end-to-end latency in seconds."""
    plan = Plan(
        model="m",
        engine_version="0.10.2",  # which the walk-through deploys
        tensor_parallel=degree,
        max_num_batched_tokens=budget,
    )
    load = Workload.of(SHAREGPT, request_count=1000, concurrency=users)
    run = simulate(plan, QWEN, G6, load, calibration=calibration)
    ends = sorted(record.e2e_s for record in run.records)
    return len(ends) / run.duration_s, ends[int(0.99 * len(ends))]


@pytest.mark.parametrize("users", PUBLISHED)
def test_more_of_the_four_devices_serve_more_requests(users: int) -> None:
    four, two, one = (served(degree, users)[0] for degree in (4, 2, 1))
    assert four > two > one
    assert two < PUBLISHED[users]
    assert four == pytest.approx(PUBLISHED[users], rel=0.1)


def test_records_of_four_devices_leave_two_where_they_were() -> None:
    """Three published records of four devices correct those, and two devices by next to nothing."""
    found = from_trials(read_journal(RECORDS), name="published", shape=QWEN, node=G6).calibration
    for degree, most in ((4, 0.06), (2, 0.03)):
        plain = served(degree, 64)[0]
        assert abs(served(degree, 64, calibration=found)[0] / plain - 1) < most
    assert served(2, 64, calibration=found)[0] < PUBLISHED[64]


def test_the_largest_load_has_the_published_tail() -> None:
    assert served(4, 128)[1] == pytest.approx(61.4, rel=0.1)


def test_the_moderate_setting_stays_within_its_limit() -> None:
    rate, p99_s = served(4, 32, 4096)
    assert rate == pytest.approx(5.63, rel=0.1)
    assert p99_s < 24


def test_four_devices_gain_what_was_published_over_a_single_one() -> None:
    baseline = served(1, 32)[0]
    assert baseline == pytest.approx(2.74, rel=0.1)
    assert served(4, 128)[0] / baseline == pytest.approx(2.7, rel=0.1)
    assert served(4, 32)[0] / baseline > 2


SHAPES = {
    "7b": load_shape("meta-llama/Llama-2-7b-hf", catalogue_first=True),
    "13b": load_shape("meta-llama/Llama-2-13b-hf", catalogue_first=True),
    "70b": load_shape("meta-llama/Llama-2-70b-hf", catalogue_first=True),
    "8x7b": load_shape("mistralai/Mixtral-8x7B-v0.1", catalogue_first=True),
    "falcon-40b": load_shape("tiiuae/falcon-40b", catalogue_first=True),
}
#: Devices of each instance, all of which serve one copy.
INSTANCES = {"ml.g5.2xlarge": 1, "ml.g5.12xlarge": 4, "ml.g5.48xlarge": 8, "ml.p4d.24xlarge": 8}


def jumpstart(
    size: str, name: str, degree: int, users: int, copies: int = 1
) -> tuple[float, float]:
    """Tokens per second of all copies, and milliseconds per token of one request, end to end."""
    load = Workload.of(LengthLaws.fixed(256, 256), request_count=10)
    plan = Plan(
        model="m",
        engine="tgi",
        tensor_parallel=degree,
        replicas=copies,
        max_num_seqs=users,
        max_model_len=min(4096, SHAPES[size].max_context_tokens),
    )
    found = performance_at(SHAPES[size], instance(name), plan, load, copies * users)
    return found.output_tokens_per_s, found.e2e_ms / 256


@pytest.mark.parametrize("size", ["7b", "13b"])
def test_one_user_is_served_fastest_by_four_small_devices(size: str) -> None:
    small = jumpstart(size, "ml.g5.12xlarge", 4, 1)[1]
    assert small < jumpstart(size, "ml.p4d.24xlarge", 8, 1)[1]


@pytest.mark.parametrize(
    ("name", "published_ms"), [("ml.g5.48xlarge", 33), ("ml.p4d.24xlarge", 27)]
)
def test_every_expert_is_read_for_one_user(name: str, published_ms: float) -> None:
    assert jumpstart("8x7b", name, 8, 1)[1] == pytest.approx(published_ms, rel=0.1)


def test_more_sharding_hurts_a_small_model() -> None:
    four, eight = (
        jumpstart("7b", name, degree, 128)[0]
        for name, degree in (("ml.g5.12xlarge", 4), ("ml.g5.48xlarge", 8))
    )
    assert four == pytest.approx(1214, rel=0.1)
    assert eight == pytest.approx(804, rel=0.1)


def test_the_larger_machine_has_the_highest_throughput() -> None:
    large = jumpstart("7b", "ml.p4d.24xlarge", 8, 512)[0]
    assert large > 2 * jumpstart("7b", "ml.g5.12xlarge", 4, 128)[0]
    assert large == pytest.approx(2945, rel=0.1)


def test_small_copies_serve_more_in_total_than_one_large_one() -> None:
    """The study's best layouts of eight A100: Llama 2 7B on one each, Llama 2 13B on two."""
    best = {}
    for size in ("7b", "13b"):
        rates = {
            degree: 8 // degree * jumpstart(size, "ml.p4d.24xlarge", degree, 512)[0]
            for degree in (1, 2, 4, 8)
        }
        best[size] = max(rates, key=rates.__getitem__)
    assert best == {"7b": 1, "13b": 2}


@pytest.mark.parametrize(("size", "degree"), [("7b", 1), ("7b", 4), ("13b", 1), ("13b", 2)])
def test_copies_on_one_machine_do_less_than_as_many_times_one(size: str, degree: int) -> None:
    copies = 8 // degree
    one, all_of_them = (
        jumpstart(size, "ml.p4d.24xlarge", degree, 128, count)[0] for count in (1, copies)
    )
    assert 0.9 * copies * one < all_of_them < copies * one


@pytest.mark.parametrize(
    ("size", "cheapest"),
    [
        ("7b", "ml.g5.2xlarge"),
        ("70b", "ml.p4d.24xlarge"),
        ("8x7b", "ml.p4d.24xlarge"),
        ("falcon-40b", "ml.p4d.24xlarge"),
    ],
)
def test_the_cheapest_tokens_come_from_the_instance_that_measured_rates_name(
    size: str, cheapest: str
) -> None:
    """Highest throughputs of the study and of the prediction, at prices of 2026-09.

    Llama 2 13B does not come out: its eight A100 are predicted 17% too slow.
    """
    costs = {}
    for name, degree in INSTANCES.items():
        with contextlib.suppress(DoesNotFit):
            most = max(jumpstart(size, name, degree, users)[0] for users in (16, 64, 128, 256, 512))
            costs[name] = instance(name).cost_per_million_tokens_usd(most)
    assert min(costs, key=costs.__getitem__) == cheapest


#: Users to answered requests, requests per second until the last answer, and median end-to-end
#: latency in seconds: 90 s of load on eight copies of Llama 2 13B, and what was then in flight.
PUBLISHED_COPIES = {
    100: (2322, 24.74, 3.76), 150: (2543, 26.32, 5.58), 200: (2648, 26.72, 7.81),
    250: (2769, 25.83, 8.89), 300: (2776, 25.66, 9.78), 350: (2827, 26.71, 12.57),
    400: (2880, 24.16, 12.53), 450: (2934, 26.14, 15.69), 500: (2976, 26.17, 16.9),
}  # fmt: skip


def eight_copies(users: int) -> tuple[float, float]:
    """Requests per second, and the median end-to-end latency in seconds: medians of five draws.

    The endpoint named no rule for its copies, for which SageMaker chooses at random.
    """
    plan = Plan(
        model="m",
        engine="tgi",
        replicas=8,
        max_model_len=4096,
        dtype="float16",
        routing="random",
    )
    rates, medians_s = [], []
    for seed in range(5):
        load = Workload.of(
            LengthLaws.fixed(1000, 50),
            request_count=PUBLISHED_COPIES[users][0],
            concurrency=users,
            seed=seed,
        )
        run = simulate(plan, SHAPES["13b"], instance("ml.p4d.24xlarge"), load)
        rates.append(len(run.records) / run.duration_s)
        medians_s.append(statistics.median(record.e2e_s for record in run.records))
    return statistics.median(rates), statistics.median(medians_s)


# Three of the nine crowds in every run, the others with the slow tests.
@pytest.mark.parametrize(
    "users",
    [
        pytest.param(users, marks=() if users in (150, 300, 500) else pytest.mark.slow)
        for users in PUBLISHED_COPIES
    ],
)
def test_eight_copies_have_the_published_rate_and_median(users: int) -> None:
    """All medians but that with 400 users, which is 14% too long: published is less than with 350.

    Medians of thirty draws are within 10%, those of five here within 12%.
    """
    _, published_rate, published_median_s = PUBLISHED_COPIES[users]
    rate, median_s = eight_copies(users)
    assert rate == pytest.approx(published_rate, rel=0.1)
    if users != 400:
        assert median_s == pytest.approx(published_median_s, rel=0.12)
