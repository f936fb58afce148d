import msgspec
import pytest

from servetune.engines import ENGINES, engine, plan_from_settings, settings_of
from servetune.errors import PlanError, UnknownName
from servetune.plan import Plan


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_made_and_has_a_dialect(name):
    assert engine(name).name == name
    assert engine(name).words


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="unknown engine 'vlm'") as caught:
        engine("vlm")
    assert "vllm" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("vllm", "api_server_count"),
        ("vllm", "stream_interval"),
        ("sglang", "tokenizer_worker_num"),
        ("sglang", "stream_interval"),
        ("simulated", "api_server_count"),
    ],
)
@pytest.mark.parametrize("value", [-1, 0])
def test_a_front_end_without_processes_is_refused(name, setting, value):
    """vLLM would start without an API server (`run_headless`), the others would not start."""
    plan = Plan(model="m", engine=name, extra=((setting, value),))
    with pytest.raises(PlanError, match=f"{setting} is 1 or more, got {value}"):
        engine(name).check(plan)
    engine(name).check(msgspec.structs.replace(plan, extra=((setting, 1),)))


def test_zero_postprocess_workers_of_tensorrt_llm_are_its_own_default():
    plan = Plan(model="m", engine="tensorrt-llm", extra=(("num_postprocess_workers", 0),))
    engine("tensorrt-llm").check(plan)


@pytest.mark.parametrize(
    ("name", "setting", "eager"),
    [
        ("tgi", {"cuda_graphs": "0"}, True),
        ("tgi", {"cuda_graphs": "1,2,4"}, None),
        ("sglang", {"disable_cuda_graph": True}, True),
        ("sglang", {"disable_cuda_graph": False}, None),
        ("vllm", {"enforce_eager": True}, True),
    ],
)
def test_a_setting_without_graphs_is_read_as_the_plans_and_written_again(name, setting, eager):
    plan = plan_from_settings(name, "m", setting)
    assert plan.enforce_eager is eager
    assert settings_of(plan).items() >= setting.items()
