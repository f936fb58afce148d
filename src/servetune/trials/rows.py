"""One row of a measurement table as a question to the estimator, and its answer.

Such tables (NVIDIA's aiconfigurator regression set, InferenceMAX dumps) are measured alike:
random prompts of 0.8 to 1 times the nominal lengths, ten requests per user, all users at once
at the start, and as many sequences in the engine as users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune.errors import InputError
from servetune.hardware import Node, device, node
from servetune.models import NetworkShape
from servetune.perf.roofline import estimate, performance_at
from servetune.plan import Plan
from servetune.workload import UniformRange, Workload

__all__ = ["COLUMNS", "Question", "answer", "question_of"]

#: Without these a row asks nothing.
COLUMNS = ("model", "gpu", "isl", "osl", "concurrency")

RANGE_RATIO = 0.8
REQUESTS_PER_USER = 10

#: Engines by the name that a table gives them; TensorRT-LLM is planned like vLLM.
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "vllm", "": "vllm"}

#: Storage by the table's word; `None` is the checkpoint's own.
STORAGE = {
    "": None,
    "bf16": None,
    "fp16": None,
    "float16": None,
    "bfloat16": None,
    "auto": None,
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "fp8_static": "fp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int4_wo": "awq",
    "int4": "awq",
    "w4a16": "awq",
    "int8": "int8",
    "int8_wo": "int8",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a row asks."""

    shape: NetworkShape
    node: Node
    plan: Plan
    workload: Workload
    concurrency: int
    output_tokens: int


def question_of(row: Mapping[str, str], shape_of: Callable[[str], NetworkShape]) -> Question:
    """Read a row.

    Args:
        row: Column to text.
        shape_of: Finds a model's dimensions.

    Raises:
        InputError: A number is missing or makes no sense.
        UnknownName: Model, GPU, engine or precision is not known.
    """
    shape = shape_of(_word(row, "model"))
    concurrency, output = _count(row, "concurrency"), _count(row, "osl")
    data = _count(row, "dp", default=1)
    engine = _known(ENGINES, row.get("engine", ""), "engine")
    experts = _count(row, "moe_ep", default=1)
    storage = _known(STORAGE, row.get("precision_weights", ""), "precision")
    if storage is None and row.get("precision_moe"):
        storage = _known(STORAGE, row["precision_moe"], "precision")
    plan = Plan(
        model=shape.name,
        engine=engine or "vllm",
        tensor_parallel=_count(row, "tp", default=1),
        pipeline_parallel=_count(row, "pp", default=1),
        data_parallel=data,
        expert_parallel=experts > 1,
        max_num_seqs=max(1, math.ceil(concurrency / data)),
        max_model_len=None,
        quantization=storage if shape.quantization == "none" else None,
        kv_cache_dtype=row.get("precision_kv") or None,
    )
    gpu = device(_word(row, "gpu").replace("_", " "))
    return Question(
        shape=shape,
        node=node(gpu=gpu.name, count=plan.device_count),
        plan=plan,
        workload=Workload(
            lengths=UniformRange(_count(row, "isl"), output, RANGE_RATIO),
            request_count=REQUESTS_PER_USER * concurrency,
            max_concurrency=concurrency,
        ),
        concurrency=concurrency,
        output_tokens=output,
    )


def answer(question: Question) -> dict[str, Any]:
    """The row's output columns: times in ms, with the interval that 90% should lie in."""
    asked = question
    band = estimate(asked.shape, asked.node, asked.plan, asked.workload).interval
    point = performance_at(asked.shape, asked.node, asked.plan, asked.workload, asked.concurrency)
    low, high = band.low_factor, band.high_factor
    return {
        "ttft_ms": _rounded(point.ttft_ms),
        "tpot_ms": _rounded(point.itl_ms),
        "e2e_ms": _rounded(point.ttft_ms + (asked.output_tokens - 1) * point.itl_ms),
        "output_tokens_per_s": _rounded(point.output_tokens_per_s),
        "ttft_low_ms": _rounded(point.ttft_ms * low),
        "ttft_high_ms": _rounded(point.ttft_ms * high),
        "tpot_low_ms": _rounded(point.itl_ms * low),
        "tpot_high_ms": _rounded(point.itl_ms * high),
        "fits": "true",
    }


def _known(names: Mapping[str, str | None], given: str, kind: str) -> str | None:
    from servetune.errors import UnknownName

    word = given.strip().lower()
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
    if not (math.isfinite(number) and number >= 1 and number == int(number)):
        raise InputError(f"{name} must be a whole number of 1 or more, got '{text}'")
    return int(number)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
