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

__all__ = ["SCHEMA", "Failure", "TrialConfig", "TrialRecord", "record_from_json", "trial_key"]

#: Version of what this module writes. Records without the field are from other tools.
SCHEMA = 1

Status = Literal["ok", "failed"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial has no result.

    Attributes:
        kind: `does_not_fit`, `died`, `not_ready`, `out_of_memory`, `port_busy`, `load`,
            `refused`, `settings` or `error`; `quarantined` where the server's other trials
            broke it, `trial_time` where its own time was over without an answer, `budget`
            where the run's time or money was over before this trial.
        reason: One line.
        log_tail: The server's last lines, where there was one.
    """

    kind: str
    reason: str
    log_tail: str = ""


class TrialConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What was set, in the words of the engine and of the load client."""

    client_args: dict[str, Any] = {}
    server_args: dict[str, Any] = {}
    server_cmd_args: list[str] = []


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, as the journal keeps it.

    Attributes:
        key: Identifies what was tried; equal keys are the same trial. See `trial_key`.
        results: Under the names of `metrics.summary`; empty for a failed trial.
        cmd: The exact server command line.
        constraints: As the run was given them, in milliseconds.
        metadata: gpu_type, gpu_count, model_tag, input_tokens, output_tokens and more.
        simulated: Whether no real server answered.
        plan: What was served; `None` in journals of other tools.
        predicted: The estimator's or simulator's results for the same trial, where the
            trial itself was measured.
        server_log: Path of the server's log, beside the journal.
        provenance: When, where and with which versions and seed; empty for a simulated
            trial, which depends on none of them but what the metadata says.
    """

    config: TrialConfig
    results: dict[str, Any] = {}
    cmd: str = ""
    constraints: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}
    key: str = ""
    status: Status = "ok"
    simulated: bool = False
    plan: Plan | None = None
    predicted: dict[str, Any] | None = None
    failure: Failure | None = None
    server_log: str | None = None
    provenance: dict[str, Any] = {}
    servetune_schema: int | None = None

    def to_json(self) -> bytes:
        """One line of UTF-8 JSON without its end; non-finite numbers become null.

        What looks like a credential (in a command line, a setting, a server's last words)
        is taken out: journals are shared.
        """
        plain = msgspec.json.decode(msgspec.json.encode(self))
        return msgspec.json.encode(redacted(plain))

    def limits(self) -> tuple[Constraint, ...]:
        """The constraints of the run; those that no metric of ours names are left out."""
        known = []
        for raw in self.constraints:
            try:
                known.append(constraint_from_json(raw))
            except UnknownName:  # another tool's spelling, still shown as it stands
                continue
        return tuple(known)


def trial_key(
    *,
    model: str,
    engine: str,
    server_args: Mapping[str, Any],
    client_args: Mapping[str, Any],
    node: str = "",
    simulated: bool = False,
) -> str:
    """Sixteen hex digits that are equal when the same thing would be tried again."""
    said = [
        model,
        engine,
        node,
        simulated,
        sorted(server_args.items()),
        sorted(client_args.items()),
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]


def record_from_json(raw: Any) -> TrialRecord:
    """A record out of decoded JSON, servetune's own or another tool's.

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
        record = msgspec.convert(raw, TrialRecord)
    except msgspec.ValidationError as error:
        raise StoreError(f"not a trial record: {error}") from None
    if record.key:
        return record
    metadata = record.metadata
    key = trial_key(
        model=str(metadata.get("model_tag", "")),
        engine=str(metadata.get("framework") or record.results.get("backend", "")),
        server_args=record.config.server_args,
        client_args=record.config.client_args,
        node=f"{metadata.get('gpu_count', '')}x{metadata.get('gpu_type', '')}",
    )
    return msgspec.structs.replace(record, key=key)
