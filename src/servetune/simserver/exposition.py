"""`/metrics` in Prometheus' text format, under the names of the engine that is simulated.

Engines with a table of names (`engines.metrics.Exposition`) have what of it is counted here;
others, and plans of the default engine, have all that the default engine shows.

Seconds under its names are the engine's own, as a real engine would have told them: at a
speed-up a client measures that much less. What belongs to the simulation alone is under
`servetune_simulated_`, in real seconds. Names, types and labels are those that its
release of November 2026 showed; what cannot happen here, such as a cache of images, stays at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from servetune.bundled import bundled
from servetune.engines import DEFAULT_ENGINE, engine
from servetune.engines.metrics import Exposition, exposition_of, metric_prefix
from servetune.simserver.engine_metrics import EngineMetrics, Histogram
from servetune.simserver.service import Service


class ClockStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Delay of the simulation behind its own clock.

    Attributes:
        behind_s: Real seconds by which the last tokens left too late.
        most_behind_s: The worst since the start.
        started_unix_s: Time at which its counters began.
    """

    speed: float
    behind_s: float
    most_behind_s: float
    started_unix_s: float


def exposition(service: Service, every: Sequence[EngineMetrics], clockwork: ClockStatus) -> str:
    """All samples, one rank of the engine after another."""
    lines = list(_own_lines(clockwork, every))
    named = exposition_of(service.plan.engine)
    if named is not None:
        return "\n".join([*lines, *_named_lines(named, service, every)]) + "\n"
    model = {"model_name": service.serving.names[0]}
    began = clockwork.started_unix_s
    lines += _family("cache_config_info", "gauge", _HELP["cache_config_info"], began)
    for number in range(len(every)):
        labels = {"engine": str(number), **_cache_config(service)}
        lines.append(_sample("cache_config_info", labels, 1.0))
    ranks = [({"engine": str(n), **model}, metrics) for n, metrics in enumerate(every)]
    caching = service.config.prefix_caching
    families = [(labels, _families(metrics, caching=caching)) for labels, metrics in ranks]
    for name, (kind, label, _) in families[0][1].items():
        full = f"{name}_total" if kind == "counter" else name  # as prometheus_client has it
        series = [
            ({**labels, **({label: value} if label else {})}, number)
            for labels, of_rank in families
            for value, number in of_rank[name][2].items()
        ]
        lines += _family(full, kind, _HELP[name], began, [labels for labels, _ in series])
        lines += (_sample(full, labels, number) for labels, number in series)
    limits = engine(service.plan.engine).behaviour.admission
    refused = {each.setting: every[0].rejections.get(each.setting, 0) for each in limits}
    reasons = [{**model, "reason": setting} for setting in refused]
    rejections = "admission_rejections"
    lines += _family(f"{rejections}_total", "counter", _HELP[rejections], began, reasons)
    lines += (
        _sample(f"{rejections}_total", labels, refused[labels["reason"]]) for labels in reasons
    )
    for name in every[0].histograms:
        lines += _family(name, "histogram", _HELP[name], began, [labels for labels, _ in ranks])
        for labels, metrics in ranks:
            lines += _histogram_lines(f"{_PREFIX}{name}", labels, metrics.histograms[name])
    return "\n".join(lines) + "\n"


#: Beginning of the names of metrics, those of the engine that is simulated.
_PREFIX = metric_prefix(DEFAULT_ENGINE)

_HELP: Mapping[str, str] = bundled("simserver", "metrics_help.toml")

_Family = tuple[str, str | None, Mapping[str, float]]


def _families(metrics: EngineMetrics, *, caching: bool) -> dict[str, _Family]:
    """Gauges and counters: type, name of a further label, and a value for each of its values."""
    looked_up, hits = (metrics.prefix_queries_tokens if caching else 0), metrics.prefix_hits_tokens
    brought, cached = metrics.brought_tokens, metrics.cached_tokens
    computed = metrics.prompt_tokens - cached - brought
    waiting = {"capacity": metrics.waiting, "deferred": 0}
    sleep = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    source = {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": brought}
    tier = {"device": hits, "host": 0, "p2p": brought, "disk": 0, "external_unspecified": 0}
    return {
        **(_drafted(metrics) if metrics.accepted else {}),
        "estimated_flops_per_gpu": _counter(0),
        "estimated_read_bytes_per_gpu": _counter(0),
        "estimated_write_bytes_per_gpu": _counter(0),
        "num_requests_running": _gauge(metrics.running),
        "num_requests_waiting": _gauge(metrics.waiting),
        "num_requests_waiting_by_reason": ("gauge", "reason", waiting),
        "engine_sleep_state": ("gauge", "sleep_state", sleep),
        "kv_cache_usage_perc": _gauge(metrics.kv_usage_fraction),
        "prefix_cache_queries": _counter(looked_up),
        "prefix_cache_hits": _counter(hits),
        "external_prefix_cache_queries": _counter(brought),
        "external_prefix_cache_hits": _counter(brought),
        "mm_cache_queries": _counter(0),
        "mm_cache_hits": _counter(0),
        "num_preemptions": _counter(metrics.preemptions),
        "prompt_tokens": _counter(metrics.prompt_tokens),
        "prompt_tokens_by_source": ("counter", "source", source),
        "prompt_tokens_cached": _counter(cached + brought),
        "prompt_tokens_cached_by_source": ("counter", "source", tier),
        "generation_tokens": _counter(metrics.generation_tokens),
        "request_success": ("counter", "finished_reason", metrics.finished),
    }


def _drafted(metrics: EngineMetrics) -> dict[str, _Family]:
    """Families that are added where drafts are verified."""
    by_place = {str(place): count for place, count in enumerate(metrics.accepted)}
    return {
        "spec_decode_num_drafts": _counter(metrics.drafts),
        "spec_decode_num_draft_tokens": _counter(metrics.drafts * len(metrics.accepted)),
        "spec_decode_num_accepted_tokens": _counter(sum(metrics.accepted)),
        "spec_decode_num_accepted_tokens_per_pos": ("counter", "position", by_place),
    }


def _gauge(value: float) -> _Family:
    return "gauge", None, {"": value}


def _counter(value: float) -> _Family:
    return "counter", None, {"": value}


def _family(
    name: str, kind: str, text: str, began_unix_s: float, series: Sequence[Mapping[str, str]] = ()
) -> Iterator[str]:
    """Lines before a family's samples, with the time at which counting began."""
    if kind != "gauge":
        created = f"{name.removesuffix('_total') if kind == 'counter' else name}_created"
        yield from (f"# HELP {_PREFIX}{created} {text}", f"# TYPE {_PREFIX}{created} gauge")
        yield from (_sample(created, labels, began_unix_s) for labels in series)
    yield from (f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}")


def _histogram_lines(name: str, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    ends = [*(f"{float(bound)!r}" for bound in histogram.bounds), "+Inf"]
    total = 0
    for end, total in zip(ends, accumulate(histogram.counts), strict=True):
        yield _sample_line(f"{name}_bucket", {**labels, "le": end}, total)
    yield _sample_line(f"{name}_count", labels, total)
    yield _sample_line(f"{name}_sum", labels, histogram.sum)


def _cache_config(service: Service) -> dict[str, str]:
    config, plan = service.config, service.plan
    tokens = config.capacity_blocks * config.block_tokens
    values = {
        "block_size": config.block_tokens,
        "cache_dtype": plan.kv_cache_dtype,
        "enable_prefix_caching": bool(plan.prefix_caching),
        "gpu_memory_utilization": plan.gpu_memory_fraction,
        "kv_cache_max_concurrency": tokens / service.serving.max_model_len,
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": config.capacity_blocks,
    }
    return {name: str(value) for name, value in values.items()}


def _named_lines(
    named: Exposition, service: Service, every: Sequence[EngineMetrics]
) -> Iterator[str]:
    """Samples under the names of an engine that has a table of them."""
    labels = dict(named.labels)
    if named.model_label:
        labels[named.model_label] = service.serving.names[0]
    ranks = [
        ({**labels, named.rank_label: str(number)}, (metrics,))
        for number, metrics in enumerate(every)
    ]
    series = ranks if named.rank_label else [(labels, tuple(every))]
    for kind, metrics in (("gauge", named.gauges), ("counter", named.counters)):
        for name, value in metrics.items():
            yield f"# TYPE {name} {kind}"
            shared = max if value.endswith("_fraction") else sum
            for of_series, ranks_of_it in series:
                number = shared(_value(each, value) for each in ranks_of_it)
                yield _sample_line(name, of_series, number)
    for name, histogram in named.histograms.items():
        yield f"# TYPE {name} histogram"
        for of_series, ranks_of_it in series:
            added = Histogram.added([each.histograms[histogram] for each in ranks_of_it])
            yield from _histogram_lines(name, of_series, added)


def _value(metrics: EngineMetrics, name: str) -> float:
    ended = sum(metrics.finished.values())
    sums = {"ended": ended, "received": ended + metrics.running + metrics.waiting}
    return float(sums[name] if name in sums else getattr(metrics, name))


def _own_lines(clockwork: ClockStatus, every: Sequence[EngineMetrics]) -> Iterator[str]:
    own = {
        ("speed", "gauge", "Seconds of the engine per second of real time."): clockwork.speed,
        ("behind_seconds", "gauge", "Lateness of the last tokens."): clockwork.behind_s,
        (
            "most_behind_seconds",
            "gauge",
            "Largest lateness of any tokens.",
        ): clockwork.most_behind_s,
        ("steps_total", "counter", "Forward passes."): float(sum(a.steps for a in every)),
    }
    for (name, kind, text), value in own.items():
        full = f"servetune_simulated_{name}"
        yield from (f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value!r}")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return _sample_line(f"{_PREFIX}{name}", labels, value)


def _sample_line(name: str, labels: Mapping[str, str], value: float) -> str:
    """Labels in the alphabet's order, as `prometheus_client` writes them."""
    pairs = ",".join(f"{label}={_quoted(labels[label])}" for label in sorted(labels))
    return f"{name}{{{pairs}}} {float(value)!r}" if pairs else f"{name} {float(value)!r}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
