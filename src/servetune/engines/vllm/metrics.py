"""vLLM's metrics.

Source: vllm/engine/metrics.py (0.6) to vllm/v1/metrics/loggers.py (0.31), and a scrape of 0.32.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "running_count": (metric_sum("vllm:num_requests_running"),),
        "waiting_count": (metric_sum("vllm:num_requests_waiting"),),
        "kv_usage_fraction": (
            metric_sum("vllm:kv_cache_usage_perc"),
            metric_sum("vllm:gpu_cache_usage_perc"),
        ),
        "draft_acceptance_fraction": (metric_sum("vllm:spec_decode_draft_acceptance_rate"),),
        "preemption_count": (metric_sum("vllm:num_preemptions_total"),),
        "prefix_queries_tokens": (
            metric_sum("vllm:prefix_cache_queries_total"),
            metric_sum("vllm:gpu_prefix_cache_queries_total"),
        ),
        "prefix_hits_tokens": (
            metric_sum("vllm:prefix_cache_hits_total"),
            metric_sum("vllm:gpu_prefix_cache_hits_total"),
        ),
        "draft_tokens": (metric_sum("vllm:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (metric_sum("vllm:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (metric_sum("vllm:prompt_tokens_total"),),
        "output_tokens": (metric_sum("vllm:generation_tokens_total"),),
    }
)
