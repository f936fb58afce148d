"""TGI's images, and its Plan as a deployment writes it.

Source: text-generation-inference 3.x `launcher/src/main.rs`, read in November 2026. What nothing
says it works out when it starts, by its version and a warm-up; requests beyond
`--max-concurrent-requests` are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from servetune.engines.shipping import Build, Shipping
from servetune.engines.tgi.words import VARIABLES
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.plan.plan import Plan, Setting

#: Defaults of its scheduler from 3.0 on (`launcher/src/main.rs`); it needs
#: the first two only where prompts are computed in one piece.
_SCHEDULER_DEFAULTS: Mapping[str, Setting] = MappingProxyType(
    {"waiting_served_ratio": 0.3, "max_waiting_tokens": 20, "cuda_graphs": "1,2,4,8,16,32"}
)
#: Capturing graphs fails with these, so that TGI leaves it out unless it is told to.
_WITHOUT_GRAPHS = ("bitsandbytes", "exl2")

#: Fields that it works out at start where they are left open, with what it goes by.
_DERIVED: Mapping[str, str] = MappingProxyType(
    {
        "max_num_batched_tokens": "the device and the model",
        "max_model_len": "the model and the free memory",
        "prefix_caching": "the model and the device",
        "chunked_prefill": "the model and the device",
    }
)


def _fill(plan: Plan, concurrency: int, version: str) -> tuple[Plan, list[str]]:
    for field, usual in (
        ("pipeline_parallel", 1),
        ("data_parallel", 1),
        ("expert_parallel", False),
    ):
        if getattr(plan, field) != usual:
            raise CannotRender(
                f"TGI has no setting for {field}", hint="use tensor_parallel and replicas alone"
            )
    number = re.match(r"v?(\d+)", version)
    newest = number is None or int(number[1]) >= _CHUNKS_SINCE
    changes: dict[str, Setting] = {"enforce_eager": plan.enforce_eager is True}
    if plan.dtype == "auto":
        changes["dtype"] = None  # TGI takes the checkpoint's own where nothing is said
    if plan.kv_cache_dtype == "auto":
        changes["kv_cache_dtype"] = None
    elif plan.kv_cache_dtype == "fp8":
        changes["kv_cache_dtype"] = "fp8_e4m3fn"
    unsaid = ("block_tokens",) if newest else ("block_tokens", "chunked_prefill")
    changes |= dict.fromkeys(unsaid)
    # Before 3 prompts are not cut unless a variable asks for it, so that False says itself.
    notes = [
        f"TGI {version} chooses {field} itself; the plan's {getattr(plan, field)} is not said"
        for field in unsaid
        if getattr(plan, field) not in (None, False)
    ]
    plan = msgspec.structs.replace(plan, **changes)
    extra = {name: value for name, value in plan.extra if value is not False}
    # Beyond this many requests TGI answers "overloaded" at once (launcher's default: 128).
    extra.setdefault("max_concurrent_requests", max(128, concurrency, plan.max_num_seqs or 0))
    if newest:
        for name, value in _SCHEDULER_DEFAULTS.items():
            if name != "cuda_graphs" or _captures(plan):
                extra.setdefault(name, value)
    if plan.max_model_len is not None:
        longest = plan.max_model_len - 1
        budget = plan.max_num_batched_tokens
        # A server that does not cut prompts refuses to start with a longer one than a step holds.
        if plan.chunked_prefill is not True and budget is not None and budget < longest:
            longest = budget
            notes.append(
                f"TGI may compute a prompt in one piece: prompts above {longest} are refused"
            )
        extra.setdefault("max_input_tokens", max(1, longest))
    return msgspec.structs.replace(plan, extra=tuple(sorted(extra.items()))), notes + _derived(
        plan, version, newest=newest
    )


def _derived(plan: Plan, version: str, *, newest: bool) -> list[str]:
    derived = [
        f"{field} (by {why})"
        for field, why in _DERIVED.items()
        if getattr(plan, field) is None and (newest or field != "chunked_prefill")
    ]
    note = f"TGI {version} works out {', '.join(derived)} when it starts, and may settle otherwise"
    return [f"{note} than in the trial: set them to be sure"] if derived else []


#: First major version that reads PREFILL_CHUNKING as on where nothing is said.
_CHUNKS_SINCE = 3


def _captures(plan: Plan) -> bool:
    return not plan.enforce_eager and not (plan.quantization or "").startswith(_WITHOUT_GRAPHS)


def _read(settings: Settings, variables: Mapping[str, str]) -> dict[str, Setting]:
    eager = str(settings.get("cuda_graphs")) == "0"
    if eager:
        del settings["cuda_graphs"]
    fields = {
        field: variables[name] in ("1", "true")
        for field, name in VARIABLES.items()
        if name in variables
    }
    return {"enforce_eager": eager, **fields}


_IMAGE = "ghcr.io/huggingface/text-generation-inference"

SHIPPING = Shipping(
    builds=(
        Build(kind="cuda", repository=_IMAGE, tag=str),
        Build(
            kind="rocm",
            repository=_IMAGE,
            tag="{}-rocm".format,
            architectures=("cdna2", "cdna3"),
        ),
    ),
    usual_version="3.3.6",
    hub_cache="/data",
    in_flight="tgi_batch_current_size + tgi_queue_size",
    name_setting="",
    api_key_variable="API_KEY",
    fill=_fill,
    read=_read,
)
