"""Settings that a public table's rows leave out: cells of the benchmark's public grids."""

from __future__ import annotations

import msgspec
import pytest

from servetune.models import load_shape
from servetune.prediction.conventions import RowFacts, UnstatedSettings
from servetune.prediction.inferencemax import unstated_settings
from servetune.prediction.rows import run_of
from servetune.workload import LengthLaws

PLAIN = RowFacts(
    engine="trtllm",
    version="1.2.0rc6.post2",
    model="deepseek-ai/DeepSeek-R1",
    architecture="blackwell",
    storage="fp8",
    prompt_tokens=1024,
    output_tokens=1024,
    concurrency=16,
    tensor_parallel=8,
    copies=1,
    spread_experts=False,
)


def catalogued(model):
    return load_shape(model, catalogue_first=True)


def settings(**fields: object) -> UnstatedSettings:
    return unstated_settings(msgspec.structs.replace(PLAIN, **fields))


SGLANG = {"engine": "sglang", "version": "0.5.9"}
QWEN = SGLANG | {"model": "Qwen/Qwen3.5-397B-A17B"}
SHARED = {"version": "1.1.0rc2.post2", "storage": "nvfp4"}


@pytest.mark.parametrize(
    ("fields", "drafted"),
    [
        ({}, None),
        ({"version": "1.2.0rc6.post3"}, 3),
        ({"version": "1.2.0rc6.post3", "copies": 8, "tensor_parallel": 1}, 1),
        (SHARED | {"tensor_parallel": 4, "spread_experts": True}, 3),  # only in the MTP grid
        (SHARED | {"tensor_parallel": 4, "concurrency": 32}, None),  # only in the plain grid
        (SHARED | {"concurrency": 4}, None),
        ({"version": "1.1.0rc2.post2", "copies": 8, "concurrency": 64}, None),  # in both
        ({"version": "1.1.0rc2.post2", "copies": 8, "concurrency": 128}, 1),
        (SGLANG | {"concurrency": 64}, None),
        (SGLANG | {"concurrency": 128}, 2),
        (SGLANG | {"concurrency": 8, "prompt_tokens": 8192}, 2),
        (SGLANG | {"concurrency": 128, "storage": "nvfp4"}, None),
        (SGLANG | {"concurrency": 128, "architecture": "hopper"}, None),
        (QWEN | {"tensor_parallel": 4}, 3),
        (QWEN | {"tensor_parallel": 4, "spread_experts": True}, None),
        (QWEN | {"tensor_parallel": 8}, None),
        ({"engine": "vllm"}, None),
        (SGLANG | {"model": "Qwen/Qwen3-32B", "concurrency": 128}, None),
    ],
)
def test_cells_that_drafted_are_those_of_the_grid(fields, drafted):
    assert settings(**fields).draft_tokens == drafted


def test_sglang_asks_for_requests_every_so_many_steps_on_blackwell_alone():
    held = [settings(**SGLANG, concurrency=users).admission_delay_steps for users in (8, 16, 256)]
    assert held == [5.0, 15.0, 15.0]
    assert settings(**SGLANG, architecture="hopper").admission_delay_steps == 0
    assert settings(**SGLANG, model="zai-org/GLM-5").admission_delay_steps == 0


def test_llama_gathers_prompts_for_twenty_steps_only_where_its_script_says_so():
    llama = {"model": "meta-llama/Llama-3.1-70B", "version": ""}
    assert settings(**llama, tensor_parallel=4).admission_delay_steps == 20
    assert settings(**llama).admission_delay_steps == 0
    assert settings(**llama, tensor_parallel=4, output_tokens=8192).admission_delay_steps == 0
    assert settings(**llama, tensor_parallel=4, engine="vllm").admission_delay_steps == 0


def test_copies_of_attention_wait_for_each_other_the_less_the_more_prompts_come():
    divided = {"copies": 8, "tensor_parallel": 1}
    few, many = (settings(**divided, concurrency=n).admission_delay_steps for n in (64, 512))
    assert 30 > few > many > 0


def test_one_prompt_fits_beside_all_users_until_the_image_that_made_room():
    tokens = [
        settings(version=version, concurrency=64).max_num_batched_tokens
        for version in ("", "1.1.0rc2.post2", "1.2.0rc6.post2", "1.2.0rc6.post3")
    ]
    assert tokens == [1152, 1152, 8192, 1344]


@pytest.mark.parametrize(("engine", "ratio"), [("sglang", 1.0), ("vllm", 0.8), ("trtllm", 0.8)])
def test_other_lengths_than_the_benchmarks_are_equal_under_sglang(engine, ratio):
    row = {
        "model": "Qwen/Qwen3-32B",
        "engine": engine,
        "gpu": "h100_sxm",
        "isl": "2048",
        "osl": "128",
        "concurrency": "16",
    }
    read = run_of(row, catalogued, unstated_settings)
    assert read.lengths == LengthLaws.ranged(2048, 128, ratio)
    read = run_of(row | {"isl": "1024", "osl": "8192"}, catalogued, unstated_settings)
    assert read.lengths == LengthLaws.ranged(1024, 8192, 0.8)


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
    assert run_of(row, catalogued, unstated_settings).plan.draft_tokens == drafts
    for other in ({"engine": "vllm"}, {"model": "Qwen/Qwen3-32B"}):
        assert run_of(row | other, catalogued, unstated_settings).plan.draft_tokens is None


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
    assert run_of(row, catalogued, unstated_settings).plan.kv_cache_dtype == cache


@pytest.mark.parametrize(
    ("engine", "version", "warmed"),
    [
        ("vllm", "0.15.1", True),
        ("vllm", "0.11.2", False),
        ("vllm", "", False),
        ("sglang", "0.5.9", True),
        ("sglang", "nightly-dev", True),
        ("sglang", "0.5.6", False),
        ("trtllm", "1.2.0rc6.post2", False),
    ],
)
def test_vllms_and_sglangs_runs_of_2026_were_warmed(
    engine: str, version: str, *, warmed: bool
) -> None:
    assert settings(engine=engine, version=version).warmed == warmed
    row = {
        "model": "Qwen/Qwen3-32B",
        "engine": engine,
        "engine_version": version,
        "gpu": "h100_sxm",
        "isl": "1024",
        "osl": "1024",
        "concurrency": "4",
    }
    assert run_of(row, catalogued, unstated_settings).warmed == warmed
    assert not run_of(row | {"isl": "1000"}, catalogued, unstated_settings).warmed


def test_other_lengths_have_the_cache_of_their_engine() -> None:
    fields = {"engine": "sglang", "architecture": "hopper", "storage": "fp8"}
    assert settings(**fields).kv_cache_dtype == "fp8"
    assert settings(**fields, prompt_tokens=1000).kv_cache_dtype is None
