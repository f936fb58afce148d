"""Sweep: every trial of every server configuration, one record each, failed or not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from servetune.engines import (
    Engine,
    check_fits,
    check_parallel,
    check_starts,
    check_weights,
    engine,
    resolved,
)
from servetune.engines import engine as engine_named
from servetune.errors import EngineError, PlanError
from servetune.servers.machine import machine_here
from servetune.servers.weights import model_folder, warm_up
from servetune.store import Failure, TrialRecord
from servetune.trials.asked import TrialSearch
from servetune.trials.budget import Budget
from servetune.trials.launch import (
    DEFAULT_PORT,
    EngineProgram,
    Launch,
    server_command,
    version_of,
    written,
)
from servetune.trials.measured import FollowingTrials, ServerGroup, TrialEvents
from servetune.trials.order import ordered
from servetune.trials.parallel import (
    DeviceBlocks,
    DevicePool,
    TrialBatch,
    parallel_servers_for,
    run_batches,
)
from servetune.trials.policy import ExecutionPolicy
from servetune.trials.record import Outcome, record_of
from servetune.trials.retry import Attempts
from servetune.trials.server_context import ServerContext
from servetune.trials.simulated import simulate_trial
from servetune.trials.trial import StudyContext, Trial
from servetune.trials.trial_requests import OnRequests
from servetune.trials.watch import RunWatch
from servetune.units import GIB, format_bytes

Ended = Callable[[TrialRecord], None]
Say = Callable[[str], None]
T = TypeVar("T")

WORTH_SAYING_BYTES = GIB


def run_trials(
    groups: Sequence[list[Trial]],
    study: StudyContext,
    launch: Launch,
    *,
    logs: Path,
    ended: Ended,
    say: Say,
    policy: ExecutionPolicy | None = None,
    watch: RunWatch | None = None,
    requests: OnRequests | None = None,
) -> None:
    """Run trials, grouped by server configuration; `ended` gets each record as it comes.

    A plan that cannot run on this machine is recorded as such and not started. Calls of
    `ended` and `say` come one at a time, from several threads.

    Args:
        groups: Trials by server configuration, as from `trials_of`; a group may be empty where
            its trials are done.
        study: Settings that all trials have in common.
        launch: Options of starting servers.
        logs: Folder for the servers' logs.
        ended: Takes each record.
        say: Takes lines of progress.
        policy: Order, parallelism and budget.
        watch: Watch that is told what the trials do, and whose orders are obeyed.
        requests: Takes the requests of each trial, before `ended` gets its record.

    Raises:
        EngineError: The engine is not installed; nothing was started.
        KeyboardInterrupt: The user stopped it; the server is stopped by then.
    """
    policy, watch = policy or ExecutionPolicy(), watch or RunWatch()
    program = _program(study, launch)
    events = _one_at_a_time(TrialEvents(ended=ended, say=say, requests=requests))
    batches = []
    for number, trials in ordered(groups, policy.order, policy.seed):
        able = _to_measure(trials, study, launch, program, events, watch)
        if able:
            batches.append(TrialBatch(number=number + 1, trials=able))
    if study.simulated or not batches:
        return
    servers = _Servers(study, launch, program, policy, watch, logs=logs, events=events)
    device_pool = _device_pool(policy, study, batches)
    with servers.weights_in_memory():
        run_batches(
            batches,
            device_pool,
            servers.group,
            next_batch=servers.next_put_off,
            halt=watch.halt,
        )


def run_asked_trials(
    asked: TrialSearch,
    study: StudyContext,
    launch: Launch,
    *,
    logs: Path,
    ended: Ended,
    say: Say,
    policy: ExecutionPolicy | None = None,
    watch: RunWatch | None = None,
    requests: OnRequests | None = None,
) -> None:
    """Run trials one after another as a search asks for them, one server at a time.

    A server stays as long as the search asks for trials of its configuration. Arguments and errors
    are those of `run_trials`, and `asked` is told each record that `ended` has got.
    """
    policy, watch = policy or ExecutionPolicy(), watch or RunWatch()
    program = _program(study, launch)

    def done(record: TrialRecord) -> None:
        kept = asked.kept(record)
        ended(kept)
        asked.tell(kept)

    events = _one_at_a_time(TrialEvents(ended=done, say=say, requests=requests))
    servers = _Servers(study, launch, program, policy, watch, logs=logs, events=events, asked=asked)

    def next_batch() -> TrialBatch | None:
        while (found := asked.next()) is not None:
            number, trial = found
            able = _to_measure([trial], study, launch, program, events, watch)
            if able:
                return TrialBatch(number=number, trials=able)
        return None

    for trial in asked.unable if asked.runs_all else ():
        _to_measure([trial], study, launch, program, events, watch)
    if study.simulated:
        assert next_batch() is None, "a simulated trial needs no server"
        return
    waiting = [TrialBatch(number=1, trials=[trial]) for trial in asked.waiting]
    if not waiting:
        return
    device_pool = _device_pool(policy, study, waiting)
    if device_pool.device_count is not None:
        largest = max(batch.device_count for batch in waiting)
        DeviceBlocks(device_pool.device_count).take(largest)  # refuses what no device is there for
    with servers.weights_in_memory():
        run_batches([], device_pool, servers.group, next_batch=next_batch, halt=watch.halt)


class _Servers:
    """Servers of a study, each with what is known of its configuration."""

    def __init__(
        self,
        study: StudyContext,
        launch: Launch,
        program: EngineProgram,
        policy: ExecutionPolicy,
        watch: RunWatch,
        *,
        logs: Path,
        events: TrialEvents,
        asked: TrialSearch | None = None,
    ) -> None:
        self.events = events
        self._study, self._launch, self._program = study, launch, program
        self._budget, self._logs, self._asked = policy.budget or Budget(), logs, asked
        self._attempts: dict[int, Attempts] = {}
        self._watch = watch
        self._put_off: list[TrialBatch] = []

    def next_put_off(self) -> TrialBatch | None:
        """Trial that its user put off and that may run now; `None` without one."""
        return self._put_off.pop(0) if self._put_off else None

    def group(self, batch: TrialBatch, context: ServerContext) -> ServerGroup:
        """Group of a batch, and of what the search asks for on the same server."""
        number, asked = batch.number, self._asked
        context.attempts = self._attempts.setdefault(number, Attempts(self._launch.retries))
        context.budget, context.watch = self._budget, self._watch
        following, events = None, self.events
        if asked is None:  # a search asks again by itself
            events = msgspec.structs.replace(
                events,
                put_off=lambda trial: self._put_off.append(
                    TrialBatch(number=number, trials=[trial])
                ),
            )
        else:
            following = FollowingTrials(
                next=lambda: asked.next_on(number), possible=asked.of_server(number)
            )
        return ServerGroup(
            batch.trials,
            self._study,
            self._launch,
            self._program,
            log_path=self._logs / f"server-{number:03d}.log",
            events=events,
            context=context,
            following=following,
        )

    def weights_in_memory(self) -> AbstractContextManager[None]:
        """The weights are read into memory meanwhile, where servers are started."""
        starts = self._program.engine.starts_servers
        folder = model_folder(self._study.model) if starts else None
        return _weights_in_memory(folder, self.events.say)


def _program(study: StudyContext, launch: Launch) -> EngineProgram:
    """Engine on this machine; a container has its own program and release.

    Raises:
        EngineError: It is not installed.
    """
    engine = engine_of(study)
    executable: tuple[str, ...] = ()
    if launch.container is not None and launch.executable is not None:
        executable = (launch.executable,)
    if not study.simulated and launch.server_cmd is None and launch.container is None:
        executable = engine.find_executable(launch.executable)
    version = None if study.simulated else version_of(engine, launch, executable)
    return EngineProgram(engine=engine, executable=executable, version=version)


@contextmanager
def _weights_in_memory(folder: Path | None, say: Say) -> Iterator[None]:
    """Read the weights into memory while the first server imports its modules."""
    if folder is None:
        yield
        return
    halt, available_bytes = threading.Event(), machine_here().memory_available_bytes

    def read() -> None:
        warmth = warm_up(folder, halt=halt, available_bytes=available_bytes)
        if warmth.read_bytes >= WORTH_SAYING_BYTES:
            rate = format_bytes(warmth.read_bytes / max(warmth.took_s, 1e-3))
            say(f"weights: {format_bytes(warmth.read_bytes)} are in memory, read at {rate}/s")

    reader = threading.Thread(target=read, name="weights", daemon=True)
    reader.start()
    try:
        yield
    finally:
        halt.set()
        reader.join()


def _device_pool(
    policy: ExecutionPolicy, study: StudyContext, batches: Sequence[TrialBatch]
) -> DevicePool:
    """Devices of the node, where it has any."""
    node = study.node
    count = None if node is None or node.device.architecture == "cpu" else node.device_count
    if count is not None and policy.most_devices is not None:
        count = min(count, policy.most_devices)
    smallest = min(batch.device_count for batch in batches)
    return DevicePool(
        device_count=count,
        parallel_servers=parallel_servers_for(policy.parallel, count or 1, smallest),
        vendor=node.device.vendor if node else "",
        cpus=policy.cpus,
        numa_node=policy.numa_node,
        memory=policy.memory,
    )


def _to_measure(
    trials: list[Trial],
    study: StudyContext,
    launch: Launch,
    program: EngineProgram,
    events: TrialEvents,
    watch: RunWatch,
) -> list[Trial]:
    """Trials that need a server; the others get their records here."""
    engine, version = program.engine, program.version
    shown = shown_command(trials[0], launch, engine, version)
    cmd = written(shown, launch, trials[0].plan.replicas) or str(launch.url)
    words = engine.server_cmd_args(trials[0].settings, version)
    able = []
    for trial in trials:
        watch.raise_if_halted()
        problem = problem_of(trial, study)
        if problem is not None:
            failure = Failure(kind="does_not_fit", reason=problem)
            outcome = Outcome(cmd=cmd, server_cmd_args=words, failure=failure)
            events.ended(record_of(trial, study, outcome))
        elif study.simulated:
            watch.at(trial, "simulating")
            record = simulate_trial(
                trial, study, cmd=cmd, server_cmd_args=words, requests=events.requests
            )
            watch.ended(trial.key)
            events.ended(record)
        else:
            able.append(trial)
    return able


def _one_at_a_time(events: TrialEvents) -> TrialEvents:
    """The same events, whose calls from several threads wait for one another."""
    lock = threading.RLock()
    return TrialEvents(
        ended=_locked(events.ended, lock),
        say=_locked(events.say, lock),
        requests=_locked(events.requests, lock) if events.requests else None,
    )


def _locked(take: Callable[[T], None], lock: threading.RLock) -> Callable[[T], None]:
    def taken(value: T) -> None:
        with lock:
            take(value)

    return taken


def commands_of(
    groups: Sequence[list[Trial]], study: StudyContext, launch: Launch
) -> Iterator[str]:
    """Command line of each group's server, for reading, as the installed release takes it."""
    engine = engine_of(study)
    version = None
    if not study.simulated:
        version = version_of(engine, launch, _executable(engine, launch))
    for group in groups:
        words = shown_command(group[0], launch, engine, version)
        copies = group[0].plan.replicas
        yield written(words, launch, copies) if words else f"# the server at {launch.url}"


def _executable(engine: Engine, launch: Launch) -> tuple[str, ...]:
    """Program of the engine; empty where it is not installed, as a command is only shown."""
    with contextlib.suppress(EngineError):
        return engine.find_executable(launch.executable)
    return ()


def engine_of(study: StudyContext) -> Engine:
    """Engine whose options a study's servers take: the one that is simulated, if one is."""
    found = engine_named(study.engine)
    return engine_named(found.ships_as) if found.virtual_time else found


def require_one_that_fits(groups: Sequence[list[Trial]], study: StudyContext) -> None:
    """Refuse a space in which no plan can run.

    Raises:
        PlanError: No plan can run; the message gives the first plan's reason.
    """
    problems = [problem_of(trial, study) for group in groups for trial in group]
    if problems and all(problem is not None for problem in problems):
        several = len(problems) > 1
        raise PlanError(
            f"none of the {len(problems)} trials can run: {problems[0]}"
            if several
            else str(problems[0]),
            hint="change --server-args or the lengths, or name a larger machine",
        )


def unable_keys(groups: Sequence[list[Trial]], study: StudyContext) -> frozenset[str]:
    """Keys of the trials that cannot run on the machine, from arithmetic alone."""
    return frozenset(
        trial.key for group in groups for trial in group if problem_of(trial, study) is not None
    )


def problems_of(group: Sequence[Trial], study: StudyContext) -> tuple[str, ...]:
    """Reasons why trials of one server cannot run, each once."""
    found = (problem_of(trial, study) for trial in group)
    return tuple(dict.fromkeys(problem for problem in found if problem is not None))


def problem_of(trial: Trial, study: StudyContext) -> str | None:
    """Reason why a trial cannot run on the machine, from arithmetic alone; `None` if it may."""
    shape = study.shape_of(trial.plan)
    if shape is None or study.node is None:
        return None
    try:
        plan = trial.plan
        check_weights(plan, shape, study.node.device)
        if not engine(plan.engine).defaults:  # not known, nor then what fits
            return None
        version = None if study.simulated else engine(plan.engine).assumed_version
        plan = resolved(plan, shape, study.node.device, version=version)
        if study.simulated:  # a real engine says so itself, and its version may think otherwise
            check_starts(trial.plan, shape, study.node.device)
        longest = trial.workload.longest_tokens()
        if plan.max_model_len is not None and longest > plan.max_model_len:
            return (
                f"the longest request has {longest:,} tokens, prompt and answer, and "
                f"max_model_len is {plan.max_model_len:,}"
            )
        if study.node.device.architecture == "cpu":  # its cache is sized by hand
            return None
        check_parallel(plan, shape, study.node)
        check_fits(plan, shape, study.node.device, device_limit=study.node.device_count)
    except PlanError as error:
        # What would fit is what a reader of this line wants next, as `estimate` says it.
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return None


def shown_command(
    trial: Trial, launch: Launch, engine: Engine, version: str | None = None
) -> tuple[str, ...]:
    """Server command of a trial with a port that it might have, for reading."""
    executable = (launch.executable,) if launch.executable else ()
    return server_command(
        EngineProgram(engine=engine, executable=executable, version=version),
        trial.plan,
        launch,
        settings=trial.settings,
        port=launch.port or DEFAULT_PORT,
    )
