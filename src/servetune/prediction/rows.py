"""Rows of a measurement table as runs to be priced, and their answers.

Such tables (NVIDIA's aiconfigurator regression set, InferenceMAX dumps) are measured alike:
random prompts of 0.8 to 1 times the nominal lengths, ten requests per user, all users at once
at the start, and as many sequences in the engine as users.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.engines import with_useful_places, with_whole_experts, with_wider_share
from servetune.errors import InputError, UnknownName
from servetune.hardware import Device, Node, device, node
from servetune.models import ExpertFeedForward, NetworkShape
from servetune.perf import Calibration
from servetune.perf.roofline import ClosedLoopRun, PredictedRun, interval_of, length_moments
from servetune.plan import Plan
from servetune.prediction.recipes import Asked, recipe_of
from servetune.workload import UniformRange

__all__ = ["COLUMNS", "answer", "run_of", "stored_as"]

#: Without these a row asks nothing.
COLUMNS = ("model", "gpu", "isl", "osl", "concurrency")

RANGE_RATIO = 0.8
REQUESTS_PER_USER = 10

#: Whose kernels and overheads, by the name that a table gives the engine; `_` joins words.
ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "trt_llm": "trtllm",
    "trt": "trtllm",
    "tensorrt_llm": "trtllm",
    "tensorrt": "trtllm",
    "": "vllm",
}

#: Storage of weights by the table's word; `bf16` is the checkpoint unquantised.
STORAGE = {
    "": "",
    "auto": "",
    "none": "",
    "nan": "",
    "bf16": "bf16",
    "fp16": "bf16",
    "float16": "bf16",
    "bfloat16": "bf16",
    "half": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "fp8_static": "fp8",
    "fp8_dynamic": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_ootb": "fp8",
    "w8a8_fp8": "fp8",
    "nvfp4": "nvfp4",
    "nvfp4_wo": "nvfp4",
    "modelopt_fp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "int4_wo": "awq",
    "int4": "awq",
    "w4a16": "awq",
    "awq": "awq",
    "gptq": "awq",
    "w4a8": "awq",
    "w4a8_awq": "awq",
    "w4afp8": "awq",
    "int8": "int8",
    "int8_wo": "int8",
    "w8a8": "int8",
    "sq": "int8",
}

#: Checkpoints of these precisions come with a cache of one byte per number where the table is
#: silent: the tables' own concurrencies would not fit otherwise.
_WITH_FP8_CACHE = ("fp8", "fp8_block", "nvfp4")

#: Share of drafted tokens that is right, chosen by the rows that drafted, none of which any fit
#: of the law has seen.
_ACCEPTANCE = 0.7


def run_of(row: Mapping[str, str], shape_of: Callable[[str], NetworkShape]) -> ClosedLoopRun:
    """Read a row.

    Args:
        row: Column to text.
        shape_of: Finds a model's dimensions.

    Raises:
        InputError: A number is missing or makes no sense.
        UnknownName: Model, GPU, engine or precision is not known.
    """
    prompt, output = _count(row, "isl"), _count(row, "osl")
    concurrency, copies = _count(row, "concurrency"), _count(row, "dp", default=1)
    engine = _known(ENGINES, row.get("engine", ""), "engine")
    storage = _known(STORAGE, row.get("precision_weights", ""), "precision")
    experts = _known(STORAGE, row.get("precision_moe", ""), "precision")
    shape = stored_as(shape_of(_word(row, "model")), storage, experts)
    cache = row.get("precision_kv", "").strip() or None
    gpu = device(_word(row, "gpu").replace("_", " "))
    if cache is None and _caches_in_fp8(engine, storage, gpu):
        cache = "fp8"
    tensor_parallel = _count(row, "tp", default=1)
    # Who has no experts has none to spread: some tables fill the column all the same.
    spread_experts = _count(row, "moe_ep", default=1) > 1 and _has_experts(shape)
    version = row.get("engine_version", "").strip()
    recipe = recipe_of(
        Asked(
            engine=engine,
            version=version,
            model=shape.name,
            architecture=gpu.architecture,
            storage=storage,
            prompt_tokens=prompt,
            output_tokens=output,
            concurrency=concurrency,
            tensor_parallel=tensor_parallel,
            copies=copies,
            spread_experts=spread_experts,
        )
    )
    if recipe.divided_attention:
        tensor_parallel, copies, spread_experts = 1, tensor_parallel, True
    drafts = recipe.draft_tokens
    plan = Plan(
        model=shape.name,
        # Attention of several copies beside common experts is planned as vLLM does it.
        engine="sglang" if engine == "sglang" and copies == 1 else "vllm",
        tensor_parallel=tensor_parallel,
        pipeline_parallel=_count(row, "pp", default=1),
        data_parallel=copies,
        expert_parallel=spread_experts,
        max_num_batched_tokens=recipe.max_num_batched_tokens,
        gpu_memory_fraction=recipe.gpu_memory_fraction,
        max_num_seqs=max(1, math.ceil(concurrency / copies)),
        max_model_len=prompt + output,
        kv_cache_dtype=cache,
        draft_tokens=drafts,
        draft_method="mtp" if drafts else None,
        draft_acceptance_fraction=_ACCEPTANCE if drafts else None,
    )
    # It was run, so as an engine can: `readings` says what of this the row did not.
    lengths = UniformRange(prompt, output, 1.0 if recipe.equal_lengths else RANGE_RATIO)
    plan = with_wider_share(with_whole_experts(plan, shape), shape, gpu)
    plan = with_useful_places(plan, shape, gpu, _context_tokens(lengths))
    return ClosedLoopRun(
        shape=shape,
        node=_machine(gpu, plan.device_count),
        plan=plan,
        lengths=lengths,
        concurrency=concurrency,
        request_count=REQUESTS_PER_USER * concurrency,
        engine=engine,
        engine_version=version,
        held_steps=recipe.held_steps,
    )


@functools.lru_cache(maxsize=256)
def _machine(gpu: Device, count: int) -> Node:
    """The same for all rows that ran on it: what is priced for one need not be for the next."""
    return node(gpu=gpu, count=count)


@functools.cache
def _context_tokens(lengths: UniformRange) -> float:
    return length_moments(lengths).context_tokens


def _caches_in_fp8(engine: str, storage: str, gpu: Device) -> bool:
    """Whether a silent table's run kept keys and values in one byte.

    Under vLLM fp8 weights alone do not narrow the cache; recipes ask for it on Blackwell. On
    Hopper its runs queue where two bytes per number overflow and one would not.
    """
    if engine == "vllm" and storage != "nvfp4" and gpu.architecture != "blackwell":
        return False
    return storage in _WITH_FP8_CACHE


@functools.cache
def stored_as(shape: NetworkShape, weights: str, experts: str = "") -> NetworkShape:
    """The network as the measured checkpoint stored it.

    A table names the precision that ran, the configuration may be that of the first
    publication. Four-bit checkpoints of networks with experts leave attention alone, and
    `bf16` of a network that is published in four bits means the rest of it.
    """
    sparse = _has_experts(shape)
    published = shape.quantization
    wanted = weights if weights not in ("", "bf16") else experts if weights == "" else ""
    if weights == "bf16" and published.startswith("fp8"):
        return msgspec.structs.replace(shape, quantization="none")
    if not wanted or published.startswith(wanted) or wanted == "bf16":
        return shape
    if wanted == "fp8":
        if published.startswith("fp8"):
            return shape
        wanted = "fp8_block" if sparse else "fp8"
    elif wanted in ("nvfp4", "mxfp4", "awq") and sparse:
        if published.startswith("mxfp4") or (wanted == "awq" and published.startswith("int4")):
            return shape  # its own four bits, which tables also call by another name
        wanted = f"{wanted}@feed_forward"
    return msgspec.structs.replace(shape, quantization=wanted)


def _has_experts(shape: NetworkShape) -> bool:
    return any(isinstance(layer.feed_forward, ExpertFeedForward) for layer in shape.layers)


def answer(
    run: ClosedLoopRun, priced: PredictedRun, calibration: Calibration | None = None
) -> dict[str, Any]:
    """The row's output columns: times in ms, with the interval that 90% should lie in.

    Args:
        run: What was asked.
        priced: Its point, already corrected where there is a calibration.
        calibration: Narrows the interval.
    """
    point, band = priced.point, interval_of(run.node, run.plan, run.shape, calibration)
    output = run.lengths.output_tokens if isinstance(run.lengths, UniformRange) else 1
    return {
        "ttft_ms": _rounded(point.ttft_ms),
        "tpot_ms": _rounded(point.tpot_ms),
        "e2e_ms": _rounded(point.ttft_ms + (output - 1) * point.tpot_ms),
        "output_tokens_per_s": _rounded(point.output_tokens_per_s),
        "ttft_low_ms": _rounded(point.ttft_ms * band.ttft_low_factor),
        "ttft_high_ms": _rounded(point.ttft_ms * band.ttft_high_factor),
        "tpot_low_ms": _rounded(point.tpot_ms * band.low_factor),
        "tpot_high_ms": _rounded(point.tpot_ms * band.high_factor),
        "fits": "false" if priced.misfit else "true",
        "error": priced.misfit or "",
    }


def _known(names: Mapping[str, str], given: str, kind: str) -> str:
    word = re.sub(r"[\s_-]+", "_", given.strip().lower())
    if word not in names:
        raise UnknownName(kind, given, [name for name in names if name])
    return names[word]


def _word(row: Mapping[str, str], name: str) -> str:
    word = row.get(name, "").strip()
    if not word:
        raise InputError(f"{name} is empty")
    return word


def _count(row: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = row.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, got '{text}'") from None
    if not (math.isfinite(number) and 1 <= number <= MOST and number == int(number)):
        raise InputError(f"{name} must be a whole number from 1 to {MOST:,}, got '{text}'")
    return int(number)


#: No length, concurrency or degree is larger.
MOST = 10_000_000


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
