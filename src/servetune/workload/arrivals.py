"""Arrival processes: laws of due times, drawn from a generator that is passed in.

Laws whose rate moves (`Piecewise`, `Ramp`, `Sine`) are exact: gaps of rate one are drawn and
carried through the inverse of the expected count Λ(t), the integral of the rate. Exponential
gaps become a Poisson process of that rate, equal gaps one arrival whenever Λ grows by one.

    kind          what it is                                    dispersion of counts
    all_at_once   all due at the start: a closed loop           -
    constant      equal gaps                                    0
    poisson       exponential gaps                              1
    gamma         gamma gaps, by their burstiness               1 / burstiness
    mmpp          Poisson with a rate that jumps at random      above 1
    piecewise     one rate after another                        1, or 0 if even
    ramp          from one rate to another, then hold           1, or 0 if even
    sine          a day's curve                                 1, or 0 if even
    scheduled     times that were seen                          -
    modulated     steps of a rate, bursts and gaps together     above 0
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servetune.errors import InputError, UnknownName
from servetune.workload.grammar import KindOfLaw, Kinds, format_law, law_of, law_of_text

_Times = NDArray[np.float64]

Gaps = Literal["poisson", "even"]
"""How arrivals lie around a rate that moves: at random, or as evenly as it allows."""

_LEAST_RATE, _MOST_RATE = 1e-6, 1e7
"""Requests per second that a law may have: beyond them times are no numbers any more."""

_BLOCK = 4096  # gaps drawn at once; more only costs memory


class AllAtOnce(KindOfLaw, frozen=True, tag="all_at_once"):
    """Every request is due at the start; with a concurrency limit this is a closed loop."""

    @property
    def dispersion(self) -> float:
        return 0.0

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """`None`: the answers set the rate."""
        return None

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        while True:
            yield 0.0


class _SteadyRate(KindOfLaw, frozen=True):
    """Arrivals at one rate."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _require_rate(self.rate_per_s)

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        return self.rate_per_s


class Constant(_SteadyRate, frozen=True, tag="constant"):
    """Equal gaps."""

    @property
    def dispersion(self) -> float:
        return 0.0

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        count = 0
        while True:
            yield count / self.rate_per_s
            count += 1


class Poisson(_SteadyRate, frozen=True, tag="poisson"):
    """Independent exponential gaps (coefficient of variation 1).

    Attributes:
        count: Number of arrivals, whose gaps are stretched until the last falls at count / rate, as
            inference-perf does (`loadgen/load_timer.py`); `None` leaves them as drawn, without end.
    """

    count: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is not None:
            _require_positive("count", self.count, "it is the number of arrivals")

    @property
    def dispersion(self) -> float:
        return 1.0

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end but for `count`."""
        if self.count is not None:
            drawn = np.cumsum(rng.exponential(size=self.count))
            yield from (drawn * (self.count / self.rate_per_s / drawn[-1])).tolist()
            return
        due_s = 0.0
        while True:
            due_s += float(rng.exponential(1 / self.rate_per_s))
            yield due_s


class Gamma(_SteadyRate, frozen=True, tag="gamma"):
    """Independent gamma gaps, by their burstiness.

    The gaps' shape is `burstiness` and their mean 1 / rate, so their coefficient of variation
    is 1 / sqrt(burstiness): 1 is Poisson, less comes in bursts, more is smoother.
    The times are left as drawn, not stretched until the last one fits the rate.
    """

    burstiness: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("burstiness", self.burstiness, "kind=constant has no bursts at all")

    @property
    def dispersion(self) -> float:
        return 1 / self.burstiness

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        scale_s = 1 / (self.rate_per_s * self.burstiness)
        due_s = 0.0
        while True:
            due_s += float(rng.gamma(self.burstiness, scale_s))
            yield due_s


class MarkovBursts(KindOfLaw, frozen=True, tag="mmpp"):
    """A Poisson process whose rate jumps between states (Markov-modulated).

    A state lasts an exponential time and is followed by any other with equal chance. The run
    begins in a state drawn by the share of time that each has, so the law is the same at
    every moment and its mean rate is the dwell times' average of the rates.

    Attributes:
        rates_per_s: Arrival rate of each state; 0 is a pause.
        dwell_s: Mean time in each state.

    Example:
        >>> MarkovBursts((2.0, 40.0), (9.0, 1.0)).mean_rate_per_s(60)
        5.8
    """

    rates_per_s: tuple[float, ...]
    dwell_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rates_per_s) < 2:
            raise InputError(
                "rates_per_s needs two states or more", hint="one rate is kind=poisson"
            )
        if len(self.dwell_s) != len(self.rates_per_s):
            raise InputError(
                f"dwell_s has {len(self.dwell_s)} times for {len(self.rates_per_s)} rates",
                hint="each state has one rate and one mean dwell time",
            )
        _require_rates("rates_per_s", self.rates_per_s)
        for dwell_s in self.dwell_s:
            _require_positive("dwell_s", dwell_s, "it is the mean time in a state")

    @property
    def dispersion(self) -> float:
        """Variance over mean of counts in long windows, more than in any shorter one.

        1 + 2/λ Σ π_i λ_i (D λ)_i with the deviation matrix D = (Π - Q)^-1 - Π of the states'
        generator Q. The states' chain is reversible, so counts in windows never correlate
        negatively and the limit is approached from below.
        """
        rates, dwell_s = np.asarray(self.rates_per_s), np.asarray(self.dwell_s)
        shares = dwell_s / dwell_s.sum()
        states = len(rates)
        generator = np.repeat(1 / (dwell_s * (states - 1)), states).reshape(states, states)
        np.fill_diagonal(generator, -1 / dwell_s)
        stationary = np.tile(shares, (states, 1))
        deviation = np.linalg.inv(stationary - generator) - stationary
        return float(1 + 2 * (shares * rates) @ (deviation @ rates) / (shares @ rates))

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        pairs = zip(self.rates_per_s, self.dwell_s, strict=True)
        return sum(rate * dwell_s for rate, dwell_s in pairs) / sum(self.dwell_s)

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end."""
        states = len(self.rates_per_s)
        state = int(rng.choice(states, p=np.asarray(self.dwell_s) / sum(self.dwell_s)))
        begins_s = 0.0
        while True:
            ends_s = begins_s + float(rng.exponential(self.dwell_s[state]))
            rate = self.rates_per_s[state]
            due_s = begins_s
            while rate:
                # What is left of a gap at a jump is forgotten: exponential gaps have no memory.
                due_s += float(rng.exponential(1 / rate))
                if due_s >= ends_s:
                    break
                yield due_s
            begins_s = ends_s
            state = (state + 1 + int(rng.integers(states - 1))) % states


class Piecewise(KindOfLaw, frozen=True, tag="piecewise"):
    """One rate after another; then the last one holds, or all begin anew.

    Attributes:
        steps: Steps of (seconds, rate per second); a rate of 0 is a pause. If the last is 0 and
            nothing repeats, the arrivals end there.
        repeat: Whether the steps begin anew after the last.
        gaps: Distribution of arrivals around the rate.
    """

    steps: tuple[tuple[float, float], ...]
    repeat: bool = False
    gaps: Gaps = "poisson"

    def __post_init__(self) -> None:
        if not self.steps:
            raise InputError("steps is empty", hint="write steps=[(60,2),(60,8)]: seconds, rate")
        for length_s, _ in self.steps:
            _require_positive("steps", length_s, "a step is (seconds, rate per second)")
        _require_rates("steps", [rate for _, rate in self.steps])

    @property
    def dispersion(self) -> float:
        return _dispersion(self.gaps)

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """Mean rate over the first `duration_s` seconds."""
        ends_s, counts = self._marks()
        rounds, rest_s = divmod(duration_s, ends_s[-1]) if self.repeat else (0.0, duration_s)
        held_s = max(0.0, rest_s - ends_s[-1])
        count = float(np.interp(rest_s, ends_s, counts)) + held_s * self.steps[-1][1]
        return (rounds * counts[-1] + count) / duration_s

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, ever growing."""
        ends_s, counts = self._marks()
        rates = [rate for _, rate in self.steps]

        def moment_s(count: float) -> float:
            rounds, rest = divmod(count, counts[-1]) if self.repeat else (0.0, count)
            # Of a pause its end: from there on the count can grow again.
            step = bisect.bisect_right(counts, rest) - 1
            rate = rates[min(step, len(rates) - 1)]
            within_s = (rest - counts[step]) / rate if rate else math.inf
            return rounds * ends_s[-1] + ends_s[step] + within_s

        return _carried(
            rng, self.gaps, lambda counts: np.array([moment_s(c) for c in counts.tolist()])
        )

    def _marks(self) -> tuple[list[float], list[float]]:
        """Times at which steps begin and end, and the arrivals expected by then."""
        ends_s = list(itertools.accumulate((s for s, _ in self.steps), initial=0.0))
        counts = list(itertools.accumulate((s * rate for s, rate in self.steps), initial=0.0))
        return ends_s, counts


class Ramp(KindOfLaw, frozen=True, tag="ramp"):
    """Change from one rate to another, which then holds.

    Attributes:
        over_s: Duration of the change from one rate to the other.
        shape: `linear` adds the same rate every second, `exponential` multiplies by it.
        gaps: Distribution of arrivals around the rate.
    """

    from_per_s: float
    to_per_s: float
    over_s: float
    shape: Literal["linear", "exponential"] = "linear"
    gaps: Gaps = "poisson"

    def __post_init__(self) -> None:
        _require_positive("over_s", self.over_s, "it is how long the ramp takes")
        for name, rate in (("from_per_s", self.from_per_s), ("to_per_s", self.to_per_s)):
            if self.shape == "exponential":
                _require_positive(name, rate, "an exponential ramp never leaves or reaches 0")
            else:
                _require_rates(name, [rate, 1.0])
        if not self.from_per_s and not self.to_per_s:
            raise InputError("to_per_s and from_per_s are both 0", hint="nothing would arrive")

    @property
    def dispersion(self) -> float:
        return _dispersion(self.gaps)

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """Mean rate over the first `duration_s` seconds."""
        ramped_s = min(duration_s, self.over_s)
        count = self._count(ramped_s) + (duration_s - ramped_s) * self.to_per_s
        return count / duration_s

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, ever growing."""
        top = self._count(self.over_s)

        def moments_s(counts: _Times) -> _Times:
            ramped = self._moments_s(np.minimum(counts, top))
            with np.errstate(divide="ignore", invalid="ignore"):
                held = self.over_s + (counts - top) / np.float64(self.to_per_s)
            return np.where(counts <= top, ramped, held)

        return _carried(rng, self.gaps, moments_s)

    def _growth_per_s(self) -> float:
        """Growth of the rate's logarithm, on an exponential ramp."""
        return math.log(self.to_per_s / self.from_per_s) / self.over_s

    def _count(self, by_s: float) -> float:
        """Λ on the ramp: f t + (t' - f) t² / 2T, or f (e^(g t) - 1) / g."""
        first, change = self.from_per_s, self.to_per_s - self.from_per_s
        if self.shape == "linear" or not change:
            return first * by_s + change * by_s * by_s / (2 * self.over_s)
        growth = self._growth_per_s()
        return first * math.expm1(growth * by_s) / growth

    def _moments_s(self, counts: _Times) -> _Times:
        """Times at which Λ reaches `counts`."""
        first, change = self.from_per_s, self.to_per_s - self.from_per_s
        if self.shape == "linear" or not change:
            root = np.sqrt(np.maximum(0.0, first * first + 2 * counts * change / self.over_s))
            # The quadratic's solution in the form that loses no digits where change is small.
            return 2 * counts / np.maximum(first + root, np.finfo(float).tiny)
        growth = self._growth_per_s()
        moments: _Times = np.log1p(counts * growth / first) / growth
        return moments


class Sine(KindOfLaw, frozen=True, tag="sine"):
    """A rate that swings around a mean, as days do: mean + amplitude sin(2π (t + phase) / period).

    Attributes:
        amplitude_per_s: Amplitude of the rate, at most the mean.
        period_s: Period; 86,400 is a day.
        phase_s: Position in the period at which the run begins: 0 at the mean and rising, three
            quarters of the period at the minimum.
        gaps: Distribution of arrivals around the rate.
    """

    mean_per_s: float
    amplitude_per_s: float
    period_s: float
    phase_s: float = 0.0
    gaps: Gaps = "poisson"

    def __post_init__(self) -> None:
        _require_positive("mean_per_s", self.mean_per_s, "it is a rate of requests")
        _require_positive("period_s", self.period_s, "86400 is a day")
        if not 0 <= self.amplitude_per_s <= self.mean_per_s:
            raise InputError(
                f"amplitude_per_s must be from 0 to the mean, got {self.amplitude_per_s:g}",
                hint=f"no rate is below 0: at most {self.mean_per_s:g}",
            )
        if not math.isfinite(self.phase_s):
            raise InputError(f"phase_s must be a number of seconds, got {self.phase_s}")

    @property
    def dispersion(self) -> float:
        return _dispersion(self.gaps)

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """Mean rate over the first `duration_s` seconds, which need not be whole periods."""
        return float(self._counts(np.float64(duration_s))) / duration_s

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, without end.

        Λ has no inverse in closed form. It never leaves mean · t by more than twice the
        swing, so each time is halved out of that bracket, down to the last bit.
        """
        around = 2 * self._swing() / self.mean_per_s

        def moments_s(counts: _Times) -> _Times:
            low = np.maximum(0.0, counts / self.mean_per_s - around)
            high = counts / self.mean_per_s + around
            for _ in range(64):
                middle = (low + high) / 2
                below = self._counts(middle) < counts
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            return high

        return _carried(rng, self.gaps, moments_s)

    def _swing(self) -> float:
        """Largest distance of Λ from its mean line: amplitude · period / 2π."""
        return self.amplitude_per_s * self.period_s / (2 * math.pi)

    def _counts(self, by_s: _Times | np.float64) -> _Times:
        turn = 2 * math.pi / self.period_s
        begin = math.cos(turn * self.phase_s)
        swung = begin - np.cos(turn * (np.asarray(by_s) + self.phase_s))
        counts: _Times = self.mean_per_s * np.asarray(by_s) + self._swing() * swung
        return counts


class Scheduled(KindOfLaw, frozen=True, tag="scheduled"):
    """Times that were seen, such as a trace's; they end.

    Attributes:
        times_s: Arrival times from the start of the run, never falling.
        time_scale: Factor on all times: 0.5 is twice the load, 2 half of it.
    """

    times_s: tuple[float, ...]
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        _require_positive("time_scale", self.time_scale, "0.5 replays twice as fast")
        times_s = np.asarray(self.times_s, dtype=float)
        if times_s.size and not (
            np.isfinite(times_s).all() and times_s[0] >= 0 and (np.diff(times_s) >= 0).all()
        ):
            raise InputError("times_s must be seconds from 0 on that never fall", hint="sort them")

    @property
    def dispersion(self) -> float:
        return 0.0

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """Mean rate over the first `duration_s` seconds."""
        return bisect.bisect_right(self.times_s, duration_s / self.time_scale) / duration_s

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run."""
        if self.time_scale == 1.0:
            return iter(self.times_s)
        return (time_s * self.time_scale for time_s in self.times_s)


class Modulated(KindOfLaw, frozen=True, tag="modulated"):
    """Steps of a rate (a day), a factor on it that jumps at random (bursts), and a law of gaps.

    The rate at a time is that of its step times the factor of the present state. Gaps of mean one
    are drawn and carried through the integral of this rate, so that each of the three is exact:
    gaps are closer where the rate is higher. `workloads fit` finds all three in a log.

    Attributes:
        steps: Steps of (seconds, rate per second); a rate of 0 is a pause.
        repeat: Whether the steps begin anew after the last; otherwise that one holds.
        factors: Factor on the rate in each state; their mean over time is one, or the rate is
            another than the steps'.
        dwell_s: Mean time in each state; times are exponential.
        jumps: Chance of each state to be followed by each; equal chances where not given.
        burstiness: Shape of gamma gaps, as in `Gamma`.
        gap_points: Table of quantiles (probability, gap over the mean gap), instead.
    """

    steps: tuple[tuple[float, float], ...]
    repeat: bool = True
    factors: tuple[float, ...] = (1.0,)
    dwell_s: tuple[float, ...] = ()
    jumps: tuple[tuple[float, ...], ...] = ()
    burstiness: float = 1.0
    gap_points: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        self._profile()
        _require_positive("burstiness", self.burstiness, "1 is Poisson, less comes in bursts")
        _require_rates("factors", self.factors)
        states = len(self.factors)
        if len(self.dwell_s) != (states if states > 1 else 0):
            raise InputError(
                f"dwell_s has {len(self.dwell_s)} times for {states} factors",
                hint="each of two states or more has one factor and one mean dwell time",
            )
        for dwell_s in self.dwell_s:
            _require_positive("dwell_s", dwell_s, "it is the mean time in a state")
        rows = [len(row) == states and all(each >= 0 for each in row) for row in self.jumps]
        if self.jumps and not (len(rows) == states and all(rows)):
            raise InputError(
                f"jumps is no table of {states} rows of {states} chances",
                hint="row i has the chances of what follows state i; leave it out for equal ones",
            )
        for state, row in enumerate(self.jumps):
            if sum(row) - row[state] <= 0:
                raise InputError(f"jumps: state {state} is followed by none", hint="give a chance")
        self._require_gaps()

    def _require_gaps(self) -> None:
        if not self.gap_points:
            return
        probability, gaps = zip(*self.gap_points, strict=True)
        rising = all(a < b for a, b in itertools.pairwise(probability))
        whole = (probability[0], probability[-1]) == (0, 1)
        if not (rising and whole and sorted(gaps) == list(gaps) and gaps[0] >= 0 and gaps[-1] > 0):
            raise InputError(
                "gap_points go from probability 0 to 1, and their gaps do not fall",
                hint="write gap_points=[(0,0),(0.5,0.7),(1,6)]: probability, gap over the mean",
            )

    @property
    def dispersion(self) -> float:
        """Variance over mean of counts in long windows, of the bursts and the gaps."""
        if self.gap_points:
            probability, gaps = np.array(self.gap_points).T
            widths, low, high = np.diff(probability), gaps[:-1], gaps[1:]
            mean = float(np.sum(widths * (low + high) / 2))
            square = float(np.sum(widths * (low * low + low * high + high * high) / 3))
            of_gaps = square / mean**2 - 1
        else:
            of_gaps = 1 / self.burstiness
        if len(self.factors) == 1:
            return of_gaps
        mean_rate = sum(s * r for s, r in self.steps) / sum(s for s, _ in self.steps)
        rates = np.asarray(self.factors) * mean_rate
        generator, shares = self._chain()
        stationary = np.tile(shares, (len(shares), 1))
        deviation = np.linalg.inv(stationary - generator) - stationary
        return of_gaps + float(2 * (shares * rates) @ (deviation @ rates) / (shares @ rates))

    def mean_rate_per_s(self, duration_s: float) -> float | None:
        """Mean rate over the first `duration_s` seconds."""
        shares = self._chain()[1] if self.dwell_s else np.ones(1)
        rate = self._profile().mean_rate_per_s(duration_s)
        return None if rate is None else rate * float(shares @ np.asarray(self.factors))

    def offsets_s(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield due times in seconds from the start of the run, ever growing."""
        spans = self._spans(rng)
        begins_s, ends_s, rate = next(spans)
        done = 0.0  # expected count at begins_s
        count = 0.0
        while True:
            for gap in self._gaps(rng).tolist():
                count += gap
                while done + _expected(begins_s, ends_s, rate) < count:
                    if ends_s == math.inf:  # the rate is 0 for good
                        return
                    done += _expected(begins_s, ends_s, rate)
                    begins_s, ends_s, rate = next(spans)
                yield begins_s + (count - done) / rate

    def _gaps(self, rng: np.random.Generator) -> _Times:
        """A block of gaps whose mean is one."""
        if not self.gap_points:
            return rng.gamma(self.burstiness, 1 / self.burstiness, _BLOCK)
        probability, gaps = np.array(self.gap_points).T
        mean = float(np.sum(np.diff(probability) * (gaps[:-1] + gaps[1:]) / 2))
        drawn: _Times = np.interp(rng.random(_BLOCK), probability, gaps) / mean
        return drawn

    def _profile(self) -> Piecewise:
        return Piecewise(self.steps, repeat=self.repeat)

    def _chain(self) -> tuple[_Times, _Times]:
        """Generator of the states' chain, and the share of time of each state."""
        states = len(self.factors)
        chances = np.array(self.jumps) if self.jumps else np.ones((states, states))
        np.fill_diagonal(chances, 0.0)
        chances = chances / chances.sum(axis=1, keepdims=True)
        generator: _Times = (chances - np.eye(states)) / np.asarray(self.dwell_s)[:, None]
        balance = np.vstack([generator.T, np.ones(states)])
        shares = np.linalg.lstsq(balance, np.append(np.zeros(states), 1.0), rcond=None)[0]
        return generator, np.maximum(shares, 0.0) / np.maximum(shares, 0.0).sum()

    def _spans(self, rng: np.random.Generator) -> Iterator[tuple[float, float, float]]:
        """Stretches of one rate: begin and end in seconds, and the rate; the last has no end."""
        steps = self._step_ends()
        step_end_s, step_rate = next(steps)
        if not self.dwell_s:
            begins_s = 0.0
            while True:
                yield begins_s, step_end_s, step_rate * self.factors[0]
                begins_s = step_end_s
                step_end_s, step_rate = next(steps)
        generator, shares = self._chain()
        leaving = np.maximum(generator, 0.0)
        chances = leaving / leaving.sum(axis=1, keepdims=True)
        state, begins_s = int(rng.choice(len(shares), p=shares)), 0.0
        state_end_s = float(rng.exponential(self.dwell_s[state]))
        while True:
            ends_s = min(step_end_s, state_end_s)
            yield begins_s, ends_s, step_rate * self.factors[state]
            begins_s = ends_s
            if ends_s == state_end_s:
                state = int(rng.choice(len(shares), p=chances[state]))
                state_end_s = ends_s + float(rng.exponential(self.dwell_s[state]))
            else:
                step_end_s, step_rate = next(steps)

    def _step_ends(self) -> Iterator[tuple[float, float]]:
        """Ends of the steps and their rates; the last step that holds has no end."""
        end_s = 0.0
        while True:
            for number, (length_s, rate) in enumerate(self.steps, start=1):
                end_s += length_s
                if number == len(self.steps) and not self.repeat:
                    yield math.inf, rate
                    return
                yield end_s, rate


Arrivals = (
    AllAtOnce
    | Constant
    | Poisson
    | Gamma
    | MarkovBursts
    | Piecewise
    | Ramp
    | Sine
    | Scheduled
    | Modulated
)

#: Every law by its `kind`.
LAWS: Kinds[Arrivals] = {
    "all_at_once": AllAtOnce,
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "mmpp": MarkovBursts,
    "piecewise": Piecewise,
    "ramp": Ramp,
    "sine": Sine,
    "scheduled": Scheduled,
    "modulated": Modulated,
}


#: Laws that one rate does not describe, each as a user may begin with it.
_WRITTEN_OUT: Mapping[str, str] = {
    "all_at_once": "kind=all_at_once",
    "mmpp": "kind=mmpp,rates_per_s=[2,40],dwell_s=[30,5]",
    "piecewise": "kind=piecewise,steps=[(60,2),(30,8)]",
    "ramp": "kind=ramp,from_per_s=1,to_per_s=20,over_s=120",
    "sine": "kind=sine,mean_per_s=4,amplitude_per_s=2,period_s=300",
    "scheduled": "kind=scheduled,times_s=[0,0.5,2]",
    "modulated": "kind=modulated,steps=[(60,2),(30,8)],factors=[0.5,3],dwell_s=[20,5]",
}


def parse_arrivals(text: str, *, defaults: Mapping[str, object] | None = None) -> Arrivals:
    """Law of arrivals that a line of text names; see `grammar.law_of_text`.

    Example:
        >>> parse_arrivals("kind=gamma,rate_per_s=4,burstiness=0.5")
        Gamma(rate_per_s=4.0, burstiness=0.5)
    """
    law: Arrivals = law_of_text(text, LAWS, "arrivals", defaults=defaults)
    return law


def arrivals_of(table: Mapping[str, object]) -> Arrivals:
    """Law of arrivals that a table of TOML or JSON describes; see `grammar.law_of`."""
    law: Arrivals = law_of(table, LAWS, "arrivals")
    return law


def format_arrivals(law: Arrivals) -> str:
    """Line of text that `parse_arrivals` reads as this law; default values are left out.

    Example:
        >>> format_arrivals(parse_arrivals("kind=piecewise,steps=[(60,2),(30,8)]"))
        'kind=piecewise,steps=[[60,2],[30,8]]'
    """
    return format_law(law)


def arrivals_from(rate_per_s: float | None, law: str | None) -> Arrivals:
    """Law of arrivals by a rate, by the name of a law that the rate completes, or in full.

    Args:
        rate_per_s: Requests per second; `None` or infinity leaves it open.
        law: `poisson`, `constant`, `gamma`, or any law as `parse_arrivals` reads it.

    Raises:
        InputError: The two contradict each other, or the law needs what neither gives.

    Example:
        >>> arrivals_from(4.0, "constant")
        Constant(rate_per_s=4.0)
    """
    rate = None if rate_per_s is None or math.isinf(rate_per_s) else float(rate_per_s)
    if law is None:
        return AllAtOnce() if rate is None else Poisson(rate)
    if "=" in law:
        read = parse_arrivals(law, defaults={} if rate is None else {"rate_per_s": rate})
        if rate is not None and getattr(read, "rate_per_s", None) != rate:
            raise InputError(
                f"the rate of {rate:g} requests/s contradicts the arrivals {law}",
                hint="leave the rate out",
            )
        return read
    by_rate = [name for name in LAWS if name not in _WRITTEN_OUT]
    if law in _WRITTEN_OUT:
        raise InputError(
            f"{law} arrivals need more than a name",
            hint=f"write them out, such as {_WRITTEN_OUT[law]} (docs/guides/arrivals.md)",
        )
    if law not in LAWS:
        raise UnknownName("kind of arrivals", law, (*by_rate, *_WRITTEN_OUT))
    if rate is None:
        raise InputError(f"{law} arrivals need a rate", hint="give requests per second as well")
    return arrivals_of({"kind": law, "rate_per_s": rate})


def _carried(
    rng: np.random.Generator, gaps: Gaps, moments_s: Callable[[_Times], _Times]
) -> Iterator[float]:
    """Arrivals of rate one, carried to the moments when as many are expected.

    They end where no moment is left, because the rate has gone down to 0 for good. Blocks
    grow from small ones, so that a short run does not pay for a long one.
    """
    done, size = 0.0, 64
    while True:
        if gaps == "even":
            counts = done + np.arange(size, dtype=float)
            done += size
        else:
            drawn = rng.exponential(size=size)
            drawn[0] += done
            counts = np.cumsum(drawn)
            done = float(counts[-1])
        for due_s in moments_s(counts).tolist():
            if due_s == math.inf:
                return
            yield due_s
        size = min(2 * size, _BLOCK)


def _dispersion(gaps: Gaps) -> float:
    return 1.0 if gaps == "poisson" else 0.0


def _require_rate(rate_per_s: float) -> None:
    if not (np.isfinite(rate_per_s) and rate_per_s > 0):
        raise InputError(
            f"rate_per_s must be positive, got {rate_per_s}",
            hint="requests that are all sent at once, or as answers come, need no rate",
        )
    if not _LEAST_RATE <= rate_per_s <= _MOST_RATE:
        raise InputError(
            f"rate_per_s is {rate_per_s:g}, no rate that a run can have",
            hint=f"from {_LEAST_RATE:g} (a request in twelve days) to {_MOST_RATE:g} per second",
        )


def _require_positive(name: str, value: float, why: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be positive, got {value:g}", hint=why)


def _require_rates(name: str, rates: tuple[float, ...] | list[float]) -> None:
    for rate in rates:
        if not (math.isfinite(rate) and rate >= 0):
            raise InputError(f"{name} has a rate of {rate:g}", hint="a rate is 0 or more a second")
    if not any(rates):
        raise InputError(f"{name} has no rate above 0", hint="nothing would arrive")


def _expected(begins_s: float, ends_s: float, rate: float) -> float:
    """Arrivals expected in a stretch of one rate, which may have no end."""
    return (ends_s - begins_s) * rate if rate else 0.0
