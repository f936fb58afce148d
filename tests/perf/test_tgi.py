"""Text-generation-inference of 2023: its law, and the published tables it must meet."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmark_scripts import script
from servetune.hardware import device, instance
from servetune.models import load_shape
from servetune.perf import performance_at
from servetune.perf.roofline import Step, coefficients_for, operations, step_law, table_for
from servetune.perf.roofline.coefficients import changed
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload
from servetune.workload.laws import Always, Uniform

LLAMA = load_shape("meta-llama/Llama-2-7b-hf", catalogue_first=True)
P4D = instance("ml.p4d.24xlarge")


def decode(sequences: int) -> Step:
    return Step(decode_sequences=sequences, decode_context_tokens=sequences * 300)


def test_one_sequence_waits_for_the_host_to_launch_each_layer() -> None:
    c = table_for(P4D.device, "tgi")
    law = step_law(Plan(model="m", engine="tgi", tensor_parallel=8), LLAMA, P4D, c)
    assert law(decode(1)) == pytest.approx(
        c.host.step_s + 3 * c.host.rank_s + c.host.sequence_s + 32 * c.launch.layer_s
    )


def test_the_fit_to_later_engines_does_not_touch_it() -> None:
    for gpu in ("A100", "A10G", "H100"):
        assert coefficients_for(device(gpu), "tgi") == table_for(device(gpu), "tgi")


def served(
    users: int, input_tokens: int, output_tokens: int, ratio: float = 1.0, **changes: float
) -> float:
    """Sequences that run at once on one A100-40GB."""
    coefficients = changed(table_for(P4D.device, "tgi"), changes)
    plan = Plan(model="m", engine="tgi", max_num_seqs=users, max_num_batched_tokens=4096)
    lengths = LengthLaws(Always(input_tokens), Uniform.up_to(output_tokens, ratio))
    load = Workload.of(lengths, request_count=1000)
    return performance_at(LLAMA, P4D, plan, load, users, coefficients=coefficients).running


def test_no_more_run_than_prompts_were_let_in() -> None:
    """Four prompts of 1,000 tokens every 19 steps are ten sequences of 49 steps on average.

    There are nine in time: while prompts are computed those that have ended are not replaced yet.
    """
    assert served(64, 1000, 70, 30 / 70) == pytest.approx(0.9 * 4 * 49 / 19, rel=0.03)
    assert served(64, 1000, 70, 30 / 70, **{"scheduling.admission_steps": 0.0}) > 12


def test_whole_answers_take_their_room_before_the_first_token() -> None:
    loose = served(512, 16, 1024, **{"scheduling.whole_answers": False})
    assert served(512, 16, 1024) < 0.65 * loose


def test_a_prompt_apart_holds_up_all_that_decode() -> None:
    load = Workload.of(LengthLaws.ranged(1000, 50, 0.5), request_count=1000)
    plan = Plan(model="m", engine="tgi", max_num_seqs=8)
    table = table_for(P4D.device, "tgi")
    mixed = changed(table, {"scheduling.separate_prefill": False})
    rates = [
        performance_at(LLAMA, P4D, plan, load, 8, coefficients=c).requests_per_s
        for c in (table, mixed)
    ]
    assert rates[0] < 0.95 * rates[1]


def test_layers_whose_parts_work_side_by_side_agree_once() -> None:
    falcon = load_shape("tiiuae/falcon-40b", catalogue_first=True)
    plan = Plan(model="m", engine="tgi", tensor_parallel=8)
    assert operations(plan, falcon).reduce_count == 60 + 1
    assert operations(plan, LLAMA).reduce_count == 2 * 32 + 1


@pytest.fixture(scope="module")
def seed_tables() -> ModuleType:
    return script("prediction/seed_tables.py")


def test_every_published_table_is_met_within_15_percent_by_its_median(
    shared: Path, seed_tables: ModuleType
) -> None:
    rows = seed_tables.read(shared / "data")
    assert len(rows) == 67 + 18
    unseen: dict[str, list[float]] = {}
    for row in rows:
        if not row.left_out:
            error = seed_tables.prediction(row, seed_tables.TGI_FIT) / row.value - 1
            unseen.setdefault(row.table, []).append(100 * abs(error))
    assert len(unseen) == 3
    for table, errors in unseen.items():
        assert np.median(errors) < (15 if len(errors) > 1 else 25), table
