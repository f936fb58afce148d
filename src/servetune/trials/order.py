"""Order of trials: as written, at random, or so that no drift favours one configuration.

Trials that the journal of an earlier call holds are not run again, if it may be continued.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from servetune.errors import InputError
from servetune.store import TrialRecord
from servetune.trials.trial import StudyContext

Order = Literal["grid", "random", "interleaved"]
ORDERS: tuple[Order, ...] = ("grid", "random", "interleaved")

T = TypeVar("T")


def ordered(
    groups: Sequence[Sequence[T]], order: Order = "grid", seed: int = 0
) -> list[tuple[int, list[T]]]:
    """Batches of trials, each with the number of its server configuration.

    - `grid` keeps the order as written.
    - `random` shuffles the configurations and the trials of each; a server still starts once.
    - `interleaved` takes one trial of each configuration, in an order drawn anew each time, then
      the next of each. A machine that grows warm or busy over the night then affects all alike. It
      costs a server start for nearly each trial.

    Args:
        groups: Trials by server configuration; empty ones are left out.
        order: Name of the order.
        seed: Seed of the random orders.
    """
    if order == "grid":
        return [(number, list(group)) for number, group in enumerate(groups) if group]
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    mixed = {number: list(group) for number, group in enumerate(groups) if group}
    for group in mixed.values():
        rng.shuffle(group)
    if order == "random":
        numbers = list(mixed)
        rng.shuffle(numbers)
        return [(number, mixed[number]) for number in numbers]
    batches: list[tuple[int, list[T]]] = []
    while mixed:
        numbers = list(mixed)
        rng.shuffle(numbers)
        for number in numbers:
            trial = mixed[number].pop(0)
            if batches and batches[-1][0] == number:  # the server is still there
                batches[-1][1].append(trial)
            else:
                batches.append((number, [trial]))
            if not mixed[number]:
                del mixed[number]
    return batches


#: Terms of a study (`StudyContext.terms`) -> the option that sets each.
TERMS: Mapping[str, str] = {
    "model_tag": "--model",
    "framework": "--engine",
    "constraints": "--constraints",
    "slo": "--slo",
    "price_per_hour_usd": "price per hour",
    "server_cmd": "--server-cmd or --url",
    "server_env": "--server-env",
    "calibration": "--calibration",
}


def finished_records(
    records: Sequence[TrialRecord], study: StudyContext, *, retry_failed: bool
) -> list[TrialRecord]:
    """Last records of the trials that need not run again, in the order in which they ended.

    A trial that was run again for what it tells of drift has the place of its first run.

    Args:
        records: All lines of the journal.
        study: Terms of the study that is to be continued.
        retry_failed: Whether failed trials count as missing.

    Raises:
        InputError: The journal is of another study: summary and picks would mix the two.
    """
    for record in records:
        _require_same_study(record, study)
    last: dict[str, TrialRecord] = {}
    for record in records:
        if "measured_again" not in record.results:
            last.pop(record.key, None)
        last[record.key] = record
    return [
        record
        for record in last.values()
        if record.status == "ok" or not (retry_failed or is_put_off(record))
    ]


def is_put_off(record: TrialRecord) -> bool:
    """Whether time or money ran out before the trial, which has neither results nor failed."""
    return record.failure is not None and record.failure.kind == "budget"


def _require_same_study(record: TrialRecord, study: StudyContext) -> None:
    if record.servetune_schema is None:
        raise InputError(
            "the journal was written by another tool", hint="choose another --output-json"
        )
    # A server that only simulates an engine sets `record.simulated`, too, and has a time and place.
    simulated = record.simulated and not record.provenance
    if simulated != study.simulated:
        kind = "simulated" if simulated else "measured"
        raise InputError(f"the journal holds {kind} trials", hint="choose another --output-json")
    held = {**record.metadata, "constraints": record.constraints}
    for name, value in study.terms.items():
        if name == "model_tag" and held.get(name) in study.checkpoints:
            continue
        if held.get(name) != value:
            raise InputError(
                f"the journal was begun with another {TERMS[name]}: "
                f"{_text_of(held.get(name))}, now {_text_of(value)}",
                hint="resume with what it was begun with, or choose another --output-json; "
                "servetune report judges a journal by other constraints",
            )


def _text_of(value: object) -> str:
    if isinstance(value, list):
        return (
            "; ".join(
                f"{one['name']}{one['op']}{one['value']:g}" if isinstance(one, dict) else str(one)
                for one in value
            )
            or "none"
        )
    return "none" if value is None else str(value)
