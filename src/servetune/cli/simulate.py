"""`servetune simulate`: one plan under one load in virtual time, request by request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from servetune.api.inputs import chosen_node, note_idle
from servetune.api.reporting import write_artifacts
from servetune.cli import options
from servetune.cli.beside import compare
from servetune.cli.output import echo, print_json
from servetune.cli.serve_simulated import Servable
from servetune.engines import DEFAULT_ENGINE, engine, simulated_engines
from servetune.errors import InputError, StoreError
from servetune.metrics import LATENCIES, Constraint, parse_constraints, unmet
from servetune.models import load_shape
from servetune.perf.sim import describe_scheduler, without_effect
from servetune.prediction.calibrations import calibration_named
from servetune.report import console, timeline_of, trial_table
from servetune.search import Axis, Space, parse_settings
from servetune.simserver.server_arguments import argument_types
from servetune.store import Artifacts, Journal, write_requests
from servetune.trials import StudyContext, Trial, simulated_with_requests, trials_of, with_fields
from servetune.workload import CLIENT_ARGS, format_arrivals
from servetune.workload.traces import trace_in

__all__ = ["simulate"]

#: Name of the files in `--out`.
STEM = "simulated"

#: Characters of a law of arrivals in a heading; a schedule has no end of them.
_MOST_SHOWN = 80


@click.command(cls=Servable)
@click.option("--model", default=None, help="Hub id, local folder, or a name of the catalogue.")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(simulated_engines()),
    default=DEFAULT_ENGINE,
    show_default=True,
    help="Whose scheduler, defaults and words for --server-args.",
)
@options.machine
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=None,
    help="Devices that share each matrix. [default: 1]",
)
@click.option("--replicas", type=click.IntRange(1, 1024), default=1, show_default=True)
@options.prefill_pool
@click.option(
    "--quantization",
    "--precision",
    "quantization",
    default=None,
    help="Weights as loaded, such as fp8. [default: the checkpoint's]",
)
@click.option("--kv-cache-dtype", default=None, help="[default: the model's]")
@click.option("--max-model-len", type=click.IntRange(min=1), default=None, metavar="TOKENS")
@options.drafts
@click.option(
    "--server-args",
    multiple=True,
    metavar="NAME=VALUE;..",
    help="Further settings of the plan, as in servetune tune.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=None,
    help="Users who each wait for their answer; with --rate or --trace the most in flight.",
)
@click.option(
    "--rate",
    type=options.POSITIVE,
    default=None,
    metavar="PER_S",
    help="Requests per second, whether or not the server keeps up.",
)
@click.option(
    "--arrivals",
    default=None,
    metavar="LAW",
    help="How they come at that rate: poisson (the default), constant, or any law in full, such "
    "as kind=gamma,rate_per_s=4,burstiness=0.5 (docs/guides/arrivals.md).",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Trace of requests: Mooncake JSONL, Azure or BurstGPT CSV, or what --out wrote.",
)
@click.option(
    "--time-scale",
    type=options.POSITIVE,
    default=None,
    metavar="FACTOR",
    help="Factor on the trace's times; 0.5 is twice the load.",
)
@click.option(
    "--requests",
    "request_count",
    type=click.IntRange(min=1),
    default=None,
    metavar="COUNT",
    help="Number of requests. [default: the whole trace, what --duration needs, else 1000]",
)
@click.option(
    "--duration",
    "duration_s",
    type=options.POSITIVE,
    default=None,
    metavar="S",
    help="Stop then, whatever is still on its way.",
)
@click.option(
    "--input-len", "input_tokens", type=click.IntRange(min=1), default=None, metavar="TOKENS"
)
@click.option(
    "--output-len", "output_tokens", type=click.IntRange(min=1), default=None, metavar="TOKENS"
)
@click.option(
    "--range-ratio",
    type=click.FloatRange(0, 1),
    default=None,
    metavar="R",
    help="Lengths are uniform from R times these to these. [default: 1]",
)
@click.option(
    "--input-sd",
    type=options.NOT_NEGATIVE,
    default=None,
    metavar="TOKENS",
    help="Prompts are Gaussian around --input-len, at most twice that.",
)
@click.option(
    "--output-sd",
    type=options.NOT_NEGATIVE,
    default=None,
    metavar="TOKENS",
    help="And answers around --output-len.",
)
@click.option(
    "--prefix-len",
    "prefix_tokens",
    type=click.IntRange(min=1),
    default=None,
    metavar="TOKENS",
    help="Every prompt begins with so many tokens that others begin with, too.",
)
@click.option(
    "--prefixes",
    "prefix_count",
    type=click.IntRange(min=1),
    default=None,
    metavar="COUNT",
    help="Different such beginnings. [default: 1]",
)
@click.option(
    "--dataset",
    type=click.Choice(("random", "sharegpt")),
    default=None,
    help="sharegpt: its published lengths. [default: random]",
)
@click.option(
    "--workload",
    default=None,
    metavar="NAME",
    help="Workload by name, such as multi_turn_chat, or a TOML file; its users ask it.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=None,
    help="Seed of lengths, arrivals and words. [default: 1]",
)
@click.option(
    "--client-args",
    multiple=True,
    metavar="NAME=VALUE;..",
    help="Further settings of the load, as in servetune tune.",
)
@options.constraints
@click.option(
    "--slo",
    metavar="LIMITS",
    default="",
    help="Limits on single requests, for goodput. [default: the latencies of --constraints]",
)
@options.calibration
@click.option(
    "--out",
    "out_dir",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Journal, summary, every request, and a dashboard with their timelines.",
)
@click.option("--token-times", is_flag=True, help="With --out: keep the time of every token.")
@click.option(
    "--compare",
    "compare_with",
    type=click.Path(path_type=Path),
    default=None,
    metavar="X.jsonl",
    help="Simulate the trials that were measured there, and set them side by side.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def simulate(
    *,
    model: str | None,
    engine_name: str,
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    price_per_hour_usd: float | None,
    tensor_parallel: int | None,
    replicas: int,
    prefill_replicas: int | None,
    kv_link: str | None,
    quantization: str | None,
    kv_cache_dtype: str | None,
    max_model_len: int | None,
    draft_tokens: int | None,
    draft_method: str | None,
    draft_acceptance_fraction: float | None,
    server_args: tuple[str, ...],
    concurrency: int | None,
    rate: float | None,
    arrivals: str | None,
    trace: Path | None,
    time_scale: float | None,
    request_count: int | None,
    duration_s: float | None,
    input_tokens: int | None,
    output_tokens: int | None,
    range_ratio: float | None,
    input_sd: float | None,
    output_sd: float | None,
    prefix_tokens: int | None,
    prefix_count: int | None,
    dataset: str | None,
    workload: str | None,
    seed: int | None,
    client_args: tuple[str, ...],
    constraints: str | None,
    slo: str,
    calibration_name: str | None,
    out_dir: Path | None,
    token_times: bool,
    compare_with: Path | None,
    as_json: bool,
) -> int:
    """Serve a load in virtual time: what a trial would measure, in seconds and without a GPU.

    \b
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 --concurrency 32 --dataset sharegpt
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 --rate 1 --duration 600 --out sim
    servetune simulate --model Qwen/Qwen3-4B --gpu L4 --trace requests.csv --time-scale 0.5
    servetune simulate --compare measured.jsonl
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    plan_options = {
        _word(engine_name, "tensor_parallel"): tensor_parallel,
        _word(engine_name, "quantization"): quantization,
        _word(engine_name, "kv_cache_dtype"): kv_cache_dtype,
        _word(engine_name, "max_model_len"): max_model_len,
        "kv_link": kv_link,
    }
    fields = {
        "replicas": replicas,
        "prefill_replicas": prefill_replicas,
        "draft_tokens": draft_tokens,
        "draft_method": draft_method,
        "draft_acceptance_fraction": draft_acceptance_fraction,
    }
    load_options = {
        "max_concurrency": concurrency,
        "request_rate": rate,
        "arrivals": arrivals,
        "dataset_name": "trace" if trace else dataset,
        "dataset_path": str(trace) if trace else None,
        "time_scale": time_scale,
        "workload": workload,
        "num_prompts": request_count,
        "duration_s": duration_s,
        "random_input_len": input_tokens,
        "random_output_len": output_tokens,
        "random_range_ratio": range_ratio,
        "random_input_sd": input_sd,
        "random_output_sd": output_sd,
        "random_prefix_len": prefix_tokens,
        "num_prefixes": prefix_count,
        "seed": seed,
    }
    if compare_with is not None:
        _require_alone(
            {**plan_options, **load_options, "--slo": slo or None, "--out": out_dir}
            | {"--server-args": server_args or None, "--client-args": client_args or None}
            | {"--constraints": constraints, "--replicas": replicas if replicas > 1 else None}
            | {"--prefill-replicas": prefill_replicas, "--draft-tokens": draft_tokens}
            | {"--draft-method": draft_method, "--draft-acceptance": draft_acceptance_fraction}
            | {"--engine": engine_name if engine_name != DEFAULT_ENGINE else None}
        )
        return compare(
            compare_with,
            model=model,
            gpu=gpu,
            num_gpus=num_gpus,
            instance_name=instance_name,
            calibration_name=calibration_name,
            as_json=as_json,
        )
    if model is None:
        raise click.UsageError("Missing option '--model'.")
    options.require_handover(prefill_replicas, kv_link)
    if token_times and out_dir is None:
        raise InputError("--token-times are kept with --out", hint="name a folder with --out DIR")
    if trace is not None and dataset is not None:
        raise InputError(
            f"a trace has requests of its own, --dataset {dataset} cannot be asked as well",
            hint="leave --dataset or --trace out",
        )
    space = Space(
        server=parse_settings(";".join(server_args), types=argument_types(engine_name)),
        client=parse_settings(
            ";".join(client_args), types=CLIENT_ARGS, known=CLIENT_ARGS, kind="client argument"
        ),
    )
    server = _joined(space, "server", plan_options, engine_name)
    client = _joined(space, "client", load_options, engine_name)
    _require_arrivals(client)
    limits = parse_constraints(constraints or "")
    node = chosen_node(
        gpu=gpu,
        num_gpus=num_gpus,
        instance_name=instance_name,
        price_per_hour_usd=price_per_hour_usd,
        or_cpu=True,
    )
    shape = load_shape(model)
    calibration = calibration_named(calibration_name) if calibration_name else None
    if calibration:
        calibration.require_for(shape=shape, node=node)
    run = StudyContext(
        model=model,
        engine=engine(engine_name).simulated_as or engine_name,
        simulated=True,
        shape=shape,
        node=node,
        constraints=limits,
        request_limits=_request_limits(slo, limits),
        price_per_hour_usd=node.price.usd_per_hour if node.price else None,
        calibration=calibration,
    )
    trial = with_fields(_one_trial(server, client, run), run, fields)
    artifacts = Artifacts(out_dir, STEM) if out_dir else None
    if artifacts:
        _require_free(artifacts)
    known = argument_types(engine_name) if engine(engine_name).simulated_as else ()
    note_idle(without_effect(trial.plan), known)
    record, simulation = simulated_with_requests(trial, run)
    if token_times and record.results["server"]["itl_is_tpot"]:
        raise InputError("so many requests have no token times", hint="leave --token-times out")
    if as_json:
        print_json(record)
    else:
        heading = f"{model} on {node.label}, {trial.plan.label}, {_load_text(trial)}"
        heading += f"\nas {describe_scheduler(trial.plan)}"
        console().print(trial_table(record, limits, heading=heading))
    if artifacts:
        with Journal(artifacts.journal) as journal:
            journal.append(record)
        write_requests(
            artifacts.requests, simulation.records, simulation.admitted_s, token_times=token_times
        )
        timeline = timeline_of(simulation.records, simulation.admitted_s, simulation.kv_use)
        write_artifacts(artifacts, [record], limits, timeline=timeline)
        _say_where(artifacts)
    return 1 if limits and unmet(limits, record.results) else 0


def _word(engine_name: str, field: str) -> str:
    """The engine's name for a field of the plan."""
    return next(name for name, its in engine(engine_name).words.fields.items() if its == field)


def _joined(space: Space, side: str, chosen: Mapping[str, Any], engine_name: str) -> dict[str, Any]:
    """The side's settings, those of their own options among them.

    Raises:
        InputError: Something is given twice, or swept.
    """
    axes = getattr(space, side)
    swept = [axis for axis in axes if len(axis.rows) > 1]
    if swept:
        raise InputError(
            f"{'*'.join(swept[0].names)} has {len(swept[0].rows)} values, simulate runs one",
            hint="sweep with servetune tune --engine simulated"
            if engine(engine_name).simulated_as
            else "sweeps are simulated in vLLM's words alone; simulate one value after another",
        )
    settings: dict[str, Any] = next(space.servers() if side == "server" else space.clients())
    for name, value in chosen.items():
        if value is None:
            continue
        if name in settings:
            raise InputError(
                f"{name} is given twice, in --{side}-args and by its own option",
                hint="leave one of them out",
            )
        settings[name] = value
    return settings


def _require_arrivals(client: Mapping[str, Any]) -> None:
    if "workload" in client:  # it has users of its own
        return
    said = {"max_concurrency", "request_rate", "arrivals"} & client.keys()
    if not said and client.get("dataset_name") != "trace":
        raise InputError(
            "nothing says when requests come",
            hint="give --concurrency 32, --rate 4, --arrivals kind=... or --trace FILE",
        )
    if client.get("dataset_name") not in ("trace", "sharegpt"):
        return
    for name in ("input_len", "output_len", "range_ratio", "input_sd", "output_sd"):
        if f"random_{name}" in client:
            raise InputError(
                f"{client['dataset_name']} has lengths of its own, random_{name} changes nothing",
                hint=f"leave --{name.replace('_', '-')} out",
            )


def _require_alone(given: Mapping[str, Any]) -> None:
    """`--compare` takes plans and loads from the file and from nowhere else."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"--compare simulates what the file says, {name} cannot change it",
                hint="leave it out; --model, --gpu, --instance and --calibration may be given",
            )


def _one_trial(server: dict[str, Any], client: dict[str, Any], run: StudyContext) -> Trial:
    """The trial of these settings.

    Raises:
        InputError: A setting has no meaning, or the trace cannot be read.
        PlanError: The plan contradicts itself.
    """
    fixed = Space(server=_axes(server), client=_axes(client))
    trial = next(trials_of(fixed, run))[0]
    source = trial.workload.trace
    if source is not None:
        recorded = trace_in(source.path, source.time_scale, client.get("num_prompts"))
        if recorded.left_out:
            echo(
                f"note: {recorded.left_out:,} requests of {recorded.name} were answered with no "
                "token and are left out"
            )
    return trial


def _axes(settings: dict[str, Any]) -> tuple[Axis, ...]:
    return tuple(Axis(names=(name,), rows=((value,),)) for name, value in settings.items())


def _request_limits(slo: str, limits: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
    if not slo:
        return tuple(limit for limit in limits if limit.metric in LATENCIES)
    chosen = parse_constraints(slo)
    for limit in chosen:
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests and {limit.metric} belongs to a whole trial",
                hint=f"use {', '.join(LATENCIES)}",
            )
    return chosen


def _require_free(artifacts: Artifacts) -> None:
    for path in (artifacts.journal, artifacts.summary, artifacts.dashboard, artifacts.requests):
        if path.exists():
            raise StoreError(f"{path} is there already", hint="choose another --out")


def _load_text(trial: Trial) -> str:
    """The load in words: `32 users, random`, `4/s poisson`, `trace x.csv`."""
    args, workload = trial.client_args, trial.workload
    users = workload.concurrency
    if workload.trace is not None:
        how = f"trace {args['dataset_path']}"
        how += f", times x {args['time_scale']:g}" if "time_scale" in args else ""
    elif "=" in args.get("arrivals", ""):
        how = format_arrivals(workload.arrivals)
        how = how if len(how) <= _MOST_SHOWN else f"{how[:_MOST_SHOWN]}..."
    elif "request_rate" in args and not workload.closed_loop:
        how = f"{args['request_rate']:g} requests/s, {args.get('arrivals', 'poisson')}"
    else:
        how = f"{users} users" if users else "all requests at once"
        users = None
    how += f", at most {users} in flight" if users else ""
    if workload.trace is None:
        how += f", {workload.name}" + ("" if "workload" in args else " lengths")
    if "random_prefix_len" in args or "shared_prefix_tokens" in args:
        tokens = args.get("random_prefix_len") or args["shared_prefix_tokens"]
        count = args.get("num_prefixes") or args.get("prefixes") or 1
        how += f", {tokens} tokens before each of {count} kind" + ("s" if count > 1 else "")
    return how + f", seed {workload.seed}"


def _say_where(artifacts: Artifacts) -> None:
    for name, path in (
        ("journal", artifacts.journal),
        ("summary", artifacts.summary),
        ("requests", artifacts.requests),
        ("dashboard", artifacts.dashboard),
    ):
        echo(f"{name:<10} {path}")
