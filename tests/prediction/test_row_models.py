import json

import pytest

from servetune.errors import InputError, UnknownName
from servetune.models import catalogue, load_config, load_shape
from servetune.prediction.row_models import RowModels, made_from
from servetune.prediction.rows import stored_as


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Nothing but the catalogue and the folder is known."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "base", "stored"),
    [
        ("nvidia/DeepSeek-R1-FP4", "deepseek-ai/DeepSeek-R1", "fp4"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1-0528", "nvfp4"),
        ("amd/Llama-3.3-70B-Instruct-FP8-KV", "meta-llama/Llama-3.3-70B-Instruct", "fp8"),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
            "w4a16",
        ),
        (
            "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
            "meta-llama/Meta-Llama-3.1-70B-Instruct",
            "int4",
        ),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", "int4"),
        ("unsloth/Llama-3.2-3B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", ""),
    ],
)
def test_a_checkpoint_stored_anew_is_known_by_what_it_was_made_from(name, base, stored):
    assert made_from(name, catalogue()) == (base, stored)


@pytest.mark.parametrize(
    "name", ["nvidia/gpt-oss-120b-Eagle3", "someone/Qwen3-9B-FP8", "fp8", "x/-FP8", ""]
)
def test_no_other_word_is_cut_off_to_find_a_model(name):
    assert made_from(name, catalogue()) is None


def test_what_stands_in_is_stored_as_the_name_says_and_is_reported():
    models = RowModels(None)
    shape = models.shape("nvidia/Qwen3-32B-FP4")
    assert shape.name == "nvidia/Qwen3-32B-FP4"
    assert shape.quantization == "nvfp4"
    assert shape.layers == load_shape("Qwen/Qwen3-32B", catalogue_first=True).layers
    assert "read as Qwen/Qwen3-32B stored in fp4" in models.stand_in("nvidia/Qwen3-32B-FP4")
    assert models.shape("Qwen/Qwen3-32B").quantization == "none"
    assert models.stand_in("Qwen/Qwen3-32B") == ""


def test_parts_that_a_fourbit_checkpoint_leaves_out_are_not_in_four_bits():
    shape = RowModels(None).shape("nvidia/DeepSeek-R1-FP4")
    assert shape.quantization == "nvfp4@feed_forward"


def test_a_copy_in_16_bits_is_stored_in_fp8_as_its_publisher_did():
    name = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    assert stored_as(RowModels(None).shape(name), "fp8").quantization == "fp8"


def test_a_copy_is_stored_in_fp8_as_its_original():
    copy = RowModels(None).shape("unsloth/GLM-4.5-Air")
    assert stored_as(copy, "fp8").quantization == "fp8"


def test_a_checkpoint_in_fp8_is_stored_as_its_publisher_stores_them():
    models = RowModels(None)
    for name, stored in (
        ("RedHatAI/Qwen3-30B-A3B-FP8-dynamic", "fp8"),
        ("Qwen/Qwen3-30B-A3B-FP8", "fp8_block"),
    ):
        assert stored_as(models.shape(name), "fp8").quantization == stored
        assert load_shape(name, catalogue_first=True).quantization == stored


def test_a_configuration_that_is_there_comes_before_any_stand_in(tmp_path):
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    (tmp_path / "nvidia--Qwen3-32B-FP4_config.json").write_text(json.dumps(config))
    (tmp_path / "me--Mine-7B_config.json").write_text(json.dumps(config))
    models = RowModels(tmp_path)
    eight = load_shape("Qwen/Qwen3-8B", catalogue_first=True)
    assert models.shape("nvidia/Qwen3-32B-FP4").layers == eight.layers
    assert models.stand_in("nvidia/Qwen3-32B-FP4") == ""
    assert models.shape("other/Mine-7B-FP8").layers == eight.layers
    assert "read as me/Mine-7B stored in fp8" in models.stand_in("other/Mine-7B-FP8")


def test_a_model_that_nobody_knows_is_asked_for_once(tmp_path):
    models = RowModels(tmp_path)
    with pytest.raises(UnknownName) as first:
        models.shape("no/such-model")
    config = load_config("Qwen/Qwen3-8B", catalogue_first=True)
    (tmp_path / "no--such-model_config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownName) as second:
        models.shape("no/such-model")
    assert first.value is second.value


def test_a_configuration_that_cannot_be_read_is_the_rows_own_fault(tmp_path):
    (tmp_path / "me--Mine-7B_config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot read me--Mine-7B_config\.json"):
        RowModels(tmp_path).shape("me/Mine-7B")
