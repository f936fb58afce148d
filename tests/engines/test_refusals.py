import pytest

from servetune.engines import check_fits, check_starts, check_weights
from servetune.engines.refusals import check_silicon
from servetune.errors import DoesNotFit, PlanError
from servetune.hardware import device
from servetune.models import load_shape
from servetune.plan import Plan

QWEN = load_shape("Qwen/Qwen3-4B", catalogue_first=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 128},
            r"max_num_batched_tokens \(64\) must be greater than or equal to max_num_seqs \(128\)",
        ),
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 2048},
            r"\(2048\) is smaller than max_model_len \(40960\)",
        ),
        ({"block_tokens": 7}, r"block_size 7 is not supported"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "simulated"])
def test_what_vllm_ends_with_at_start_is_refused_in_its_words(engine, fields, said) -> None:
    plan = Plan(model="Qwen/Qwen3-4B", engine=engine, **fields)
    with pytest.raises(PlanError, match=said) as caught:
        check_starts(plan, QWEN, device("L4"))
    assert caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_num_batched_tokens": 64},  # vLLM then lowers the places of a step itself
        {"chunked_prefill": False},  # and raises the budget itself
        {"chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 2048},
        {"max_num_batched_tokens": 64, "max_num_seqs": 64},
        {"block_tokens": 48},
        {"engine": "sglang", "block_tokens": 1},
        {"engine": "tgi", "max_num_batched_tokens": 64, "max_num_seqs": 128},
    ],
)
def test_what_starts_is_left_alone(fields) -> None:
    check_starts(Plan(model="Qwen/Qwen3-4B", **fields), QWEN, device("L4"))


def check(model, quantization, engine="vllm"):
    shape = load_shape(model, catalogue_first=True)
    check_weights(Plan(model=model, engine=engine, quantization=quantization), shape)


@pytest.mark.parametrize(
    ("engine", "quantization", "checkpoint"),
    [
        ("vllm", "awq", "Qwen/Qwen3-32B-AWQ"),
        ("vllm", "awq_marlin", "Qwen/Qwen3-32B-AWQ"),
        ("vllm", "gptq", "Qwen/Qwen3-32B-AWQ"),
        ("vllm", "nvfp4", "nvidia/Qwen3-32B-NVFP4"),
        ("vllm", "modelopt_fp4", "nvidia/Qwen3-32B-NVFP4"),
        ("vllm", "compressed-tensors", "Qwen/Qwen3-32B-"),
        ("simulated", "awq", "Qwen/Qwen3-32B-AWQ"),
        ("sglang", "awq", "Qwen/Qwen3-32B-AWQ"),
        ("tgi", "gptq", "Qwen/Qwen3-32B-AWQ"),
    ],
)
def test_weights_that_only_a_checkpoint_has_are_refused_with_its_name(
    engine, quantization, checkpoint
) -> None:
    with pytest.raises(PlanError, match=r"cannot make .* of Qwen/Qwen3-32B while") as caught:
        check("Qwen/Qwen3-32B", quantization, engine)
    assert checkpoint in caught.value.hint


@pytest.mark.parametrize(
    ("engine", "quantization"),
    [
        ("vllm", None),
        ("vllm", "auto"),
        ("vllm", "bf16"),
        ("vllm", "fp8"),
        ("vllm", "fp8_per_block"),
        ("simulated", "fp8"),
        ("sglang", "fp8"),
        ("tgi", "eetq"),
        ("tgi", "bitsandbytes-nf4"),
        ("lmdeploy", "awq"),  # its own list was not read
    ],
)
def test_weights_that_are_made_while_loading_pass(engine, quantization) -> None:
    check("Qwen/Qwen3-32B", quantization, engine)


def test_a_model_without_a_known_checkpoint_says_to_make_one() -> None:
    with pytest.raises(PlanError) as caught:
        check("microsoft/Phi-4-mini-instruct", "awq")
    assert "quantise the model first" in caught.value.hint


@pytest.mark.parametrize("quantization", ["awq", "awq_marlin", "auto", None])
def test_a_quantised_checkpoint_takes_its_own_name(quantization) -> None:
    check("Qwen/Qwen3-32B-AWQ", quantization)


def test_a_quantised_checkpoint_cannot_be_narrowed_again() -> None:
    with pytest.raises(PlanError, match="is stored as int4_g128z"):
        check("Qwen/Qwen3-32B-AWQ", "fp8")


def check_on(gpu, model, quantization=None, engine="vllm"):
    shape = load_shape(model, catalogue_first=True)
    plan = Plan(model=model, engine=engine, quantization=quantization)
    check_silicon(plan, shape, device(gpu))


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
RED_HAT = "RedHatAI/Meta-Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("gpu", "model", "quantization", "said"),
    [
        ("V100", f"{RED_HAT}-quantized.w8a8", None, "no kernels for int8 .* 7.5, it has 7.0"),
        ("V100", f"{RED_HAT}-quantized.w4a16", None, "no kernels for int4_g128 .* 7.5"),
        ("V100", f"{RED_HAT}-quantized.w8a16", None, "no kernels for int8w .* 7.5"),
        ("V100", LLAMA, "int8_per_channel_weight_only", "no kernels for int8w .* 7.5"),
        ("T4", "Qwen/Qwen3-30B-A3B", "experts_int8", "no kernels for int8w .* 8.0"),
        ("T4", "nvidia/Llama-3.1-70B-Instruct-FP8", None, "no kernels for fp8 .* 8.0"),
        ("T4", "deepseek-ai/DeepSeek-V4-Flash", None, "no kernels for mxfp4 .* 8.0"),
        ("Gaudi 2", "nvidia/Llama-3.1-8B-Instruct-NVFP4", None, "no kernels for nvfp4 weights"),
        ("R9700", "nvidia/Qwen3.6-27B-NVFP4", None, "no kernels for nvfp4w weights"),
    ],
)
def test_weights_without_kernels_on_a_device_are_refused(gpu, model, quantization, said) -> None:
    with pytest.raises(PlanError, match=said):
        check_on(gpu, model, quantization)


@pytest.mark.parametrize(
    ("gpu", "model", "engine"),
    [
        ("V100", LLAMA, "vllm"),
        ("V100", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "vllm"),
        ("V100", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "vllm"),
        ("T4", f"{RED_HAT}-quantized.w4a16", "vllm"),
        ("T4", f"{RED_HAT}-quantized.w8a8", "vllm"),
        ("T4", f"{RED_HAT}-FP8-dynamic", "vllm"),
        ("R9700", "nvidia/Llama-3.1-8B-Instruct-NVFP4", "vllm"),  # it starts, emulated
        ("P100", LLAMA, "llama.cpp"),
    ],
)
def test_weights_with_kernels_on_a_device_pass(gpu, model, engine) -> None:
    check_on(gpu, model, engine=engine)


@pytest.mark.parametrize("engine", ["vllm", "simulated"])
def test_a_device_older_than_the_engine_supports_is_refused_in_one_line(engine) -> None:
    with pytest.raises(PlanError, match=r"does not run on P100-16GB: it needs .* 7\.0") as caught:
        check_on("P100", LLAMA, engine=engine)
    assert caught.value.hint == "take a newer device"


@pytest.mark.parametrize(
    ("gpu", "model", "fields", "left_out"),
    [
        ("V100-16GB", LLAMA, {}, "RedHatAI/"),
        ("V100-16GB", LLAMA, {"tensor_parallel": 2}, "RedHatAI/"),
        ("R9700", "meta-llama/Llama-3.3-70B-Instruct", {"tensor_parallel": 2}, "NVFP4"),
        ("Gaudi 2", "meta-llama/Llama-3.3-70B-Instruct", {}, "NVFP4"),
    ],
)
def test_a_hint_names_no_checkpoint_without_kernels_of_its_own(
    gpu, model, fields, left_out
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        check_fits(
            Plan(model=model, **fields), load_shape(model, catalogue_first=True), device(gpu)
        )
    assert left_out not in caught.value.hint


def test_other_weights_are_named_for_the_device() -> None:
    shape = load_shape(LLAMA, catalogue_first=True)
    plan = Plan(model=LLAMA, quantization="w8a16")
    with pytest.raises(PlanError) as caught:
        check_weights(plan, shape, device("V100S"))
    assert "quantise the model first" in caught.value.hint
    assert "fp8" not in caught.value.hint
    with pytest.raises(PlanError) as caught:
        check_weights(plan, shape, device("T4"))
    assert f"{RED_HAT}-quantized.w8a8" in caught.value.hint
    assert "fp8 needs no such checkpoint" in caught.value.hint
