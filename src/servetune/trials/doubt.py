"""Doubt about a study's pick: how sure it is, its rivals, and what would settle the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from servetune.prediction.forecasts import causes_found
from servetune.search.strategies.guided import Doubt, Guided
from servetune.search.strategies.guided_set import GuidedSet
from servetune.search.summary import PickDoubt, Rival, SetDoubt
from servetune.trials.guided import searched_objectives
from servetune.trials.outcomes import objectives_of
from servetune.trials.trial import StudyContext, Trial

#: Rivals that are named, and the least probability worth a name.
_RIVALS, _LEAST = 3, 0.01


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
        objective=objectives_of(study)[0].name,
        simulated=chosen is not None,
        margin=margin,
        best=doubt.best,
        regret=doubt.regret if math.isfinite(doubt.regret) else None,
        holds=dict(zip(limits, doubt.holds, strict=True)) if doubt.holds else {},
        rivals=tuple(
            Rival(key=trials[at].key, label=_beside(trials, index, at, label[at]), best=p)
            for at, p in doubt.rivals[:_RIVALS]
            if p >= _LEAST
        ),
        settles=""
        if doubt.settles is None
        else _beside(trials, index, doubt.settles, label[doubt.settles]),
        surprise=doubt.surprise,
        left_out={why: count for why, count in search.left_out.items() if count},
        causes=causes_found(search.factors, study.node) if study.node and chosen is None else (),
    )


def set_doubt(
    search: GuidedSet, trials: Sequence[Trial], study: StudyContext, *, margin: float
) -> SetDoubt:
    """Doubt about the set of trials that are best in several objectives.

    Args:
        search: Search that was told what was measured.
        trials: Trials of its points.
        study: Settings that all trials have in common.
        margin: Margin of the search.
    """
    front, label = search.front, labels(trials)
    return SetDoubt(
        keys=tuple(trials[index].key for index in front.members),
        labels=tuple(label[index] for index in front.members),
        objectives=tuple(each.name for each in searched_objectives(study)),
        margin=margin,
        best=front.best,
        regret=front.regret if math.isfinite(front.regret) else None,
        rivals=tuple(
            Rival(key=trials[at].key, label=label[at], best=p)
            for at, p in front.rivals[:_RIVALS]
            if p >= _LEAST
        ),
        settles="" if front.settles is None else label[front.settles],
        surprise=front.surprise,
        left_out={why: count for why, count in search.left_out.items() if count},
        causes=causes_found(search.factors, study.node) if study.node else (),
    )


def _beside(trials: Sequence[Trial], pick: int | None, other: int, whole: str) -> str:
    """Settings of a trial that differ from the pick's; all that differ in the study without one."""
    if pick is None:
        return whole
    if other == pick:
        return "the pick"
    mine, others = ({**trials[at].server_args, **trials[at].client_args} for at in (other, pick))
    names = dict.fromkeys([*mine, *others])
    changed = [name for name in names if mine.get(name) != others.get(name)]
    return " ".join(f"{name}={mine.get(name, 'none')}" for name in changed)


def labels(trials: Sequence[Trial]) -> list[str]:
    """Settings of each trial that differ among them; all of them where none does."""
    settings = [{**trial.server_args, **trial.client_args} for trial in trials]
    names = dict.fromkeys(name for each in settings for name in each)
    swept = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return [
        " ".join(f"{name}={each[name]}" for name in (swept or names) if name in each)
        for each in settings
    ]
