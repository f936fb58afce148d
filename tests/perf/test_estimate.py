"""The estimate: its parts agree with each other, with counting and with the simulator."""

from __future__ import annotations

import msgspec
import pytest

from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import instance, node
from servetune.metrics import summarize
from servetune.models import counting, load_shape
from servetune.models.shape import NetworkShape
from servetune.perf import Estimate, estimate, performance_at, simulate
from servetune.perf.roofline import COEFFICIENTS
from servetune.perf.roofline.coefficients import changed
from servetune.plan.plan import Plan
from servetune.workload.lengths import SHAREGPT, LengthLaws, Lengths
from servetune.workload.workload import Workload


@pytest.fixture(scope="module")
def shape() -> NetworkShape:
    return load_shape("Qwen/Qwen3-4B", catalogue_first=True)


CHAT = LengthLaws.fixed(1024, 512)


def workload(lengths: Lengths = CHAT, **fields: object) -> Workload:
    return Workload.of(lengths, **({"request_count": 1} | fields))  # type: ignore[arg-type]


def plan(**fields: object) -> Plan:
    return Plan(model="Qwen/Qwen3-4B", **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def four_l4(shape: NetworkShape) -> Estimate:
    return estimate(shape, instance("ml.g6.12xlarge"), plan(tensor_parallel=4), workload())


def test_counts_are_those_of_the_model(four_l4: Estimate, shape: NetworkShape) -> None:
    assert four_l4.parameters == 4_022_468_096
    assert four_l4.weight_bytes == counting.weight_bytes(shape)
    assert four_l4.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2


def test_latency_is_best_alone_and_throughput_is_best_together(four_l4: Estimate) -> None:
    alone, together = four_l4.best_latency, four_l4.best_throughput
    assert alone is not None
    assert together is not None
    assert alone.concurrency == 1 < together.concurrency
    assert alone.ttft_ms < together.ttft_ms
    assert alone.itl_ms < together.itl_ms
    assert alone.output_tokens_per_s * 5 < together.output_tokens_per_s


def test_best_throughput_is_the_foot_of_the_plateau(shape: NetworkShape, four_l4: Estimate) -> None:
    best = four_l4.best_throughput
    assert best is not None
    at = [
        performance_at(
            shape, instance("g6.12xlarge"), plan(tensor_parallel=4), workload(), concurrency
        ).output_tokens_per_s
        for concurrency in (best.concurrency // 2, best.concurrency, 2 * best.concurrency)
    ]
    assert at[0] < 0.99 * at[1]
    assert at[2] < 1.05 * at[1]


def test_cost_is_price_over_tokens(four_l4: Estimate) -> None:
    best = four_l4.best_throughput
    assert best is not None
    tokens_per_hour = best.output_tokens_per_s * 3600
    price = instance("ml.g6.12xlarge").price
    assert price is not None
    assert four_l4.cost_per_million_output_tokens_usd == pytest.approx(
        price.usd_per_hour / tokens_per_hour * 1e6
    )


def test_a_node_without_a_price_has_no_cost(shape: NetworkShape) -> None:
    assert (
        estimate(shape, node(gpu="L4"), plan(max_model_len=8192), workload())
    ).cost_per_million_output_tokens_usd is None


def test_the_ridge_of_an_a10g_is_its_published_critical_batch(shape: NetworkShape) -> None:
    """70 TFLOPS over 600 GB/s: 116 FLOP/byte, and 116 sequences at two bytes per weight."""
    found = estimate(shape, node(gpu="A10G"), plan(max_model_len=8192), workload()).roofline
    assert found is not None
    assert int(found.ridge_flops_per_byte["bf16"]) == 116
    assert int(found.critical_batch) == 116


def test_prefill_is_bound_by_compute_and_decode_by_memory(shape: NetworkShape) -> None:
    found = estimate(shape, node(gpu="H100"), plan(), workload()).roofline
    assert found is not None
    assert found.prefill.bound == "compute"
    assert found.decode.bound == found.decode_at_best.bound == "memory"
    assert found.decode.flops_per_byte < found.decode_at_best.flops_per_byte
    assert found.decode.agreement_fraction == 0


def test_on_pcie_four_devices_wait_for_each_other_most_of_a_prefill(four_l4: Estimate) -> None:
    assert four_l4.roofline is not None
    assert four_l4.roofline.prefill.agreement_fraction > 0.5
    assert any("PCIe" in note for note in four_l4.notes)


def test_more_devices_than_a_link_joins_are_said_to_be_a_guess(shape: NetworkShape) -> None:
    for count, said in ((8, False), (16, True)):
        machine = node(gpu="H100", count=count)
        found = estimate(shape, machine, plan(tensor_parallel=count), workload())
        assert any("joins up to 8 devices" in note for note in found.notes) is said


def test_dgx_sparks_are_said_to_be_machines_of_one_device(shape: NetworkShape) -> None:
    found = estimate(shape, node(gpu="DGX Spark", count=2), plan(tensor_parallel=2), workload())
    [note] = [note for note in found.notes if note.startswith("connectx7-200")]
    assert note.startswith("connectx7-200 joins machines of one device; 2 are priced with 25 GB/s")


def test_nvfp4_on_amd_is_multiplied_in_sixteen_bits(shape: NetworkShape) -> None:
    """CDNA 4 multiplies MXFP4 alone in four bits, so a prompt takes as long as with AWQ."""
    took = {}
    for gpu, storage in (("MI355X", "nvfp4"), ("MI355X", "awq"), ("B200", "nvfp4")):
        found = estimate(shape, node(gpu=gpu), plan(quantization=storage), workload())
        assert found.roofline is not None
        took[gpu, storage] = found.roofline.prefill.step_ms
        emulated = storage == "nvfp4" and gpu == "MI355X"
        dtypes = {part.math_dtype for part in found.roofline.prefill.parts} - {""}
        assert dtypes == ({"bf16"} if gpu == "MI355X" else {"bf16", "fp4"})
        assert found.roofline.math_dtype == ("bf16" if gpu == "MI355X" else "fp4")
        assert any("fp4 units take MXFP4" in note for note in found.notes) is emulated
    assert took["MI355X", "nvfp4"] == pytest.approx(took["MI355X", "awq"], rel=0.05)


def test_the_binding_limit_is_the_least(four_l4: Estimate) -> None:
    limits = four_l4.limits
    assert limits is not None
    assert limits.overall == min(limits.memory, limits.decode, limits.scheduler)
    assert getattr(limits, limits.binding) == limits.overall
    assert limits.memory == four_l4.memory.kv_tokens // 1536


def test_limits_loosen_with_what_is_allowed(shape: NetworkShape) -> None:
    strict, loose = (
        estimate(
            shape,
            node(gpu="H100"),
            plan(),
            workload(),
            ttft_limit_ms=ttft_ms,
            itl_limit_ms=itl_ms,
        ).limits
        for ttft_ms, itl_ms in ((100, 10), (1000, 40))
    )
    assert strict is not None
    assert loose is not None
    assert 0 < strict.prefill < loose.prefill
    assert 0 < strict.decode < loose.decode


def test_what_does_not_fit_is_an_answer_and_says_what_is_missing() -> None:
    large = load_shape("Qwen/Qwen3-32B", catalogue_first=True)
    found = estimate(large, node(gpu="L4", count=2), plan(tensor_parallel=2), workload())
    assert not found.fits
    assert found.misfit is not None
    assert "GiB" in found.misfit
    assert found.best_throughput is None
    assert found.limits is None
    with pytest.raises(DoesNotFit):
        performance_at(large, node(gpu="L4", count=2), plan(tensor_parallel=2), workload(), 1)


def test_a_plan_that_does_not_divide_is_refused(shape: NetworkShape) -> None:
    with pytest.raises(PlanError, match="divide"):
        estimate(shape, node(gpu="L4", count=4), plan(tensor_parallel=3), workload())


def test_two_replicas_serve_twice_as_much(shape: NetworkShape) -> None:
    one, two = (
        estimate(shape, node(gpu="L4", count=4), plan(replicas=n, max_model_len=8192), workload())
        for n in (1, 2)
    )
    assert one.best_throughput is not None
    assert two.best_throughput is not None
    assert two.best_throughput.output_tokens_per_s == pytest.approx(
        2 * one.best_throughput.output_tokens_per_s, rel=0.02
    )


def test_unseen_silicon_gets_a_wider_interval_and_nothing_is_called_calibrated(
    shape: NetworkShape,
) -> None:
    seen = estimate(shape, node(gpu="H100"), plan(), workload())
    unseen = estimate(shape, node(gpu="Gaudi 3"), plan(), workload())
    assert not seen.interval.calibrated
    assert seen.interval.low_factor < 1 < seen.interval.high_factor
    assert unseen.interval.high_factor > seen.interval.high_factor
    assert unseen.interval.low_factor < seen.interval.low_factor
    assert (seen.interval.extrapolation, unseen.interval.extrapolation) == ("known", "silicon")
    assert unseen.coefficients.startswith("vllm/unseen/")


def test_given_coefficients_are_used_and_named(shape: NetworkShape) -> None:
    slow = changed(COEFFICIENTS["hopper"], {"host.step_s": 0.1}, name="mine")
    found = estimate(shape, node(gpu="H100"), plan(), workload(), coefficients=slow)
    assert found.coefficients == "mine"
    assert found.best_latency is not None
    assert found.best_latency.itl_ms > 100


def test_an_estimate_survives_json(four_l4: Estimate) -> None:
    assert msgspec.json.decode(msgspec.json.encode(four_l4), type=Estimate) == four_l4


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize(
    ("lengths", "concurrency", "tolerance"),
    [
        (LengthLaws.fixed(1024, 512), 1, 0.01),
        (LengthLaws.fixed(1024, 512), 32, 0.05),
        (LengthLaws.fixed(256, 256), 64, 0.10),
        (LengthLaws.fixed(4000, 50), 8, 0.15),
        (SHAREGPT, 16, 0.15),
    ],
)
def test_the_formula_agrees_with_the_simulator(
    shape: NetworkShape, devices: int, lengths: Lengths, concurrency: int, tolerance: float
) -> None:
    """Closed loop, many requests per user, so that burst and drain weigh little.

    Users with equal lengths march in step: their prompts come together, so that gaps are
    shorter and first tokens later than in the formula's mixed state, with equal sums.
    Throughput of a finite run also pays for its tail and is left out.
    """
    machine = node(gpu="L4", count=devices)
    served = plan(tensor_parallel=devices, max_num_batched_tokens=8192, max_model_len=8192)
    load = workload(lengths, request_count=16 * concurrency, concurrency=concurrency)
    simulated = simulate(served, shape, machine, load)
    results = summarize(simulated.records, duration_s=simulated.duration_s)
    formula = performance_at(shape, machine, served, load, concurrency)
    if lengths == SHAREGPT:
        assert formula.itl_ms == pytest.approx(results["mean_itl_ms"], rel=tolerance)
    assert formula.e2e_ms == pytest.approx(results["mean_e2e_latency_ms"], rel=tolerance)


@pytest.mark.parametrize("stages", [1, 4])
def test_limits_and_phases_count_the_batches_of_all_stages(
    shape: NetworkShape, stages: int
) -> None:
    """No more is served than prompts alone would allow, nor a token sooner than by decoding."""
    served = plan(pipeline_parallel=stages, max_model_len=8192)
    load = workload(LengthLaws.ranged(1024, 256, 0.8))
    found = estimate(shape, node(gpu="L4", count=4), served, load)
    assert found.limits is not None
    assert found.roofline is not None
    best = found.best_throughput
    assert best is not None
    assert best.requests_per_s < found.limits.prefill_requests_per_s
    assert 0.2 * best.itl_ms < found.roofline.decode_at_best.step_ms < best.itl_ms


@pytest.mark.parametrize("users", [4, 8, 10, 12, 16])
def test_few_users_fill_a_pipeline_and_more_only_add_to_its_batches(
    shape: NetworkShape, users: int
) -> None:
    """As many batches are in flight as users, up to one for each of eight stages."""
    machine = node(gpu="H100", count=8)
    served = plan(pipeline_parallel=8)
    load = workload(LengthLaws.ranged(1024, 256, 0.8), request_count=8 * users, concurrency=users)
    found = performance_at(shape, machine, served, load, users)
    records = simulate(served, shape, machine, load).records
    steady = sorted(records, key=lambda record: record.sent_s or 0)[2 * users : -users]
    e2e_s = sum(record.e2e_s or 0 for record in steady)
    rate = users * sum(record.output_tokens for record in steady) / e2e_s
    assert found.output_tokens_per_s == pytest.approx(rate, rel=0.03)
    fewer = performance_at(shape, machine, served, load, users - 1)
    assert found.itl_ms >= fewer.itl_ms
    assert found.output_tokens_per_s > 0.99 * fewer.output_tokens_per_s
