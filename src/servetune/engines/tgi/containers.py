"""Hugging Face's container of Text Generation Inference on SageMaker.

The launcher reads each of its options from a variable of that name; a few have a name of
SageMaker's own. It computes one copy of a model, refuses requests beyond a number (128 unless it is
told), and sizes its cache from what is free after a warm-up. What the original model is called is
kept in a variable that the container ignores, as a model from S3 is only a path to it.

Sources: `sagemaker-entrypoint.sh` and `launcher/src/main.rs` of text-generation-inference 3.3
(2025-09), the last line of which there are containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.engines import engine
from servetune.engines.container import Container, Image, plain_settings
from servetune.engines.tgi.shipping import SHIPPING
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.hardware.device import Device
from servetune.plan.plan import Plan, Setting

#: `--cuda-memory-fraction` where nothing is said.
_ALL_MEMORY = 1.0


def _filled(plan: Plan, _device: Device, concurrency: int, version: str) -> tuple[Plan, list[str]]:
    if plan.replicas > 1:
        raise CannotRender(
            f"TGI runs one copy in its container, the plan has {plan.replicas}",
            hint=f"serve them as inference components: --copies {plan.replicas}",
        )
    chosen = dict(plan.extra)
    if concurrency:
        # The trial's figures are of its own load, and of one request where it sent one at a time;
        # elsewhere than on SageMaker the limit leaves room for what waits.
        chosen.setdefault("max_concurrent_requests", concurrency)
    return SHIPPING.fill(
        msgspec.structs.replace(
            plan,
            extra=tuple(sorted(chosen.items())),
            draft_acceptance_fraction=None,
            gpu_memory_fraction=plan.gpu_memory_fraction or _ALL_MEMORY,
        ),
        concurrency,
        version or SHIPPING.usual_version,
    )


def _settings(plan: Plan, _image: Image) -> Settings:
    return plain_settings(plan)


def _own(plan: Plan, _concurrency: int, _load_timeout_s: int) -> dict[str, str]:
    return engine(plan.engine).plan_variables(plan)


def _read(settings: Settings, variables: Mapping[str, str]) -> dict[str, Setting]:
    return SHIPPING.read(settings, variables)


TGI = Container(
    name="tgi",
    title="Hugging Face Text Generation Inference container",
    repository="huggingface-pytorch-tgi-inference",
    dialect="tgi",
    prefix="",
    foreign=("HF_", "HUGGING_FACE_", "SM_", "SAGEMAKER_", "AWS_", "SERVETUNE_"),
    model_key="HF_MODEL_ID",
    renamed=MappingProxyType(
        {
            "num_shard": "SM_NUM_GPUS",
            "quantize": "HF_MODEL_QUANTIZE",
            "revision": "HF_MODEL_REVISION",
            "trust_remote_code": "HF_MODEL_TRUST_REMOTE_CODE",
            "served_model_name": "SERVETUNE_MODEL",
        }
    ),
    # /invocations takes OpenAI's chat requests, which are what was measured.
    fixed=MappingProxyType({"MESSAGES_API_ENABLED": "true"}),
    fill=_filled,
    to_settings=_settings,
    own=_own,
    read=_read,
    own_keys=frozenset({"PREFIX_CACHING", "PREFILL_CHUNKING", "SERVETUNE_MODEL"}),
    off="value",
    version_pattern=r"-tgi(\d+\.\d+\.\d+)-",
    python_words=False,
    in_log="{name}: {value}` or, over several lines, `{name}: Some({value})",
    copies_note="The container runs one copy; more are inference components (`--copies`).",
)

CONTAINERS = (TGI,)
