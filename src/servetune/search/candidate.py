"""Candidate: a tried configuration, as a choice sees it."""

from __future__ import annotations

import msgspec

from servetune.metrics.results import ResultFields


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Tried configuration with its results.

    Attributes:
        key: Key of the trial.
        label: Display name made of the swept settings.
        results: Results under the journal's field names.
        simulated: Whether no real server answered.
    """

    key: str
    label: str
    results: ResultFields
    simulated: bool = False
