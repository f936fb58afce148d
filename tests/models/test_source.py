import json
import sys
import types

import pytest

from servetune.errors import InputError, UnknownName
from servetune.models import (
    catalogue,
    load_config,
    load_sampling,
    load_shape,
    quantized_checkpoints,
    quantized_versions,
    weight_bytes,
)

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 160,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


@pytest.fixture(autouse=True)
def _no_hub_and_no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)


def write_folder(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}))
    return folder


def write_cache(root, model, **changes):
    repository = root / f"models--{model.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    write_folder(repository / "snapshots" / "abc123", **changes)


def test_a_folder_is_read_by_its_path_or_by_its_file(tmp_path):
    folder = write_folder(tmp_path / "mine")
    for path in (folder, folder / "config.json"):
        shape = load_shape(str(path))
        assert (shape.vocab, shape.source) == (1000, str(folder))


def test_a_folder_wins_over_a_catalogue_model_of_the_same_name(tmp_path):
    write_folder(tmp_path / "Qwen" / "Qwen3-4B")
    assert load_shape("Qwen/Qwen3-4B").hidden == 64


def test_modelopts_second_file_completes_a_folder(tmp_path):
    folder = write_folder(tmp_path / "mine")
    table = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(table))
    shape = load_shape(folder)
    assert (shape.quantization, shape.kv_cache_dtype) == ("fp8", "fp8")


def test_the_catalogue_answers_without_a_network():
    shape = load_shape("Qwen/Qwen3-4B")
    assert (shape.hidden, shape.layer_count, shape.vocab) == (2560, 36, 151_936)
    assert shape.max_context_tokens == 40_960
    assert "catalogue" in shape.source


def test_letter_case_and_a_short_name_are_enough():
    assert load_shape("qwen/qwen3-4b").name == "Qwen/Qwen3-4B"
    assert load_shape("qwen3-4b").name == "Qwen/Qwen3-4B"


def test_the_hubs_cache_wins_over_the_catalogue_unless_asked_otherwise(tmp_path):
    write_cache(tmp_path / "hf" / "hub", "Qwen/Qwen3-4B")
    assert load_shape("Qwen/Qwen3-4B").hidden == 64
    assert load_shape("qwen3-4b").hidden == 64
    assert load_shape("Qwen/Qwen3-4B", catalogue_first=True).hidden == 2560


def test_a_cached_file_of_a_class_around_the_network_leaves_it_to_the_catalogue(tmp_path):
    """LLaVA's file states what differs from Llama's class alone."""
    text = {"model_type": "llama", "vocab_size": 32_064, "max_position_embeddings": 4096}
    write_cache(
        tmp_path / "hf" / "hub",
        "llava-hf/llava-1.5-7b-hf",
        model_type="llava",
        text_config=text,
    )
    shape = load_shape("llava-hf/llava-1.5-7b-hf")
    assert (shape.hidden, shape.layer_count) == (4096, 32)
    assert shape.vision_parameters > 300_000_000


def test_a_short_name_is_enough_where_all_ids_of_it_are_one_model():
    assert load_shape("grok-1").name == load_shape("xai-org/grok-1").name


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    write_cache(tmp_path / "elsewhere", "me/mine")
    with pytest.raises(UnknownName):
        load_shape("me/mine")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert load_shape("me/mine").vocab == 1000


def test_half_a_download_in_the_cache_is_no_model(tmp_path):
    refs = tmp_path / "hf" / "hub" / "models--me--mine" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("../../elsewhere")
    with pytest.raises(UnknownName):
        load_shape("me/mine")


def test_an_unknown_model_offers_near_names_and_a_folder():
    with pytest.raises(UnknownName) as caught:
        load_shape("Qwen/Qwen3-5B")
    assert "Qwen/Qwen3-4B" in caught.value.hint
    assert "folder" in caught.value.hint
    assert "HF_HUB_OFFLINE" in caught.value.hint
    with pytest.raises(UnknownName) as caught:
        load_shape("qwen3-5b")
    assert "Qwen3-4B" in caught.value.hint


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "has no config.json"),
        (lambda path: path.write_text("x"), "is a file, not a model"),
        (lambda _path: None, "does not exist"),
    ],
)
def test_a_path_that_holds_no_model_is_refused(tmp_path, make, said):
    make(tmp_path / "thing")
    with pytest.raises(InputError, match=said):
        load_shape("./thing")


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", ""])
def test_a_broken_file_is_refused_with_its_path(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load_shape(tmp_path)


def test_an_empty_name_is_refused():
    with pytest.raises(InputError, match="empty"):
        load_shape(" ")


def fake_hub(monkeypatch, folder=None, error=None):
    def metadata(address, *, timeout):
        assert timeout > 0
        if error is not None:
            raise error

    module = types.ModuleType("huggingface_hub")
    module.hf_hub_url = lambda model, file: f"hub:{model}/{file}"
    module.get_hf_file_metadata = metadata
    module.hf_hub_download = lambda _model, file: str(folder / file)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.delenv("HF_HUB_OFFLINE")


def test_the_hub_is_asked_last(tmp_path, monkeypatch):
    fake_hub(monkeypatch, folder=write_folder(tmp_path / "downloaded"))
    assert load_shape("someone/something").vocab == 1000


def test_a_hub_that_fails_is_one_clear_line(monkeypatch):
    fake_hub(monkeypatch, error=OSError("401 Client Error\nmore lines"))
    with pytest.raises(UnknownName) as caught:
        load_shape("someone/secret")
    assert "the hub answered: 401 Client Error;" in caught.value.hint
    assert "\n" not in caught.value.hint


def test_without_the_client_the_hint_says_how_to_get_it(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnknownName) as caught:
        load_shape("someone/something")
    assert "servetune[hub]" in caught.value.hint


def test_a_configuration_can_be_had_as_it_is(tmp_path):
    assert load_config(write_folder(tmp_path / "mine"))["vocab_size"] == 1000
    assert load_config("Qwen/Qwen3-4B")["head_dim"] == 128


def test_the_catalogue_is_large_and_has_the_models_of_the_demo():
    assert len(catalogue()) >= 60
    for family in ("Qwen3-4B", "Llama-3.3", "Mixtral", "gemma-3", "phi-4", "gpt-oss", "Kimi-K2"):
        assert any(family in name for name in catalogue()), family


def test_a_configuration_nested_beyond_reading_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="cannot be read"):
        load_shape(str(tmp_path))


def test_quantised_checkpoints_are_their_base_with_narrower_weights():
    assert len(quantized_checkpoints()) >= 80
    bytes_by_storage = {}
    for name, checkpoint in quantized_checkpoints().items():
        base = load_shape(checkpoint.base, catalogue_first=True)
        shape = load_shape(name, catalogue_first=True)
        assert shape.quantization != "none", name
        assert (shape.layers[0].mixer, shape.vocab) == (base.layers[0].mixer, base.vocab), name
        if base.quantization == "none":
            assert weight_bytes(shape) < weight_bytes(base), name
        bytes_by_storage[name] = weight_bytes(shape)
    # Sizes of the files on their hub pages.
    assert bytes_by_storage["Qwen/Qwen3-32B-AWQ"] == pytest.approx(19.3e9, rel=0.02)
    assert bytes_by_storage["Qwen/Qwen3-8B-FP8"] == pytest.approx(9.4e9, rel=0.02)


@pytest.mark.parametrize(
    ("model", "scheme", "first"),
    [
        ("Qwen/Qwen3-32B", "awq", "Qwen/Qwen3-32B-AWQ"),
        ("qwen3-32b", "fp8", "Qwen/Qwen3-32B-FP8"),
        ("Qwen/Qwen2.5-7B-Instruct", "gptq", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"),
        ("Qwen/Qwen2.5-7B-Instruct", "awq", "Qwen/Qwen2.5-7B-Instruct-AWQ"),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "awq",
            "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "w8a8_int8",
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
        ),
    ],
)
def test_quantised_checkpoints_of_a_model_are_found_by_storage(model, scheme, first):
    assert quantized_versions(model, scheme)[0] == first


def test_checkpoints_for_other_devices_and_earlier_models_are_offered_instead_of_none():
    assert "amd/DeepSeek-R1-0528-MXFP4" not in quantized_versions("deepseek-ai/DeepSeek-R1-0528")
    assert quantized_versions("deepseek-ai/DeepSeek-V4-Flash") == (
        "nvidia/DeepSeek-V4-Flash-NVFP4",
    )


def test_an_instruct_checkpoint_is_none_of_the_base_model():
    assert quantized_versions("meta-llama/Llama-3.1-8B") == ()
    assert quantized_versions("someone/unknown") == ()


def test_sampling_is_read_beside_the_configuration(tmp_path):
    folder = write_folder(tmp_path / "model")
    assert load_sampling(str(folder)) is None
    assert load_sampling("Qwen/Qwen3-4B") is None  # not on this machine
    asked = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05}
    (folder / "generation_config.json").write_text(json.dumps(asked))
    found = load_sampling(str(folder))
    assert (found.filters, found.penalises) == (True, True)
    (folder / "generation_config.json").write_text('{"top_k": "twenty"}')
    with pytest.raises(InputError, match="cannot be read"):
        load_sampling(str(folder))


@pytest.mark.parametrize(
    "asked", [{}, {"top_p": 1.0}, {"top_k": -1}, {"top_k": 0}, {"top_k": 5, "temperature": 0.0}]
)
def test_sampling_that_keeps_every_token_or_one_filters_nothing(tmp_path, asked):
    folder = write_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps(asked))
    assert not load_sampling(str(folder)).filters
