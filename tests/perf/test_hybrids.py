"""Networks whose past is partly a state: the simulator, the formula and the memory agree."""

from __future__ import annotations

import msgspec
import pytest

from servetune.engines import concurrent_sequences
from servetune.hardware import node
from servetune.models import load_shape
from servetune.models.shape import LinearAttention, NetworkShape
from servetune.perf import estimate, simulate
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.sim import SimulatedRun
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

NAME = "Qwen/Qwen3.5-27B"
HYBRID = load_shape(NAME, catalogue_first=True)
PLAN = Plan(
    model=NAME, max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=4096,
    gpu_memory_fraction=0.94,
)  # fmt: skip
INPUT, OUTPUT = 100, 50


def stateless(shape: NetworkShape) -> NetworkShape:
    """The same network with states of next to nothing."""
    layers = []
    for layer in shape.layers:
        mixer = layer.mixer
        if isinstance(mixer, LinearAttention):
            mixer = msgspec.structs.replace(mixer, key_dim=1, conv_width=0)
        layers.append(msgspec.structs.replace(layer, mixer=mixer))
    return msgspec.structs.replace(shape, layers=tuple(layers))


def most_in_batch(simulation: SimulatedRun) -> int:
    """Most requests between their first and last token at the same time."""
    marks = sorted(
        (time_s, change)
        for record in simulation.records
        for time_s, change in ((record.chunk_times_s[0], 1), (record.end_s, -1))
    )
    inside = most = 0
    for _, change in marks:
        inside += change
        most = max(most, inside)
    return most


def simulated(shape: NetworkShape, requests: int) -> SimulatedRun:
    load = Workload.of(LengthLaws.fixed(INPUT, OUTPUT), request_count=requests)
    return simulate(PLAN, shape, node(gpu="H100"), load)


def test_the_simulator_admits_no_more_sequences_than_their_states_leave_room_for() -> None:
    machine = node(gpu="H100")
    # Between a sequence that has just come and one that is about to end.
    fewest = concurrent_sequences(PLAN, HYBRID, machine.device, INPUT + OUTPUT)
    most = concurrent_sequences(PLAN, HYBRID, machine.device, INPUT)
    assert 8 < fewest < PLAN.max_num_seqs / 2  # type: ignore[operator]
    found = most_in_batch(simulated(HYBRID, 2 * most))
    assert fewest * 0.97 <= found <= most
    assert most_in_batch(simulated(stateless(HYBRID), 2 * most)) > 1.5 * found


@pytest.mark.parametrize(
    ("name", "extrapolation"),
    [
        (NAME, "known"),  # delta rule with one decay per head, as Qwen3.5-397B
        ("zai-org/GLM-5", "known"),  # latent attention behind an index
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "network"),  # one decay per channel
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "known"),  # Mamba-2
        ("deepseek-ai/DeepSeek-V4-Pro", "network"),  # compressed attention
    ],
)
def test_kinds_of_layer_that_no_run_measured_have_the_wider_interval(
    name: str, extrapolation: str
) -> None:
    shape = load_shape(name, catalogue_first=True)
    load = Workload.of(LengthLaws.fixed(1024, 256), request_count=10)
    found = estimate(
        shape, node(gpu="B200", count=8), Plan(model=name, tensor_parallel=8), load
    ).interval
    assert found.extrapolation == extrapolation


def test_bulk_prices_queue_where_states_fill_the_cache() -> None:
    def queued(shape: NetworkShape) -> bool:
        run = PlannedRun(
            shape=shape,
            node=node(gpu="H100"),
            plan=PLAN,
            lengths=LengthLaws.ranged(INPUT, OUTPUT, 0.8),
            concurrency=400,
            request_count=4000,
        )
        return predict_runs([run])[0].point.queued

    assert queued(HYBRID)
    assert not queued(stateless(HYBRID))
