"""MLC LLM's metrics; it tells neither queue nor batch.

Source: `EngineMetrics` of cpp/serve/metrics.cc and of python/mlc_llm/serve/engine_base.py, whose
`prometheus_text` writes names without a prefix and a tab before the value.
"""

from __future__ import annotations

from types import MappingProxyType

from servetune.engines.metric_names import MetricNames, metric_sum

METRICS: MetricNames = MappingProxyType(
    {
        "prompt_tokens": (metric_sum("prompt_tokens_sum"),),
        "output_tokens": (metric_sum("completion_tokens_sum"),),
    }
)
