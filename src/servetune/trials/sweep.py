"""A sweep: every trial of every server configuration, one record each, whatever happens."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from servetune.engines import Engine, engine
from servetune.errors import PlanError
from servetune.plan import DEFAULTS, check_fits, check_parallel, check_starts, resolved
from servetune.store import Failure, TrialRecord
from servetune.trials.measured import DEFAULT_PORT, Launch, ServerGroup, server_command
from servetune.trials.simulated import simulate_trial
from servetune.trials.trial import Run, Trial, record_of

__all__ = [
    "commands_of",
    "problem_of",
    "require_one_that_fits",
    "run_trials",
    "shown_command",
    "speaker_of",
]

Ended = Callable[[TrialRecord], None]
Say = Callable[[str], None]


def run_trials(
    groups: Sequence[list[Trial]],
    run: Run,
    launch: Launch,
    *,
    logs: Path,
    ended: Ended,
    say: Say,
) -> None:
    """Run trials, grouped by server configuration; `ended` gets each record as it comes.

    A plan that cannot run on this machine is recorded as such and not started.

    Args:
        groups: As from `trials_of`; a group may be empty where its trials are done.
        logs: Folder for the servers' logs.
        say: Takes lines of progress.

    Raises:
        EngineError: The engine is not installed; nothing was started.
        KeyboardInterrupt: The user stopped it; the server is stopped by then.
    """
    spoken = speaker_of(run)
    executable: tuple[str, ...] = ()
    version: str | None = None
    if not run.simulated and launch.server_cmd is None:
        executable = spoken.find_executable(launch.executable)
        version = spoken.version(executable)
    for number, group in enumerate(groups, start=1):
        if not group:
            continue
        able = [trial for trial in group if problem_of(trial, run) is None]
        cmd = shlex.join(shown_command(group[0], launch, spoken)) or str(launch.url)
        words = spoken.server_cmd_args(group[0].server_args)
        for trial in group:
            problem = problem_of(trial, run)
            if problem is not None:
                failure = Failure(kind="does_not_fit", reason=problem)
                ended(record_of(trial, run, cmd=cmd, server_cmd_args=words, failure=failure))
            elif run.simulated:
                ended(simulate_trial(trial, run, cmd=cmd, server_cmd_args=words))
        if able and not run.simulated:
            ServerGroup(
                able,
                run,
                launch,
                engine=spoken,
                executable=executable,
                engine_version=version,
                log_path=logs / f"server-{number:03d}.log",
                ended=ended,
                say=say,
            ).measure()


def commands_of(groups: Sequence[list[Trial]], run: Run, launch: Launch) -> Iterator[str]:
    """The command line of each group's server, for reading."""
    spoken = speaker_of(run)
    for group in groups:
        words = shown_command(group[0], launch, spoken)
        yield shlex.join(words) if words else f"# the server at {launch.url}"


def speaker_of(run: Run) -> Engine:
    """The engine whose words a run speaks; the simulated one speaks vLLM's."""
    return engine("vllm" if run.simulated else run.engine)


def require_one_that_fits(groups: Sequence[list[Trial]], run: Run) -> None:
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


def problem_of(trial: Trial, run: Run) -> str | None:
    """Why a trial cannot run on the machine, as far as arithmetic can tell."""
    if run.shape is None or run.node is None:
        return None
    try:
        plan = trial.plan
        if plan.engine not in DEFAULTS:  # what it would fill in is not known, nor then what fits
            return None
        plan = resolved(plan, run.shape, run.node.device)
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


def shown_command(trial: Trial, launch: Launch, spoken: Engine) -> tuple[str, ...]:
    """A trial's server command with a port that it might have, for reading."""
    return server_command(
        spoken,
        trial.plan,
        launch,
        settings=trial.server_args,
        executable=(launch.executable,) if launch.executable else None,
        port=launch.port or DEFAULT_PORT,
    )
