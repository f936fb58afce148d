"""Models by their own ids: siblings of the catalogue's, and names that only resemble them."""

from __future__ import annotations

from pathlib import Path

import pytest

from servetune.errors import ServetuneError, UnknownName
from servetune.models import load_shape, sibling_of

SIBLINGS = {
    "unsloth/Meta-Llama-3.1-8B-Instruct": ("Llama-3.1-8B", "none"),
    "NousResearch/Meta-Llama-3-8B-Instruct": ("Meta-Llama-3-8B", "none"),
    "unsloth/Llama-3.2-1B-Instruct-bnb-4bit": ("Llama-3.2-1B", "nf4"),
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": ("Llama-3.1-8B", "int4"),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a16": ("Llama-3.1-8B", "int8w"),
    "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8": ("Llama-3.1-70B", "fp8"),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("Llama-3.3-70B-Instruct", "nvfp4"),
    "TheBloke/Mistral-7B-Instruct-v0.2-AWQ": ("Mistral-7B-Instruct-v0.2", "int4"),
    "TheBloke/Llama-2-13B-chat-GPTQ": ("Llama-2-13b-hf", "int4"),
    "Qwen/Qwen3-8B-Base": ("Qwen3-8B", "none"),
    "Qwen/Qwen3.5-35B-A3B-FP8": ("Qwen3.5-35B-A3B", "fp8_block"),
    "Qwen/Qwen2.5-14B": ("Qwen2.5-14B-Instruct", "none"),
    "unsloth/gemma-3-12b-it": ("gemma-3-12b-it", "none"),
    "unsloth/gpt-oss-20b-BF16": ("gpt-oss-20b", "none"),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8": ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "fp8"),
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-FP8": (
        "Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",
        "fp8",
    ),
    "RedHatAI/Qwen3-32B-quantized.w4a16": ("Qwen3-32B", "int4"),
    "cyankiwi/Qwen3-30B-A3B-Instruct-2507-AWQ-4bit": ("Qwen3-30B-A3B-Instruct-2507", "int4_g32"),
    "RedHatAI/Mistral-7B-Instruct-v0.3-GPTQ-4bit": ("Mistral-7B-v0.3", "int4_g128"),
    "cyankiwi/GLM-4.5-Air-AWQ-8bit": ("GLM-4.5-Air", "int8w"),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": ("Llama-3.1-8B", "fp8"),
    "zai-org/GLM-4.7-FP8": ("GLM-4.6", "fp8"),
    "zai-org/GLM-5-FP8": ("GLM-5", "fp8_block"),
    "nvidia/DeepSeek-V4-Flash-0731-NVFP4": ("DeepSeek-V4-Flash", "nvfp4"),  # of another day
    "deepseek-ai/DeepSeek-V4-Flash-Base": ("DeepSeek-V4-Flash", "fp8_block"),
    "deepseek-ai/DeepSeek-V4-Pro-Base": ("DeepSeek-V4-Pro", "fp8_block"),
    "unsloth/DeepSeek-V4-Flash-Base": ("DeepSeek-V4-Flash", "fp8_block"),
    "unsloth/DeepSeek-V4-Flash": ("DeepSeek-V4-Flash", "mxfp4@experts+fp8_block"),
    "RedHatAI/TinyLlama-1.1B-Chat-v1.0-marlin": ("TinyLlama-1.1B-Chat-v1.0", "int4_g128"),
    "someone/Qwen3-8B-autoround": ("Qwen3-8B", "int4_g128"),
    "Intel/Qwen3-8B-int4-AutoRound": ("Qwen3-8B", "int4_g128"),
    "someone/Qwen3-8B-AutoRound-AWQ": ("Qwen3-8B", "int4_g128z"),
    "someone/Qwen3-8B-bnb": ("Qwen3-8B", "nf4"),
    "someone/Qwen3-8B-bnb-8bit": ("Qwen3-8B", "int8w"),
    "pytorch/Phi-4-mini-instruct-INT8-INT4": ("Phi-4-mini-instruct", "int4_g32"),
    "unsloth/Llama-3.2-3B-Instruct-FP8-Block": ("Llama-3.2-3B", "fp8_block"),
    "amd/DeepSeek-R1-0528-MXFP4": ("DeepSeek-R1-0528", "mxfp4@feed_forward"),
    "amd/DeepSeek-R1-0528-MXFP4-Preview": ("DeepSeek-R1-0528", "mxfp4@feed_forward"),
    "amd/Kimi-K2.5-MXFP4": ("Kimi-K2.5", "mxfp4@feed_forward"),
    "amd/MiniMax-M2.5-MXFP4": ("MiniMax-M2.5", "mxfp4@feed_forward"),
    "amd/GLM-5.1-MXFP4": ("GLM-5.1", "mxfp4@experts"),
    "amd/Llama-3.3-70B-Instruct-MXFP4-Preview": ("Llama-3.3-70B-Instruct", "mxfp4"),
    "amd/Llama-3.1-405B-Instruct-MXFP4-Preview": ("Llama-3.1-405B", "mxfp4"),
    "MiniMaxAI/MiniMax-M3-MXFP8": ("MiniMax-M3", "mxfp8"),
    "deepseek-ai/DeepSeek-R1-0915": ("DeepSeek-R1", "fp8_block"),
    "google/gemma-4-31B-it-qat-w4a16-ct": ("gemma-4-31B", "int4"),
    "legraphista/glm-4-9b-chat-GPTQ": (
        "glm-4-9b-chat",
        "int4_g128",
    ),  # its base has another context
    "RedHatAI/glm-4-9b-chat-hf-FP8-dynamic": ("glm-4-9b-hf", "fp8"),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_copy_or_a_version_in_fewer_bits_has_the_shape_of_its_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    base, storage = SIBLINGS[name]
    found = load_shape(name, catalogue_first=True)
    assert found.quantization.startswith(storage)
    assert found.name == name
    sibling = sibling_of(name)
    if sibling is not None:  # else the catalogue has it by its own name
        assert sibling.base.endswith(base)
        assert "read as" in found.source


@pytest.mark.parametrize(
    "name",
    [
        "someone/Llama-3.1-8B-Uncensored",
        "Qwen/Qwen2.5-VL-9B-Instruct",
        "meta-llama/Llama-3.1-9B",
        "google/gemma-3-170m",
        "deepseek-ai/DeepSeek-R1-2048",
        "mistralai/Mistral-Large-2512",  # of another shape than that of 2407
        "mistralai/Ministral-8B-Instruct-2512",
        "someone/Mistral-Large-Instruct",
        "TheBloke/Llama-2-7B-GGUF",
        "meta-llama/Llama-Guard-4-12B",
        "Llama-3.1-8B-AWQ",
        "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
        # Stored in fewer bits, by its name, but in how many is not said.
        "someone/Qwen3-8B-quantized",
        "someone/Qwen3-8B-compressed",
    ],
)
def test_an_id_that_only_resembles_one_is_unknown(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert sibling_of(name) is None
    with pytest.raises(UnknownName):
        load_shape(name, catalogue_first=True)


@pytest.mark.parametrize(
    ("name", "form", "original"),
    [
        ("unsloth/Qwen3-8B-GGUF", "GGUF", "Qwen/Qwen3-8B"),
        ("someone/Qwen3-8B-Q4_K_M-GGUF", "GGUF", "Qwen/Qwen3-8B"),
        ("lmstudio-community/Qwen3-8B-GGUF", "GGUF", "Qwen/Qwen3-8B"),
        (
            "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
            "GGUF",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
        ),
        ("mlx-community/Qwen3-8B-4bit", "MLX", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B-MLX-4bit", "MLX", "Qwen/Qwen3-8B"),
        ("someone/Something-GGUF", "GGUF", None),
    ],
)
def test_a_copy_for_other_programs_says_so_and_names_the_original(
    name: str, form: str, original: str | None
) -> None:
    with pytest.raises(UnknownName) as caught:
        load_shape(name, catalogue_first=True)
    instead = f"take the original model {original or ''}".rstrip()
    assert caught.value.hint == f"files of {form} are not read: {instead}"


@pytest.mark.parametrize(
    ("name", "shape_of", "context_tokens"),
    [
        ("allenai/OLMo-7B-0724-hf", "allenai/OLMo-7B-hf", 4_096),
        ("allenai/OLMo-7B-0724-Instruct-hf", "allenai/OLMo-7B-hf", 4_096),
        ("allenai/OLMo-7B-0424-hf", "allenai/OLMo-7B-hf", 4_096),
        ("allenai/OLMo-1B-0724-hf", "allenai/OLMo-1B-hf", 4_096),
        ("HuggingFaceTB/SmolLM-360M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct", 2_048),
        ("moonshotai/Kimi-Dev-72B", "Qwen/Qwen2.5-72B-Instruct", 131_072),
        ("Alibaba-NLP/Tongyi-DeepResearch-30B-A3B", "Qwen/Qwen3-30B-A3B", 131_072),
        ("berkeley-nest/Starling-LM-7B-alpha", "teknium/OpenHermes-2.5-Mistral-7B", 8_192),
        ("openchat/openchat_3.5", "teknium/OpenHermes-2.5-Mistral-7B", 8_192),
        ("nvidia/Nemotron-Orchestrator-8B", "Qwen/Qwen3-8B", 40_960),
        ("google/functiongemma-270m-it", "google/gemma-3-270m", 32_768),
        ("google/translategemma-4b-it", "google/gemma-3-4b-it", 131_072),
        ("LiquidAI/LFM2-1.2B-Tool", "LiquidAI/LFM2-1.2B", 128_000),
        ("meta-llama/LlamaGuard-7b", "meta-llama/Llama-2-7b-hf", 4_096),
        ("bigcode/starcoder2-15b-instruct-v0.1", "bigcode/starcoder2-15b", 16_384),
        ("ibm-granite/granite-guardian-3.1-8b", "ibm-granite/granite-3.1-8b-instruct", 131_072),
        ("ibm-granite/granite-guardian-3.3-8b", "ibm-granite/granite-3.3-8b-instruct", 131_072),
    ],
)
def test_a_model_trained_from_another_has_its_layers_and_its_own_context(
    name: str, shape_of: str, context_tokens: int
) -> None:
    found, origin = (load_shape(each, catalogue_first=True) for each in (name, shape_of))
    assert (found.layers, found.vocab) == (origin.layers, origin.vocab)
    assert found.max_context_tokens == context_tokens


def test_most_common_text_models_are_known_by_their_own_ids_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ids of the hub's common text models, written down from what recipes and guides name."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = (Path(__file__).parent / "common_ids.txt").read_text("utf-8").split()
    unknown = []
    for name in names:
        try:
            load_shape(name, catalogue_first=True)
        except ServetuneError:
            unknown.append(name)
    assert len(names) > 500
    assert len(unknown) <= 0.05 * len(names), unknown
