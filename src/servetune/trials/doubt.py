"""Doubt about a study's pick: how sure it is, its rivals, and what would settle the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.prediction.forecasts import causes_found
from servetune.search.bracket import LargestLoad
from servetune.search.strategies.guided import Doubt, Guided
from servetune.search.strategies.guided_set import GuidedSet
from servetune.search.summary import PickDoubt, Rival, SetDoubt
from servetune.trials.guided import searched_objectives
from servetune.trials.margins import RUN_TO_RUN_SD
from servetune.trials.outcomes import objectives_of
from servetune.trials.trial import StudyContext, Trial

#: Draws of the largest loads.
_DRAWS = 4000
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


class FoundWorth(msgspec.Struct, frozen=True, kw_only=True):
    """What the largest load of a configuration is worth.

    Attributes:
        key: Key of the first run of the load that holds.
        label: Settings of the configuration that differ in the study.
        answer: Loads that hold and fail.
        value: Objective at the load that holds, larger is better.
        elasticity: Share by which the objective rises with a share of the load there.
        holds: Whether the constraints hold that load does not decide.
        ended: Whether the search for the load has its answer.
    """

    key: str
    label: str
    answer: LargestLoad
    value: float
    elasticity: float
    holds: bool
    ended: bool


def load_doubt(
    found: Sequence[FoundWorth],
    *,
    objective: str,
    limits: str,
    whole: bool,
    margin: float,
    among: str = "",
) -> PickDoubt | None:
    """Doubt about the best of several configurations at their largest loads; `None` without one.

    What is not known of a largest load is what its runs leave open (`LargestLoad.drawn`); the
    objective follows the load, with the variation from run to run.

    Args:
        found: Configurations with a load that holds.
        objective: Name of the objective.
        limits: Limits by which loads were found, as text.
        whole: Whether loads are whole numbers.
        margin: Share by which another must be better to count.
        among: Configurations of the study that these are, where others were not searched.
    """
    able = [each for each in found if each.holds and each.answer.held is not None]
    if not able:
        return None
    rng = np.random.default_rng(0)
    worth = np.stack([_worth_at_largest(each, rng, whole=whole) for each in able], axis=1)
    chosen = max(range(len(able)), key=lambda at: able[at].value)
    pick, mine, best = able[chosen], worth[:, chosen], worth.max(axis=1)
    within = best <= mine * (1 + margin)
    leaders = np.bincount(worth[~within].argmax(axis=1), minlength=len(able)) / len(worth)
    rivals = sorted((-share, at) for at, share in enumerate(leaders) if share >= _LEAST)
    held = dict(pick.answer.chances)[pick.answer.held]  # type: ignore[index]
    return PickDoubt(
        key=pick.key,
        label=pick.label or "the load found",
        objective=objective,
        simulated=False,
        margin=margin,
        best=float(within.mean()),
        regret=float(np.maximum(best / mine - 1, 0.0).mean()),
        holds={limits: held},
        rivals=tuple(
            Rival(key=able[at].key, label=able[at].label, best=-share)
            for share, at in rivals[:_RIVALS]
        ),
        among=among,
    )


def _worth_at_largest(
    found: FoundWorth, rng: np.random.Generator, *, whole: bool
) -> NDArray[np.float64]:
    """Draws of what the largest load of a configuration is worth."""
    loads = found.answer.drawn(rng.random(_DRAWS), whole=whole, ended=found.ended)
    rise = (np.maximum(loads, 1e-9) / (found.answer.held or 1.0)) ** found.elasticity
    return np.asarray(found.value * rise * np.exp(RUN_TO_RUN_SD * rng.standard_normal(_DRAWS)))


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
