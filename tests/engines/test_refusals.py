import pytest

from servetune.engines import check_starts, check_weights
from servetune.errors import PlanError
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
