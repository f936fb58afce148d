"""Export of trials as Parquet files, on this disk or in S3, and their table in Glue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular
from servetune.api.request import Request, request_of
from servetune.api.run_rows import JournalRows, read_rows, with_permissions_named
from servetune.api.trials import Rent
from servetune.api.waiting import aws_in, completed
from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.deploy.aws.glue import GlueTable, Partition, Registered, glue_table, register
from servetune.deploy.aws.objects import S3Folder
from servetune.deploy.names import require_region
from servetune.deploy.staging import Place, place, require_bucket
from servetune.errors import InputError, StoreError
from servetune.option import Count, argument, option
from servetune.store.results_columns import PARTITIONS
from servetune.store.results_folder import ExportedFile, LocalFolder, Preview, export_rows
from servetune.store.results_parquet import require_parquet
from servetune.store.results_rows import SIMULATED, Row, RowOptions, distinct
from servetune.units import counted


class ExportRuns(Request, frozen=True, kw_only=True):
    """Trials to export as Parquet files."""

    verb: ClassVar[str] = "runs export"
    first: ClassVar[str] = "sources"
    most_used: ClassVar[tuple[str, ...]] = ("sources", "to", "glue", "simulated")

    sources: Annotated[
        tuple[Path, ...],
        argument(
            "Journals (.jsonl), names of runs, summaries or records (.json), folders of journals, "
            "or patterns in quotes.",
            metavar="SOURCE...",
            of_run=True,
        ),
    ]
    to: Annotated[
        str,
        option(
            "Folder or prefix in S3 that the partitions model=/instance=/target= are below.",
            metavar="DIR|s3://BUCKET/PREFIX",
        ),
    ]
    simulated: Annotated[
        bool, option("Simulated trials as well, in the partition target=simulated.")
    ] = False
    failed: Annotated[bool, option("Failed trials as well.")] = False
    project: Annotated[
        str | None,
        option("Project of the trials.", metavar="NAME", default="the journal's name"),
    ] = None
    deployment_target: Annotated[
        str | None,
        option(
            "Deployment target of the measured trials.",
            metavar="NAME",
            default="realtime-inference for SageMaker, url for other servers, else local",
        ),
    ] = None
    instance_count: Annotated[
        Count | None,
        option(
            "Instances that served the load, for the cost of all of them.",
            default="1 for servers that tune started, else unknown",
        ),
    ] = None
    dry_run: Annotated[
        bool, option("Preview of the files, also of those removed; nothing is written.")
    ] = False
    glue: Annotated[
        str | None,
        option(
            "Table in the Glue catalog that the partitions are registered in; made where it is "
            "missing, named benchmark_results without a name.",
            metavar="DATABASE[.TABLE]",
        ),
    ] = None
    region: Annotated[str | None, REGION] = None
    rent: Rent = Rent()


class ExportedRuns(Tabular, frozen=True, kw_only=True):
    """Files of an export.

    Attributes:
        to: Folder or prefix in S3.
        files: Files with the trials, and those that trials were taken out of.
        trials: Number of trials in the export.
        simulated_left_out: Number of simulated trials that were left out.
        failed_left_out: Number of failed trials that were left out.
        registered: Changes of the Glue catalog, where it was asked for.
        dry_run: Whether nothing was written.
    """

    to: str
    files: tuple[ExportedFile, ...]
    trials: int
    simulated_left_out: int = 0
    failed_left_out: int = 0
    registered: Registered | None = None
    dry_run: bool = False

    def as_rows(self) -> Iterable[TableRow]:
        """One row per file."""
        return self.files

    def __str__(self) -> str:
        counts = dict.fromkeys(("written", "unchanged", "removed"), 0)
        for each in self.files:
            counts[each.state] += 1
        if self.dry_run:
            words = f"{counted(counts.pop('written'), 'file')} would be written"
            removed = counts.pop("removed")
            words += f", {removed} removed" if removed else ""
            words += f", {counts['unchanged']} unchanged" if counts["unchanged"] else ""
        else:
            words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        lines = [f"{counted(self.trials, 'trial')} in {self.to}: {words}"]
        if self.simulated_left_out:
            left_out = counted(self.simulated_left_out, "simulated trial")
            lines.append(f"{left_out} left out: --simulated")
        if self.failed_left_out:
            lines.append(f"{counted(self.failed_left_out, 'failed trial')} left out: --failed")
        if self.registered:
            lines.append(f"Glue {self.registered}")
        return "\n".join(lines)


def export_runs(
    request: ExportRuns | str | Path | Sequence[str | Path] | None = None,
    /,
    **options: object,
) -> ExportedRuns:
    """Write trials as Parquet files with Hive partitions; a second export changes nothing.

    Args:
        request: The request, or the journals.
        options: Fields of `ExportRuns`.

    Raises:
        StoreError: A journal cannot be read, a file cannot be written, or pyarrow is not installed.
        InputError: An option cannot be read, or the bucket is not there.
        DeployError: AWS refused.
    """
    if request is not None and not isinstance(request, ExportRuns):
        request, options = None, {"sources": request, **options}
    request = request_of(ExportRuns, request, options)
    if not request.to.strip():
        raise InputError("--to is empty", hint="name a folder, such as --to lake")
    require_parquet()
    remote = place(request.to) if request.to.startswith("s3:") else None
    table = glue_table(request.glue) if request.glue is not None else None
    if table and remote is None:
        raise InputError("Glue knows files in S3 alone", hint="give --to s3://BUCKET/PREFIX")
    rows = distinct(row for each in _read(request) for row in each.rows)
    chosen = [row for row in rows if _wanted(row, request)]
    simulated = sum(row["kind"] == SIMULATED for row in rows) if not request.simulated else 0
    failed = len(rows) - len(chosen) - simulated
    if not chosen:
        raise _nothing(request, simulated, failed)
    registered = None
    if remote is not None:
        aws = aws_in(require_region(region_of(request.region)))
        files, registered = completed(_to_s3(chosen, remote, table, aws, dry_run=request.dry_run))
    else:
        folder = LocalFolder(Path(request.to).expanduser())
        if request.dry_run:
            files = completed(export_rows(chosen, Preview(folder)))
        else:
            with folder.locked():
                files = completed(export_rows(chosen, folder))
    return ExportedRuns(
        to=request.to.rstrip("/"),
        files=tuple(files),
        trials=len(chosen),
        simulated_left_out=simulated,
        failed_left_out=failed,
        registered=registered,
        dry_run=request.dry_run,
    )


def _read(request: ExportRuns) -> list[JournalRows]:
    if not request.sources:
        raise InputError("an export needs a source", hint="give the .jsonl of a run, or its folder")
    facts = RowOptions(
        project=request.project,
        target=request.deployment_target,
        instance_count=request.instance_count,
    )
    return read_rows(request.sources, options=facts, rent=request.rent)


def _wanted(row: Row, request: ExportRuns) -> bool:
    return (request.simulated or row["kind"] != SIMULATED) and (
        request.failed or row["status"] == "ok"
    )


def _nothing(request: ExportRuns, simulated: int, failed: int) -> StoreError:
    sources = ", ".join(map(str, request.sources))
    if not simulated and not failed:
        return StoreError(f"{sources}: no trial", hint="run servetune tune first")
    counts = [
        (simulated, "simulated", "--simulated"),
        (failed, "failed", "--failed"),
    ]
    there = " and ".join(f"{count} {kind}" for count, kind, _ in counts if count)
    names = " and ".join(name for count, _, name in counts if count)
    return StoreError(
        f"{sources}: no trial to export, {there} ones alone", hint=f"{names} exports them as well"
    )


async def _to_s3(
    rows: Sequence[Row], where: Place, table: GlueTable | None, aws: AwsClient, *, dry_run: bool
) -> tuple[list[ExportedFile], Registered | None]:
    try:
        await require_bucket(where, aws)
        folder = S3Folder(where, aws)
        files = await export_rows(rows, Preview(folder) if dry_run else folder)
        if table is None or dry_run:
            return files, None
        partitions = {
            tuple(each.partition[key.name] for key in PARTITIONS): each.path.rpartition("/")[0]
            for each in files
            if each.partition
        }
        registered = await register(
            table,
            where.uri,
            [Partition(values, f"{where.uri}{path}/") for values, path in partitions.items()],
            aws,
        )
    except AwsError as error:
        raise with_permissions_named(error) from None
    return files, registered
