"""What a server says about itself: its models, and its Prometheus metrics before and after."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

import msgspec

from servetune.errors import LoadError

__all__ = [
    "Samples",
    "ServerMetrics",
    "models_are_simulated",
    "parse_metrics",
    "parse_models",
    "parse_speed",
    "server_metrics",
]

Samples = Mapping[str, float]
"""Values by name and labels, written as the server writes them: `name{label="value"}`."""

_LINE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
        (?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?
        \s+(?P<value>\S+)""",
    re.VERBOSE,
)


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own account of a run; `None` where it does not say.

    Counters are differences between the first and the last scrape, gauges the largest
    value that a scrape saw, so a peak between two scrapes is missed. Several engines behind
    one address (data parallel) are added up, except for the cache's use.

    Attributes:
        prefix_queries_tokens: Prompt tokens that were looked up in the prefix cache.
        prefix_hits_tokens: Those that were found there.
        max_kv_usage_fraction: Of the fullest engine.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefix_queries_tokens: int | None = None
    prefix_hits_tokens: int | None = None
    preemption_count: int | None = None
    max_running_count: int | None = None
    max_waiting_count: int | None = None
    max_kv_usage_fraction: float | None = None

    @property
    def prefix_hit_fraction(self) -> float | None:
        if not self.prefix_queries_tokens or self.prefix_hits_tokens is None:
            return None
        return self.prefix_hits_tokens / self.prefix_queries_tokens


def parse_metrics(text: str) -> dict[str, float]:
    r"""Samples of Prometheus' text format; comments and lines of other formats are passed over.

    Example:
        >>> parse_metrics('# TYPE a gauge\na{engine="0"} 2\nb 1e3 1700000000\n')
        {'a{engine="0"}': 2.0, 'b': 1000.0}
    """
    samples = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        samples[match["name"] + (match["labels"] or "")] = value
    return samples


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_models(text: str) -> tuple[str, ...]:
    """Names in an answer of `/v1/models`."""
    try:
        return tuple(model.id for model in msgspec.json.decode(text, type=_Models).data)
    except msgspec.MsgspecError as error:
        raise LoadError(f"the server's list of models cannot be read: {error}") from error


def models_are_simulated(text: str) -> bool:
    """Whether an answer of `/v1/models` says that servetune's simulated engine gave it."""
    with contextlib.suppress(msgspec.MsgspecError):
        models = msgspec.json.decode(text, type=_Models).data
        return any(model.owned_by == "servetune-simulated" for model in models)
    return False


class _Version(msgspec.Struct):
    speed: float = 1.0


def parse_speed(text: str) -> float:
    """How many of the engine's seconds pass in one, of an answer of `/version`."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=_Version).speed
    return 1.0


def server_metrics(before: Samples, after: Samples, *between: Samples) -> ServerMetrics:
    """What happened between two scrapes, in vLLM's names (0.6 to 0.32).

    Args:
        before: Scraped before the load.
        after: Scraped when it was over.
        between: Scraped meanwhile; gauges are only as true as these are frequent.
    """

    def counted(*names: str) -> int | None:
        ends = [_total(after, name) for name in names]
        for name, end in zip(names, ends, strict=True):
            if end is not None:
                return round(end - (_total(before, name) or 0.0))
        return None

    def largest(name: str) -> int | None:
        seen = [_total(samples, name) for samples in (before, *between, after)]
        return max((round(value) for value in seen if value is not None), default=None)

    return ServerMetrics(
        prompt_tokens=counted("vllm:prompt_tokens_total"),
        output_tokens=counted("vllm:generation_tokens_total"),
        prefix_queries_tokens=counted(
            "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
        ),
        prefix_hits_tokens=counted(
            "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"
        ),
        preemption_count=counted("vllm:num_preemptions_total"),
        max_running_count=largest("vllm:num_requests_running"),
        max_waiting_count=largest("vllm:num_requests_waiting"),
        max_kv_usage_fraction=_fullest((before, *between, after)),
    )


def _of_name(samples: Samples, name: str) -> list[float]:
    return [value for key, value in samples.items() if key.partition("{")[0] == name]


def _total(samples: Samples, name: str) -> float | None:
    values = _of_name(samples, name)
    return sum(values) if values else None


def _fullest(scrapes: tuple[Samples, ...]) -> float | None:
    names = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    seen = [value for samples in scrapes for name in names for value in _of_name(samples, name)]
    return max(seen, default=None)
