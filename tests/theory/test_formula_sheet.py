"""The sizing method's formulas and their published values, each through the code that ships.

Values from the JumpStart study (AWS, January 2024) as the project's formula sheet has them.
Beside this file: batch 4 of Llama 2 7B on one A10G (`tests/models/test_counting.py`), the
ridge point of an A10G (`tests/perf/test_estimate.py`).
"""

from __future__ import annotations

import msgspec
import pytest

from servetune.engines import concurrent_sequences, memory
from servetune.hardware import device, instance
from servetune.hardware.device import Device, Node
from servetune.models import load_shape
from servetune.models.counting import kv_bytes_per_token
from servetune.models.shape import NetworkShape
from servetune.perf import estimate, performance_at
from servetune.perf.roofline import OperatingPoint, Step, operations, step_law
from servetune.plan import Plan
from servetune.units import GB
from servetune.workload import LengthLaws, Workload

LLAMA_7B = load_shape("meta-llama/Llama-2-7b-hf", catalogue_first=True)
LLAMA_13B = load_shape("meta-llama/Llama-2-13b-hf", catalogue_first=True)
#: The study's payload.
LOAD = Workload.of(LengthLaws.fixed(256, 256), request_count=1000)
A10G, P4D = device("A10G"), instance("ml.p4d.24xlarge")


def tgi(**fields: int) -> Plan:
    settings = {"max_model_len": 4096, "max_num_seqs": 512, **fields}
    return Plan(model="m", engine="tgi", **settings)  # type: ignore[arg-type]


def best(shape: NetworkShape, on: Node, plan: Plan) -> OperatingPoint:
    """The operating point of highest throughput on the study's ladder of concurrencies."""
    points = [performance_at(shape, on, plan, LOAD, 1 << power) for power in range(10)]
    return max(points, key=lambda point: point.output_tokens_per_s)


@pytest.mark.parametrize(
    ("shape", "layers", "kv_heads", "head_dim"), [(LLAMA_7B, 32, 32, 128), (LLAMA_13B, 40, 40, 128)]
)
def test_a_token_of_cache_is_two_vectors_per_layer_and_head(
    shape: NetworkShape, layers: int, kv_heads: int, head_dim: int
) -> None:
    assert kv_bytes_per_token(shape, "fp16") == 2 * layers * kv_heads * head_dim * 2


def test_the_largest_batch_is_what_the_plans_cache_holds() -> None:
    """Four contexts of 4,096 fit an A10G on paper, and with driver, activations and a margin, too.

    Llama 7B was served on an A10 with room for 17,664 tokens, of prompts up to 2,048 in a step
    (vllm-project/vllm issue 381).
    """
    plan = tgi()
    divided = memory(plan, LLAMA_7B, A10G)
    whole = int(divided.kv_cache_bytes // (4096 * kv_bytes_per_token(LLAMA_7B, "fp16")))
    assert concurrent_sequences(plan, LLAMA_7B, A10G, 4096) == whole == 4
    steps_of_2048 = memory(tgi(max_num_batched_tokens=2048), LLAMA_7B, A10G)
    assert steps_of_2048.kv_tokens == pytest.approx(17_664, rel=0.03)
    assert int((24 * GB - divided.weights_bytes) // (4096 * divided.kv_bytes_per_token)) == 4


def rounded(gpu: Device, bytes_per_s: float) -> Device:
    return msgspec.structs.replace(gpu, memory_bytes_per_s=bytes_per_s)


def test_the_ridge_of_an_a100_is_208_at_the_publications_1_5_tb_per_s() -> None:
    """The datasheet's 1,555 GB/s make it 200: the published value rounded the bandwidth."""
    a100 = device("A100-40GB")
    ridges = {}
    for name, gpu in (("datasheet", a100), ("published", rounded(a100, 1.5e12))):
        node = Node(name="n", device=gpu, device_count=1, link=P4D.link)
        found = estimate(LLAMA_7B, node, tgi(), LOAD).roofline
        assert found is not None
        ridges[name] = found.ridge_flops_per_byte["bf16"]
    assert int(ridges["published"]) == 208
    assert int(ridges["datasheet"]) == 200


def test_at_the_critical_batch_a_matrix_is_read_as_long_as_it_is_multiplied() -> None:
    critical = A10G.bf16_flops / A10G.memory_bytes_per_s
    for matrix in operations(tgi(), LLAMA_7B).matrices:
        computing_s = critical * matrix.flops_per_row / A10G.bf16_flops
        reading_s = matrix.weight_bytes / A10G.memory_bytes_per_s
        assert computing_s == pytest.approx(reading_s)


@pytest.mark.parametrize(("shape", "devices"), [(LLAMA_7B, 1), (LLAMA_7B, 4), (LLAMA_13B, 8)])
def test_no_token_comes_sooner_than_its_weights_and_cache_are_read(
    shape: NetworkShape, devices: int
) -> None:
    """Per token at least bytes(weights + cache) / (devices * bandwidth)."""
    plan = tgi(tensor_parallel=devices)
    node = Node(name="n", device=A10G, device_count=devices, link=P4D.link)
    divided = memory(plan, shape, A10G)
    for sequences in (1, 8):
        step = Step(decode_sequences=sequences, decode_context_tokens=sequences * 512)
        read_bytes = divided.weights_bytes + sequences * 512 * divided.kv_bytes_per_token
        embedding_bytes = shape.vocab * shape.hidden * 2 / devices  # one row of it is read
        bound_s = (read_bytes - embedding_bytes) / A10G.memory_bytes_per_s
        assert step_law(plan, shape, node)(step) > bound_s


def test_cost_per_million_tokens_is_price_over_throughput() -> None:
    """1.515 USD per hour at 486 tokens/s are 0.866 USD per million."""
    found = estimate(LLAMA_7B, instance("ml.g5.2xlarge"), tgi(), LOAD)
    cost_usd, point = found.cost_per_million_output_tokens_usd, found.best_throughput
    assert point is not None
    assert cost_usd is not None
    assert cost_usd * point.output_tokens_per_s / 486 == pytest.approx(0.866, rel=1e-3)


def test_one_7b_replica_gains_nothing_from_eight_devices_over_four() -> None:
    """Published on A10G: 1,214 tokens/s on four, 804 on eight."""
    four = best(LLAMA_7B, instance("ml.g5.12xlarge"), tgi(tensor_parallel=4))
    eight = best(LLAMA_7B, instance("ml.g5.48xlarge"), tgi(tensor_parallel=8))
    assert eight.output_tokens_per_s < four.output_tokens_per_s


@pytest.mark.parametrize("shape", [LLAMA_7B, LLAMA_13B])
def test_eight_devices_serve_more_as_replicas_than_as_one(shape: NetworkShape) -> None:
    """Published for eight A100: a 7B as eight replicas, a 13B as four of TP 2."""
    whole = best(shape, P4D, tgi(tensor_parallel=8))
    for degree in (1, 2, 4):
        shared = best(shape, P4D, tgi(tensor_parallel=degree, replicas=8 // degree))
        assert shared.output_tokens_per_s > whole.output_tokens_per_s


def test_more_replicas_move_the_knee_to_more_users() -> None:
    """The concurrency at which latency has doubled grows in proportion: it is the endpoint's."""

    def knee(replicas: int) -> int:
        plan = tgi(replicas=replicas)
        alone_ms = performance_at(LLAMA_7B, P4D, plan, LOAD, 1).e2e_ms
        users = range(1, 1025)
        return next(
            u for u in users if performance_at(LLAMA_7B, P4D, plan, LOAD, u).e2e_ms > 2 * alone_ms
        )

    assert knee(2) == pytest.approx(2 * knee(1), rel=0.1)


def test_the_last_concurrency_within_an_invocations_60_seconds_is_found() -> None:
    """End-to-end time only rises with users, so one concurrency is the last."""
    on = instance("ml.g5.2xlarge")
    times_ms = [performance_at(LLAMA_7B, on, tgi(), LOAD, users).e2e_ms for users in range(1, 257)]
    assert times_ms == sorted(times_ms)
    within = sum(time_ms <= 60_000 for time_ms in times_ms)
    assert 64 < within < 256
