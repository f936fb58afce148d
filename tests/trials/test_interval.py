"""What was predicted for a trial, and its interval, in the trial's record."""

import json

import msgspec
import pytest

from servetune.hardware import node
from servetune.hardware.detect import detect_cpu
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.store import PredictionInterval
from servetune.store.schema import record_from_json
from servetune.trials import StudyContext, measured, trials_of
from servetune.trials.simulated import simulate_trial

MODEL = "Qwen/Qwen3-0.6B"


def study(machine, *, simulated=False):
    shape = load_shape(MODEL, catalogue_first=True)
    return StudyContext(model=MODEL, engine="vllm", simulated=simulated, shape=shape, node=machine)


def trial_in(context, server="tensor_parallel_size=1"):
    load = "max_concurrency=4;num_prompts=8;dataset_name=random;random_input_len=64"
    space = Space(server=parse_settings(server, types={}), client=parse_settings(load, types={}))
    [[trial]] = trials_of(space, context)
    return trial


def simulated(server="tensor_parallel_size=1"):
    context = study(node(gpu="L4", count=4), simulated=True)
    return simulate_trial(trial_in(context, server), context, cmd="", server_cmd_args=[])


def test_a_simulated_record_has_its_interval_and_what_that_rests_on():
    found = simulated().interval
    assert found.low_factor < 1 < found.high_factor
    assert found.ttft_low_factor < 1 < found.ttft_high_factor
    assert (found.extrapolation, found.level) == ("silicon", 0.9)
    assert "measured rows of" in found.accuracy


def test_an_interval_is_wider_where_devices_are_linked():
    one, four = simulated().interval, simulated("tensor_parallel_size=4").interval
    assert four.high_factor / four.low_factor > one.high_factor / one.low_factor


def test_an_interval_survives_its_journal_and_older_journals_have_none():
    record = simulated()
    raw = json.loads(record.to_json())
    assert record_from_json(raw).interval == record.interval
    del raw["interval"]
    assert record_from_json(raw).interval is None


def test_a_trial_that_cannot_run_has_no_interval():
    context = msgspec.structs.replace(study(node(gpu="L4", count=1), simulated=True))
    record = simulate_trial(
        trial_in(context, "tensor_parallel_size=4"), context, cmd="", server_cmd_args=[]
    )
    assert (record.status, record.interval) == ("failed", None)


@pytest.mark.parametrize("machine", [node(gpu="L4", count=1), detect_cpu()], ids=["gpu", "cpu"])
def test_a_measured_trial_is_predicted_wherever_model_and_machine_are_known(machine):
    context = study(machine)
    predicted, interval = measured._prediction(trial_in(context), context)
    assert predicted.completed == 8
    assert interval.low_factor < 1 < interval.high_factor


def test_a_prediction_that_fails_costs_no_trial(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(measured, "simulation_of", broken)
    context = study(node(gpu="L4", count=1))
    assert measured._prediction(trial_in(context), context) == (None, None)


def test_a_rate_is_divided_by_the_factors_on_times():
    interval = PredictionInterval(
        low_factor=0.5, high_factor=2.0, ttft_low_factor=0.25, ttft_high_factor=4.0
    )
    assert interval.ends("output_throughput", 100.0) == (50.0, 200.0)
    assert interval.ends("e2e_latency", 100.0) == (50.0, 200.0)
    assert interval.ends("ttft", 100.0) == (25.0, 400.0)
    assert interval.ends("error_rate", 0.1) is None
