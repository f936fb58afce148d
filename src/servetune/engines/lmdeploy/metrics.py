"""LMDeploy's metrics.

Source: lmdeploy/metrics/loggers.py (0.18); its rate of prefix hits is a gauge over all time.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "running_count": (metric_sum("lmdeploy:num_requests_running"),),
        "waiting_count": (metric_sum("lmdeploy:num_requests_waiting"),),
        "kv_usage_fraction": (metric_sum("lmdeploy:gpu_cache_usage_perc"),),
        "draft_tokens": (metric_sum("lmdeploy:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (metric_sum("lmdeploy:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (metric_sum("lmdeploy:prompt_tokens_total"),),
        "output_tokens": (metric_sum("lmdeploy:generation_tokens_total"),),
    }
)
