"""What aiconfigurator is asked, and that nothing is guessed for it where it has no answer."""

from __future__ import annotations

import importlib.util
import inspect

import msgspec
import pytest

from servetune.errors import InputError, PlanError
from servetune.hardware import device_names, node
from servetune.models import load_config, load_shape
from servetune.perf.roofline import PlannedRun
from servetune.plan import Plan
from servetune.prediction import aiconfigurator as room
from servetune.prediction.aiconfigurator import (
    AiconfiguratorEstimate,
    call_for,
    estimate_columns,
    estimate_run,
    require_installed,
    with_architecture,
)
from servetune.prediction.rows import run_of
from servetune.workload import LengthLaws

INSTALLED = importlib.util.find_spec("aiconfigurator") is not None
real = pytest.mark.skipif(
    not INSTALLED, reason="aiconfigurator is not installed: pip install 'servetune[aiconfigurator]'"
)


def run(model="Qwen/Qwen3-8B", gpu="H100", count=1, concurrency=16, **chosen):
    return PlannedRun(
        shape=load_shape(model, catalogue_first=True),
        node=node(gpu=gpu, count=count),
        plan=Plan(model=model, **chosen),
        lengths=LengthLaws.fixed(1000, 200),
        concurrency=concurrency,
        request_count=100,
    )


def test_a_plan_is_asked_in_its_words():
    asked = call_for(run(tensor_parallel=2, replicas=2, count=4, kv_cache_dtype="fp8_e4m3"))
    assert (asked.system_name, asked.backend_name) == ("h100_sxm", "vllm")
    assert (asked.isl, asked.osl) == (1000, 200)
    assert (asked.tp_size, asked.pp_size, asked.attention_dp_size) == (2, 1, 1)
    assert asked.batch_size == 8  # 16 users over two copies
    assert asked.copies == 2
    assert asked.kvcache_quant_mode == "fp8"
    assert (asked.moe_tp_size, asked.moe_ep_size) == (None, None)


@pytest.mark.parametrize(
    ("whole", "split"), [(True, (1, 4)), (False, (4, 1))], ids=["experts whole", "experts split"]
)
def test_experts_are_split_or_whole_over_all_ranks(whole, split):
    asked = call_for(
        run(
            "Qwen/Qwen3-30B-A3B", count=4, tensor_parallel=2, data_parallel=2, expert_parallel=whole
        )
    )
    assert (asked.moe_tp_size, asked.moe_ep_size) == split
    assert asked.batch_size == 8


@pytest.mark.parametrize(
    ("model", "quantization", "gemm", "moe"),
    [
        ("Qwen/Qwen3-8B", None, "bfloat16", None),
        ("Qwen/Qwen3-8B", "fp8", "fp8", None),
        ("Qwen/Qwen3-8B", "awq", "int4_wo", None),
        ("Qwen/Qwen3-30B-A3B", "fp8", "fp8", "fp8"),
        ("Qwen/Qwen3-30B-A3B", "nvfp4@feed_forward", "bfloat16", "nvfp4"),
        ("openai/gpt-oss-20b", None, "bfloat16", "w4a16_mxfp4"),
        ("deepseek-ai/DeepSeek-R1", None, "fp8_block", "fp8_block"),
    ],
)
def test_weights_are_named_as_it_names_them(model, quantization, gemm, moe):
    asked = call_for(run(model, quantization=quantization))
    assert (asked.gemm_quant_mode, asked.moe_quant_mode) == (gemm, moe)


def test_modes_of_the_published_checkpoint_are_left_to_it():
    shape = load_shape("openai/gpt-oss-20b", catalogue_first=True)
    asked = call_for(run("openai/gpt-oss-20b"), shape.quantization)
    assert (asked.gemm_quant_mode, asked.moe_quant_mode) == (None, None)


def test_a_row_of_a_table_is_asked_with_its_mean_lengths():
    row = {"model": "Qwen/Qwen3-8B", "gpu": "h200_sxm", "isl": "1024", "osl": "1024"}
    row |= {"concurrency": "32", "engine": "sglang", "tp": "2"}
    asked = call_for(run_of(row, lambda name: load_shape(name, catalogue_first=True)))
    assert (asked.system_name, asked.backend_name, asked.tp_size) == ("h200_sxm", "sglang", 2)
    assert asked.isl == pytest.approx(922, abs=5)
    assert asked.osl == pytest.approx(922, abs=5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gpu": "L4"}, "table of the GPU L4"),
        ({"quantization": "mxfp8"}, "mode for weights in mxfp8"),
        ({"kv_cache_dtype": "int4_per_token_head"}, "mode for a cache in int4"),
    ],
)
def test_where_it_has_no_word_there_is_no_answer(given, says):
    with pytest.raises(PlanError, match=says) as caught:
        call_for(run(**given))
    assert caught.value.hint


def test_every_system_is_a_device_of_the_catalogue():
    assert set(room.SYSTEMS) <= set(device_names())


def test_a_configuration_without_a_class_gets_the_one_of_its_type():
    assert with_architecture({"model_type": "qwen3"})["architectures"] == ["Qwen3ForCausalLM"]
    own = {"model_type": "qwen3", "architectures": ["Mine"]}
    assert with_architecture(own) == own
    nested = with_architecture({"model_type": "llama4_text", "hidden_size": 8})
    assert nested["text_config"]["hidden_size"] == 8
    with pytest.raises(PlanError, match="gemma2"):
        with_architecture({"model_type": "gemma2"})


def test_its_warning_about_the_cache_is_reported_in_fits():
    fine = AiconfiguratorEstimate(
        concurrency=1, ttft_ms=1, tpot_ms=2, e2e_ms=3, output_tokens_per_s=4, predictor="it"
    )
    assert estimate_columns(fine)["fits"] == "true"
    assert estimate_columns(msgspec.structs.replace(fine, warning="full"))["fits"] == "false"


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError) as caught:
        require_installed()
    assert caught.value.hint == "pip install 'servetune[aiconfigurator]'"


@real
def test_the_questions_names_are_its_arguments():
    from aiconfigurator.cli.api import cli_estimate

    known = set(inspect.signature(cli_estimate).parameters)
    assert set(call_for(run()).arguments()) <= known


@real
@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        ("Qwen/Qwen3-8B", {}),
        ("Qwen/Qwen3-8B", {"quantization": "fp8", "tensor_parallel": 2, "count": 2}),
        ("Qwen/Qwen3-30B-A3B", {"tensor_parallel": 2, "count": 2}),
        ("meta-llama/Llama-3.1-8B-Instruct", {"gpu": "A100"}),
        ("openai/gpt-oss-20b", {}),
    ],
)
def test_it_answers_within_what_the_silicon_can_do(model, chosen):
    asked = run(model, **chosen)
    found = estimate_run(asked, load_config(model, catalogue_first=True))
    assert "aiconfigurator 0.12" in found.predictor
    assert found.concurrency == 16
    assert found.tpot_ms > 0.5
    assert found.e2e_ms == pytest.approx(found.ttft_ms + 199 * found.tpot_ms)
    assert found.output_tokens_per_s == pytest.approx(16 * 1000 / found.tpot_ms, rel=0.25)


@real
def test_copies_multiply_its_throughput_and_nothing_else():
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    one = estimate_run(run(concurrency=8), config)
    two = estimate_run(run(concurrency=16, replicas=2, count=2), config)
    assert two.ttft_ms == one.ttft_ms
    assert two.output_tokens_per_s == pytest.approx(2 * one.output_tokens_per_s)


@real
def test_a_precision_that_its_tables_lack_is_a_reason_without_paths():
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    asked = msgspec.structs.replace(run(gpu="H200", kv_cache_dtype="fp8"), engine="sglang")
    with pytest.raises(PlanError, match=r"^aiconfigurator has no answer: .*data missing") as caught:
        estimate_run(asked, config)
    assert "site-packages" not in caught.value.message


@real
def test_its_own_refusal_is_one_clear_line():
    model = "meta-llama/Llama-3.1-405B-Instruct"
    with pytest.raises(PlanError, match=r"^aiconfigurator has no answer: .*does not fit") as caught:
        estimate_run(run(model), load_config(model, catalogue_first=True))
    assert "\n" not in caught.value.message
    assert "/tmp" not in caught.value.message
