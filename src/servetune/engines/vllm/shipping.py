"""vLLM's image, and how it is deployed."""

from __future__ import annotations

from servetune.engines.shipping import Shipping

SHIPPING = Shipping(
    image="vllm/vllm-openai",
    usual_version="0.32.0",
    in_flight="vllm:num_requests_running + vllm:num_requests_waiting",
    install="vllm",
    api_key_variable="VLLM_API_KEY",
)
