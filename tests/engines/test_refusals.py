import pytest

from servetune.engines import check_starts
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
