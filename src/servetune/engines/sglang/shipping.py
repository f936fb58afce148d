"""SGLang's images, and its Plan as a deployment writes it (`server_args.py` of 0.5).

Images for AMD GPUs are tagged by ROCm and generation: `v0.5.18-rocm720-mi30x` for MI300X and
MI325X, `v0.5.18-rocm720-mi35x` for MI350X and MI355X (releases 0.5.12 to 0.5.18; November 2026).
Further kinds are those of its documentation's hardware platforms (CPU, Intel XPU, Ascend, Moore
Threads); on TPUs another program runs, SGLang-JAX.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.engines.shipping import Build, Shipping, whole_experts, with_settings
from servetune.engines.words import Settings, drafts_itself
from servetune.errors import CannotRender
from servetune.plan.plan import Plan, Setting


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """Switches that SGLang has only one way round stand for both states."""
    if plan.expert_parallel and plan.tensor_parallel == 1:
        raise CannotRender(
            "SGLang splits experts over tensor parallel ranks, and the plan has one",
            hint="leave expert_parallel out, or raise tensor_parallel",
        )
    unsaid = {"prefix_caching": True, "chunked_prefill": True, "enforce_eager": False}
    changes: dict[str, Setting] = {
        name: value for name, value in unsaid.items() if getattr(plan, name) is None
    }
    if plan.kv_cache_dtype == "fp8":
        changes["kv_cache_dtype"] = "fp8_e4m3"
    if plan.draft_tokens is not None and drafts_itself(plan.draft_method):
        changes["draft_method"] = "mtp"
    extra = tuple((name, value) for name, value in plan.extra if value is not False)
    plan = msgspec.structs.replace(plan, **changes, extra=extra)
    # Without metrics no autoscaler and no read-back could see it.
    return with_settings(plan, enable_metrics=True), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    eager = settings.pop("disable_cuda_graph", None) is True
    if settings.get("cuda_graph_backend_decode") == "disabled":
        del settings["cuda_graph_backend_decode"]
        settings.pop("cuda_graph_backend_prefill", None)
        eager = True
    fields: dict[str, Setting] = {
        "prefix_caching": settings.pop("disable_radix_cache", None) is not True,
        "enforce_eager": eager,
        "chunked_prefill": settings.get("chunked_prefill_size") != -1,
    }
    if not fields["chunked_prefill"]:
        del settings["chunked_prefill_size"]
        fields["max_num_batched_tokens"] = settings.pop("max_prefill_tokens", None)
    return fields | whole_experts(settings, "ep_size", settings.get("tp_size"))


SHIPPING = Shipping(
    builds=(
        Build(kind="cuda", repository="lmsysorg/sglang"),
        Build(
            kind="rocm",
            repository="lmsysorg/sglang",
            tag="v{}-rocm720-mi30x".format,
            architectures=("cdna3",),
        ),
        Build(
            kind="rocm",
            repository="lmsysorg/sglang",
            tag="v{}-rocm720-mi35x".format,
            architectures=("cdna4",),
        ),
        *(Build(kind=kind) for kind in ("cpu", "xpu", "ascend", "musa")),
    ),
    usual_version="0.5.23",
    in_flight="sglang:num_running_reqs + sglang:num_queue_reqs",
    install="sglang[all]",
    api_key_word="--api-key",
    node_words=("--nnodes={count}", "--node-rank={rank}", "--dist-init-addr={leader}:20000"),
    spans_since="0.4.0",
    fill=_fill,
    read=_read,
)
