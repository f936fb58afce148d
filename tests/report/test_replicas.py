"""TP against copies, and instance counts: what must hold of the table whatever was measured."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from servetune.errors import InputError
from servetune.hardware import instance
from servetune.metrics import parse_constraints
from servetune.perf.copies import host_fraction
from servetune.plan import Plan
from servetune.report import ReplicaRow, replica_rows, replica_table
from servetune.store.schema import Failure, TrialConfig, TrialRecord

G6 = instance("ml.g6.12xlarge", service="sagemaker")
PRICE = 5.752


def trial(
    *, tp: int, copies: int = 1, concurrency: int, tokens_per_s: float, **more: Any
) -> TrialRecord:
    results = {
        "max_concurrency": concurrency,
        "output_throughput": tokens_per_s,
        "request_throughput": tokens_per_s / 100,
        "p99_e2e_latency_ms": 5000.0 + 10 * concurrency / copies,
        "error_rate": 0.0,
    }
    plan = Plan(model="m", tensor_parallel=tp, replicas=copies, **more.pop("plan", {}))
    return TrialRecord(
        config=TrialConfig(), results=results | more, plan=plan,
        key=f"tp{tp}x{copies}c{concurrency}",
    )  # fmt: skip


SWEEP = [
    trial(tp=1, concurrency=8, tokens_per_s=200.0),
    trial(tp=1, concurrency=32, tokens_per_s=450.0),
    trial(tp=2, concurrency=16, tokens_per_s=350.0),
    trial(tp=2, concurrency=64, tokens_per_s=800.0),
    trial(tp=4, concurrency=128, tokens_per_s=1500.0),
]


def by_layout(rows: list[ReplicaRow], instances: int = 1) -> dict[str, ReplicaRow]:
    return {row.layout: row for row in rows if row.instances == instances}


def test_layouts_are_compared_at_equal_accelerators() -> None:
    rows = by_layout(replica_rows(SWEEP, G6))
    assert {name: row.output_tokens_per_s for name, row in rows.items()} == {
        "TP1 x 4": pytest.approx(1800.0 * host_fraction(4)),
        "TP2 x 2": pytest.approx(1600.0 * host_fraction(2)),
        "TP4 x 1": 1500.0,
    }
    assert {row.load for row in rows.values()} == {128.0}
    assert [rows[name].measured for name in rows] == [False, False, True]
    best = rows["TP1 x 4"]
    assert best.p99_e2e_ms == pytest.approx(5320.0 / host_fraction(4))
    per_s = 1800 * host_fraction(4)
    assert best.usd_per_million_tokens == pytest.approx(PRICE / 3600 / per_s * 1e6)
    assert best.success_fraction == 1.0


def test_what_was_measured_on_a_full_machine_is_preferred_and_tells_what_the_host_took() -> None:
    full = trial(tp=1, copies=4, concurrency=128, tokens_per_s=1620.0)
    row = by_layout(replica_rows([*SWEEP, full], G6))["TP1 x 4"]
    assert (row.output_tokens_per_s, row.measured) == (1620.0, True)
    assert row.host_fraction == pytest.approx(0.9)
    two = by_layout(replica_rows([*SWEEP, full], G6), 2)["TP1 x 4"]
    assert (two.output_tokens_per_s, two.measured) == (3240.0, False)


def test_copies_at_other_loads_lose_what_a_full_machine_lost_in_the_sweep() -> None:
    full = trial(tp=1, copies=4, concurrency=128, tokens_per_s=1620.0)
    row = by_layout(replica_rows([*SWEEP, full], G6, load=32))["TP1 x 4"]
    assert (row.load, row.measured, row.assumed_host_fraction) == (32.0, False, pytest.approx(0.9))
    assert row.output_tokens_per_s == pytest.approx(4 * 200.0 * 0.9)
    assert row.p99_e2e_ms == pytest.approx(5080.0 / 0.9)
    noisy = trial(tp=1, copies=4, concurrency=128, tokens_per_s=1900.0)
    row = by_layout(replica_rows([*SWEEP, noisy], G6, load=32))["TP1 x 4"]
    assert row.output_tokens_per_s == pytest.approx(4 * 200.0 * host_fraction(4))


def test_at_one_load_more_instances_are_faster_and_dearer_per_token() -> None:
    rows = replica_rows(SWEEP, G6, instances=(1, 4), load=128)
    one, four = (by_layout(rows, count)["TP1 x 4"] for count in (1, 4))
    assert one.load == four.load == 128.0
    assert one.p99_e2e_ms is not None
    assert four.p99_e2e_ms is not None
    assert four.p99_e2e_ms < one.p99_e2e_ms
    assert one.usd_per_million_tokens is not None
    assert four.usd_per_million_tokens is not None
    assert four.usd_per_million_tokens > one.usd_per_million_tokens


def test_limits_on_latency_hold_per_copy_and_on_throughput_for_all() -> None:
    limits = parse_constraints("e2e_latency:p99<=5150ms;request_throughput>=7")
    rows = by_layout(replica_rows(SWEEP, G6, constraints=limits))
    assert rows["TP1 x 4"].load == 32.0
    assert rows["TP1 x 4"].meets
    assert not rows["TP4 x 1"].meets


def test_a_point_where_requests_failed_is_no_best_point() -> None:
    broken = trial(tp=1, concurrency=64, tokens_per_s=900.0, error_rate=0.4)
    row = by_layout(replica_rows([*SWEEP, broken], G6))["TP1 x 4"]
    assert row.load == 128.0


def test_devices_that_no_copy_fills_are_counted_and_paid() -> None:
    odd = trial(tp=1, concurrency=8, tokens_per_s=300.0, plan={"pipeline_parallel": 3})
    (row,) = replica_rows([odd], G6, instances=(1,))
    assert (row.layout, row.copies, row.idle_devices) == ("TP1xPP3 x 1", 1, 1)
    assert row.usd_per_million_tokens == pytest.approx(PRICE / 3600 / 300 * 1e6)


def test_data_parallel_copies_are_copies_and_expert_parallel_ones_are_one() -> None:
    ranks = trial(tp=1, concurrency=32, tokens_per_s=800.0, plan={"data_parallel": 4})
    (row,) = replica_rows([ranks], G6, instances=(1,))
    assert (row.layout, row.measured) == ("TP1 x 4", True)
    experts = trial(
        tp=1, concurrency=32, tokens_per_s=800.0,
        plan={"data_parallel": 4, "expert_parallel": True},
    )  # fmt: skip
    (row,) = replica_rows([experts], G6, instances=(1,))
    assert (row.layout, row.devices_per_copy) == ("TP1xEP4 x 1", 4)


def test_other_settings_make_other_rows_that_say_them() -> None:
    small = trial(tp=1, concurrency=8, tokens_per_s=100.0, plan={"max_num_seqs": 4})
    large = trial(tp=1, concurrency=8, tokens_per_s=200.0, plan={"max_num_seqs": 8})
    rows = replica_rows([small, large], G6, instances=(1,))
    assert [row.settings for row in rows] == ["max_num_seqs=8", "max_num_seqs=4"]


def test_trials_without_results_or_too_wide_are_passed_over() -> None:
    failed = TrialRecord(
        config=TrialConfig(), status="failed", failure=Failure(kind="died", reason="x")
    )
    wide = trial(tp=8, concurrency=8, tokens_per_s=1.0)
    assert len(replica_rows([failed, wide, *SWEEP], G6, instances=(1,))) == 3
    with pytest.raises(InputError, match="no trial of this sweep fits"):
        replica_rows([failed, wide], G6)


def test_without_a_price_there_is_no_cost() -> None:
    unpriced = instance("ml.p5e.48xlarge", service="sagemaker")
    rows = replica_rows(SWEEP, unpriced, instances=(1,))
    assert {row.usd_per_million_tokens for row in rows} == {None}


@given(
    tp=st.sampled_from([1, 2, 4]),
    tokens_per_s=st.floats(1, 1e5),
    concurrency=st.integers(1, 500),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
)
def test_work_is_conserved(
    tp: int, tokens_per_s: float, concurrency: int, counts: list[int]
) -> None:
    """Throughput per device, latency and cost do not depend on how many machines there are."""
    only = trial(tp=tp, concurrency=concurrency, tokens_per_s=tokens_per_s)
    rows = replica_rows([only], G6, instances=counts)
    assert len(rows) == len(counts)
    for row in rows:
        devices = row.copies * row.instances * row.devices_per_copy
        assert devices == 4 * row.instances
        shared = host_fraction(4 // tp)
        assert row.output_tokens_per_s / devices == pytest.approx(tokens_per_s / tp * shared)
        assert row.load / row.copies / row.instances == pytest.approx(concurrency)
    assert len({f"{row.usd_per_million_tokens:.9g}" for row in rows}) == 1
    assert len({row.p99_e2e_ms for row in rows}) == 1


def printed(records: list[TrialRecord]) -> str:
    paper = Console(file=io.StringIO(), width=120)
    paper.print(replica_table(replica_rows(records, G6), G6))
    return paper.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table_says_what_is_derived() -> None:
    text = printed(SWEEP)
    assert "SIMULATED" not in text
    for part in ("4x L4 (ml.g6.12xlarge)", "TP1 x 4", "derived", "measured", "≤ 100.0%", "$0.89"):
        assert part in text, part


def test_from_the_command_line(servetune: Any, tmp_path: Path) -> None:
    lines = []
    for record in SWEEP:
        raw = json.loads(record.to_json())
        raw["metadata"] = {"model_tag": "m", "instance_type": "ml.g6.12xlarge", "gpu_type": "L4"}
        lines.append(json.dumps(raw) + "\n")
    (tmp_path / "sweep.jsonl").write_text("".join(lines))
    done = servetune("deploy", "study", "sweep.jsonl", "--instances", "1,2")
    assert done.returncode == 0, done.stderr
    assert "TP2 x 2" in done.stdout
    rows = json.loads(servetune("deploy", "study", "sweep.jsonl", "--json").stdout)
    assert len(rows) == 9
    wrong = servetune("deploy", "study", "sweep.jsonl", "--instances", "many")
    assert wrong.returncode == 2
    assert "'many' are no counts" in wrong.stderr


def test_a_simulated_sweep_is_said_to_be_one() -> None:
    simulated = [msgspec.structs.replace(each, simulated=True) for each in SWEEP]
    told = printed(simulated).splitlines()
    assert told[0].strip() == "SIMULATED: all rows are from simulated trials; no model ran"
    assert [line.split()[-1] for line in told if "TP4 x 1" in line] == [
        "simulated",
        "derived",
        "derived",
    ]
    mixed = printed([*SWEEP[:4], simulated[4]])
    assert "SIMULATED: 3 of 9 rows are from simulated trials" in mixed
