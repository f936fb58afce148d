"""Settings that a running engine reports, to explain why a run is not reproduced.

What can be asked differs from engine to engine (`SettingsReport`): a route with every argument or
a few limits, labels of a metric, the start-up log. Behind SageMaker there is the log, in
CloudWatch, and what the model was given. What nothing tells is not guessed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from servetune.engines import ENGINES, engine, fields_of
from servetune.engines.words import FIELD_TYPES
from servetune.errors import LoadError
from servetune.json_value import JsonMembers, JsonObject
from servetune.loadgen import Target, fetch_blocking
from servetune.plan.plan import Plan, Setting

Settings = dict[str, Setting]


class ReadBack(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that an engine reports.

    Attributes:
        settings: Fields of a `Plan` to their values.
        source: Place that the settings were read from.
        whole: Whether a setting that is not there was left to the engine's default.
    """

    settings: Settings
    source: str
    whole: bool = False


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: A printed block of settings is over within so many milliseconds.
_BLOCK_MS = 10_000


def read_server(target: Target) -> ReadBack | None:
    """Settings that a server reports over HTTP; `None` where it reports none.

    Servers are asked in turn as each engine would be; a route that is not there is no error.
    """
    for name in ENGINES:
        report = engine(name).settings_report
        raw = _json(target, report.route) if report.route else None
        if isinstance(raw, dict) and any(member in raw for member in report.members):
            found = fields_of(name, raw)
            if found:
                return ReadBack(settings=found, source=report.route, whole=report.complete)
    settings: Settings = {}
    with contextlib.suppress(LoadError):
        settings |= read_metrics(fetch_blocking(target, "/metrics"))
    match _json(target, "/v1/models"):
        case {"data": [{"max_model_len": int(length)}, *_]}:
            settings["max_model_len"] = length
    return ReadBack(settings=settings, source="/metrics and /v1/models") if settings else None


def read_metrics(text: str) -> Settings:
    """Fields of a Plan that a scrape tells in the labels of a metric."""
    settings: Settings = {}
    for name in ENGINES:
        report = engine(name).settings_report
        found = re.search(rf"^{report.metric}\{{(.*)\}}", text, re.MULTILINE)
        for label, value in _LABEL.findall(found[1]) if report.metric and found else ():
            field = report.labels.get(label)
            if field is not None and value not in ("None", ""):
                with contextlib.suppress(ValueError, OverflowError):
                    settings[field] = _typed(field, value)
    return settings


def read_log(text: str) -> ReadBack | None:
    """Settings that a start-up log tells, of the first engine that reads it as its own."""
    for name in ENGINES:
        settings = engine(name).printed_settings(text)
        if settings is not None:
            fields = fields_of(name, settings)
            return ReadBack(settings=fields, source="the start-up log", whole=True)
    return None


class LogsClient(Protocol):
    """boto3's client for `logs`."""

    def __getattr__(self, operation: str) -> Callable[..., JsonObject]: ...


def cloudwatch_log(
    client: LogsClient, *, endpoint: str, component: str = "", since_s: float | None = None
) -> str:
    """Lines of an endpoint's log that tell its settings, newest last.

    Args:
        client: boto3's for `logs`.
        endpoint: Its log group is `/aws/sagemaker/Endpoints/NAME`.
        component: Of an inference component it is `/aws/sagemaker/InferenceComponents/NAME`.
        since_s: Seconds since 1970; a log outlives its endpoint, and an earlier one of the same
            name may have said something else.
    """
    group = (
        f"/aws/sagemaker/InferenceComponents/{component}"
        if component
        else f"/aws/sagemaker/Endpoints/{endpoint}"
    )
    marks = dict.fromkeys(
        mark for name in ENGINES for mark in engine(name).settings_report.log_marks
    )
    pattern = " ".join(f'?"{mark}"' for mark in marks)
    since: dict[str, int] = {} if since_s is None else {"startTime": int(since_s * 1000)}
    events = _events(client, logGroupName=group, filterPattern=pattern, **since)
    lines: list[str] = []
    for event in events:
        opened = "Args {" in event["message"] and "}" not in event["message"]
        lines += _block(client, group, event) if opened else [event["message"]]
    return "\n".join(lines)


def _events(client: LogsClient, **parameters: object) -> list[JsonObject]:
    """All pages, oldest first; what came in one millisecond stays as it came."""
    events: list[JsonObject] = []
    token: dict[str, str] = {}
    while True:
        page = client.filter_log_events(**parameters, **token)
        events += page.get("events", ())
        if not page.get("nextToken"):
            return sorted(events, key=lambda event: event["timestamp"])
        token = {"nextToken": page["nextToken"]}


def _block(client: LogsClient, group: str, first: JsonMembers) -> list[str]:
    """The lines from this one to a closing brace, as some engines print one setting a line."""
    stream = {"logStreamNames": [first["logStreamName"]]} if "logStreamName" in first else {}
    began_ms = first["timestamp"]
    events = _events(
        client, logGroupName=group, startTime=began_ms, endTime=began_ms + _BLOCK_MS, **stream
    )
    messages = [event["message"] for event in events]
    start = messages.index(first["message"]) if first["message"] in messages else 0
    end = next((n for n in range(start, len(messages)) if messages[n].startswith("}")), None)
    return messages[start : None if end is None else end + 1]


def of_plan(plan: Plan, source: str) -> ReadBack:
    """Settings of a Plan that was itself read from a container's variables.

    Copies are left out: a trial's copies may be a container's own, or an endpoint's.
    """
    settings = {
        field: getattr(plan, field)
        for field in FIELD_TYPES
        if field != "data_parallel" and getattr(plan, field) is not None
    }
    return ReadBack(settings=settings, source=source, whole=True)


def differences(plan: Plan, read: ReadBack) -> list[str]:
    """Differences between the engine's settings and the trial's, one line each."""
    lines: list[str] = []
    for field, now in sorted(read.settings.items()):
        was = getattr(plan, field)
        if was is not None and not _alike(was, now):
            lines.append(f"{field} is {now}, the trial had {was} (says {read.source})")
    if read.whole:
        lines += [
            f"{field} was left to the engine's default, the trial had {getattr(plan, field)}"
            for field in _chosen(plan)
            if field not in read.settings
        ]
    return lines


def _chosen(plan: Plan) -> Iterator[str]:
    """Fields that decide performance and that a default would hardly equal."""
    for field in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "quantization"):
        if getattr(plan, field) is not None:
            yield field
    if plan.tensor_parallel > 1:
        yield "tensor_parallel"


def _alike(was: Setting, now: Setting) -> bool:
    numbers = (int, float)
    if isinstance(was, numbers) and isinstance(now, numbers):
        return abs(was - now) < 1e-9
    return str(was) == str(now) or {str(was), str(now)} <= {"auto", "bfloat16", "torch.bfloat16"}


def _typed(field: str, text: str) -> Setting:
    field_type = FIELD_TYPES[field]
    if field_type is bool:
        return text.lower() == "true"
    return int(float(text)) if field_type is int else field_type(text)


def _json(target: Target, path: str) -> Any:
    with contextlib.suppress(LoadError, ValueError, RecursionError):
        return json.loads(fetch_blocking(target, path, timeout_s=5.0))
    return None
