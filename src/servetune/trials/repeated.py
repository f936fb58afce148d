"""Trials that are measured twice: by what their figures changed, and whether that is noise."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from servetune.store import Results

#: Relative change below which there is no note, however certain it is.
WORTH_SAYING = 0.05

#: (result, its name, whether more is better).
_COMPARED = (
    ("output_throughput", "output throughput", True),
    ("mean_ttft_ms", "mean time to first token", False),
    ("mean_tpot_ms", "mean time per output token", False),
)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a figure from one run of a trial to another.

    Attributes:
        name: Name of the figure in a sentence.
        before: Value in the first run.
        after: Value in the second.
        more_is_better: Whether a rise is a gain.
    """

    name: str
    before: float
    after: float
    more_is_better: bool

    @property
    def relative(self) -> float:
        """Change as a share of the first value."""
        return self.after / self.before - 1

    @property
    def loss(self) -> float:
        """The same, positive where the second run is worse."""
        return -self.relative if self.more_is_better else self.relative


def changes_between(one: Results, other: Results) -> dict[str, Change]:
    """Changes of the figures that both runs of a trial have, by the name of the result."""
    return {
        field: Change(
            name=name, before=one[field], after=other[field], more_is_better=more_is_better
        )
        for field, name, more_is_better in _COMPARED
        if one.get(field) and other.get(field)
    }


def changes_beyond_noise(
    one: Results, other: Results, changes: Mapping[str, Change]
) -> dict[str, Change]:
    """Changes of more than 5% where the intervals of the two runs do not overlap.

    Where a run is too short for an interval, more than twice that.
    """
    return {
        field: change
        for field, change in changes.items()
        if abs(change.relative) > WORTH_SAYING and _differs(field, one, other, abs(change.relative))
    }


def _differs(field: str, one: Results, other: Results, change: float) -> bool:
    mine, its = ((results.get("intervals") or {}).get(field) for results in (one, other))
    if not mine or not its or None in mine or None in its:
        return change > 2 * WORTH_SAYING
    return bool(mine[1] < its[0] or its[1] < mine[0])
