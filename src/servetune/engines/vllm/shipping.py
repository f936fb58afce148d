"""vLLM's images, and how it is deployed.

Source: its releases, which publish `vllm-openai`, `vllm-openai-rocm` and `vllm-openai-cpu` under
the same tag (0.19 to 0.29; November 2026). Words of several machines: the examples of
LeaderWorkerSet (`docs/examples/leaderworkerset/basic`, 2026), which start it without Ray. Further
kinds are those of its installation page: Intel XPU, and the plug-ins vllm-gaudi, tpu-inference and
vllm-ascend, which have images of their own projects.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.shipping import Build, Shipping

#: Lets a running server load an adapter's component (model-hosting-container-standards,
#: docs/sagemaker/05_lora_adapter_management.md, "Required", November 2026).
LOADS_ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}

SHIPPING = Shipping(
    builds=(
        Build(kind="cuda", repository="vllm/vllm-openai"),
        Build(kind="rocm", repository="vllm/vllm-openai-rocm"),
        Build(kind="cpu", repository="vllm/vllm-openai-cpu"),
        *(Build(kind=kind) for kind in ("xpu", "gaudi", "tpu", "ascend")),
    ),
    usual_version="0.32.0",
    in_flight="vllm:num_requests_running + vllm:num_requests_waiting",
    install="vllm",
    api_key_variable="VLLM_API_KEY",
    node_words=("--nnodes={count}", "--node-rank={rank}", "--master-addr={leader}"),
    worker_words=("--headless",),
    spans_since="0.12.0",
    adapter_variables=MappingProxyType(LOADS_ADAPTERS),
)
