"""What a few runs teach about a law that nobody has fitted."""

from __future__ import annotations

import math

import pytest

from servetune.hardware import node
from servetune.models import shape_from_config
from servetune.perf import Calibration, learned_factors, simulate
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.roofline.calibration import LEARNED, relearned
from servetune.perf.roofline.coefficients import value_at
from servetune.perf.roofline.factors import coefficients_for
from servetune.perf.roofline.step_laws import columns_of
from servetune.plan import Plan
from servetune.workload import LengthLaws, Workload

#: So small that the host's work is most of a step, as with the models that CPUs serve in tests.
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SHAPE = shape_from_config(CONFIG, name="tiny", source="made up")
CPU = node(gpu="CPU")
TRUTH = {"step": 0.9, "sequence": -0.8, "device": 0.4, "prompt": 0.3, "request": -1.2}


def run(users: int, prompt: int, machine=CPU) -> PlannedRun:
    return PlannedRun(
        shape=SHAPE,
        node=machine,
        plan=Plan(model=SHAPE.name, max_num_seqs=64, max_model_len=2048),
        lengths=LengthLaws.fixed(prompt, 64),
        concurrency=users,
        request_count=8 * users,
    )


def measured_under(factors, runs):
    """The formula's own answers under another law, as if they had been measured warm."""
    cold = {"closed_loop.warm_up_s": 0.0}
    law = Calibration(learned=factors)
    points = [one.point for one in predict_runs(runs, [law] * len(runs))]
    base = coefficients_for(CPU.device)
    warm_up_ms = 1e3 * (base.closed_loop.warm_up_s - cold["closed_loop.warm_up_s"]) / 8
    return [point.ttft_ms - warm_up_ms for point in points], [point.tpot_ms for point in points]


def test_a_law_is_recovered_from_runs_that_tell_its_parts_apart():
    runs = [run(1, 64), run(1, 1024), run(4, 256), run(16, 64), run(32, 512), run(48, 128)]
    ttft_ms, tpot_ms = measured_under(TRUTH, runs)
    found = learned_factors(runs, ttft_ms, tpot_ms)
    for point, ttft, tpot in zip(
        predict_runs(runs, [Calibration(learned=found)] * len(runs)), ttft_ms, tpot_ms, strict=True
    ):
        assert point.point.tpot_ms == pytest.approx(tpot, rel=0.03)
        assert point.point.ttft_ms - 300 / 8 == pytest.approx(ttft, rel=0.15)
    assert found["step"] == pytest.approx(TRUTH["step"], abs=0.25)
    assert found["sequence"] == pytest.approx(TRUTH["sequence"], abs=0.35)


def test_three_runs_predict_a_fourth_better_than_the_law_alone():
    seen, unseen = [run(1, 256), run(4, 512), run(16, 64)], [run(8, 128), run(32, 256)]
    found = learned_factors(seen, *measured_under(TRUTH, seen))
    truth = measured_under(TRUTH, unseen)[1]
    before = [one.point.tpot_ms for one in predict_runs(unseen)]
    after = [one.point.tpot_ms for one in predict_runs(unseen, [Calibration(learned=found)] * 2)]
    for plain, learned, true in zip(before, after, truth, strict=True):
        assert abs(math.log(learned / true)) < 0.3 * abs(math.log(plain / true))
        assert learned == pytest.approx(true, rel=0.1)


def test_perfect_runs_and_no_runs_teach_nothing():
    runs = [run(1, 256), run(16, 64)]
    nothing = dict.fromkeys(LEARNED, 0.0)
    found = learned_factors(runs, *measured_under(nothing, runs))
    assert found == pytest.approx(nothing, abs=1e-3)
    assert learned_factors([], [], []) == {}


def test_a_law_with_a_table_keeps_it():
    runs = [run(1, 256, node(gpu="H100")), run(16, 64, node(gpu="H100"))]
    assert learned_factors(runs, [500.0, 900.0], [50.0, 90.0]) == {}


def test_what_was_not_measured_moves_nothing_but_what_was():
    runs = [run(1, 256), run(16, 64)]
    _, tpot_ms = measured_under(TRUTH, runs)
    found = learned_factors(runs, [None, None], tpot_ms)
    assert found["request"] == pytest.approx(0.0, abs=0.05)
    assert abs(found["step"]) + abs(found["sequence"]) > 0.3


def test_estimate_and_simulation_run_under_the_learned_law():
    slow = Calibration(learned={"step": math.log(3.0)})
    plan = Plan(model=SHAPE.name, max_num_seqs=8, max_model_len=2048)
    load = Workload.of(LengthLaws.fixed(64, 64), request_count=8, concurrency=1)
    usual, late = (simulate(plan, SHAPE, CPU, load, calibration=c) for c in (None, slow))
    base = coefficients_for(CPU.device)
    assert late.busy_s - usual.busy_s == pytest.approx(late.steps * 2 * base.host.step_s, rel=1e-6)
    assert slow.at() == ()


def test_a_share_stays_below_one_however_much_is_learned():
    base = coefficients_for(CPU.device)
    for by in (-8.0, 8.0):
        changed = relearned(base, {"prompt": by})
        for name in LEARNED["prompt"]:
            assert 0 < value_at(changed, name) < 1, name
    same, before = (columns_of([each]) for each in (relearned(base, {"prompt": 0.0}), base))
    assert {name: value[0] for name, value in same.items()} == pytest.approx(
        {name: value[0] for name, value in before.items()}, rel=1e-12
    )
    faster = relearned(base, {"prompt": -0.5})
    assert faster.gemm.compute_fraction > base.gemm.compute_fraction
