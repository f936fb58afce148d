"""Layouts of a sweep: few wide copies or many narrow ones, one instance or several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

from servetune.api.frames import TableRow, Tabular
from servetune.api.inputs import chosen_node
from servetune.api.request import Request, request_of
from servetune.api.shared_options import Limits
from servetune.api.trials import Trials, read
from servetune.errors import InputError
from servetune.hardware import Node
from servetune.option import Positive, argument, option
from servetune.report import ReplicaRow, replica_rows

MAX_INSTANCES = 1000


class StudyLayouts(Request, frozen=True, kw_only=True):
    """A sweep whose layouts are compared at equal accelerators."""

    verb: ClassVar[str] = "deploy study"

    source: Annotated[
        Path,
        argument(
            "Journal (.jsonl) or summary (.json) of a sweep over tensor_parallel_size, its copies, "
            "or both.",
            metavar="SOURCE",
            of_run=True,
        ),
    ]
    instance: Annotated[
        str | None, option("Instance type.", metavar="NAME", default="the one that was measured")
    ] = None
    instances: Annotated[
        str, option("Number of instances; several are compared.", metavar="COUNT,COUNT,..")
    ] = "1,2,4"
    load: Annotated[
        Positive | None,
        option(
            "Total load to compare at, by the nearest measured points: requests in flight, or per "
            "second of an open loop.",
            default="each layout's best",
        ),
    ] = None
    price_per_hour_usd: Annotated[
        Positive | None,
        option(
            "Price of one instance, in dollars per hour.",
            "--price-per-hour",
            metavar="USD",
            default="the catalogue's",
        ),
    ] = None
    limits: Limits = Limits()


class ComparedLayouts(Tabular, frozen=True, kw_only=True):
    """Layouts side by side.

    Attributes:
        node: Instance that they are on.
        rows: One row per layout and number of instances.
    """

    node: Node
    rows: tuple[ReplicaRow, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per layout and number of instances."""
        return self.rows


def study_layouts(
    request: StudyLayouts | str | Path | None = None, /, **options: object
) -> ComparedLayouts:
    """Compare tensor parallelism with copies at equal accelerators, and numbers of instances.

    Args:
        request: The request, or the sweep.
        options: Fields of `StudyLayouts`.

    Raises:
        InputError: The sweep does not name its machine, or an option is wrong.
    """
    request = request_of(StudyLayouts, request, options)
    trials = read(request.source, request.limits.constraints)
    measured, count = (None, None) if request.instance else _machine(trials)
    node = chosen_node(
        gpu=measured,
        num_gpus=count,
        instance_name=request.instance or None,
        price_per_hour_usd=request.price_per_hour_usd,
    )
    rows = replica_rows(
        list(trials.records),
        node,
        instances=_counts(request.instances),
        load=request.load,
        constraints=trials.constraints,
    )
    return ComparedLayouts(node=node, rows=tuple(rows))


def _machine(trials: Trials) -> tuple[str, int | None]:
    """Instance type, or GPU type and their number, of a sweep's first trial."""
    metadata = trials.records[0].metadata
    named = str(metadata.get("instance_type") or metadata.get("gpu_type") or "")
    if not named:
        raise InputError("the sweep does not name its machine", hint="give --instance")
    count = metadata.get("gpu_count")
    return named, count if isinstance(count, int) and not metadata.get("instance_type") else None


def _counts(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= MAX_INSTANCES for word in words):
        raise InputError(
            f"--instances '{text}' are no counts", hint="write them like --instances 1,2,4"
        )
    return sorted({int(word) for word in words})
