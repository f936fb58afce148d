"""Trials of a study in the order in which a search strategy asks for them."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from servetune.errors import InputError
from servetune.search.strategies import Outcome, Point, Strategy, strategy
from servetune.search.strategies.guided import Guided
from servetune.search.strategies.guided_set import GuidedSet
from servetune.search.strategies.listed import Listed
from servetune.search.summary import PickDoubt, SearchSummary, SetDoubt
from servetune.store import Results, TrialRecord
from servetune.trials.budget import Budget
from servetune.trials.doubt import labels, pick_doubt, set_doubt
from servetune.trials.drift import DriftWatch
from servetune.trials.guided import attainable_search, guided_search
from servetune.trials.order import is_put_off, ordered
from servetune.trials.outcomes import objectives_of, outcome_of_record
from servetune.trials.policy import ExecutionPolicy
from servetune.trials.predictions import PredictedTrials
from servetune.trials.trial import StudyContext, Trial


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


#: Simulated trials among which the doubt about the best is judged: those of highest objective.
_MOST_DOUBTED = 2000


class TrialSearch(Protocol):
    """Search that asks for trials one after another and is told their records."""

    @property
    def runs_all(self) -> bool:
        """Whether every trial is to run, now or when the study is resumed."""
        ...

    @property
    def unable(self) -> tuple[Trial, ...]:
        """Trials that cannot run on the machine and have no record."""
        ...

    @property
    def waiting(self) -> tuple[Trial, ...]:
        """Trials that have not ended, at least one of each server configuration."""
        ...

    @property
    def expected_count(self) -> int:
        """Records that there will be at the end, if the search does not stop before."""
        ...

    def has(self, record: TrialRecord) -> bool:
        """Whether a record is of a trial of this search."""
        ...

    def next(self) -> tuple[int, Trial] | None:
        """Number of the server configuration and trial to run now; `None` at the end."""
        ...

    def next_on(self, number: int) -> Trial | None:
        """Trial to run now, if it is one of this server configuration."""
        ...

    def of_server(self, number: int) -> tuple[Trial, ...]:
        """Trials that may be asked for on the server of a configuration."""
        ...

    def kept(self, record: TrialRecord) -> TrialRecord:
        """Record of a trial that ended just now, as the journal is to keep it."""
        ...

    def tell(self, record: TrialRecord) -> None:
        """Take the record of a trial that ended, in this call or an earlier one."""
        ...

    @property
    def regret_fraction(self) -> float | None:
        """Expected share by which the best trial exceeds the pick so far; `None` if unknown."""
        ...

    def put_off(self, key: str) -> str:
        """Ask for a trial after all others; the reason why it cannot be, empty otherwise."""
        ...

    def summary(self, *, interrupted: bool = False) -> SearchSummary:
        """What the search has done so far."""
        ...


class AskedTrials:
    """Trials of a study, one after another as its strategy asks for them.

    Args:
        groups: All trials of the study by server configuration, whether they ran or not.
        unable: Keys of the trials that cannot run on the machine; they are not asked for.
        study: Settings that all trials have in common.
        policy: Strategy, seed, order and limits.

    Raises:
        InputError: The strategy needs what is not there: a package, or predictions.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Trial]],
        unable: frozenset[str],
        study: StudyContext,
        policy: ExecutionPolicy,
    ) -> None:
        self._study, self._policy = study, policy
        self._searched = study
        self._total_count, self._unable_count = sum(map(len, groups)), len(unable)
        order = policy.order if policy.strategy == "grid" else "grid"
        placed = [
            (number, trial)
            for number, batch in ordered(groups, order, policy.seed)
            for trial in batch
            if trial.key not in unable
        ]
        self._numbers = [number + 1 for number, _ in placed]
        self._trials = [trial for _, trial in placed]
        self._unable = {t.key: t for group in groups for t in group if t.key in unable}
        self._unable_keys = unable
        self._indexes = {trial.key: index for index, trial in enumerate(self._trials)}
        self._strategy = self._made()
        self._watch = DriftWatch(
            {trial.key: at for trial, at in zip(self._trials, self._numbers, strict=True)}
        )
        self._again: str | None = None
        self._running: int | None = None
        self._budget = policy.budget or Budget()
        self._ended: set[str] = set()
        self._results: dict[str, tuple[Outcome, Results]] = {}
        self._best: tuple[float, str] | None = None
        self._stopped, self._put_off = "", ""
        # Trials that their user put off, and the strategy for the time until they are asked for
        # again, which takes them for failed: the strategy itself decides as if they came later.
        self._later: set[int] = set()
        self._deferred: set[str] = set()  # their keys, also after they were asked for again
        self._meanwhile: Strategy | None = None
        self._lock = threading.RLock()

    def _made(self) -> Strategy:
        policy = self._policy
        points = [
            Point(_settings(trial), number)
            for trial, number in zip(self._trials, self._numbers, strict=True)
        ]
        if policy.strategy == "guided":
            search, self._searched = attainable_search(
                points,
                self._trials,
                self._study,
                seed=policy.seed,
                margin=policy.margin,
                confidence=policy.confidence,
            )
            return search
        count = len(objectives_of(self._study))
        return strategy(policy.strategy, points, seed=policy.seed, objective_count=count)

    @property
    def runs_all(self) -> bool:
        """Whether every trial is to run, now or when the study is resumed."""
        return isinstance(self._strategy, Listed) and self._policy.max_trials is None

    @property
    def unable(self) -> tuple[Trial, ...]:
        """Trials that cannot run on the machine and have no record."""
        return tuple(self._unable.values())

    @property
    def waiting(self) -> tuple[Trial, ...]:
        """Trials that have not ended."""
        return tuple(trial for trial in self._trials if trial.key not in self._ended)

    @property
    def expected_count(self) -> int:
        """Records that there will be at the end, if the strategy does not stop before."""
        if self.runs_all:
            return self._total_count
        most = self._policy.max_trials
        return len(self._trials) if most is None else min(len(self._trials), most)

    def summary(self, *, interrupted: bool = False) -> SearchSummary:
        """What the search has done so far."""
        stop = self._strategy.stop
        words = "it was interrupted" if interrupted else self._stopped or self._put_off
        return SearchSummary(
            strategy=self._policy.strategy,
            seed=self._policy.seed,
            trial_count=len(self._ended),
            total_count=self._total_count,
            unable_count=self._unable_count,
            stopped=(words or (stop.words if stop else self._limit_reached())) + self._not_run(),
            figures=dict(stop.figures) if stop else {},
            doubt=self._doubt(),
            set_doubt=self._set_doubt(),
            drift=self._watch.words,
        )

    def _not_run(self) -> str:
        """Words on trials that were put off and that the search ended without; empty if none."""
        count = len(self._deferred - self._ended)
        if not count:
            return ""
        return f"; {count} trial{'s' * (count > 1)} put off by hand did not run"

    def _set_doubt(self) -> SetDoubt | None:
        """Doubt about the set that a guided search for several objectives has found."""
        search = self._strategy
        if not isinstance(search, GuidedSet):
            return None
        return set_doubt(search, self._trials, self._searched, margin=self._policy.margin)

    def _doubt(self) -> PickDoubt | None:
        """Doubt about a guided search's pick, or about the best of simulated trials."""
        search, policy = self._strategy, self._policy
        if isinstance(search, GuidedSet):
            return None
        if isinstance(search, Guided):
            return pick_doubt(search, self._trials, self._searched, margin=policy.margin)
        if not self._study.simulated or self._study.shape is None or not self._results:
            return None
        keys = sorted(self._results, key=self._merit)
        best = [key for key in keys if self._results[key][0].holds][:1]
        if not best:
            return None
        trials = [self._trials[self._indexes[key]] for key in keys[:_MOST_DOUBTED]]
        if best[0] not in {trial.key for trial in trials}:
            trials.append(self._trials[self._indexes[best[0]]])
        found = guided_search(
            [Point(_settings(trial), trial.plan) for trial in trials],
            trials,
            self._study,
            objectives_of(self._study)[:1],
            margin=policy.margin,
            confidence=policy.confidence,
            predicted=PredictedTrials(
                trials, self._study, [self._results[trial.key][1] for trial in trials]
            ),
        )
        chosen = next(index for index, trial in enumerate(trials) if trial.key == best[0])
        return pick_doubt(found, trials, self._study, margin=policy.margin, chosen=chosen)

    def require_hope(self) -> None:
        """Refuse a guided search in which no trial is likely to hold the constraints.

        Raises:
            InputError: Nothing was run yet, and by prediction nothing need be.
        """
        search = self._strategy
        if self._ended or not isinstance(search, Guided) or not self._study.constraints:
            return
        if not self._trials or search.ask() is not None:
            return
        index, number, ratio = search.nearest()
        limit = self._study.constraints[number]
        raise InputError(
            f"no trial is likely to hold {limit.label}: by prediction the nearest, "
            f"{labels(self._trials)[index]}, is {_times(ratio)} its limit",
            hint="relax it, sweep other settings, name a larger machine, or measure all the same "
            "with --strategy grid",
        )

    def _merit(self, key: str) -> tuple[float, int]:
        """Order of simulated trials, the best first; of equal ones that of the space."""
        return -self._results[key][0].objectives[0], self._indexes[key]

    def next(self) -> tuple[int, Trial] | None:
        """Number of the server configuration and trial to run now; `None` at the end.

        It is the same until a record of it is told. Now and then it is one that was measured
        before (`drift`).
        """
        with self._lock:
            self._again = self._again or self._to_repeat(at_end=False)
            index = None
            if self._again is None:
                self._stopped = self._stopped or self._limit_reached()
                index = None if self._stopped else self._next_index()
                if index is None:
                    self._again = self._to_repeat(at_end=True)
            if self._again is not None:
                index = self._indexes[self._again]
            return None if index is None else (self._numbers[index], self._trials[index])

    def _to_repeat(self, *, at_end: bool) -> str | None:
        """Key of the trial to measure again, by which drift of the machine is noticed."""
        if self._study.simulated or not self._policy.drift_check or self._best is None:
            return None
        if self._put_off or self._budget.exceeded():
            return None
        key = self._watch.due(self._best[1], self._running, at_end=at_end)
        left_s = self._budget.left_s()
        if key is None or left_s is None or left_s > 2 * self._watch.start_and_load_s(key):
            return key
        return None

    def _next_index(self) -> int | None:
        if self._meanwhile is not None:
            index = self._meanwhile.ask()
            if index is not None:
                return index
            self._meanwhile = None
            self._later.clear()
        return self._strategy.ask()

    def put_off(self, key: str) -> str:
        """Ask for a trial after all others; the reason why it cannot be, empty otherwise."""
        with self._lock:
            index = self._indexes.get(key)
            if index is None or key in self._ended:
                return "it has ended"
            meanwhile = copy.deepcopy(self._meanwhile or self._strategy)
            meanwhile.tell(index, Outcome(failed=True))
            if meanwhile.ask() is None:
                return "no other trial is to run before it"
            self._meanwhile = meanwhile
            self._later.add(index)
            self._deferred.add(key)
            return ""

    @property
    def regret_fraction(self) -> float | None:
        """Expected share by which the best trial exceeds the pick so far; `None` if unknown."""
        with self._lock:
            if not isinstance(self._strategy, Guided) or not self._ended:
                return None
            regret = self._strategy.pick.regret
            return regret if math.isfinite(regret) else None

    def next_on(self, number: int) -> Trial | None:
        """Trial to run now, if it is one of this server configuration."""
        found = self.next()
        return found[1] if found is not None and found[0] == number else None

    def of_server(self, number: int) -> tuple[Trial, ...]:
        """Trials of a server configuration that have not ended."""
        return tuple(
            trial
            for trial, place in zip(self._trials, self._numbers, strict=True)
            if place == number and (trial.key not in self._ended or self._may_repeat(trial))
        )

    def _may_repeat(self, trial: Trial) -> bool:
        """Whether a trial may come again on a server that would know its prompts."""
        measured = self._policy.drift_check and not self._study.simulated
        return measured and trial.workload.has_dataset

    def chosen(self) -> tuple[Trial, ...]:
        """Trials that have not ended and are to run, of a strategy that no outcome changes."""
        assert isinstance(self._strategy, Listed)
        keys = [self._trials[index].key for index in self._strategy.order]
        left = [key for key in keys if key not in self._ended]
        most = self.expected_count - len(self._ended)
        return tuple(self._trials[self._indexes[key]] for key in left[: max(0, most)])

    def has(self, record: TrialRecord) -> bool:
        """Whether a record is of a trial of this study."""
        return record.key in self._indexes or record.key in self._unable_keys

    def kept(self, record: TrialRecord) -> TrialRecord:
        """Record of a trial that ended just now; of a repeat the first one, with a note."""
        with self._lock:
            if record.key != self._again or "measured_again" in record.results:
                return record
            return self._watch.noted(record)

    def tell(self, record: TrialRecord) -> None:
        """Take the record of a trial that ended, in this call or an earlier one."""
        with self._lock:
            record = self.kept(record)
            index = self._indexes.get(record.key)
            self._unable.pop(record.key, None)
            if index is None:
                return
            if not is_put_off(record):
                self._running = self._numbers[index]
                self._watch_for_drift(record)
            if record.key == self._again:
                self._again = None
                return
            if not is_put_off(record):
                self._ended.add(record.key)
                outcome = outcome_of_record(record, self._searched)
                if outcome.counts and self._study.simulated:
                    self._results[record.key] = outcome, record.results
                if outcome.counts:
                    merit = outcome.objectives[0] if outcome.holds else -1 / outcome.objectives[0]
                    self._best = max(self._best or (merit, record.key), (merit, record.key))
                self._tell(index, outcome)
                return
            assert record.failure is not None
            self._put_off = record.failure.reason
            if self.runs_all:  # the others are put off, too
                self._tell(index, Outcome(failed=True))
            else:
                self._stopped = self._put_off

    def _watch_for_drift(self, record: TrialRecord) -> None:
        self._watch.tell(record)
        if isinstance(self._strategy, Guided) and any(self._watch.sds):
            self._strategy.drifted(np.array(self._watch.sds))

    def _tell(self, index: int, outcome: Outcome) -> None:
        self._strategy.tell(index, outcome)
        if self._meanwhile is None:
            return
        if index not in self._later:
            self._meanwhile.tell(index, outcome)
        self._later.discard(index)  # it ended before it could be put off
        if not self._later:
            self._meanwhile = None

    def _limit_reached(self) -> str:
        """Limit that lets no further trial begin; empty while there is none."""
        most = self._policy.max_trials
        if most is not None and most <= len(self._ended) < len(self._trials):
            return f"{most} were to be run (--max-trials)"
        if self.runs_all:  # those that are left are recorded as put off
            return ""
        return self._budget.exceeded() or ""


def _settings(trial: Trial) -> dict[str, bool | int | float | str | None]:
    """Settings of server and client; a client's is marked where the server has one of its name."""
    server, client = trial.server_args, trial.client_args
    marked = {f"client.{name}" if name in server else name: client[name] for name in client}
    return {**server, **marked}
