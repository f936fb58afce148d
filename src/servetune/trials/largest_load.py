"""The largest load of each server configuration that holds the constraints, trial by trial.

A study that sweeps the load runs every load of a list. This one is given a load setting to find:
each configuration's loads are asked of a bracketing search (`search.bracket`), on one running
server. Every run is a trial of its own. A load that is run again has another seed, so that other
lengths and arrivals are drawn from the same laws, and its key differs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence

from servetune.errors import PlanError, UnknownName
from servetune.metrics import Constraint, unmet, value_of
from servetune.metrics.overload import STILL_FILLING
from servetune.search import PickDoubt, SearchSummary
from servetune.search.bracket import (
    GROWTH,
    GUESS_GROWTH,
    MOST_RUNS,
    RESOLUTION,
    Bracket,
)
from servetune.search.knee import LoadLevel, knees
from servetune.search.strategies import Outcome as SearchOutcome
from servetune.search.strategies import Point, strategy
from servetune.store import TrialRecord
from servetune.trials.budget import Budget
from servetune.trials.doubt import FoundWorth, load_doubt
from servetune.trials.found_load import FoundLoad, LoadKnob
from servetune.trials.margins import (
    ASSUMED_SD,
    Margin,
    margin_in,
    margin_of,
    worsened_by_load,
)
from servetune.trials.order import is_put_off, ordered
from servetune.trials.outcomes import objectives_of, outcome_of_record
from servetune.trials.policy import ExecutionPolicy
from servetune.trials.simulated import simulated_results
from servetune.trials.trial import StudyContext, Trial, percentiles_of, trial_of, workload_of
from servetune.workload.options import STUDY_REQUESTS

#: Rate with which a search begins where nothing is predicted.
FIRST_RATE_PER_S = 1.0
#: Requests for each user, and seconds of arrivals, where the number of requests is left to the
#: search: the first requests of users come at once, and a queue needs time to grow.
REQUESTS_PER_USER, ARRIVALS_S = 4, 60
#: Resolution of a search among predictions, which only begins another.
_PREDICTED_RESOLUTION = 0.15

#: Failures of a server, which are the same under any load.
_OF_THE_SERVER = frozenset({"does_not_fit", "settings", "not_ready", "port_busy", "quarantined"})
#: Reason why no trial of such a search can be put off.
REFUSES_PUT_OFF = "each load is chosen by what the one before it showed"
#: Client arguments that decide how many requests there are.
_COUNTED = frozenset({"num_prompts", "requests", "duration_s", "until", "workload", "trace"})
#: Runs that a search usually takes, for the progress that is shown.
USUAL_RUNS = 9


class _Line:
    """Loads of one server configuration, and of one combination of the other load options."""

    def __init__(
        self, study: StudyContext, knob: LoadKnob, some: Trial, *, confidence: float
    ) -> None:
        self._study, self._knob, self._plan = study, knob, some.plan
        self._confidence = confidence
        self.server_args = some.server_args
        self.client_args = {
            name: value for name, value in some.client_args.items() if name != knob.name
        }
        self.label = ""
        self._limits = worsened_by_load(study.constraints)
        self._trials: dict[tuple[float, int], Trial] = {}
        self._records: dict[float, list[TrialRecord]] = {}
        self._assumed = False
        self._keys: set[str] = set()
        self._bracket: Bracket | None = None
        self._told: list[tuple[float, Margin]] = []
        self.stopped = ""
        self.first = self.trial(self.least, 0)

    @property
    def begun(self) -> bool:
        """Whether a trial has ended."""
        return bool(self._told or self.stopped)

    @property
    def least(self) -> float:
        """Smallest load that is tried."""
        return self._knob.lowest

    @property
    def most(self) -> float:
        """Largest load that is tried: more users than requests are no more load."""
        if self._knob.highest is not None:
            return self._knob.highest
        return float("inf") if self._counts_requests else self.first.workload.request_count

    @property
    def _counts_requests(self) -> bool:
        """Whether the number of requests is left to the search."""
        return not _COUNTED & self.client_args.keys()

    def trial(self, load: float, repeat: int) -> Trial:
        """Trial of a load; of its first run, or of a further one."""
        if (load, repeat) not in self._trials:
            args = dict(self.client_args)
            args[self._knob.name] = int(load) if self._knob.whole else load
            if self._counts_requests:
                each = REQUESTS_PER_USER if self._knob.whole else ARRIVALS_S
                args["num_prompts"] = max(STUDY_REQUESTS, math.ceil(each * load))
            if repeat:
                args["seed"] = self.first.workload.seed + repeat
            self._trials[load, repeat] = trial_of(
                self._study,
                self.server_args,
                args,
                plan=self._plan,
                workload=workload_of(args, self._study),
            )
        return self._trials[load, repeat]

    def next(self) -> Trial | None:
        """Trial to run now; `None` when the answer stands."""
        load = None if self.stopped else self._search().ask()
        return None if load is None else self.trial(load, self._search().runs(load))

    def has(self, record: TrialRecord) -> bool:
        """Whether a record is of a trial of this line."""
        load = record.config.client_args.get(self._knob.name)
        seed = record.config.client_args.get("seed", self.first.workload.seed)
        if not isinstance(load, int | float) or not isinstance(seed, int):
            return False
        repeat = seed - self.first.workload.seed
        if not (self.least <= load <= self.most and 0 <= repeat < MOST_RUNS):
            return False
        return self.trial(load, repeat).key == record.key

    def tell(self, record: TrialRecord) -> None:
        """Take a record of this line."""
        if record.key in self._keys:
            return
        self._keys.add(record.key)
        if _server_failed(record):
            assert record.failure is not None
            self.stopped = record.failure.reason
            return
        load = record.config.client_args[self._knob.name]
        self._records.setdefault(load, []).append(record)
        margin = margin_of(record, self._limits)
        self._assumed |= margin.assumed
        self._told.append((load, margin))
        if self._bracket is not None:
            self._bracket.tell(load, margin.ratio, margin.sd)

    def _search(self) -> Bracket:
        """Search among the trials; it begins near the predicted largest load."""
        if self._bracket is None:
            guess = self._predicted()
            self._bracket = (
                self._bracket_from(self._usual_start)
                if guess is None
                else self._bracket_from(guess, first_growth=GUESS_GROWTH)
            )
            for load, margin in self._told:
                self._bracket.tell(load, margin.ratio, margin.sd)
        return self._bracket

    @property
    def _usual_start(self) -> float | None:
        """Load to begin with where nothing is predicted."""
        if self._knob.whole:
            return None
        return min(max(FIRST_RATE_PER_S, self.least), self.most)

    def _bracket_from(
        self,
        start: float | None,
        *,
        first_growth: float = GROWTH,
        resolution: float = RESOLUTION,
    ) -> Bracket:
        return Bracket(
            least=self.least,
            most=self.most,
            whole=self._knob.whole,
            start=start,
            first_growth=first_growth,
            resolution=resolution,
            confidence=self._confidence,
        )

    def _predicted(self) -> float | None:
        """Largest load that a simulation holds; `None` where nothing is predicted."""
        study, shape = self._study, self._study.shape_of(self._plan)
        if study.simulated or shape is None or study.node is None:
            return None
        if study.node.device.architecture == "cpu":
            return None
        search = self._bracket_from(self._usual_start, resolution=_PREDICTED_RESOLUTION)
        try:
            while (load := search.ask()) is not None:
                results = simulated_results(
                    self._plan,
                    shape,
                    study.node,
                    self.trial(load, 0).workload,
                    percentiles=percentiles_of(self._limits),
                    request_timeout_s=study.request_timeout_s,
                )
                search.tell(load, margin_in(results, self._limits).ratio)
        except (PlanError, UnknownName):  # it does not fit, or the engine's defaults are not known
            return None
        return search.answer.held

    @property
    def run_count(self) -> int:
        """Number of trials that ended."""
        return len(self._keys)

    @property
    def best(self) -> TrialRecord | None:
        """First run of the largest load that holds; that of the smallest without one."""
        held = self._search().answer.held
        loads = [held] if held is not None else sorted(self._records)[:1]
        return self._records[loads[0]][0] if loads else None

    @property
    def found(self) -> FoundLoad:
        """What is known of the largest load."""
        answer = self._search().answer
        return FoundLoad(
            label=self.label,
            knob=self._knob,
            server_args=self.server_args,
            client_args=self.client_args,
            answer=answer,
            knees=knees(list(self._levels(answer.held))) if self._records else (),
            limits=self._limits,
            doubts=tuple(self._doubts(answer.held)),
            assumed_sd=ASSUMED_SD if self._assumed else 0.0,
            simulated=self._study.simulated,
            stopped=self.stopped,
        )

    @property
    def whole(self) -> bool:
        """Whether loads are whole numbers."""
        return self._knob.whole

    def worth(self, *, ended: bool) -> FoundWorth | None:
        """What the largest load is worth; `None` without a load that holds, or without a value.

        Args:
            ended: Whether no further load is to run.
        """
        answer, best = self._search().answer, self.best
        if answer.held is None or best is None:
            return None
        outcome = outcome_of_record(best, self._study)
        if not outcome.counts:
            return None
        others = tuple(each for each in self._study.constraints if each not in self._limits)
        return FoundWorth(
            key=best.key,
            label=self.label,
            answer=answer,
            value=outcome.objectives[0],
            elasticity=self._elasticity(answer.held, outcome.objectives[0]),
            holds=not unmet(others, best.results),
            ended=ended,
        )

    def _elasticity(self, held: float, value: float) -> float:
        """Share by which the objective rises with a share of the load, from the next lower load."""
        for load in sorted((load for load in self._records if load < held), reverse=True):
            lower = outcome_of_record(self._records[load][0], self._study)
            if lower.counts:
                rise = math.log(value / lower.objectives[0]) / math.log(held / load)
                return min(1.0, max(0.0, rise))
        return 1.0

    def _levels(self, held: float | None) -> Iterator[LoadLevel]:
        """Measured loads with their mean latency and throughput over all runs.

        Loads up to the held one hold.
        """
        for load, records in self._records.items():
            results = [record.results for record in records if record.status == "ok"]
            latencies = [value for each in results if (value := each.mean_e2e_latency_ms)]
            rates = [value for each in results if (value := each.request_throughput)]
            if latencies and rates:
                yield LoadLevel(
                    load=load,
                    throughput=sum(rates) / len(rates),
                    latency=sum(latencies) / len(latencies),
                    holds=held is not None and load <= held,
                )

    def _doubts(self, held: float | None) -> Iterator[str]:
        """Other constraints that the held load misses, and a run that was too short to judge."""
        if held is None:
            return
        results = self._records[held][0].results
        others = tuple(each for each in self._study.constraints if each not in self._limits)
        for each in unmet(others, results):
            yield f"{each.label} is missed there: {_value_text(each, results)}"
        if results.saturation and results.saturation.words == STILL_FILLING:
            yield (
                f"{STILL_FILLING} when the last request came, so a longer run may not hold: give "
                "more --requests, or a --duration"
            )


class LargestLoads:
    """Trials that find the largest load of each server configuration, one after another.

    A strategy chooses the server configurations: a configuration's outcome is that of its largest
    load.

    Args:
        groups: One trial of each combination of the other load options, at any load, by server
            configuration.
        knob: Load setting to find.
        study: Settings that all trials have in common.
        policy: Strategy of the server configurations, seed, order and limits.

    Raises:
        InputError: The strategy needs a package that is not installed.
    """

    runs_all = False
    unable: tuple[Trial, ...] = ()
    regret_fraction: float | None = None

    def __init__(
        self,
        groups: Sequence[Sequence[Trial]],
        knob: LoadKnob,
        study: StudyContext,
        policy: ExecutionPolicy,
    ) -> None:
        self._study, self._policy = study, policy
        batches = ordered(groups, policy.order, policy.seed)
        self._numbers = [number + 1 for number, batch in batches for _ in batch]
        self._lines = [
            _Line(study, knob, trial, confidence=policy.confidence)
            for _, batch in batches
            for trial in batch
        ]
        for line, label in zip(self._lines, _labels(self._lines), strict=True):
            line.label = label
        points = [
            Point({**line.client_args, **line.server_args}, number)
            for line, number in zip(self._lines, self._numbers, strict=True)
        ]
        name = "grid" if policy.order != "grid" else policy.strategy
        self._strategy = strategy(
            name, points, seed=policy.seed, objective_count=len(objectives_of(study))
        )
        self._budget = policy.budget or Budget()
        self._ended: set[str] = set()
        self._done: set[int] = set()
        self._stopped = ""
        self._lock = threading.RLock()

    @property
    def waiting(self) -> tuple[Trial, ...]:
        """First trial of each search that has not ended."""
        return tuple(
            line.first for index, line in enumerate(self._lines) if index not in self._done
        )

    @property
    def expected_count(self) -> int:
        """Records that there will be at the end, by the usual length of a search."""
        left = sum(
            max(1, USUAL_RUNS - line.run_count)
            for index, line in enumerate(self._lines)
            if index not in self._done
        )
        most = self._policy.max_trials
        expected = len(self._ended) + left
        return expected if most is None else min(expected, most)

    def summary(self, *, interrupted: bool = False) -> SearchSummary:
        """What the search has done so far."""
        found = sum(line.found.answer.held is not None for line in self._lines)
        words = "it was interrupted" if interrupted else self._stopped
        known = f"{found} of {len(self._lines)} searches found a load that holds"
        return SearchSummary(
            strategy=self._policy.strategy,
            seed=self._policy.seed,
            trial_count=len(self._ended),
            total_count=len(self._ended),
            stopped=f"{words}; {known}" if words else known,
            doubt=self._doubt(),
        )

    def _doubt(self) -> PickDoubt | None:
        """Doubt about the best configuration at its largest load; `None` of a simulation, whose
        runs have no noise, and of one configuration.
        """
        if self._study.simulated or len(self._lines) == 1:
            return None
        begun = [at for at, line in enumerate(self._lines) if line.begun]
        worths = [self._lines[at].worth(ended=at in self._done) for at in begun]
        limits = worsened_by_load(self._study.constraints)
        all_begun = len(begun) == len(self._lines)
        return load_doubt(
            [each for each in worths if each is not None],
            objective=objectives_of(self._study)[0].name,
            limits="; ".join(limit.label for limit in limits),
            whole=self._lines[0].whole,
            margin=self._policy.margin,
            among="" if all_begun else f"the {len(begun)} of {len(self._lines)} searched",
        )

    def found(self) -> tuple[FoundLoad, ...]:
        """Largest load of each search that has begun, as far as it is known."""
        return tuple(line.found for line in self._lines if line.begun)

    def next(self) -> tuple[int, Trial] | None:
        """Number of the server configuration and trial to run now; `None` at the end.

        It is the same until a record of it is told.
        """
        with self._lock:
            self._stopped = self._stopped or self._limit_reached()
            if self._stopped:
                return None
            while (index := self._strategy.ask()) is not None:
                trial = self._lines[index].next()
                if trial is not None:
                    return self._numbers[index], trial
                self._done.add(index)
                self._strategy.tell(index, self._outcome(self._lines[index]))
            return None

    def next_on(self, number: int) -> Trial | None:
        """Trial to run now, if it is one of this server configuration."""
        found = self.next()
        return found[1] if found is not None and found[0] == number else None

    def of_server(self, number: int) -> tuple[Trial, ...]:
        """Trials that may follow on a server: two of each search, as there may be several."""
        return tuple(
            line.trial(line.least, repeat)
            for line, place in zip(self._lines, self._numbers, strict=True)
            if place == number
            for repeat in (0, 1)
        )

    def kept(self, record: TrialRecord) -> TrialRecord:
        """Record of a trial that ended just now, as the journal is to keep it."""
        return record

    def tell(self, record: TrialRecord) -> None:
        """Take the record of a trial that ended, in this call or an earlier one."""
        with self._lock:
            if is_put_off(record):
                assert record.failure is not None
                self._stopped = record.failure.reason
                return
            line = next((line for line in self._lines if line.has(record)), None)
            if line is not None:
                line.tell(record)
                self._ended.add(record.key)

    def put_off(self, key: str) -> str:
        """Reason why no trial can be put off."""
        return REFUSES_PUT_OFF

    def has(self, record: TrialRecord) -> bool:
        """Whether a record is of a trial of this study."""
        return any(line.has(record) for line in self._lines)

    def _outcome(self, line: _Line) -> SearchOutcome:
        best = line.best
        if best is None:
            return SearchOutcome(failed=True)
        return outcome_of_record(best, self._study)

    def _limit_reached(self) -> str:
        """Limit that lets no further trial begin; empty while there is none."""
        most = self._policy.max_trials
        if most is not None and most <= len(self._ended):
            return f"{most} were to be run (--max-trials)"
        return self._budget.exceeded() or ""


def _labels(lines: Sequence[_Line]) -> list[str]:
    """Settings that differ between lines, one text for each."""
    settings = [{**line.server_args, **line.client_args} for line in lines]
    names = dict.fromkeys(name for each in settings for name in each)
    swept = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return [" ".join(f"{name}={each[name]}" for name in swept if name in each) for each in settings]


def _value_text(constraint: Constraint, results: Mapping[str, object]) -> str:
    value = value_of(results, constraint.metric, constraint.statistic)
    return "not measured" if value is None else f"{value:.4g}"


def _server_failed(record: TrialRecord) -> bool:
    """Whether the server did not come up, so that no load can tell more."""
    if record.failure is None or record.results:
        return False
    attempts = record.provenance.get("attempts") or []
    return record.failure.kind in _OF_THE_SERVER or any(
        each.get("of") == "start" and each.get("reason") == record.failure.reason
        for each in attempts
    )
