"""Results and Metadata: the two JSON objects of a trial's record, with typed attributes.

A record keeps both exactly as they were written, order and unknown fields included, because
journals of other tools and of later releases are read and written again. Code reads them
through attributes: `results.output_throughput` is a number or `None`. The fields keep
llm-optimizer's names in JSON; an attribute is named otherwise where its unit or noun is not
in that name.
"""

from __future__ import annotations

from typing import Any, Generic, NoReturn, Self, TypeVar, overload

import msgspec

T = TypeVar("T")


class _Field(Generic[T]):
    """Attribute that reads one member of a JSON object.

    `None` where the member is absent, null, or of another type, as foreign journals may have it.
    """

    def __init__(self, kind: type[T], name: str = "") -> None:
        self._kind = kind
        self._name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._name or name

    @overload
    def __get__(self, fields: None, owner: type) -> Self: ...
    @overload
    def __get__(self, fields: _JsonFields, owner: type) -> T | None: ...
    def __get__(self, fields: _JsonFields | None, owner: type) -> Self | T | None:
        if fields is None:
            return self
        value = fields.get(self._name)
        if value is None:
            return None
        try:
            return msgspec.convert(value, self._kind, strict=False)
        except msgspec.ValidationError:
            return None


class _JsonFields(dict[str, Any]):
    """JSON object that does not change."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} of a record do not change; make a new object")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), (dict(self),)  # pickle would set items one by one

    def with_fields(self, **fields: object) -> Self:
        """Copy with further or other members."""
        return type(self)({**self, **fields})


class SaturationNote(msgspec.Struct, frozen=True):
    """Verdict on whether the server could follow the arrivals of an open loop."""

    saturated: bool
    words: str = ""


class UntilNote(msgspec.Struct, frozen=True):
    """Precision that a run was to reach: its label, and how narrow the interval became."""

    label: str = ""
    reached: bool = False
    relative_half_width: float | None = None


class Results(_JsonFields):
    """Results of a trial; empty for a trial that failed.

    `docs/reference/metrics.md` defines each field; percentiles are read by name
    (`results["p99_ttft_ms"]`), as constraints choose which there are.
    """

    backend = _Field(str)
    dataset_name = _Field(str)
    request_rate = _Field(float)
    max_concurrency = _Field(int)
    duration_s = _Field(float, "duration")
    completed = _Field(int)
    failed = _Field(int)
    error_rate = _Field(float)
    failures = _Field(list[dict[str, Any]])
    total_input_tokens = _Field(int)
    total_output_tokens = _Field(int)
    request_throughput = _Field(float)
    input_throughput = _Field(float)
    output_throughput = _Field(float)
    total_throughput = _Field(float)
    output_throughput_per_gpu = _Field(float)
    goodput = _Field(float)
    goodput_fraction = _Field(float)
    mean_ttft_ms = _Field(float)
    median_ttft_ms = _Field(float)
    mean_tpot_ms = _Field(float)
    mean_itl_ms = _Field(float)
    mean_e2e_latency_ms = _Field(float)
    median_e2e_latency_ms = _Field(float)
    p99_e2e_latency_ms = _Field(float)
    quantiles = _Field(dict[str, dict[str, float | None]])
    intervals = _Field(dict[str, list[float | None]])
    concurrency = _Field(float)
    steady = _Field(dict[str, Any])
    littles_law = _Field(dict[str, Any])
    from_sent = _Field(dict[str, Any])
    wait_before_send_ms = _Field(dict[str, Any])
    token_check = _Field(dict[str, Any])
    wrong_length = _Field(dict[str, Any])
    not_sent = _Field(int)
    interrupted = _Field(bool)
    ended_reason = _Field(str)
    aborted_reason = _Field(str)
    saturation = _Field(SaturationNote)
    until = _Field(UntilNote)
    instrument = _Field(dict[str, Any])
    server = _Field(dict[str, Any])
    startup = _Field(dict[str, Any])
    server_ready_s = _Field(float)
    devices = _Field(list[int])
    prepared = _Field(dict[str, Any])
    prefix_cache = _Field(str)
    simulated_speed = _Field(float)
    compat = _Field(dict[str, Any])
    sagemaker = _Field(dict[str, Any])
    cost_per_million_tokens_usd = _Field(float, "cost_per_million_tokens")


class Metadata(_JsonFields):
    """Metadata of a trial: the machine, the model and the load that it is about."""

    model = _Field(str, "model_tag")
    engine = _Field(str, "framework")
    gpu_type = _Field(str)
    gpu_count = _Field(int)
    gpus_used = _Field(int)
    instance_type = _Field(str)
    price_per_hour_usd = _Field(float)
    price_source = _Field(str)
    slo = _Field(list[str])
    server_cmd = _Field(str)
    server_env = _Field(list[str])
    calibration = _Field(str)
    input_tokens = _Field(float)
    output_tokens = _Field(float)
    dataset_imitated = _Field(bool)
    seed = _Field(int)
    urls = _Field(list[str])
