"""Deep learning containers whose entry point makes flags of variables: vLLM, its Hugging Face
edition, and SGLang.

`SM_VLLM_MAX_NUM_SEQS=128` becomes `--max-num-seqs 128` and `true` a bare flag; `false` leaves the
flag out, so that what is on by default must be turned off by the flag's negative. SGLang's loop is
of plain shell and its flags have no negatives: nearly all are off unless said.

Sources: aws/deep-learning-containers, `sagemaker_args.py` of vLLM and `sagemaker_entrypoint.sh` of
SGLang (2026-08); `hf_optimizations.sh` of the Hugging Face edition, which keeps the KV cache in
host memory too (LMCache) and changes the allocator unless it is told not to (2026-08).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.deploy.container import Container, Settings, plain_settings
from servetune.deploy.images import Image
from servetune.engines.sglang.shipping import SHIPPING as SGLANG_SHIPPING
from servetune.errors import CannotRender, InputError
from servetune.hardware.device import Device
from servetune.plan.plan import Plan

__all__ = ["HF_VLLM", "SGLANG", "VLLM"]

#: The entry points set these themselves; a second one would contradict them.
_OCCUPIED = frozenset({"host", "port", "model", "model_path", "uds", "api_server_count"})


def _refuse_occupied(settings: Settings) -> Settings:
    for name in settings:
        if name in _OCCUPIED:
            raise CannotRender(
                f"'{name}' belongs to the container, which listens where SageMaker calls it",
                hint="leave it out",
            )
    return settings


def _one_server(plan: Plan) -> Plan:
    """Copies as data parallel ranks of one server, which is all that a container runs."""
    copies = plan.replicas * plan.data_parallel
    return msgspec.structs.replace(plan, replicas=1, data_parallel=copies)


def _nothing(_plan: Plan, _concurrency: int, _load_timeout_s: int) -> dict[str, str]:
    return {}


def _one_copy(_: Mapping[str, str]) -> int:
    return 1


# vLLM


def _vllm_settings(plan: Plan, _image: Image) -> Settings:
    return _refuse_occupied(plain_settings(_one_server(plan)))


VLLM = Container(
    name="vllm",
    title="AWS vLLM deep learning container",
    repository="vllm",
    dialect="vllm",
    prefix="SM_VLLM_",
    model_key="SM_VLLM_MODEL",
    renamed=MappingProxyType({}),
    fixed=MappingProxyType({}),
    to_settings=_vllm_settings,
    own=_nothing,
    copies=_one_copy,
    own_keys=frozenset(),
    off="negative",
    shares_out=True,
    knows_caches=True,
    copies_told=(
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


# SGLang


def _sglang_filled(
    plan: Plan, _device: Device, concurrency: int, version: str
) -> tuple[Plan, list[str]]:
    """As its launcher is told; switches that it has only one way round stand for both states.

    Its batch, chunk and share of memory depend on the device and the model, which
    `engines.defaults.resolved` knows; nothing is made up for them here.
    """
    opened = [
        name
        for name in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_fraction")
        if getattr(plan, name) is None
    ]
    if opened:
        raise InputError(
            f"the plan leaves {', '.join(opened)} open, which SGLang sets by the device",
            hint="fill it with servetune.plan.resolved(plan, shape, device)",
        )
    return SGLANG_SHIPPING.fill(
        msgspec.structs.replace(plan, draft_acceptance_fraction=None), concurrency, version
    )


def _sglang_settings(plan: Plan, image: Image) -> Settings:
    return _refuse_occupied(plain_settings(_one_server(plan), image.engine_version))


SGLANG = Container(
    name="sglang",
    title="AWS SGLang deep learning container",
    repository="sglang",
    dialect="sglang",
    prefix="SM_SGLANG_",
    model_key="SM_SGLANG_MODEL_PATH",
    renamed=MappingProxyType({}),
    fixed=MappingProxyType({}),
    fill=_sglang_filled,
    to_settings=_sglang_settings,
    own=_nothing,
    read=SGLANG_SHIPPING.read,
    copies=_one_copy,
    own_keys=frozenset(),
    off="silence",
    shares_out=True,
    copies_told=(
        "The container runs one SGLang server; copies are its data parallel ranks "
        "(`SM_SGLANG_DP_SIZE`), and each has its own `max_running_requests`."
    ),
)
