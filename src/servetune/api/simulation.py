"""Simulation of one plan under one load in virtual time, request by request."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.inputs import note_idle
from servetune.api.load_values import load_values, note_idle_load, require_stated_once
from servetune.api.notebook import NotebookBar, notebook_bar
from servetune.api.notes import note, progress
from servetune.api.registration import RegisteredRun
from servetune.api.request import Request, given, request_of, write_repeating
from servetune.api.run_facts import machine_text
from servetune.api.shared_options import (
    ALLOW_UNKNOWN,
    ENGINE_VERSION,
    MODEL,
    PREFIX_LEN,
    Calibrated,
    Copies,
    Drafts,
    FailureLimits,
    Limits,
    Machine,
    PlanOptions,
    Settings,
    SimulatedEngine,
    own_prompts,
)
from servetune.api.simulated_comparison import SimulationComparison, compare_with_simulation
from servetune.api.timelines import timeline_of_requests
from servetune.api.trials import Trials, run_html, write_artifacts
from servetune.api.wording import keeping_up_text
from servetune.engines import (
    DEFAULT_ENGINE,
    check_weights,
    engine,
    memory,
    priced_release,
    recorded_engine,
    require_known_settings,
    resolved,
)
from servetune.errors import InputError, StoreError
from servetune.metrics import LATENCIES, Constraint, Record, parse_constraints, unmet
from servetune.metrics.stages import by_stage
from servetune.models import load_shape
from servetune.option import Count, Fraction, NonNegative, NonNegativeCount, Positive, option
from servetune.perf.roofline import Interval, performance_at
from servetune.perf.sim import SimulatedRun, describe_scheduler, without_effect
from servetune.search import Axis, Goal, Space, Value, parse_settings
from servetune.simserver.server_arguments import argument_types
from servetune.store import Artifacts, Journal, Results, TrialRecord, write_requests
from servetune.store.register import run_to_continue
from servetune.trials import (
    StudyContext,
    Trial,
    simulated_requests,
    simulated_with_requests,
    trials_of,
    with_fields,
)
from servetune.trials.interval import interval_of_trial
from servetune.units import MS_PER_S, format_seconds
from servetune.workload import (
    CLIENT_ARGS,
    LoadOptions,
    client_arg_of,
    format_arrivals,
    load_options,
    same_client_args,
)
from servetune.workload.arrivals import Piecewise
from servetune.workload.client_args import DATASETS
from servetune.workload.options import (
    STUDY_INPUT_TOKENS,
    STUDY_OUTPUT_TOKENS,
    STUDY_REQUESTS_WORDS,
    spelling,
)
from servetune.workload.traces import trace_in

#: Name of the files in `out`.
STEM = "simulated"

#: Characters of a law of arrivals in a heading; a schedule may have any number of them.
_MOST_SHOWN = 80

#: Client arguments in the order in which a record has them; others follow.
_ORDER = (
    "max_concurrency", "request_rate", "arrivals", "dataset_name", "dataset_path", "time_scale",
    "workload", "num_prompts", "duration_s", "random_input_len", "random_output_len",
    "random_range_ratio", "random_input_sd", "random_output_sd", "random_prefix_len",
    "num_prefixes", "seed",
)  # fmt: skip

#: Options that go with `compare`; plans and loads are those of the file.
_OF_COMPARISON = frozenset(
    {
        *("compare", "model", "gpu", "num_gpus", "instance", "price_per_hour_usd"),
        *("calibration", "server_args"),
    }
)


class SimulatedPlan(PlanOptions, frozen=True, kw_only=True):
    """Plan to simulate, besides its copies and drafts."""

    engine: SimulatedEngine = DEFAULT_ENGINE
    engine_version: Annotated[str | None, ENGINE_VERSION] = None
    server_args: Annotated[
        Settings,
        option(
            "Server settings, as in servetune tune, besides these options.", metavar="NAME=VALUE;.."
        ),
    ] = ()
    allow_unknown: Annotated[bool, ALLOW_UNKNOWN] = False


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of other load clients that `LoadOptions` writes as laws, and their own words."""

    group: ClassVar[str] = LoadOptions.group

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
    prefix_tokens: Annotated[Count | None, PREFIX_LEN] = None
    client_args: Annotated[
        Settings,
        option(
            "Load settings, as in servetune tune, besides these options.", metavar="NAME=VALUE;.."
        ),
    ] = ()

    def settings(self) -> dict[str, Value | None]:
        """Settings by the names of client arguments, besides `client_args`."""
        return {
            "random_range_ratio": self.range_ratio,
            "random_input_sd": self.input_sd,
            "random_output_sd": self.output_sd,
            "random_prefix_len": self.prefix_tokens,
        }


class Simulation(Request, frozen=True, kw_only=True):
    """Simulation of one plan under one load in virtual time."""

    verb: ClassVar[str] = "simulate"
    most_used: ClassVar[tuple[str, ...]] = (
        "model",
        "gpu",
        "num_gpus",
        "concurrency",
        "rate",
        "requests",
        "input_tokens",
        "output_tokens",
        "constraints",
        "out",
    )
    first: ClassVar[str] = "model"
    group: ClassVar[str] = "Model and outputs"
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "input_tokens": STUDY_INPUT_TOKENS,
            "output_tokens": STUDY_OUTPUT_TOKENS,
            "concurrency": "none with a rate or a trace, else that of the workload",
            "requests": f"the whole trace, what --duration needs, else {STUDY_REQUESTS_WORDS}",
        }
    )

    model: Annotated[str | None, MODEL] = None
    machine: Machine = Machine()
    plan: SimulatedPlan = SimulatedPlan()
    copies: Copies = Copies()
    drafts: Drafts = Drafts()
    load: LoadOptions = LoadOptions()
    dataset: Annotated[
        str | None,
        option(
            "Data set of prompts: random has fixed lengths, sharegpt its published ones; or JSON, "
            "JSON lines, CSV, Parquet, hf:NAME.",
            group=LoadOptions.group,
            metavar="NAME|FILE",
            default="random",
        ),
    ] = None
    seed: Annotated[
        NonNegativeCount | None,
        option(
            "Seed of lengths, arrivals and words.",
            group=LoadOptions.group,
            metavar="NUMBER",
            default="1",
        ),
    ] = None
    client: ClientOptions = ClientOptions()
    request_timeout_s: Annotated[
        Positive,
        option(
            "Time limit of each request, in seconds.",
            "--request-timeout",
            "--timeout",
            group=LoadOptions.group,
            metavar="S",
        ),
    ] = 600.0
    limits: Limits = Limits()
    failures: FailureLimits = FailureLimits()
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
        option(
            "Journal of measured trials, or report of inference-perf, to simulate and show side "
            "by side.",
            metavar="FILE|DIR",
            of_run=True,
        ),
    ] = None


class SimulationResult(Tabular, frozen=True, kw_only=True):
    """Result of one simulation.

    Attributes:
        record: Record of the trial, as a journal has it.
        run: Records of all requests, and what the engine did.
        heading: Model, machine, plan, load and scheduler, in words.
        constraints: Limits that the trial should hold.
        interval: Factors on its mean times within which nine of ten measured runs are expected.
        cliff: Sentences on a rate that may not be served within the interval, on users for whom
            there is no place, and on a cache or places that were nearly full or requests that
            queued, with the 99th percentiles of other seeds. Empty where there was room.
        artifacts: Files that were written; `None` without `out`.
    """

    record: TrialRecord
    run: SimulatedRun
    heading: str
    constraints: tuple[Constraint, ...]
    interval: Interval
    cliff: str = ""
    artifacts: Artifacts | None = None

    def __str__(self) -> str:
        from servetune.report import as_text, trial_table

        return as_text(trial_table(self.record, self.constraints, heading=self.heading))

    @property
    def feasible(self) -> bool:
        """Whether requests were answered, and within the constraints."""
        return self.record.failure is None and not (
            self.constraints and unmet(self.constraints, self.record.results)
        )

    def as_rows(self) -> Iterable[TableRow]:
        """One row per request."""
        return self.run.records

    def _repr_html_(self) -> str:
        run = Trials(records=(self.record,), constraints=self.constraints)
        requests = simulated_requests(self.record.key, self.run)
        return run_html(run, requests if self.run.records else None, [self.heading, self.cliff])


class SimulationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a simulation: requests that have ended, or trials with `compare`.

    Attributes:
        done: Number of requests, or of trials, that have ended.
        total: Number of all; a run that ends after a time may need fewer, or more.
        time_s: Virtual time in seconds; `None` for trials.
    """

    done: int
    total: int
    time_s: float | None = None


OnProgress = Callable[[SimulationProgress], None]
"""Callback of a simulation; what it raises ends the simulation."""

#: Calls of a callback in one simulation, at most; one request may take some microseconds.
_MOST_CALLS = 100


def _counted(on_progress: OnProgress | None, total: int) -> Callable[[Record], None] | None:
    """Function that counts records, and reports each hundredth part of all."""
    if on_progress is None:
        return None
    done = itertools.count(1)
    each = max(1, -(-total // _MOST_CALLS))

    def take(record: Record) -> None:
        number = next(done)
        if number % each == 0 or number == total:
            on_progress(SimulationProgress(done=number, total=total, time_s=record.end_s))

    return take


def _counted_trials(on_progress: OnProgress | None) -> Callable[[int, int], None]:
    """Function that reports the number of trials that have ended, of all."""

    def take(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(SimulationProgress(done=done, total=total))

    return take


def simulate(
    request: Simulation | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: object,
) -> SimulationResult | SimulationComparison:
    """Serve a load in virtual time: what a trial would measure, in seconds and without a GPU.

    Args:
        request: The request, or the model.
        on_progress: Called with a `SimulationProgress` up to a hundred times; with `compare`
            after each trial. Without it a notebook shows a bar.
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
    with notebook_bar(quiet=on_progress is not None) as bar:
        return _simulate(request, on_progress if bar is None else _shown_on(bar))


def _shown_on(bar: NotebookBar) -> OnProgress:
    """Callback that shows a simulation in a notebook."""

    def show(progress: SimulationProgress) -> None:
        what = "trials" if progress.time_s is None else "requests"
        count = f"{progress.done:,} of {progress.total:,} {what} simulated"
        bar.show(progress.done / progress.total, count)

    return show


def _simulate(
    request: Simulation, on_progress: OnProgress | None
) -> SimulationResult | SimulationComparison:
    if request.compare is not None:
        for field in given(request):
            if field.name not in _OF_COMPARISON:
                raise InputError(
                    f"--compare simulates what the file says, {field.names[0]} cannot change it",
                    hint="leave it out; --model, --gpu, --instance, --calibration, and for load "
                    "clients' reports --server-args may be given",
                )
        machine = request.machine if request.machine.gpu or request.machine.instance else None
        return compare_with_simulation(
            request.compare,
            request.model,
            machine.node() if machine else None,
            request.plan.server_args,
            request.correction.kept(),
            _counted_trials(on_progress),
        )
    trial, context = simulated_trial(request)
    artifacts = Artifacts(request.out, STEM) if request.out else None
    if artifacts:
        _require_free(artifacts)
    require_known_settings(
        engine(request.plan.engine), trial.plan, allow_unknown=request.plan.allow_unknown
    )
    note_idle(without_effect(trial.plan))
    record, run = simulated_with_requests(
        trial, context, _counted(on_progress, trial.workload.request_count)
    )
    record = _with_stages(trial, record, run)
    if request.token_times and record.results["server"]["itl_is_tpot"]:
        raise InputError(
            "token times are not kept for so many requests", hint="leave --token-times out"
        )
    if artifacts:
        entry = RegisteredRun(
            run_to_continue(artifacts.journal),
            artifacts.journal,
            "simulate",
            records=lambda: [record],
            goal=lambda: Goal(constraints=context.constraints),
        )
        with entry:
            entry.begin(
                model=context.model,
                engine=context.engine,
                client_args=trial.client_args,
                machine=machine_text(context.node),
                seed=trial.workload.seed,
            )
            _write(artifacts, record, run, context.constraints, token_times=request.token_times)
        write_repeating(request_of(Simulation, request, {"out": None}), artifacts.configuration)
    assert context.node is not None
    assert context.shape is not None
    heading = f"{request.model} on {context.node.label}, {trial.plan.label}, {_load_text(trial)}"
    interval = interval_of_trial(trial, context, record.results)
    doubt = "" if run.saturated else _keeping_up(trial, context, record, interval)
    cliff = "\n".join(filter(None, [doubt, _cliff(trial, context, record, run)]))
    schedule = f"as {describe_scheduler(trial.plan)}"
    release = priced_release(trial.plan).sentence
    words = [heading, schedule, release, _interval_text(interval), cliff]
    return SimulationResult(
        record=record,
        run=run,
        heading="\n".join(filter(None, words)),
        constraints=context.constraints,
        interval=interval,
        cliff=cliff,
        artifacts=artifacts,
    )


def _with_stages(trial: Trial, record: TrialRecord, run: SimulatedRun) -> TrialRecord:
    """Record with the results of each step of a rate, where it has steps."""
    arrivals = trial.workload.arrivals
    if not isinstance(arrivals, Piecewise) or arrivals.repeat or not trial.workload.parts:
        return record
    stages = [msgspec.to_builtins(stage) for stage in by_stage(run.records, arrivals.steps)]
    results = Results({**record.results, "stages": stages})
    return msgspec.structs.replace(record, results=results)


#: Users of one copy by which what a plan serves at best is predicted.
_MANY_USERS = (32, 128, 512, 1024)


def _keeping_up(
    trial: Trial, context: StudyContext, record: TrialRecord, interval: Interval
) -> str:
    """Doubt whether an open loop's rate is served; empty without one.

    A run that is shorter than an answer has no time to queue. Of a rate in steps the fastest
    counts.
    """
    load, plan = trial.workload, trial.plan
    requests, law = load.requests(), load.arrivals
    lasted_s = requests[-1].due_s - requests[0].due_s
    answer_ms = record.results.get("mean_e2e_latency_ms")
    rate_per_s = law.mean_rate_per_s(lasted_s) if lasted_s > 0 else None
    if isinstance(law, Piecewise):
        rate_per_s = max(rate for _, rate in law.steps)
    if not rate_per_s or not answer_ms or lasted_s < answer_ms / MS_PER_S or plan.prefill_replicas:
        return ""
    assert context.node is not None
    assert context.shape is not None
    copies, most = plan.replicas * plan.data_parallel, load.concurrency or math.inf
    kept = context.calibration
    most_per_s = max(
        performance_at(
            context.shape,
            context.node,
            plan,
            trial.workload,
            int(min(users * copies, most)),
            calibration=None if kept is None else kept.calibration,
        ).requests_per_s
        for users in _MANY_USERS
    )
    return keeping_up_text(rate_per_s * load.mean_turns(), most_per_s, interval)


def _interval_text(interval: Interval) -> str:
    return (
        f"mean times within a factor of {interval.low_factor:.3g} to {interval.high_factor:.3g}, "
        f"first tokens {interval.ttft_low_factor:.3g} to {interval.ttft_high_factor:.3g}"
    )


#: Share of the cache or of the places from which a little more load changes much, and the most
#: requests that are simulated again to show it.
_NEARLY_FULL, _MOST_AGAIN = 0.95, 20_000
#: Wait of one request in ten from which an open loop is said to queue, in times of what a prompt
#: takes by itself.
_MANY_TIMES = 5


def _cliff(trial: Trial, context: StudyContext, record: TrialRecord, run: SimulatedRun) -> str:
    """Sentence on users without a place, or on what was nearly full or queued, and on the 99th
    percentiles of two further seeds.
    """
    assert context.node is not None
    assert context.shape is not None
    if not record.results.completed or len(run.records) > _MOST_AGAIN:
        return ""
    plan = resolved(trial.plan, context.shape, context.node.device)
    plan = memory(plan, context.shape, context.node.device).served(plan)
    places = (plan.max_num_seqs or math.inf) * plan.replicas * plan.data_parallel
    near, beyond = [], ""
    if run.kv_peak_fraction >= _NEARLY_FULL:
        near.append(f"the cache was {run.kv_peak_fraction:.0%} full")
    if trial.workload.closed_loop:
        users = trial.workload.concurrency
        count = len(run.records) if users is None else users
        if _NEARLY_FULL * places <= count <= places:
            near.append(f"{count} users nearly fill max_num_seqs")
        elif users is not None and users > places:
            waiting = users - int(places)
            wait = "1 of them waits" if waiting == 1 else f"{waiting:,} of them wait"
            beyond = (
                f"past a cliff: {users:,} users have {places:,.0f} places by max_num_seqs, so "
                f"{wait} for one at any time"
            )
    else:
        mean, peak = _in_flight(run.records)
        # Far beyond, requests queue in every run alike.
        if _NEARLY_FULL * places <= peak and mean <= places / _NEARLY_FULL:
            near.append(
                f"{peak} requests were in flight at once, {mean:.3g} on average, of {places} by "
                "max_num_seqs"
            )
        near += _queue(run)
    tails = _tails_over_seeds(trial, context, record) if near else ""
    found = f"near a cliff: {' and '.join(near)}; p99 end-to-end {tails}" if tails else ""
    return "\n".join(filter(None, [beyond, found]))


def _queue(run: SimulatedRun) -> Iterator[str]:
    """Words on requests of an open loop that wait before their prompts are begun.

    Whoever reserves cache for whole answers, as SGLang does, lets requests wait with a cache that
    is not full; and a queue that comes and goes is no backlog at the end of a run.
    """
    due_s = {record.due_s for record in run.records}
    if run.saturated or len(due_s) == 1:  # the table says so; requests of one moment must wait
        return
    begun = [
        (admitted_s - record.sent_s, record.chunk_times_s[0] - admitted_s)
        for record, admitted_s in zip(run.records, run.admitted_s, strict=True)
        if admitted_s is not None and record.chunk_times_s
    ]
    if not begun:
        return
    waits, own = (sorted(times) for times in zip(*begun, strict=True))
    median_s, most_s = waits[len(waits) // 2], waits[len(waits) * 9 // 10]
    if most_s > _MANY_TIMES * own[len(own) // 2]:
        yield (
            f"half of the requests waited {format_seconds(median_s)} or more, one in ten "
            f"{format_seconds(most_s)}, before their prompts were begun"
        )


def _tails_over_seeds(trial: Trial, context: StudyContext, record: TrialRecord) -> str:
    """Range of the 99th percentile of the end-to-end latency over three seeds; empty if unknown."""
    tails = [record.results.get("p99_e2e_latency_ms")]
    for seed in (1, 2):
        load = msgspec.structs.replace(trial.workload, seed=trial.workload.seed + seed)
        again, _ = simulated_with_requests(msgspec.structs.replace(trial, workload=load), context)
        tails.append(again.results.get("p99_e2e_latency_ms"))
    known = [tail / MS_PER_S for tail in tails if tail is not None]
    return f"{min(known):.3g} to {max(known):.3g} s over three seeds" if known else ""


def _in_flight(records: Sequence[Record]) -> tuple[float, int]:
    """Mean and largest number of requests in flight, sent and not ended."""
    sent = [(each.sent_s, each.end_s) for each in records]
    changes = sorted([*((end_s, -1) for _, end_s in sent), *((sent_s, 1) for sent_s, _ in sent)])
    peak = max(itertools.accumulate(change for _, change in changes))
    lasted_s = changes[-1][0] - changes[0][0]
    return sum(end_s - sent_s for sent_s, end_s in sent) / lasted_s, peak


def _require_agreement(request: Simulation) -> None:
    """Refuse options that contradict each other."""
    request.drafts.require_known_method()
    request.copies.require_agreement()
    if request.token_times and request.out is None:
        raise InputError("--token-times are kept with --out", hint="name a folder with --out DIR")
    if request.load.trace is not None and request.dataset is not None:
        raise InputError(
            f"a trace has requests of its own, --dataset {request.dataset} cannot be combined",
            hint="leave --dataset or --trace out",
        )


def _context(request: Simulation, model: str) -> StudyContext:
    limits = parse_constraints(request.limits.constraints or "")
    if any(limit.metric == "energy_per_token_j" for limit in limits):
        raise InputError(
            "energy is measured, and a simulation has none",
            hint="limit it where trials run: tune or bench on NVIDIA GPUs",
        )
    node = request.machine.node(or_cpu=True)
    shape = load_shape(model)
    calibration = request.correction.kept()
    if calibration:
        calibration.require_for(shape=shape, node=node)
    return StudyContext(
        model=model,
        engine=recorded_engine(request.plan.engine),
        simulated=True,
        shape=shape,
        node=node,
        constraints=limits,
        request_limits=_request_limits(request.slo, limits),
        price_per_hour_usd=node.price.usd_per_hour if node.price else None,
        calibration=calibration,
        request_timeout_s=request.request_timeout_s,
        acceptance=request.failures.acceptance(),
    )


def simulated_trial(request: Simulation) -> tuple[Trial, StudyContext]:
    """The trial that a request means, and its terms.

    Raises:
        PlanError: The plan contradicts itself.
        InputError: Options contradict or cannot be read.
    """
    if request.model is None:
        raise InputError("simulate needs a model", hint="name one with --model Qwen/Qwen3-4B")
    _require_agreement(request)
    context = _context(request, request.model)
    plan, copies, drafts, name = request.plan, request.copies, request.drafts, request.plan.engine
    space = Space(
        server=parse_settings(";".join(plan.server_args), types=argument_types(name)),
        client=parse_settings(
            ";".join(request.client.client_args),
            types=CLIENT_ARGS,
            known=CLIENT_ARGS,
            kind="client argument",
        ),
    )
    space.require_sound()
    words = ("tensor_parallel", "quantization", "kv_cache_dtype", "max_model_len")
    chosen = {_word(name, field): getattr(plan, field) for field in words}
    server = _joined(space, "server", chosen, name)
    swept = {name for axis in space.client for name in axis.names}
    client = _joined(space, "client", _client_settings(request, swept), name)
    _require_arrivals(client)
    fields = {
        "engine_version": plan.engine_version,
        "replicas": copies.replicas,
        "prefill_replicas": copies.prefill_replicas,
        "routing": copies.routing,
        "kv_link": copies.kv_link,
        "draft_tokens": drafts.draft_tokens,
        "draft_method": drafts.draft_method,
        "draft_acceptance_fraction": drafts.draft_acceptance_fraction,
    }
    trial = with_fields(_one_trial(server, client, context), context, fields)
    note_idle_load(client, sampled=trial.workload.sampling != "greedy")
    priced_release(trial.plan)  # refuses what is none
    if context.shape is not None:
        device = None if context.node is None else context.node.device
        check_weights(trial.plan, context.shape, device)
    return trial, context


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
    timeline = timeline_of_requests(simulated_requests(record.key, run))
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


def _client_settings(request: Simulation, client_args: Collection[str]) -> dict[str, Value | None]:
    """The load by the names and in the order in which journals have it.

    Raises:
        InputError: A client argument has the same meaning as an option.
    """
    settings = request.client.settings()
    others = {*client_args, *(name for name, value in settings.items() if value is not None)}
    options = load_values(request)
    for option_name, value in options.items():
        named = _recorded(option_name, value, options, others)
        usual = client_arg_of(option_name) in named
        same = same_client_args(option_name) - named.keys() if usual else {option_name}
        require_stated_once(option_name, same, others)
        settings |= named
    first = {name: settings.pop(name) for name in _ORDER if name in settings}
    return {**first, **settings}


def _recorded(
    name: str, value: Value, options: Mapping[str, Value], others: Collection[str]
) -> dict[str, Value]:
    """An option of the load as client arguments: llm-optimizer's, where it has them."""
    if name == "trace":
        return {"dataset_name": "trace", "dataset_path": value}
    if name == "dataset" and value in DATASETS:
        return {"dataset_name": value}
    drawn = "workload" not in options and options.get("dataset", "random") in DATASETS
    if name in ("input_tokens", "output_tokens") and drawn and (tokens := str(value)).isdecimal():
        return {f"random_{name.removesuffix('_tokens')}_len": int(tokens)}
    if name == "prefixes" and "random_prefix_len" in others:
        return {"num_prefixes": value}
    return {client_arg_of(name): value}


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
            hint=f"sweep with servetune tune --engine {engine(engine_name).simulated_as}",
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
    stated = {"max_concurrency", "concurrency", "request_rate", "rate", "arrivals", "trace"}
    if not stated & client.keys() and client.get("dataset_name") != "trace":
        raise InputError(
            "the workload has no arrivals",
            hint="give --concurrency 32, --rate 4, --arrivals kind=... or --trace FILE",
        )
    if client.get("dataset_name") not in ("trace", "sharegpt"):
        return
    for option_name in ("shared_prefix_tokens", "prefixes", "distinct_prompts"):
        if client["dataset_name"] == "sharegpt" and client_arg_of(option_name) in client:
            raise own_prompts("sharegpt", spelling(option_name))
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
        recorded = trace_in(source.path, source.time_scale, load_options(client).requests)
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
    options = load_options(args)
    users, law = workload.concurrency, args.get("arrivals", "")
    if workload.trace is not None:
        how = f"trace {workload.trace.path}"
        how += f", times x {args['time_scale']:g}" if "time_scale" in args else ""
    elif options.rate is not None and not workload.closed_loop and "=" not in law:
        how = f"{options.rate:g} requests/s, {law or 'poisson'}"
    elif law or not workload.closed_loop:
        how = format_arrivals(workload.arrivals)
        how = how if len(how) <= _MOST_SHOWN else f"{how[:_MOST_SHOWN]}..."
    else:
        how = f"{users} users" if users else "all requests at once"
        users = None
    how += f", at most {users} in flight" if users else ""
    if workload.trace is None:
        how += f", {workload.name}" + ("" if "workload" in args else " lengths")
    if options.shared_prefix_tokens is not None:
        place = "before each" if "random_prefix_len" in args else "at the beginning of each"
        count = options.prefixes or 1
        how += f", {options.shared_prefix_tokens} tokens {place} of {count} kind"
        how += "s" if count > 1 else ""
    if options.distinct_prompts is not None:
        how += f", {options.distinct_prompts} different prompts"
    return how + f", seed {workload.seed}"
