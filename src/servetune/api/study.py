"""Study: every combination of server and client settings, run or simulated, and the best."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from types import FrameType

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.mlflow_logging import MlflowLogger
from servetune.api.notebook import NotebookBar, notebook_bar
from servetune.api.notes import note, progress
from servetune.api.registration import RegisteredRun
from servetune.api.request import command_words, request_of, write_repeating
from servetune.api.run_facts import machine_text
from servetune.api.study_request import Study, note_leftovers
from servetune.api.study_setup import StudySetup, study_setup
from servetune.api.telemetry import StudySpans
from servetune.api.timelines import TimelineKeeper, interesting_keys, timelines_for_page
from servetune.api.trials import Pick, Trials, pick_from, write_artifacts
from servetune.cluster import ClusterEvents, require_capacity, run_trials_on_cluster
from servetune.errors import ExitStatus, InputError, StoreError
from servetune.json_value import JsonMembers, JsonObject
from servetune.metrics import unmet
from servetune.report import candidates_of, digest_html, picks, text_html
from servetune.search import OBJECTIVES, Objective, SearchSummary, recommend
from servetune.secret import redacted, redacted_text
from servetune.servers.launchers import Job, kubernetes_job, slurm_script
from servetune.store import (
    Artifacts,
    BestSoFar,
    Journal,
    RunStatus,
    TrialConfig,
    TrialRecord,
    keep_timelines,
    latest,
)
from servetune.store.register import run_to_continue
from servetune.trials import (
    AskedTrials,
    ExecutionPolicy,
    FoundLoad,
    LargestLoads,
    LoadKnob,
    RunWatch,
    ServerEvents,
    Trial,
    TrialEvents,
    TrialRequests,
    TrialSearch,
    commands_of,
    problems_of,
    run_asked_trials,
    run_trials,
    unable_keys,
)
from servetune.trials.order import finished_records, is_put_off
from servetune.units import format_seconds


class PlannedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Server that a dry run would start, and its trials, without credentials.

    Attributes:
        command: Command line, or a comment on the server that exists already.
        server_args: Server settings, in the engine's words.
        loads: Client arguments of each trial.
        problems: Reasons for which trials of it cannot run; empty where all can.
        finds: Client argument whose largest value is to be found; empty where all trials run.
    """

    command: str
    server_args: JsonObject
    loads: tuple[JsonObject, ...]
    problems: tuple[str, ...] = ()
    finds: str = ""


class StudyResult(Tabular, frozen=True, kw_only=True):
    """Result of a study.

    Attributes:
        trials: Trials that ended, those of earlier calls among them.
        artifacts: Paths of journal, summary, dashboard and configuration.
        compared: Records shown beside them.
        interrupted: True where the user stopped it; `resume=True` continues it.
        simulated: True where trials are simulated.
        planned: Servers of a dry run; empty otherwise.
        job: Text of the job that was asked for instead of a run; empty otherwise.
        search: Strategy, number of trials and reason of the end; `None` where nothing ran.
        loads: Largest load of each server configuration, where one was to be found.
    """

    trials: Trials
    artifacts: Artifacts
    compared: tuple[TrialRecord, ...] = ()
    interrupted: bool = False
    simulated: bool = False
    planned: tuple[PlannedServer, ...] = ()
    job: str = ""
    search: SearchSummary | None = None
    loads: tuple[FoundLoad, ...] = ()

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 no trial holds the constraints; 2 none could run; 3 one failed
        that should have run; 130 interrupted.
        """
        if self.interrupted:
            return ExitStatus.INTERRUPTED
        return _status_of(self.trials) if self.trials.records else 0

    def as_rows(self) -> Iterable[TableRow]:
        """One row per trial, as of `Trials`; after a dry run its settings alone."""
        if not self.planned:
            return self.trials.as_rows()
        return (
            {f"server.{name}": value for name, value in server.server_args.items()}
            | {f"client.{name}": value for name, value in load.items()}
            for server in self.planned
            for load in server.loads
        )

    def pick(self, objective: str | Sequence[str] | None = None) -> Pick:
        """The best trial among those that hold the constraints, and why.

        Args:
            objective: Objective in place of the study's; several for the Pareto set.
        """
        return pick_from(self.trials, objective)

    def __str__(self) -> str:
        if self.job:
            return self.job.rstrip("\n")
        if self.planned:
            return "\n".join(self._plan_lines())
        return "\n".join(map(str, (self.pick(), *self.loads)))

    def _repr_html_(self) -> str:
        if self.job:
            return text_html(self.job)
        if self.planned:
            return super()._repr_html_()
        page = self.trials.page() if self.trials.records else ""
        return digest_html(self.trials.digest([str(each) for each in self.loads]), page)

    def _plan_lines(self) -> Iterator[str]:
        finds = self.planned[0].finds
        unit = f"searches for the largest {finds}" if finds else "trials"
        for number, server in enumerate(self.planned, start=1):
            yield f"# server {number} of {len(self.planned)}, {len(server.loads)} {unit}"
            yield server.command
            for load in server.loads:
                text = ";".join(f"{name}={value}" for name, value in load.items())
                yield f"#   load: {text or 'defaults'}"
            yield from (f"#   cannot run: {problem}" for problem in server.problems)
        trials = sum(len(server.loads) for server in self.planned)
        yield (
            f"# {trials} {unit} on {len(self.planned)} server configurations; nothing was "
            f"{'simulated' if self.simulated else 'started'}"
        )


def tune(
    request: Study | str | None = None,
    /,
    *,
    on_progress: OnProgress | None = None,
    **options: object,
) -> StudyResult:
    """Run or simulate every combination of server and client settings.

    It blocks until the last trial has ended; `await asyncio.to_thread(st.tune, ...)` does not.
    Each record is in the journal as soon as its trial ends.

    Args:
        request: The request, or the model.
        on_progress: Called with a `TrialDone` after each trial, one call at a time, not always
            from the same thread. Without it a notebook shows a bar.
        options: Fields of `Study`.

    Returns:
        Trials and files; with `dry_run` the servers that would be started, with `job` its text.

    Raises:
        ServetuneError: Options contradict, a name is not known, nothing fits the machine, the
            engine is not installed, or files of another study are in the way.
        InputError: `on_progress` raised an exception, which is the cause; servers are stopped
            and the trials that ended are kept.

    Example:
        >>> import servetune as st
        >>> found = st.tune(
        ...     "Qwen/Qwen3-4B",
        ...     engine="simulated",
        ...     gpu="L4",
        ...     num_gpus=2,
        ...     server_args="tensor_parallel_size=[1,2]",
        ...     client_args="num_prompts=50",
        ...     concurrency=[8, 32],
        ...     dry_run=True,
        ... )
        >>> len(found.planned), found.planned[0].loads[0]["max_concurrency"]
        (2, 8)
    """
    if on_progress is not None and not callable(on_progress):
        raise InputError("on_progress is no function", hint="it is called with a TrialDone")
    study = request_of(Study, request, options)
    setup = study_setup(study)
    goal = setup.context.goal
    nothing = Trials(
        records=(),
        constraints=goal.constraints,
        objectives=goal.objectives,
        ladder=goal.ladder,
    )
    result = StudyResult(
        trials=nothing,
        artifacts=setup.artifacts,
        compared=setup.compared,
        simulated=setup.context.simulated,
    )
    if study.clusters.job is not None:
        return msgspec.structs.replace(result, job=_job_text(setup))
    if study.files.dry_run:
        progress(f"# results would go to {setup.artifacts.summary}")
        return msgspec.structs.replace(result, planned=tuple(_planned(setup)))
    setup.artifacts.require_free(renew=study.files.resume and setup.artifacts.journal.exists())
    if study.clusters.cluster is not None:
        require_capacity(setup.groups, setup.context, setup.launch, study.clusters.cluster)
    policy = execution_policy(setup)
    asked = _search(setup, policy)
    if policy.strategy == "tpe" and len(setup.context.objectives) > 1:
        first = setup.context.objectives[0].name
        note(f"note: strategy tpe searches for {first} alone; guided and nsga2 take several")
    if isinstance(asked, AskedTrials) and not study.files.resume:
        asked.require_hope()
    run, first_trial = run_to_continue(setup.artifacts.journal), setup.groups[0][0]
    spans = _spans(setup, run)
    with (
        _mlflow(setup) as logged,
        Journal(setup.artifacts.journal, resume=study.files.resume, run=run) as journal,
        RegisteredRun(
            run, journal.path, "tune", records=lambda: journal.records, goal=lambda: goal
        ) as entry,
    ):
        entry.begin(
            model=setup.context.model,
            engine=setup.context.engine,
            client_args=first_trial.client_args,
            machine=machine_text(setup.context.node),
            seed=first_trial.workload.seed,
        )
        try:
            with notebook_bar(quiet=on_progress is not None) as bar:
                watch = on_progress if bar is None else _shown_on(bar)
                watch = _both(_both(watch, logged), spans)
                interrupted = run_study(setup, policy, asked, journal, watch, spans)
                entry.interrupted = interrupted
        except _CallbackRaised:
            _write(setup, journal, asked.summary(interrupted=True))
            raise
        search = asked.summary(interrupted=interrupted)
        records = _write(setup, journal, search)
    if logged is not None:
        logged.finish(setup.artifacts, interrupted=interrupted)
    if spans is not None:
        spans.finish()
    return msgspec.structs.replace(
        result,
        trials=msgspec.structs.replace(
            nothing, records=records, source=setup.artifacts.journal, search=search
        ),
        interrupted=interrupted,
        search=search,
        loads=asked.found() if isinstance(asked, LargestLoads) else (),
    )


@contextmanager
def _mlflow(setup: StudySetup) -> Iterator[MlflowLogger | None]:
    """Logger to MLflow, where that was asked; its run ends with an error of the study, too."""
    if setup.request.files.mlflow is None:
        yield None
        return
    logged = MlflowLogger(setup.request.files.mlflow, name=setup.artifacts.stem)
    try:
        yield logged
    except BaseException:
        logged.finish(setup.artifacts, interrupted=True)
        raise


def _spans(setup: StudySetup, run: str) -> StudySpans | None:
    """Spans of the study for a collector, where that was asked.

    Raises:
        InputError: The trials are simulated, or the collector's address or the SDK is missing.
    """
    named = setup.request.files.otel_endpoint
    if named is None:
        return None
    if setup.context.simulated:
        raise InputError(
            "--otel is for requests to a server, and a simulation sends none", hint="leave it out"
        )
    return StudySpans(named, run)


def _both(first: OnProgress | None, then: OnProgress | None) -> OnProgress | None:
    """One callback of two."""
    if first is None or then is None:
        return first or then

    def call(event: TrialDone) -> None:
        then(event)
        first(event)

    return call


def _shown_on(bar: NotebookBar) -> OnProgress:
    """Callback that shows each trial in a notebook as it ends."""

    def show(event: TrialDone) -> None:
        bar.show(event.done / event.total, f"{event.done:,} of {event.total:,} trials", str(event))

    return show


def _search(setup: StudySetup, policy: ExecutionPolicy) -> TrialSearch:
    """Search among the trials, or for the largest load of each server configuration."""
    if setup.knob is not None:
        return LargestLoads(setup.groups, setup.knob, setup.context, policy)
    unable = unable_keys(setup.groups, setup.context)
    return AskedTrials(setup.groups, unable, setup.context, policy)


def _write(setup: StudySetup, journal: Journal, search: SearchSummary) -> tuple[TrialRecord, ...]:
    """Write summary and dashboard of the trials that have ended; these trials."""
    records = tuple(latest(journal.records))
    if records:  # none where it was interrupted before the first trial ended
        goal = setup.context.goal
        chosen = picks(records, goal.constraints, goal.objectives, ladder=goal.ladder)
        file = setup.artifacts.timelines
        if setup.request.files.keep_timelines == "picks":
            with suppress(StoreError):  # where there is no room, all stay
                keep_timelines(file, interesting_keys(records, chosen))
        write_artifacts(
            setup.artifacts,
            records,
            goal.constraints,
            compared=setup.compared,
            timelines=timelines_for_page([file], records, chosen),
            chosen=chosen,
            search=search,
        )
    return records


def _planned(setup: StudySetup) -> Iterator[PlannedServer]:
    commands = commands_of(setup.groups, setup.context, setup.launch)
    for group, command in zip(setup.groups, commands, strict=True):
        yield PlannedServer(
            command=redacted_text(command),
            server_args=redacted(group[0].server_args),
            loads=tuple(redacted(_load_of(trial, setup.knob)) for trial in group),
            problems=problems_of(group, setup.context),
            finds=setup.knob.name if setup.knob else "",
        )


def _load_of(trial: Trial, knob: LoadKnob | None) -> JsonObject:
    """Client arguments of a trial, with the bounds of a load that is to be found."""
    return {**trial.client_args, **({knob.name: knob.range_text} if knob else {})}


def _job_text(setup: StudySetup) -> str:
    """The study as a job that runs on a machine like its own.

    Raises:
        InputError: The machine has no GPU, or the job needs an image.
    """
    clusters, node = setup.request.clusters, setup.node
    command = command_words(setup.request, without=("job", "job_image", "job_folder"))
    if redacted(command) != list(command):
        raise InputError(
            "the text of the job would show a secret of the command",
            hint="export it, and pass it by name: --server-env NAME, or '$NAME' in a header",
        )
    job = Job(
        command=command,
        gpus=node.device_count,
        limit_s=setup.request.schedule.budget_s,
        image=clusters.job_image,
        folder=clusters.job_folder,
    )
    if node.device.architecture == "cpu":
        raise InputError("a job needs to know its GPUs", hint="name them with --gpu and --num-gpus")
    text = slurm_script(job) if clusters.job == "slurm" else kubernetes_job(job)
    how = "sbatch" if clusters.job == "slurm" else "kubectl apply -f"
    progress(f"# nothing was started; save it and pass it to {how}")
    return text


def _status_of(trials: Trials) -> int:
    ok = [record for record in trials.records if record.status == "ok"]
    # A load that a configuration cannot bear is a finding where another trial bears it.
    expected = {"does_not_fit", "budget", *(("error_rate", "wrong_length") if ok else ())}
    if any(each.failure and each.failure.kind not in expected for each in trials.records):
        return 3
    if not ok:
        return 2
    limits = trials.constraints
    return int(bool(limits) and all(unmet(limits, record.results) for record in ok))


#: Share of the median TTFT: a load client that is later than this spoils what it measures.
TRUSTED_SHARE = 0.1
#: Lag of the load client that is not worth a note.
SMALL_LAG_S = 0.005


class TrialDone(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a study: a trial ended, well or not.

    Attributes:
        record: Trial that ended, as the journal has it.
        done: Number of the study's trials that the journal has.
        total: Number of the study's trials.
        best: Best trial so far by the study's first objective among those that hold the
            constraints, else the nearest miss; `None` while no trial has a result.
        left_s: Time that the missing trials take if they take as long as those so far; `None`
            while nothing was timed.
        swept: Names of the settings that differ between the study's trials.
        objective: The study's first objective.
    """

    record: TrialRecord
    done: int
    total: int
    best: TrialRecord | None
    left_s: float | None = None
    swept: frozenset[str] = frozenset()
    objective: Objective = OBJECTIVES["throughput"]

    def __str__(self) -> str:
        return _progress_line(self)


OnProgress = Callable[[TrialDone], None]
"""Callback of a study. Calls come one at a time, from several threads."""


def run_study(
    setup: StudySetup,
    policy: ExecutionPolicy,
    asked: TrialSearch,
    journal: Journal,
    on_progress: OnProgress | None,
    spans: StudySpans | None = None,
) -> bool:
    """Run the trials that the strategy asks for and the journal lacks.

    Args:
        setup: The study.
        policy: Strategy, servers side by side and limits.
        asked: Trials as the strategy asks for them.
        journal: Open; takes each record as its trial ends.
        on_progress: Called after each trial.
        spans: Spans of the study; `None` where none are sent.

    Returns:
        Whether the user interrupted it (Ctrl-C, or SIGTERM in the main thread).
    """
    study = setup.request
    finished = finished_records(
        journal.records, setup.context, retry_failed=study.files.retry_failed
    )
    for record in finished:
        asked.tell(record)
    _require_time_for_a_trial(policy, finished, asked)
    once = request_of(Study, study, {"resume": False, "retry_failed": False})
    write_repeating(once, setup.artifacts.configuration)
    file = None if study.files.keep_timelines == "none" else setup.artifacts.timelines
    timelines = TimelineKeeper(file, resume=study.files.resume)
    count = _ProgressCount(setup, asked, journal, timelines, on_progress)
    done = {record.key for record in finished if asked.has(record)}
    if finished:
        progress(f"{len(done)} of {count.total} trials are in the journal already")
    try:
        with (
            _sigterm_as_interrupt(),
            closing(timelines),
            _watch(setup, policy, asked, count, spans) as watch,
        ):

            def requests(sent: TrialRequests) -> None:
                timelines.take(sent)
                if spans is not None:
                    spans.sent(sent)

            events = TrialEvents(ended=count.ended, say=progress, requests=requests)
            _run(setup, done, policy, asked, events, watch, timelines)
            put_off = [record for record in latest(journal.records) if is_put_off(record)]
            watch.interrupted = bool(put_off)
    except KeyboardInterrupt:
        progress(
            f"interrupted; {count.done} of {count.total} trials are safe in "
            f"{setup.artifacts.journal}\nhint: run the same command with --resume to go on"
        )
        return True
    if put_off:
        assert put_off[0].failure is not None
        progress(
            f"{len(put_off)} of {count.total} trials were put off: {put_off[0].failure.reason}\n"
            "hint: run the same command with --resume to go on"
        )
    return False


def _watch(
    setup: StudySetup,
    policy: ExecutionPolicy,
    asked: TrialSearch,
    count: _ProgressCount,
    spans: StudySpans | None,
) -> RunWatch:
    """Watch of the study, whose status has what is known of it as a whole."""
    refuses = ""
    if setup.context.simulated:
        refuses = "a simulated trial is computed in one go"
    elif setup.request.clusters.cluster is not None:
        refuses = "its server runs on another machine"
    elif isinstance(asked, LargestLoads):
        refuses = asked.put_off("")

    def overview(status: RunStatus) -> RunStatus:
        left_s = [count.left_s(), policy.budget.left_s() if policy.budget else None]
        return msgspec.structs.replace(
            status,
            verb="tune",
            model=redacted_text(setup.context.model),
            done=count.done,
            of=count.total,
            best=count.best_so_far(),
            regret_fraction=asked.regret_fraction,
            time_left_s=min((each for each in left_s if each is not None), default=None),
            refuses_put_off=refuses,
        )

    return RunWatch(
        setup.artifacts,
        overview=overview,
        label_of=count.label_of,
        put_off=lambda key: refuses or asked.put_off(key),
        say=progress,
        servers=ServerEvents(begins=spans.began, ended=spans.served) if spans else None,
    )


def execution_policy(setup: StudySetup) -> ExecutionPolicy:
    """Execution policy of a study; servers that an earlier run left on this machine are noted.

    Raises:
        InputError: An option of the schedule cannot be read.
        EngineError: A device that is needed is busy or missing.
    """
    here = setup.request.clusters.cluster is None
    starts_here = here and not setup.context.simulated and setup.launch.url is None
    if starts_here:
        note_leftovers()
    return setup.request.schedule.policy(
        setup.groups,
        setup.node,
        real=starts_here and setup.launch.server_cmd is None,
        own_program=setup.launch.executable is not None,
        on_this_machine=here,
        predictable=setup.context.shape is not None,
    )


class _CallbackRaised(InputError):
    """A callback of the user that raised an exception, which is the cause."""


class _ProgressCount:
    """Progress of a study: writes each record to the journal and reports it."""

    def __init__(
        self,
        setup: StudySetup,
        asked: TrialSearch,
        journal: Journal,
        timelines: TimelineKeeper,
        on_progress: OnProgress | None,
    ) -> None:
        self._asked, self._journal, self._on_progress = asked, journal, on_progress
        self._timelines = timelines
        self._goal = setup.context.goal
        self._done = {record.key for record in journal.records if asked.has(record)}
        self._before, self._started_s = len(self._done), time.monotonic()
        self._swept = _swept_names([trial for group in setup.groups for trial in group])
        if setup.knob is not None:
            self._swept |= {setup.knob.name, "seed"}
        self._best = self._better(*latest(journal.records))
        self._ended_s = self._started_s

    @property
    def done(self) -> int:
        """Number of the study's trials that the journal has."""
        return len(self._done)

    @property
    def total(self) -> int:
        """Number of the study's trials, as far as it is known."""
        return max(self._asked.expected_count, self.done)

    def ended(self, record: TrialRecord) -> None:
        self._keep(record)
        self._ended_s = time.monotonic()
        if self._asked.has(record):
            self._done.add(record.key)
        self._best = self._better(*([self._best] if self._best else ()), record)
        event = TrialDone(
            record=record,
            done=self.done,
            total=self.total,
            best=self._best,
            left_s=self.left_s(),
            swept=self._swept,
            objective=self._goal.wanted[0],
        )
        progress(str(event))
        self._report(event)

    def _keep(self, record: TrialRecord) -> None:
        """Write a record to the journal, if need be in the room of the timelines."""
        try:
            self._journal.append(record)
        except StoreError as error:
            full = getattr(error.__context__, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
            if not full or not self._timelines.make_room():
                raise
            self._journal.append(record)

    def _report(self, event: TrialDone) -> None:
        """Call the user's function; it is not called again once it has raised.

        Raises:
            InputError: It raised an exception, which is the cause.
        """
        if self._on_progress is None:
            return
        try:
            self._on_progress(event)
        except Exception as error:  # the user's code may raise anything
            self._on_progress = None
            raise _CallbackRaised(
                f"on_progress raised {type(error).__name__}: {error}",
                hint=f"{self.done} of {self.total} trials are safe in {self._journal.path}; "
                "resume=True goes on",
            ) from error

    def left_s(self) -> float | None:
        """Time to the end if the missing trials take as long as those so far."""
        ended = self.done - self._before
        if ended <= 0:
            return None
        left_s = (self._ended_s - self._started_s) / ended * (self.total - self.done)
        return max(0.0, left_s - (time.monotonic() - self._ended_s))

    def best_so_far(self) -> BestSoFar | None:
        """Best trial so far, as the status of the run has it."""
        best, objective = self._best, self._goal.wanted[0]
        if best is None:
            return None
        return BestSoFar(
            label=redacted_text(_settings_text(best.config, self._swept)),
            metric=objective.title,
            value=objective.value(best.results),
        )

    def label_of(self, trial: Trial) -> str:
        """Settings of a trial that differ in the study."""
        return _settings_text(trial, self._swept)

    def _better(self, *records: TrialRecord) -> TrialRecord | None:
        goal = self._goal
        chosen = recommend(
            candidates_of(records), goal.constraints, goal.wanted[:1], ladder=goal.ladder
        ).chosen
        return next((each for each in records if chosen and each.key == chosen.key), None)


def _require_time_for_a_trial(
    policy: ExecutionPolicy, finished: Sequence[TrialRecord], asked: TrialSearch
) -> None:
    """Refuse less time than one trial needs, as far as that is known before anything starts.

    A server needs as long as the quickest start of those that ran so far.

    Raises:
        InputError: The budget is too small.
    """
    left_s = policy.budget.left_s() if policy.budget else None
    if left_s is None or not asked.waiting:
        return
    more = "give more with --max-time or --max-cost"
    if left_s <= 0 and not asked.runs_all:
        assert policy.budget is not None
        raise InputError(f"{policy.budget.exceeded()} before a trial could begin", hint=more)
    starts_s = [record.results.get("server_ready_s") for record in finished]
    least_s = min((float(start_s) for start_s in starts_s if start_s), default=0.0)
    if left_s < least_s:
        raise InputError(
            f"the budget leaves {format_seconds(left_s)}, and no start of a server took less than "
            f"{format_seconds(least_s)}",
            hint=more,
        )


def _run(
    setup: StudySetup,
    done: Collection[str],
    policy: ExecutionPolicy,
    asked: TrialSearch,
    events: TrialEvents,
    watch: RunWatch,
    timelines: TimelineKeeper,
) -> None:
    address = setup.request.clusters.cluster
    logs = setup.artifacts.logs
    if address is None and policy.parallel == 1:
        if policy.strategy == "guided":
            progress(f"{len(asked.waiting)} trials are predicted")
        run_asked_trials(
            asked,
            setup.context,
            setup.launch,
            logs=logs,
            ended=events.ended,
            say=events.say,
            policy=policy,
            watch=watch,
            requests=events.requests,
        )
        return

    assert isinstance(asked, AskedTrials), "a search for a load runs one trial after the other"

    def told(record: TrialRecord) -> None:
        events.ended(record)
        asked.tell(record)

    groups = _to_run_at_once(setup.groups, done, asked)
    if address is None:
        run_trials(
            groups,
            setup.context,
            setup.launch,
            logs=logs,
            ended=told,
            say=events.say,
            policy=policy,
            watch=watch,
            requests=events.requests,
        )
        return
    run_trials_on_cluster(
        groups,
        setup.context,
        setup.launch,
        address=address,
        logs=logs,
        events=ClusterEvents(
            ended=told, say=progress, timeline=timelines.keep if timelines.keeps else None
        ),
        policy=policy,
        watch=watch,
    )


def _to_run_at_once(
    groups: Sequence[list[Trial]], done: Collection[str], asked: AskedTrials
) -> list[list[Trial]]:
    """Trials that are missing, of a strategy that no outcome changes."""
    if asked.runs_all:
        return [[trial for trial in group if trial.key not in done] for group in groups]
    chosen = {trial.key for trial in asked.chosen()}
    return [[trial for trial in group if trial.key in chosen] for group in groups]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM stops the servers, too; only the main thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


#: Time left that is worth saying.
_WORTH_SAYING_S = 10.0


def _swept_names(trials: Sequence[Trial]) -> frozenset[str]:
    """Settings of server and load that differ between trials."""
    first = trials[0] if trials else None
    return (
        frozenset(
            name
            for trial in trials[1:]
            for mine, other in (
                (trial.server_args, first.server_args),
                (trial.client_args, first.client_args),
            )
            for name in mine.keys() | other.keys()
            if mine.get(name) != other.get(name)
        )
        if first
        else frozenset()
    )


def _settings_text(trial: TrialConfig | Trial, swept: frozenset[str]) -> str:
    """Settings of a trial that differ in its study; all of them where none does."""
    settings = {**trial.server_args, **trial.client_args}
    return " ".join(
        f"{name}={value}" for name, value in settings.items() if name in swept or not swept
    )


def _progress_line(event: TrialDone) -> str:
    record, results = event.record, event.record.results
    settings = _settings_text(record.config, event.swept)
    head = f"[{event.done}/{event.total}] {'simulated ' if record.simulated else ''}{settings}"
    again = results.get("measured_again")
    if again:
        line = f"{head}: measured again, {again['words']}"
    elif record.failure:
        line = f"{head}: FAILED ({record.failure.kind}) {record.failure.reason}"
    else:
        latency_s = (results.get("p99_e2e_latency_ms") or 0) / 1000
        line = (
            f"{head}: {results.get('output_throughput') or 0:,.0f} output tokens/s, "
            f"p99 end-to-end {format_seconds(latency_s)}, "
            f"{results.get('completed')} ok, {results.get('failed')} failed"
        )
    more = [] if record.failure else list(_doubts(results))
    return "\n  ! ".join([line, *more]) + _outlook(event)


def _outlook(event: TrialDone) -> str:
    """Time left and the best trial so far, where waiting for them is long enough."""
    if event.left_s is None or event.left_s < _WORTH_SAYING_S:
        return ""
    words = [f"about {format_seconds(event.left_s)} left"]
    best = event.best
    if best is not None:
        settings = _settings_text(best.config, event.swept)
        words.append(f"best so far: {settings} with {_best_text(event)}")
    return f"\n  {'; '.join(words)}"


def _best_text(event: TrialDone) -> str:
    """Value of the objective of the best trial so far."""
    assert event.best is not None
    value = event.objective.value(event.best.results) or 0.0
    if event.objective.name == "throughput":
        return f"{value:,.0f} output tokens/s"
    return f"{event.objective.title} {event.objective.shown(value)}"


def _doubts(results: JsonMembers) -> Iterator[str]:
    """Reasons why the figures may not be what was configured."""
    lag_s = (results.get("instrument") or {}).get("loop_lag_p99_s") or 0.0
    smallest_s = (results.get("median_ttft_ms") or 0.0) / 1000
    if lag_s > max(SMALL_LAG_S, TRUSTED_SHARE * smallest_s):
        yield (
            f"the load client itself came up to {format_seconds(lag_s)} late (p99): "
            "this machine is too busy for these latencies to be trusted"
        )
    wrong = results.get("wrong_length") or {}
    if wrong.get("count"):
        yield (
            f"{wrong['count']:,} answers have another length than asked, such as "
            f"{wrong['samples'][0]}"
        )
