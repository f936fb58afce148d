"""Law of arrivals of recorded times: steps of the rate, bursts, and gaps.

Three questions are answered one after another. Does the rate move slowly (a day, a ramp)? The
recorded span is divided where a change of rate explains more than the counts' own noise. Is what
is left burstier than its gaps alone? Laws of gaps and hidden states of the rate are fitted, and
the law whose counts vary most like the log's, at every scale from single gaps to a thirtieth of
the log, is taken. The simplest kind of `arrivals` that says it is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from servetune.workload.arrivals import (
    Arrivals,
    Constant,
    Gamma,
    MarkovBursts,
    Modulated,
    Piecewise,
    Poisson,
)

Times = NDArray[np.float64]

#: Arrivals below which only a mean rate is found, and a law of gaps, and bursts.
_LEAST_GAPS, _LEAST_BURSTS = 50, 500
#: Most steps of a rate, and bins from which they are found.
_MOST_STEPS, _MOST_BINS = 48, 288
#: Price of a change of rate, in logarithms of the bins: where bursts are to explain the rest, and
#: where they do not; and the misfit that the cheaper ones must remove.
_PRICE, _LOW_PRICE, _LOW_PRICE_GAIN = 4.0, 1.5, 0.05
#: Bins of the widest window whose changes of count are noise, where there are 48 such windows.
_WIDEST = _MOST_BINS // 48
#: Arrivals that a bin has at least.
_BIN_ARRIVALS = 20
#: Bins of counts that hidden states are fitted to, and rounds of that fit.
_STATE_BINS, _ROUNDS = 20_000, 40
#: Scales of counts at which laws are compared, simulations of each law, and samples of the law
#: without bursts, from which the log must stand out.
_SCALES, _SIMULATIONS, _SAMPLES = 10, 4, 20
#: Misfit that a further state must remove, in logarithms of the variance of counts.
_STATE_COST = 0.05
#: Distance of distribution functions below which gaps are gamma.
_SAME_GAPS = 0.015


class FittedArrivals(msgspec.Struct, frozen=True):
    """Law of arrivals, and findings as sentences."""

    law: Arrivals
    found: tuple[str, ...] = ()


def fit_arrivals(times_s: Sequence[float]) -> FittedArrivals:
    """Law of arrivals of recorded times.

    Args:
        times_s: Times in seconds on any clock, never falling; two or more, not all equal.
    """
    times = np.asarray(times_s, dtype=float)
    rng = np.random.default_rng(0)
    count, span_s = len(times), float(times[-1] - times[0])
    rate = (count - 1) / span_s
    times, found = _spread(times, rate, rng)
    times = times - times[0]
    if count < _LEAST_GAPS:
        return FittedArrivals(
            Poisson(_short(rate)), (*found, f"{count:,} starts tell a mean rate and no more")
        )
    steps = _steps(times, span_s, _PRICE)
    profile = Piecewise(steps, repeat=True)
    clock = _expected_counts(profile, times)
    if np.diff(clock).std() < 0.01 * np.diff(clock).mean():
        law: Arrivals = (
            Constant(_short(rate))
            if len(steps) == 1
            else Piecewise(steps, repeat=True, gaps="even")
        )
        return FittedArrivals(law, (*found, *_moves(steps), "gaps are equal"))
    best = _best_law(profile, times)
    if len(best.factors) > 1:
        best = _with_more_steps(best, times)
    found += _moves(best.steps)
    if len(best.factors) > 1:
        found.append(
            f"{len(best.factors)} states of the rate, which last "
            f"{min(best.dwell_s):.3g} to {max(best.dwell_s):.3g} s"
        )
    return FittedArrivals(_simplest(best), tuple(found))


def _moves(steps: Sequence[tuple[float, float]]) -> list[str]:
    return [f"the rate moves: {len(steps)} steps, which repeat"] if len(steps) > 1 else []


def _best_law(profile: Piecewise, times: Times) -> Modulated:
    """Law on these steps whose counts vary most like the log's."""
    clock = _expected_counts(profile, times)
    gaps = _gap_law(profile, clock)
    if len(times) < _LEAST_BURSTS or _explained(gaps, profile, clock):
        return gaps
    laws = [gaps, *_burst_laws(profile, times)]
    best = min(laws, key=lambda law: _misfit(law, profile, clock))
    if len(best.factors) == 1:
        return best
    wider = _with_spread(best, profile, clock)
    return min((best, wider), key=lambda law: _misfit(law, profile, clock))


def _with_more_steps(best: Modulated, times: Times) -> Modulated:
    """The law, or one on steps of a lower price, where the counts vary more like the log's.

    Steps and bursts together hide each other: bursts are noise in which steps of a usual price are
    not seen, and hidden states that take the steps' place last too short.
    """
    span_s = float(times[-1])
    rate = (len(times) - 1) / span_s
    flat, clock = Piecewise(((span_s, rate),), repeat=True), times * rate
    misfit = _misfit(best, flat, clock)
    tried = {best.steps}
    for widest in (_WIDEST, 1):
        steps = _steps(times, span_s, _LOW_PRICE, widest)
        if misfit <= _LOW_PRICE_GAIN or steps in tried:
            continue
        tried.add(steps)
        other = _best_law(Piecewise(steps, repeat=True), times)
        left = _misfit(other, flat, clock)
        if misfit - left > _LOW_PRICE_GAIN:
            best, misfit = other, left
    return best


def _spread(times: Times, rate: float, rng: np.random.Generator) -> tuple[Times, list[str]]:
    """Times that are whole seconds (or coarser) beside gaps of that size, spread within them."""
    for unit_s in (60.0, 1.0, 0.1, 0.01):
        whole = np.abs(times - np.rint(times / unit_s) * unit_s).max() < 1e-5
        # As many have the time of the one before as a unit of that size makes equal.
        if whole and np.mean(np.diff(times) < 1e-5) > max(0.3 * min(1.0, unit_s * rate), 0.005):
            spread = np.sort(times + rng.random(len(times)) * unit_s)
            return spread, [f"times are to {unit_s:g} s: arrivals are spread within"]
    return times, []


def _short(value: float) -> float:
    """Value to four digits, as a file has it."""
    return float(f"{value:.4g}")


# Steps of the rate


def _steps(
    times: Times, span_s: float, price: float, widest: int = _WIDEST
) -> tuple[tuple[float, float], ...]:
    """Steps of (seconds, rate): a change is taken where it explains more than noise and price.

    Args:
        times: Arrivals, from 0.
        span_s: Time of the last.
        price: Price of a change, in logarithms of the bins.
        widest: Bins of the widest window in which what changes to the next is noise.
    """
    count = len(times)
    bins = min(_MOST_BINS, count // _BIN_ARRIVALS)
    alone = ((_short(span_s), _short((count - 1) / span_s)),)
    if bins < 4:
        return alone
    counts = np.histogram(times, bins, (0.0, span_s))[0].astype(float)
    ends = _divided(counts, _noise(counts, widest), price * math.log(bins))
    if len(ends) == 1:
        return alone
    width_s = span_s / bins
    begins = [0, *ends[:-1]]
    return tuple(
        (_short((end - begin) * width_s), _short(counts[begin:end].sum() / (end - begin) / width_s))
        for begin, end in zip(begins, ends, strict=True)
    )


def _noise(counts: Times, widest: int) -> float:
    """Variance over mean of counts from one bin to the next: the largest over widths of bins.

    Bursts that last longer than a bin show at a larger width; a slow rate hardly changes from
    one bin to the next. It is one at least, that of Poisson's: smoother arrivals are no reason to
    find more steps.
    """
    largest, merged, width = 1.0, counts, 1
    while width <= widest and (len(merged) >= 48 or width == 1):
        steps = np.diff(merged)
        largest = max(largest, float((steps**2).mean() / (2 * merged.mean())))
        half = len(merged) // 2
        merged = merged[: 2 * half].reshape(half, 2).sum(axis=1)
        width *= 2
    return largest


def _divided(counts: Times, noise: float, price: float) -> list[int]:
    """Ends of the segments whose rates explain the counts, each change paid for."""
    bins = len(counts)
    total = np.concatenate([[0.0], np.cumsum(counts)])
    best = np.zeros(bins + 1)
    best[0], before = -price, [0] * (bins + 1)
    for end in range(1, bins + 1):
        begins = np.arange(end)
        inside = total[end] - total[begins]
        rates = np.maximum(inside, 1e-9) / (end - begins)
        costs = best[begins] - 2 * inside * np.log(rates) / noise + price
        before[end] = int(np.argmin(costs))
        best[end] = costs[before[end]]
    ends = [bins]
    while before[ends[-1]]:
        ends.append(before[ends[-1]])
    ends.reverse()
    while len(ends) > _MOST_STEPS:  # the shortest goes to the one after it
        lengths = np.diff([0, *ends])
        del ends[min(int(np.argmin(lengths[:-1])), len(ends) - 2)]
    return ends


def _expected_counts(profile: Piecewise, times: Times) -> Times:
    """Arrivals that the steps expect by each time: a clock on which the rate is one."""
    ends_s = list(itertools.accumulate((s for s, _ in profile.steps), initial=0.0))
    counts = list(itertools.accumulate((s * r for s, r in profile.steps), initial=0.0))
    expected: Times = np.interp(times, ends_s, counts)
    return expected


# Gaps


def _gap_law(profile: Piecewise, clock: Times) -> Modulated:
    """Law without bursts: gamma gaps where they are, else a table of the gaps."""
    gaps = np.diff(clock)
    gaps = gaps / gaps.mean()
    shape = _gamma_shape(gaps)
    drawn = np.sort(np.random.default_rng(1).gamma(shape, 1 / shape, 20_000))
    own = np.sort(gaps)
    shares = (np.arange(len(own)) + 0.5) / len(own)
    distance = float(np.abs(np.searchsorted(drawn, own) / len(drawn) - shares).max())
    chance = 1.3 / math.sqrt(len(gaps))  # what a sample differs from its own law
    if distance <= max(_SAME_GAPS, chance):
        close = abs(shape - 1) < 3 / math.sqrt(len(gaps))
        return Modulated(steps=profile.steps, burstiness=1.0 if close else _short(shape))
    at = np.concatenate([np.linspace(0, 0.9, 31), [0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1]])
    values = np.quantile(gaps, at)
    return Modulated(
        steps=profile.steps,
        gap_points=tuple((_short(p), _short(max(0.0, g))) for p, g in zip(at, values, strict=True)),
    )


def _gamma_shape(gaps: Times) -> float:
    """Shape of gamma gaps of mean one, by maximum likelihood (Minka, 2002)."""
    logs = math.log(gaps.mean()) - float(np.log(np.maximum(gaps, 1e-9)).mean())
    if logs <= 1e-6:
        return 1e4
    shape = (3 - logs + math.sqrt((logs - 3) ** 2 + 24 * logs)) / (12 * logs)
    return min(max(shape, 0.02), 1e4)


# Bursts


def _burst_laws(profile: Piecewise, times: Times) -> list[Modulated]:
    """Laws of two to four states of the rate, fitted to counts."""
    found = []
    bins = min(_STATE_BINS, len(times))
    width_s = float(times[-1]) / bins
    edges = np.linspace(0, float(times[-1]), bins + 1)
    counts = np.histogram(times, edges)[0]
    expected = np.maximum(np.diff(_expected_counts(profile, edges)), 1e-6)
    for states in (2, 3, 4):
        factors, chances = _hidden_states(counts, expected, states)
        law = _states_law(profile, factors, chances, width_s)
        if law is not None:
            found.append(law)
    return found


def _hidden_states(counts: NDArray[np.int64], expected: Times, states: int) -> tuple[Times, Times]:
    """Factors on the expected counts, and chances from state to state (Baum and Welch, 1970)."""
    ratio = counts / expected
    factors = np.quantile(_smoothed(ratio), (np.arange(states) + 0.5) / states)
    factors = np.maximum(factors, 0.02) * np.linspace(0.7, 1.5, states)
    chances = np.full((states, states), 0.05 / (states - 1))
    np.fill_diagonal(chances, 0.95)
    logs_of_counts = np.array([math.lgamma(n + 1) for n in range(int(counts.max()) + 1)])[counts]
    start = np.full(states, 1 / states)
    for _ in range(_ROUNDS):
        rates = factors[None, :] * expected[:, None]
        logs = counts[:, None] * np.log(np.maximum(rates, 1e-12)) - rates - logs_of_counts[:, None]
        likely = np.exp(logs - logs.max(axis=1, keepdims=True)) + 1e-300
        forward = _chain(chances, likely, start)
        # Backwards, what a bin says comes before the move into it.
        later = _chain(chances.T, likely[::-1], np.ones(states))[::-1]
        held = forward * (later / likely)  # each factor is as small as floats go
        held /= held.sum(axis=1, keepdims=True)
        moved = forward[:-1, :, None] * chances[None] * later[1:, None, :]
        moved /= moved.sum(axis=(1, 2), keepdims=True)
        chances = moved.sum(axis=0)
        chances = np.maximum(chances / chances.sum(axis=1, keepdims=True), 1e-9)
        chances /= chances.sum(axis=1, keepdims=True)
        before = factors
        factors = np.maximum((held * counts[:, None]).sum(0) / (held * expected[:, None]).sum(0), 0)
        start = held[0]
        if np.abs(factors - before).max() < 1e-4 * factors.max():
            break
    order = np.argsort(factors)
    return factors[order], chances[np.ix_(order, order)]


def _chain(chances: Times, likely: Times, start: Times) -> Times:
    """Rows of sum one: start * likely[0], then each the one before it @ chances * likely[i].

    Stretches of the chain are multiplied side by side, from each state in which they may begin, and
    then each from the row in which the one before it ends.
    """
    count, states = len(likely) - 1, likely.shape[1]
    length = math.isqrt(count) + 1
    padded = np.ones((length * (count // length + 1), states))
    padded[:count] = likely[1:]
    bins = padded.reshape(-1, length, states).transpose(1, 0, 2)
    moves = np.broadcast_to(np.eye(states), (bins.shape[1], states, states))
    for each in bins:
        moves = (moves @ chances) * each[:, None, :]
        moves = moves / moves.sum(axis=(1, 2), keepdims=True)
    row = start * likely[0]
    begins = [row / row.sum()]
    for move in moves[:-1]:
        row = begins[-1] @ move
        begins.append(row / row.sum())
    rows, ends = [], np.array(begins)
    for each in bins:
        ends = (ends @ chances) * each
        ends = ends / ends.sum(axis=1, keepdims=True)
        rows.append(ends)
    whole = np.array(rows).transpose(1, 0, 2).reshape(-1, states)[:count]
    return np.concatenate([begins[0][None], whole])


def _smoothed(ratio: Times) -> Times:
    """Mean of five neighbours, so that quantiles are of rates rather than of single counts."""
    smooth: Times = np.convolve(ratio, np.ones(5) / 5, mode="same")
    return smooth


def _states_law(
    profile: Piecewise, factors: Times, chances: Times, width_s: float
) -> Modulated | None:
    """Law in continuous time of chances per bin; `None` where a state is left at once."""
    stays = np.diag(chances)
    if stays.min() < 0.05 or factors.max() <= 0 or factors.max() / max(factors.min(), 1e-9) < 1.05:
        return None
    # A state that is left with chance 1 - p in a bin lasts -width / log p: seen once a bin.
    dwell_s = np.minimum(-width_s / np.log(np.minimum(stays, 1 - 1e-7)), 1e7)
    jumps = chances.copy()
    np.fill_diagonal(jumps, 0.0)
    jumps /= jumps.sum(axis=1, keepdims=True)
    law = Modulated(
        steps=profile.steps,
        factors=tuple(_short(each) for each in factors),
        dwell_s=tuple(_short(each) for each in dwell_s),
        jumps=() if len(factors) == 2 else tuple(tuple(_short(c) for c in row) for row in jumps),
    )
    mean = (law.mean_rate_per_s(profile.steps[0][0]) or 0) / profile.steps[0][1]
    scaled = tuple(_short(each / mean) for each in law.factors)
    return msgspec.structs.replace(law, factors=scaled) if mean > 0 else None


def _with_spread(law: Modulated, profile: Piecewise, clock: Times) -> Modulated:
    """The law, its states as far apart as the variance of the counts beyond Poisson's asks for.

    A bin in which the state changes has a rate in between, so that states fitted to bins lie
    nearer together than those of the traffic. The variance goes with the square of the distance.
    """
    scales = _scales(clock)
    drawn = _drawn_variances(law, profile, len(clock), scales, _SIMULATIONS).mean(axis=0)
    own = _variances(clock, scales)
    seen = (drawn > 1.05) & (own > 1.05)
    if not seen.any():
        return law
    spread = math.sqrt(float(np.median((own[seen] - 1) / (drawn[seen] - 1))))
    factors = tuple(_short(max(0.01, 1 + spread * (each - 1))) for each in law.factors)
    return msgspec.structs.replace(law, factors=factors)


# Which law varies like the log


def _misfit(law: Modulated, profile: Piecewise, clock: Times) -> float:
    """Distance of the log's variances from the law's, and the price of the law's states."""
    scales = _scales(clock)
    drawn = _drawn_variances(law, profile, len(clock), scales, _SIMULATIONS)
    distance = _distance(_variances(clock, scales), drawn.mean(axis=0), scales, len(clock))
    return distance + _STATE_COST * (len(law.factors) - 1)


def _explained(law: Modulated, profile: Piecewise, clock: Times) -> bool:
    """Whether the log is no farther from the law than nineteen of twenty samples of it are.

    Then bursts are chance: states fitted to them make tails longer than those of the traffic.
    """
    scales, count = _scales(clock), len(clock)
    drawn = _drawn_variances(law, profile, count, scales, _SAMPLES)
    whole = drawn.sum(axis=0)
    own = _distance(_variances(clock, scales), whole / _SAMPLES, scales, count)
    samples = sorted(
        _distance(each, (whole - each) / (_SAMPLES - 1), scales, count) for each in drawn
    )
    return own <= samples[-2]


def _drawn_variances(
    law: Modulated, profile: Piecewise, count: int, scales: Times, samples: int
) -> Times:
    """Variances (see `_variances`) of samples of a law, a row for each."""
    return np.array(
        [
            _variances(
                _repeated_clock(
                    profile,
                    np.array(
                        list(itertools.islice(law.offsets_s(np.random.default_rng(seed)), count))
                    ),
                ),
                scales,
            )
            for seed in range(samples)
        ]
    )


def _distance(own: Times, law_s: Times, scales: Times, count: int) -> float:
    """Mean distance of the logarithms of the variance of counts, over scales, and of the gaps'."""
    weights = np.sqrt(count / np.concatenate([[1.0], scales]))
    weights = np.minimum(weights, weights[len(weights) // 2])
    return float(np.average(np.abs(np.log(law_s / own)), weights=weights))


def _repeated_clock(profile: Piecewise, times: Times) -> Times:
    """Expected counts by times that may lie beyond the last step, which begins anew."""
    length_s = sum(s for s, _ in profile.steps)
    whole = sum(s * r for s, r in profile.steps)
    rounds, rest = np.divmod(times, length_s)
    expected: Times = rounds * whole + _expected_counts(profile, rest)
    return expected


def _scales(clock: Times) -> Times:
    """Widths of windows, in expected arrivals: from two to a thirtieth of the log."""
    scales: Times = np.geomspace(2, max(4.0, len(clock) / 30), _SCALES)
    return scales


def _variances(clock: Times, scales: Times) -> Times:
    """Squared variation of the gaps, and variance over mean of counts in windows of each width."""
    gaps = np.diff(clock)
    found = [max(float(gaps.var() / max(gaps.mean(), 1e-9) ** 2), 1e-4)]
    for scale in scales:
        windows = max(2, int((clock[-1] - clock[0]) / scale))
        counts = np.histogram(clock, windows, (clock[0], clock[0] + windows * scale))[0]
        found.append(max(float(counts.var() / max(counts.mean(), 1e-9)), 1e-3))
    return np.array(found)


def _simplest(law: Modulated) -> Arrivals:
    """The plainest law of the same arrivals."""
    alone = len(law.steps) == 1
    rate = law.steps[0][1]
    if law.gap_points:
        return law
    if len(law.factors) == 1:
        if law.burstiness == 1:
            return Poisson(rate) if alone else Piecewise(law.steps, repeat=True)
        return Gamma(rate, law.burstiness) if alone else law
    if alone and len(law.factors) == 2:
        return MarkovBursts(tuple(_short(rate * each) for each in law.factors), law.dwell_s)
    return law
