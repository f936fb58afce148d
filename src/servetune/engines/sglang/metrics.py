"""SGLang's metrics.

Source: python/sglang/srt/observability/metrics_collector.py (0.5); needs --enable-metrics.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "running_count": (metric_sum("sglang:num_running_reqs"),),
        "waiting_count": (metric_sum("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs"),),
        "kv_usage_fraction": (metric_sum("sglang:token_usage"),),
        "draft_acceptance_fraction": (metric_sum("sglang:spec_accept_rate"),),
        "preemption_count": (metric_sum("sglang:num_retracted_requests_total"),),
        "prefix_queries_tokens": (
            metric_sum("sglang:prefill_effective_tokens_total"),
            metric_sum("sglang:prompt_tokens_total"),
        ),
        "prefix_hits_tokens": (
            metric_sum(
                "sglang:prefill_effective_tokens_total",
                modes=("device_hit", "host_hit", "storage_hit"),
            ),
            metric_sum("sglang:cached_tokens_total"),
        ),
        "prompt_tokens": (metric_sum("sglang:prompt_tokens_total"),),
        "output_tokens": (metric_sum("sglang:generation_tokens_total"),),
    }
)
