"""Simulation of one plan under one load in virtual time, request by request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from servetune.api.frames import frame
from servetune.api.inputs import note_idle
from servetune.api.notes import note, progress
from servetune.api.reporting import write_artifacts
from servetune.api.request import Request, given, request_of
from servetune.api.shared_options import Calibrated, Drafts, Limits, Machine
from servetune.api.simulated_comparison import SimulationComparison, compare_with_simulation
from servetune.engines import DEFAULT_ENGINE, engine, simulated_engines
from servetune.errors import InputError, StoreError
from servetune.metrics import LATENCIES, Constraint, parse_constraints, unmet
from servetune.models import load_shape
from servetune.option import Count, Fraction, NonNegative, NonNegativeCount, Positive, option
from servetune.perf.sim import SimulatedRun, describe_scheduler, without_effect
from servetune.report import timeline_of
from servetune.search import Axis, Space, parse_settings
from servetune.simserver.server_arguments import argument_types
from servetune.store import Artifacts, Journal, TrialRecord, write_requests
from servetune.trials import StudyContext, Trial, simulated_with_requests, trials_of, with_fields
from servetune.workload import CLIENT_ARGS, format_arrivals
from servetune.workload.traces import trace_in

if TYPE_CHECKING:
    import pandas as pd

#: Name of the files in `out`.
STEM = "simulated"

#: Characters of a law of arrivals in a heading; a schedule may have any number of them.
_MOST_SHOWN = 80

#: Options that go with `compare`; plans and loads are those of the file.
_OF_COMPARISON = frozenset(
    {"compare", "model", "gpu", "num_gpus", "instance", "price_per_hour_usd", "calibration"}
)


class SimulatedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan to simulate, besides its drafts."""

    group: ClassVar[str] = "Plan"

    engine: Annotated[
        str,
        option(
            "Engine whose scheduler, defaults and setting names are simulated.",
            choices=simulated_engines,
        ),
    ] = DEFAULT_ENGINE
    tensor_parallel: Annotated[
        Count | None,
        option(
            "Degree of tensor parallelism.",
            "--tensor-parallel",
            "--tp",
            metavar="COUNT",
            default="1",
        ),
    ] = None
    replicas: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)],
        option("Number of copies, which take turns.", metavar="COUNT"),
    ] = 1
    prefill_replicas: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1024)] | None,
        option(
            "Number of further copies that only compute prompts for the others.", metavar="COUNT"
        ),
    ] = None
    kv_link: Annotated[
        Literal["node", "network"] | None,
        option("Link that carries caches between copies, with --prefill-replicas.", default="node"),
    ] = None
    quantization: Annotated[
        str | None,
        option(
            "Number format of the weights as loaded, such as fp8.",
            "--quantization",
            "--precision",
            metavar="NAME",
            default="the checkpoint's",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None, option("Number format of the KV cache.", metavar="NAME", default="the model's")
    ] = None
    max_model_len: Annotated[
        Count | None, option("Longest sequence, prompt and answer, in tokens.", metavar="TOKENS")
    ] = None
    server_args: Annotated[
        tuple[str, ...],
        option(
            "Server settings, as in servetune tune, besides these options.", metavar="NAME=VALUE;.."
        ),
    ] = ()


class SimulatedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load to simulate."""

    group: ClassVar[str] = "Load"

    concurrency: Annotated[
        Count | None,
        option(
            "Concurrent users; each sends its next request when the last is answered. With a rate "
            "or a trace, most requests in flight.",
            "--concurrency",
            "-c",
            metavar="USERS",
        ),
    ] = None
    rate: Annotated[
        Positive | None,
        option("Requests per second, whether or not the server keeps up.", metavar="PER_S"),
    ] = None
    arrivals: Annotated[
        str | None,
        option(
            "Law of arrivals: poisson (with a rate), constant, or in full, such as "
            "kind=gamma,rate_per_s=4,burstiness=0.5 (docs/guides/arrivals.md).",
            metavar="LAW",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        option(
            "Trace of requests to replay: Mooncake JSONL, Azure or BurstGPT CSV, or what "
            "--out wrote.",
            metavar="FILE",
        ),
    ] = None
    time_scale: Annotated[
        Positive | None,
        option("Factor on the trace's times; 0.5 is twice the load.", metavar="FACTOR"),
    ] = None
    requests: Annotated[
        Count | None,
        option(
            "Number of requests.",
            "--requests",
            "--num-prompts",
            "-n",
            metavar="COUNT",
            default="the whole trace, what --duration needs, else 1000",
        ),
    ] = None
    duration_s: Annotated[
        Positive | None,
        option("Seconds after which the run is stopped.", "--duration", metavar="S"),
    ] = None
    input_tokens: Annotated[
        Count | None,
        option("Prompt length, in tokens.", "--input-len", "--input-tokens", metavar="TOKENS"),
    ] = None
    output_tokens: Annotated[
        Count | None,
        option("Answer length, in tokens.", "--output-len", "--output-tokens", metavar="TOKENS"),
    ] = None
    range_ratio: Annotated[
        Fraction | None,
        option(
            "Shortest length as a share of the longest; lengths are uniform between.",
            metavar="FRACTION",
            default="1",
        ),
    ] = None
    input_sd: Annotated[
        NonNegative | None,
        option("Standard deviation of Gaussian prompt lengths, in tokens.", metavar="TOKENS"),
    ] = None
    output_sd: Annotated[
        NonNegative | None,
        option("Standard deviation of Gaussian answer lengths, in tokens.", metavar="TOKENS"),
    ] = None
    prefix_tokens: Annotated[
        Count | None,
        option(
            "Tokens at the beginning of every prompt that it shares with others.",
            "--prefix-len",
            metavar="TOKENS",
        ),
    ] = None
    prefixes: Annotated[
        Count | None, option("Number of different shared beginnings.", metavar="COUNT", default="1")
    ] = None
    dataset: Annotated[
        Literal["random", "sharegpt"] | None,
        option(
            "Data set of the lengths: random has fixed ones, sharegpt its published ones.",
            default="random",
        ),
    ] = None
    workload: Annotated[
        str | None,
        option(
            "Workload by name, such as multi_turn_chat, or a TOML file with one.",
            metavar="NAME|FILE",
        ),
    ] = None
    seed: Annotated[
        NonNegativeCount | None,
        option("Seed of lengths and arrivals.", metavar="NUMBER", default="1"),
    ] = None
    client_args: Annotated[
        tuple[str, ...],
        option(
            "Load settings, as in servetune tune, besides these options.", metavar="NAME=VALUE;.."
        ),
    ] = ()

    def client_settings(self) -> dict[str, Any]:
        """Settings of the load by llm-optimizer's names; `None` where not given."""
        return {
            "max_concurrency": self.concurrency,
            "request_rate": self.rate,
            "arrivals": self.arrivals,
            "dataset_name": "trace" if self.trace else self.dataset,
            "dataset_path": str(self.trace) if self.trace else None,
            "time_scale": self.time_scale,
            "workload": self.workload,
            "num_prompts": self.requests,
            "duration_s": self.duration_s,
            "random_input_len": self.input_tokens,
            "random_output_len": self.output_tokens,
            "random_range_ratio": self.range_ratio,
            "random_input_sd": self.input_sd,
            "random_output_sd": self.output_sd,
            "random_prefix_len": self.prefix_tokens,
            "num_prefixes": self.prefixes,
            "seed": self.seed,
        }


class Simulation(Request, frozen=True, kw_only=True):
    """Simulation of one plan under one load in virtual time."""

    verb: ClassVar[str] = "simulate"
    first: ClassVar[str] = "model"
    group: ClassVar[str] = "Model and outputs"

    model: Annotated[
        str | None,
        option("Model: hub id, local folder, or a name of the catalogue.", metavar="NAME"),
    ] = None
    machine: Machine = Machine()
    plan: SimulatedPlan = SimulatedPlan()
    drafts: Drafts = Drafts()
    load: SimulatedLoad = SimulatedLoad()
    limits: Limits = Limits()
    slo: Annotated[
        str,
        option(
            "Limits on single requests, for goodput.",
            group="Limits",
            metavar="LIMITS",
            default="the latencies of --constraints",
        ),
    ] = ""
    correction: Calibrated = Calibrated()
    out: Annotated[
        Path | None,
        option(
            "Folder for the journal, summary, every request, and a dashboard with timelines.",
            metavar="DIR",
        ),
    ] = None
    token_times: Annotated[bool, option("Times of every token in the requests of --out.")] = False
    compare: Annotated[
        Path | None,
        option("Journal of measured trials to simulate and show side by side.", metavar="FILE"),
    ] = None


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one simulation.

    Attributes:
        record: Record of the trial, as a journal has it.
        run: Records of all requests, and what the engine did.
        heading: Model, machine, plan, load and scheduler, in words.
        constraints: Limits that the trial should hold.
        artifacts: Files that were written; `None` without `out`.
    """

    record: TrialRecord
    run: SimulatedRun
    heading: str
    constraints: tuple[Constraint, ...]
    artifacts: Artifacts | None = None

    @property
    def feasible(self) -> bool:
        """Whether the trial holds its constraints."""
        return not (self.constraints and unmet(self.constraints, self.record.results))

    @property
    def df(self) -> pd.DataFrame:
        """One row per request; needs pandas."""
        return frame([msgspec.structs.asdict(record) for record in self.run.records])


def simulate(
    request: Simulation | str, /, **options: object
) -> SimulationResult | SimulationComparison:
    """Serve a load in virtual time: what a trial would measure, in seconds and without a GPU.

    Args:
        request: The request, or the model.
        options: Fields of `Simulation`.

    Returns:
        A `SimulationResult`; with `compare` a `SimulationComparison` of measured trials.

    Raises:
        PlanError: The plan does not fit, or a request could never be served by it.
        InputError: Options contradict or cannot be read.

    Example:
        >>> import servetune as st
        >>> found = st.simulate("Qwen/Qwen3-4B", gpu="L4", concurrency=4, requests=20)
        >>> found.record.simulated, len(found.run.records)
        (True, 20)
    """
    request = request_of(Simulation, request, options)
    if request.compare is not None:
        for field in given(request):
            if field.name not in _OF_COMPARISON:
                raise InputError(
                    f"--compare simulates what the file says, {field.names[0]} cannot change it",
                    hint="leave it out; --model, --gpu, --instance and --calibration may be given",
                )
        machine = request.machine if request.machine.gpu or request.machine.instance else None
        return compare_with_simulation(
            request.compare,
            request.model,
            machine.node() if machine else None,
            request.correction.kept(),
        )
    if request.model is None:
        raise InputError("simulate needs a model", hint="name one with --model Qwen/Qwen3-4B")
    _require_agreement(request)
    context = _context(request, request.model)
    trial = _trial(request, context)
    artifacts = Artifacts(request.out, STEM) if request.out else None
    if artifacts:
        _require_free(artifacts)
    known = argument_types(request.plan.engine) if engine(request.plan.engine).simulated_as else ()
    note_idle(without_effect(trial.plan), known)
    record, run = simulated_with_requests(trial, context)
    if request.token_times and record.results["server"]["itl_is_tpot"]:
        raise InputError(
            "token times are not kept for so many requests", hint="leave --token-times out"
        )
    if artifacts:
        _write(artifacts, record, run, context.constraints, token_times=request.token_times)
    assert context.node is not None
    heading = f"{request.model} on {context.node.label}, {trial.plan.label}, {_load_text(trial)}"
    return SimulationResult(
        record=record,
        run=run,
        heading=f"{heading}\nas {describe_scheduler(trial.plan)}",
        constraints=context.constraints,
        artifacts=artifacts,
    )


def _require_agreement(request: Simulation) -> None:
    """Refuse options that contradict each other."""
    request.drafts.require_known_method()
    if request.plan.kv_link is not None and request.plan.prefill_replicas is None:
        raise InputError(
            "--kv-link needs separate copies for prompts",
            hint="give their number with --prefill-replicas, or leave --kv-link out",
        )
    if request.token_times and request.out is None:
        raise InputError("--token-times are kept with --out", hint="name a folder with --out DIR")
    if request.load.trace is not None and request.load.dataset is not None:
        raise InputError(
            f"a trace has requests of its own, --dataset {request.load.dataset} cannot be combined",
            hint="leave --dataset or --trace out",
        )


def _context(request: Simulation, model: str) -> StudyContext:
    limits = parse_constraints(request.limits.constraints or "")
    node = request.machine.node(or_cpu=True)
    shape = load_shape(model)
    calibration = request.correction.kept()
    if calibration:
        calibration.require_for(shape=shape, node=node)
    return StudyContext(
        model=model,
        engine=engine(request.plan.engine).simulated_as or request.plan.engine,
        simulated=True,
        shape=shape,
        node=node,
        constraints=limits,
        request_limits=_request_limits(request.slo, limits),
        price_per_hour_usd=node.price.usd_per_hour if node.price else None,
        calibration=calibration,
    )


def _trial(request: Simulation, context: StudyContext) -> Trial:
    plan, drafts, name = request.plan, request.drafts, request.plan.engine
    space = Space(
        server=parse_settings(";".join(plan.server_args), types=argument_types(name)),
        client=parse_settings(
            ";".join(request.load.client_args),
            types=CLIENT_ARGS,
            known=CLIENT_ARGS,
            kind="client argument",
        ),
    )
    words = ("tensor_parallel", "quantization", "kv_cache_dtype", "max_model_len")
    chosen = {_word(name, field): getattr(plan, field) for field in words}
    server = _joined(space, "server", {**chosen, "kv_link": plan.kv_link}, name)
    client = _joined(space, "client", request.load.client_settings(), name)
    _require_arrivals(client)
    fields = {
        "replicas": plan.replicas,
        "prefill_replicas": plan.prefill_replicas,
        "draft_tokens": drafts.draft_tokens,
        "draft_method": drafts.draft_method,
        "draft_acceptance_fraction": drafts.draft_acceptance_fraction,
    }
    return with_fields(_one_trial(server, client, context), context, fields)


def _write(
    artifacts: Artifacts,
    record: TrialRecord,
    run: SimulatedRun,
    constraints: tuple[Constraint, ...],
    *,
    token_times: bool,
) -> None:
    with Journal(artifacts.journal) as journal:
        journal.append(record)
    write_requests(artifacts.requests, run.records, run.admitted_s, token_times=token_times)
    timeline = timeline_of(run.records, run.admitted_s, run.kv_use)
    write_artifacts(artifacts, [record], constraints, timeline=timeline)
    for name, path in (
        ("journal", artifacts.journal),
        ("summary", artifacts.summary),
        ("requests", artifacts.requests),
        ("dashboard", artifacts.dashboard),
    ):
        progress(f"{name:<10} {path}")


def _word(engine_name: str, field: str) -> str:
    """The engine's name for a field of the plan."""
    return next(name for name, its in engine(engine_name).words.fields.items() if its == field)


def _joined(
    space: Space, side: str, chosen: Mapping[str, object], engine_name: str
) -> dict[str, Any]:
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
            else "sweeps of this engine are not simulated; simulate one value after another",
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


def _require_arrivals(client: Mapping[str, object]) -> None:
    if "workload" in client:  # it has users of its own
        return
    stated = {"max_concurrency", "request_rate", "arrivals"} & client.keys()
    if not stated and client.get("dataset_name") != "trace":
        raise InputError(
            "the workload has no arrivals",
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
            note(
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
            raise StoreError(f"{path} exists already", hint="choose another --out")


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
