"""What the journal of an earlier `tune` has already, and whether it may be gone on with."""

from __future__ import annotations

from typing import Any

from servetune.engines import ENGINES, engine
from servetune.errors import InputError
from servetune.store import TrialRecord, latest
from servetune.trials import StudyContext

__all__ = ["finished_keys", "is_put_off"]

#: What a run's terms are called on the command line.
TERMS = {
    "model_tag": "--model",
    "framework": "--engine",
    "constraints": "--constraints",
    "slo": "--slo",
    "price_per_hour_usd": "price per hour",
    "server_cmd": "--server-cmd or --url",
    "server_env": "--server-env",
    "calibration": "--calibration",
}


def finished_keys(records: list[TrialRecord], run: StudyContext, *, retry_failed: bool) -> set[str]:
    """Keys of the trials that the journal has.

    Raises:
        InputError: The journal is of another run: summary and picks would mix them up.
    """
    for record in records:
        if record.servetune_schema is None:
            raise InputError(
                "the journal was written by another tool", hint="choose another --output-json"
            )
        # Not `record.simulated`, which a server that only plays an engine sets as well.
        framework = record.metadata.get("framework")
        played = framework in ENGINES and engine(framework).virtual_time
        if played != run.simulated:
            kind = "simulated" if played else "measured"
            raise InputError(
                f"the journal holds {kind} trials", hint="choose another --output-json"
            )
        held = {**record.metadata, "constraints": record.constraints}
        for name, value in run.terms.items():
            if held.get(name) != value:
                raise InputError(
                    f"the journal was begun with another {TERMS[name]}: "
                    f"{_said(held.get(name))}, now {_said(value)}",
                    hint="resume with what it was begun with, or choose another --output-json; "
                    "servetune report judges a journal by other constraints",
                )
    return {
        r.key for r in latest(records) if r.status == "ok" or not (retry_failed or is_put_off(r))
    }


def _said(value: Any) -> str:
    if isinstance(value, list):
        return (
            "; ".join(
                f"{one['name']}{one['op']}{one['value']:g}" if isinstance(one, dict) else str(one)
                for one in value
            )
            or "none"
        )
    return "none" if value is None else str(value)


def is_put_off(record: TrialRecord) -> bool:
    """Whether there was no time or money for the trial; it is not done and has not failed."""
    return record.failure is not None and record.failure.kind == "budget"
