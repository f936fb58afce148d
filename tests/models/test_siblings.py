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
    ],
)
def test_an_id_that_only_resembles_one_is_unknown(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert sibling_of(name) is None
    with pytest.raises(UnknownName):
        load_shape(name, catalogue_first=True)


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
