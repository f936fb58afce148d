"""Journals of trials and the files beside them; the only room that writes results to disk."""

from servetune.store.artifacts import (
    REQUESTS,
    TIMELINES,
    Artifacts,
    read_json,
    require_regular,
    write_pieces,
    write_text,
)
from servetune.store.following import JournalFollower
from servetune.store.inference_perf import is_report, read_report
from servetune.store.journal import Journal, journal_records, latest, read_journal, write_record
from servetune.store.live import (
    BestSoFar,
    Order,
    RunningTrial,
    RunStatus,
    read_status,
    take_order,
    write_order,
    write_status,
)
from servetune.store.requests import (
    RequestLog,
    read_requests,
    write_requests,
    write_requests_csv,
    write_requests_parquet,
)
from servetune.store.schema import (
    SCHEMA,
    Failure,
    Metadata,
    PredictionInterval,
    Results,
    TrialConfig,
    TrialRecord,
    now_utc,
    provenance,
    record_from_json,
    trial_key,
)
from servetune.store.tables import has_parquet, write_csv, write_parquet
from servetune.store.timelines import TimelineLog, keep_timelines, read_timelines

__all__ = [
    "REQUESTS",
    "SCHEMA",
    "TIMELINES",
    "Artifacts",
    "BestSoFar",
    "Failure",
    "Journal",
    "JournalFollower",
    "Metadata",
    "Order",
    "PredictionInterval",
    "RequestLog",
    "Results",
    "RunStatus",
    "RunningTrial",
    "TimelineLog",
    "TrialConfig",
    "TrialRecord",
    "has_parquet",
    "is_report",
    "journal_records",
    "keep_timelines",
    "latest",
    "now_utc",
    "provenance",
    "read_journal",
    "read_json",
    "read_report",
    "read_requests",
    "read_status",
    "read_timelines",
    "record_from_json",
    "require_regular",
    "take_order",
    "trial_key",
    "write_csv",
    "write_order",
    "write_parquet",
    "write_pieces",
    "write_record",
    "write_requests",
    "write_requests_csv",
    "write_requests_parquet",
    "write_status",
    "write_text",
]
