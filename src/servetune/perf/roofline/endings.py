"""End of a run, when no request comes any more: the longest answers run alone.

Answers that began evenly over a stretch of L decode steps, d of them a step, are still in progress
r steps after its end if they are longer than the time since they began: d (M(r) - M(r + L)) of
them, where M(x) is the mean of what answers have beyond x steps.
"""

from __future__ import annotations

import numpy as np

from servetune.perf.roofline.runs import Runs, RunTimes
from servetune.perf.roofline.steady_state import ANSWER_SHARES
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Number in progress at which the last one ends, about: exactly, of an exponential law.
LAST = 0.56
#: Halvings by which the end is found.
_ROUNDS = 14
#: Parts of the end at which those in progress are counted, and their weights (Boole's rule).
_PARTS, _WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0), (7 / 90, 32 / 90, 12 / 90, 32 / 90, 7 / 90)


def over_the_run(runs: Runs, laws: StepLaws, found: RunTimes) -> Array:
    """Requests over the time from the first request to the end of the last answer, one copy's.

    That of runs whose answers differ; `RunTimes.requests_per_s` of all others. Where users begin
    together fewer answers end in the first generation than in others: by half of one less the
    square of their coefficient of variation, as in any renewal process from its start.
    """
    steady = found.requests_per_s
    rest = ~runs.equal & ~runs.at_once & (runs.answer_steps > 0)
    if not rest.any():
        return steady
    open_ended = runs.at_a_rate & ~runs.capped
    mean = np.maximum(1.0, runs.answer_steps)
    placed = runs.placed(laws.c)
    tau_s = found.tpot_s * runs.gained
    answer_s = runs.answer_steps * tau_s
    varied = np.minimum(1.0, runs.varied * (answer_s / found.e2e_s) ** 2)
    following = np.maximum(0.0, runs.requests - placed)
    # Who has a place waits for nobody, but where all began at once.
    single = ~open_ended & (following <= 0)
    alone_s = runs.request_s(laws) + runs.prompts_s(laws, np.ones_like(mean))
    first_s = np.where(single, found.ttft_s, np.minimum(found.ttft_s, alone_s))
    until_s = (following + np.where(single, 0.0, (1 - varied) / 2 * placed)) / steady
    plain_s = runs.decode_s(laws, np.maximum(1.0, found.running))
    # Open loops end so long after the last request came that a mean answer has ended.
    most = np.minimum(runs.most_placed(laws.c), runs.decoding_beside(laws.c))
    coming = np.minimum(runs.rate_per_s * tau_s, most / mean)
    density = np.where(open_ended, coming, placed / np.where(single, 1.0, mean))
    came = runs.requests / np.maximum(1e-9, runs.rate_per_s) / np.maximum(1e-9, tau_s)
    stretch = np.where(open_ended, came, np.where(single, 1.0, np.inf))
    end_s = _end_s(runs, laws, density, stretch, plain_s)
    open_s = runs.requests / steady + np.maximum(0.0, end_s - runs.answer_steps * plain_s)
    whole_s = np.where(open_ended, open_s, until_s + first_s + end_s)
    return np.where(rest, np.minimum(steady, runs.requests / whole_s), steady)


def longest(answers: Array, count: Array) -> Array:
    """Longest of so many answers, about, and no less than their mean; shape (R,).

    Args:
        answers: Steps of each of `ANSWER_SHARES`, shape (R, J); the tail goes on as it was.
        count: Number of answers, shape (R,).
    """
    shares = np.array(ANSWER_SHARES)
    rare = -np.log(1 - np.cumsum(shares) + shares / 2)
    wanted = -np.log(LAST / np.maximum(1.0, count))
    found = _on_lines(wanted, rare, answers)
    slope = (answers[:, -1] - answers[:, -2]) / (rare[-1] - rare[-2])
    found = found + slope * np.maximum(0.0, wanted - rare[-1])
    return np.asarray(np.maximum(found, answers @ shares))


def _on_lines(at: Array, known: Array, values: Array) -> Array:
    """Values of R lines, one place on each: as `np.interp` of every line has them.

    Args:
        at: Place on each line, shape (R,).
        known: Rising places where all lines are known, shape (J,).
        values: Values there, shape (R, J).
    """
    below = np.clip(np.searchsorted(known, at, side="right") - 1, 0, len(known) - 2)
    rows = np.arange(len(values))
    low, high = values[rows, below], values[rows, below + 1]
    slopes = (high - low) / (known[below + 1] - known[below])
    found = slopes * np.maximum(0.0, at - known[below]) + low
    return np.where(at < known[-1], found, values[:, -1])


def _end_s(runs: Runs, laws: StepLaws, density: Array, stretch: Array, plain_s: Array) -> Array:
    """Seconds from the last beginning to the last end, shape (R,).

    Args:
        density: Answers that begin in a decode step, d.
        stretch: Decode steps in which they began, L; infinite in a steady state.
        plain_s: A step without prompts when the last one begins.
    """
    answers, steady = runs.answers, bool(np.isinf(stretch).all())

    def beyond(steps: Array) -> Array:
        return np.asarray(np.maximum(0.0, answers - steps[:, None]) @ np.array(ANSWER_SHARES))

    def left(steps: Array) -> Array:
        if steady:  # answers of any age: none is left out
            return density * beyond(steps)
        later = beyond(np.minimum(steps + stretch, answers[:, -1]))
        return density * (beyond(steps) - later)

    low, high = np.zeros_like(density), answers[:, -1]
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        more = left(middle) > LAST
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    # Where all began at once there is no stretch to look back on.
    end = np.where(stretch > 1, (low + high) / 2, longest(answers, density))
    first = np.maximum(LAST, left(np.zeros_like(end)))
    running = np.zeros_like(end)
    for part, weight in zip(_PARTS, _WEIGHTS, strict=True):
        running = running + weight * np.minimum(1.0, left(part * end) / first)
    alone_s = runs.decode_s(laws, np.ones_like(density))
    return np.asarray(end * (alone_s + running * np.maximum(0.0, plain_s - alone_s)))
