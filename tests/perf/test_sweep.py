import pytest

from servetune.hardware import instance, node
from servetune.models import load_shape
from servetune.perf.roofline import performance_at
from servetune.perf.sweep import LADDER, cheapest_offers, layouts, plans_of, sweep
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

WORKLOAD = Workload.of(LengthLaws.fixed(512, 128), request_count=100)


def shape(name="Qwen/Qwen3-4B"):
    return load_shape(name, catalogue_first=True)


def plan(name="Qwen/Qwen3-4B", **more):
    return Plan(model=name, max_model_len=4096, **more)


def test_every_layout_fills_the_node():
    four = node(gpu="L4", count=4)
    found = list(layouts(plan(), shape(), four))
    whole = [p for p in found if p.pipeline_parallel == 1]
    assert [(p.tensor_parallel, p.replicas) for p in whole] == [(1, 4), (2, 2), (4, 1)]
    moe = list(layouts(plan("Qwen/Qwen3-30B-A3B"), shape("Qwen/Qwen3-30B-A3B"), four))
    assert (2, 2, 1) in {(p.tensor_parallel, p.data_parallel, p.replicas) for p in moe}
    assert all(p.device_count == 4 for p in [*found, *moe])
    assert all(p.expert_parallel == (p.data_parallel > 1) for p in moe)


def test_pipelines_are_tried_over_pcie_by_engines_that_have_them():
    def stages(gpu: str, name: str) -> list[int]:
        open_plan = plan(engine=name)
        return [p.pipeline_parallel for p in layouts(open_plan, shape(), node(gpu=gpu, count=4))]

    assert stages("L4", "vllm") == [1, 2, 4, 1, 2, 1]
    assert stages("H100", "vllm") == [1, 1, 1]
    assert stages("L4", "tgi") == [1, 1, 1]
    experts = layouts(
        plan("Qwen/Qwen3-30B-A3B", engine="tgi"),
        shape("Qwen/Qwen3-30B-A3B"),
        node(gpu="L4", count=4),
    )
    assert all(p.data_parallel == 1 for p in experts)


def test_what_the_plan_sets_is_not_varied():
    fixed = plan(max_num_seqs=64, max_num_batched_tokens=4096, quantization="fp8")
    found = list(plans_of(fixed, shape(), node(gpu="H100", count=2), quantizations=(None, "fp8")))
    assert len(found) == 2  # the layouts alone
    assert {p.quantization for p in found} == {"fp8"}


def test_a_sweep_says_the_same_as_asking_for_each_plan():
    four = instance("ml.g6.12xlarge")
    plans = list(plans_of(plan(), shape(), four))[::7]
    for swept in sweep(plans, shape(), four, WORKLOAD, concurrencies=(1, 32, 256)):
        asked = performance_at(shape(), four, swept.plan, WORKLOAD, swept.point.concurrency)
        assert swept.point == asked
        expected = 5.752 / 3600 / swept.point.output_tokens_per_s * 1e6
        assert swept.cost_per_million_tokens_usd == pytest.approx(expected)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_plans_that_differ_in_limits_alone_are_priced_as_if_each_were_alone(engine):
    """Limits that no user reaches share a point; those that one reaches do not."""
    four, lengths = instance("ml.g6.12xlarge"), LengthLaws.ranged(600, 100, 0.3)
    law = Workload.of(lengths, request_count=100)
    plans = [
        plan(engine=engine, tensor_parallel=2, max_num_batched_tokens=budget, max_num_seqs=places)
        for budget in (2048, 4096)
        for places in (8, 12, 256, 512)
    ]
    found = list(sweep(plans, shape(), four, law, concurrencies=(2, 10, 300)))
    for swept in found:
        asked = performance_at(shape(), four, swept.plan, law, swept.point.concurrency)
        assert swept.point == asked
    assert len({swept.point for swept in found}) < len(found) == 24


def test_plans_that_cannot_run_are_passed_over():
    one = node(gpu="L4", count=1)
    assert list(sweep([plan("Qwen/Qwen3-32B")], shape("Qwen/Qwen3-32B"), one, WORKLOAD)) == []


def test_offers_are_ordered_by_cost_and_say_why_a_machine_is_left_out():
    nodes = [instance(n) for n in ("ml.g6.xlarge", "ml.g5.12xlarge", "ml.g6.12xlarge")]
    nodes.append(node(gpu="L4", count=8))  # no price
    found = cheapest_offers(
        plan(), shape(), nodes, WORKLOAD, holds=lambda _, swept: swept.point.itl_ms <= 60
    )
    costs = [o.best.cost_per_million_tokens_usd for o in found if o.best]
    priced = [cost for cost in costs if cost is not None]
    assert priced == sorted(priced)
    assert costs[-1] is None
    assert all(o.best.point.itl_ms <= 60 for o in found if o.best)
    never = cheapest_offers(plan(), shape(), nodes, WORKLOAD, holds=lambda *_: False)
    assert {o.why_not for o in never} == {"nothing holds the constraints"}
    small = cheapest_offers(
        plan("Qwen/Qwen3-32B"),
        shape("Qwen/Qwen3-32B"),
        nodes[:1],
        WORKLOAD,
        holds=lambda *_: True,
    )
    assert small[0].why_not == "does not fit"


def test_eight_devices_serve_nearly_eight_times_the_tokens_of_one():
    """They are judged at as many users for each; with 1,024 in all they did 6.4 times as many."""
    one, eight = cheapest_offers(
        plan("Qwen/Qwen3-8B"),
        shape("Qwen/Qwen3-8B"),
        [node(gpu="H100", count=count) for count in (1, 8)],
        WORKLOAD,
        holds=lambda *_: True,
    )
    rates = [
        each.best.point.output_tokens_per_s
        for each in sorted((one, eight), key=lambda each: each.node.device_count)
    ]
    assert 7.8 * rates[0] < rates[1] <= 8 * rates[0]


@pytest.mark.parametrize("count", [2, 4, 6, 8])
def test_copies_under_a_limit_serve_as_many_times_what_one_does(count):
    """Users are sought for each copy: three of one device had been two, and 27 of eight."""
    one, several = (
        cheapest_offers(
            Plan(model="m", max_model_len=2048, tensor_parallel=1),
            shape("meta-llama/Llama-3.1-8B-Instruct"),
            [node(gpu="RTX 3090", count=devices)],
            Workload.of(LengthLaws.fixed(1024, 512), request_count=100),
            holds=lambda _, swept: (
                swept.point.ttft_ms <= 1000
                and swept.plan.tensor_parallel == swept.plan.pipeline_parallel == 1
            ),
        )[0].best
        for devices in (1, count)
    )
    assert several.plan.replicas == count
    rates = [each.point.output_tokens_per_s for each in (one, several)]
    assert 0.97 * count * rates[0] < rates[1] <= count * rates[0]
    assert several.point.concurrency == count * one.point.concurrency


def test_an_offer_has_as_many_users_as_its_limit_allows():
    (offer,) = cheapest_offers(
        plan(), shape(), [node(gpu="H100")], WORKLOAD, holds=lambda _, s: s.point.itl_ms <= 11
    )
    users = offer.best.point.concurrency
    (more,) = sweep(
        [offer.best.plan], shape(), offer.node, WORKLOAD, concurrencies=[round(users * 1.02) + 1]
    )
    assert users not in LADDER
    assert offer.best.point.itl_ms <= 11 < more.point.itl_ms
