"""Table of results in the Glue Data Catalog, by which Athena finds the files of an export."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from servetune.deploy.aws.client import AwsClient, AwsError
from servetune.errors import DeployError, InputError
from servetune.json_value import JsonObject
from servetune.store.results_columns import COLUMNS, PARTITIONS, ColumnType

DEFAULT_TABLE = "benchmark_results"
"""Table where only a database is named, as users of ml-container-creator have it."""

#: Partitions in one request (botocore 1.44.5, BatchCreatePartition).
_BATCH = 100
_ATTEMPTS = 5
_HIVE = "org.apache.hadoop.hive.ql.io.parquet"
_FORMAT: JsonObject = {
    "InputFormat": f"{_HIVE}.MapredParquetInputFormat",
    "OutputFormat": f"{_HIVE}.MapredParquetOutputFormat",
    "SerdeInfo": {
        "SerializationLibrary": f"{_HIVE}.serde.ParquetHiveSerDe",
        "Parameters": {"serialization.format": "1"},
    },
    "Compressed": True,
}
_PARAMETERS = {"classification": "parquet", "parquet.compression": "SNAPPY"}
#: Members of a table that an update takes (botocore 1.44.5, TableInput).
_TABLE_INPUT = (
    "Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys",
    "ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable",
)  # fmt: skip
#: Types of Glue as which Athena reads a column of a file.
_READ_AS: Mapping[ColumnType, str] = {
    "string": r"string|varchar(\(\d+\))?",
    "int": r"int|integer|bigint",
    "double": r"double",
    "boolean": r"boolean",
}


class GlueTable(msgspec.Struct, frozen=True):
    """Name of a table in the catalog.

    Attributes:
        database: Database.
        table: Table.
    """

    database: str
    table: str = DEFAULT_TABLE

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the catalog.

    Attributes:
        table: The table.
        database_created: Whether the database was made.
        table_created: Whether the table was made.
        added_columns: Columns that a table had not.
        created: Number of new partitions.
        existing: Number of partitions that were there.
    """

    table: GlueTable
    database_created: bool = False
    table_created: bool = False
    added_columns: tuple[str, ...] = ()
    created: int = 0
    existing: int = 0

    def __str__(self) -> str:
        made = [
            word
            for word, made in (("database", self.database_created), ("table", self.table_created))
            if made
        ]
        words = f"{self.table}: {self.created} partitions registered, {self.existing} were there"
        if made:
            words += f"; {' and '.join(made)} created"
        if self.added_columns:
            words += f"; columns added: {', '.join(self.added_columns)}"
        return words


class Partition(msgspec.Struct, frozen=True):
    """Partition and its place.

    Attributes:
        values: Values of the partition keys, in their order.
        location: Address in S3, with a slash at its end.
    """

    values: tuple[str, ...]
    location: str


def glue_table(text: str) -> GlueTable:
    """`DATABASE` or `DATABASE.TABLE`.

    Raises:
        InputError: It is neither, in lower case.
    """
    if not re.fullmatch(r"[a-z0-9_]{1,255}(\.[a-z0-9_]{1,255})?", text):
        raise InputError(
            f"'{text}' names no table in Glue",
            hint="DATABASE or DATABASE.TABLE, of a-z, 0-9 and _: mlcc_ci.benchmark_results",
        )
    return GlueTable(*text.split("."))


async def register(
    table: GlueTable, location: str, partitions: Sequence[Partition], aws: AwsClient
) -> Registered:
    """Have the catalog know the table and its partitions; what is there already stays.

    Args:
        table: The table; it and its database are made where they are missing.
        location: Address of the table's folder in S3, with a slash at its end.
        partitions: Partitions with files.
        aws: Client of AWS.

    Raises:
        AwsError: AWS refused.
        DeployError: A table or partition of that name is another one.
    """
    database_created = await _require_database(table, aws)
    held = await aws.call_or_none("glue", "GetTable", DatabaseName=table.database, Name=table.table)
    created = held is None and await _create_table(table, location, aws)
    added: tuple[str, ...] = ()
    if not created:
        added = await _add_columns(table, aws)
    columns = (await _table(table, aws))["StorageDescriptor"]["Columns"]
    made = 0
    for first in range(0, len(partitions), _BATCH):
        some = partitions[first : first + _BATCH]
        made += await _register_partitions(table, some, columns, aws)
    return Registered(
        table=table,
        database_created=database_created,
        table_created=created,
        added_columns=added,
        created=made,
        existing=len(partitions) - made,
    )


async def _require_database(table: GlueTable, aws: AwsClient) -> bool:
    """Whether the database had to be made."""
    if await aws.call_or_none("glue", "GetDatabase", Name=table.database) is not None:
        return False
    return await _made(aws, "CreateDatabase", DatabaseInput={"Name": table.database})


async def _create_table(table: GlueTable, location: str, aws: AwsClient) -> bool:
    described: JsonObject = {**_FORMAT, "Columns": _own_columns(), "Location": location}
    table_input: JsonObject = {
        "Name": table.table,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**_PARAMETERS, "EXTERNAL": "TRUE"},
        "PartitionKeys": [{"Name": each.name, "Type": each.type} for each in PARTITIONS],
        "StorageDescriptor": described,
    }
    return await _made(aws, "CreateTable", DatabaseName=table.database, TableInput=table_input)


async def _made(aws: AwsClient, operation: str, **request: object) -> bool:
    """Whether a request made something; another export may have been first."""
    try:
        await aws.call("glue", operation, **request)
    except AwsError as error:
        if error.code == "AlreadyExistsException":
            return False
        raise
    return True


def _own_columns() -> list[JsonObject]:
    return [{"Name": each.name, "Type": each.type} for each in COLUMNS]


async def _table(table: GlueTable, aws: AwsClient) -> JsonObject:
    answer = await aws.call("glue", "GetTable", DatabaseName=table.database, Name=table.table)
    found: JsonObject = answer["Table"]
    return found


async def _add_columns(table: GlueTable, aws: AwsClient) -> tuple[str, ...]:
    """Columns that the table had not, after adding them at its end."""
    for _ in range(_ATTEMPTS):
        held = await _table(table, aws)
        missing = _missing_columns(table, held)
        if not missing:
            return ()
        changed = {name: held[name] for name in _TABLE_INPUT if name in held}
        described = changed["StorageDescriptor"]
        changed["StorageDescriptor"] = {**described, "Columns": [*described["Columns"], *missing]}
        try:
            await aws.call("glue", "UpdateTable", DatabaseName=table.database, TableInput=changed)
        except AwsError as error:
            if error.code != "ConcurrentModificationException":
                raise
            await aws.clock.sleep(1.0)
        else:
            return tuple(each["Name"] for each in missing)
    raise DeployError(f"{table} is changed by others all the time", hint="run the command again")


def _missing_columns(table: GlueTable, held: JsonObject) -> list[JsonObject]:
    """Columns of ours that a table lacks.

    Raises:
        DeployError: Its partition keys, or the type of a column, are others.
    """
    keys = [each["Name"] for each in held.get("PartitionKeys", [])]
    wanted = [each.name for each in PARTITIONS]
    if keys != wanted:
        raise DeployError(
            f"{table} has the partition keys {', '.join(keys) or 'none'}, not {', '.join(wanted)}",
            hint="name another table: --glue DATABASE.TABLE",
        )
    types = {each["Name"]: each.get("Type", "") for each in held["StorageDescriptor"]["Columns"]}
    missing: list[JsonObject] = []
    for each in COLUMNS:
        found = types.get(each.name)
        if found is None:
            missing.append({"Name": each.name, "Type": each.type})
        elif not re.fullmatch(_READ_AS[each.type], found.lower()):
            raise DeployError(
                f"{table}: the column {each.name} is {found}, files have it as {each.type}",
                hint="name another table: --glue DATABASE.TABLE",
            )
    return missing


async def _register_partitions(
    table: GlueTable, partitions: Sequence[Partition], columns: Any, aws: AwsClient
) -> int:
    """Number of partitions that were made; those that are there get the table's columns."""
    name = {"DatabaseName": table.database, "TableName": table.table}
    held = await _held(name, partitions, aws)
    new = [each for each in partitions if each.values not in held]
    inputs = {each.values: _input(each, columns) for each in partitions}
    refused: Iterable[JsonObject] = ()
    if new:
        answer = await aws.call(
            "glue",
            "BatchCreatePartition",
            PartitionInputList=[inputs[each.values] for each in new],
            **name,
        )
        refused = answer.get("Errors", [])
    others = 0
    for error in refused:
        if error["ErrorDetail"]["ErrorCode"] != "AlreadyExistsException":
            raise _refused_partition(table, error)
        others += 1  # another export was first
    stale = []
    for each in partitions:
        there = held.get(each.values)
        if there is None:
            continue
        if there.get("Location", "").rstrip("/") != each.location.rstrip("/"):
            raise DeployError(
                f"the partition {', '.join(each.values)} of {table} has its files in "
                f"{there.get('Location')}, these are in {each.location}",
                hint="export --to the folder of that table, or name another table",
            )
        if there.get("Columns") != columns:
            stale.append(
                {"PartitionValueList": list(each.values), "PartitionInput": inputs[each.values]}
            )
    if stale:
        answer = await aws.call("glue", "BatchUpdatePartition", Entries=stale, **name)
        for error in answer.get("Errors", []):
            raise _refused_partition(table, error)
    return len(new) - others


async def _held(
    name: Mapping[str, str], partitions: Sequence[Partition], aws: AwsClient
) -> dict[tuple[str, ...], JsonObject]:
    """Storage of the partitions that are there, by their values."""
    found: dict[tuple[str, ...], JsonObject] = {}
    asked: list[JsonObject] = [{"Values": list(each.values)} for each in partitions]
    while asked:
        answer = await aws.call("glue", "BatchGetPartition", PartitionsToGet=asked, **name)
        for each in answer.get("Partitions", []):
            found[tuple(each["Values"])] = each["StorageDescriptor"]
        asked = answer.get("UnprocessedKeys", [])
    return found


def _input(partition: Partition, columns: Any) -> JsonObject:
    return {
        "Values": list(partition.values),
        "StorageDescriptor": {**_FORMAT, "Columns": columns, "Location": partition.location},
        "Parameters": _PARAMETERS,
    }


def _refused_partition(table: GlueTable, error: JsonObject) -> DeployError:
    detail = error["ErrorDetail"]
    values = error.get("PartitionValues") or error.get("PartitionValueList") or []
    return DeployError(
        f"Glue refused the partition {', '.join(values)} of {table}: "
        f"{detail.get('ErrorMessage') or detail.get('ErrorCode')}",
        hint="the files are written; run the same command again",
    )
