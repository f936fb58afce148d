"""Deployment of llama.cpp in its images.

Sources: `.devops/cuda.Dockerfile` of ggml-org/llama.cpp, whose program lies beside its libraries
and not on the `PATH`; its docker workflow, which tags builds as `server-cuda-bNUMBER`,
`server-rocm-bNUMBER` and `server-bNUMBER`, and `server-cuda-v0.4.1` as others pin a release
(November 2026). Further kinds are backends of its `docs/build.md`: SYCL, CANN and MUSA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from servetune.engines.shipping import Build, Shipping, with_settings
from servetune.engines.words import Settings
from servetune.errors import CannotRender
from servetune.plan.plan import Plan, Setting


def _build(kind: str, server: str) -> Build:
    """Build whose tags are those of releases, or of builds by their numbers."""

    def tag(version: str) -> str:
        number = re.fullmatch(r"b?(\d{3,})", version)
        return f"{server}-b{number[1]}" if number else f"{server}-v{version}"

    return Build(kind=kind, repository="ghcr.io/ggml-org/llama.cpp", tag=tag)


def _fill(plan: Plan, _concurrency: int, _version: str) -> tuple[Plan, list[str]]:
    """With metrics; the number of devices is said by equal shares of the tensors."""
    if plan.tensor_parallel > 1 and plan.pipeline_parallel > 1:
        raise CannotRender(
            "llama.cpp splits rows or layers over its devices, not both",
            hint="use tensor_parallel or pipeline_parallel alone",
        )
    count = plan.devices_per_replica
    shares = {"tensor_split": ",".join(["1"] * count)} if count > 1 else {}
    extra, seqs = dict(plan.extra), plan.max_num_seqs or 1
    context = extra.get("ctx_size")
    if plan.max_model_len is None and isinstance(context, int) and context % seqs == 0:
        del extra["ctx_size"]
        plan = msgspec.structs.replace(
            plan, max_model_len=context // seqs, extra=tuple(extra.items())
        )
    return with_settings(plan, metrics=True, **shares), []


def _read(settings: Settings, _variables: Mapping[str, str]) -> dict[str, Setting]:
    fields: dict[str, Setting] = {}
    parts = str(settings.get("tensor_split", "1")).count(",") + 1
    mode = settings.pop("split_mode", None) if parts > 1 else None
    if mode is not None:
        fields["tensor_parallel" if mode == "row" else "pipeline_parallel"] = parts
    seqs, context = settings.get("parallel", 1), settings.get("ctx_size")
    if isinstance(context, int) and isinstance(seqs, int) and context % seqs == 0:
        del settings["ctx_size"]
        fields["max_model_len"] = context // seqs
    key_type = settings.get("cache_type_k")
    if key_type is not None and key_type == settings.get("cache_type_v"):
        del settings["cache_type_k"], settings["cache_type_v"]
        fields["kv_cache_dtype"] = key_type
    return fields


SHIPPING = Shipping(
    builds=(
        _build("cuda", "server-cuda"),
        _build("rocm", "server-rocm"),
        _build("cpu", "server"),
        *(Build(kind=kind) for kind in ("xpu", "ascend", "musa")),
    ),
    program="/app/llama-server",
    usual_version="0.5.0",
    hub_cache="/root/.cache",  # its own folder and the hub's lie in there
    in_flight="llamacpp:requests_processing + llamacpp:requests_deferred",
    name_setting="alias",
    api_key_variable="LLAMA_API_KEY",
    fill=_fill,
    read=_read,
)
