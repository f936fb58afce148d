"""TrialRecord: one line of a journal, and all that is kept of a trial.

Journals that users already have (llm-optimizer's) are records without servetune's further fields.
`Results` and `Metadata` keep their JSON objects exactly as they were written, order and unknown
fields included. Code reads them through attributes: `results.output_throughput` is a number or
`None`. The fields keep llm-optimizer's names in JSON; an attribute is named otherwise where its
unit or noun is not in that name.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, overload

import msgspec

from servetune import __version__
from servetune.decoding import ready
from servetune.errors import SchemaTooNew, StoreError, UnknownName
from servetune.json_value import JsonObject
from servetune.metrics import Constraint, constraint_from_json
from servetune.plan.plan import Plan
from servetune.secret import redacted

#: Version of what this module writes. Records without the field are from other tools.
SCHEMA = 1

Status = Literal["ok", "failed"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a trial has no result.

    Attributes:
        kind: Cause in one word: `does_not_fit`, `died`, `not_ready`, `out_of_memory`,
            `port_busy`, `load`, `refused`, `settings` or `error`; `quarantined` where other
            trials broke the server, `trial_time` where the trial's time was over without an
            answer, `budget` where the study's time or money was over before this trial.
        reason: Reason in one line.
        log_tail: Last lines of the server's log, where there was one.
    """

    kind: str
    reason: str
    log_tail: str = ""


class PredictionInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on predicted times between which measured ones are expected.

    Attributes:
        low_factor: Lower factor on the time per token and the end-to-end latency; a rate is divided
            by it.
        high_factor: Upper factor likewise.
        ttft_low_factor: Lower factor on the time to the first token.
        ttft_high_factor: Upper factor likewise.
        level: Share of measured times that are expected between them.
        extrapolation: Kind of extrapolation beyond measured runs: `known`, `silicon`, `network`,
            `anchored`.
        basis: Source of the factors, in words.
        accuracy: Errors of predictions for measured runs like it, in words.
    """

    low_factor: float
    high_factor: float
    ttft_low_factor: float
    ttft_high_factor: float
    level: float = 0.9
    extrapolation: str = ""
    basis: str = ""
    accuracy: str = ""

    def ends(self, metric: str, value: float) -> tuple[float, float] | None:
        """Ends of the interval of a metric's predicted value; `None` of what has no interval."""
        if metric == "ttft":
            return value * self.ttft_low_factor, value * self.ttft_high_factor
        if metric in ("tpot", "itl", "e2e_latency") or metric.startswith("cost_per_million"):
            return value * self.low_factor, value * self.high_factor
        if "throughput" in metric:
            return value / self.high_factor, value / self.low_factor
        return None


class TrialConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a trial, in the words of the engine and of the load client."""

    client_args: JsonObject = {}
    server_args: JsonObject = {}
    server_cmd_args: list[str] = []


T = TypeVar("T")


class _Field(Generic[T]):
    """Attribute that reads one member of a JSON object.

    `None` where the member is absent, null, or of another type, as foreign journals may have it.
    """

    def __init__(self, kind: type[T], name: str = "") -> None:
        self.kind = kind
        self.name = name

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, fields: None, owner: type) -> Self: ...
    @overload
    def __get__(self, fields: _JsonFields, owner: type) -> T | None: ...
    def __get__(self, fields: _JsonFields | None, owner: type) -> Self | T | None:
        if fields is None:
            return self
        value = fields.get(self.name)
        if value is None:
            return None
        try:
            return msgspec.convert(value, self.kind, strict=False)
        except msgspec.ValidationError:
            return None


class _JsonFields(JsonObject):
    """JSON object that does not change."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} of a record do not change; make a new object")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _refuse
    __ior__ = _refuse

    def __reduce__(self) -> tuple[type, tuple[JsonObject]]:
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
    failures = _Field(list[JsonObject])
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
    correlated = _Field(list[str])
    concurrency = _Field(float)
    steady = _Field(JsonObject)
    littles_law = _Field(JsonObject)
    from_sent = _Field(JsonObject)
    wait_before_send_ms = _Field(JsonObject)
    token_check = _Field(JsonObject)
    wrong_length = _Field(JsonObject)
    not_sent = _Field(int)
    interrupted = _Field(bool)
    ended_reason = _Field(str)
    aborted_reason = _Field(str)
    saturation = _Field(SaturationNote)
    until = _Field(UntilNote)
    instrument = _Field(JsonObject)
    server = _Field(JsonObject)
    startup = _Field(JsonObject)
    server_ready_s = _Field(float)
    devices = _Field(list[int])
    prepared = _Field(JsonObject)
    prefix_cache = _Field(str)
    simulated_speed = _Field(float)
    compat = _Field(JsonObject)
    sagemaker = _Field(JsonObject)
    cost_per_million_tokens_usd = _Field(float, "cost_per_million_tokens")


class Metadata(_JsonFields):
    """Metadata of a trial: the machine, the model and the load that it is about."""

    model = _Field(str, "model_tag")
    engine = _Field(str, "framework")
    gpu_type = _Field(str)
    gpu_count = _Field(int)
    gpu_memory_bytes = _Field(float)
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
    objective = _Field(str)
    ladder = _Field(bool)
    urls = _Field(list[str])
    job = _Field(str)
    job_arn = _Field(str)


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, as the journal keeps it.

    Attributes:
        config: Settings of the server and of the load, as they were swept.
        results: Results of the trial; empty if it failed.
        cmd: Exact server command line.
        constraints: Constraints of the study, in milliseconds.
        metadata: Machine, model and load of the trial.
        key: Identity of the trial; equal keys are the same trial. See `trial_key`.
        status: Status: whether there are results.
        simulated: Whether no real server answered.
        plan: Plan that was served; `None` in journals of other tools.
        predicted: Results that the estimator or simulator predicts, where the trial itself
            was measured.
        interval: Interval of the predicted results: of `results` where the trial is simulated, else
            of `predicted`. Sampling intervals of measured metrics are in `results.intervals`.
        failure: Reason why there are no results.
        server_log: Path of the server's log, beside the journal.
        provenance: Time, place, releases and seed; empty for a simulated trial, which depends
            on nothing but what the metadata says.
        servetune_schema: Version of the record's form; `None` in journals of other tools.
    """

    config: TrialConfig
    results: Results = Results()
    cmd: str = ""
    constraints: list[JsonObject] = []
    metadata: Metadata = Metadata()
    key: str = ""
    status: Status = "ok"
    simulated: bool = False
    plan: Plan | None = None
    predicted: JsonObject | None = None
    interval: PredictionInterval | None = None
    failure: Failure | None = None
    server_log: str | None = None
    provenance: JsonObject = {}
    servetune_schema: int | None = None

    def __post_init__(self) -> None:
        """Let callers give plain objects."""
        for name, kind in (("results", Results), ("metadata", Metadata)):
            fields = getattr(self, name)
            if not isinstance(fields, kind):
                msgspec.structs.force_setattr(self, name, kind(fields))

    def to_json(self) -> bytes:
        """Line of UTF-8 JSON without its end; non-finite numbers become null.

        Text that looks like a credential, in a command line, a setting or a log, is taken
        out: journals are shared.
        """
        plain = msgspec.json.decode(msgspec.json.encode(self))
        return msgspec.json.encode(redacted(plain))

    def without_secrets(self) -> TrialRecord:
        """The record as its journal has it, for whatever else is made of it."""
        return record_from_json(msgspec.json.decode(self.to_json()))

    def limits(self) -> tuple[Constraint, ...]:
        """Constraints of the study; those on metrics that servetune does not know are left out."""
        known = []
        for raw in self.constraints:
            try:
                known.append(constraint_from_json(raw))
            except UnknownName:  # another tool's spelling, still shown as it stands
                continue
        return tuple(known)


def _object(kind: type, raw: object) -> object:
    """Results or metadata out of decoded JSON."""
    if kind in (Results, Metadata) and isinstance(raw, dict):
        return kind(raw)
    raise msgspec.ValidationError(f"{kind.__name__} is an object, not a {type(raw).__name__}")


def trial_key(
    *,
    model: str,
    engine: str,
    server_args: Mapping[str, object],
    client_args: Mapping[str, object],
    node: str = "",
    simulated: bool = False,
) -> str:
    """Identity of a trial: sixteen hex digits, equal for equal settings on an equal machine."""
    identity = [
        model,
        engine,
        node,
        simulated,
        sorted(server_args.items()),
        sorted(client_args.items()),
    ]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def _checked(raw: Any) -> JsonObject:
    """Decoded record in which a known field of the wrong kind is null.

    Another tool's journal may hold anything under our names; nothing that reads a record has to
    expect that.
    """
    checked = dict(raw)
    for name, kind in (("results", Results), ("metadata", Metadata)):
        members = raw.get(name)
        if isinstance(members, dict):
            wrong = dict.fromkeys(_wrong_fields(kind, members))
            if wrong:
                checked[name] = {**members, **wrong}
    for name in ("provenance", "metadata"):
        members = checked.get(name)
        if isinstance(members, dict) and not is_version(members.get("engine_version")):
            checked[name] = {**members, "engine_version": None}
    return checked


def _wrong_fields(kind: type[_JsonFields], members: JsonObject) -> Iterator[str]:
    """Names of the members that do not have the type of their field."""
    types = _field_types(kind)
    for name, value in members.items():
        wanted = types.get(name)
        if value is None:
            continue
        if isinstance(value, int) and abs(value) > _LARGEST:
            yield name
        elif wanted is None:
            if not isinstance(value, int | float) and _STATISTIC.match(name):
                yield name
        elif type(value) is not wanted:
            try:
                msgspec.convert(value, ready(wanted), strict=False)
            except msgspec.ValidationError:
                yield name


@cache
def _field_types(kind: type[_JsonFields]) -> dict[str, Any]:
    """Types of the known fields of a kind, by their names in JSON."""
    own = (each for each in vars(kind).values() if isinstance(each, _Field))
    return {each.name: _STRICTER.get(each.name, each.kind) for each in own}


#: Largest count or time that anything here can have; no float holds one of 400 digits.
_LARGEST = 1 << 63
#: Latencies: one number for each statistic.
_STATISTIC = re.compile(r"(?:mean|median|std|p\d[\d.]*)_(?:ttft|tpot|itl|e2e_latency)_ms\Z")
_VERSION = re.compile(r"v?\d[0-9A-Za-z]*(?:[.+_-][0-9A-Za-z]+)*\Z")


def is_version(value: object) -> bool:
    """Whether a value can be the version of a program, as `0.32.0rc1+cu129`, or is none."""
    return value is None or (
        isinstance(value, str) and len(value) <= 64 and _VERSION.match(value) is not None
    )


class _FailedKind(msgspec.Struct):
    """Failed requests of one kind."""

    outcome: str
    count: int
    sample: str = ""
    status: int | None = None
    samples: list[str] = []


#: Types of fields whose members are read as well.
_STRICTER: dict[str, Any] = {
    "failures": list[_FailedKind],
    "server": dict[str, Any],
    "token_check": dict[str, Any],
    "wrong_length": dict[str, Any],
}


def record_from_json(raw: object, clean: Callable[[object], object] = redacted) -> TrialRecord:
    """Record out of decoded JSON, servetune's own or another tool's, without its credentials.

    Args:
        raw: Decoded JSON.
        clean: Function that removes credentials; `secret.redactor()` for many records.

    Raises:
        SchemaTooNew: A newer servetune wrote it.
        StoreError: It is not a trial record.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("config"), dict) or "results" not in raw:
        raise StoreError("not a trial record: it needs 'config' and 'results'")
    schema = raw.get("servetune_schema") or 0
    if isinstance(schema, int) and schema > SCHEMA:
        raise SchemaTooNew(schema, SCHEMA)
    try:
        record = msgspec.convert(_checked(clean(raw)), ready(TrialRecord), dec_hook=_object)
    except msgspec.ValidationError as error:
        raise StoreError(f"not a trial record: {error}") from None
    if record.key:
        return record
    metadata = record.metadata
    key = trial_key(
        model=metadata.model or "",
        engine=metadata.engine or record.results.backend or "",
        server_args=record.config.server_args,
        client_args=record.config.client_args,
        node=f"{metadata.get('gpu_count', '')}x{metadata.get('gpu_type', '')}",
    )
    return msgspec.structs.replace(record, key=key)


def now_utc() -> str:
    """Wall-clock time to the millisecond, as ISO 8601 with its zone."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def provenance(*, started_at: str, seed: int, engine_version: str | None) -> JsonObject:
    """Facts that are needed to believe a measurement, or to repeat it."""
    return {
        "started_at": started_at,
        "ended_at": now_utc(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "servetune": __version__,
        "engine_version": engine_version,
        "seed": seed,
    }
