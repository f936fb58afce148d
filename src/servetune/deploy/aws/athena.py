"""Queries in Athena: one statement from start to rows, and what it cost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from servetune.deploy.aws.client import AwsClient
from servetune.errors import DeployError
from servetune.json_value import JsonObject

USD_PER_TB = 5.0
"""Price of what a query scans (aws.amazon.com/athena/pricing, us-east-1)."""
LEAST_BILLED_BYTES = 10 * 10**6
"""Bytes that a query is billed for at least (same source)."""

_FIRST_WAIT_S, _MOST_WAIT_S = 0.25, 5.0

_CONVERT: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "integer", "int", "bigint"), int),
    **dict.fromkeys(("float", "real", "double"), float),
    "boolean": lambda text: text == "true",
}
"""Values by Athena's types; all others stay text."""


class AthenaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a query.

    Attributes:
        query_id: Identity of the query.
        columns: Names of the columns.
        rows: Values of each row; `None` for null.
        scanned_bytes: Bytes that were read; `None` where Athena does not say.
        cost_usd: Price of these, in dollars, at the list price.
    """

    query_id: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    scanned_bytes: int | None = None
    cost_usd: float | None = None


class AthenaPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a query runs.

    Attributes:
        database: Database of tables that are named without one.
        workgroup: Workgroup; the account's `primary` where `None`.
        output_location: Prefix in S3 for Athena's files; the workgroup's where `None`.
    """

    database: str
    workgroup: str | None = None
    output_location: str | None = None


async def ask(sql: str, place: AthenaPlace, aws: AwsClient) -> AthenaAnswer:
    """Run a statement and wait for its rows; a wait that is interrupted stops the query.

    Raises:
        AwsError: AWS refused the request.
        DeployError: The query failed; the message is Athena's.
    """
    request: JsonObject = {
        "QueryString": sql,
        "QueryExecutionContext": {"Database": place.database},
        "ClientRequestToken": uuid.uuid4().hex,  # a request that is sent again is the same query
    }
    if place.workgroup:
        request["WorkGroup"] = place.workgroup
    if place.output_location:
        request["ResultConfiguration"] = {"OutputLocation": place.output_location}
    started = await aws.call("athena", "StartQueryExecution", **request)
    query_id = str(started["QueryExecutionId"])
    try:
        execution = await _ended(query_id, aws)
    except asyncio.CancelledError:
        await aws.call("athena", "StopQueryExecution", QueryExecutionId=query_id)
        raise
    status = execution["Status"]
    if status["State"] != "SUCCEEDED":
        raise DeployError(
            f"Athena: {_reason(status)}",
            hint=f"the query {query_id} is in Athena's history",
        )
    columns, rows = await _rows(query_id, aws)
    scanned = execution.get("Statistics", {}).get("DataScannedInBytes")
    return AthenaAnswer(
        query_id=query_id,
        columns=columns,
        rows=rows,
        scanned_bytes=scanned,
        cost_usd=None if scanned is None else cost_usd(scanned),
    )


def cost_usd(scanned_bytes: float) -> float:
    """Dollars for a query that scanned so many bytes, at the list price.

    Example:
        >>> cost_usd(2 * 10**12)
        10.0
    """
    billed = max(scanned_bytes, LEAST_BILLED_BYTES) if scanned_bytes else 0
    return billed / 10**12 * USD_PER_TB


async def _ended(query_id: str, aws: AwsClient) -> JsonObject:
    wait_s = _FIRST_WAIT_S
    while True:
        answer = await aws.call("athena", "GetQueryExecution", QueryExecutionId=query_id)
        execution: JsonObject = answer["QueryExecution"]
        if execution["Status"]["State"] not in ("QUEUED", "RUNNING"):
            return execution
        await aws.clock.sleep(wait_s)
        wait_s = min(_MOST_WAIT_S, 2 * wait_s)


def _reason(status: JsonObject) -> str:
    error = status.get("AthenaError", {}).get("ErrorMessage")
    text = status.get("StateChangeReason") or error or f"the query ended as {status['State']}"
    return " ".join(str(text).split()).rstrip(".")


async def _rows(
    query_id: str, aws: AwsClient
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Names of the columns, and all rows over all pages."""
    texts: list[list[str | None]] = []
    columns: list[JsonObject] = []
    more: JsonObject = {}
    while True:
        page = await aws.call("athena", "GetQueryResults", QueryExecutionId=query_id, **more)
        found = page["ResultSet"]
        columns = columns or found.get("ResultSetMetadata", {}).get("ColumnInfo", [])
        texts += [
            [each.get("VarCharValue") for each in row.get("Data", [])]
            for row in found.get("Rows", [])
        ]
        if not page.get("NextToken"):
            break
        more = {"NextToken": page["NextToken"]}
    names = [str(each.get("Label") or each.get("Name") or "") for each in columns]
    if texts and texts[0] == names:  # Athena's first row is the heading
        texts = texts[1:]
    kinds = [_CONVERT.get(str(each.get("Type", "")).lower(), str) for each in columns]
    rows = tuple(
        tuple(None if text is None else kind(text) for text, kind in zip(row, kinds, strict=False))
        for row in texts
    )
    return tuple(names), rows
