"""Doubt about a study's pick: how sure it is, its rivals, and what would settle the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from servetune.json_value import JsonObject
from servetune.prediction.forecasts import CauseFound, causes_found
from servetune.search.strategies.guided import Doubt, Guided
from servetune.trials.trial import StudyContext, Trial

#: Rivals that are named, and the least probability worth a name.
_RIVALS, _LEAST = 3, 0.01
#: Surprise that is said.
_SURPRISING = 2.0


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Trial that may be better than the pick.

    Attributes:
        key: Key of the trial.
        label: Settings of it that differ in the study.
        best: Probability that it is the best and better than the pick by more than the margin.
    """

    key: str
    label: str
    best: float


class PickDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """Doubt about the pick of a study.

    Attributes:
        key: Key of the pick; `None` where no trial holds every constraint.
        label: Settings of it that differ in the study.
        simulated: Whether the pick rests on predictions alone.
        margin: Share by which another trial must be better to count.
        best: Probability that the pick holds every constraint and none is better by more.
        regret: Expected share by which the best trial exceeds it; `None` without a pick.
        holds: Constraint -> probability that the pick holds it.
        rivals: Trials that may be better, the likeliest first.
        settles: Settings of the trial whose measurement would teach most about the choice.
        surprise: Factor by which measurements lie further off the predictions than expected.
        left_out: Number of trials left out before the first measurement, by reason.
        causes: Findings of the measurements on the machine.
    """

    key: str | None
    label: str
    simulated: bool
    margin: float
    best: float
    regret: float | None
    holds: Mapping[str, float] = {}
    rivals: tuple[Rival, ...] = ()
    settles: str = ""
    surprise: float = 1.0
    left_out: Mapping[str, int] = {}
    causes: tuple[CauseFound, ...] = ()

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        found: JsonObject = msgspec.to_builtins(self)
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line for each finding."""
        return [*self._about_pick(), *(f"measured here: {each}" for each in self.causes)]

    def _about_pick(self) -> list[str]:
        lines = []
        dropped = [f"{count} {why}" for why, count in self.left_out.items() if count]
        if dropped:
            lines.append(f"left out by prediction: {', '.join(dropped)}")
        if self.surprise > _SURPRISING:
            lines.append(
                f"measurements lie {self.surprise:.1f} times further off the predictions than "
                "their doubt says: are model, machine and load the ones that were named?"
            )
        if self.key is None:
            return lines
        rests = " by predictions alone" if self.simulated else ""
        regret = "" if self.regret is None else f"; expected regret {self.regret:.1%}"
        lines.append(
            f"{self.label} is within {self.margin:.0%} of the best with a probability of "
            f"{shown(self.best)}{rests}{regret}"
        )
        unsure = [f"{name} {shown(p)}" for name, p in self.holds.items() if p < 0.995]
        if unsure:
            lines.append(f"probability that it holds: {', '.join(unsure)}")
        if self.rivals:
            named = ", ".join(f"{each.label} ({shown(each.best)})" for each in self.rivals)
            lines.append(f"may be better: {named}")
        if self.settles and self.best < 0.995:
            lines.append(f"measuring {self.settles} would settle most")
        return lines


def shown(probability: float) -> str:
    """Probability as text, never 0% or 100%."""
    if probability < 0.01:
        return "under 1%"
    return "over 99%" if probability > 0.99 else f"{probability:.0%}"


def pick_doubt(
    search: Guided,
    trials: Sequence[Trial],
    study: StudyContext,
    *,
    margin: float,
    chosen: int | None = None,
) -> PickDoubt:
    """Doubt about the pick of a search, or about a choice of predictions alone.

    Args:
        search: Search that was told what was measured.
        trials: Trials of its points.
        study: Settings that all trials have in common.
        margin: Margin of the search.
        chosen: Trial that was chosen without a measurement; the search's own pick if omitted.
    """
    doubt: Doubt = search.pick if chosen is None else search.doubt_about(chosen)
    label = labels(trials)
    index = doubt.index
    limits = [limit.label for limit in study.constraints]
    return PickDoubt(
        key=None if index is None else trials[index].key,
        label="" if index is None else label[index],
        simulated=chosen is not None,
        margin=margin,
        best=doubt.best,
        regret=doubt.regret if math.isfinite(doubt.regret) else None,
        holds=dict(zip(limits, doubt.holds, strict=True)) if doubt.holds else {},
        rivals=tuple(
            Rival(key=trials[at].key, label=label[at], best=p)
            for at, p in doubt.rivals[:_RIVALS]
            if p >= _LEAST
        ),
        settles="" if doubt.settles is None else label[doubt.settles],
        surprise=doubt.surprise,
        left_out={why: count for why, count in search.left_out.items() if count},
        causes=causes_found(search.factors, study.node) if study.node and chosen is None else (),
    )


def labels(trials: Sequence[Trial]) -> list[str]:
    """Settings of each trial that differ among them; all of them where none does."""
    settings = [{**trial.server_args, **trial.client_args} for trial in trials]
    names = dict.fromkeys(name for each in settings for name in each)
    swept = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return [
        " ".join(f"{name}={each[name]}" for name in (swept or names) if name in each)
        for each in settings
    ]
