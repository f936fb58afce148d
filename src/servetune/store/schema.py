"""TrialRecord: one line of a journal, and all that is kept of a trial.

Journals that users already have (llm-optimizer's) are records without servetune's
further fields; they are read without loss, and nothing in them is renamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from servetune.errors import SchemaTooNew, StoreError, UnknownName
from servetune.metrics import Constraint, constraint_from_json
from servetune.plan.plan import Plan
from servetune.secret import redacted
from servetune.store.results import Metadata, Results

#: Version of what this module writes. Records without the field are from other tools.
SCHEMA = 1

Status = Literal["ok", "failed"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a trial has no result.

    Attributes:
        kind: Cause in one word: `does_not_fit`, `died`, `not_ready`, `out_of_memory`,
            `port_busy`, `load`, `refused`, `settings` or `error`; `quarantined` where other
            trials broke the server, `trial_time` where the trial's time was over without an
            answer, `budget` where the study's time or money was over before this trial.
        reason: Reason in one line.
        log_tail: Last lines of the server's log, where there was one.
    """

    kind: str
    reason: str
    log_tail: str = ""


class TrialConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a trial, in the words of the engine and of the load client."""

    client_args: dict[str, Any] = {}
    server_args: dict[str, Any] = {}
    server_cmd_args: list[str] = []


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, as the journal keeps it.

    Attributes:
        config: Settings of the server and of the load, as they were swept.
        results: Results of the trial; empty if it failed.
        cmd: Exact server command line.
        constraints: Constraints of the study, in milliseconds.
        metadata: Machine, model and load of the trial.
        key: Identity of the trial; equal keys are the same trial. See `trial_key`.
        status: Status: whether there are results.
        simulated: Whether no real server answered.
        plan: Plan that was served; `None` in journals of other tools.
        predicted: Results that the estimator or simulator predicts, where the trial itself
            was measured.
        failure: Reason why there are no results.
        server_log: Path of the server's log, beside the journal.
        provenance: Time, place, releases and seed; empty for a simulated trial, which depends
            on nothing but what the metadata says.
        servetune_schema: Version of the record's form; `None` in journals of other tools.
    """

    config: TrialConfig
    results: Results = Results()
    cmd: str = ""
    constraints: list[dict[str, Any]] = []
    metadata: Metadata = Metadata()
    key: str = ""
    status: Status = "ok"
    simulated: bool = False
    plan: Plan | None = None
    predicted: dict[str, Any] | None = None
    failure: Failure | None = None
    server_log: str | None = None
    provenance: dict[str, Any] = {}
    servetune_schema: int | None = None

    def __post_init__(self) -> None:
        """Let callers give plain objects."""
        for name, kind in (("results", Results), ("metadata", Metadata)):
            fields = getattr(self, name)
            if not isinstance(fields, kind):
                msgspec.structs.force_setattr(self, name, kind(fields))

    def to_json(self) -> bytes:
        """Line of UTF-8 JSON without its end; non-finite numbers become null.

        Text that looks like a credential, in a command line, a setting or a log, is taken
        out: journals are shared.
        """
        plain = msgspec.json.decode(msgspec.json.encode(self))
        return msgspec.json.encode(redacted(plain))

    def limits(self) -> tuple[Constraint, ...]:
        """Constraints of the study; those on metrics that servetune does not know are left out."""
        known = []
        for raw in self.constraints:
            try:
                known.append(constraint_from_json(raw))
            except UnknownName:  # another tool's spelling, still shown as it stands
                continue
        return tuple(known)


def _object(kind: type, raw: object) -> object:
    """Results or metadata out of decoded JSON."""
    if kind in (Results, Metadata) and isinstance(raw, dict):
        return kind(raw)
    raise NotImplementedError(f"{kind} cannot be read out of {type(raw).__name__}")


def trial_key(
    *,
    model: str,
    engine: str,
    server_args: Mapping[str, object],
    client_args: Mapping[str, object],
    node: str = "",
    simulated: bool = False,
) -> str:
    """Identity of a trial: sixteen hex digits, equal for equal settings on an equal machine."""
    identity = [
        model,
        engine,
        node,
        simulated,
        sorted(server_args.items()),
        sorted(client_args.items()),
    ]
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def record_from_json(raw: object) -> TrialRecord:
    """Record out of decoded JSON, servetune's own or another tool's.

    Raises:
        SchemaTooNew: A newer servetune wrote it.
        StoreError: It is not a trial record.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("config"), dict) or "results" not in raw:
        raise StoreError("not a trial record: it needs 'config' and 'results'")
    schema = raw.get("servetune_schema") or 0
    if isinstance(schema, int) and schema > SCHEMA:
        raise SchemaTooNew(schema, SCHEMA)
    try:
        record = msgspec.convert(raw, TrialRecord, dec_hook=_object)
    except msgspec.ValidationError as error:
        raise StoreError(f"not a trial record: {error}") from None
    if record.key:
        return record
    metadata = record.metadata
    key = trial_key(
        model=metadata.model or "",
        engine=metadata.engine or record.results.backend or "",
        server_args=record.config.server_args,
        client_args=record.config.client_args,
        node=f"{metadata.get('gpu_count', '')}x{metadata.get('gpu_type', '')}",
    )
    return msgspec.structs.replace(record, key=key)
