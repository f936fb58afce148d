"""`servetune tune`: try configurations, real or simulated, and find the best."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from servetune.api.inputs import chosen_node, note_idle, read_records
from servetune.api.reporting import write_artifacts
from servetune.cli import options
from servetune.cli.course import (
    Asked,
    course_of,
    course_options,
    note_leftovers,
)
from servetune.cli.course import ready_timeout_s as ready_timeout_of
from servetune.cli.main import INTERRUPTED
from servetune.cli.outcome import print_outcome
from servetune.cli.output import echo
from servetune.cli.tune_cluster import gpus_of, require_cluster, require_place
from servetune.cli.tune_job import KINDS, print_job
from servetune.cli.tune_journal import finished_keys, is_put_off
from servetune.cli.tune_launcher import (
    container_of,
    environment_of,
    launcher_options,
    require_launcher,
)
from servetune.cli.tune_progress import print_plan, progress_line
from servetune.cli.tune_server import needed_client_args, require_launch, require_server
from servetune.engines import DEFAULT_ENGINE, ENGINES, engine
from servetune.errors import InputError, ServetuneError
from servetune.hardware import Node
from servetune.metrics import LATENCIES, Constraint, parse_constraints, unmet
from servetune.models import NetworkShape, load_shape
from servetune.perf.sim import without_effect
from servetune.prediction.calibrations import KeptCalibration, calibration_named
from servetune.search import Space, parse_settings
from servetune.store import Artifacts, Journal, TrialRecord, latest
from servetune.trials import (
    ExecutionPolicy,
    Launch,
    StudyContext,
    Trial,
    observed_of,
    require_one_that_fits,
    run_trials,
    trials_of,
)
from servetune.trials.promising import Promising
from servetune.workload import CLIENT_ARGS

__all__ = ["tune"]

#: More trials than a grid can mean.
MOST_TRIALS = 100_000

#: Client arguments that are read for the sake of old scripts and change nothing.
WITHOUT_EFFECT = ("host", "port", "output_file", "disable_tqdm", "output_details")

ENGINE_NAMES = tuple(ENGINES)


@click.command()
@click.option("--model", required=True, help="Hub id, local folder, or a name of the catalogue.")
@click.option(
    "--engine",
    "--framework",
    "engine_name",
    default=DEFAULT_ENGINE,
    show_default=True,
    type=click.Choice(ENGINE_NAMES),
    help="What runs the trials.",
)
@click.option(
    "--server-args",
    multiple=True,
    metavar="NAME=[A,B];..",
    help="Server settings, fixed or swept; may be given several times.",
)
@click.option(
    "--client-args",
    multiple=True,
    metavar="NAME=[A,B];..",
    help="Load settings, fixed or swept; may be given several times.",
)
@options.machine
@options.constraints
@options.calibration
@click.option(
    "--slo",
    metavar="LIMITS",
    default="",
    help="Limits on single requests, for goodput: ttft<=500ms;tpot<=50ms.",
)
@click.option(
    "--output-json",
    type=click.Path(path_type=Path),
    default=None,
    help="Summary; journal (.jsonl) and dashboard (.html) stand beside it. "
    "[default: OUTPUT_DIR/tune.json]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder of the artifacts when --output-json is not given.",
)
@click.option(
    "--compare",
    "compare_with",
    type=click.Path(path_type=Path),
    default=None,
    help="Earlier or published records to set beside these.",
)
@click.option("--dry-run", is_flag=True, help="Print every server command and start nothing.")
@click.option(
    "--resume",
    "--continue",
    "-c",
    "resume",
    is_flag=True,
    help="Run only what the journal does not have yet.",
)
@click.option("--retry-failed", is_flag=True, help="With --resume: run failed trials again, too.")
@click.option(
    "--server-cmd",
    default=None,
    metavar="COMMAND",
    help="Start the server with this command instead of the engine's own; {model}, {host}, {port}, "
    "{settings} and {NAME} of a setting are filled in.",
)
@click.option(
    "--executable",
    "--vllm-executable",
    "executable",
    default=None,
    metavar="PATH",
    help="The engine's program. [default: $SERVETUNE_VLLM and the like, else the one on PATH]",
)
@click.option(
    "--url",
    default=None,
    metavar="URL",
    help="Where the server of --engine external is; it is neither started nor stopped.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=None, help="[default: a free one]")
@click.option("--ready-endpoint", default=None, metavar="PATH", help="[default: the engine's]")
@click.option(
    "--server-timeout",
    "ready_timeout_s",
    type=options.POSITIVE,
    default=None,
    metavar="S",
    help="How long a server may take to become ready. [default: 600, and more for large models]",
)
@click.option(
    "--request-timeout",
    "request_timeout_s",
    type=options.POSITIVE,
    default=600.0,
    show_default=True,
    metavar="S",
    help="After which a request counts as failed.",
)
@click.option(
    "--rest",
    "rest_s",
    type=options.NOT_NEGATIVE,
    default=0.0,
    show_default=True,
    metavar="S",
    help="Pause between two trials on one server.",
)
@launcher_options
@course_options
@click.option(
    "--job",
    "job_kind",
    type=click.Choice(KINDS),
    default=None,
    help="Print this command as a job for a cluster, and start nothing.",
)
@click.option("--job-image", default="", metavar="IMAGE", help="With servetune and the engine.")
@click.option(
    "--job-folder",
    default="",
    metavar="FOLDER",
    help="For results: of the shared disk (Slurm), or a volume's claim (Kubernetes).",
)
@click.option(
    "--cluster",
    default=None,
    metavar="auto|ADDRESS",
    help="Run the trials on the nodes of a Ray cluster, as many at once as have room.",
)
@click.option(
    "--mute-server",
    is_flag=True,
    hidden=True,
    help="Accepted for old scripts; server output goes to log files anyway.",
)
def tune(
    *,
    model: str,
    engine_name: str,
    server_args: tuple[str, ...],
    client_args: tuple[str, ...],
    gpu: str | None,
    num_gpus: int | None,
    instance_name: str | None,
    price_per_hour_usd: float | None,
    constraints: str | None,
    calibration_name: str | None,
    slo: str,
    output_json: Path | None,
    output_dir: Path,
    compare_with: Path | None,
    dry_run: bool,
    resume: bool,
    retry_failed: bool,
    server_cmd: str | None,
    executable: str | None,
    url: str | None,
    host: str,
    port: int | None,
    ready_endpoint: str | None,
    ready_timeout_s: float | None,
    request_timeout_s: float,
    rest_s: float,
    launcher: str,
    image: str | None,
    server_env: tuple[str, ...],
    server_folder: Path | None,
    asked: Asked,
    job_kind: str | None,
    job_image: str,
    job_folder: str,
    cluster: str | None,
    mute_server: bool,  # noqa: ARG001 - see the option
) -> int:
    """Try every combination of server and client settings and find the best.

    \b
    servetune tune --engine simulated --model Qwen/Qwen3-4B --instance ml.g6.12xlarge \\
      --server-args "tensor_parallel_size=[1,2,4];max_num_batched_tokens=[4096,8192]" \\
      --client-args "max_concurrency=[32,64];num_prompts=1000;dataset_name=sharegpt" \\
      --constraints "e2e_latency:p99<=60s;request_throughput>=5" --output-json out/q.json
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    simulated = engine(engine_name).virtual_time
    spoken = engine(DEFAULT_ENGINE if simulated else engine_name)
    space = Space(
        server=parse_settings(";".join(server_args), types=spoken.argument_types()),
        client=parse_settings(
            ";".join((*client_args, *needed_client_args(spoken, client_args))),
            types=CLIENT_ARGS,
            known=CLIENT_ARGS,
            kind="client argument",
        ),
    )
    if len(space) > MOST_TRIALS:
        raise InputError(
            f"the grid has {len(space):,} trials", hint=f"at most {MOST_TRIALS:,}; sweep less"
        )
    if retry_failed and not resume:
        raise InputError("--retry-failed needs --resume")
    for name in WITHOUT_EFFECT:
        if any(name in axis.names for axis in space.client):
            echo(f"note: client argument {name} has no effect here")
    limits = parse_constraints(constraints or "")
    request_limits = parse_constraints(slo)
    _require_goodput_limits(limits, request_limits)
    require_launcher(
        launcher,
        image,
        spoken,
        simulated=simulated,
        cluster=cluster is not None,
        server_env=server_env,
        folder=server_folder,
    )
    environment, passed = environment_of(server_env)
    require_place(spoken, asked, cluster, simulated=simulated, job=job_kind is not None)
    if cluster is not None and not dry_run:
        gpu, num_gpus = gpus_of(cluster, gpu, num_gpus, instance_name)
    node = chosen_node(
        gpu=gpu,
        num_gpus=num_gpus,
        instance_name=instance_name,
        price_per_hour_usd=price_per_hour_usd,
        or_cpu=not simulated,
    )
    measured_before = read_records(compare_with) if compare_with else []
    shape = _shape(model, engine_name)
    run = StudyContext(
        model=model,
        engine=engine_name,
        simulated=simulated,
        shape=shape,
        node=node,
        constraints=limits,
        request_limits=request_limits,
        price_per_hour_usd=node.price.usd_per_hour if node.price else None,
        server_cmd=server_cmd or url,
        server_env=tuple(f"{name}={value}" for name, value in sorted(environment.items())),
        calibration=_calibration(calibration_name, shape, node, simulated=simulated),
    )
    groups = list(trials_of(space, run, lengths_of=lambda args: observed_of(args, model)))
    if simulated:
        _note_idle_settings(groups)
    require_one_that_fits(groups, run)
    launch = Launch(
        executable=executable,
        container=container_of(image, model, node),
        environment=environment,
        passed=passed,
        folder=server_folder,
        server_cmd=server_cmd,
        url=url,
        host=host,
        port=port,
        ready_path=ready_endpoint,
        ready_timeout_s=ready_timeout_of(ready_timeout_s, shape),
        request_timeout_s=request_timeout_s,
        rest_s=rest_s,
        retries=asked.retries,
        early_stop=asked.early_stop,
        max_trial_s=asked.max_trial_s,
    )
    artifacts = Artifacts.at(output_json or output_dir / "tune.json")
    if not simulated:
        require_launch(spoken, launch)
        require_server(spoken, launch, groups, dry_run=dry_run or job_kind is not None)
    if job_kind is not None:
        return print_job(
            job_kind,
            node,
            image=job_image,
            folder=job_folder,
            limit_s=asked.budget_s,
            words=sys.argv[1:],
        )
    if dry_run:
        return print_plan(groups, run, launch, artifacts)
    artifacts.require_free(renew=resume and artifacts.journal.exists())
    if cluster is not None:
        require_cluster(groups, run, launch, cluster)
    policy = _course(asked, groups, run, launch, here=cluster is None)
    with Journal(artifacts.journal, resume=resume) as journal:
        done = finished_keys(journal.records, run, retry_failed=retry_failed)
        status = _run(groups, run, launch, journal, done, artifacts, policy, cluster, asked.measure)
        records = latest(journal.records)
    if not records:  # interrupted before the first trial ended
        return status
    write_artifacts(artifacts, records, limits, compared=measured_before)
    print_outcome(artifacts, records, limits, compared=measured_before)
    return status or _status_of(records, limits)


def _shape(model: str, engine_name: str) -> NetworkShape | None:
    """The model's dimensions; `None` where the server alone knows the model.

    Raises:
        ServetuneError: They cannot be had, and the engine reads the same files as we.
    """
    try:
        return load_shape(model)
    except ServetuneError as error:
        if engine(engine_name).model_has_config:
            raise
        echo(f"note: nothing is predicted: {error.message}")
        return None


def _note_idle_settings(groups: list[list[Trial]]) -> None:
    """Name what was asked of the engine and changes nothing here, as `simulate` does."""
    idle = {name for group in groups for trial in group[:1] for name in without_effect(trial.plan)}
    note_idle(sorted(idle), engine(DEFAULT_ENGINE).argument_types())


def _calibration(
    name: str | None, shape: NetworkShape | None, node: Node, *, simulated: bool
) -> KeptCalibration | None:
    if name is None:
        return None
    if not simulated:
        raise InputError("--calibration corrects simulated trials; a real engine needs none")
    assert shape is not None, "a simulated model has its dimensions"
    kept = calibration_named(name)
    kept.require_for(shape=shape, node=node)
    return kept


def _run(
    groups: list[list[Trial]],
    run: StudyContext,
    launch: Launch,
    journal: Journal,
    done: set[str],
    artifacts: Artifacts,
    policy: ExecutionPolicy,
    cluster: str | None,
    measure: int | None,
) -> int:
    """Run what is missing, or the few of it that promise most; 130 when the user stopped it."""
    total = sum(len(group) for group in groups)
    wanted = {trial.key for group in groups for trial in group}
    missing = [[trial for trial in group if trial.key not in done] for group in groups]
    if done:
        left = sum(len(group) for group in missing)
        echo(f"{total - left} of {total} trials are in the journal already")

    def ended(record: TrialRecord) -> None:
        journal.append(record)
        echo(progress_line(record, len(wanted & {r.key for r in journal.records}), total))

    try:
        with _sigterm_as_interrupt():
            if cluster is None:
                for some in _visits(missing, groups, run, journal, measure):
                    run_trials(
                        some,
                        run,
                        launch,
                        logs=artifacts.logs,
                        ended=ended,
                        say=echo,
                        policy=policy,
                    )
            else:
                from servetune.cluster import run_trials_on_cluster

                run_trials_on_cluster(
                    missing,
                    run,
                    launch,
                    address=cluster,
                    logs=artifacts.logs,
                    ended=ended,
                    say=echo,
                    policy=policy,
                )
    except KeyboardInterrupt:
        echo(
            f"interrupted; {len(wanted & {r.key for r in journal.records})} of {total} trials "
            f"are safe in "
            f"{artifacts.journal}\nhint: run the same command with --resume to go on"
        )
        return INTERRUPTED
    put_off = [record for record in latest(journal.records) if is_put_off(record)]
    if put_off:
        assert put_off[0].failure is not None
        echo(
            f"{len(put_off)} of {total} trials were put off: {put_off[0].failure.reason}\n"
            "hint: run the same command with --resume to go on"
        )
    return 0


def _visits(
    missing: list[list[Trial]],
    groups: list[list[Trial]],
    run: StudyContext,
    journal: Journal,
    measure: int | None,
) -> Iterator[list[list[Trial]]]:
    """All that is missing at once, or one after another the few that promise most."""
    if measure is None:
        yield missing
        return
    trials = [trial for group in groups for trial in group]
    echo(f"{len(trials)} trials are predicted; {measure} of them are run")
    promising = Promising(trials, run)
    for count in range(measure):
        records = latest(journal.records)
        if any(is_put_off(record) for record in records):
            return
        trial = promising.next(records)
        if trial is None:
            echo(f"{count} were enough: no other trial is likely to do better")
            return
        yield [[trial]]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let a polite kill stop the server, too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _course(
    asked: Asked, groups: list[list[Trial]], run: StudyContext, launch: Launch, *, here: bool
) -> ExecutionPolicy:
    """Which way to go; what an earlier run left on this machine is named before."""
    assert run.node is not None, "tune knows its machine"
    starts_here = here and not run.simulated and launch.url is None
    if starts_here:
        note_leftovers()
    return course_of(
        asked,
        groups,
        run.node,
        real=starts_here and launch.server_cmd is None,
        own_program=launch.executable is not None,
        on_this_machine=here,
    )


def _require_goodput_limits(
    limits: tuple[Constraint, ...], request_limits: tuple[Constraint, ...]
) -> None:
    if any(limit.metric == "goodput" for limit in limits) and not request_limits:
        raise InputError(
            "a goodput constraint needs limits on single requests",
            hint='give them with --slo "ttft<=500ms;tpot<=50ms"',
        )
    for limit in request_limits:
        if limit.metric not in LATENCIES:
            raise InputError(
                f"--slo judges single requests and {limit.metric} belongs to a whole trial",
                hint=f"use {', '.join(LATENCIES)}",
            )


def _status_of(records: list[TrialRecord], limits: tuple[Constraint, ...]) -> int:
    """3 when a trial failed that should have run, 2 when none could, 1 when none meets the
    constraints, else 0.
    """
    expected = ("does_not_fit", "budget")
    if any(record.failure and record.failure.kind not in expected for record in records):
        return 3
    ok = [record for record in records if record.status == "ok"]
    if not ok:
        return 2
    if limits and not any(not unmet(limits, record.results) for record in ok):
        return 1
    return 0
