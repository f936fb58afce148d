"""TGI's metrics.

Source: https://huggingface.co/docs/text-generation-inference/reference/metrics (3.x)
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "running_count": (metric_sum("tgi_batch_current_size"),),
        "waiting_count": (metric_sum("tgi_queue_size"),),
        "accepted_draft_tokens": (metric_sum("tgi_request_skipped_tokens_sum"),),
        "prompt_tokens": (metric_sum("tgi_request_input_length_sum"),),
        "output_tokens": (metric_sum("tgi_request_generated_tokens_sum"),),
    }
)
