"""AWS's deep learning container that runs SGLang on SageMaker.

Its entry point is a loop of plain shell that makes a flag of each variable. SGLang's flags have no
negatives: nearly all are off unless said.

Source: aws/deep-learning-containers, `sagemaker_entrypoint.sh` of SGLang (2026-08).
"""

from __future__ import annotations

import msgspec

from servetune.engines.container import (
    Container,
    Image,
    one_server,
    plain_settings,
    refuse_occupied,
)
from servetune.engines.sglang.shipping import SHIPPING
from servetune.engines.words import Settings
from servetune.errors import InputError
from servetune.hardware.device import Device
from servetune.plan.plan import Plan


def _filled(plan: Plan, _device: Device, concurrency: int, version: str) -> tuple[Plan, list[str]]:
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
            hint="fill it with servetune.engines.resolved(plan, shape, device)",
        )
    return SHIPPING.fill(
        msgspec.structs.replace(plan, draft_acceptance_fraction=None), concurrency, version
    )


def _settings(plan: Plan, image: Image) -> Settings:
    return refuse_occupied(plain_settings(one_server(plan), image.engine_version))


SGLANG = Container(
    name="sglang",
    title="AWS SGLang deep learning container",
    repository="sglang",
    dialect="sglang",
    prefix="SM_SGLANG_",
    model_key="SM_SGLANG_MODEL_PATH",
    fill=_filled,
    to_settings=_settings,
    read=SHIPPING.read,
    off="silence",
    shares_out=True,
    copies_note=(
        "The container runs one SGLang server; copies are its data parallel ranks "
        "(`SM_SGLANG_DP_SIZE`), and each has its own `max_running_requests`."
    ),
)

CONTAINERS = (SGLANG,)
