"""`servetune deploy study`: wide copies or many, one instance or several, out of a sweep."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.api.inputs import chosen_node, constraints_of, read_records
from servetune.cli import options
from servetune.cli.output import print_json
from servetune.errors import InputError
from servetune.report import console, replica_rows, replica_table
from servetune.store import TrialRecord

__all__ = ["study"]

MOST_INSTANCES = 1000


@click.command(short_help="Few wide copies or many narrow ones.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--instance", "instance_name", default=None, help="[default: the one that was measured]"
)
@click.option(
    "--instances", default="1,2,4", show_default=True, metavar="N,N,..", help="How many of it."
)
@click.option(
    "--load",
    type=options.POSITIVE,
    default=None,
    help="Compare at the measured points nearest to this total load. [default: each one's best]",
)
@options.constraints
@click.option("--price-per-hour", type=options.POSITIVE, default=None, metavar="USD")
@click.option("--json", "as_json", is_flag=True)
def study(
    *,
    source: Path,
    instance_name: str | None,
    instances: str,
    load: float | None,
    constraints: str | None,
    price_per_hour: float | None,
    as_json: bool,
) -> int:
    """Compare tensor parallelism with copies at equal accelerators, and instance counts.

    SOURCE is a sweep (.json or .jsonl) over tensor_parallel_size, its copies, or both.
    """
    records = read_records(source)
    node = chosen_node(
        gpu=None if instance_name else _gpu(records),
        num_gpus=None if instance_name else _count(records),
        instance_name=instance_name or None,
        price_per_hour_usd=price_per_hour,
    )
    rows = replica_rows(
        records,
        node,
        instances=_counts(instances),
        load=load,
        constraints=constraints_of(constraints, records),
    )
    if as_json:
        print_json(rows)
    else:
        console().print(replica_table(rows, node))
    return 0


def _gpu(records: list[TrialRecord]) -> str:
    found = str(
        records[0].metadata.get("instance_type") or records[0].metadata.get("gpu_type") or ""
    )
    if not found:
        raise InputError("the sweep does not name its machine", hint="give --instance")
    return found


def _count(records: list[TrialRecord]) -> int | None:
    if records[0].metadata.get("instance_type"):
        return None
    count = records[0].metadata.get("gpu_count")
    return count if isinstance(count, int) else None


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_INSTANCES for word in words):
        raise InputError(
            f"--instances '{text}' are no counts", hint="write them like --instances 1,2,4"
        )
    return sorted({int(word) for word in words})
