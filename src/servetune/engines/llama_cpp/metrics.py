"""llama.cpp's metrics.

Source: tools/server/server-task.cpp (0.5) and a scrape of it; needs --metrics. Its prompt tokens
are without those found in the cache.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "running_count": (metric_sum("llamacpp:requests_processing"),),
        "waiting_count": (metric_sum("llamacpp:requests_deferred"),),
        "prefix_queries_tokens": (
            metric_sum("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ),
        "prefix_hits_tokens": (metric_sum("llamacpp:prompt_tokens_cached_total"),),
        "draft_tokens": (metric_sum("llamacpp:spec_decode_num_draft_tokens_total"),),
        "accepted_draft_tokens": (metric_sum("llamacpp:spec_decode_num_accepted_tokens_total"),),
        "prompt_tokens": (
            metric_sum("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ),
        "output_tokens": (metric_sum("llamacpp:tokens_predicted_total"),),
    }
)
