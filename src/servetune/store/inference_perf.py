"""Reports of inference-perf as trial records: one record for each stage of its load.

inference-perf (kubernetes-sigs) writes a folder `reports-*/` with `stage_N_lifecycle_metrics.json`,
`summary_lifecycle_metrics.json`, `per_request_lifecycle_metrics.json` and `config.yaml`; all times
are in seconds. Read from its releases 0.2.0 to 0.7.0 and the sources after them:

    reportgen/base.py          fields of the reports; latencies count from sending
    main.py                    a concurrent stage gets rate = num_requests and duration = 1 s
    loadgen/load_timer.py      `constant` draws exponential gaps and stretches them to the duration
    loadgen/load_generator.py  a sweep replaces the stages; most requests in flight are
                               num_workers * worker_max_concurrency

Lengths are those that were measured, never those of the configuration: its keys may have been
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np

from servetune.decoding import ready
from servetune.engines import DEFAULT_ENGINE, ENGINES
from servetune.errors import StoreError
from servetune.json_value import JsonObject
from servetune.store.artifacts import read_json, require_regular
from servetune.store.inference_perf_config import Config, read_config
from servetune.store.schema import Failure, Metadata, Results, TrialConfig, TrialRecord, trial_key
from servetune.units import MS_PER_S
from servetune.workload.laws import Always, Table, format_length

#: Name of the client in records, `Results.backend`.
CLIENT = "inference-perf"

_STAGE = re.compile(r"(?P<prefix>(?:(?!adapter_).)*)stage_(?P<stage>\d+)_lifecycle_metrics\.json")
_WHOLE = re.compile(r"(?P<prefix>.*)(?:summary|per_request)_lifecycle_metrics\.json")

#: Factor by which times per token may fall below what end-to-end latencies and lengths imply.
#: Tokens counted twice give 2: releases before 0.6.0 did so with tokenizers that begin each chunk
#: with a special token (pull requests 410 and 566).
_UNDERSTATED = 1.5

#: Mean time from due to sent from which percentiles from sent are not those from due;
#: docs/loadgen.md of inference-perf asks for less.
_LATE_S = 0.010

_AS_WRITTEN = "give the folder of the report, reports-*/, as inference-perf wrote it"

Distribution: TypeAlias = dict[str, float | None]
"""Statistics by name: mean, min, max, median (p50 in early releases), p99."""


class Report(NamedTuple):
    """Records of a report, and what a reader must know beside them."""

    records: list[TrialRecord]
    notes: list[str]


class _LoadSummary(msgspec.Struct):
    count: int
    schedule_delay: Distribution | None = None
    requested_rate: float | None = None
    achieved_rate: float | None = None
    concurrency: int | None = None


class _Latency(msgspec.Struct):
    request_latency: Distribution | None
    time_per_output_token: Distribution | None = None
    time_to_first_token: Distribution | None = None
    inter_token_latency: Distribution | None = None


class _Throughput(msgspec.Struct):
    requests_per_sec: float
    output_tokens_per_sec: float
    input_tokens_per_sec: float


class _Successes(msgspec.Struct):
    """Answered requests; later releases have `*_tokens` as the server counted them."""

    count: int
    latency: _Latency
    throughput: _Throughput
    prompt_len: Distribution | None = None
    prompt_tokens: Distribution | None = None
    output_len: Distribution | None = None
    output_tokens: Distribution | None = None


class _Failures(msgspec.Struct):
    count: int = 0


class _StageReport(msgspec.Struct):
    load_summary: _LoadSummary
    successes: _Successes
    failures: _Failures


class _TokenTimes(msgspec.Struct):
    output_tokens: int | None = None
    output_token_times: list[float] = []
    server_usage: dict[str, Any] | None = None


class _Info(_TokenTimes):
    """Requests of early releases have the members of `response_metrics` here."""

    input_tokens: int | None = None
    response_metrics: _TokenTimes | None = None


class _Computed(msgspec.Struct):
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    inter_token_latencies: list[float] = []
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Request(msgspec.Struct):
    start_time: float
    end_time: float
    error: Any = None
    info: _Info | None = None
    computed_metrics: _Computed | None = None

    def times(self) -> _Computed:
        """Latencies and lengths, by the formulas of inference-perf where it did not write them."""
        info = self.info or _Info()
        answer = info.response_metrics or info
        usage = answer.server_usage or {}
        known = self.computed_metrics or _Computed()
        tokens = usage.get("completion_tokens") or answer.output_tokens or known.output_tokens
        at_s = answer.output_token_times
        several = len(at_s) > 1
        each = (at_s[-1] - at_s[0]) / (tokens - 1) if several and tokens and tokens > 1 else None
        return _Computed(
            time_to_first_token=at_s[0] - self.start_time if several else known.time_to_first_token,
            time_per_output_token=each if several else known.time_per_output_token,
            inter_token_latencies=(
                np.diff(at_s).tolist() if several else known.inter_token_latencies
            ),
            input_tokens=usage.get("prompt_tokens") or info.input_tokens or known.input_tokens,
            output_tokens=tokens,
        )


class _Files(NamedTuple):
    """Files of one run in a folder; `report_file_prefix` tells several runs apart."""

    folder: Path
    prefix: str

    def path(self, name: str) -> Path:
        return self.folder / f"{self.prefix}{name}"

    def stages(self) -> dict[int, Path]:
        """Files of the stages by their numbers, in their order."""
        found = (
            (match, path)
            for path in self.folder.iterdir()
            if (match := _STAGE.fullmatch(path.name)) and match["prefix"] == self.prefix
        )
        return dict(sorted((int(match["stage"]), path) for match, path in found))


def is_report(path: Path) -> bool:
    """Whether a path is a report of inference-perf: its folder, or a file of it by name."""
    if path.is_dir():
        return any(_prefix(each) is not None for each in path.iterdir())
    return _prefix(path) is not None


def read_report(path: Path) -> Report:
    """Records of a report: one of each stage, in their order.

    Args:
        path: Folder of the report; or the file of one stage, of which that stage is read; or
            its summary or its file of requests, which stand for the folder.

    Raises:
        StoreError: A file is broken, or the report does not say what its load was.
    """
    if path.is_dir():
        prefixes = sorted(
            {found for each in path.iterdir() if (found := _prefix(each)) is not None}
        )
        reports = [_read(_Files(path, prefix), None) for prefix in prefixes]
    else:
        require_regular(path)
        if not path.is_file():
            raise StoreError(f"{path} is not there", hint=_AS_WRITTEN)
        match = _STAGE.fullmatch(path.name)
        only = int(match["stage"]) if match else None
        reports = [_read(_Files(path.parent, _prefix(path) or ""), only)]
    return Report(
        [record for report in reports for record in report.records],
        list(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _prefix(path: Path) -> str | None:
    """Prefix of a file of a report; `None` of any other file."""
    match = _STAGE.fullmatch(path.name) or _WHOLE.fullmatch(path.name)
    return match["prefix"] if match else None


def _read(files: _Files, only: int | None) -> Report:
    """Records of one run, or of one of its stages."""
    config, notes = read_config(files.path("config.yaml"))
    stages = _stages(files, config, notes)
    lengths = _lengths(files, stages)
    records = []
    for number, report in stages.items():
        if only in (None, number):
            load = _load_of(number, report, config, files)
            records.append(_record(number, report, load | lengths, config))
            notes += _stage_notes(number, report, load.get("request_rate"))
    if config.load.type == "constant" and not all(_closed(r.config.client_args) for r in records):
        notes.insert(0, _EXPONENTIAL)
    return Report(records, notes)


def _stages(files: _Files, config: Config, notes: list[str]) -> dict[int, _StageReport]:
    """Reports of the stages by their numbers; where there are none, made from the requests."""
    stages = {number: _decoded(path, _StageReport) for number, path in files.stages().items()}
    requests = files.path("per_request_lifecycle_metrics.json")
    lacking = any("p99" not in (r.successes.latency.request_latency or {}) for r in stages.values())
    if stages and not (lacking and requests.is_file()):
        return stages
    if requests.is_file():
        loads = [stage.load_summary for stage in stages.values()] or _configured(config)
        of = _by_stage(_decoded(requests, list[_Request]), loads)
        if of is None:
            notes.append(
                f"note: the requests of {requests.name} cannot be told apart by stage; "
                "its latencies were not read"
            )
        elif stages:
            return {
                number: _completed(report, _summarized(load, entries))
                for (number, report), load, entries in zip(stages.items(), loads, of, strict=True)
            }
        else:
            pairs = zip(loads, of, strict=True)
            return {n: _summarized(load, entries) for n, (load, entries) in enumerate(pairs)}
    summary = files.path("summary_lifecycle_metrics.json")
    if not stages and summary.is_file() and len(config.stages) == 1:
        report = _decoded(summary, _StageReport)
        [load] = _configured(config)
        report.load_summary.requested_rate = load.requested_rate
        report.load_summary.concurrency = load.concurrency
        stages = {0: report}
    if not stages:
        raise StoreError(
            f"{files.folder} has no stage_N_lifecycle_metrics.json, so nothing says which load its "
            "results belong to",
            hint="run inference-perf with report.request_lifecycle.per_stage: true, or put the "
            "config.yaml of a run with one stage beside its summary",
        )
    return stages


def _configured(config: Config) -> list[_LoadSummary]:
    """Loads of the configured stages; none where a stage has no numbers for it."""
    loads = []
    for stage in config.stages:
        rate, count = stage.get("rate"), stage.get("num_requests")
        users = stage.get("concurrency_level") if config.concurrent else None
        if count is None and isinstance(rate, int | float):
            count = int(rate * (stage.get("duration") or 0))
        if not isinstance(count, int) or not (users or isinstance(rate, int | float)):
            return []
        loads.append(_LoadSummary(count=count, requested_rate=rate, concurrency=users))
    return loads


def _by_stage(
    requests: list[_Request], loads: Sequence[_LoadSummary]
) -> list[list[_Request]] | None:
    """Requests of each stage: one stage ends before the next begins, and no request names its own.

    `None` where their numbers are not those of the stages.
    """
    if not requests or len(requests) != sum(load.count for load in loads):
        return None
    requests = sorted(requests, key=lambda request: request.start_time)
    ends = np.cumsum([load.count for load in loads]).tolist()
    return [requests[end - load.count : end] for end, load in zip(ends, loads, strict=True)]


def _summarized(load: _LoadSummary, requests: list[_Request]) -> _StageReport:
    """Report of a stage by its requests, as inference-perf's `summarize_requests` makes it."""
    answered = [request for request in requests if request.error is None]
    times = [request.times() for request in answered]
    begin_s = min(request.start_time for request in requests)
    duration_s = max(max(request.end_time for request in requests) - begin_s, 1e-9)
    gaps = [gap for each in times for gap in each.inter_token_latencies]
    input_tokens = [each.input_tokens or 0 for each in times]
    output_tokens = [each.output_tokens or 0 for each in times]
    return _StageReport(
        load_summary=load,
        successes=_Successes(
            count=len(answered),
            latency=_Latency(
                request_latency=_distribution([r.end_time - r.start_time for r in answered]),
                time_per_output_token=_distribution([t.time_per_output_token for t in times]),
                time_to_first_token=_distribution([t.time_to_first_token for t in times]),
                inter_token_latency=_distribution(gaps),
            ),
            throughput=_Throughput(
                requests_per_sec=len(answered) / duration_s,
                output_tokens_per_sec=sum(output_tokens) / duration_s,
                input_tokens_per_sec=sum(input_tokens) / duration_s,
            ),
            prompt_len=_distribution(input_tokens),
            output_len=_distribution(output_tokens),
        ),
        failures=_Failures(len(requests) - len(answered)),
    )


def _distribution(values: Sequence[float | None]) -> Distribution | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    percents = (1, 5, 10, 25, 50, 75, 90, 95, 99)
    points = dict(zip(percents, np.percentile(known, percents).tolist(), strict=True))
    named = {"median" if p == 50 else f"p{p}": value for p, value in points.items()}
    return {"mean": float(np.mean(known)), "min": min(known), "max": max(known), **named}


def _completed(report: _StageReport, computed: _StageReport) -> _StageReport:
    """Report with the percentiles that it lacks from its requests."""
    own, further = report.successes.latency, computed.successes.latency
    for name in own.__struct_fields__:
        if getattr(further, name):
            setattr(own, name, {**getattr(further, name), **(getattr(own, name) or {})})
    return report


def _load_of(number: int, report: _StageReport, config: Config, files: _Files) -> JsonObject:
    """Client arguments of a stage's load: users of a closed loop, or a rate."""
    load, kind = report.load_summary, config.load.type
    stage = config.stages[number] if number < len(config.stages) else {}
    users = load.concurrency or (stage.get("concurrency_level") if config.concurrent else None)
    if users:
        return {"max_concurrency": int(users), "num_prompts": load.count}
    rate = load.requested_rate
    if "session" in str(kind) or "replay" in str(kind):
        raise StoreError(
            f"{files.folder} is a run of load.type {kind}: its requests came by a trace, not at a "
            "rate or from users",
            hint="simulate the trace itself with servetune simulate --trace FILE",
        )
    if isinstance(stage.get("rate"), str):
        raise StoreError(
            f"the rate of stage {number} of {files.folder} changes over time: {stage['rate']}",
            hint="simulate it with servetune simulate --arrivals (docs/guides/arrivals.md)",
        )
    if not rate or config.concurrent or (load.count == rate and not stage):
        raise StoreError(
            f"stage {number} of {files.folder} does not say its load: no rate, and no number of "
            "users",
            hint="put the config.yaml of the run beside it, with load.type and load.stages",
        )
    cap = config.most_in_flight
    known = rate if kind == "constant" else _sent_per_s(load)
    arguments: JsonObject = {"request_rate": known or rate, "num_prompts": load.count}
    if known:
        arguments = {"request_rate": known, "arrivals": f"kind=poisson,count={load.count}"}
    return arguments | ({"max_concurrency": cap} if cap and cap < load.count else {})


def _sent_per_s(load: _LoadSummary) -> float | None:
    """Rate of the arrivals that `poisson` happened to draw: given their number and the time from
    the first to the last, the rest is the same chance. `None` where requests waited to be sent.
    """
    if load.count < 2 or not load.achieved_rate or _wait_s(load) > _LATE_S:
        return None
    return float(f"{load.achieved_rate * (load.count - 1) / load.count:.4g}")


def _lengths(files: _Files, stages: Mapping[int, _StageReport]) -> JsonObject:
    """Laws of measured lengths: of the whole run, as all stages draw from the same data."""
    summary = files.path("summary_lifecycle_metrics.json")
    whole = max(stages.values(), key=lambda report: report.successes.count)
    if summary.is_file():
        whole = _decoded(summary, _StageReport)
    answered = whole.successes
    laws = {
        "input_tokens": _law(answered.prompt_tokens) or _law(answered.prompt_len),
        "output_tokens": _law(answered.output_tokens) or _law(answered.output_len),
    }
    return {name: law for name, law in laws.items() if law}


def _law(lengths: Distribution | None) -> str | None:
    """Law of lengths with these quantiles and this mean; `None` where they are not known."""
    known = {name: value for name, value in (lengths or {}).items() if value is not None}
    if not {"mean", "min", "max"} <= known.keys():
        return None
    mean = max(1.0, known["mean"])
    least, most = (max(1, round(known[name])) for name in ("min", "max"))
    if least == most:
        return format_length(Always(round(mean)))
    shares = {name: _percent(name) / 100 for name in known if _percent(name)}
    points = {0.0: least, **{shares[name]: known[name] for name in shares}, 1.0: most}
    rising = [(share, max(1, round(tokens))) for share, tokens in sorted(points.items())]
    return format_length(Table(points=tuple(rising), mean=round(mean, 3)))


def _percent(name: str) -> float:
    """Percent of a percentile's name; 0 of another statistic."""
    match = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", name)
    return 50.0 if name == "median" else float(match[1]) if match else 0.0


def _record(number: int, report: _StageReport, load: JsonObject, config: Config) -> TrialRecord:
    """Record of one stage."""
    engine = (config.server.type if config.server else None) or DEFAULT_ENGINE
    if engine not in ENGINES:
        raise StoreError(
            f"config.yaml names server.type {engine}, which is no engine that servetune knows",
            hint="give the report of a run against an engine",
        )
    arguments = load | config.repeated(report.load_summary.count)
    done = report.successes.count > 0
    metadata: JsonObject = {"framework": engine, "stage": number}
    if config.model:
        metadata["model_tag"] = config.model
    return TrialRecord(
        config=TrialConfig(client_args=arguments),
        results=Results(_results(report, closed=_closed(load)) if done else {}),
        metadata=Metadata(metadata),
        key=trial_key(
            model=config.model or "",
            engine=engine,
            server_args={},
            client_args={**arguments, "stage": number},
        ),
        status="ok" if done else "failed",
        failure=None if done else Failure(kind="load", reason="no request was answered"),
    )


def _closed(client_args: JsonObject) -> bool:
    return "request_rate" not in client_args


def _results(report: _StageReport, *, closed: bool) -> JsonObject:
    """Results under the journal's names, in milliseconds.

    In an open loop mean latencies count from due: the mean wait for sending is added. Percentiles
    cannot be moved like that; where requests waited they are left out.
    """
    answered, load = report.successes, report.load_summary
    completed, failed = answered.count, report.failures.count
    wait_s = 0.0 if closed else _wait_s(load)
    rates = answered.throughput
    duration_s = completed / rates.requests_per_sec if rates.requests_per_sec else None
    results: JsonObject = {
        "backend": CLIENT,
        "duration": duration_s,
        "completed": completed,
        "failed": failed,
        "error_rate": failed / (completed + failed),
        "request_throughput": rates.requests_per_sec,
        "input_throughput": rates.input_tokens_per_sec,
        "output_throughput": rates.output_tokens_per_sec,
        "total_throughput": rates.input_tokens_per_sec + rates.output_tokens_per_sec,
        "mean_wait_before_send_ms": wait_s * MS_PER_S,
    }
    if duration_s:
        results["total_input_tokens"] = round(rates.input_tokens_per_sec * duration_s)
        results["total_output_tokens"] = round(rates.output_tokens_per_sec * duration_s)
    understated = _understated(answered)
    for field, name in _LATENCIES.items():
        moved_s = wait_s if field in ("request_latency", "time_to_first_token") else 0.0
        for statistic, value_s in (getattr(answered.latency, field) or {}).items():
            if value_s is None or field in understated:
                continue
            if statistic == "mean":
                results[f"mean_{name}_ms"] = (value_s + moved_s) * MS_PER_S
            elif moved_s <= _LATE_S and (percent := _percent(statistic)):
                named = "median" if percent == 50 else statistic
                results[f"{named}_{name}_ms"] = value_s * MS_PER_S
    return results


#: Latencies of a report with their names in the journal.
_LATENCIES = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "inter_token_latency": "itl",
    "request_latency": "e2e_latency",
}


def _understated(answered: _Successes) -> list[str]:
    """Times per token that are too small for the latencies and lengths of the same requests."""
    latency, lengths = answered.latency, answered.output_tokens or answered.output_len
    e2e_s, ttft_s = _mean(latency.request_latency), _mean(latency.time_to_first_token)
    tokens = _mean(lengths)
    if e2e_s is None or ttft_s is None or tokens is None or tokens <= 1:
        return []
    implied_s = (e2e_s - ttft_s) / (tokens - 1)
    fields = ("time_per_output_token", "inter_token_latency")
    means = {field: _mean(getattr(latency, field)) for field in fields}
    return [f for f, mean in means.items() if mean is not None and _UNDERSTATED * mean < implied_s]


def _mean(values: Distribution | None) -> float | None:
    return (values or {}).get("mean")


def _wait_s(load: _LoadSummary) -> float:
    """Mean time from due to sent; inference-perf may send a millisecond early."""
    return max(0.0, _mean(load.schedule_delay) or 0.0)


_EXPONENTIAL = (
    "note: load.type constant of inference-perf does not send at even gaps: they are exponential, "
    "stretched to the stage's duration (its loadgen/load_timer.py), and load.base_seed does not "
    "seed them; such arrivals are simulated"
)


def _stage_notes(number: int, report: _StageReport, rate: float | None) -> Iterator[str]:
    """Notes on a stage that is simulated at a rate, or with users."""
    load, wait_s = report.load_summary, _wait_s(report.load_summary)
    if rate and wait_s > _LATE_S:
        yield (
            f"note: requests of stage {number} waited {wait_s:.3g} s in inference-perf before they "
            "were sent; mean latencies count the wait, percentiles are left out"
        )
    asked, sent = load.requested_rate, load.achieved_rate
    if rate and asked and sent and not 0.9 < sent / asked < 1.1:
        simulated = "" if rate == asked else ", at which it is simulated"
        yield (
            f"note: stage {number} was to send {asked:g} requests/s and sent {sent:.3g}{simulated}"
        )
    if understated := _understated(report.successes):
        names = " and ".join(_LATENCIES[field].upper() for field in understated)
        yield (
            f"note: {names} of stage {number} are left out: they are far below what its end-to-end "
            "latency and output length imply (inference-perf before 0.6.0 counts tokens of "
            "streamed chunks twice)"
        )
    if report.successes.count and not report.successes.latency.time_to_first_token:
        yield (
            "note: the report has no times to first token, nor per output token: api.streaming of "
            "inference-perf is off by default"
        )


T = TypeVar("T")


def _decoded(path: Path, kind: type[T]) -> T:
    """File of a report.

    Raises:
        StoreError: It is not JSON, or lacks a member that inference-perf writes.
    """
    try:
        return msgspec.convert(read_json(path), ready(kind))
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "")
        raise StoreError(
            f"{path} is no report of inference-perf: {reason[:1].lower()}{reason[1:]}",
            hint=_AS_WRITTEN,
        ) from None
