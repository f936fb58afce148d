"""Trials on a real server: started once per server configuration, loaded once per trial."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from servetune.engines import (
    Engine,
    ExternalServer,
    ServerProcess,
    filled_command,
    free_port,
    launch_environment,
)
from servetune.errors import (
    EngineDied,
    EngineError,
    EngineNotReady,
    LoadError,
    PlanError,
    PortBusy,
    ServetuneError,
    UnknownName,
)
from servetune.loadgen import (
    LoadResult,
    Manner,
    Target,
    fetch_blocking,
    models_are_simulated,
    parse_models,
    parse_speed,
    run_load_blocking,
)
from servetune.metrics import summarize
from servetune.plan import Plan
from servetune.store import Failure, TrialRecord, now_utc, provenance
from servetune.trials.prompting import prompts_for
from servetune.trials.simulated import percentiles_of, simulated_results
from servetune.trials.startup import external_server, startup_of
from servetune.trials.trial import Run, Trial, record_of

__all__ = ["Launch", "ServerGroup", "server_command"]

Say = Callable[[str], None]
Server = ServerProcess | ExternalServer
Ended = Callable[[TrialRecord], None]

#: A server that died this often is not started again for the rest of its trials.
MAX_DEATHS = 2

DEFAULT_PORT = 8000
_SCRAPE_EVERY_S = 1.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How servers are started and asked.

    Attributes:
        executable: Path of the engine; `None` for the one that is found.
        server_cmd: Command that stands in for the engine's own; settings are appended.
        url: Of a server that is there already, for an engine that starts none.
        port: `None` for a free one.
        ready_path: `None` for the engine's own.
        ready_timeout_s: From start to ready.
        request_timeout_s: Per request.
        rest_s: Pause between two trials on one server.
        load_node: Node of the Ray cluster that sends the load, by Ray's id, where it is not
            this machine; a core of it is set aside already.
    """

    executable: str | None = None
    server_cmd: str | None = None
    url: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    ready_path: str | None = None
    ready_timeout_s: float = 600.0
    request_timeout_s: float = 600.0
    rest_s: float = 0.0
    load_node: str | None = None


class ServerGroup:
    """The trials of one server configuration, on one server as long as it lives.

    Args:
        trials: All with equal server settings; those that are still to be run.
        run: What the run's trials have in common.
        launch: How the server is started and asked.
        engine: Whose words the server speaks.
        executable: The engine's first words; empty where the user's command stands in.
        engine_version: For the record.
        log_path: Of the first start; where one is there already the next gets a number.
        ended: Takes each record as its trial ends.
        say: Takes lines of progress.
        halt: Set by `stop`.
    """

    def __init__(
        self,
        trials: list[Trial],
        run: Run,
        launch: Launch,
        *,
        engine: Engine,
        executable: tuple[str, ...],
        engine_version: str | None,
        log_path: Path,
        ended: Ended,
        say: Say,
        halt: threading.Event | None = None,
    ) -> None:
        self._halt = halt or threading.Event()
        self._server: Server | None = None
        self._waiting = list(trials)
        self._plan = trials[0].plan
        self._settings = trials[0].server_args
        self._run, self._launch = run, launch
        self._engine, self._executable, self._version = engine, executable, engine_version
        self._speed: float | None = None  # of a server that only plays an engine
        self._log_path = log_path
        self._ended, self._say = ended, say
        self._cmd = ""
        self._started_at = ""
        self._server_log: Path | None = None

    def stop(self) -> None:
        """From another thread: have `measure` end with `KeyboardInterrupt`, and no server left."""
        self._halt.set()
        if self._server is not None:
            self._server.stop()

    def measure(self) -> None:
        """Run every trial; one record each, whatever the server does."""
        deaths = 0
        while self._waiting:
            before = len(self._waiting)
            failure = self._serve_once()
            if self._halt.is_set():
                raise KeyboardInterrupt
            if failure is None:
                continue
            deaths += 1
            started = len(self._waiting) < before
            if not started or deaths >= MAX_DEATHS or failure.kind == "settings":
                # Nothing that a further start could change: the rest fails for this reason.
                while self._waiting:
                    self._fail(self._waiting.pop(0), failure)
            else:
                self._say(f"server died ({failure.reason}); starting it again")

    def _serve_once(self) -> Failure | None:
        """One life of the server; the failure that ended it before its trials did."""
        self._started_at = now_utc()
        log_path = _free_path(self._log_path)
        try:
            port = self._launch.port or free_port(self._launch.host)
            command = server_command(
                self._engine,
                self._plan,
                self._launch,
                settings=self._settings,
                executable=self._executable,
                port=port,
            )
            self._cmd = shlex.join(command) or str(self._launch.url)
            server = self._external() or ServerProcess(
                command,
                log_path=log_path,
                port=port,
                host=self._launch.host,
                name=self._engine.name,
                ready_path=self._launch.ready_path or self._engine.ready_path,
                environment=launch_environment(self._engine, self._plan),
                explain=self._engine.explain,
            )
        except PlanError as error:
            return Failure(kind="settings", reason=error.message)
        self._server_log = server.log_path
        self._server = server
        self._say(
            f"starting {self._cmd}" if self._engine.starts_servers else f"asking {server.url}"
        )
        try:
            with server:
                ready_s = server.wait_ready(self._launch.ready_timeout_s)
                self._say(f"ready after {ready_s:.1f} s; log {log_path}")
                self._speed = self._simulated_speed(server)
                if self._speed is not None:
                    self._say("the server says that it is SIMULATED; so will the records")
                    if self._speed != 1:
                        self._say(
                            f"it runs at {self._speed:g} times real time: latencies are that much "
                            "too short and rates too high (results.simulated_speed)"
                        )
                return self._load_all(server, ready_s)
        except (EngineDied, EngineNotReady, PortBusy, EngineError) as error:
            return _failure_of(error, server)

    def _external(self) -> ExternalServer | None:
        """The server that is there already, where the engine starts none."""
        if self._engine.starts_servers:
            return None
        return external_server(self._engine, self._launch.url, self._launch.ready_path)

    def _load_all(self, server: Server, ready_s: float) -> Failure | None:
        while self._waiting:
            trial = self._waiting[0]
            started_at = now_utc()
            try:
                loaded = self._load(trial, server)
            except LoadError as error:
                self._waiting.pop(0)
                self._fail(trial, _load_failure(error, server), started_at=started_at)
            else:
                if loaded.interrupted:
                    raise KeyboardInterrupt
                self._waiting.pop(0)
                self._record(trial, loaded, server, ready_s, started_at)
            death = server.poll_death()
            if death is not None:
                return _failure_of(death, server)
            if self._waiting and self._launch.rest_s:
                time.sleep(self._launch.rest_s)
        return None

    def _load(self, trial: Trial, server: Server) -> LoadResult:
        target = Target(
            base_url=server.url,
            model=self._served_name(server, trial),
            extra_body=trial.workload.extra_body,
        )
        # Prompts differ from trial to trial: a shared server must not find an earlier
        # trial's prompts in its prefix cache.
        seed = zlib.crc32(trial.key.encode()) ^ trial.workload.seed
        prompts = prompts_for(trial, self._run, seed=seed)

        def why_dead() -> str | None:
            death = server.poll_death()
            return death.message if death else None

        return run_load_blocking(
            target,
            trial.workload,
            prompts,
            manner=self._manner(),
            halt=self._halt,
            server_alive=why_dead,
            scrape_every_s=_SCRAPE_EVERY_S,
        )

    def _manner(self) -> Manner:
        launch = self._launch
        if launch.load_node is None:
            return Manner(timeout_s=launch.request_timeout_s)
        return Manner(timeout_s=launch.request_timeout_s, cluster="auto", nodes=(launch.load_node,))

    def _served_name(self, server: Server, trial: Trial) -> str:
        """The name that the server knows the model by."""
        given = trial.client_args.get("model") or self._engine.served_name(trial.plan)
        if given:
            return str(given)
        names = parse_models(fetch_blocking(Target(base_url=server.url, model=""), "/v1/models"))
        return names[0] if names else trial.plan.model

    def _simulated_speed(self, server: Server) -> float | None:
        """How fast the clock of a server runs that says that it only plays an engine.

        `None` for a real engine, whoever started it.
        """
        target = Target(base_url=server.url, model="")
        with contextlib.suppress(LoadError):
            if models_are_simulated(fetch_blocking(target, "/v1/models")):
                return parse_speed(fetch_blocking(target, "/version"))
        return None

    def _record(
        self,
        trial: Trial,
        loaded: LoadResult,
        server: Server,
        ready_s: float,
        started_at: str,
    ) -> None:
        results = summarize(
            loaded.records,
            duration_s=loaded.duration_s,
            per_request_limits=self._run.request_limits,
            further_percentiles=percentiles_of(self._run.constraints),
        )
        results["instrument"] = msgspec.to_builtins(loaded.instrument)
        results["server"] = msgspec.to_builtins(loaded.server) if loaded.server else None
        results["not_sent"] = loaded.not_due_count
        results["server_ready_s"] = ready_s
        results["startup"] = startup_of(self._engine, trial.plan, server.log_path)
        if self._speed is not None:
            results["simulated_speed"] = self._speed
        failure = None
        if loaded.aborted_reason or not results["completed"]:
            # All may be refused before anyone has seen the server die.
            death = _death_soon(server)
            failure = _failure_of(death, server) if death else _unanswered(loaded, results, server)
        self._deliver(trial, results=results, failure=failure, started_at=started_at)

    def _fail(self, trial: Trial, failure: Failure, *, started_at: str = "") -> None:
        self._deliver(trial, results={}, failure=failure, started_at=started_at)

    def _deliver(
        self, trial: Trial, *, results: dict[str, Any], failure: Failure | None, started_at: str
    ) -> None:
        log = self._server_log
        self._ended(
            record_of(
                trial,
                self._run,
                simulated=self._speed is not None,
                cmd=self._cmd,
                server_cmd_args=self._engine.server_cmd_args(self._settings),
                results=results,
                failure=failure,
                predicted=_prediction(trial, self._run),
                server_log=f"{log.parent.name}/{log.name}" if log else None,
                provenance=provenance(
                    started_at=started_at or self._started_at,
                    seed=trial.workload.seed,
                    engine_version=self._version,
                ),
            )
        )


def server_command(
    engine: Engine,
    plan: Plan,
    launch: Launch,
    *,
    settings: dict[str, Any],
    executable: tuple[str, ...] | None,
    port: int,
) -> tuple[str, ...]:
    """The words that start a server: the engine's own, or the user's with its places filled."""
    if not engine.starts_servers:
        return ()
    if launch.server_cmd is None:
        return engine.command(plan, host=launch.host, port=port, executable=executable)
    return filled_command(
        launch.server_cmd,
        model=plan.model,
        host=launch.host,
        port=port,
        settings=settings,
        spell=engine.server_cmd_args,
    )


def _failure_of(error: ServetuneError, server: Server) -> Failure:
    if isinstance(error, PortBusy):
        return Failure(kind="port_busy", reason=error.message)
    if isinstance(error, EngineDied):
        cause = server.cause()
        kind = "died" if cause.kind == "unknown" else cause.kind
        return Failure(kind=kind, reason=error.message, log_tail=error.log_tail)
    if isinstance(error, EngineNotReady):
        return Failure(kind="not_ready", reason=error.message, log_tail=error.log_tail)
    return Failure(kind="error", reason=error.message, log_tail=server.log_tail())


def _load_failure(error: LoadError, server: Server) -> Failure:
    death = _death_soon(server)
    if death is not None:
        return _failure_of(death, server)
    return Failure(kind="load", reason=error.message, log_tail=server.log_tail())


def _unanswered(loaded: LoadResult, results: dict[str, Any], server: Server) -> Failure:
    if loaded.aborted_reason:
        return Failure(kind="load", reason=loaded.aborted_reason)
    sample = results["failures"][0]
    return Failure(
        kind="load",
        reason=f"no request was answered: {sample['outcome']}, {sample['sample']}",
        log_tail=server.log_tail(),
    )


def _death_soon(server: Server) -> EngineDied | None:
    """The server's death, if it is noticed within a second: connections break before exits."""
    for _ in range(20):
        death = server.poll_death()
        if death is not None:
            return death
        time.sleep(0.05)
    return None


def _free_path(path: Path) -> Path:
    """The path, or with a number behind its stem: logs of earlier trials are kept."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def _prediction(trial: Trial, run: Run) -> dict[str, Any] | None:
    """What the simulator says of the same trial; `None` where it has no machine to go by."""
    if run.shape is None or run.node is None or run.node.device.architecture == "cpu":
        return None
    try:
        return simulated_results(trial.plan, run.shape, run.node, trial.workload)
    except (PlanError, UnknownName):  # it does not fit, or its engine's defaults are not known
        return None
