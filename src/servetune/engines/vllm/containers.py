"""Containers that run vLLM on SageMaker: LMI, the vLLM container and its Hugging Face edition.

The vLLM containers' entry point makes flags of variables: `SM_VLLM_MAX_NUM_SEQS=128` becomes
`--max-num-seqs 128` and `true` a bare flag; `false` leaves the flag out, so that what is on by
default must be turned off by the flag's negative. LMI takes `false` only from release 26 on.

Sources: LMI configuration guide and djl-serving's `VllmRbProperties` and `LmiConfigRecommender`;
djl-serving pull request 3051 for `false` (2026-06); aws/deep-learning-containers,
`sagemaker_args.py` of vLLM (2026-08); `hf_optimizations.sh` of the Hugging Face edition, which
keeps the KV cache in host memory too (LMCache) and changes the allocator unless it is told not to
(2026-08).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec

from servetune.engines.container import (
    Container,
    Image,
    one_server,
    plain_settings,
    refuse_occupied,
)
from servetune.engines.tables import engine_table
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.hardware.device import Device
from servetune.plan.plan import Plan

#: Sequences of a batch that LMI sets in asynchronous mode where nothing is said; vLLM's own
#: default is larger (djl-serving's `LmiConfigRecommender.setRollingBatchSize`, 2025-09).
LMI_MAX_NUM_SEQS = 32

#: First LMI release that turns `false` into vLLM's `--no-` form (djl-serving PR 3051).
LMI_ACCEPTS_FALSE = 26

#: Fields that a container or version would decide by itself where a Plan leaves them open.
_SENSITIVE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_fraction",
    "prefix_caching",
    "chunked_prefill",
)


def filled_as_vllm(
    plan: Plan, device: Device, concurrency: int, _version: str
) -> tuple[Plan, list[str]]:
    """The Plan with nothing open that a default could decide differently elsewhere.

    vLLM's own defaults for its HTTP server (`EngineArgs.get_batch_defaults`, 0.32.0):
    devices from 70 GiB, but not the A100, take 1,024 sequences and 8,192 tokens (16,384
    tokens from 160 GiB), all others 256 and 2,048. Inside LMI they would be others, for
    there vLLM does not run as its own server. 0.9 of memory is LMI's documented default
    and vLLM's until 0.19; later ones take 0.92.
    """
    gib = device.memory_bytes / 2**30
    large = gib >= 70 and "a100" not in device.name.lower()
    copies = plan.replicas * plan.data_parallel
    sequences = max(1024 if large else 256, math.ceil(concurrency / copies))
    tokens = (16384 if gib >= 160 else 8192) if large else 2048
    defaults: dict[str, Any] = {
        "max_num_seqs": sequences,
        "max_num_batched_tokens": max(tokens, plan.max_num_seqs or sequences),
        "gpu_memory_fraction": 0.9,
        "prefix_caching": True,
        "chunked_prefill": True,
    }
    opened = {name: defaults[name] for name in _SENSITIVE if getattr(plan, name) is None}
    if not opened:
        return plan, []
    values = ", ".join(f"{name}={value}" for name, value in opened.items())
    return msgspec.structs.replace(plan, **opened), [
        f"the plan left these open, and vLLM's usual defaults are written for them: {values}"
    ]


# LMI (DJL Serving)


def _lmi_settings(plan: Plan, image: Image) -> Settings:
    if plan.pipeline_parallel > 1:
        raise CannotRender(
            "LMI refuses pipeline_parallel_size above 1 at start",
            hint="use container 'vllm', or split with tensor parallelism alone",
        )
    if plan.data_parallel > 1:
        raise CannotRender(
            "an LMI worker sees only its own devices, so data_parallel_size cannot be set",
            hint="give the same copies as replicas, or use container 'vllm'",
        )
    settings = plain_settings(plan)
    if settings.get("dtype") in _LMI_DTYPES:
        settings["dtype"] = _LMI_DTYPES[str(settings["dtype"])]
    for name, value in settings.items():
        if name not in _lmi_names():
            raise CannotRender(
                f"LMI drops '{name}' silently, because vLLM's EngineArgs has no such field",
                hint="leave it out, or use container 'vllm', which passes every flag on",
            )
        if value is False and not _lmi_accepts_false(name, image):
            raise CannotRender(
                f"LMI {image.release} drops {name}=false, so vLLM would run with it on",
                hint=f"choose an image of LMI {LMI_ACCEPTS_FALSE} or later, or container 'vllm'",
            )
    return settings


def _lmi_able(plan: Plan, image: Image) -> bool:
    return all(
        value is not False or _lmi_accepts_false(name, image)
        for name, value in plain_settings(plan).items()
    )


def _lmi_accepts_false(name: str, image: Image) -> bool:
    """Whether `false` arrives; a setting that is off anyway may be dropped unharmed."""
    return name == "enforce_eager" or (image.release or 0) >= LMI_ACCEPTS_FALSE


def _lmi_own(plan: Plan, concurrency: int, load_timeout_s: int) -> dict[str, str]:
    """Copies, queue and time-out.

    LMI fills the machine with copies where tensor parallelism leaves devices over; a
    fixed number of workers keeps to the copies that were measured. Its queue answers
    503 beyond 1,000 requests.
    """
    return {
        "SERVING_MIN_WORKERS": str(plan.replicas),
        "SERVING_MAX_WORKERS": str(plan.replicas),
        "SERVING_JOB_QUEUE_SIZE": str(max(1000, concurrency)),
        "OPTION_MODEL_LOADING_TIMEOUT": str(load_timeout_s),
    }


#: Types that LMI's DTYPE_MAPPER does not know, by names that it does.
_LMI_DTYPES: Mapping[str, str] = MappingProxyType({"half": "float16", "float": "float32"})


@cache
def _lmi_names() -> frozenset[str]:
    table = engine_table("vllm", "lmi_arguments.toml")
    return frozenset(table["engine_args"] + table["older_engine_args"] + table["lmi_own"])


LMI = Container(
    name="lmi",
    title="AWS Large Model Inference (DJL Serving, asynchronous vLLM)",
    repository="djl-inference",
    dialect="vllm",
    prefix="OPTION_",
    model_key="HF_MODEL_ID",
    renamed=MappingProxyType(
        {
            # LMI refuses to start when vLLM's own names stand beside these.
            "tensor_parallel_size": "TENSOR_PARALLEL_DEGREE",
            "pipeline_parallel_size": "PIPELINE_PARALLEL_DEGREE",
            "max_num_seqs": "MAX_ROLLING_BATCH_SIZE",
            "max_num_batched_tokens": "MAX_ROLLING_BATCH_PREFILL_TOKENS",
            "quantization": "QUANTIZE",
            "cpu_offload_gb": "CPU_OFFLOAD_GB_PER_GPU",
        }
    ),
    # Defaults from LMI 17 on; LMI 15 and 16 need all three.
    fixed=MappingProxyType(
        {
            "OPTION_ASYNC_MODE": "true",
            "OPTION_ROLLING_BATCH": "disable",
            "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
        }
    ),
    to_settings=_lmi_settings,
    own=_lmi_own,
    copies=lambda env: int(env.get("SERVING_MAX_WORKERS", "1")),
    own_keys=frozenset({"OPTION_MODEL_LOADING_TIMEOUT"}),
    off="value",
    usual_max_num_seqs=LMI_MAX_NUM_SEQS,
    copies_note=(
        "LMI starts one worker per copy. Left alone, it fills the machine with copies "
        "where the tensor parallel degree leaves devices over; `SERVING_MIN_WORKERS` and "
        "`SERVING_MAX_WORKERS` keep it to the number that was planned."
    ),
    able=_lmi_able,
    fill=filled_as_vllm,
)


# vLLM


def _vllm_settings(plan: Plan, _image: Image) -> Settings:
    return refuse_occupied(plain_settings(one_server(plan)))


VLLM = Container(
    name="vllm",
    title="AWS vLLM deep learning container",
    repository="vllm",
    dialect="vllm",
    prefix="SM_VLLM_",
    model_key="SM_VLLM_MODEL",
    to_settings=_vllm_settings,
    fill=filled_as_vllm,
    off="negative",
    shares_out=True,
    knows_caches=True,
    copies_note=(
        "The container runs one vLLM server; copies are its data parallel ranks "
        "(`SM_VLLM_DATA_PARALLEL_SIZE`), and each has its own `max_num_seqs`."
    ),
)

HF_VLLM = msgspec.structs.replace(
    VLLM,
    name="hf-vllm",
    title="Hugging Face vLLM deep learning container",
    repository="huggingface-vllm",
    knows_caches=False,
    # Left alone it adds LMCache, which the trial did not have.
    fixed=MappingProxyType({"HF_ENABLE_OPTIMIZATIONS": "0", "HF_ENABLE_LMCACHE": "0"}),
)

CONTAINERS = (LMI, VLLM, HF_VLLM)
