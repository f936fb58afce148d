"""Request of `tune`: what is swept, on which machine, under which limits, to which files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec

from servetune.api.request import Request
from servetune.api.shared_options import Calibrated, Limits, Machine
from servetune.api.study_schedule import Schedule
from servetune.api.study_servers import LaunchOptions
from servetune.engines import DEFAULT_ENGINE, ENGINES
from servetune.option import Count, option
from servetune.store import Artifacts
from servetune.workload import LoadOptions

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
        option("Earlier or published records shown beside these.", metavar="FILE"),
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


class Study(Request, frozen=True, kw_only=True):
    """Every combination of server and client settings, run or simulated, and the best of them."""

    verb: ClassVar[str] = "tune"
    group: ClassVar[str] = "Study"
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"input_tokens": "1024", "output_tokens": "512", "requests": "1000"}
    )

    model: Annotated[
        str, option("Model: hub id, local folder, or a name of the catalogue.", metavar="NAME")
    ]
    engine: Annotated[
        str,
        option("Engine that serves the trials.", "--engine", "--framework", choices=tuple(ENGINES)),
    ] = DEFAULT_ENGINE
    server_args: Annotated[
        tuple[str, ...],
        option("Server settings, fixed or swept; may be repeated.", metavar="NAME=[A,B];.."),
    ] = ()
    client_args: Annotated[
        tuple[str, ...],
        option("Load settings, fixed or swept; may be repeated.", metavar="NAME=[A,B];.."),
    ] = ()
    concurrency: Annotated[
        tuple[Count, ...],
        option(
            "Concurrent users, swept where there are several: 8,32. Each sends its next request "
            "when the last is answered; the client argument max_concurrency is the same.",
            "--concurrency",
            "-c",
            group=LoadOptions.group,
            metavar="USERS",
            default="all requests at once, or at their rate",
        ),
    ] = ()
    load: LoadOptions = LoadOptions()
    machine: Machine = Machine()
    limits: Limits = Limits()
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
