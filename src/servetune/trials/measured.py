"""Trials on a real server: started once per server configuration, loaded once per trial."""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from servetune.errors import EngineError, InputError, LoadError, PlanError, PortBusy
from servetune.json_value import JsonObject
from servetune.loadgen import (
    DEFAULT_GRACE_S,
    LoadHooks,
    LoadResult,
    LoadSettings,
    SentRequests,
    Target,
    fetch_blocking,
    models_are_simulated,
    parse_models,
    parse_speed,
    run_load_blocking,
)
from servetune.metrics import Constraint
from servetune.servers import ServerCopies, ServerOptions, ServerProcess, launch_environment
from servetune.servers.gpus import card_numbers
from servetune.servers.launchers import Placement, guarded, removal
from servetune.store import Failure, PredictionInterval, Results, TrialRecord, now_utc, provenance
from servetune.trials.early import TrialJudge
from servetune.trials.failures import death_soon, failure_of, load_failure, not_accepted, unanswered
from servetune.trials.interval import recorded_interval
from servetune.trials.launch import (
    EngineProgram,
    Launch,
    Server,
    free_path,
    one_copy,
    ports_for,
    server_command,
    written,
)
from servetune.trials.record import Outcome, load_results, record_of
from servetune.trials.retry import Attempts
from servetune.trials.server_context import ServerContext, disturbance
from servetune.trials.server_life import ServerLife
from servetune.trials.simulated import simulation_of
from servetune.trials.startup import (
    FirstAnswer,
    external_server,
    forget_prefixes,
    reset_environment,
    startup_of,
    taken_otherwise_in,
    times_in,
)
from servetune.trials.trial import StudyContext, Trial, prompts_for
from servetune.trials.trial_requests import OnRequests, measured_requests
from servetune.units import format_seconds
from servetune.workload import load_options
from servetune.workload.headers import header_of

_SCRAPE_EVERY_S = 1.0
#: Outcomes of requests whose server dies.
_LOST = ("refused", "disconnected", "truncated")
_NEIGHBOUR_PATIENCE_S = 60.0
_REFERENCE_SALT = 0xBE51DE  # so that the reference trial's second prompts are new to the server


class TrialEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that take records and lines of progress while trials run.

    Attributes:
        ended: Takes each record as its trial ends.
        say: Takes lines of progress.
        put_off: Takes each trial that its user put off, which has no record.
        requests: Takes the requests of each trial that sent any; `None` where nobody wants them.
    """

    ended: Callable[[TrialRecord], None]
    say: Callable[[str], None]
    put_off: Callable[[Trial], None] = lambda _: None
    requests: OnRequests | None = None


class FollowingTrials(msgspec.Struct, frozen=True, kw_only=True):
    """Trials that may follow on a server, each chosen when the one before it has ended.

    Attributes:
        next: Gives the next trial of this server; `None` where another server's is next, or none.
        possible: Trials that it may give.
    """

    next: Callable[[], Trial | None]
    possible: tuple[Trial, ...]


class ServerGroup:
    """Trials of one server configuration, on one server as long as it lives.

    Args:
        trials: Trials that are still to be run, all with equal server settings.
        study: Settings that all trials have in common.
        launch: Options of starting the server.
        program: Engine as it is installed here.
        log_path: Log of the first start; where it exists already the next gets a number.
        events: Functions that take records and lines of progress.
        context: Share of the machine, and what the study knows so far.
        following: Further trials that a search may choose for this server; `None` without one.
    """

    def __init__(
        self,
        trials: list[Trial],
        study: StudyContext,
        launch: Launch,
        program: EngineProgram,
        *,
        log_path: Path,
        events: TrialEvents,
        context: ServerContext | None = None,
        following: FollowingTrials | None = None,
    ) -> None:
        self._waiting = list(trials)
        self._following = following
        self._plan = trials[0].plan
        self._server_args = trials[0].settings
        self._study, self._launch = study, launch
        self._program, self._engine, self._version = program, program.engine, program.version
        self._speed: float | None = None  # of a simulated engine
        self._log_path = log_path
        self._ended, self._say = events.ended, events.say
        self._put_off, self._requests = events.put_off, events.requests
        self._context = context or ServerContext()
        self._watch = self._context.watch
        self._attempts = self._context.attempts or Attempts(launch.retries)
        self._budget = self._context.budget
        self._trials_on_server = 0
        self._runs: dict[str, int] = {}  # loads of each trial on this server, by key
        self._ready_s = 0.0
        self._first_completion_s: float | None = None
        self._reference: tuple[Trial, Results, str] | None = None
        self._cmd = ""
        self._started_at = ""
        self._server: Server | None = None
        self._life = self._born()

    def measure(self) -> None:
        """Run every trial; one record each, whatever the server does.

        Raises:
            KeyboardInterrupt: The run was stopped; the server is stopped by then.
        """
        while self._waiting:
            self._raise_if_stopped()
            given_up = self._given_up()
            if given_up is not None:
                while self._waiting:
                    self._fail(self._waiting.pop(0), given_up)
                return
            failure = self._live_once()
            if failure is not None and self._waiting and self._given_up() is None:
                then = "starting it again" if self._engine.starts_servers else "waiting for it"
                self._say(f"server failed ({failure.reason}); {then}")

    def stop(self) -> None:
        """From another thread: have `measure` end with `KeyboardInterrupt`, and no server left."""
        self._context.halt.set()

    def kill(self) -> None:
        """End the server at once, without grace; from any thread.

        A server in a container is left to its guard: it has a second of grace, and would stay
        without the guard.
        """
        if self._server is not None and self._launch.container is None:
            self._server.kill()

    def _given_up(self) -> Failure | None:
        """Reason why no trial of this configuration is tried any more."""
        exceeded = self._budget.exceeded()
        return Failure(kind="budget", reason=exceeded) if exceeded else self._attempts.quarantine

    def _raise_if_stopped(self) -> None:
        if self._context.halt.is_set():
            raise KeyboardInterrupt

    # one life of a server

    def _born(self) -> ServerLife:
        return ServerLife(
            model=self._plan.model, engine=self._engine.name, server_args=self._server_args
        )

    def _live_once(self) -> Failure | None:
        """`_serve_once`, with its begin and end told to whoever traces the study."""
        self._life, self._ready_s, failure = self._born(), 0.0, None
        for trial in self._waiting:
            self._watch.servers.begins(trial.key, self._life)
        try:
            failure = self._serve_once()
            return failure
        finally:
            self._watch.servers.ended(
                msgspec.structs.replace(
                    self._life,
                    command=self._cmd,
                    ready_s=self._ready_s or None,
                    ended_unix_s=time.time(),
                    failure=failure,
                )
            )

    def _serve_once(self) -> Failure | None:
        """Run one server from start to stop; the failure that ended it before its trials did."""
        self._started_at = now_utc()
        try:
            with ports_for(self._engine, self._launch, self._plan.replicas) as ports:
                server = self._server = self._server_on(ports)
                return self._serve(server)
        except PortBusy as error:
            return self._start_failed(Failure(kind="port_busy", reason=error.message))
        except PlanError as error:
            return self._start_failed(Failure(kind="settings", reason=error.message))

    def _server_on(self, ports: tuple[int, ...]) -> Server:
        """The server, of which each port has a copy."""
        if not self._engine.starts_servers:
            self._cmd = str(self._launch.url)
            return external_server(self._engine, self._launch)
        copies = [self._copy_on(port, number) for number, port in enumerate(ports)]
        return copies[0] if len(copies) == 1 else ServerCopies(copies)

    def _copy_on(self, port: int, number: int) -> ServerProcess:
        placement, extra = self._placement_of(number), self._extra_environment()
        command = server_command(
            self._program,
            self._plan,
            self._launch,
            settings=self._server_args,
            port=port,
            placement=placement,
            extra_environment=extra,
        )
        if number == 0:
            self._cmd = written(command, self._launch, self._plan.replicas)
        contained = self._launch.container is not None
        chosen = {**extra, **self._launch.environment, **placement.environment()}
        log_path = self._log_path
        if number:
            log_path = log_path.with_stem(f"{log_path.stem}-copy{number + 1}")
        return ServerProcess(
            guarded(command, port) if contained else (*placement.words_before(), *command),
            log_path=free_path(log_path),
            port=port,
            host=self._launch.host,
            options=ServerOptions(
                name=self._engine.name,
                ready_path=self._launch.ready_path or self._engine.ready_path,
                environment=launch_environment(
                    self._engine, one_copy(self._plan), {} if contained else chosen
                ),
                folder=self._launch.folder,
                explain=self._engine.explain,
                holds_port=not contained,
                removed_by=removal(port) if contained else (),
            ),
        )

    def _placement_of(self, number: int) -> Placement:
        """Devices and cores of a copy: equal blocks of the server's devices, one after another."""
        placement, node = self._context.placement, self._study.node
        on_cpu = node is not None and node.device.architecture == "cpu"  # copies share it
        if self._plan.replicas == 1 or on_cpu:
            return placement
        each = one_copy(self._plan).device_count
        devices = placement.devices or tuple(range(self._plan.device_count))
        mine = devices[number * each : (number + 1) * each]
        return msgspec.structs.replace(placement, devices=mine)

    def _extra_environment(self) -> Mapping[str, str]:
        possible = self._following.possible if self._following else ()
        again = {t.key for t in (*self._waiting, *possible) if t.workload.has_dataset}
        return reset_environment() if len(again) > 1 else {}

    def _serve(self, server: Server) -> Failure | None:
        for taken in self._context.await_memory() if self._engine.starts_servers else ():
            self._say(f"note: after waiting, {taken.label}; the server may find too little memory")
        begin_s = time.monotonic()
        starts = self._engine.starts_servers
        self._watch.at(self._waiting[0], "starting server" if starts else "awaiting server")
        self._say(
            f"starting {self._cmd}"
            if self._engine.starts_servers
            else f"asking {server.url}; it has {format_seconds(self._launch.ready_timeout_s)} to "
            "answer (--server-timeout)"
        )
        try:
            with server:
                try:
                    self._await_ready(server, begin_s)
                except EngineError as error:
                    self._raise_if_stopped()
                    if not self._waiting:  # what the server was for was put off
                        return None
                    return self._start_failed(failure_of(error, server))
                failure = self._load_all(server)
                if not self._waiting:
                    self._check_neighbours(server)
                    self._context.loads_done()
                return failure
        except EngineError as error:  # it could not be started at all, or not be ended
            if not self._waiting:
                self._say(f"note: {error.message}")
                return None
            return self._start_failed(failure_of(error, server))

    def _await_ready(self, server: Server, begin_s: float) -> None:
        left_s = self._budget.left_s()
        patience_s = self._launch.ready_timeout_s
        patience_s = patience_s if left_s is None else min(patience_s, left_s)
        answers = [
            FirstAnswer(
                lambda: self._engine.first_completion(self._served_name(server, self._waiting[0])),
                target,
                timeout_s=patience_s,
            )
            for target in self._targets(server)
        ]
        if isinstance(server, ServerCopies):
            server.wait_ready(patience_s, give_up=self._start_is_in_vain, then=answers)
        else:
            server.wait_ready(patience_s, give_up=self._start_is_in_vain, then=answers[0])
        for refusal in dict.fromkeys(each.refusal for each in answers if each.refusal):
            self._say(f"note: {refusal}; the trials will show whether that matters")
        self._trials_on_server, self._runs = 0, {}
        self._ready_s = time.monotonic() - begin_s
        self._first_completion_s = max((each.took_s or 0.0) for each in answers) or None
        startup = self._startup(server)
        parts = times_in(startup)
        log = f"; log {server.log_path}" if server.log_path else ""
        self._say(f"ready after {self._ready_s:.1f} s{parts}{log}")
        for note in taken_otherwise_in(startup):
            self._say(f"note: {note}")
        self._speed = self._simulated_speed(server)
        if self._speed is not None:
            self._say("the server is SIMULATED; the records say so")
            if self._speed != 1:
                self._say(
                    f"it runs at {self._speed:g} times real time: latencies are that much "
                    "too short and rates too high (results.simulated_speed)"
                )

    def _start_is_in_vain(self) -> bool:
        return self._context.halt.is_set() or not self._any_waiting()

    def _start_failed(self, failure: Failure) -> Failure:
        if self._budget.exceeded() is None:  # otherwise it was given less time than it may need
            by_chance = failure.kind == "port_busy" and self._launch.port is None
            if not self._engine.starts_servers:  # the wait for the server was long enough
                self._attempts.quarantine = failure
            self._attempts.start_failed(failure, by_chance=by_chance, server_log=self._log_name())
        return failure

    # trials on it

    def _load_all(self, server: Server) -> Failure | None:
        while self._any_waiting() and self._given_up() is None:
            self._raise_if_stopped()
            failure, died = self._one_trial(self._waiting[0], server)
            if failure is not None and (died or server.unready() is not None):
                return failure
            death = server.poll_death()
            if death is not None:
                return failure_of(death, server)
            if self._any_waiting() and self._launch.rest_s:
                self._context.halt.wait(self._launch.rest_s)
        return None

    def _any_waiting(self) -> bool:
        """Whether there is a trial to run; a search is asked for one where none waits.

        The first is no longer among those that wait where its user put it off.
        """
        while self._waiting and self._watch.is_put_off(self._waiting[0].key):
            put_off = self._waiting.pop(0)
            self._watch.taken_off(put_off.key)
            self._put_off(put_off)
        if not self._waiting and self._following is not None:
            trial = self._following.next()
            self._waiting.extend([] if trial is None else [trial])
        return bool(self._waiting)

    def _one_trial(self, trial: Trial, server: Server) -> tuple[Failure | None, bool]:
        """Run the first waiting trial; its failure, and whether the server died of it."""
        started_at = now_utc()
        self._watch.servers.begins(trial.key, self._life)
        judge = TrialJudge(
            trial.workload,
            constraints=self._limits() if self._launch.early_stop else (),
            max_trial_s=self._launch.max_trial_s,
            budget=self._budget,
            put_off=lambda: self._watch.is_put_off(trial.key),
        )
        died, results = False, Results()
        try:
            loaded, caches, sent = self._load(trial, server, judge)
        except LoadError as error:
            failure, died = load_failure(error, server)
        except InputError as error:
            failure = Failure(kind="settings", reason=error.message)
        else:
            if loaded.interrupted:
                raise KeyboardInterrupt
            if judge.early is not None and judge.early.why == "put_off":
                return None, False
            self._watch.at(trial, "evaluating")
            results = self._results(trial, loaded, judge, server)
            results = results.with_fields(prefix_cache=caches)
            found, died = self._failure_in(loaded, results, judge, server)
            if self._requests is not None and loaded.records:
                self._requests(measured_requests(trial.key, loaded, sent))
            if found is None:
                self._waiting.pop(0)
                self._deliver(trial, results=results, failure=None, started_at=started_at)
                self._attempts.trial_ended()
                if self._reference is None:
                    self._reference = (trial, results, started_at)
                    self._context.alone_done()
                return None, False
            failure = found
            if failure.kind == "budget":
                return failure, False
        self._trial_failed(trial, failure, results, died=died, started_at=started_at)
        return failure, died

    def _trial_failed(
        self, trial: Trial, failure: Failure, results: Results, *, died: bool, started_at: str
    ) -> None:
        verdict = self._attempts.trial_failed(
            trial.key, failure, server_died=died, server_log=self._log_name()
        )
        if verdict == "again":
            self._say(f"trial failed ({failure.reason}); trying it again")
        else:
            self._waiting.pop(0)
            self._deliver(trial, results=results, failure=failure, started_at=started_at)

    def _failure_in(
        self, loaded: LoadResult, results: Results, judge: TrialJudge, server: Server
    ) -> tuple[Failure | None, bool]:
        if judge.early is not None and judge.early.why == "budget":
            return Failure(kind="budget", reason=judge.early.reason), False
        lost = any(record.outcome in _LOST for record in loaded.records)
        if loaded.aborted_reason or lost or not results.completed:
            # All requests may have been refused before the server's death is noticed.
            death = death_soon(server)
            if death is not None:
                return failure_of(death, server), True
        gone = server.unready() if lost and not self._engine.starts_servers else None
        if gone is not None:  # an external server has no process to watch: it only stops answering
            return Failure(kind="died", reason=f"{server.name} went away: {gone}"), True
        if judge.early is not None and not results.completed:
            return Failure(
                kind="trial_time", reason=f"{judge.early.reason}, without an answer"
            ), False
        if loaded.aborted_reason or not results.completed:
            return unanswered(loaded, results, server), False
        study = self._study
        return not_accepted(results, study.acceptance, study.constraints), False

    def _limits(self) -> tuple[Constraint, ...]:
        """Limits that end a trial early."""
        constraints = self._study.constraints
        return (*constraints, *self._study.acceptance.limits(constraints))

    def _load(
        self, trial: Trial, server: Server, judge: TrialJudge
    ) -> tuple[LoadResult, str, SentRequests]:
        options = load_options(trial.client_args)
        name = self._served_name(server, trial)
        targets = [
            msgspec.structs.replace(
                target,
                model=name,
                stream=trial.workload.stream,
                temperature=options.temperature,
                send_min_tokens=options.min_tokens,
            )
            for target in self._targets(server, trial)
        ]
        # Prompts differ from trial to trial: a shared server must not find an earlier
        # trial's prompts in its prefix cache. So do those of a trial that is tried again, or
        # measured again.
        tried = self._attempts.count(trial.key) + self._watch.put_off_count(trial.key)
        before = self._runs.get(trial.key, 0)
        self._runs[trial.key] = before + 1
        salt = before * _REFERENCE_SALT
        seed = zlib.crc32(trial.key.encode()) ^ trial.workload.seed ^ (tried << 16) ^ salt
        prompts = prompts_for(trial, self._study, seed=seed)
        same_words, first = trial.workload.has_dataset, not self._trials_on_server
        [caches, *_] = [
            forget_prefixes(target, same_words=same_words, first=first) for target in targets
        ]
        self._trials_on_server += 1

        self._watch.at(trial, "warm-up")

        spans = self._launch.spans
        run_id = secrets.token_hex(16) if self._launch.trace_headers or spans else ""
        trace_id = self._life.trace_id if spans else ""

        def why_dead() -> str | None:
            death = server.poll_death()
            return death.message if death else None

        with self._context.neighbours.under_load():
            loaded = run_load_blocking(
                targets,
                trial.workload,
                prompts,
                settings=LoadSettings(
                    timeout_s=self._launch.request_timeout_s,
                    grace_s=DEFAULT_GRACE_S if trial.workload.may_end_early else 0.0,
                    senders=self._context.senders,
                    processes=self._launch.processes,
                    scrape_every_s=_SCRAPE_EVERY_S,
                    cards=self._cards_of(trial),
                    run_id=run_id,
                    trace_id=trace_id,
                ),
                hooks=LoadHooks(
                    on_progress=lambda progress: self._watch.progress(trial.key, progress),
                    server_alive=why_dead,
                    judge=judge,
                    halt=self._context.halt,
                ),
            )
        sent = SentRequests(
            run_id=run_id,
            started_unix_s=loaded.started_unix_s,
            targets=tuple(targets),
            api=trial.workload.api,
            trace_id=trace_id,
        )
        return loaded, caches, sent

    def _cards_of(self, trial: Trial) -> tuple[int, ...] | None:
        """GPUs that the trial's server uses, by NVML's numbers; `None` where that is not known."""
        if not self._engine.starts_servers or self._launch.server_cmd is not None:
            return None
        placement = self._context.placement
        used = placement.devices or tuple(range(trial.plan.device_count))
        try:
            words = msgspec.structs.replace(placement, devices=used).device_names()
        except InputError:  # fewer are visible than the plan has
            return None
        return card_numbers(words)

    def _check_neighbours(self, server: Server) -> None:
        """Run the first trial again among the neighbours, and note the difference in its record."""
        if not self._context.check or self._reference is None or server.poll_death() is not None:
            return
        trial, alone, started_at = self._reference
        before = self._context.neighbours.await_any(_NEIGHBOUR_PATIENCE_S)
        judge = TrialJudge(trial.workload, budget=self._budget)
        with contextlib.suppress(LoadError):
            loaded, _, _ = self._load(trial, server, judge)
            if loaded.interrupted:
                raise KeyboardInterrupt
            with_neighbours = self._results(trial, loaded, judge, server)
            neighbours = (before, self._context.neighbours.count)
            change = disturbance(alone, with_neighbours, neighbours=neighbours)
            self._say(f"neighbours: {change['words']}")
            results = alone.with_fields(beside_neighbours=change)
            self._deliver(trial, results=results, failure=None, started_at=started_at)
        self._watch.ended(trial.key)

    def _target(self, server: Server, trial: Trial | None = None) -> Target:
        """The server with the key and the headers of a trial's requests, else the first one's."""
        options = load_options((trial or self._waiting[0]).client_args)
        return Target(
            base_url=server.url,
            model="",
            api_key_env=self._launch.api_key_env,
            cafile=self._launch.cafile,
            user_headers=tuple(header_of(text) for text in options.header),
        )

    def _targets(self, server: Server, trial: Trial | None = None) -> list[Target]:
        """Every copy of the server, over which requests are spread in turn."""
        target = self._target(server, trial)
        copies = server.copies if isinstance(server, ServerCopies) else (server,)
        return [msgspec.structs.replace(target, base_url=copy.url) for copy in copies]

    def _served_name(self, server: Server, trial: Trial) -> str:
        """Name by which the server knows the model."""
        given = trial.client_args.get("model") or self._engine.served_name(trial.plan)
        if given:
            return str(given)
        names = parse_models(fetch_blocking(self._target(server, trial), "/v1/models"))
        return names[0] if names else trial.plan.model

    def _simulated_speed(self, server: Server) -> float | None:
        """Engine's seconds per second of a simulated engine.

        `None` for a real engine, whoever started it.
        """
        target = self._target(server)
        with contextlib.suppress(LoadError):
            if models_are_simulated(fetch_blocking(target, "/v1/models")):
                return parse_speed(fetch_blocking(target, "/version"))
        return None

    # records

    def _results(
        self, trial: Trial, loaded: LoadResult, judge: TrialJudge, server: Server
    ) -> Results:
        early = judge.early
        reason = early.reason if early is not None else loaded.ended_reason
        results = load_results(loaded, trial, self._study, ended_early=reason)
        further: JsonObject = {
            "server_ready_s": self._ready_s,
            "startup": self._startup(server),
        }
        if reason is not None:
            further["ended_reason"] = reason
        if self._context.placement.devices:
            further["devices"] = list(self._context.placement.devices)
        if self._speed is not None:
            further["simulated_speed"] = self._speed
        return results.with_fields(**further)

    def _log_name(self) -> str | None:
        """Name of the last server's log as records hold it: beside the journal."""
        log = self._server.log_path if self._server else None
        return None if log is None else f"{log.parent.name}/{log.name}"

    def _startup(self, server: Server) -> JsonObject:
        startup = startup_of(self._engine, one_copy(self._plan), server.log_path)
        return {**startup, "first_completion_s": self._first_completion_s}

    def _fail(self, trial: Trial, failure: Failure, *, started_at: str = "") -> None:
        self._deliver(trial, results=Results(), failure=failure, started_at=started_at)

    def _deliver(
        self, trial: Trial, *, results: Results, failure: Failure | None, started_at: str
    ) -> None:
        origin = provenance(
            started_at=started_at or self._started_at or now_utc(),
            seed=trial.workload.seed,
            engine_version=self._version,
        )
        attempts = self._attempts.of(trial.key)
        predicted, interval = _prediction(trial, self._study)
        outcome = Outcome(
            cmd=self._cmd,
            server_cmd_args=self._engine.server_cmd_args(self._server_args, self._version),
            results=results,
            failure=failure,
            predicted=predicted,
            interval=interval,
            server_log=self._log_name(),
            provenance={**origin, "attempts": attempts} if attempts else origin,
            simulated=self._speed is not None,
        )
        self._watch.ended(trial.key)
        self._ended(record_of(trial, self._study, outcome))


def _prediction(
    trial: Trial, study: StudyContext
) -> tuple[Results | None, PredictionInterval | None]:
    """Results that the simulator predicts for the trial, and their interval; `None` where model or
    machine are not known, or the plan cannot be simulated.
    """
    if study.shape_of(trial.plan) is None or study.node is None:
        return None, None
    try:
        results, _ = simulation_of(trial, study)
        return results, recorded_interval(trial, study, results)
    except Exception:  # whatever fails here, the trial was measured and is to be recorded
        return None, None
