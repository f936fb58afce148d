"""All-reduce times against the operator tables that they were read from."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from servetune.bundled import bundled
from servetune.engines import resolved
from servetune.hardware import device, node
from servetune.hardware import link as named_link
from servetune.hardware.device import Link
from servetune.models import load_shape
from servetune.perf.roofline.collectives import (
    FABRIC_BYTES_PER_S,
    PARTS,
    all_reduce_law,
    exchange_law,
)
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.operations import operations
from servetune.perf.roofline.step import Step, StepLaw
from servetune.perf.roofline.step_laws import PlanBatch, StepLaws, columns_of
from servetune.plan import Plan

NVLINK3, NVLINK4, NVLINK5 = (named_link(name) for name in ("nvlink3", "nvlink4", "nvlink5"))
LINKS = {
    row["name"]: named_link(row["name"]) for row in bundled("hardware", "data/links.toml")["link"]
}
PCIE4 = Link(name="pcie4-p2p", bytes_per_s=31.5e9, peer_to_peer=True)
PCIE3 = Link(name="pcie3-p2p", bytes_per_s=15.75e9, peer_to_peer=True)
PCIE5 = Link(name="pcie5-p2p", bytes_per_s=63e9, peer_to_peer=True)
PCIE4_STAGED = Link(name="pcie4", bytes_per_s=31.5e9, peer_to_peer=False)
PCIE4_VIRTUAL = Link(name="pcie4-vm", bytes_per_s=31.5e9, peer_to_peer=False)


@pytest.mark.parametrize(
    ("link", "group", "message_bytes", "measured_s", "tolerance"),
    [
        # L40S, vLLM in captured graphs; 16-bit elements times two. Its pair has peer-to-peer.
        (PCIE4, 2, 256, 5.4e-6, 0.1),
        (PCIE4_VIRTUAL, 4, 256, 13.3e-6, 0.2),
        (PCIE4_VIRTUAL, 8, 256, 25.0e-6, 0.25),
        (PCIE4_VIRTUAL, 4, 163_840, 72e-6, 0.2),
        (PCIE4, 2, 2 * 536_870_912, 56e-3, 0.15),
        (PCIE4_VIRTUAL, 4, 2 * 536_870_912, 431e-3, 0.3),
        (PCIE4_VIRTUAL, 8, 2 * 536_870_912, 961e-3, 0.2),
        # H200
        (NVLINK4, 2, 256, 4.4e-6, 0.15),
        (NVLINK4, 8, 2 * 4_194_304, 48.4e-6, 0.25),
        (NVLINK4, 2, 65_536, 4.8e-6, 0.1),
        (NVLINK4, 8, 131_072, 7.9e-6, 0.1),
        (NVLINK4, 8, 524_288, 11.1e-6, 0.1),
        (NVLINK4, 4, 4_194_304, 29.8e-6, 0.1),
        (NVLINK4, 2, 2 * 536_870_912, 3.3e-3, 0.15),
        (NVLINK4, 8, 2 * 536_870_912, 4.0e-3, 0.15),
        # A100, where NCCL takes over from 8 MiB on
        (NVLINK3, 8, 4_194_304, 45.4e-6, 0.15),
        (NVLINK3, 8, 16_777_216, 214e-6, 0.15),
        # B200, TensorRT-LLM's kernel
        (NVLINK5, 2, 1_048_576, 6.2e-6, 0.1),
        (NVLINK5, 8, 1_048_576, 17.4e-6, 0.1),
        # RTX PRO 6000; longer messages of more devices are between this machine's and others'
        (PCIE5, 2, 1_048_576, 30.1e-6, 0.1),
        (PCIE5, 4, 65_536, 16.9e-6, 0.25),
        (PCIE5, 8, 262_144, 84.3e-6, 0.1),
    ],
)
def test_all_reduce_is_near_the_measured_kernel(
    link: Link, group: int, message_bytes: float, measured_s: float, tolerance: float
) -> None:
    assert all_reduce_law(link, group).seconds(message_bytes) == pytest.approx(
        measured_s, rel=tolerance
    )


def test_one_device_agrees_with_itself_at_once() -> None:
    assert all_reduce_law(PCIE4, 1).seconds(1e9) == 0.0
    assert all_reduce_law(NVLINK4, 1).seconds(1e9) == 0.0


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_a_longer_message_never_takes_less(link: Link) -> None:
    for group in (2, 3, 4, 5, 6, 7, 8, 12, 16, 72):
        law = all_reduce_law(link, group)
        sizes = {2.0**power for power in range(31)} | {0.0}
        sizes |= {part.from_bytes + by for part in law.parts[1:] for by in (-1, 0, 1)}
        times = [law.seconds(size) for size in sorted(sizes)]
        assert 0 < times[0] < 1e-3
        assert all(shorter <= longer * (1 + 1e-9) for shorter, longer in itertools.pairwise(times))


def test_rows_are_of_links_that_are_known() -> None:
    tables = bundled("perf.roofline", "data/collectives.toml")
    named = [name for table in tables.values() for name in table.get("links", ())]
    assert len(named) == len(set(named))
    assert set(named) <= LINKS.keys()
    assert all(
        len(row) <= PARTS
        for table in tables.values()
        for group, row in table.items()
        if group != "links"
    )
    slow = {name for name, link in LINKS.items() if link.bytes_per_s < FABRIC_BYTES_PER_S}
    assert {name for name in slow if not name.startswith("pcie")} <= set(named)


@pytest.mark.parametrize("gpu", ["RTX PRO 6000", "RTX A6000", "L40S", "H100", "B200", "MI300X"])
def test_a_step_of_more_sequences_takes_longer(gpu: str) -> None:
    shape = load_shape("meta-llama/Llama-3.1-70B-Instruct", catalogue_first=True)
    machine = node(gpu=gpu, count=8)
    plan = resolved(Plan(model=shape.name, tensor_parallel=8), shape, machine.device)
    law = StepLaw(operations(plan, shape), machine, plan, coefficients_for(machine.device, "vllm"))
    steps = [Step(decode_sequences=n, decode_context_tokens=1000 * n) for n in range(1, 257)]
    agreed = [law.agreement_s(step) for step in steps]
    assert agreed == sorted(agreed)


def test_a_step_reduces_at_the_rate_of_messages_of_its_size() -> None:
    """Llama 3.1 70B on eight B200: 64 sequences send 1 MiB, of which eight devices need 17 us."""
    shape = load_shape("meta-llama/Llama-3.1-70B-Instruct", catalogue_first=True)
    machine = node(gpu="B200", count=8)
    plan = resolved(Plan(model=shape.name, tensor_parallel=8), shape, machine.device)
    ops = operations(plan, shape)
    own = coefficients_for(machine.device, "vllm")
    law = StepLaw(ops, machine, plan, own)
    laws = StepLaws(PlanBatch([(ops, machine, plan)] * 3), columns_of([own] * 3))
    none, sequences = np.zeros(3), np.array([1.0, 64.0, 512.0])
    found = laws.seconds(none, none, none, sequences, 1000 * sequences)
    for count, taken_s in zip(sequences, found, strict=True):
        step = Step(decode_sequences=count, decode_context_tokens=1000 * count)
        assert taken_s == pytest.approx(law(step), rel=1e-9)
        reductions_s = ops.reduce_count * all_reduce_law(NVLINK5, 8).seconds(16_384 * count)
        assert law.agreement_s(step) == pytest.approx(reductions_s, rel=0.05)


@pytest.mark.parametrize("link", [PCIE4, PCIE4_STAGED])
def test_on_pcie_more_devices_take_longer_for_the_same_message(link: Link) -> None:
    times = [all_reduce_law(link, group).seconds(1e6) for group in (2, 3, 4, 6, 8, 16)]
    assert times == sorted(times)


def test_without_peer_to_peer_a_pair_is_slower_and_never_faster() -> None:
    assert all_reduce_law(PCIE4_STAGED, 2).seconds(1e8) > 1.5 * all_reduce_law(PCIE4, 2).seconds(
        1e8
    )
    assert all_reduce_law(PCIE4_STAGED, 8).seconds(1e8) >= all_reduce_law(PCIE4, 8).seconds(1e8)


def test_a_bridge_joins_two_cards() -> None:
    within, beyond = (all_reduce_law(named_link("nvlink4-bridge"), group) for group in (2, 4))
    assert beyond.seconds(1e8) > 4 * within.seconds(1e8)


@pytest.mark.parametrize(
    ("name", "message_bytes", "measured_s"),
    [
        # Two machines of eight: H100 with InfiniBand, A100 with RoCE, MI355X with 400 Gb/s each.
        ("nvlink4", 16_384, 33e-6),
        ("nvlink4", 16_777_216, 185e-6),
        ("nvlink4", 67_108_864, 466e-6),
        ("nvlink3", 16_384, 49e-6),
        ("nvlink3", 16_777_216, 283e-6),
        ("nvlink3", 67_108_864, 822e-6),
        ("infinity-fabric4", 16_384, 47e-6),
        ("infinity-fabric4", 16_777_216, 177e-6),
        ("infinity-fabric4", 67_108_864, 439e-6),
    ],
)
def test_machines_reduce_by_all_of_their_adapters(
    name: str, message_bytes: float, measured_s: float
) -> None:
    law = all_reduce_law(named_link(name), 16)
    assert law.seconds(message_bytes) == pytest.approx(measured_s, rel=0.4)


@pytest.mark.parametrize(
    ("group", "message_bytes", "measured_s"),
    [
        (2, 8_192, 33e-6),
        (2, 32_768, 38.5e-6),
        (2, 65_536, 66e-6),
        (4, 4_096, 43e-6),
        (4, 49_152, 59e-6),
        (4, 1_572_864, 877e-6),
    ],
)
def test_dgx_sparks_reduce_over_their_network(
    group: int, message_bytes: float, measured_s: float
) -> None:
    law = all_reduce_law(named_link(device("DGX Spark").link), group)
    assert law.seconds(message_bytes) == pytest.approx(measured_s, rel=0.35)


def test_one_device_a_machine_exchanges_by_its_adapter_alone() -> None:
    """Most of the 25 GB/s of a port for long messages, and never more."""
    spark = named_link("connectx7-200")
    for group in (2, 4, 8):
        sent = 2e9 * (group - 1) / group
        assert 0.7 * 25e9 < sent / all_reduce_law(spark, group).seconds(1e9) < 25e9
        assert exchange_law(spark, group) == all_reduce_law(spark, group)
    other = msgspec.structs.replace(spark, name="two-adapters", beyond_bytes_per_s=50e9)
    assert all_reduce_law(other, 2).latency_s == 45e-6


def test_tokens_go_to_other_machines_by_the_adapter_of_their_device() -> None:
    link = named_link("nvlink4")
    assert exchange_law(link, 8) == all_reduce_law(link, 8)
    assert exchange_law(link, 16).seconds(1e8) > 4 * all_reduce_law(link, 16).seconds(1e8)
    rack = named_link("nvlink5-rack")
    assert exchange_law(rack, 72) == all_reduce_law(rack, 72)
    for group in (16, 72):  # what eight need, and little more
        more = all_reduce_law(rack, group).seconds(1e8) / all_reduce_law(rack, 8).seconds(1e8)
        assert 1 < more < 1.2


def test_nvlink_is_an_order_of_magnitude_faster_than_pcie_for_four() -> None:
    assert all_reduce_law(NVLINK4, 4).seconds(4e7) * 20 < all_reduce_law(PCIE4_STAGED, 4).seconds(
        4e7
    )
    assert all_reduce_law(NVLINK4, 4).seconds(4e7) * 8 < all_reduce_law(PCIE4, 4).seconds(4e7)


@pytest.mark.parametrize(
    ("link", "group", "floor_bytes_per_s"),
    [
        # Bytes per token times measured tokens per second: what a machine moved at the least.
        (PCIE5, 4, 29e9),  # RTX PRO 6000
        (PCIE5, 8, 32e9),
        (PCIE4, 8, 4.3e9),  # RTX A6000
        (PCIE3, 8, 3.0e9),  # V100S
        (named_link(device("L40S").link), 4, 8.0e9),
        (named_link(device("RTX 4090").link), 8, 2.4e9),
        (PCIE4_VIRTUAL, 8, 1.3e9),
    ],
)
def test_all_reduce_is_as_fast_as_served_tokens_show(
    link: Link, group: int, floor_bytes_per_s: float
) -> None:
    assert 1e9 / all_reduce_law(link, group).seconds(1e9) > floor_bytes_per_s
