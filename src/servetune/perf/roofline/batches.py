"""Batches, lists and bursts by formula: all requests come at once.

The requests of a copy flow from those who wait into its places and out of them, in strides of
decode steps. In each, prompts first fill the places that are free, as fast as the budget of a step
allows; then whoever waits takes the place of an answer that ends; answers end that began as many
steps ago as they are long. When nobody waits, the rest runs out to the longest answer.

| symbol | here |
|---|---|
| R | runs, the first axis of every array |
| J | shares of the answers by length (`ANSWER_SHARES`) |
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from servetune.perf.roofline.endings import LAST, longest
from servetune.perf.roofline.runs import FEWEST, Mask, Runs, RunTimes
from servetune.perf.roofline.steady_state import ANSWER_SHARES
from servetune.perf.roofline.step_laws import Array, StepLaws

#: Most strides while anybody waits, and those of a mean answer and of the prompts of a run that
#: has a place for all.
_WAITING, _OF_AN_ANSWER, _OF_THE_PROMPTS = 220, 24, 8
#: Strides from the first answer that ends when nobody waits to the last one, where answers are
#: alike and where they are not.
_ENDING = {True: 8, False: 40}
#: Halvings by which the end of the last answer is found.
_HALVINGS = 12
#: Generations that are computed; more take as long each.
_MOST_GENERATIONS = 100
#: Numbers of sequences for which a step is priced, evenly by logarithm from one to all.
_PRICED = 8
#: Share of the requests below which nobody waits any more, and a number instead of none.
_WAITED, _LEAST = 1e-9, 1e-12
#: Share of the requests that is all of them.
_ALL = 0.999
#: Times of a run at which a request begins, one after as many requests as another; the decode steps
#: that steps of prompts alone are taken for.
_STARTS, _AT_ONCE = 32, 1e-3


def batches(runs: Runs, laws: StepLaws) -> RunTimes:
    """Runs whose requests all come at once."""
    wanting = np.where(runs.requests > runs.users, runs.requests, runs.users)
    placed = np.minimum(wanting, runs.placed(laws.c))
    placed = np.where(runs.requests > runs.users, np.minimum(placed, runs.users), placed)
    places = _places(runs, laws, wanting, placed)
    steps = _Steps(runs, laws, places.first)
    flow = _flow(runs, steps, wanting, places)
    # They are taken in one after another.
    outside_s = runs.request_s(laws) + laws.c["closed_loop.intake_s"] * placed / 2
    whole_s, ttft_s = outside_s + flow.whole_s, outside_s + flow.ttft_s
    answer_s = np.maximum(0.0, flow.e2e_s - flow.ttft_s)
    tau_s = answer_s / np.maximum(1.0, runs.answer_steps)
    tau_s = np.where(runs.answer_steps > 0, np.maximum(tau_s, flow.lone_s), flow.lone_s)
    answer_s = np.maximum(answer_s, runs.answer_steps * tau_s)
    # A run of one takes as long as the mean answer, not as the median.
    whole_s = np.maximum(whole_s, ttft_s + answer_s)
    # Of engines that gather prompts the flow does not know which answers wait for them.
    alike = runs.equal | runs.gathers(laws.c)
    gap_s = np.where(alike, tau_s, np.maximum(flow.gap_s, flow.lone_s))
    running = np.minimum(placed, wanting * answer_s / flow.whole_s)
    e2e_s = np.where(runs.timed_each, ttft_s + answer_s, whole_s)
    return RunTimes(ttft_s, gap_s, np.maximum(FEWEST, running), wanting / whole_s, e2e_s, ttft_s)


class _Times(NamedTuple):
    """Times of R runs from the first step on; seconds, each of shape (R,).

    Attributes:
        gap_s: Mean over requests of their time per token after the first. Short answers that begin
            among prompts have longer gaps than the mean token.
        lone_s: A decode step of one sequence, than which no gap is shorter.
    """

    ttft_s: Array
    e2e_s: Array
    whole_s: Array
    gap_s: Array
    lone_s: Array


class _Places(NamedTuple):
    """Places of R runs.

    Attributes:
        usual: Sequences that have a place in the mean, shape (R,).
        seats: Most that have one at a time, shape (R,).
        cached: Decoding sequences of the usual mix whose whole answers fit the cache, shape (R,);
            infinite where an engine does not reserve whole answers.
        rooms: `Runs.rooms`, shape (R, J).
    """

    usual: Array
    seats: Array
    cached: Array
    rooms: Array

    @property
    def mean_room(self) -> Array:
        """Mean of `rooms` over requests as they arrive, shape (R,)."""
        return np.asarray(self.rooms @ np.array(ANSWER_SHARES))

    @property
    def first(self) -> Array:
        """Requests that find a place at first, before long answers are the most frequent."""
        return np.asarray(
            np.maximum(self.usual, np.minimum(self.seats, self.cached / self.mean_room))
        )

    def part(self, chosen: Mask) -> _Places:
        return _Places(*(each[chosen] for each in self))


def _places(runs: Runs, laws: StepLaws, wanting: Array, usual: Array) -> _Places:
    """Places of runs of which `wanting` requests come and `usual` have a place in the mean."""
    most = np.minimum(wanting, np.minimum(runs.seats, runs.users))
    reserves = runs.reserves(laws.c) & ~runs.equal
    seats = np.where(reserves, np.maximum(most, usual), usual)
    cached = np.where(reserves, np.maximum(1.0, runs.whole_cached), np.inf)
    return _Places(usual, seats, cached, runs.rooms(laws.c))


class _Steps:
    """Steps of R runs by the number of sequences that decode, priced for a few numbers.

    Attributes:
        apart: Runs whose prompts have steps of their own, shape (R,).
    """

    def __init__(self, runs: Runs, laws: StepLaws, placed: Array) -> None:
        self.apart = runs.apart(laws.c)
        self._most = np.maximum(2.0, placed)
        self._budget, self._each, self._inputs = runs.budget, runs.each, runs.inputs
        plain: list[Array] = []
        one: list[Array] = []
        full: list[Array] = []
        for number in range(_PRICED):
            sequences = self._most ** (number / (_PRICED - 1))
            plain.append(runs.decode_s(laws, sequences))
            if number and self.apart.all():  # no prompt meets an answer
                one.append(one[0])
                full.append(full[0])
                continue
            beside = np.where(self.apart, 0.0, sequences)
            most = np.maximum(1.0, self.full(sequences))
            steps = np.maximum(1.0, 1 / self.full(sequences))
            without_s = np.where(self.apart, 0.0, steps * plain[-1])
            one_s = runs.mixed_s(laws, np.ones_like(sequences), beside) - without_s
            full_s = (runs.mixed_s(laws, most, beside) - without_s) / most
            one.append(np.maximum(0.0, one_s))
            full.append(np.maximum(0.0, full_s))
        self._table = np.array([plain, one, full])

    def part(self, chosen: Mask) -> _Steps:
        """Steps of the chosen runs alone."""
        part = copy.copy(self)
        for name in ("apart", "_most", "_budget", "_each", "_inputs"):
            setattr(part, name, getattr(self, name)[chosen])
        part._table = self._table[:, :, chosen]
        return part

    def full(self, sequences: Array) -> Array:
        """Prompts that fill a step beside others; less than one where one takes several steps."""
        left = self._budget - np.where(self.apart, 0.0, sequences * self._each)
        return np.asarray(np.maximum(1.0, left) / self._inputs)

    def at(self, sequences: Array) -> tuple[Array, Array, Array]:
        """A step, what one prompt adds to it, and what each of those that fill it adds."""
        logs = np.log(np.maximum(1.0, sequences)) / np.log(self._most)
        place = np.minimum(logs, 1.0) * (_PRICED - 1)
        low = np.minimum(place.astype(int), _PRICED - 2)
        rows = np.arange(len(low))
        below, above = self._table[:, low, rows], self._table[:, low + 1, rows]
        plain_s, one_s, full_s = below + (place - low) * (above - below)
        return plain_s, one_s, full_s

    def decode_s(self, sequences: Array) -> Array:
        return self.at(sequences)[0]


def _added_s(prompts: Array, full: Array, one_s: Array, full_s: Array) -> Array:
    """What prompts add to a step; more than fill it add to those that follow."""
    full = np.maximum(1.0, full)
    share = np.clip((prompts - 1) / np.maximum(_LEAST, full - 1), 0.0, 1.0)
    several_s = one_s + share * (full * full_s - one_s)
    return np.where(prompts < 1, prompts * one_s, np.maximum(several_s, prompts * full_s))


def _flow(runs: Runs, steps: _Steps, wanting: Array, places: _Places) -> _Times:
    """Times of the runs whose requests come at once; those of like strides together."""
    count = np.minimum(wanting, _MOST_GENERATIONS * places.usual)
    found = np.ones((5, len(count)))
    for equal, queued in ((e, q) for e in (True, False) for q in (True, False)):
        chosen = runs.at_once & (runs.equal == equal) & ((count > places.usual) == queued)
        if chosen.any():
            answers, mine = runs.answers[chosen], places.part(chosen)
            flow = _Flow(steps.part(chosen), answers, count[chosen], mine, equal=equal)
            found[:, chosen] = flow.times()
    more = wanting / count
    ttft_s = found[0] * more
    return _Times(ttft_s, ttft_s + found[1] - found[0], found[2] * more, found[3], found[4])


def _interpolated(at: Array, known: Array, values: Array) -> Array:
    """Values of R rising lines at places of their own; known and values of shape (R, points)."""
    apart = (1.0 + known.max()) * np.arange(len(known))[:, None]
    places = np.clip(at, known[:, :1], known[:, -1:]) + apart
    return np.asarray(np.interp(places, (known + apart).ravel(), values.ravel()))


class _Fill(NamedTuple):
    """Prompts that take free places in a stride; each of shape (R,).

    Attributes:
        steps: Steps that they take.
        full: Prompts that fill a step, less than one where one takes several.
        all_s: Seconds of these steps.
        half_s: Half of a step, or of the steps of one prompt, at whose end first tokens come.
        late_s: Seconds by which that delays the end of an answer.
    """

    prompts: Array
    steps: Array
    full: Array
    all_s: Array
    half_s: Array
    late_s: Array


class _Flow:
    """Requests of R runs from when they come to the end of the last answer.

    Args:
        answers: Decode steps by share of the answers, shape (R, J).
        count: Requests.
        equal: Whether all answers of a run are of one length.
    """

    def __init__(
        self, steps: _Steps, answers: Array, count: Array, places: _Places, *, equal: bool
    ) -> None:
        placed = places.usual
        self._steps, self._count, self._equal = steps, count, equal
        self._places, self._mean_room = places, places.mean_room
        self._shares = np.ones(1) if equal else np.array(ANSWER_SHARES)
        self._rooms = places.rooms[:, : len(self._shares)]
        self._longest = answers[:, 0] if equal else longest(answers, count)
        law_mean = (answers * ANSWER_SHARES).sum(axis=1)
        mean = np.maximum(1.0, law_mean)
        self._mean = law_mean
        # Of few answers none is as long as the law's longest; their mean is the law's all the same.
        cut = np.minimum(answers, self._longest[:, None])
        cut = cut * (law_mean / np.maximum(_LEAST, (cut * ANSWER_SHARES).sum(axis=1)))[:, None]
        self._answers = answers[:, :1] if equal else cut
        self._longest = np.maximum(self._longest, self._answers[:, -1])
        beside = np.minimum(np.minimum(placed, count) / 2, mean * steps.full(np.zeros_like(mean)))
        full = steps.full(beside)
        prompt_steps = np.where(steps.apart, 0.0, count / full)
        # Share of the answers that end while prompts still fill the steps.
        self._among = np.maximum(0.0, 1 - mean / np.maximum(1.0, prompt_steps))
        # Whoever follows an answer has its place for the step, or steps, of its own prompt, too.
        own = np.where(steps.apart | (count <= places.first), 0.0, np.maximum(1.0, 1 / full))
        self._own, self._longest = own, self._longest + own
        queued = np.maximum(count / placed * (mean + own), prompt_steps) / _WAITING
        queued = np.maximum(mean / _OF_AN_ANSWER, queued)
        stride = np.where(count > placed, queued, prompt_steps / _OF_THE_PROMPTS)
        # Answers of one length that begin together end together.
        self._in_step = steps.apart & equal
        self._stride = np.where(self._in_step, mean, np.maximum(1.0, stride))
        self._most_strides = 2 * _WAITING
        # Prompts computed after so many strides, from one stride before the run on.
        self._begun = np.repeat(count[:, None], self._most_strides + 3, axis=1)
        self._begun[:, :2] = 0.0
        #: Of these, prompts that took the place of an answer.
        self._followed = np.zeros_like(self._begun)
        zero = np.zeros_like(count)
        #: Answers that have ended, by share of them.
        self._ended = np.zeros((len(count), len(self._shares)))
        self._waiting, self._at_s = count.copy(), zero
        self._place, self._last = zero, zero
        self._ttft_s, self._e2e_s = zero, zero
        #: Decode steps, seconds and prompts computed until then, one after another; and how many
        #: prompts since the one before have their first tokens together: all, if one step takes
        #: them, or one, if it takes several; zero if first tokens come all the time.
        self._seen = [(zero, zero, zero, zero)]

    def times(self) -> tuple[Array, Array, Array, Array, Array]:
        """Fields of `_Times`."""
        for number in range(1, self._most_strides + 1):
            if not (self._waiting > _WAITED * self._count).any():
                break
            self._stride_on(number)
        ended = self._ended.sum(axis=1)
        for long in self._last_strides():
            now = np.maximum(ended, np.minimum(self._count, self._ended_by(long)))
            ending = now - ended
            step_s = self._steps.decode_s(self._count - ended - ending / 2)
            self._e2e_s = self._e2e_s + ending * (self._at_s + long * step_s / 2)
            ended, self._place = now, self._place + long
            self._at_s = self._at_s + long * step_s
            self._seen.append((self._place, self._at_s, self._count, np.zeros_like(long)))
        e2e_s = self._e2e_s + np.maximum(0.0, self._count - ended) * self._at_s
        lone_s = self._steps.decode_s(np.ones_like(self._count))
        gap_s = lone_s if self._equal else self._gap_s()
        return self._ttft_s / self._count, e2e_s / self._count, self._at_s, gap_s, lone_s

    def _gap_s(self) -> Array:
        """Mean over requests of the time per token after their first, by when they began."""
        places, at_s, begun, groups = (
            np.stack(column, axis=1) for column in zip(*self._seen, strict=True)
        )
        starts = (np.arange(_STARTS) + 0.5) / _STARTS * self._count[:, None]
        # Few steps of prompts have their first tokens at the end alone.
        after = np.minimum(
            (begun[:, None, :] < starts[:, :, None]).sum(axis=2), len(self._seen) - 1
        )
        group = np.take_along_axis(groups, after, axis=1)
        ends = np.ceil(starts / np.maximum(1.0, group)) * group
        starts = np.where(group > 0, np.minimum(ends, self._count[:, None]), starts)
        began = _interpolated(starts, begun, places)
        began_s = _interpolated(began, places, at_s)
        long = np.maximum(1.0, self._answers)[:, None, :]
        ended = (began[:, :, None] + long).reshape(len(long), -1)
        ended_s = _interpolated(ended, places, at_s).reshape(*began.shape, -1)
        counted = self._shares * (self._answers > 0)  # an answer of one token has no gap
        gaps_s = ((ended_s - began_s[:, :, None]) / long).mean(axis=1)
        return np.asarray((gaps_s * counted).sum(axis=1) / np.maximum(_LEAST, counted.sum(axis=1)))

    def _ended_by(self, long: Array) -> Array:
        """Answers that have ended after so many more decode steps, shape (R,)."""
        return np.asarray(self._ended_of(long).sum(axis=1))

    def _ended_of(self, long: Array) -> Array:
        """Answers of each share that have ended after so many more decode steps, shape (R, J)."""
        ended = self._begun_by(self._begun, long)
        if not self._own.any():
            return ended
        later = self._begun_by(self._followed, long - self._own)
        return np.asarray(ended - self._begun_by(self._followed, long) + later)

    def _begun_by(self, begun: Array, long: Array) -> Array:
        """Answers that have ended after so many more decode steps, by when their prompts were.

        Args:
            begun: Prompts computed by each stride, shape (R, strides).
            long: Decode steps from here, shape (R,).
        """
        place = (self._place + long)[:, None] - self._answers
        place = np.clip(1 + place / self._stride[:, None], 0.0, self._most_strides + 2.0)
        low = np.minimum(place.astype(int), self._most_strides + 1)
        rows = np.arange(len(low))[:, None]
        below, above = begun[rows, low], begun[rows, low + 1]
        return np.asarray((below + (place - low) * (above - below)) * self._shares)

    def _stride_on(self, number: int) -> None:
        """One stride of the runs in which anybody waits."""
        steps, begun, apart = self._steps, self._begun, self._steps.apart
        taking = self._waiting > _WAITED * self._count
        long = np.where(taking, self._stride, 0.0)
        inside = begun[:, number, None] * self._shares - self._ended
        running = np.where(taking, np.maximum(0.0, inside.sum(axis=1)), 0.0)
        # Free places first: full steps of prompts.
        room = (self._places.cached - (inside * self._rooms).sum(axis=1)) / self._mean_room
        free = np.maximum(0.0, np.minimum(self._places.seats - running, room))
        free = np.minimum(self._waiting, free) * taking
        fill = self._fill(running, free, long)
        self._ttft_s = self._ttft_s + fill.prompts * (self._at_s + fill.all_s / 2 + fill.half_s)
        # Then those who take the places of answers that end.
        begun[:, number] += np.where(apart, fill.prompts, 0.0)
        begun[:, number + 1] = np.where(taking, begun[:, number], self._count)
        begun[:, number + 1] += np.where(apart, 0.0, fill.prompts)
        rest = np.where(apart, long, np.maximum(0.0, long - fill.steps))
        ending_of = np.maximum(0.0, self._ended_of(long) - self._ended) * taking[:, None]
        ending = ending_of.sum(axis=1)
        most = ending + np.maximum(0.0, self._places.seats - running - fill.prompts)
        follow = np.minimum(
            (ending_of * self._rooms).sum(axis=1) / self._mean_room,
            np.clip(self._waiting - fill.prompts, 0.0, most),
        )
        follow = np.where(apart, follow, np.minimum(follow, rest * fill.full))
        follow = np.where(self._in_step, 0.0, follow)
        leaving = np.where(self._in_step, 0.0, ending - follow)
        within = np.minimum(self._places.seats, running + fill.prompts - leaving / 2)
        plain_s, one_s, full_s = steps.at(within)
        rate = follow / np.maximum(rest, _LEAST)
        met = -np.expm1(-rate)  # share of the steps that have prompts, which come by chance
        meeting_s = _added_s(rate / np.maximum(met, _LEAST), fill.full, one_s, full_s)
        following_s = rest * (plain_s + met * meeting_s)
        after_s = np.where(apart, 0.0, plain_s * np.maximum(1.0, 1 / fill.full)) + meeting_s
        from_s = self._at_s + fill.all_s
        self._ttft_s = self._ttft_s + follow * (from_s + following_s / 2 + after_s)
        # Answers end in steps that decode, which those of prompts are where they share them.
        shared_s = np.where(apart, 0.0, fill.all_s)
        ended_s = np.where(self._in_step, following_s, (following_s - shared_s) / 2)
        self._e2e_s = self._e2e_s + ending * (from_s + ended_s) + fill.prompts * fill.late_s
        begun[:, number + 1] += np.where(taking, follow, 0.0)
        self._followed[:, number + 1 :] += (follow * taking)[:, None]
        self._waiting = np.maximum(0.0, self._waiting - fill.prompts - follow)
        until = np.where(follow > 0, long, np.where(apart, 0.0, fill.steps))
        self._last = np.where(taking, self._place + until, self._last)
        done = taking & (self._waiting <= _WAITED * self._count)
        begun[done, number + 1] = self._count[done]
        filled = np.where(apart, np.minimum(_AT_ONCE * taking, long), np.minimum(fill.steps, long))
        few = (fill.prompts >= _ALL * self._count) & (self._count <= np.maximum(1.0, fill.full))
        group = np.where(few, self._count, np.where(fill.full < 1, 1.0, 0.0))
        until = self._place + filled
        self._seen.append((until, from_s, self._seen[-1][2] + fill.prompts, group))
        self._ended, self._at_s = self._ended + ending_of, from_s + following_s
        self._place = self._place + long
        self._seen.append(
            (self._place, self._at_s, self._seen[-1][2] + follow, np.zeros_like(long))
        )

    def _fill(self, running: Array, free: Array, long: Array) -> _Fill:
        """Prompts for places that are free, in a stride of so many decode steps."""
        steps, apart = self._steps, self._steps.apart
        # Of those who begin meanwhile, no more decode than have not ended by then.
        new = np.minimum(free / 2, np.maximum(1.0, self._mean) * steps.full(running))
        full = steps.full(running + new)
        group = np.maximum(1.0, full)
        one = np.minimum(free, 1.0) * np.maximum(1.0, 1 / full)
        taken = np.where(free >= group, free / full, one)
        part = np.where(apart, 1.0, np.minimum(1.0, long / np.maximum(taken, _LEAST)))
        filled, taken = free * part, taken * part
        plain_s, one_s, full_s = steps.at(running + np.minimum(filled / 2, new))
        added_s = _added_s(np.minimum(filled, group), full, one_s, full_s)
        all_s = np.where(filled > group, filled * full_s, added_s)
        all_s = all_s + np.where(apart, 0.0, taken * plain_s)
        # First tokens come at the ends of steps, or of the steps of a prompt that takes several.
        together = np.where(full < 1, 1.0, np.minimum(group, free))
        half_s = all_s / np.maximum(_LEAST, filled) * together / 2
        step_s = all_s / np.maximum(_LEAST, taken)
        late_s = plain_s + self._among * np.maximum(0.0, step_s - plain_s)
        late_s = np.maximum(1.0, together / full) / 2 * late_s
        late_s = np.where(apart | (self._mean <= 0), 0.0, late_s)
        return _Fill(filled, taken, full, all_s, half_s, late_s)

    def _last_strides(self) -> Iterator[Array]:
        """Strides in which nobody waits, to the end of the longest answer."""
        end = self._place + self._left_steps()
        quiet = np.where(self._count > self._places.first, 0.0, self._answers[:, 0] - self._place)
        quiet = np.clip(quiet, 0.0, end - self._place)
        yield quiet
        for left in range(_ENDING[self._equal], 0, -1):
            yield (end - self._place) / left

    def _left_steps(self) -> Array:
        """Steps from here to the end of the last answer, which need not have begun last."""
        most = np.maximum(0.0, self._last + self._longest - self._place)
        if self._equal:
            return most
        low, high = np.zeros_like(most), most
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            more = self._count - self._ended_by(middle) > LAST
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return np.asarray((low + high) / 2)
