"""Copies on one machine against as many alone, and the published runs that the law rests on."""

from collections.abc import Iterator
from statistics import median

import pytest
from msgspec import structs

from servetune.hardware import node
from servetune.models import load_shape
from servetune.perf import copies, performance_at, simulate
from servetune.perf.copies import host_fraction
from servetune.perf.roofline import factors
from servetune.perf.roofline.factors import plan_coefficients
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

#: Users to requests answered by eight copies of Llama 2 13B on ml.p4d.24xlarge (2024): those of the
#: 90 s in which users sent, and those that were in flight at their end.
EIGHT_COPIES = {
    100: 2322, 150: 2543, 200: 2648, 250: 2769, 300: 2776,
    350: 2827, 400: 2880, 450: 2934, 500: 2976,
}  # fmt: skip


def test_copies_on_one_machine_do_less_than_as_many_alone_and_more_than_one_copy_fewer() -> None:
    assert host_fraction(1) == 1
    for count in range(2, 65):
        assert host_fraction(count) < 1
        assert count * host_fraction(count) > (count - 1) * host_fraction(count - 1)


@pytest.fixture
def contended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Contention that is large enough to be seen beside what chance does to a run."""
    monkeypatch.setattr(copies, "CONTENTION", 0.05)
    factors._among.cache_clear()
    yield
    factors._among.cache_clear()


@pytest.mark.usefixtures("contended")
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_the_estimate_and_the_simulator_count_what_copies_cost_each_other(engine: str) -> None:
    """N copies do less than N times one, by what the law says."""
    shape = load_shape("meta-llama/Llama-2-13b-hf", catalogue_first=True)
    load = Workload.of(LengthLaws.fixed(500, 50), request_count=64)
    plan = Plan(model="m", engine=engine, max_num_seqs=16, max_model_len=2048)
    four = structs.replace(plan, replicas=4)
    machine = node(gpu="A100-80GB", count=4)
    one_per_s = performance_at(shape, machine, plan, load, 8).output_tokens_per_s
    four_per_s = performance_at(shape, machine, four, load, 32).output_tokens_per_s
    assert four_per_s < 4 * one_per_s
    assert four_per_s == pytest.approx(4 * one_per_s * host_fraction(4), rel=0.02)
    served_per_s = []
    for each in (plan, four):
        count = each.replicas
        asked = Workload.of(
            LengthLaws.fixed(500, 50), request_count=64 * count, concurrency=8 * count
        )
        served_per_s.append(64 * count / simulate(each, shape, machine, asked).duration_s)
    assert host_fraction(4) < 0.9
    assert served_per_s[1] == pytest.approx(4 * served_per_s[0] * host_fraction(4), rel=0.03)


def test_of_eight_published_copies_no_loss_is_seen() -> None:
    shape = load_shape("meta-llama/Llama-2-13b-hf", catalogue_first=True)
    load = Workload.of(LengthLaws.fixed(1000, 50), request_count=10)
    alone = node(gpu="A100-40GB", count=1)
    shares = []
    for users, answered in EIGHT_COPIES.items():
        served_per_s = (answered - users) / 90
        each = round(users / 8)
        plan = Plan(model="m", engine="tgi", max_num_seqs=each, max_model_len=2048)
        one_per_s = performance_at(shape, alone, plan, load, each).output_tokens_per_s / 50
        shares.append(served_per_s / 8 / one_per_s)
    assert median(shares) == pytest.approx(1, abs=0.03)
    assert min(shares) < host_fraction(8) < max(shares)


def test_what_a_server_takes_for_a_sequence_is_part_of_what_copies_make_longer() -> None:
    card = node(gpu="H100", count=8).device
    plan = Plan(model="m", engine_version="0.5.3")
    one, eight = (
        plan_coefficients(card, structs.replace(plan, replicas=count)).host for count in (1, 8)
    )
    assert one.http_sequence_s > 0
    assert eight.http_sequence_s / one.http_sequence_s == eight.sequence_s / one.sequence_s > 1
