"""Resumption: trials that the journal of an earlier call holds, and whether it may be continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from servetune.engines import ENGINES, engine
from servetune.errors import InputError
from servetune.store import TrialRecord, latest
from servetune.trials.trial import StudyContext

#: Terms of a study (`StudyContext.terms`) -> the option that sets each.
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "model_tag": "--model",
        "framework": "--engine",
        "constraints": "--constraints",
        "slo": "--slo",
        "price_per_hour_usd": "price per hour",
        "server_cmd": "--server-cmd or --url",
        "server_env": "--server-env",
        "calibration": "--calibration",
    }
)


def finished_keys(
    records: Sequence[TrialRecord], study: StudyContext, *, retry_failed: bool
) -> set[str]:
    """Keys of the trials that a journal has results of.

    Args:
        records: All lines of the journal.
        study: Terms of the study that is to be continued.
        retry_failed: Whether failed trials count as missing.

    Raises:
        InputError: The journal is of another study: summary and picks would mix the two.
    """
    for record in records:
        _require_same_study(record, study)
    return {
        r.key for r in latest(records) if r.status == "ok" or not (retry_failed or is_put_off(r))
    }


def is_put_off(record: TrialRecord) -> bool:
    """Whether time or money ran out before the trial, which has neither results nor failed."""
    return record.failure is not None and record.failure.kind == "budget"


def _require_same_study(record: TrialRecord, study: StudyContext) -> None:
    if record.servetune_schema is None:
        raise InputError(
            "the journal was written by another tool", hint="choose another --output-json"
        )
    # Not `record.simulated`, which a server that only simulates an engine sets as well.
    framework = record.metadata.get("framework")
    simulated = framework in ENGINES and engine(framework).virtual_time
    if simulated != study.simulated:
        kind = "simulated" if simulated else "measured"
        raise InputError(f"the journal holds {kind} trials", hint="choose another --output-json")
    held = {**record.metadata, "constraints": record.constraints}
    for name, value in study.terms.items():
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
