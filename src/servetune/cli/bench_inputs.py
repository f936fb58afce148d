"""From the options of `servetune bench` to a run that is ready to begin."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from servetune.cli.bench_checks import require_agreement
from servetune.cli.bench_sagemaker import require_alone, require_small_bodies, sagemaker_targets
from servetune.cluster import ClusterSenders, sending_nodes
from servetune.errors import InputError, LoadError
from servetune.loadgen import (
    LoadSettings,
    Target,
    fetch_blocking,
    otlp_endpoint,
    parse_models,
    request_text,
    require_otel,
)
from servetune.loadgen.bodies import prepared_request
from servetune.loadgen.sagemaker import Session
from servetune.metrics import LATENCIES, Constraint, PrecisionTarget, parse_constraints
from servetune.trials import SMALLEST_VOCAB, Bench
from servetune.workload import LoadOptions, Workload
from servetune.workload.prepare import prepare

__all__ = ["asked_of", "dry_run_text"]

CHECKED_ANSWERS = 200
"""Answers whose words are counted again by the model's own tokenizer."""

DEFAULT_GRACE_S = 30.0
MODELS_TIMEOUT_S = 3.0

_MODEL_ROUTES = {"tgi": "/info", "sglang": "/get_model_info"}


def asked_of(said: Mapping[str, Any]) -> Bench:
    """What `servetune bench` is to do.

    Raises:
        InputError: The options contradict one another, or a file cannot be read.
        LoadError: The server that should say its model cannot be reached.
    """
    require_agreement(said)
    if said["cluster"] and not said["dry_run"]:
        sending_nodes(said["cluster"])  # before a minute goes into preparing
    limits = parse_constraints(said["constraints"] or "")
    drafted = _workload(said, "")
    api = drafted.api
    targets, session = _targets(said, api, drafted.stream and api != "embeddings")
    workload = _workload(said, targets[0].model)
    tokenizer = workload.model_tokenizer
    prepared = prepare(
        workload,
        vocab_size=None if tokenizer else SMALLEST_VOCAB,
        words_seed=said.get("words_seed"),
    )
    prompts = prepared.prompts
    if not said["dry_run"] and not said["sagemaker"]:
        _require_context(targets[0], api, workload)
    if said["sagemaker"]:
        require_small_bodies(
            max(
                len(prepared_request(targets[0], workload, request, prompt).body)
                for request, prompt in zip(workload.requests(), prompts, strict=False)
            )
        )
    if said["otel_endpoint"]:
        otlp_endpoint(said["otel_endpoint"])
        require_otel()
    settings = LoadSettings(
        timeout_s=said["timeout_s"],
        processes=_processes(said["processes"]),
        routing=said["routing"] or "round_robin",
        open_ahead=not said["cold"],
        grace_s=DEFAULT_GRACE_S if said["grace_s"] is None else said["grace_s"],
        failures_limit=said["max_failures"],
        failed_fraction_limit=_fraction(said["max_error_rate"]),
        keep_texts=CHECKED_ANSWERS if tokenizer is not None and api != "embeddings" else 0,
        senders=ClusterSenders(address=said["cluster"]) if said["cluster"] else None,
        # Behind SageMaker there is one route, and no metrics on it.
        scrape_every_s=None if said["sagemaker"] else said["scrape_s"] or None,
        dcgm_url=said["dcgm_url"],
        run_id=secrets.token_hex(16) if said["trace_headers"] or said["otel_endpoint"] else "",
    )
    return Bench(
        targets=targets,
        workload=workload,
        prompts=prompts,
        settings=settings,
        client_args=_client_args(said, workload),
        about=dict(msgspec.to_builtins(prepared.about)),
        constraints=limits,
        request_limits=_request_limits(said["slo"], limits),
        until=PrecisionTarget.parse(said["until"]) if said["until"] else None,
        stop_when_saturated=not said["keep_saturated"],
        credentials=session.credentials if session else None,
        tokenizer=tokenizer,
        wrong_length_fails=said["strict_length"],
        compat=said["compat"],
    )


def dry_run_text(asked: Bench) -> str:
    """The first request as it would leave, and what would follow; keys are not shown."""
    requests = asked.workload.requests()
    last_s = max(request.due_s for request in requests)
    when = "" if asked.workload.closed_loop else f", the last one due after {last_s:.3g} s"
    return (
        f"{request_text(asked.targets[0], asked.workload, requests[0], asked.prompts[0])}\n\n"
        f"{len(requests):,} requests{when}; nothing was sent"
    )


# servers


def _targets(
    said: Mapping[str, Any], api: str, stream: bool
) -> tuple[tuple[Target, ...], Session | None]:
    require_alone(said)
    cafile = said["cafile"]
    if cafile is not None and not cafile.is_file():
        raise InputError(f"no certificates at {cafile}")
    shared = {
        "api": api,
        "api_key_env": said["api_key_env"],
        "stream": stream,
        "send_min_tokens": said["min_tokens"],
        "temperature": said["temperature"],
        "cafile": str(cafile) if cafile else None,
        "extra_body": said["extra_body"],
    }
    if said["sagemaker"]:
        return sagemaker_targets(said, model=said["model"], shared=shared)
    unnamed = [Target(base_url=url, model=said["model"] or "", **shared) for url in said["urls"]]
    for target in unnamed:
        target.origin  # noqa: B018 - an address that is none is refused here
    if said["model"]:
        return tuple(unnamed), None
    named = (msgspec.structs.replace(each, model=_model_of(each, api)) for each in unnamed)
    return tuple(named), None


def _model_of(target: Target, api: str) -> str:
    """The name that a server knows its model by."""
    try:
        if api in _MODEL_ROUTES:
            with contextlib.suppress(msgspec.MsgspecError, LoadError):
                info = msgspec.json.decode(fetch_blocking(target, _MODEL_ROUTES[api]), type=dict)
                return str(info.get("model_id") or info.get("model_path") or "")
        names = parse_models(fetch_blocking(target, "/v1/models"))
    except LoadError as error:
        raise LoadError(
            error.message, hint="is the server running? if it lists no models, say --model"
        ) from None
    if not names:
        raise InputError(f"{target.origin} names no model", hint="say it with --model")
    return names[0]


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _AllServed(msgspec.Struct):
    data: list[_Served]


def _require_context(target: Target, api: str, workload: Workload) -> None:
    """Refuse requests that are longer than the server says it takes, where it says so."""
    if api in _MODEL_ROUTES:
        return
    with contextlib.suppress(msgspec.MsgspecError, LoadError):
        text = fetch_blocking(target, "/v1/models", timeout_s=MODELS_TIMEOUT_S)
        served = {each.id: each for each in msgspec.json.decode(text, type=_AllServed).data}
        most = served[target.model].max_model_len if target.model in served else None
        longest = workload.longest_tokens()
        if most is not None and longest > most:
            raise InputError(
                f"the longest request has {longest:,} tokens, prompt and answer together, and "
                f"{target.model} takes {most:,}",
                hint="ask for shorter prompts or answers, or start the server with a longer "
                "context",
            )


# what is asked


def _workload(said: Mapping[str, Any], model: str) -> Workload:
    """Workload that the options mean."""
    values = {_FIELDS.get(name, name): value for name, value in said.items()}
    values["extra_body"] = ""  # of the target
    if values["trace"]:
        values["trace"] = os.fspath(values["trace"])
    known = {name: values[name] for name in LoadOptions.__struct_fields__ if name in values}
    return LoadOptions(**known).to_workload(model)


#: Fields of `LoadOptions` by the names that this command has for them.
_FIELDS = {"shared_prefix": "shared_prefix_tokens", "lora": "adapters", "request_count": "requests"}


# load settings


def _processes(text: str) -> Any:
    if text == "auto":
        return "auto"
    if not text.isdigit() or not 1 <= int(text) <= 256:
        raise InputError(f"--processes {text} is no number of processes", hint="1 to 256, or auto")
    return int(text)


def _fraction(value: float | None) -> float | None:
    if value is not None and value > 1:
        raise InputError(f"an error rate of {value:g} is none", hint="from 0 to 1, such as 0.05")
    return value


def _request_limits(slo: str, limits: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    chosen = parse_constraints(slo) if slo else limits
    return tuple(limit for limit in chosen if limit.metric in LATENCIES)


def _client_args(said: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """What the user said that makes one load differ from another."""
    names = (
        "workload", "input_tokens", "output_tokens", "dataset", "turns", "turn_tokens",
        "shared_prefix", "prefixes", "lora", "arrivals", "duration_s", "until", "seed", "api",
        "routing", "no_stream", "stop_at_eos", "think_s", "time_scale",
    )  # fmt: skip
    args: dict[str, Any] = {
        "max_concurrency": workload.concurrency,
        "num_prompts": len(workload.requests()),
        "dataset_name": workload.name,
    }
    args |= {name: said[name] for name in names if said[name] not in (None, (), False)}
    if said["rate"] is not None:
        args["request_rate"] = said["rate"]
    if said["trace"]:
        args["dataset_path"] = os.fspath(said["trace"])
    return args
