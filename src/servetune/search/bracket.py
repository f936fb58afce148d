"""The largest load that holds the constraints, by noise-aware bracketing.

Every limit that load makes worse (a latency, a share of failures) is used up more with each
further user or request per second. So the loads that hold lie below those that fail, and few runs
find the border: load grows by a factor until one fails, then the gap between the largest load that
holds and the smallest that fails is halved in the logarithm, down to a resolution.

A run measures a margin, the share of the worst limit that is used up, with some error. A load is
decided once its margin is below or above 1 for certain enough; until then it is run again, up to a
number of runs, unless its margin is so near to 1 that these would hardly decide it. A load that
stays undecided is neither called held nor failing: the search goes on on both sides of it, until
there are several such loads. Then the margin changes too little with load to be told by such runs.

`ask` is a function of what was told, in any order, so a search that was interrupted goes on with
the same decisions.

    notation    margin    worst limit ratio of a run; at most 1 where every limit holds
                sd        standard error of the margin's logarithm, which is its relative error
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError

#: Ratio of neighbouring loads at which the search ends, less 1.
RESOLUTION = 0.05
#: Probability that the statement of the largest load is right.
CONFIDENCE = 0.9
#: Runs of one load, after which it stays undecided.
MOST_RUNS = 3
#: Undecided loads after which the gap between held and failing load is left as it is.
MOST_UNDECIDED = 3
#: Share of the distance from the limit that is needed: nearer loads are not run again.
_HOPELESS = 0.5
#: Factor from one load to the next until one fails, and the first one after a good guess.
GROWTH, GUESS_GROWTH = 2.0, 1.3
#: Smallest margin: a limit of which nothing is used up.
_LEAST_MARGIN = 1e-6

Verdict = Literal["holds", "fails", "undecided", "open"]


class LargestLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a bracketing search: the largest load that holds every limit.

    Attributes:
        held: Largest load that is known to hold; `None` where none is.
        failing: Smallest load that is known to fail; `None` where none is.
        undecided: Loads between the two that could not be told from the limit.
        confidence: Smallest probability that the true largest load is at least `held` and less
            than `failing`, for margins that grow with load; 0 where neither is known.
        run_count: Number of runs.
        contradictions: Loads that failed although a larger one held.
        chances: Loads that were run, rising, with the probability of each to hold; as `confidence`
            it is that of a judgement after each run, at least.
    """

    held: float | None
    failing: float | None
    undecided: tuple[float, ...] = ()
    confidence: float
    run_count: int
    contradictions: tuple[float, ...] = ()
    chances: tuple[tuple[float, float], ...] = ()

    def drawn(
        self, uniforms: NDArray[np.float64], *, whole: bool, ended: bool = True
    ) -> NDArray[np.float64]:
        """Largest loads that the runs leave possible, one for each number from 0 to 1.

        Between two loads that were run all are equally likely by their logarithm. Below the
        smallest, one is half of it; above the largest, it is that one, or up to `GROWTH` times it
        where the search has not ended.

        Args:
            uniforms: Numbers that are even between 0 and 1.
            whole: Whether loads are whole numbers.
            ended: Whether the search has its answer.
        """
        loads = np.array([load for load, _ in self.chances])
        reached = np.minimum.accumulate([chance for _, chance in self.chances])
        loads = np.concatenate([[loads[0] / 2], loads, [loads[-1] * (1.0 if ended else GROWTH)]])
        reached = np.concatenate([[1.0], reached, [0.0]])
        found = np.exp(np.interp(1 - uniforms, 1 - reached, np.log(loads)))
        return np.asarray(np.floor(found + 1e-9) if whole else found)


class Bracket:
    """Search for the largest load with a margin of at most 1.

    Args:
        least: Smallest load that is tried.
        most: Largest load that is tried; `None` for no bound.
        whole: Whether loads are whole numbers, such as users.
        start: Load to begin with; `None` for the least.
        first_growth: Factor to the second load, such as `GUESS_GROWTH` where `start` is a predicted
            largest load.
        resolution: Relative gap between held and failing load at which the search ends;
            neighbouring whole numbers end it, too.
        confidence: Probability with which the answer is to be right.
        most_runs: Largest number of runs of one load.

    Raises:
        InputError: The bounds or the numbers contradict.

    Example:
        >>> search = Bracket(least=1, most=64)
        >>> while (load := search.ask()) is not None:
        ...     search.tell(load, margin=load / 23, sd=0.0)
        >>> search.answer.held, search.answer.failing, search.answer.run_count
        (23, 24, 10)
    """

    def __init__(
        self,
        *,
        least: float = 1,
        most: float | None = None,
        whole: bool = True,
        start: float | None = None,
        first_growth: float = GROWTH,
        resolution: float = RESOLUTION,
        confidence: float = CONFIDENCE,
        most_runs: int = MOST_RUNS,
    ) -> None:
        if not (0 < least < math.inf and (most is None or least <= most)):
            raise InputError(f"no load lies between {least:g} and {most if most else 'any':}")
        if not (resolution > 0 and 0.5 <= confidence < 1 and most_runs >= 1):
            raise InputError(
                f"no search has resolution {resolution}, confidence {confidence} and "
                f"{most_runs} runs of a load"
            )
        self._least, self._most = least, math.inf if most is None else most
        self._whole, self._resolution = whole, resolution
        self._digits = 1 + max(1, math.ceil(-math.log10(resolution)))
        self._error, self._most_runs = 1 - confidence, most_runs
        self._first_growth = first_growth
        self._start = self._rounded(least if start is None else start)
        self._runs: dict[float, list[tuple[float, float]]] = {}

    def tell(self, load: float, margin: float, sd: float = 0.0) -> None:
        """Take a run of a load, which need not be the one asked for.

        Args:
            load: Load of the run.
            margin: Worst limit ratio; infinite where the server could not bear the load.
            sd: Standard error of the margin's logarithm; 0 where a further run would show the same.
        """
        self._runs.setdefault(load, []).append((math.log(max(margin, _LEAST_MARGIN)), sd))

    def runs(self, load: float) -> int:
        """Number of runs of a load that were told."""
        return len(self._runs.get(load, ()))

    def ask(self) -> float | None:
        """Load to run next; `None` when the answer stands."""
        if not self._runs:
            return self._start
        verdicts = self._verdicts()
        again = [load for load, verdict in verdicts.items() if verdict == "open"]
        again += [load for load in _contradictory(verdicts) if self.runs(load) < self._most_runs]
        if again:
            return again[0]
        held, failing, between = _bracketed(verdicts)
        if held is None:
            return self._below(min(load for load in (failing, *between) if load is not None))
        if failing is None:
            return self._above(max((held, *between)))
        if len(between) >= MOST_UNDECIDED:
            return None
        ordered = (held, *between, failing)
        gaps = ((ordered[0], ordered[1]), (ordered[-2], ordered[-1]))
        return next((load for gap in gaps if (load := self._within(*gap)) is not None), None)

    @property
    def answer(self) -> LargestLoad:
        """What is known so far; final once `ask` gives `None`."""
        verdicts = self._verdicts()
        held, failing, between = _bracketed(verdicts)
        ends = [load for load in (held, failing) if load is not None]
        error = sum(self._decided(self._runs[load])[1] for load in ends)
        return LargestLoad(
            held=held,
            failing=failing,
            undecided=tuple(between),
            confidence=max(0.0, 1 - error) if ends else 0.0,
            run_count=sum(map(len, self._runs.values())),
            contradictions=tuple(_contradictory(verdicts, failing_only=True)),
            chances=tuple((load, self._chance(load)) for load in sorted(self._runs)),
        )

    def _chance(self, load: float) -> float:
        """Probability that a load holds."""
        holds, error = self._decided(self._runs[load])
        error = min(0.5, error)
        return 1 - error if holds else error

    def _verdicts(self) -> dict[float, Verdict]:
        """Verdict on each load that was run, by load."""
        found: dict[float, Verdict] = {}
        for load, runs in sorted(self._runs.items()):
            held, error = self._decided(runs)
            if error <= self._error / 2:
                found[load] = "holds" if held else "fails"
            else:
                again = len(runs) < self._most_runs and not self._hopeless(runs)
                found[load] = "open" if again else "undecided"
        return found

    def _hopeless(self, runs: Sequence[tuple[float, float]]) -> bool:
        """Whether all runs that a load may have would hardly decide it, if its mean stays."""
        mean, sd = combined(runs)
        reached = abs(mean) / sd * math.sqrt(self._most_runs / len(runs))
        needed = NormalDist().inv_cdf(1 - self._error / 2 / self._most_runs)
        return reached < _HOPELESS * needed

    def _decided(self, runs: Sequence[tuple[float, float]]) -> tuple[bool, float]:
        """Whether a load seems to hold, and the largest probability of the contrary.

        A load is judged after each of its runs, and each judgement may err: the probability of an
        error is at most the sum over all (Bonferroni).
        """
        mean, sd = combined(runs)
        tail = 0.0 if sd == 0 or math.isinf(mean) else NormalDist().cdf(-abs(mean) / sd)
        return mean <= 0, min(1.0, self._most_runs * tail)

    def _below(self, load: float) -> float | None:
        """Load to try where none holds; `None` at the least."""
        if load <= self._least:
            return None
        tried = self._rounded(load / self._growth())
        return tried if tried < load else self._least

    def _above(self, load: float) -> float | None:
        """Load to try where none fails; `None` at the most."""
        if load >= self._most:
            return None
        tried = self._rounded(load * self._growth())
        return tried if tried > load else min(self._most, load + 1)

    def _growth(self) -> float:
        """Factor to the next load: its square for each load so far, up to `GROWTH`."""
        return float(min(GROWTH, self._first_growth ** (2 ** (len(self._runs) - 1))))

    def _within(self, low: float, high: float) -> float | None:
        """Load in the middle of a gap; `None` where the gap is small enough."""
        if high / low <= 1 + self._resolution or (self._whole and high - low <= 1):
            return None
        middle = self._rounded(math.sqrt(low * high))
        return middle if low < middle < high else None

    def _rounded(self, load: float) -> float:
        """Load within the bounds, with few digits, so that equal loads have equal names."""
        load = round(load) if self._whole else float(f"{load:.{self._digits}g}")
        return min(max(load, self._least), self._most)


def combined(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean of the runs' logarithms weighted by their precision, and its standard error.

    Runs that differ by more than their own errors explain vary from run to run: the error of the
    mean is then larger by the root of chi-squared per degree of freedom (Birge, Physical Review 40,
    1932).

    Args:
        runs: Logarithm of the margin and its standard error, for each run. An error of 0 is that of
            a run which would show the same again.
    """
    exact = [mean for mean, sd in runs if sd == 0 or math.isinf(mean)]
    if exact:
        return max(exact), 0.0
    weights = [1 / sd**2 for _, sd in runs]
    mean = sum(weight * value for weight, (value, _) in zip(weights, runs, strict=True))
    mean /= sum(weights)
    if len(runs) == 1:
        return mean, runs[0][1]
    chi = sum(((value - mean) / sd) ** 2 for value, sd in runs) / (len(runs) - 1)
    return mean, math.sqrt(max(1.0, chi) / sum(weights))


def _bracketed(verdicts: dict[float, Verdict]) -> tuple[float | None, float | None, list[float]]:
    """Largest load that holds below the smallest that fails, that one, and loads between them."""
    failing = min((load for load, verdict in verdicts.items() if verdict == "fails"), default=None)
    below = {load: each for load, each in verdicts.items() if failing is None or load < failing}
    held = max((load for load, verdict in below.items() if verdict == "holds"), default=None)
    return held, failing, [load for load in below if held is None or load > held]


def _contradictory(verdicts: dict[float, Verdict], *, failing_only: bool = False) -> list[float]:
    """Loads that failed below one that held, and these; empty where more load is never better."""
    held = [load for load, verdict in verdicts.items() if verdict == "holds"]
    failing = [load for load, verdict in verdicts.items() if verdict == "fails"]
    low = [load for load in failing if held and load < max(held)]
    high = [load for load in held if low and load > min(low)]
    return low if failing_only else [*low, *high]
