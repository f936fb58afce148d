"""Settings that a public table's rows leave out: cells of the benchmark's public grids."""

from __future__ import annotations

import msgspec
import pytest

from servetune.models import load_shape
from servetune.prediction.recipes import Asked, recipe_of
from servetune.prediction.rows import run_of

PLAIN = Asked(
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


def asked(**fields: object) -> Asked:
    return msgspec.structs.replace(PLAIN, **fields)


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
    assert recipe_of(asked(**fields)).draft_tokens == drafted


def test_sglang_asks_for_requests_every_so_many_steps_on_blackwell_alone():
    held = [recipe_of(asked(**SGLANG, concurrency=users)).held_steps for users in (8, 16, 256)]
    assert held == [5.0, 15.0, 15.0]
    assert recipe_of(asked(**SGLANG, architecture="hopper")).held_steps == 0
    assert recipe_of(asked(**SGLANG, model="zai-org/GLM-5")).held_steps == 0


def test_llama_gathers_prompts_for_twenty_steps_only_where_its_script_says_so():
    llama = {"model": "meta-llama/Llama-3.1-70B", "version": ""}
    assert recipe_of(asked(**llama, tensor_parallel=4)).held_steps == 20
    assert recipe_of(asked(**llama)).held_steps == 0
    assert recipe_of(asked(**llama, tensor_parallel=4, output_tokens=8192)).held_steps == 0
    assert recipe_of(asked(**llama, tensor_parallel=4, engine="vllm")).held_steps == 0


def test_copies_of_attention_wait_for_each_other_the_less_the_more_prompts_come():
    divided = {"copies": 8, "tensor_parallel": 1}
    few, many = (recipe_of(asked(**divided, concurrency=n)).held_steps for n in (64, 512))
    assert 30 > few > many > 0


def test_one_prompt_fits_beside_all_users_until_the_image_that_made_room():
    tokens = [
        recipe_of(asked(version=version, concurrency=64)).max_num_batched_tokens
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
    catalogued = lambda model: load_shape(model, catalogue_first=True)  # noqa: E731
    assert run_of(row, catalogued).lengths.ratio == ratio
    assert run_of(row | {"isl": "1024", "osl": "8192"}, catalogued).lengths.ratio == 0.8
