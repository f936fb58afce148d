"""Study: every combination of server and client settings, run or simulated, and the best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from servetune.api.notes import progress
from servetune.api.recommendation import Pick, pick_from
from servetune.api.reporting import write_artifacts
from servetune.api.request import command_words, request_of
from servetune.api.study_request import Study
from servetune.api.study_run import OnProgress, execution_policy, run_study
from servetune.api.study_setup import StudySetup, study_setup
from servetune.api.trials import Trials
from servetune.cluster import require_capacity
from servetune.errors import InputError
from servetune.metrics import unmet
from servetune.servers.launchers import Job, kubernetes_job, slurm_script
from servetune.store import Artifacts, Journal, TrialRecord, latest
from servetune.trials import commands_of

if TYPE_CHECKING:
    import pandas as pd

#: Exit status of a study that the user interrupted.
INTERRUPTED = 130


class PlannedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Server that a dry run would start, and its trials.

    Attributes:
        command: Command line, or a comment on the server that exists already.
        server_args: Server settings, in the engine's words.
        loads: Client arguments of each trial.
    """

    command: str
    server_args: dict[str, Any]
    loads: tuple[dict[str, Any], ...]


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a study.

    Attributes:
        trials: Trials that ended, those of earlier calls among them.
        artifacts: Paths of journal, summary, dashboard and configuration.
        compared: Records shown beside them.
        interrupted: True where the user stopped it; `resume=True` continues it.
        simulated: True where trials are simulated.
        planned: Servers of a dry run; empty otherwise.
        job: Text of the job that was asked for instead of a run; empty otherwise.
    """

    trials: Trials
    artifacts: Artifacts
    compared: tuple[TrialRecord, ...] = ()
    interrupted: bool = False
    simulated: bool = False
    planned: tuple[PlannedServer, ...] = ()
    job: str = ""

    @property
    def status(self) -> int:
        """Exit status: 0 done; 1 no trial holds the constraints; 2 none could run; 3 one failed
        that should have run; 130 interrupted.
        """
        if self.interrupted:
            return INTERRUPTED
        return _status_of(self.trials) if self.trials.records else 0

    @property
    def df(self) -> pd.DataFrame:
        """One row per trial; see `Trials.df`."""
        return self.trials.df

    def pick(self, objective: str = "throughput") -> Pick:
        """The best trial among those that hold the constraints, and why.

        Args:
            objective: `throughput`, `latency` or `cost`.
        """
        return pick_from(self.trials, objective)

    def __str__(self) -> str:
        if self.job:
            return self.job.rstrip("\n")
        return "\n".join(self._plan_lines()) if self.planned else str(self.pick())

    def _plan_lines(self) -> Iterator[str]:
        for number, server in enumerate(self.planned, start=1):
            yield f"# server {number} of {len(self.planned)}, {len(server.loads)} trials"
            yield server.command
            for load in server.loads:
                text = ";".join(f"{name}={value}" for name, value in load.items())
                yield f"#   load: {text or 'defaults'}"
        trials = sum(len(server.loads) for server in self.planned)
        yield (
            f"# {trials} trials on {len(self.planned)} server configurations; nothing was "
            f"{'simulated' if self.simulated else 'started'}"
        )


def tune(
    request: Study | str, /, *, on_progress: OnProgress | None = None, **options: object
) -> StudyResult:
    """Run or simulate every combination of server and client settings.

    It blocks until the last trial has ended; `await asyncio.to_thread(st.tune, ...)` does not.
    Each record is in the journal as soon as its trial ends.

    Args:
        request: The request, or the model.
        on_progress: Called with a `TrialDone` after each trial, one call at a time, not always
            from the same thread.
        options: Fields of `Study`.

    Returns:
        Trials and files; with `dry_run` the servers that would be started, with `job` its text.

    Raises:
        ServetuneError: Options contradict, a name is not known, nothing fits the machine, the
            engine is not installed, or files of another study are in the way.

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
    study = request_of(Study, request, options)
    setup = study_setup(study)
    nothing = Trials(records=(), constraints=setup.context.constraints)
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
    with Journal(setup.artifacts.journal, resume=study.files.resume) as journal:
        interrupted = run_study(setup, policy, journal, on_progress)
        records = tuple(latest(journal.records))
    if records:  # none where it was interrupted before the first trial ended
        limits = setup.context.constraints
        write_artifacts(setup.artifacts, records, limits, compared=setup.compared)
    return msgspec.structs.replace(
        result,
        trials=msgspec.structs.replace(nothing, records=records, source=setup.artifacts.journal),
        interrupted=interrupted,
    )


def _planned(setup: StudySetup) -> Iterator[PlannedServer]:
    commands = commands_of(setup.groups, setup.context, setup.launch)
    for group, command in zip(setup.groups, commands, strict=True):
        yield PlannedServer(
            command=command,
            server_args=group[0].server_args,
            loads=tuple(trial.client_args for trial in group),
        )


def _job_text(setup: StudySetup) -> str:
    """The study as a job that runs on a machine like its own.

    Raises:
        InputError: The machine has no GPU, or the job needs an image.
    """
    clusters, node = setup.request.clusters, setup.node
    job = Job(
        command=command_words(setup.request, without=("job", "job_image", "job_folder")),
        gpus=node.device_count,
        limit_s=setup.request.schedule.budget_s,
        image=clusters.job_image,
        folder=clusters.job_folder,
    )
    if node.device.architecture == "cpu":
        raise InputError("a job needs to know its GPUs", hint="name them with --gpu and --num-gpus")
    text = slurm_script(job) if clusters.job == "slurm" else kubernetes_job(job)
    how = "sbatch" if clusters.job == "slurm" else "kubectl apply -f"
    progress(f"# nothing was started; save it and hand it to {how}")
    return text


def _status_of(trials: Trials) -> int:
    expected = ("does_not_fit", "budget")
    if any(each.failure and each.failure.kind not in expected for each in trials.records):
        return 3
    ok = [record for record in trials.records if record.status == "ok"]
    if not ok:
        return 2
    limits = trials.constraints
    return int(bool(limits) and all(unmet(limits, record.results) for record in ok))
