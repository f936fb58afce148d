"""Summary of a search: what it did, and how sure its pick is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from servetune.json_value import JsonObject
from servetune.search.strategies import StrategyName

#: Strategies whose seed changes nothing.
WITHOUT_CHANCE: tuple[StrategyName, ...] = ("grid", "guided")
#: Surprise that is said.
_SURPRISING = 2.0


class CauseFound(msgspec.Struct, frozen=True, kw_only=True):
    """What measurements say of a cause of all runs' times on a machine.

    Attributes:
        name: Cause: `memory`, `links of 4 devices`.
        factor: Ratio of its time, or of its share, to the predicted one.
        low_factor: Lower end of the 90% interval of `factor`.
        high_factor: Upper end.
        assumed_fraction: Share that was assumed, such as that of drafts which are right; `None` for
            a time.
    """

    name: str
    factor: float
    low_factor: float
    high_factor: float
    assumed_fraction: float | None = None

    def __str__(self) -> str:
        if self.assumed_fraction is not None:
            found, low, high = (
                f"{self.assumed_fraction * factor:.0%}"
                for factor in (self.factor, self.low_factor, self.high_factor)
            )
            assumed = f"{self.assumed_fraction:.0%}"
            return f"{self.name}: {found} are right ({low} to {high}), {assumed} were assumed"
        return (
            f"{self.name} {self.factor:.2f} times as long as predicted "
            f"({self.low_factor:.2f} to {self.high_factor:.2f})"
        )


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Trial that may be better than the pick.

    Attributes:
        key: Key of the trial.
        label: Settings of it that differ from the pick's.
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
        objective: Name of the objective that it is the best in.
        simulated: Whether the pick rests on predictions alone.
        margin: Share by which another trial must be better to count.
        best: Probability that the pick holds every constraint and none is better by more.
        regret: Expected share by which the best trial exceeds it; `None` without a pick.
        holds: Constraint -> probability that the pick holds it.
        rivals: Trials that may be better, the likeliest first.
        settles: Trial whose measurement would teach most about the choice: `the pick`, or the
            settings of it that differ from the pick's.
        surprise: Factor by which measurements lie further off the predictions than expected.
        left_out: Number of trials left out before the first measurement, by reason.
        causes: Findings of the measurements on the machine.
        among: Configurations that it is the best of, where others were not searched; else empty.
    """

    key: str | None
    label: str
    objective: str = ""
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
    among: str = ""

    def to_json(self) -> JsonObject:
        """Plain values for JSON."""
        found: JsonObject = msgspec.to_builtins(self)
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def settled(self) -> bool:
        """Whether the pick is more likely the best within the margin than not."""
        return self.key is not None and self.best >= 0.5

    @property
    def verdict(self) -> str:
        """Probability that the pick is the best, as a clause; empty without a pick."""
        if self.key is None:
            return ""
        rests = " by predictions alone" if self.simulated else ""
        best = f"the best of {self.among}" if self.among else "the best"
        return f"within {self.margin:.0%} of {best} with a probability of {shown(self.best)}{rests}"

    def lines(self) -> list[str]:
        """One line for each finding."""
        return [*self._about_pick(), *(f"measured here: {each}" for each in self.causes)]

    def _about_pick(self) -> list[str]:
        lines = _predicting(self.left_out, self.surprise)
        if self.key is None:
            return lines
        regret = "" if self.regret is None else f"; expected regret {self.regret:.1%}"
        lines.append(f"{self.label} is {self.verdict}{regret}")
        unsure = [f"{name} {shown(p)}" for name, p in self.holds.items() if p < 0.995]
        if unsure:
            lines.append(f"probability that it holds: {', '.join(unsure)}")
        return [*lines, *self.open_questions()]

    def open_questions(self) -> list[str]:
        """Trials that may be better, and the one whose measurement would settle most."""
        lines = []
        if self.rivals:
            named = ", ".join(f"{each.label} ({shown(each.best)})" for each in self.rivals)
            lines.append(f"may be better: {named}")
        if self.settles and self.best < 0.995:
            lines.append(f"measuring {self.settles} would settle most")
        return lines


class SetDoubt(msgspec.Struct, frozen=True, kw_only=True):
    """Doubt about the set of trials that are best in several objectives.

    Attributes:
        keys: Keys of the trials of the set, the best in the first objective first.
        labels: Settings of them that differ in the study.
        objectives: Names of the objectives.
        margin: Share of all objectives by which missing trials must enlarge the set to count.
        best: Probability that they do not, and that none of them is better than one of the set by
            more in every objective.
        regret: Expected share of all objectives that the set lacks; `None` without a trial in it.
        rivals: Trials that may be missing, the likeliest first.
        settles: Settings of the trial whose measurement would enlarge the set most for its time.
        surprise: Factor by which measurements lie further off the predictions than expected.
        left_out: Number of trials left out before the first measurement, by reason.
        causes: Findings of the measurements on the machine.
    """

    keys: tuple[str, ...]
    labels: tuple[str, ...]
    objectives: tuple[str, ...]
    margin: float
    best: float
    regret: float | None
    rivals: tuple[Rival, ...] = ()
    settles: str = ""
    surprise: float = 1.0
    left_out: Mapping[str, int] = {}
    causes: tuple[CauseFound, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One line for each finding."""
        lines = _predicting(self.left_out, self.surprise)
        if self.keys:
            lines.append(f"best in {' and '.join(self.objectives)}: {'; '.join(self.labels)}")
            lacks = "" if self.regret is None else f"; expected to lack {self.regret:.1%}"
            lines.append(
                f"no trial that is missing among them enlarges them by more than {self.margin:.0%} "
                f"with a probability of {shown(self.best)}{lacks}"
            )
        if self.keys and self.rivals:
            named = ", ".join(f"{each.label} ({shown(each.best)})" for each in self.rivals)
            lines.append(f"may be missing: {named}")
        if self.settles and self.best < 0.995:
            lines.append(f"measuring {self.settles} would enlarge them most for its time")
        return [*lines, *(f"measured here: {each}" for each in self.causes)]


def _predicting(left_out: Mapping[str, int], surprise: float) -> list[str]:
    """What was left out by prediction, and whether measurements lie far off predictions."""
    lines = []
    dropped = [f"{count} {why}" for why, count in left_out.items() if count]
    if dropped:
        lines.append(f"left out by prediction: {', '.join(dropped)}")
    if surprise > _SURPRISING:
        lines.append(
            f"measurements lie {surprise:.1f} times further off the predictions than "
            "their doubt says: are model, machine and load the ones that were named?"
        )
    return lines


def shown(probability: float) -> str:
    """Probability as text, never 0% or 100%."""
    if probability < 0.01:
        return "under 1%"
    return "over 99%" if probability > 0.99 else f"{probability:.0%}"


class SearchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a search did.

    Attributes:
        strategy: Name of the strategy.
        seed: Seed of its chance.
        trial_count: Trials that were run, those of earlier calls among them.
        total_count: Trials of the whole space.
        unable_count: Trials of them that cannot run on the machine.
        stopped: Reason why no further trial was run, as a clause.
        figures: Numbers that the strategy stopped with, by name.
        doubt: Doubt about the pick; `None` where nothing is predicted.
        set_doubt: Doubt about the trials that are best in several objectives, of a guided search
            for them; else `None`.
        drift: Change of the machine, as a trial that was measured again shows it; empty without
            one.
    """

    strategy: StrategyName
    seed: int
    trial_count: int
    total_count: int
    unable_count: int = 0
    stopped: str = ""
    figures: dict[str, float] = {}
    doubt: PickDoubt | None = None
    set_doubt: SetDoubt | None = None
    drift: str = ""

    def to_json(self) -> JsonObject:
        """Plain values for JSON, without numbers that JSON does not have."""
        finite = {name: value for name, value in self.figures.items() if math.isfinite(value)}
        found: JsonObject = msgspec.to_builtins(msgspec.structs.replace(self, figures=finite))
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def doubt_about(self, key: str) -> PickDoubt | None:
        """Doubt about the trial of a key; `None` where another one is the search's pick."""
        return self.doubt if self.doubt is not None and self.doubt.key == key else None

    def lines(self) -> list[str]:
        """One line for each finding."""
        doubts = [each for each in (self.doubt, self.set_doubt) if each]
        drift = [self.drift] if self.drift else []
        return [self._ran(), *drift, *(line for each in doubts for line in each.lines())]

    def _ran(self) -> str:
        unable = f", {self.unable_count} cannot run here" if self.unable_count else ""
        seed = "" if self.strategy in WITHOUT_CHANCE else f" (seed {self.seed})"
        return (
            f"strategy {self.strategy}{seed}: {self.trial_count} of {self.total_count} trials "
            f"were run{unable}; {self.stopped}"
        )
