"""From the options of `servetune bench` to a run that is ready to begin."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from servetune.cli.bench_checks import arrivals_said, require_agreement
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
from servetune.trials import Bench, model_tokenizer, trace_of, traced_prompts
from servetune.workload import AllAtOnce, Observed, Scheduled, Workload
from servetune.workload.about import About
from servetune.workload.model_tokenizer import ModelTokenizer
from servetune.workload.prepare import prepare
from servetune.workload.presets import preset
from servetune.workload.traffic import Traffic, traffic_from

__all__ = ["asked_of", "dry_run_text"]

DEFAULT_INPUT_TOKENS = "550"
DEFAULT_OUTPUT_TOKENS = "150"
DEFAULT_CONCURRENCY = 10
DEFAULT_REQUESTS = 100
CHECKED_ANSWERS = 200
"""Answers whose words are counted again by the model's own tokenizer."""

SMALLEST_VOCAB = 2048
"""Token ids below this are in every vocabulary that serves a language model."""

MOST_REQUESTS = 5_000_000

MOST_UNTIL = 20_000
"""Requests that `--until` prepares; a tail is known to 5 % long before that, or never."""

MOST_FOR_DURATION = 50_000
"""Of a closed loop that ends after a time: bodies of 200 MB."""

QUICK_TOKEN_S, QUICK_ANSWER_S = 0.002, 0.02
"""Of a fast server's answer: what decides how many requests a closed loop may need."""

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
    traffic = None if said["trace"] else _traffic(said)
    api = said["api"] or (traffic.api if traffic else "completions")
    stream = not said["no_stream"] and api != "embeddings" and (traffic is None or traffic.stream)
    targets, session = _targets(said, api, stream)
    tokenizer = model_tokenizer(said["tokenizer"], targets[0].model)
    limits = parse_constraints(said["constraints"] or "")
    workload, prompts, about = (
        _replayed(said, api) if traffic is None else _prepared(said, traffic, api, tokenizer)
    )
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
    if said["api"] is None:
        targets = tuple(msgspec.structs.replace(each, api=workload.api) for each in targets)
    settings = LoadSettings(
        timeout_s=said["timeout_s"],
        processes=_processes(said["processes"]),
        routing=said["routing"] or "round_robin",
        open_ahead=not said["cold"],
        duration_s=said["duration_s"],
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
        about=about,
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


def _traffic(said: Mapping[str, Any]) -> Traffic:
    if said["workload"]:
        traffic = preset(said["workload"])
    else:
        name = Path(said["dataset"]).stem if said["dataset"] else "random"
        traffic = traffic_from({"name": name, "part": [_part(said)]}, where="the options")
    if said["lora"]:
        traffic = msgspec.structs.replace(traffic, adapters=_adapters(said["lora"]))
    count = _request_count(said, traffic)
    api = said["api"] or ("chat" if traffic.needs_chat else traffic.api)
    return msgspec.structs.replace(traffic, request_count=count, api=api)


def _part(said: Mapping[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    if said["dataset"]:
        columns = {name: said[name] for name in ("prompt_column", "output_column") if said[name]}
        part["dataset"] = {"path": said["dataset"], **columns}
        if said["output_tokens"]:
            part["output_tokens"] = said["output_tokens"]
        return part
    part["input_tokens"] = said["input_tokens"] or DEFAULT_INPUT_TOKENS
    part["output_tokens"] = said["output_tokens"] or DEFAULT_OUTPUT_TOKENS
    if said["api"] == "embeddings":
        part["output_tokens"] = "1"
    if said["shared_prefix"]:
        _require_room(part["input_tokens"], said["shared_prefix"])
        level = {"tokens": said["shared_prefix"], "branches": said["prefixes"] or 1}
        part["prefix"] = {"levels": [level]}
    if said["turns"]:
        part["sessions"] = {
            "turns": said["turns"],
            "turn_tokens": said["turn_tokens"] or "64",
            "think_s": said["think_s"] or 0.0,
        }
    return part


def _require_room(input_tokens: str, prefix_tokens: int) -> None:
    """`--input-tokens` is the whole prompt, what it begins with included."""
    if input_tokens.isdigit() and int(input_tokens) <= prefix_tokens:
        raise InputError(
            f"prompts of {input_tokens} tokens have no room for a shared prefix of {prefix_tokens} "
            "and words of their own",
            hint=f"--input-tokens is the whole prompt: say {prefix_tokens + 100} or more",
        )


def _adapters(named: tuple[str, ...]) -> Any:
    from servetune.workload.traffic import Adapter

    adapters = []
    for text in named:
        name, _, weight = text.partition("=")
        try:
            if not name:
                raise ValueError
            adapters.append(Adapter(name=name, weight=float(weight or 1)))
        except ValueError:
            raise InputError(
                f"cannot read the adapter '{text}'", hint="write NAME or NAME=2"
            ) from None
    return tuple(adapters)


def _request_count(said: Mapping[str, Any], traffic: Traffic) -> int:
    """As said, else what the duration has room for, else enough to say something."""
    if said["request_count"] is not None:
        return int(said["request_count"])
    if said["duration_s"] is None:
        if said["until"]:
            return MOST_UNTIL
        return DEFAULT_REQUESTS if not said["workload"] else traffic.request_count
    rate_per_s = arrivals_said(said).mean_rate_per_s(said["duration_s"])
    if rate_per_s is not None:
        return min(MOST_REQUESTS, max(1, int(rate_per_s * said["duration_s"] * 1.5) + 20))
    users = said["concurrency"] or traffic.concurrency or DEFAULT_CONCURRENCY
    answer_s = QUICK_ANSWER_S + QUICK_TOKEN_S * _shortest_answers(traffic) + (said["think_s"] or 0)
    wanted = int(users * said["duration_s"] / answer_s)
    return max(1000, users, min(MOST_FOR_DURATION, wanted))


def _shortest_answers(traffic: Traffic) -> float:
    """Tokens of the mean answer, of the part whose answers are shortest."""
    rng = np.random.default_rng(0)
    laws = [part.output_tokens for part in traffic.parts]
    means = [float(law.draw(100, rng).mean()) for law in laws if law is not None]
    return min(means, default=0.0)


def _prepared(
    said: Mapping[str, Any], traffic: Traffic, api: str, tokenizer: ModelTokenizer | None
) -> tuple[Workload, Any, dict[str, Any]]:
    arrivals = arrivals_said(said)
    ids = api in {"completions", "sglang", "embeddings"} and tokenizer is None
    ids = ids and not any(part.dataset for part in traffic.parts)
    prepared = prepare(
        traffic,
        tokenizer=tokenizer,
        seed=said["seed"],
        api=api,
        vocab_size=SMALLEST_VOCAB if ids else None,
    )
    concurrency = said["concurrency"]
    if concurrency is None and isinstance(arrivals, AllAtOnce):
        concurrency = traffic.concurrency or DEFAULT_CONCURRENCY
    workload = prepared.workload(
        arrivals=arrivals,
        max_concurrency=concurrency,
        warmup_count=said["warmup"],
        ignore_eos=not said["stop_at_eos"],
        duration_s=said["duration_s"] if not isinstance(arrivals, AllAtOnce) else None,
    )
    return _with_thought(workload, said), prepared.prompts, _about(prepared.about)


def _with_thought(workload: Workload, said: Mapping[str, Any]) -> Workload:
    """With users who think before each request, where they are no turns with thoughts of
    their own.
    """
    think_s = said["think_s"]
    if think_s is None or said["turns"]:
        return workload
    asked = tuple(
        msgspec.structs.replace(each, think_s=think_s)
        if workload.closed_loop or each.follows is not None
        else each
        for each in workload.asked
    )
    return msgspec.structs.replace(workload, asked=asked)


def _about(about: About) -> dict[str, Any]:
    return dict(msgspec.to_builtins(about))


def _replayed(said: Mapping[str, Any], api: str) -> tuple[Workload, Any, dict[str, Any]]:
    """A trace: when requests came, how long they were, and what they shared."""
    if api not in {"completions", "sglang"}:
        raise InputError(
            f"a trace has lengths and no words, and {api} takes only words",
            hint="leave --api out: prompts are token ids, which /v1/completions takes",
        )
    trace = trace_of(said["trace"], said["time_scale"] or 1.0, said["request_count"])
    workload = Workload(
        lengths=Observed(name=trace.name, pairs=trace.pairs),
        arrivals=Scheduled(trace.offsets_s),
        request_count=len(trace.pairs),
        max_concurrency=said["concurrency"],
        warmup_count=said["warmup"],
        seed=said["seed"],
        ignore_eos=not said["stop_at_eos"],
        dataset="trace",
        dataset_path=str(said["trace"]),
        api=api,
        duration_s=said["duration_s"],
        prefixes=trace.prefixes(),
    )
    prompts = traced_prompts(workload.requests(), SMALLEST_VOCAB, said["seed"])
    return workload, prompts, {"exact": True, "template": "none"}


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
        "max_concurrency": workload.max_concurrency,
        "num_prompts": len(workload.requests()),
        "dataset_name": workload.dataset,
    }
    args |= {name: said[name] for name in names if said[name] not in (None, (), False)}
    if said["rate"] is not None:
        args["request_rate"] = said["rate"]
    if said["trace"]:
        args["dataset_path"] = os.fspath(said["trace"])
    return args
