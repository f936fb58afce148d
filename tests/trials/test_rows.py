import pytest

from servetune.models import load_shape
from servetune.trials.rows import stored_as


@pytest.mark.parametrize(
    ("model", "weights", "experts", "stored"),
    [
        ("Qwen/Qwen3-8B", "bf16", "", "none"),
        ("Qwen/Qwen3-8B", "fp8", "", "fp8"),
        ("Qwen/Qwen3-8B", "nvfp4", "", "nvfp4"),
        ("Qwen/Qwen3-30B-A3B", "fp8", "", "fp8_block"),
        ("Qwen/Qwen3-30B-A3B", "nvfp4", "nvfp4", "nvfp4@feed_forward"),
        ("deepseek-ai/DeepSeek-R1", "fp8", "", "fp8_block"),
        ("deepseek-ai/DeepSeek-R1", "nvfp4", "nvfp4", "nvfp4@feed_forward"),
        ("deepseek-ai/DeepSeek-R1", "bf16", "", "none"),
    ],
)
def test_a_row_is_priced_in_the_precision_that_ran(model, weights, experts, stored):
    shape = load_shape(model, catalogue_first=True)
    assert stored_as(shape, weights, experts).quantization == stored


@pytest.mark.parametrize("weights", ["bf16", "nvfp4", "mxfp4", ""])
def test_gpt_oss_keeps_its_own_four_bits_whatever_a_table_calls_them(weights):
    shape = load_shape("openai/gpt-oss-120b", catalogue_first=True)
    assert stored_as(shape, weights, "mxfp4") == shape
