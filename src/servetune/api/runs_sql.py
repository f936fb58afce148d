"""SQL over trials: by DuckDB over journals and Parquet files, or by Athena."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from servetune.api.aws_region import REGION, region_of
from servetune.api.frames import TableRow, Tabular, columns_of
from servetune.api.inputs import journals_below, named_files, with_journal_named
from servetune.api.request import Request, request_of
from servetune.api.run_names import journal_of
from servetune.api.run_rows import JournalRows, read_rows, with_permissions_named
from servetune.api.waiting import aws_in, completed
from servetune.deploy.aws.athena import USD_PER_TB, AthenaAnswer, AthenaPlace, ask
from servetune.deploy.aws.client import AwsError
from servetune.deploy.aws.objects import S3Folder
from servetune.deploy.names import require_region
from servetune.deploy.staging import place
from servetune.errors import InputError, StoreError
from servetune.option import argument, option
from servetune.store import Artifacts, read_requests, write_csv, write_parquet, write_text
from servetune.store.requests import request_arrays
from servetune.store.results_folder import parquet_files
from servetune.store.results_parquet import (
    partition_of,
    read_parquet,
    require_parquet,
    table_of,
    union,
    with_partition,
)
from servetune.store.results_rows import SIMULATED
from servetune.store.results_sql import query, require_duckdb
from servetune.units import counted, format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

#: Names under which queries written for other tables find the results.
_ALIASES = {"benchmark_results": "results", "mlcc_ci.benchmark_results": "results"}
#: Rows, and characters of a cell, of an answer's text.
_SHOWN, _CELL = 50, 200
_ENDINGS = (".csv", ".parquet", ".json")
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=1)]
#: Objects of S3 that are read at once.
_READERS = 8


class QueryRuns(Request, frozen=True, kw_only=True):
    """A query over trials."""

    verb: ClassVar[str] = "runs sql"

    sql: Annotated[str, argument("Statement that reads, such as SELECT.", metavar="SQL")]
    sources: Annotated[
        tuple[str, ...],
        argument(
            "Journals (.jsonl), names of runs, summaries or records (.json), Parquet files, "
            "folders of these, patterns in quotes or s3://BUCKET/PREFIX; the current folder by "
            "default.",
            metavar="[SOURCE..]",
        ),
    ] = ()
    out: Annotated[
        Path | None,
        option("File of the answer, by its ending .csv, .parquet or .json.", metavar="FILE"),
    ] = None
    force: Annotated[bool, option("Permission to write over files that are there.")] = False
    query_timeout_s: Annotated[
        PositiveSeconds | None,
        option(
            "Time that DuckDB may take.", "--query-timeout", metavar="SECONDS", default="no limit"
        ),
    ] = None
    max_rows: Annotated[
        Count | None,
        option("Rows that DuckDB's answer may have.", metavar="COUNT", default="no limit"),
    ] = None
    max_bytes: Annotated[
        Count | None,
        option("Bytes that DuckDB's answer may have.", metavar="BYTES", default="no limit"),
    ] = None
    region: Annotated[str | None, REGION] = None
    athena: Annotated[
        bool, option("Athena in the place of DuckDB; sources are its tables.", group="Athena")
    ] = False
    database: Annotated[
        str,
        option("Database of tables that are named without one.", metavar="NAME", group="Athena"),
    ] = "mlcc_ci"
    workgroup: Annotated[
        str | None,
        option("Workgroup of the query.", metavar="NAME", default="primary", group="Athena"),
    ] = None
    output_location: Annotated[
        str | None,
        option(
            "Prefix in S3 for Athena's files of the answer.",
            metavar="s3://BUCKET/PREFIX/",
            default="the workgroup's",
            group="Athena",
        ),
    ] = None


class QueryAnswer(Tabular, frozen=True, kw_only=True):
    """Answer to a query.

    Attributes:
        columns: Names of the columns.
        rows: Values of each row; `None` for null.
        trials: Number of rows of the table `results`; `None` of Athena's.
        simulated: Number of these that are simulated.
        failed: Number of these that failed.
        files: Number of journals and Parquet files that were read.
        athena: Facts of the query in Athena, where it ran there.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    trials: int | None = None
    simulated: int = 0
    failed: int = 0
    files: int = 0
    athena: AthenaAnswer | None = None

    def as_rows(self) -> Iterable[TableRow]:
        """Rows by column."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __str__(self) -> str:
        from servetune.report import answer_text

        rows = [
            [f"{v[:_CELL]}..." if isinstance(v, str) and len(v) > _CELL else v for v in row]
            for row in self.rows[:_SHOWN]
        ]
        left = len(self.rows) - len(rows)
        more = [f"the first {_SHOWN:,} rows of {len(self.rows):,}"] if left else []
        return "\n".join([answer_text(self.columns, rows), *more, self.note()])

    def note(self) -> str:
        """What was read, and what it cost, in a line."""
        answer = counted(len(self.rows), "row")
        if self.athena is not None:
            return f"{answer}; {_scanned(self.athena)}; query {self.athena.query_id}"
        of = [f"{counted(self.trials or 0, 'result')} in {counted(self.files, 'file')}"]
        if self.simulated:
            of.append(f"{self.simulated:,} of them simulated (column kind)")
        if self.failed:
            of.append(f"{self.failed:,} failed (column status)")
        return f"{answer} from {', '.join(of)}"

    def export(self, path: str | Path) -> None:
        """Write the rows as CSV, Parquet or JSON; a file is replaced.

        Args:
            path: File whose ending says what: `.csv`, `.parquet` or `.json`.

        Raises:
            InputError: It has another ending.
            StoreError: It could not be written, or pyarrow is not installed.
        """
        path = Path(path)
        _require_ending(path)
        columns = {name: [] for name in self.columns} | columns_of(self.as_rows())
        if path.suffix == ".csv":
            write_csv(path, columns)
        elif path.suffix == ".parquet":
            write_parquet(path, columns)
        else:
            text = msgspec.json.format(msgspec.json.encode(list(self.as_rows())), indent=2)
            write_text(path, text.decode() + "\n")


def query_runs(request: QueryRuns | str | None = None, /, **options: object) -> QueryAnswer:
    """Answer to a query over trials; only reads.

    The table `results` (also `benchmark_results`) has a row per trial with the columns of
    `export_runs`; `requests` has the requests that are kept beside the journals.

    Args:
        request: The request, or the statement.
        options: Fields of `QueryRuns`.

    Raises:
        InputError: The statement is none that reads, or DuckDB refused it.
        StoreError: A source is not there or cannot be read.
        DeployError: AWS refused, or the query failed in Athena.
    """
    request = request_of(QueryRuns, request, options)
    if request.out is not None:
        _require_ending(request.out)
        if request.out.exists() and not request.force:
            raise InputError(
                f"{request.out} exists already", hint="choose another --out, or --force"
            )
    answer = _in_athena(request) if request.athena else _in_duckdb(request)
    if request.out is not None:
        answer.export(request.out)
    return answer


def _require_ending(path: Path) -> None:
    if path.suffix not in _ENDINGS:
        raise InputError(
            f"'{path}' says no format of an answer",
            hint=f"end it with one of {', '.join(_ENDINGS)}",
        )


def _in_athena(request: QueryRuns) -> QueryAnswer:
    if request.sources:
        raise InputError(
            f"Athena reads its own tables, not {request.sources[0]}",
            hint="leave the sources out; runs export --glue makes a table of them",
        )
    where = AthenaPlace(
        database=request.database,
        workgroup=request.workgroup,
        output_location=request.output_location,
    )
    try:
        found = completed(
            ask(request.sql, where, aws_in(require_region(region_of(request.region))))
        )
    except AwsError as error:
        raise with_permissions_named(error) from None
    return QueryAnswer(columns=found.columns, rows=found.rows, athena=found)


def _scanned(found: AthenaAnswer) -> str:
    if found.scanned_bytes is None or found.cost_usd is None:
        return "Athena does not say what it scanned"
    return (
        f"Athena scanned {format_bytes(found.scanned_bytes)}, ${found.cost_usd:.6f} at the list "
        f"price of ${USD_PER_TB:g} per TB and at least 10 MB"
    )


def _in_duckdb(request: QueryRuns) -> QueryAnswer:
    require_duckdb()
    require_parquet()
    journals, parquet = _sources(request)
    tables = [table_of(each.rows, partitions=True) for each in journals]
    results = union([*tables, *parquet])
    named = {"results": results}
    if re.search(r"\brequests\b", request.sql, re.IGNORECASE):
        named["requests"] = _requests(journals)
    columns, rows = query(
        request.sql,
        named,
        _ALIASES,
        limit_s=request.query_timeout_s,
        most_rows=request.max_rows,
        most_bytes=request.max_bytes,
    )
    return QueryAnswer(
        columns=tuple(columns),
        rows=tuple(rows),
        trials=results.num_rows,
        simulated=results.column("kind").to_pylist().count(SIMULATED),
        failed=results.column("status").to_pylist().count("failed"),
        files=len(journals) + len(parquet),
    )


def _sources(request: QueryRuns) -> tuple[list[JournalRows], list[pa.Table]]:
    """Rows of the journals, and tables of the Parquet files.

    Raises:
        StoreError: A source is not there, or holds neither.
    """
    journals: list[Path] = []
    parquet: list[pa.Table] = []
    remote = [source for source in request.sources if source.startswith("s3:")]
    here = [source for source in request.sources or (".",) if source not in remote]
    for source in remote:
        parquet += _in_s3(source, request.region)
    for path in named_files([journal_of(Path(source).expanduser()) for source in here]):
        if path.is_dir():
            files = parquet_files(path)
            parquet += [_local(each) for each in files]
            if not files or _has_journals(path):
                journals.append(path)
        elif path.suffix == ".parquet":
            parquet.append(_local(path))
        else:
            journals.append(path)
    return read_rows(journals), parquet


def _has_journals(folder: Path) -> bool:
    try:
        return bool(journals_below(folder))
    except StoreError:
        return False


def _local(path: Path) -> pa.Table:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}", hint="give the .jsonl of a run or its export"
        ) from None
    try:
        table = read_parquet(content, str(path))
    except StoreError as error:
        raise with_journal_named(error, path) from None
    return with_partition(table, partition_of(path.as_posix()))


def _in_s3(source: str, region: str | None) -> list[pa.Table]:
    where = place(source)
    folder = S3Folder(where, aws_in(require_region(region_of(region)), threads=True))

    async def read() -> list[pa.Table]:
        gate = asyncio.Semaphore(_READERS)

        async def one(path: str) -> pa.Table | None:
            async with gate:
                held = await folder.read(path)
            if held is None:  # removed by an export since it was listed
                return None
            table = read_parquet(held.content, f"{folder.name}/{path}")
            return with_partition(table, partition_of(path))

        found = await asyncio.gather(*map(one, await folder.paths()))
        return [each for each in found if each is not None]

    try:
        tables = completed(read())
    except AwsError as error:
        raise with_permissions_named(error) from None
    if not tables:
        raise StoreError(
            f"{source} holds no Parquet file", hint="write some: servetune runs export JOURNAL --to"
        )
    return tables


def _requests(journals: Sequence[JournalRows]) -> pa.Table:
    """Requests that are kept beside the journals, with the journal and the run of each."""
    import pyarrow as pa

    tables = []
    for each in journals:
        path = Artifacts.at(each.path.with_suffix(".json")).requests
        if not path.is_file():
            continue
        records, _ = read_requests(path)
        arrays = request_arrays(pa, records)
        count = len(records)
        keys = {"journal": [str(each.path)] * count, "run_id": [each.run_id] * count}
        tables.append(pa.table({**keys, **arrays}))
    if not tables:
        raise InputError(
            "no requests are kept beside these journals",
            hint="bench --out and simulate --out keep them; the table results has the trials",
        )
    return pa.concat_tables(tables)
