"""Archive of an AWS benchmark job: aiperf's files, read strictly, as levels of concurrency.

All levels of a sweep share their files' names, so members are matched by their whole path and
never by an ending, and a search's history is looked for first. A level that is missing is an
error, not a shorter table.

The layout: AWS's documentation of AI benchmark jobs, read in November 2026.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from servetune.errors import LoadError
from servetune.json_value import JsonObject

EXPORT = "profile_export_aiperf.json"
HISTORY = "search_history.json"
_NESTED = re.compile(r"search_iter_(\d+)/profile_runs/run_(\d+)/" + re.escape(EXPORT))

#: Size of one export at most; a job's whole archive is some kilobytes for each request.
LARGEST_MEMBER_BYTES = 256 * 1024 * 1024


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One concurrency of a job, or one step of its search.

    Attributes:
        concurrency: Concurrent requests; `None` for a step of a search.
        export: aiperf's metrics as they came.
        member: Path of the file in the archive.
        boundary: Result of a search: largest feasible and smallest infeasible, either may be
            null.
    """

    concurrency: int | None
    export: JsonObject
    member: str
    boundary: JsonObject | None = None


def levels_of(archive: bytes, concurrencies: Sequence[int]) -> tuple[Level, ...]:
    """The levels in an archive, in the order of the request.

    Args:
        archive: `output.tar.gz`.
        concurrencies: Levels that the job was created with; one for a single run.

    Raises:
        LoadError: It is truncated, or a level is not there, or cannot be read.
    """
    members = _members(archive)
    if HISTORY in members:
        return _searched(members)
    if len(concurrencies) == 1:
        return (_level(members, EXPORT, concurrencies[0]),)
    return tuple(_level(members, f"concurrency_{level}/{EXPORT}", level) for level in concurrencies)


def _members(archive: bytes) -> dict[str, bytes]:
    """Files by their whole path, without a leading `./`."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                is_export = name == HISTORY or name.rpartition("/")[2] == EXPORT
                if not member.isfile() or not is_export:
                    continue
                if member.size > LARGEST_MEMBER_BYTES:
                    raise LoadError(f"{name} of the job's archive has {member.size:,} bytes")
                file = tar.extractfile(member)
                assert file is not None
                found[name] = file.read()
                if len(found[name]) != member.size:
                    raise EOFError
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LoadError(
            "the job's archive is truncated or no archive: "
            f"{str(error) or type(error).__name__} after {len(found)} files",
            hint="download it again; if it stays so, run the job anew with --force",
        ) from None
    return found


def _level(members: Mapping[str, bytes], name: str, concurrency: int | None) -> Level:
    if name not in members:
        there = ", ".join(sorted(members)) or "none of aiperf's files"
        raise LoadError(
            f"the job's archive has no {name}",
            hint=f"it has {there}; was the job asked for other levels?",
        )
    export = _json(members[name], name)
    if not isinstance(export, dict):
        raise LoadError(f"{name} of the job's archive is no table of metrics")
    return Level(concurrency=concurrency, export=export, member=name)


def _searched(members: Mapping[str, bytes]) -> tuple[Level, ...]:
    """The steps of a search, in their order, with the boundary that its history says."""
    history = _json(members[HISTORY], HISTORY)
    steps = sorted(
        (int(match[1]), int(match[2]), name)
        for name in members
        if (match := _NESTED.fullmatch(name)) is not None
    )
    if not steps:
        raise LoadError(f"the job's archive has a {HISTORY} and no step of the search")
    boundary = history.get("boundary_summary") if isinstance(history, dict) else None
    return tuple(
        msgspec.structs.replace(_level(members, name, None), boundary=boundary)
        for _, _, name in steps
    )


def _json(raw: bytes, name: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise LoadError(f"{name} of the job's archive is not JSON: {error}") from None


#: aiperf's metric -> (our name of it, a latency's statistics follow). aiperf's inter-token
#: latency is a mean for each request: what is called time per output token here.
_LATENCIES: Mapping[str, str] = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "request_latency": "e2e_latency",
}
_RATES: Mapping[str, str] = {
    "output_token_throughput": "output_throughput",
    "request_throughput": "request_throughput",
    "total_token_throughput": "total_throughput",
    "goodput": "goodput",
}
_STATISTICS: Mapping[str, str] = {
    "avg": "mean",
    "p50": "median",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "std": "std",
    "stddev": "std",
}
_MS: Mapping[str, float] = {"ms": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3}


def results_of(level: Level) -> JsonObject:
    """A level's metrics under the journal's names; what the export lacks is not there.

    Raises:
        LoadError: A latency has a unit that is not known.
    """
    export = level.export
    results: JsonObject = {"backend": "aws-ai-benchmark", "max_concurrency": level.concurrency}
    for theirs, ours in _LATENCIES.items():
        block = export.get(theirs)
        if not isinstance(block, dict):
            continue
        unit = str(block.get("unit", "ms")).lower()
        if unit not in _MS:
            raise LoadError(f"{theirs} of {level.member} is in '{unit}', which is no known unit")
        for theirs_stat, statistic in _STATISTICS.items():
            value = block.get(theirs_stat)
            if isinstance(value, int | float):
                results[f"{statistic}_{ours}_ms"] = value * _MS[unit]
    for theirs, ours in _RATES.items():
        if (value := _average(export, theirs)) is not None:
            results[ours] = value
    completed = _average(export, "request_count")
    failed = _average(export, "error_request_count") or 0.0
    if completed is not None:
        results |= {"completed": int(completed), "failed": int(failed)}
        total = completed + failed
        results["error_rate"] = failed / total if total else None
        for theirs, ours in (
            ("input_sequence_length", "total_input_tokens"),
            ("output_sequence_length", "total_output_tokens"),
        ):
            mean = _average(export, theirs)
            if mean is not None:
                results[ours] = round(mean * completed)
    if (duration_s := _average(export, "benchmark_duration")) is not None:
        results["duration"] = duration_s
    return results


def _average(export: Mapping[str, object], name: str) -> float | None:
    block = export.get(name)
    value = block.get("avg") if isinstance(block, dict) else block
    return float(value) if isinstance(value, int | float) else None
