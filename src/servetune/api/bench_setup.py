"""Preparation of a load test: checked options, then prompts, targets and settings."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from servetune.api.aws_region import region_of
from servetune.api.bench_request import Bench, values_of
from servetune.api.shared_options import sender_processes
from servetune.cluster import ClusterSenders, sending_nodes
from servetune.errors import InputError, LoadError
from servetune.loadgen import (
    DEFAULT_GRACE_S,
    LoadSettings,
    Target,
    decoded,
    fetch_blocking,
    otlp_endpoint,
    parse_models,
    request_text,
    require_otel,
)
from servetune.loadgen.bodies import prepared_request
from servetune.loadgen.sagemaker import (
    LARGEST_BODY_BYTES,
    Endpoint,
    Session,
    aws_session,
    endpoint_target,
)
from servetune.metrics import LATENCIES, Constraint, PrecisionTarget, parse_constraints
from servetune.trials import SMALLEST_VOCAB
from servetune.trials import Bench as PreparedLoad
from servetune.workload import Workload
from servetune.workload.apis import APIS
from servetune.workload.headers import header_of
from servetune.workload.options import DEFAULT_INPUT_TOKENS, DEFAULT_OUTPUT_TOKENS, joined
from servetune.workload.prepare import prepare

CHECKED_ANSWERS = 200
"""Answers whose words are counted again by the model's own tokenizer."""

MODELS_TIMEOUT_S = 3.0


def prepared_load(request: Bench) -> PreparedLoad:
    """Load test that is ready to be sent, of the first level where there are several.

    Raises:
        InputError: Options contradict one another, or a file cannot be read.
        LoadError: The server whose model is not named cannot be reached.
    """
    request = request.levels()[0]
    require_agreement(request)
    if request.sending.cluster and not request.results.dry_run:
        sending_nodes(request.sending.cluster)  # before a minute goes into preparing
    limits = parse_constraints(request.limits.constraints or "")
    drafted = _workload(request, "")
    api = drafted.api
    targets, session = _targets(request, api, drafted.stream and api != "embeddings")
    workload = _workload(request, targets[0].model)
    tokenizer = workload.model_tokenizer
    prepared = prepare(
        workload,
        vocab_size=None if tokenizer else SMALLEST_VOCAB,
        words_seed=request.words_seed,
    )
    prompts = prepared.prompts
    if not request.results.dry_run and not request.endpoint.sagemaker:
        _require_context(targets[0], api, workload)
    if request.endpoint.sagemaker:
        require_small_bodies(
            max(
                len(prepared_request(targets[0], workload, request, prompt).body)
                for request, prompt in zip(workload.requests(), prompts, strict=False)
            )
        )
    if request.results.otel_endpoint:
        otlp_endpoint(request.results.otel_endpoint)
        require_otel()
    settings = LoadSettings(
        timeout_s=request.sending.request_timeout_s,
        processes=sender_processes(request.sending.processes),
        routing="least_outstanding"
        if request.server.routing == "least-outstanding"
        else "round_robin",
        open_ahead=not request.sending.cold,
        grace_s=DEFAULT_GRACE_S if request.sending.grace_s is None else request.sending.grace_s,
        failures_limit=request.sending.max_failures,
        failed_fraction_limit=request.answers.max_error_rate,
        keep_texts=CHECKED_ANSWERS if tokenizer is not None and api != "embeddings" else 0,
        senders=ClusterSenders(address=request.sending.cluster)
        if request.sending.cluster
        else None,
        # Behind SageMaker there is one route, and no metrics on it.
        scrape_every_s=None if request.endpoint.sagemaker else request.results.scrape_s or None,
        dcgm_url=request.results.dcgm_url,
        run_id=secrets.token_hex(16)
        if request.results.trace_headers or request.results.otel_endpoint
        else "",
    )
    return PreparedLoad(
        targets=targets,
        workload=workload,
        prompts=prompts,
        settings=settings,
        client_args=_client_args(request, workload),
        about={
            **msgspec.to_builtins(prepared.about),
            **({} if request.words_seed is None else {"words_seed": request.words_seed}),
        },
        constraints=limits,
        request_limits=_request_limits(request.results.slo, limits),
        until=PrecisionTarget.parse(request.load.until) if request.load.until else None,
        stop_when_saturated=not request.sending.keep_saturated,
        credentials=session.credentials if session else None,
        tokenizer=tokenizer,
        acceptance=request.answers.acceptance(),
        compat=request.results.compat,
    )


def dry_run_text(load: PreparedLoad) -> str:
    """First request as it would be sent, and what would follow; keys are not shown."""
    requests = load.workload.requests()
    last_s = max(request.due_s for request in requests)
    when = "" if load.workload.closed_loop else f", the last one due after {last_s:.3g} s"
    return (
        f"{request_text(load.targets[0], load.workload, requests[0], load.prompts[0])}\n\n"
        f"{len(requests):,} requests{when}; nothing was sent"
    )


# servers


def _targets(request: Bench, api: str, stream: bool) -> tuple[tuple[Target, ...], Session | None]:
    require_alone(request)
    cafile = request.server.cafile
    if cafile is not None and not cafile.is_file():
        raise InputError(f"no certificates at {cafile}")
    shared: dict[str, Any] = {
        "api": api,
        "api_key_env": request.server.api_key_env,
        "stream": stream,
        "send_min_tokens": request.load.min_tokens,
        "temperature": request.load.temperature,
        "cafile": str(cafile) if cafile else None,
        "extra_body": request.load.extra_body,
        "user_headers": tuple(header_of(text) for text in request.load.header),
    }
    if request.endpoint.sagemaker:
        return sagemaker_targets(request, model=request.server.model, shared=shared)
    unnamed = [
        Target(base_url=url, model=request.server.model or "", **shared)
        for url in request.server.urls
    ]
    for target in unnamed:
        target.origin  # noqa: B018 - an address that is none is refused here
    if request.server.model:
        return tuple(unnamed), None
    named = (msgspec.structs.replace(each, model=_model_of(each, api)) for each in unnamed)
    return tuple(named), None


def _model_of(target: Target, api: str) -> str:
    """The name that a server knows its model by."""
    try:
        if route := APIS[api].model_route:
            with contextlib.suppress(LoadError):
                info = decoded(fetch_blocking(target, route), dict)
                return str(info.get("model_id") or info.get("model_path") or "")
        names = parse_models(fetch_blocking(target, "/v1/models"))
    except LoadError as error:
        raise LoadError(
            error.message, hint="is the server running? if it lists no models, give --model"
        ) from None
    if not names:
        raise InputError(f"{target.origin} names no model", hint="give it with --model")
    return names[0]


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _AllServed(msgspec.Struct):
    data: list[_Served]


def _require_context(target: Target, api: str, workload: Workload) -> None:
    """Refuse requests that are longer than the server says it takes, where it says so."""
    if APIS[api].model_route:
        return
    with contextlib.suppress(LoadError):
        text = fetch_blocking(target, "/v1/models", timeout_s=MODELS_TIMEOUT_S)
        served = {each.id: each for each in decoded(text, _AllServed).data}
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


def _workload(request: Bench, model: str) -> Workload:
    """Workload that the options mean; further members of bodies are the targets'."""
    seed = request.load.seed if request.seed is None else request.seed
    workload = msgspec.structs.replace(request.load, seed=seed).to_workload(model)
    return msgspec.structs.replace(workload, extra_body="")


# load settings


def _request_limits(slo: str, limits: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    chosen = parse_constraints(slo) if slo else limits
    return tuple(limit for limit in chosen if limit.metric in LATENCIES)


#: Options in the record under the names that journals have for them.
_RECORDED = {"shared_prefix": "shared_prefix_tokens", "lora": "adapters"} | {
    name: name
    for name in (
        "workload", "input_tokens", "output_tokens", "dataset", "turns", "turn_tokens",
        "prefixes", "distinct_prompts", "arrivals", "duration_s", "until", "seed", "api",
        "routing", "no_stream", "stop_at_eos", "think_s", "time_scale", "prompt_column",
        "output_column", "dataset_min_tokens", "dataset_max_tokens", "temperature", "min_tokens",
    )
}  # fmt: skip


def _client_args(request: Bench, workload: Workload) -> dict[str, Any]:
    """Options that make one load differ from another, for the record."""
    args: dict[str, Any] = {
        "max_concurrency": workload.concurrency,
        "num_prompts": len(workload.requests()),
        "dataset_name": workload.name,
    }
    for name, field in _RECORDED.items():
        value = values_of(request).get(field)
        if value not in (None, (), False):
            args[name] = value
    load = request.load
    if load.header:
        args["header"] = joined("header", load.header)
    if load.workload is None and load.dataset is None and load.trace is None:
        args.setdefault("input_tokens", DEFAULT_INPUT_TOKENS)
        args.setdefault("output_tokens", DEFAULT_OUTPUT_TOKENS)
    if request.load.rate is not None:
        args["request_rate"] = request.load.rate
    if request.load.trace:
        args["dataset_path"] = request.load.trace
    return args


#: Option, options of which it needs one, and a hint.
_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("grace_s", ("duration_s", "until"), "it is what requests in flight get at such an end"),
    ("keep_saturated", ("rate", "arrivals", "trace"), "a closed loop is never saturated"),
)


def option_of(name: str) -> str:
    """An option as a user writes it: `--grace` of `grace_s`."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def require_agreement(request: Bench) -> None:
    """Refuse options that speak about something that is not there, or against one another.

    Raises:
        InputError: The first such option, and what to do.
    """
    for name, needed, hint in _NEEDS:
        if _given(request, name) and not any(_given(request, other) for other in needed):
            others = " or ".join(option_of(other) for other in needed)
            raise InputError(f"{option_of(name)} has no meaning without {others}", hint=hint)
    if request.load.stop_at_eos and request.answers.strict_length:
        raise InputError(
            "answers that end where the model ends them have no length of their own: "
            "--stop-at-eos and --strict-length contradict each other",
            hint="leave one of them out",
        )
    if request.server.routing and len(request.server.urls) < 2:
        raise InputError("--routing needs several servers", hint="name two URLs or more")
    if request.results.dcgm_url and not request.results.scrape_s:
        raise InputError("--dcgm needs --scrape-every above 0")
    _require_measured(request)


def _given(request: Bench, name: str) -> bool:
    return values_of(request).get(name) not in (None, False, ())


def _require_measured(request: Bench) -> None:
    """Refuse limits on what an answer in one piece cannot show."""
    why = ""
    if request.load.no_stream:
        why = "with --no-stream answers come whole"
    elif request.load.api == "embeddings":
        why = "embeddings come whole"
    limits = parse_constraints(request.limits.constraints or "")
    named = [("--constraints", limit.metric) for limit in limits]
    for limit in parse_constraints(request.results.slo or ""):
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests, and none has a {limit.metric}",
                hint=f"it takes {', '.join(LATENCIES)}; --constraints judges the whole run",
            )
        named.append(("--slo", limit.metric))
    if request.load.until:
        named.append(("--until", PrecisionTarget.parse(request.load.until).metric))
    for option, metric in named:
        if why and metric in LATENCIES and metric != "e2e_latency":
            raise InputError(
                f"{why}, there is no {metric} for {option}", hint="e2e_latency can be measured"
            )
        if request.load.api == "embeddings" and metric == "output_throughput":
            raise InputError(f"embeddings have no output tokens, for {option}")


TOKEN_VARIABLE = "SAGEMAKER_BEARER_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable of the OpenAI-compatible route, unless --api-key-env names another."""

_ONLY_HERE = ("component", "adapter", "region", "profile", "endpoint_url", "route", "openai_route")


def require_alone(request: Bench) -> None:
    """Refuse options that contradict one another, before anything is asked.

    Raises:
        InputError: They do.
    """
    if request.endpoint.sagemaker == "":
        raise InputError("--sagemaker names no endpoint", hint="give the endpoint's name")
    if request.endpoint.sagemaker is None and not request.endpoint.via_aws_job:
        for name in _ONLY_HERE:
            if values_of(request).get(name):
                raise InputError(
                    f"--{name.replace('_', '-')} is for SageMaker endpoints",
                    hint="give --sagemaker ENDPOINT as well",
                )
        if not request.server.urls:
            raise InputError("no server is named", hint="a URL, or --sagemaker")
    elif request.server.urls:
        raise InputError("URLs and --sagemaker both name the server", hint="leave one out")
    if request.endpoint.component and request.endpoint.adapter:
        raise InputError(
            "--component and --adapter both name a component",
            hint="an adapter is a component of its own: name it alone",
        )


def session_of(request: Bench) -> Session:
    """Credentials and region, found before the clock starts."""
    return aws_session(
        region=region_of(request.endpoint.region, request.endpoint.profile),
        profile=request.endpoint.profile,
        endpoint_url=request.endpoint.endpoint_url,
    )


def sagemaker_targets(
    request: Bench, *, model: str | None, shared: Mapping[str, Any]
) -> tuple[tuple[Target, ...], Session]:
    """The one target, and the session that it is asked in.

    Raises:
        InputError: A name cannot be one, there is no model's name, or nobody's credentials.
    """
    endpoint = Endpoint(
        name=str(request.endpoint.sagemaker),
        component=request.endpoint.component or request.endpoint.adapter or "",
        route=request.endpoint.route or "",
        openai=request.endpoint.openai_route,
    )
    if not model:
        raise InputError(
            "SageMaker does not say by which name an endpoint's model is known",
            hint="give it with --model, as the bundle's environment has it (served model name)",
        )
    session = session_of(request)
    further = dict(shared)
    if endpoint.openai:
        further["api_key_env"] = further["api_key_env"] or _bearer(session)
    elif further["api_key_env"]:
        raise InputError(
            "requests to SageMaker are signed with AWS credentials, --api-key-env is for URLs",
            hint="leave it out, or give --openai-route",
        )
    target = endpoint_target(endpoint, session, model=model, **further)
    if target.signing is None:
        session = msgspec.structs.replace(session, credentials=None)
    return (target,), session


def require_small_bodies(largest_bytes: int) -> None:
    """Refuse a run whose requests the service would refuse.

    Raises:
        InputError: One is larger than an invocation may be.
    """
    if largest_bytes > LARGEST_BODY_BYTES:
        raise InputError(
            f"a request has {largest_bytes:,} bytes, an invocation takes {LARGEST_BODY_BYTES:,}",
            hint="ask for shorter prompts",
        )


def _bearer(session: Session) -> str:
    """The variable that holds the token: as it is set, or made by the SageMaker SDK."""
    if os.environ.get(TOKEN_VARIABLE):
        return TOKEN_VARIABLE
    try:
        from sagemaker.core.token_generator import generate_token
    except ImportError:
        raise InputError(
            "the OpenAI-compatible route needs a bearer token",
            hint=f"put one into {TOKEN_VARIABLE}, or pip install sagemaker-core, which makes them",
        ) from None
    os.environ[TOKEN_VARIABLE] = str(generate_token(region=session.region))
    return TOKEN_VARIABLE
