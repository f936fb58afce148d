"""Calibrations by measured trials: what an open loop says of the steps."""

import msgspec
import numpy as np
import pytest

from servetune.hardware import node
from servetune.metrics import summarize
from servetune.models import load_shape
from servetune.perf import Calibration
from servetune.perf.roofline import PlannedRun, predict_runs
from servetune.perf.sim import simulate
from servetune.plan import Plan
from servetune.prediction.calibrations import from_trials
from servetune.prediction.row_anchors import corrected_by_kept
from servetune.store import TrialRecord
from servetune.store.schema import TrialConfig
from servetune.workload import workload_from_client_args

MODEL = "Qwen/Qwen3-8B"
SHAPE, MACHINE = load_shape(MODEL, catalogue_first=True), node(gpu="H100")
PLAN = Plan(model=MODEL, engine="vllm")


def load(**more):
    return {
        "num_prompts": 300,
        "dataset_name": "random",
        "random_input_len": 512,
        "random_output_len": 128,
        "random_range_ratio": 0.5,
        **more,
    }


def means(client_args, calibration):
    workload = workload_from_client_args(client_args)
    run = simulate(PLAN, SHAPE, MACHINE, workload, calibration=calibration)
    found = summarize(run.records, duration_s=run.duration_s, extras=True)
    return {key: value for key, value in found.items() if key.startswith("mean_")}


def measured(client_args, step_factor):
    """Trial of a machine whose steps take so many times what the law says."""
    return TrialRecord(
        config=TrialConfig(client_args=client_args),
        results=means(client_args, Calibration(tpot_factor=step_factor)),
        plan=PLAN,
    )


@pytest.mark.parametrize("step_factor", [0.9, 1.08])
def test_an_open_loop_near_saturation_says_how_long_steps_are(step_factor):
    """Its times are off by more, as slower steps keep more requests in flight."""
    busy = measured(load(request_rate=90), step_factor)
    plain = means(load(request_rate=90), None)
    off = busy.results.mean_tpot_ms / plain["mean_tpot_ms"]
    assert abs(np.log(off)) > 1.5 * abs(np.log(step_factor))
    (anchor,) = (
        one.anchor for one in from_trials([busy], name="busy", shape=SHAPE, node=MACHINE).anchors
    )
    said = anchor.measured_tpot_ms / anchor.predicted_tpot_ms
    assert said == pytest.approx(step_factor, rel=0.01)
    assert anchor.measured_ttft_ms / anchor.predicted_ttft_ms == pytest.approx(
        step_factor, rel=0.02
    )


def test_what_an_open_loop_said_holds_for_other_rates():
    trials = [measured(load(request_rate=rate), 1.1) for rate in (60, 90)]
    found = from_trials(trials, name="two", shape=SHAPE, node=MACHINE).calibration
    for client_args in (load(request_rate=75), load(max_concurrency=48)):
        truth = measured(client_args, 1.1).results.mean_tpot_ms
        before, after = (
            abs(np.log(means(client_args, given)["mean_tpot_ms"] / truth))
            for given in (None, found)
        )
        assert after < 0.35 * before


@pytest.mark.parametrize("client_args", [load(request_rate=30), load(max_concurrency=16)])
@pytest.mark.parametrize("late_ms", [60.0, -4.0])
def test_first_tokens_are_as_late_in_simulations_as_trials_say(client_args, late_ms):
    usual = measured(client_args, 1.0)
    times = {**usual.results, "mean_ttft_ms": usual.results.mean_ttft_ms + late_ms}
    trials = 6 * [msgspec.structs.replace(usual, results=times)]
    found = from_trials(trials, name="late", shape=SHAPE, node=MACHINE).calibration
    after = means(client_args, found)
    moved = after["mean_ttft_ms"] - usual.results.mean_ttft_ms
    assert 0.5 < moved / late_ms < 1.5  # what comes earlier catches an earlier step, too
    assert after["mean_tpot_ms"] == pytest.approx(usual.results.mean_tpot_ms, rel=0.03)


@pytest.mark.parametrize("step_factor", [0.8, 1.3])
@pytest.mark.parametrize("users", [1, 4, 16])
def test_a_closed_loop_is_simulated_as_it_was_measured(users, step_factor):
    """Its first tokens follow from steps that are off, and are not moved by more besides."""
    trial = measured(load(max_concurrency=users, num_prompts=100), step_factor)
    found = from_trials(8 * [trial], name="own", shape=SHAPE, node=MACHINE).calibration
    after, before = (means(trial.config.client_args, given) for given in (found, None))
    for name in ("mean_ttft_ms", "mean_tpot_ms"):
        truth = trial.results[name]
        assert abs(after[name] - truth) < max(0.4 * abs(before[name] - truth), 0.04 * truth)


@pytest.mark.parametrize(
    "client_args",
    [
        load(num_prompts=60),  # all at once
        load(request_rate=20, arrivals="kind=gamma,rate_per_s=20,burstiness=0.1"),
        load(max_concurrency=64, num_prompts=512),  # who waits longer meets others' prompts
    ],
)
def test_first_tokens_are_later_by_their_factor_however_requests_come(client_args):
    late = Calibration(ttft_factor=1.5, ttft_anchors=4, tpot_anchors=4)
    before, after = (means(client_args, given)["mean_ttft_ms"] for given in (None, late))
    assert 1.45 < after / before < 1.55


def test_a_trial_whose_prompts_are_asked_again_is_an_anchor():
    asked = load(max_concurrency=4, num_prompts=40, distinct_prompts=5)
    found = from_trials([measured(asked, 1.2)], name="again", shape=SHAPE, node=MACHINE)
    (one,) = found.anchors
    assert one.anchor.place.cached_fraction > 0.9
    assert found.calibration.tpot_factor > 1.02
    assert 0.9 < found.calibration.ttft_factor < 1.5


def test_a_row_of_an_open_loop_is_corrected_as_a_simulation_is():
    kept = from_trials(
        [measured(load(request_rate=70), 1.15)] * 4, name="kept", shape=SHAPE, node=MACHINE
    )
    there = load(request_rate=55)
    run = PlannedRun(
        shape=SHAPE,
        node=MACHINE,
        plan=PLAN,
        lengths=workload_from_client_args(there).lengths,
        concurrency=1,
        request_count=there["num_prompts"],
        protocol="open",
        rate_per_s=55,
    )
    plain, corrected = (
        predict_runs([run], given)[0].point for given in (None, corrected_by_kept([run], kept))
    )
    before, after = (means(there, given) for given in (None, kept.calibration))
    for name in ("tpot_ms", "ttft_ms", "e2e_ms"):
        measure = {"e2e_ms": "mean_e2e_latency_ms"}.get(name, f"mean_{name}")
        moved = getattr(corrected, name) / getattr(plain, name)
        assert moved == pytest.approx(after[measure] / before[measure], rel=0.1)
    assert corrected.tpot_ms > 1.16 * plain.tpot_ms


def test_a_time_that_no_step_explains_moves_steps_no_further_than_they_reach():
    usual = measured(load(request_rate=5), 1.0)
    times = {**usual.results, "mean_tpot_ms": 20 * usual.results.mean_tpot_ms}
    late = msgspec.structs.replace(usual, results=times)
    (one,) = from_trials([late], name="late", shape=SHAPE, node=MACHINE).anchors
    said = one.anchor.measured_tpot_ms / one.anchor.predicted_tpot_ms
    assert said > 15  # what steps do not explain is left to how outliers count
    assert one.anchor.predicted_ttft_ms < 40
