"""Request of `tune`: what is swept, on which machine, under which limits, to which files.

It holds how servers are launched (program, place, environment) and the schedule of trials (order,
servers side by side, retries, budgets).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

import msgspec

from servetune.api.notes import note
from servetune.api.request import Request
from servetune.api.shared_options import (
    ALLOW_UNKNOWN,
    API_KEY_ENV,
    CAFILE,
    MLFLOW,
    MODEL,
    PROCESSES,
    TRACE_HEADERS,
    AnswerLimits,
    Calibrated,
    GoalOptions,
    Limits,
    Machine,
    Settings,
    sender_processes,
)
from servetune.api.timelines import WhichTimelines
from servetune.engines import DEFAULT_ENGINE, Engine, study_engines
from servetune.errors import EngineError, InputError
from servetune.hardware import Node
from servetune.metrics import MAX_WRONG_LENGTH, Acceptance
from servetune.models import NetworkShape
from servetune.option import (
    Count,
    Fraction,
    NonNegative,
    NonNegativeCount,
    Port,
    Positive,
    members,
    option,
)
from servetune.search.strategies import StrategyName
from servetune.servers.gpus import DeviceMemory, none_can_be, visible_cards
from servetune.servers.launchers import container_for, environment_of, find_strays, visible_devices
from servetune.store import Artifacts
from servetune.trials import (
    Budget,
    ExecutionPolicy,
    Launch,
    LoadKnob,
    Trial,
    default_ready_timeout_s,
    parse_duration_s,
    require_idle_gpus,
)
from servetune.trials.order import Order
from servetune.trials.retry import DEFAULT_RETRIES
from servetune.units import format_bytes
from servetune.workload import LoadOptions
from servetune.workload.options import (
    STUDY_INPUT_TOKENS,
    STUDY_OUTPUT_TOKENS,
    STUDY_REQUESTS_WORDS,
)

JOB_KINDS = ("slurm", "kubernetes")


class StudyFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a study."""

    group: ClassVar[str] = "Outputs"

    output_json: Annotated[
        Path | None,
        option(
            "Summary file; journal (.jsonl), dashboard (.html) and options (.toml) are beside it.",
            metavar="FILE",
            default="OUTPUT_DIR/tune.json",
        ),
    ] = None
    output_dir: Annotated[
        Path, option("Folder of the files where --output-json names none.", metavar="DIR")
    ] = Path("results")
    compare: Annotated[
        Path | None,
        option("Earlier or published records shown beside these.", metavar="FILE", of_run=True),
    ] = None
    resume: Annotated[
        bool,
        option(
            "Continuation of an earlier call: only trials that the journal lacks.",
            "--resume",
            "--continue",
        ),
    ] = False
    retry_failed: Annotated[bool, option("Repetition of failed trials, with --resume.")] = False
    keep_timelines: Annotated[
        WhichTimelines,
        option(
            "Trials whose timelines of requests are kept beside the journal; picks: those of the "
            "end, and of the Pareto front.",
        ),
    ] = "all"
    mlflow: Annotated[str | None, MLFLOW] = None
    otel_endpoint: Annotated[
        str | None,
        option(
            "OpenTelemetry collector that gets servers, their trials and each request as spans.",
            "--otel",
            metavar="URL",
        ),
    ] = None
    dry_run: Annotated[
        bool, option("Server commands and loads of all trials; nothing is started.")
    ] = False

    def artifacts(self) -> Artifacts:
        """Paths of the study's files.

        Raises:
            InputError: The summary's name cannot be one.
        """
        return Artifacts.at(self.output_json or self.output_dir / "tune.json")


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of a cluster."""

    group: ClassVar[str] = "Clusters"

    cluster: Annotated[
        str | None,
        option(
            "Ray cluster whose nodes run the trials, as many at once as have room.",
            metavar="auto|ADDRESS",
        ),
    ] = None
    job: Annotated[
        str | None,
        option(
            "Cluster software for which this command is printed as a job; nothing is started.",
            choices=JOB_KINDS,
        ),
    ] = None
    job_image: Annotated[
        str,
        option("Container image of the job, with servetune and the engine.", metavar="IMAGE"),
    ] = ""
    job_folder: Annotated[
        str,
        option(
            "Folder for the job's results: of the shared disk (Slurm), or a volume's claim "
            "(Kubernetes).",
            metavar="FOLDER",
        ),
    ] = ""


"""TCP port."""


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Start and address of a study's servers."""

    group: ClassVar[str] = "Servers"

    launcher: Annotated[
        Literal["process", "docker"],
        option("Kind of server: a process of this machine, or a container on it."),
    ] = "process"
    image: Annotated[
        str | None,
        option("Container image with the engine, for --launcher docker.", metavar="IMAGE"),
    ] = None
    executable: Annotated[
        str | None,
        option(
            "Program of the engine.",
            "--executable",
            f"--{DEFAULT_ENGINE}-executable",
            metavar="PATH",
            default="that of the engine's environment variable, else the one on PATH",
        ),
    ] = None
    server_cmd: Annotated[
        str | None,
        option(
            "Command that starts the server in place of the engine's own; {model}, {host}, {port}, "
            "{settings} and {NAME} of a setting are filled in.",
            metavar="COMMAND",
        ),
    ] = None
    server_env: Annotated[
        tuple[str, ...],
        option(
            "Environment variable of the servers, repeated for several; NAME alone copies this "
            "process's value, also into a container.",
            metavar="NAME[=VALUE]",
        ),
        members(lambda name, value: name if value is None else f"{name}={value}"),
    ] = ()
    server_folder: Annotated[
        Path | None,
        option("Working directory of the servers.", metavar="DIR", default="the current one"),
    ] = None
    url: Annotated[
        str | None,
        option(
            "Address of the server of --engine external, which is neither started nor stopped.",
            metavar="URL",
        ),
    ] = None
    host: Annotated[str, option("Address that servers listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[
        Port | None,
        option("Port that servers listen on.", metavar="PORT", default="a free one"),
    ] = None
    api_key_env: Annotated[str | None, API_KEY_ENV] = None
    cafile: Annotated[Path | None, CAFILE] = None
    trace_headers: Annotated[bool, TRACE_HEADERS] = False
    processes: Annotated[str, PROCESSES] = "auto"
    ready_endpoint: Annotated[
        str | None,
        option(
            "Path of the server that answers 200 when it is ready.",
            metavar="PATH",
            default="the engine's",
        ),
    ] = None
    ready_timeout_s: Annotated[
        Positive | None,
        option(
            "Seconds that a server may take to become ready.",
            "--server-timeout",
            metavar="S",
            default="600, and more for large models",
        ),
    ] = None
    request_timeout_s: Annotated[
        Positive,
        option(
            "Time limit of each request, in seconds.", "--request-timeout", "--timeout", metavar="S"
        ),
    ] = 600.0
    rest_s: Annotated[
        NonNegative,
        option("Pause between two trials on one server, in seconds.", "--rest", metavar="S"),
    ] = 0.0

    def environment(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Variables by value, and names of those to copy from this process.

        Raises:
            InputError: A variable cannot be given.
        """
        return environment_of(self.server_env)

    def require_fit(self, engine: Engine, *, simulated: bool, cluster: bool) -> None:
        """Refuse options that contradict one another, the engine or the place of the servers.

        Args:
            engine: Engine of the servers.
            simulated: Whether trials are simulated.
            cluster: Whether servers run on the nodes of a cluster.

        Raises:
            InputError: Two options contradict, or a folder is not there.
        """
        starts = engine.starts_servers and not simulated
        given: Mapping[str, object] = {
            "--server-env": self.server_env,
            "--server-folder": self.server_folder,
        }
        for name, value in given.items():
            if value and not starts:
                raise InputError(
                    f"{name} is for servers that servetune starts", hint="leave it out"
                )
        self._require_requests(engine, simulated=simulated)
        if self.server_folder is not None and not self.server_folder.is_dir():
            raise InputError(
                f"--server-folder {self.server_folder} does not exist",
                hint="give a directory of this machine",
            )
        if self.launcher == "docker":
            self._require_container(engine, starts=starts, cluster=cluster)
        elif self.image is not None:
            raise InputError("--image is for --launcher docker", hint="add it, or leave both out")

    def _require_requests(self, engine: Engine, *, simulated: bool) -> None:
        """Refuse options about requests over HTTP where none are sent, or none over TLS."""
        given: Mapping[str, object] = {
            "--api-key-env": self.api_key_env,
            "--cafile": self.cafile,
            "--trace-headers": self.trace_headers,
            "--processes": self.processes != "auto",
        }
        for name, value in given.items():
            if value and simulated:
                raise InputError(
                    f"{name} is for requests to a server, and a simulation sends none",
                    hint="leave it out",
                )
        if self.cafile is None:
            return
        if engine.starts_servers:
            raise InputError(
                "--cafile is for servers over https, and servetune starts its own without",
                hint="leave it out, or measure a server at --url with --engine external",
            )
        if not self.cafile.is_file():
            raise InputError(f"no certificates at {self.cafile}", hint="give a file in PEM form")

    def _require_container(self, engine: Engine, *, starts: bool, cluster: bool) -> None:
        if not starts:
            raise InputError(
                "--launcher docker needs an engine whose servers are started", hint="leave it out"
            )
        if cluster:
            raise InputError(
                "--launcher docker is for this machine, and --cluster runs servers on others",
                hint="leave one of them out",
            )
        if self.server_folder is not None:
            raise InputError(
                "--server-folder is for processes, and a container has folders of its own",
                hint="leave it out; the image says where its servers work",
            )
        if self.image is None:
            shipped = engine.shipping.builds[0].repository if engine.shipping else ""
            name = shipped or "NAME"
            raise InputError(
                "--launcher docker needs the engine's image", hint=f"such as --image {name}:TAG"
            )

    def launch(self, model: str, node: Node, shape: NetworkShape | None) -> Launch:
        """Start options of a model's servers on a machine; the schedule's part is not set.

        Raises:
            InputError: No container can have the machine's devices or the model's folder.
        """
        environment, copied = self.environment()
        ready_timeout_s = self.ready_timeout_s
        if ready_timeout_s is None:
            ready_timeout_s = default_ready_timeout_s(shape)
        return Launch(
            executable=self.executable,
            container=container_for(self.image, model, node.device) if self.image else None,
            environment=environment,
            passed=copied,
            folder=self.server_folder.resolve() if self.server_folder else None,
            server_cmd=self.server_cmd,
            url=self.url,
            api_key_env=self.api_key_env,
            cafile=str(self.cafile) if self.cafile else None,
            trace_headers=self.trace_headers,
            processes=sender_processes(self.processes),
            host=self.host,
            port=self.port,
            ready_path=self.ready_endpoint,
            ready_timeout_s=ready_timeout_s,
            request_timeout_s=self.request_timeout_s,
            rest_s=self.rest_s,
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Order, parallelism and limits of a study's trials."""

    group: ClassVar[str] = "Schedule"

    strategy: Annotated[
        StrategyName | None,
        option(
            "Choice of the trials to run. grid: all, as written; random: all, shuffled; guided: "
            "those that predictions, corrected by each measurement, promise most of; tpe and "
            "nsga2: samplers of Optuna, which start from nothing (needs servetune[optuna]).",
            default="grid; guided with --max-trials, --max-time or --max-cost",
        ),
    ] = None
    max_trials: Annotated[
        Count | None,
        option(
            "Number of trials to run, those of the calls that --resume continues among them.",
            "--max-trials",
            "--measure",
            metavar="COUNT",
            default="as many as the strategy asks for",
        ),
    ] = None
    regret: Annotated[
        Fraction,
        option(
            "Share by which a trial must be better than the pick to count. A guided search ends "
            "once no other is, with probability --confidence.",
            metavar="FRACTION",
        ),
    ] = 0.02
    confidence: Annotated[
        Fraction,
        option(
            "Chance with which the pick is that good, at which a guided search ends; with --find, "
            "that the largest load is right.",
            metavar="FRACTION",
        ),
    ] = 0.95
    find: Annotated[
        str | None,
        option(
            "Load setting, max_concurrency or request_rate, whose largest value within the "
            "constraints is found for each server configuration: few loads are run, and those "
            "near the limit again.",
            metavar="NAME[=LEAST..MOST]",
            default="each load that is given is run",
        ),
    ] = None
    order: Annotated[
        Order,
        option(
            "Order of the trials of a grid: as written, random, or interleaved, which goes round "
            "the server configurations so that slow changes of the machine touch all alike."
        ),
    ] = "grid"
    order_seed: Annotated[
        int,
        option(
            "Seed of a random order, and of the strategy.",
            "--order-seed",
            "--search-seed",
            metavar="NUMBER",
        ),
    ] = 0
    parallel: Annotated[
        str,
        option("Servers under load at once, each on GPUs of its own.", metavar="auto|N"),
    ] = "1"
    retries: Annotated[
        NonNegativeCount,
        option(
            "Number of times that a failed start or trial is repeated; the same cause twice ends "
            "it.",
            metavar="COUNT",
        ),
    ] = DEFAULT_RETRIES
    early_stop: Annotated[
        bool, option("Early end of a trial that plainly misses the constraints.")
    ] = True
    drift_check: Annotated[
        bool,
        option(
            "Second run of a reference trial now and then, which shows whether the machine has "
            "changed meanwhile; at the end it may start one more server."
        ),
    ] = True
    max_time_per_trial: Annotated[
        str | None,
        option("Time after which a trial's load ends with what it has: 90s, 5m.", metavar="TIME"),
    ] = None
    budget: Annotated[
        str | None,
        option(
            "Time for this call: 45m, 2h. Trials left over stay for --resume.",
            "--budget",
            "--max-time",
            metavar="TIME",
        ),
    ] = None
    max_cost_usd: Annotated[
        Positive | None,
        option(
            "Cost of this call at which it ends, in dollars: the machine's price times the time.",
            "--max-cost",
            metavar="USD",
        ),
    ] = None
    server_cpus: Annotated[
        str | None,
        option("CPU cores that servers run on, such as 4-15 (taskset).", metavar="LIST"),
    ] = None
    server_numa_node: Annotated[
        NonNegativeCount | None,
        option("NUMA node whose cores and memory servers use (numactl).", metavar="NUMBER"),
    ] = None

    def knob(self) -> LoadKnob | None:
        """Load setting to find; `None` without one.

        Raises:
            InputError: It cannot be read, or another option of the schedule contradicts it.
        """
        if self.find is None:
            return None
        for name, given in {
            f"--parallel {self.parallel}": self.parallel.strip() != "1",
            "--order interleaved": self.order == "interleaved",
            "--strategy guided": self.strategy == "guided",
        }.items():
            if given:
                raise InputError(
                    f"--find runs the loads of one server after the other, and {name} does not",
                    hint="leave one of them out",
                )
        if not 0.5 <= self.confidence < 1:
            raise InputError(
                f"no number of runs makes a load {self.confidence:.0%} sure",
                hint="give a --confidence from 0.5 to 0.99",
            )
        return LoadKnob.parse(self.find)

    @property
    def budget_s(self) -> float | None:
        """Seconds that the call may take."""
        return None if self.budget is None else parse_duration_s(self.budget)

    @property
    def max_trial_s(self) -> float | None:
        """Seconds that the load of a trial may take."""
        if self.max_time_per_trial is None:
            return None
        return parse_duration_s(self.max_time_per_trial)

    def require_own_servers(self) -> None:
        """Refuse, for a server that runs already, options about placing servers.

        Raises:
            InputError: Such an option is given.
        """
        for name in self._about_placing():
            raise InputError(
                f"{name} is for servers that servetune starts, and --engine external starts none",
                hint="leave it out",
            )

    def require_this_machine(self, *, job: bool) -> None:
        """Refuse, for trials on a cluster, options about one machine.

        Raises:
            InputError: Such an option is given.
        """
        for name in self._about_placing():
            raise InputError(
                f"{name} is for this machine, and --cluster runs servers on others",
                hint="leave it out: as many run at once as the cluster has room for",
            )
        if self.max_cost_usd is not None:
            raise InputError(
                "--max-cost counts one machine, and --cluster uses as many as have room",
                hint="limit the time, with --budget",
            )
        self._require_list("--cluster runs many at once")
        if self.find is not None:
            raise InputError(
                "--find runs one load after the other, and --cluster many trials at once",
                hint="leave one of them out",
            )
        if job:
            raise InputError(
                "--job uses one machine, and --cluster joins others",
                hint="leave one of them out",
            )

    def policy(
        self,
        groups: Sequence[list[Trial]],
        node: Node,
        *,
        real: bool,
        own_program: bool = False,
        on_this_machine: bool = True,
        predictable: bool = True,
    ) -> ExecutionPolicy:
        """Execution policy of the trials on a machine.

        Args:
            groups: Trials by server configuration.
            node: Machine.
            real: Whether an engine is started on this machine; a user's own command may use
                devices that are elsewhere.
            own_program: Whether the user names the engine's program, which may be a stand-in.
            on_this_machine: Whether servers run here, not on a cluster's nodes.
            predictable: Whether model and machine are known.

        Raises:
            InputError: An option cannot be read.
            EngineError: A device that is needed is busy or missing.
        """
        parallel = _server_count(self.parallel)
        if parallel != 1:
            self._require_list("--parallel runs several at once")
        strategy = self._strategy(
            one_at_a_time=parallel == 1 and on_this_machine, predictable=predictable
        )
        on_gpus = node.device.architecture != "cpu"
        visible = visible_cards() if on_gpus else []
        if real and on_gpus and node.device.vendor == "NVIDIA":
            if not visible and not own_program and none_can_be():
                raise EngineError(
                    f"the engine would run on {node.device.name}, and no GPU is visible here",
                    hint="leave --gpu and --instance out to run on the processor; servetune doctor "
                    "says what is here",
                )
            require_idle_gpus(visible, node, groups)
        return ExecutionPolicy(
            strategy=strategy,
            margin=self.regret,
            confidence=self.confidence,
            max_trials=self.max_trials,
            drift_check=self.drift_check,
            order="random" if strategy == "random" else self.order,
            seed=self.order_seed,
            parallel=parallel,
            budget=Budget(
                limit_s=self.budget_s,
                max_cost_usd=self.max_cost_usd,
                price_per_hour_usd=node.price.usd_per_hour if node.price else None,
            ),
            cpus=_cores(self.server_cpus),
            numa_node=self.server_numa_node,
            memory=DeviceMemory(visible_cards) if visible else None,
            most_devices=_usable_devices(node, len(visible)) if on_this_machine else None,
        )

    def _strategy(self, *, one_at_a_time: bool, predictable: bool) -> StrategyName:
        """Strategy that is named, else the one that the limits ask for and that can be.

        Raises:
            InputError: --order is given with a strategy that has an order of its own.
        """
        limits = {
            "--max-trials": self.max_trials,
            "--max-time": self.budget,
            "--max-cost": self.max_cost_usd,
        }
        given = [name for name, limit in limits.items() if limit is not None]
        listed = self.order != "grid" or self.find is not None
        if self.strategy is not None or listed or not given:
            if self.strategy not in {None, "grid"} and self.order != "grid":
                raise InputError(
                    f"--order {self.order} is for a grid, and strategy {self.strategy} has an "
                    "order of its own",
                    hint="leave one of them out",
                )
            return self.strategy or "grid"
        if one_at_a_time and predictable:
            return "guided"
        why = (
            "it chooses one trial after the other, and several run at once"
            if predictable
            else "nothing can be predicted without the model's configuration"
        )
        note(f"note: strategy grid, not guided as usual with {' and '.join(given)}: {why}")
        return "grid"

    def _require_list(self, why: str) -> None:
        """Refuse strategies that choose each trial after the one before it.

        Raises:
            InputError: Such a strategy is named.
        """
        if self.strategy in {"guided", "tpe", "nsga2"}:
            raise InputError(
                f"strategy {self.strategy} chooses one trial after the other, and {why}",
                hint="leave one of them out, or choose --strategy random",
            )

    def _about_placing(self) -> tuple[str, ...]:
        """Options given that place servers on a machine's devices and cores."""
        given = {
            f"--parallel {self.parallel}": self.parallel.strip() != "1",
            "--server-cpus": self.server_cpus is not None,
            "--server-numa-node": self.server_numa_node is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)


def note_leftovers() -> None:
    """Note servers that an earlier servetune has left."""
    containers, processes = find_strays()
    for each in containers:
        note(
            f"note: {each.label} was left by an earlier servetune (process {each.owner_pid}, which "
            f"has ended); end it with docker rm --force {each.name}"
        )
    for one in processes:
        note(
            f"note: {one.label} was left by an earlier servetune (process {one.owner_pid}, which "
            f"has ended) and holds {format_bytes(one.resident_bytes)}; end it with "
            f"kill -9 {one.pid}"
        )


def _usable_devices(node: Node, visible_count: int) -> int | None:
    """Number of the machine's devices that servers may use; `None` where it is not known."""
    named = visible_devices(node.device.vendor)
    count = len(named) if named else visible_count
    if count and count < node.device_count:
        note(f"note: servers use the {count} of {node.device_count} GPUs that are visible here")
    return count or None


def _server_count(text: str) -> int | None:
    """Number of servers at once; `None` for as many as there is room for."""
    if text.strip().lower() == "auto":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise InputError(f"--parallel {text} is neither auto nor a number of servers")
    return int(text)


def _cores(text: str | None) -> tuple[int, ...]:
    """Core numbers of a list such as `0-3,8`."""
    if text is None:
        return ()
    cores: set[int] = set()
    try:
        for part in text.split(","):
            low, _, high = part.partition("-")
            cores |= set(range(int(low), int(high or low) + 1))
    except ValueError:
        raise InputError(
            f"--server-cpus {text} is no list of cores", hint="write it like 0-3,8"
        ) from None
    usable = os.sched_getaffinity(0)
    missing = cores - usable
    if missing or not cores:
        raise InputError(
            f"--server-cpus {text}: this process may not use "
            f"{', '.join(map(str, sorted(missing))) or 'any of these'}",
            hint=f"choose of {', '.join(map(str, sorted(usable)))}",
        )
    return tuple(sorted(cores))


class StudyAnswerLimits(AnswerLimits, frozen=True, kw_only=True):
    """Limits on failed requests and on lengths of answers, beyond which a trial has failed."""

    max_wrong_length: Annotated[
        Fraction,
        option(
            "Share of answers of another length than requested beyond which a trial has failed; "
            "1 for any.",
            metavar="FRACTION",
        ),
    ] = MAX_WRONG_LENGTH

    def acceptance(self) -> Acceptance:
        """Limits beyond which a trial has failed."""
        return msgspec.structs.replace(
            super().acceptance(), wrong_length_rate=self.max_wrong_length
        )


class Study(Request, frozen=True, kw_only=True):
    """Every combination of server and client settings, run or simulated, and the best of them."""

    verb: ClassVar[str] = "tune"
    most_used: ClassVar[tuple[str, ...]] = (
        "model",
        "engine",
        "server_args",
        "client_args",
        "concurrency",
        "requests",
        "constraints",
        "gpu",
        "num_gpus",
        "output_json",
        "resume",
        "dry_run",
    )
    group: ClassVar[str] = "Study"
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "input_tokens": STUDY_INPUT_TOKENS,
            "output_tokens": STUDY_OUTPUT_TOKENS,
            "requests": STUDY_REQUESTS_WORDS,
        }
    )

    model: Annotated[str, MODEL]
    engine: Annotated[
        str,
        option("Engine that serves the trials.", "--engine", "--framework", choices=study_engines),
    ] = DEFAULT_ENGINE
    server_args: Annotated[
        Settings,
        option("Server settings, fixed or swept; may be repeated.", metavar="NAME=[A,B];.."),
    ] = ()
    space: Annotated[
        Literal["given", "auto"],
        option(
            "Server settings that are swept: those given, or auto, which adds layouts, batch "
            "limits, number formats, prefix caching and drafts for the model, GPUs and engine."
        ),
    ] = "given"
    forbid: Annotated[
        tuple[str, ...],
        option(
            "Combination of server and load settings that is left out; its conditions must all "
            "hold; may be repeated.",
            metavar="NAME=A;NAME>B;..",
        ),
    ] = ()
    allow_unknown: Annotated[bool, ALLOW_UNKNOWN] = False
    client_args: Annotated[
        Settings,
        option("Load settings, fixed or swept; may be repeated.", metavar="NAME=[A,B];.."),
    ] = ()
    concurrency: Annotated[
        tuple[Count, ...],
        option(
            "Concurrent users, swept where there are several: 8,32. Each sends its next request "
            "when the last is answered; the client argument max_concurrency is the same.",
            "--concurrency",
            "--max-concurrency",
            "-c",
            group=LoadOptions.group,
            metavar="USERS",
            default="all requests at once, or at their rate",
        ),
    ] = ()
    load: LoadOptions = LoadOptions()
    machine: Machine = Machine()
    limits: GoalOptions = GoalOptions()
    answers: StudyAnswerLimits = StudyAnswerLimits()
    slo: Annotated[
        str,
        option(
            "Limits on single requests, for goodput: ttft<=500ms;tpot<=50ms.",
            group=Limits.group,
            metavar="LIMITS",
        ),
    ] = ""
    correction: Calibrated = Calibrated()
    servers: LaunchOptions = LaunchOptions()
    schedule: Schedule = Schedule()
    files: StudyFiles = StudyFiles()
    clusters: ClusterOptions = ClusterOptions()
    mute_server: Annotated[
        bool, option("Silence of servers, whose output goes to log files anyway.", hidden=True)
    ] = False
