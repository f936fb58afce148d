"""A sweep: every trial of every server configuration, one record each, whatever happens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from servetune.engines import (
    Engine,
    check_fits,
    check_parallel,
    check_starts,
    engine,
    resolved,
)
from servetune.errors import EngineError, PlanError
from servetune.servers.gpus import DeviceMemory
from servetune.servers.machine import machine_here
from servetune.servers.weights import model_folder, warm_up
from servetune.store import Failure, TrialRecord
from servetune.trials.budget import Budget
from servetune.trials.launch import DEFAULT_PORT, Launch, server_command, version_of, written
from servetune.trials.measured import ServerGroup
from servetune.trials.order import Order, ordered
from servetune.trials.packing import parallel_servers_for
from servetune.trials.parallel import DevicePool, TrialBatch, run_batches
from servetune.trials.retry import Attempts
from servetune.trials.server_context import ServerContext
from servetune.trials.simulated import simulate_trial
from servetune.trials.trial import StudyContext, Trial, record_of
from servetune.units import GIB, format_bytes

__all__ = [
    "ExecutionPolicy",
    "commands_of",
    "problem_of",
    "require_one_that_fits",
    "run_trials",
    "shown_command",
    "speaker_of",
]

Ended = Callable[[TrialRecord], None]
Say = Callable[[str], None]
T = TypeVar("T")

WORTH_SAYING_BYTES = GIB


class ExecutionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes through its trials.

    Attributes:
        order: See `order.ordered`.
        order_seed: Of an order by chance.
        parallel: Servers under load at once; `None` for as many as there is room for.
        budget: Time and money; `None` without a limit.
        cpus: That servers are pinned to.
        numa_node: Whose cores and memory they use.
        memory: Of the devices that are really here; `None` where nobody watches it.
        most_devices: That this process may use of the machine's; `None` for all.
    """

    order: Order = "grid"
    order_seed: int = 0
    parallel: int | None = 1
    budget: Budget | None = None
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None
    memory: DeviceMemory | None = None
    most_devices: int | None = None


def run_trials(
    groups: Sequence[list[Trial]],
    run: StudyContext,
    launch: Launch,
    *,
    logs: Path,
    ended: Ended,
    say: Say,
    policy: ExecutionPolicy | None = None,
) -> None:
    """Run trials, grouped by server configuration; `ended` gets each record as it comes.

    A plan that cannot run on this machine is recorded as such and not started. Calls of
    `ended` and `say` come one at a time, from several threads.

    Args:
        groups: As from `trials_of`; a group may be empty where its trials are done.
        run: What they have in common.
        launch: How servers are started and asked.
        logs: Folder for the servers' logs.
        ended: Takes each record.
        say: Takes lines of progress.
        course: In which order, how many at once, how long.

    Raises:
        EngineError: The engine is not installed; nothing was started.
        KeyboardInterrupt: The user stopped it; the server is stopped by then.
    """
    policy = policy or ExecutionPolicy()
    spoken = speaker_of(run)
    # In a container the program and its version are the image's affair.
    executable: tuple[str, ...] = ()
    if launch.container is not None and launch.executable is not None:
        executable = (launch.executable,)
    if not run.simulated and launch.server_cmd is None and launch.container is None:
        executable = spoken.find_executable(launch.executable)
    version = None if run.simulated else version_of(spoken, launch, executable)
    batches = []
    for number, trials in ordered(groups, policy.order, policy.order_seed):
        able = _without_the_unfit(trials, run, launch, spoken, version, ended)
        if able:
            batches.append(TrialBatch(number=number + 1, trials=able))
    if run.simulated or not batches:
        return
    attempts: dict[int, Attempts] = {}
    one_at_a_time = threading.RLock()

    def group_of(batch: TrialBatch, context: ServerContext) -> ServerGroup:
        return ServerGroup(
            batch.trials,
            run,
            launch,
            engine=spoken,
            executable=executable,
            engine_version=version,
            log_path=logs / f"server-{batch.number:03d}.log",
            ended=_in_turn(ended, one_at_a_time),
            say=_in_turn(say, one_at_a_time),
            attempts=attempts.setdefault(batch.number, Attempts(launch.retries)),
            budget=policy.budget,
            context=context,
        )

    device_pool = _device_pool(policy, run, batches)
    folder = model_folder(run.model) if spoken.starts_servers else None
    with _weights_in_memory(folder, _in_turn(say, one_at_a_time)):
        run_batches(batches, device_pool, group_of)


@contextmanager
def _weights_in_memory(folder: Path | None, say: Say) -> Iterator[None]:
    """The disk reads while the first server imports."""
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
    policy: ExecutionPolicy, run: StudyContext, batches: Sequence[TrialBatch]
) -> DevicePool:
    """Where the servers run: on the devices of the node, where it has any."""
    node = run.node
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


def _without_the_unfit(
    trials: list[Trial],
    run: StudyContext,
    launch: Launch,
    spoken: Engine,
    version: str | None,
    ended: Ended,
) -> list[Trial]:
    """The trials that a server must be measured for; records of the others."""
    cmd = written(shown_command(trials[0], launch, spoken, version), launch) or str(launch.url)
    words = spoken.server_cmd_args(trials[0].server_args, version)
    able = []
    for trial in trials:
        problem = problem_of(trial, run)
        if problem is not None:
            failure = Failure(kind="does_not_fit", reason=problem)
            ended(record_of(trial, run, cmd=cmd, server_cmd_args=words, failure=failure))
        elif run.simulated:
            ended(simulate_trial(trial, run, cmd=cmd, server_cmd_args=words))
        else:
            able.append(trial)
    return able


def _in_turn(take: Callable[[T], None], lock: threading.RLock) -> Callable[[T], None]:
    def taken(what: T) -> None:
        with lock:
            take(what)

    return taken


def commands_of(groups: Sequence[list[Trial]], run: StudyContext, launch: Launch) -> Iterator[str]:
    """The command line of each group's server, for reading, in the words of the version here."""
    spoken = speaker_of(run)
    version = None if run.simulated else version_of(spoken, launch, _program_here(spoken, launch))
    for group in groups:
        words = shown_command(group[0], launch, spoken, version)
        yield written(words, launch) if words else f"# the server at {launch.url}"


def _program_here(spoken: Engine, launch: Launch) -> tuple[str, ...]:
    """Empty where it is not installed: a command may be read where it cannot be run."""
    with contextlib.suppress(EngineError):
        return spoken.find_executable(launch.executable)
    return ()


def speaker_of(run: StudyContext) -> Engine:
    """The engine whose words a run speaks; the simulated one speaks vLLM's."""
    return engine("vllm" if run.simulated else run.engine)


def require_one_that_fits(groups: Sequence[list[Trial]], run: StudyContext) -> None:
    """Refuse a space in which no plan can run.

    Raises:
        PlanError: With the first plan's reason.
    """
    problems = [problem_of(trial, run) for group in groups for trial in group]
    if problems and all(problem is not None for problem in problems):
        several = len(problems) > 1
        raise PlanError(
            f"none of the {len(problems)} trials can run: {problems[0]}"
            if several
            else str(problems[0]),
            hint="change --server-args or the lengths, or name a larger machine",
        )


def problem_of(trial: Trial, run: StudyContext) -> str | None:
    """Why a trial cannot run on the machine, as far as arithmetic can tell."""
    if run.shape is None or run.node is None:
        return None
    try:
        plan = trial.plan
        if not engine(plan.engine).defaults:  # not known, nor then what fits
            return None
        version = None if run.simulated else engine(plan.engine).assumed_version
        plan = resolved(plan, run.shape, run.node.device, version=version)
        if run.simulated:  # a real engine says so itself, and its version may think otherwise
            check_starts(trial.plan, run.shape, run.node.device)
        longest = trial.workload.longest_tokens()
        if plan.max_model_len is not None and longest > plan.max_model_len:
            return (
                f"the longest request has {longest:,} tokens, prompt and answer, and "
                f"max_model_len is {plan.max_model_len:,}"
            )
        if run.node.device.architecture == "cpu":  # its cache is sized by hand
            return None
        check_parallel(plan, run.shape, run.node)
        check_fits(plan, run.shape, run.node.device, device_limit=run.node.device_count)
    except PlanError as error:
        return error.message
    return None


def shown_command(
    trial: Trial, launch: Launch, spoken: Engine, version: str | None = None
) -> tuple[str, ...]:
    """A trial's server command with a port that it might have, for reading."""
    return server_command(
        spoken,
        trial.plan,
        launch,
        settings=trial.server_args,
        executable=(launch.executable,) if launch.executable else None,
        port=launch.port or DEFAULT_PORT,
        version=version,
    )
