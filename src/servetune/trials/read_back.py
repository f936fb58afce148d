"""Read back: what an engine says of its own settings, to name why a run is not reproduced.

What can be asked differs: vLLM tells a few settings in its metrics and its model list, and all
that was set in its start-up log; SGLang answers with every argument; TGI with its limits. The
start-up logs of SGLang and TGI have every setting, and what they settled. Behind SageMaker there
is the log, in CloudWatch, and what the model was given. What nothing tells is not guessed.

Sources: vLLM 0.32 `v1/metrics/loggers.py` (cache_config_info) and the line "non-default args"
of its start-up log; SGLang 0.5 `/get_server_info`; TGI 3.x `/info`, read in November 2026.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from servetune.engines import engine
from servetune.engines.translate import plan_from_settings
from servetune.engines.words import FIELD_TYPES
from servetune.errors import LoadError, PlanError
from servetune.loadgen import Target, fetch_blocking
from servetune.plan.plan import Plan, Setting

__all__ = [
    "ReadBack",
    "cloudwatch_log",
    "differences",
    "fields_of",
    "of_plan",
    "read_log",
    "read_metrics",
    "read_server",
]

Settings = dict[str, Setting]


class ReadBack(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says that it runs with.

    Attributes:
        settings: Fields of a `Plan` to their values.
        source: Where it was said.
        whole: Whether a setting that is not there was left to the engine's default.
    """

    settings: Settings
    source: str
    whole: bool = False


#: Labels of vllm:cache_config_info that are fields of a Plan.
_CACHE_LABELS: Mapping[str, str] = {
    "block_size": "block_tokens",
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "gpu_memory_fraction",
    "cache_dtype": "kv_cache_dtype",
}

_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NON_DEFAULT = re.compile(r"non-default args: (\{.*\})\s*$", re.MULTILINE)
_PAIR = re.compile(r"'(\w+)': (True|False|None|-?\d+(?:\.\d+)?|'[^']*')")


#: The line in which an engine prints its settings.
_PRINTED: Mapping[str, str] = {"sglang": r"server_args=", "tgi": r"\bArgs \{"}

#: Words of the lines that tell settings, of any engine; CloudWatch finds lines with one of them.
_MARKS = (
    "non-default args",
    "server_args=",
    "max_total_num_tokens=",
    "Args {",
    "Setting max batch total tokens",
    "tokens defaulted to",
    "Default `max_",
    "Using prefix caching",
    "prefill chunking =",
    "Cuda Graphs are",
)

#: A printed block of settings is over within so many milliseconds.
_BLOCK_MS = 10_000


def read_server(target: Target) -> ReadBack | None:
    """What a server says by itself; `None` where it says nothing.

    Servers are asked in turn as each engine would be; a route that is not there is no error.
    """
    for path, name in (("/get_server_info", "sglang"), ("/info", "tgi")):
        raw = _json(target, path)
        if isinstance(raw, dict):
            found = _of_info(raw, name)
            if found:
                return ReadBack(settings=found, source=path, whole=name == "sglang")
    settings: Settings = {}
    with contextlib.suppress(LoadError):
        settings |= read_metrics(fetch_blocking(target, "/metrics"))
    models = _json(target, "/v1/models")
    if isinstance(models, dict) and models.get("data"):
        length = models["data"][0].get("max_model_len")
        if isinstance(length, int):
            settings["max_model_len"] = length
    return ReadBack(settings=settings, source="/metrics and /v1/models") if settings else None


def read_metrics(text: str) -> Settings:
    """Of vLLM's metrics: the labels of `vllm:cache_config_info`."""
    found = _INFO.search(text)
    if found is None:
        return {}
    settings: Settings = {}
    for name, value in _LABEL.findall(found[1]):
        if name in _CACHE_LABELS and value not in ("None", ""):
            field = _CACHE_LABELS[name]
            with contextlib.suppress(ValueError):
                settings[field] = _typed(field, value)
    return settings


def read_log(text: str) -> ReadBack | None:
    """Of a start-up log, whosever it is: vLLM's, SGLang's or TGI's."""
    return _read_vllm(text) or _read_engine("sglang", text) or _read_engine("tgi", text)


def _read_engine(name: str, text: str) -> ReadBack | None:
    """Everything, as the engine settled it."""
    if not re.search(_PRINTED[name], text):
        return None
    taken = engine(name).read_log(text).taken
    return ReadBack(settings=fields_of(name, taken), source="the start-up log", whole=True)


def _read_vllm(text: str) -> ReadBack | None:
    """Everything that was not left to a default.

    A value that is no literal hides only itself: the others are read one by one.
    """
    found = _NON_DEFAULT.findall(text)
    if not found:
        return None
    try:
        said = ast.literal_eval(found[-1])
    except (ValueError, SyntaxError):
        said = {name: ast.literal_eval(value) for name, value in _PAIR.findall(found[-1])}
    plain = {
        name: value for name, value in said.items() if isinstance(value, bool | int | float | str)
    }
    return ReadBack(settings=_fields("vllm", plain), source="the start-up log", whole=True)


def cloudwatch_log(
    client: Any, *, endpoint: str, component: str = "", since_s: float | None = None
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
    pattern = " ".join(f'?"{mark}"' for mark in _MARKS)
    since: dict[str, int] = {} if since_s is None else {"startTime": int(since_s * 1000)}
    events = _events(client, logGroupName=group, filterPattern=pattern, **since)
    lines: list[str] = []
    for event in events:
        opened = "Args {" in event["message"] and "}" not in event["message"]
        lines += _block(client, group, event) if opened else [event["message"]]
    return "\n".join(lines)


def _events(client: Any, **asked: Any) -> list[dict[str, Any]]:
    """All pages, oldest first; what came in one millisecond stays as it came."""
    events: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        page = client.filter_log_events(**asked, **token)
        events += page.get("events", ())
        if not page.get("nextToken"):
            return sorted(events, key=lambda event: event["timestamp"])
        token = {"nextToken": page["nextToken"]}


def _block(client: Any, group: str, first: Mapping[str, Any]) -> list[str]:
    """The lines from this one to a closing brace; TGI 3 prints one setting a line."""
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
    """What a Plan says that was itself read from a container's variables.

    Copies are left out: a trial's copies may be a container's own, or an endpoint's.
    """
    settings = {
        field: getattr(plan, field)
        for field in FIELD_TYPES
        if field != "data_parallel" and getattr(plan, field) is not None
    }
    return ReadBack(settings=settings, source=source, whole=True)


def differences(plan: Plan, read: ReadBack) -> list[str]:
    """What the engine runs with and the trial did not, one line each."""
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


def _of_info(raw: Mapping[str, Any], name: str) -> Settings:
    if name == "tgi" and "max_total_tokens" not in raw and "max_batch_total_tokens" not in raw:
        return {}
    if name == "sglang" and "tp_size" not in raw:
        return {}
    known = {word: raw[word] for word in engine(name).words.fields if raw.get(word) is not None}
    return _fields(name, known) | _switches(name, raw)


def fields_of(name: str, settings: Mapping[str, Setting]) -> Settings:
    """Settings in an engine's own words as fields of a Plan; what cannot be one is left out."""
    return _fields(name, settings) | _switches(name, settings)


def _switches(name: str, raw: Mapping[str, Any]) -> Settings:
    """Fields that an engine says the other way round, or beside its arguments."""
    found: Settings = {}
    if name == "sglang":
        if isinstance(raw.get("disable_radix_cache"), bool):
            found["prefix_caching"] = not raw["disable_radix_cache"]
        if isinstance(raw.get("disable_cuda_graph"), bool):
            found["enforce_eager"] = raw["disable_cuda_graph"]
    elif name == "tgi":
        for field in ("prefix_caching", "chunked_prefill"):
            if isinstance(raw.get(field), bool):
                found[field] = raw[field]
        if "cuda_graphs" in raw:
            found["enforce_eager"] = raw["cuda_graphs"] == "0"
    return found


def _fields(name: str, settings: Mapping[str, Setting]) -> Settings:
    """An engine's settings as fields of a Plan; what cannot be one is left out."""
    found: Settings = {}
    for word, value in settings.items():
        field = engine(name).words.fields.get(word.replace("-", "_"))
        if field is None or value is None:
            continue
        with contextlib.suppress(PlanError):
            plan = plan_from_settings(name, "x", {word: value})
            found[field] = getattr(plan, field)
    return found


def _typed(field: str, text: str) -> Setting:
    wanted = FIELD_TYPES[field]
    if wanted is bool:
        return text.lower() == "true"
    return int(float(text)) if wanted is int else wanted(text)


def _json(target: Target, path: str) -> Any:
    with contextlib.suppress(LoadError, ValueError):
        return json.loads(fetch_blocking(target, path, timeout_s=5.0))
    return None
