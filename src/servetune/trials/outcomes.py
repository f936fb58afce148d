"""Outcomes of a study's trials, as its search knows them."""

from __future__ import annotations

import msgspec

from servetune.search import OBJECTIVES, Objective, outcome_of
from servetune.search.strategies import Outcome
from servetune.store import TrialRecord
from servetune.trials.trial import StudyContext

#: Objectives of a search where the study has none, the most important first.
_SEARCHED = (OBJECTIVES["throughput"], OBJECTIVES["latency"])


def objectives_of(study: StudyContext) -> tuple[Objective, ...]:
    """Objectives that a study's search maximises; a strategy with one takes the first."""
    return study.objectives or _SEARCHED


def outcome_of_record(record: TrialRecord, study: StudyContext) -> Outcome:
    """Outcome of a trial that ended; see `search.outcome_of`."""
    start_s = record.results.get("server_ready_s")
    if record.status != "ok":
        return Outcome(failed=True, start_s=start_s)
    found = outcome_of(record.results, study.constraints, objectives_of(study))
    return msgspec.structs.replace(found, start_s=start_s)
