import pytest

from servetune.models import load_shape
from servetune.prediction.rows import run_of, stored_as


def catalogued(model):
    return load_shape(model, catalogue_first=True)


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


@pytest.mark.parametrize(
    ("version", "drafts"),
    [
        ("1.2.0rc6.post3", 3),
        ("1.2.0rc7", 3),
        ("1.2.0", 3),
        ("1.3.0rc1", 3),
        ("1.2.0rc6.post2", None),
        ("1.1.0rc2.post2", None),
        ("1.1.0", None),
        ("", None),
        ("nightly-dev", None),
    ],
)
def test_releases_that_draft_are_known_by_their_version(version, drafts):
    row = {
        "model": "deepseek-ai/DeepSeek-R1",
        "engine": "trtllm",
        "engine_version": version,
        "gpu": "b200_sxm",
        "isl": "1024",
        "osl": "1024",
        "concurrency": "4",
        "tp": "8",
    }
    assert run_of(row, catalogued).plan.draft_tokens == drafts
    for other in ({"engine": "vllm"}, {"model": "Qwen/Qwen3-32B"}):
        assert run_of(row | other, catalogued).plan.draft_tokens is None


@pytest.mark.parametrize(
    ("engine", "gpu", "weights", "cache"),
    [
        ("vllm", "h100_sxm", "fp8", None),
        ("vllm", "b200_sxm", "fp8", "fp8"),
        ("vllm", "b200_sxm", "nvfp4", "fp8"),
        ("vllm", "b200_sxm", "bf16", None),
        ("trtllm", "h100_sxm", "fp8", "fp8"),
        ("sglang", "h200_sxm", "fp8", "fp8"),
    ],
)
def test_a_silent_table_keeps_the_cache_as_its_engine_does(engine, gpu, weights, cache):
    row = {
        "model": "Qwen/Qwen3-32B",
        "engine": engine,
        "gpu": gpu,
        "precision_weights": weights,
        "isl": "1024",
        "osl": "1024",
        "concurrency": "4",
    }
    assert run_of(row, catalogued).plan.kv_cache_dtype == cache


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("AWQ", "awq"),
        ("gptq", "awq"),
        ("w8a8", "int8"),
        ("FP8-dynamic", "fp8"),
        ("w8a8 fp8", "fp8"),
        ("modelopt_fp4", "nvfp4"),
        ("none", "none"),
    ],
)
def test_precisions_are_known_by_the_words_of_other_tools(word, stored):
    row = {
        "model": "Qwen/Qwen3-32B",
        "gpu": "h100_sxm",
        "isl": "1024",
        "osl": "128",
        "concurrency": "4",
        "precision_weights": word,
    }
    assert run_of(row, catalogued).shape.quantization == stored


@pytest.mark.parametrize("engine", ["trtllm", "TRT-LLM", "tensorrt-llm", "TensorRT LLM", "trt"])
def test_one_engine_has_many_spellings(engine):
    row = {
        "model": "Qwen/Qwen3-32B",
        "engine": engine,
        "gpu": "h100_sxm",
        "isl": "1024",
        "osl": "128",
        "concurrency": "4",
    }
    assert run_of(row, catalogued).engine == "trtllm"
