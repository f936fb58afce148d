"""A benchmark's run by formula: N requests behind a limit of C in flight, many runs at once.

Load clients measure closed loops. All C users begin together (a burst), and where lengths
vary little their following prompts still come in clumps, generation after generation. The
mean time to first token of such a run is mostly that, so the steady state misses it.

| symbol | here |
|---|---|
| C, N | users of one copy of the model, requests of the run on it |
| G = N/C | generations: how many requests one user sends |
| D, I | decode steps of a request (fewer than tokens where some are drafted), prompt tokens |
| B, tau | sequences decoding at the same time; the step time they see |
| a | prompts that come per step while a clump comes |
| n | prompts that one step can take |

Generation 0 comes at once: n prompts per step, C/n steps, so the mean prompt waits for
(C/n + 1)/2 of them. Generation g ends its answers over w = min(D, sqrt(12 g) sigma) steps,
sigma the spread of answer lengths, plus the burst's own length; that many steps see its
successors come, a = C/w of them each. While a < n a prompt waits for the step in progress
and its own; beyond that a queue grows to C (1 - n/a) prompts. Once w reaches D the run is
the steady state of `SteadyState`. `warm_up_s` is paid by generation 0.

Some measured prompts wait for more of each other than arrivals spread over that window explain:
`clump_prompts` (sqrt(C) - 1) prompts more; where lengths vary much, less (`clump_share`). What
is waited for before the first token no longer lies between tokens; Little's law holds with all of
it, so that no more is served than steps compute. An engine that delays admission adds
`admission_delay_steps` of tau.

Engines that compute prompts in steps of their own have the closed loops of `SteadyState` after the
burst, in which groups wait for each other: a share exp(-w / together_steps) of later generations
comes all at once as well, w = sqrt(12) sigma. Users with equal answers stay in step, as there.

Users without a place wait for one and change nothing else; those who have one keep it while
their prompt is computed. Where prompts fill every step (few tokens to answer), fewer decode
than have a place, and the others' prompts come all the same.

Static batches, lists worked off, bursts and open loops at a rate have formulas of their own below;
open loops have no clumps and nobody in step, but a queue of prompts that may grow with the run.
Checked against the simulator in tests/perf/test_run_formulas.py and
tests/prediction/test_protocols.py. Left to it: percentiles and preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from servetune.perf.roofline.clumps import clump_share
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.steady_state import LengthMoments
from servetune.perf.roofline.step_laws import Array, PlanBatch, StepLaws
from servetune.plan.plan import Plan
from servetune.units import MS_PER_S

#: Secants by which B of closed loops is found, and halvings by which that of open loops is.
_SECANTS, _ROUNDS = 5, 12
#: Rounds in which groups of prompts that come while others are computed find their size.
_GROWING = 4
#: Share of places that is still free when an open loop counts as settled.
_LATE = 0.02
#: Slope of what is off over B beyond which a secant is not trusted; it is minus one where B changes
#: no time.
_FLAT = -0.1
#: Fewest sequences that decode at the same time, on average, in an open loop.
_FEWEST = 1e-6
#: Seconds between prompts that come at the same time, where they are taken in at no cost.
_INSTANT_S = 1e-9
#: Shares of the generations after the first at whose middles their waiting is read.
_MANY_BATCHES = 4
_SLICES = ((0.0, 1 / 9), (1 / 9, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0))


#: How the requests of a run come: `closed`, each user's next after the answer to the last; `open`,
#: at a rate; all at once as one `static` batch, as an `offline` list that is worked off, or as a
#: `burst` whose requests are timed one by one.
Protocol: TypeAlias = Literal["closed", "open", "static", "offline", "burst"]


class RunPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one run.

    Attributes:
        ttft_ms: Time from sending to the first token, the burst included.
        tpot_ms: Gap between tokens, steps that carry prompts included.
        output_tokens_per_s: Rate of the run without its tail, all copies together.
        running: Sequences decoding at the same time, all copies together.
        queued: Whether requests wait for a place in cache or batch.
    """

    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    running: float
    queued: bool


class RunTimes(NamedTuple):
    """Means of R runs, one copy each; seconds, each of shape (R,).

    Attributes:
        tpot_s: Gap between tokens, steps with others' prompts included.
        running: Sequences decoding at the same time.
        requests_per_s: Requests over the run's time; its steady state's in closed loops.
        e2e_s: Mean time of a request; of the whole run where all come at once.
    """

    ttft_s: Array
    tpot_s: Array
    running: Array
    requests_per_s: Array
    e2e_s: Array

    def where(self, mask: Array, other: RunTimes) -> RunTimes:
        """These means, and the other's where the mask is true."""
        return RunTimes(*(np.where(mask, b, a) for a, b in zip(self, other, strict=True)))


class RunFormulas:
    """R runs in array form; parts that do not depend on coefficients are computed once.

    Args:
        stack: Work and machines of the R plans.
        plans: Resolved.
        kv_tokens: Tokens that one copy's cache holds, per run.
        moments: Moments of the lengths, per run.
        concurrency: Requests in flight, all copies together, per run; read of open loops that are
            capped.
        request_count: Requests of the run, all copies together, per run.
        protocols: How requests arrive, per run; closed loops if omitted.
        rates_per_s: Requests per second of open loops, all copies together, per run.
        capped: Whether an open loop has no more than `concurrency` in flight, per run.
        warmed: Whether requests were sent before the run, per run; none if omitted.
        admission_delay_steps: `PlannedRun.admission_delay_steps`, per run; none where not given.
    """

    def __init__(
        self,
        stack: PlanBatch,
        plans: Sequence[Plan],
        kv_tokens: Sequence[float],
        moments: Sequence[LengthMoments],
        concurrency: Sequence[int],
        request_count: Sequence[int],
        *,
        protocols: Sequence[Protocol] | None = None,
        rates_per_s: Sequence[float] | None = None,
        capped: Sequence[bool] | None = None,
        warmed: Sequence[bool] | None = None,
        admission_delay_steps: Sequence[float] | None = None,
    ) -> None:
        self._stack = stack
        kinds = protocols or ["closed"] * len(plans)
        self._open = np.array([kind == "open" for kind in kinds])
        self._capped = np.array(capped or np.zeros(len(plans)), bool)
        self._once = np.array([kind in ("static", "offline", "burst") for kind in kinds])
        #: Whether answers are streamed over HTTP; static batches and lists are not.
        self._streams = np.array([kind not in ("static", "offline") for kind in kinds], float)
        self._cold = 1.0 - np.asarray(warmed or np.zeros(len(plans)), float)
        self._timed_each = np.array([kind == "burst" for kind in kinds])
        # Each stage computes another batch, so a pipeline serves like as many slower copies; the
        # one batch that comes at once stays together.
        stages = np.array(
            [
                1 if kind == "static" else plan.pipeline_parallel
                for kind, plan in zip(kinds, plans, strict=True)
            ],
            float,
        )
        self._stages = stages
        self.copies = stages * [plan.replicas * plan.data_parallel for plan in plans]
        self._rate = np.asarray(rates_per_s or np.zeros(len(plans)), float) / self.copies
        self.concurrency = np.asarray(concurrency, float)
        self.budget = np.array([plan.max_num_batched_tokens for plan in plans], float)
        most = np.array([plan.max_num_seqs for plan in plans], float)
        self.kv_tokens = np.asarray(kv_tokens, float) / stages
        self._places, self._whole_places = (
            np.maximum(1.0, np.minimum(most, cached) / stages)
            for cached in np.transpose(
                [
                    [m.places(kv, whole_answers=whole) for whole in (False, True)]
                    for m, kv in zip(moments, kv_tokens, strict=True)
                ]
            )
        )
        self.inputs = np.array([m.input_tokens for m in moments])
        self.outputs = np.array([m.output_tokens for m in moments])
        self.pairs = np.array([m.prompt_pairs for m in moments])
        self.context = np.array([m.context_tokens for m in moments])
        self.gained = np.array([tokens_per_step(plan) for plan in plans])
        self.spread = np.array([m.output_spread_tokens for m in moments]) / self.gained
        self.each = np.array([1 + (plan.draft_tokens or 0) for plan in plans], float)
        self._clump_share = clump_share(self.spread * self.gained / self.outputs)
        self.steps = np.maximum(1.0, (self.outputs - 1) / self.gained)
        self._answer_steps = np.maximum(0.0, self.outputs - 1) / self.gained
        self.users = np.maximum(1.0, self.concurrency / self.copies)
        free = self._open & ~self._capped
        self.busy_copies = np.where(free, self.copies, np.minimum(self.concurrency, self.copies))
        self.generations = np.maximum(1.0, np.asarray(request_count, float) / self.concurrency)
        self.admission_delay_steps = np.asarray(
            admission_delay_steps or np.zeros(len(plans)), float
        )
        self._held_steps = np.where(self._open, 0.0, self.admission_delay_steps)
        self._requests = np.asarray(request_count, float) / self.copies
        #: Whole prompts that one group has.
        self._group = np.maximum(1.0, self.budget // self.inputs)
        #: Whether all answers take equally many steps: users then stay in step.
        self._equal = (self.spread == 0) & (self.gained == 1)
        #: Squared variation of answers, at most that of an exponential law.
        self._varied = np.minimum(1.0, (self.spread / self.steps) ** 2)
        self._full_steps = self.budget / (self.each + self.inputs / self.steps)

    def most_running(self, c: Mapping[str, Array]) -> Array:
        """Sequences of one copy that decode at the same time at most, shape (R,).

        Those that have a place; fewer, less than one even, where prompts fill every step that
        they share, and where an engine gathers prompts as many as it has let in.
        """
        most = np.minimum(self._placed(c), self._decoding_beside(c))
        return np.where(self._gathers(c), np.minimum(most, self._most_gathered(c)), most)

    def _decoding_beside(self, c: Mapping[str, Array]) -> Array:
        """Sequences that can decode beside the prompts that they bring, if these share steps."""
        apart = c["scheduling.separate_prefill"] > 0
        return np.asarray(np.where(apart, np.inf, self._full_steps))

    def _placed(self, c: Mapping[str, Array]) -> Array:
        """Users of one copy that have a place at the same time, their prompts computed or not.

        Where the engine reserves whole answers a sequence keeps all of its place from the start.
        """
        return np.asarray(np.minimum(self.users, self._most_placed(c)))

    def _most_placed(self, c: Mapping[str, Array]) -> Array:
        whole = (c["scheduling.whole_answers"] > 0) | (c["scheduling.known_answers"] > 0)
        return np.where(whole, self._whole_places, self._places)

    def times_s(self, c: Mapping[str, Array]) -> RunTimes:
        """Means of every run under coefficients; see `RunTimes`."""
        unsent_s = (1 - self._streams) * c["host.http_sequence_s"]
        streamed = {
            **c,
            "host.stream_token_s": self._streams * c["host.stream_token_s"],
            "host.sequence_s": c["host.sequence_s"] - unsent_s,
        }
        in_flight = np.clip(self.concurrency / self.copies * self._stages, 1.0, self._stages)
        laws = StepLaws(self._stack, streamed, in_flight)
        found = self._loops(laws)
        if (apart := c["scheduling.separate_prefill"] > 0).any():
            found = found.where(apart, self._loops_apart(laws))
        if (in_step := self._equal & ~self._gathers(c)).any():
            found = found.where(in_step, self._loops_in_step(laws))
        if self._open.any():
            opened, in_flight = self._open_loops(laws)
            flooded = self._capped & (in_flight >= self.users)
            found = found.where(self._open & ~flooded, opened)
        if self._once.any():
            found = found.where(self._once, self._batches(laws))
        return found._replace(tpot_s=found.tpot_s / self.gained)

    def points(self, c: Mapping[str, Array]) -> list[RunPoint]:
        """One point per run."""
        found = self.times_s(c)
        rate = found.requests_per_s * self.busy_copies * self.outputs
        queued = self.users > self.most_running(c)
        return [
            RunPoint(
                ttft_ms=float(found.ttft_s[i] * MS_PER_S),
                tpot_ms=float(found.tpot_s[i] * MS_PER_S),
                e2e_ms=float(found.e2e_s[i] * MS_PER_S),
                output_tokens_per_s=float(rate[i]),
                running=float(found.running[i] * self.busy_copies[i]),
                queued=bool(queued[i]),
            )
            for i in range(len(self.copies))
        ]

    def _batches(self, laws: StepLaws) -> RunTimes:
        """Runs whose requests all come at once: those who have a place form a batch.

        Those without one follow as places become free, a batch after the other. Prompts of a
        mixing engine are computed beside the answers that have begun.
        """
        wanting = np.where(self._requests > self.users, self._requests, self.users)
        placed = np.minimum(wanting, self._placed(laws.c))
        placed = np.where(self._requests > self.users, np.minimum(placed, self.users), placed)
        batches = np.floor(wanting / placed)
        rest = wanting - batches * placed
        ttft_s, burst_s, tau_s, later_s = self._batch(laws, placed)
        *_, rest_s = self._batch(laws, np.maximum(1.0, rest))
        first_s = burst_s + self.steps * self._decode_s(laws, placed)
        # Many batches run into each other: a fraction of one takes that fraction of the time.
        steady = batches >= _MANY_BATCHES
        last_s = np.where(steady, rest / placed * later_s, np.where(rest >= 1, rest_s, 0.0))
        whole_s = self._request_s(laws) + first_s + (batches - 1) * later_s + last_s
        # They are taken in one after another.
        whole_s = whole_s + laws.c["closed_loop.intake_s"] * placed / 2
        # A batch waits for all before it.
        waiting_s = (batches * (batches - 1) / 2 * placed + batches * rest) / wanting * later_s
        running = np.minimum(placed, placed * self.steps * tau_s / (burst_s + self.steps * tau_s))
        ttft_s = ttft_s + waiting_s
        e2e_s = np.where(self._timed_each, ttft_s + self._answer_steps * tau_s, whole_s)
        return RunTimes(ttft_s, tau_s, running, wanting / whole_s, e2e_s)

    def _batch(self, laws: StepLaws, users: Array) -> tuple[Array, Array, Array, Array]:
        """Mean time to first token, length of the prompts, mean gap, length of a later batch."""
        intake_s = laws.c["closed_loop.intake_s"] * users / 2
        taken = np.clip(self.budget / self.inputs, 1.0, users)
        steps = users / taken
        apart = laws.c["scheduling.separate_prefill"] > 0
        decoding = np.minimum(users / 2 * (1 - 1 / steps), taken * self.steps)
        beside = np.where(apart, 0.0, decoding)
        prompts_s = self._mixed_s(laws, taken, beside)
        plain_s = self._decode_s(laws, users)
        riding = np.minimum(self.steps, (steps - 1) / 2)
        mixing_s = np.where(apart, prompts_s, np.maximum(0.0, prompts_s - plain_s))
        tau_s = plain_s + riding * mixing_s / self.steps
        ttft_s = self._request_s(laws) + intake_s + prompts_s * (steps + 1) / 2
        # Steps of prompts beyond those in which the answers decode.
        alone = np.where(apart, 0.0, np.maximum(0.0, steps - self.steps))
        later_s = self.steps * plain_s + (steps - alone) * mixing_s + alone * prompts_s
        return ttft_s, steps * prompts_s, tau_s, later_s

    def _decode_s(self, laws: StepLaws, users: Array) -> Array:
        none = 0 * users
        return laws.seconds(none, none, none, users, users * self.context)

    def _open_loops(self, laws: StepLaws) -> tuple[RunTimes, Array]:
        """Runs at a rate: requests in flight by Little's law, fewer while a short run fills.

        The number that decodes is between the bounds of a bisection: near saturation each round
        of a fixed point would shrink the error by next to nothing.

        Returns:
            The runs, and how many requests would be in flight at the end.
        """
        rate = np.maximum(self._rate, 1e-9)
        long_s = self._requests / rate
        places = self._most_placed(laws.c)
        most = np.minimum(places, self._decoding_beside(laws.c))
        # Prompts that come while others are computed are the next, before anybody decodes again,
        # unless the engine gathers them.
        together = np.ones_like(rate)
        for _ in range(_GROWING):
            come = rate * self._prompts_s(laws, together)  # in the mean of groups, empty or not
            together = np.minimum(come / -np.expm1(-come), self._group)
        together = np.where(self._gathers(laws.c), self._group, together)
        low, high = np.full_like(rate, np.log(_FEWEST)), np.log(most)
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            running = np.exp(middle)
            first_s, queue_s, tau_s = self._at_a_rate(laws, rate, running, most, together)
            decode_s = self.steps * tau_s
            e2e_s = first_s + queue_s + decode_s
            more = rate * self._seen_s(long_s, e2e_s) * decode_s / e2e_s > running
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        # Who waits for a place has passed the queue of prompts meanwhile.
        wanted = rate * decode_s / most
        # Those who come first find one: as many as there are of equal answers, more of others.
        first = self._varied * (wanted * -np.log(np.maximum(_LATE, 1 - 1 / wanted)) - 1) + 1
        left = np.maximum(0.0, 1 - most / self._requests * first)
        queue_s = np.maximum(queue_s, left * self._queue_s(wanted, rate, places))
        ttft_s = first_s + queue_s
        e2e_s = ttft_s + decode_s
        # The last request waits twice the mean, and nobody's prompt is computed after its own.
        plain_s = self._decode_s(laws, np.maximum(1.0, running))
        whole_s = long_s + ttft_s + queue_s + self.steps * plain_s
        in_flight = rate * np.minimum(long_s, e2e_s)
        return RunTimes(ttft_s, tau_s, running, self._requests / whole_s, e2e_s), in_flight

    def _seen_s(self, long_s: Array, e2e_s: Array) -> Array:
        """Time in which those come whom a token sees, on average, while a run fills and empties.

        Each second counts by the tokens that are decoded in it: that is the integral of the square
        of the number inside over the integral of the number. For times inside that are all equal,
        and for those with an exponential law.
        """
        short = np.minimum(long_s, e2e_s) / np.maximum(long_s, e2e_s)
        equal_s = np.minimum(long_s, e2e_s) * (1 - short / 3)
        varied_s = e2e_s * (1 + np.expm1(-long_s / e2e_s) * e2e_s / long_s)
        return np.asarray(equal_s + self._varied * (varied_s - equal_s))

    def _at_a_rate(
        self, laws: StepLaws, rate: Array, running: Array, most: Array, together: Array
    ) -> tuple[Array, Array, Array]:
        """Times of an open loop while so many decode, `most` at most.

        Its prompts come by chance and not because another answer has ended, so nothing is taken
        off the gaps for clumps or for users in step. A request shares its steps with the prompts
        that come while it is in the system, those while it waits for its first token included.

        Returns:
            Times to the first token without a queue, in the queue of prompts, between tokens.
        """
        c = laws.c
        laws = laws.with_batches(np.clip(running * self._stages, 1.0, self._stages))
        apart = c["scheduling.separate_prefill"] > 0
        decoding = np.maximum(1.0, running)
        plain_s = self._decode_s(laws, decoding)
        beside = np.where(apart, 0.0, decoding)
        full = np.maximum(1.0, self.budget - beside * self.each) / self.inputs
        taken = np.where(apart, np.minimum(full, together), full)
        gap = self._gap_steps(c)

        def mixed(per_step: Array) -> tuple[Array, Array, Array]:
            """Steps from one group of prompts to the next, mean and mean square of a step."""
            come = np.exp(-per_step * gap)
            period = gap + come / (1 - come)
            parts = np.maximum(1.0, per_step * period / taken)
            part_s = self._mixed_s(laws, per_step * period / parts, beside, by_chance=True)
            share = np.where(apart, parts / period, np.minimum(1.0, parts / period))
            plain = np.where(apart, 1.0, 1 - share)
            return period, plain * plain_s + share * part_s, plain * plain_s**2 + share * part_s**2

        per_step = running / self.steps
        period, tau_s, squares = mixed(per_step)
        gathered = np.where(apart, gap / period, 1.0)  # share of prompts that others join
        joining = np.minimum(gathered * per_step * gap, np.maximum(0.0, taken - 1))
        own_s = self._mixed_s(laws, 1 + joining, np.where(apart, 0.0, running), by_chance=True)
        # The engine is idle as often as nobody is inside, of those who come by chance.
        working = -np.expm1(-running * (1 + own_s / (self.steps * tau_s)))
        wait_s = squares / (2 * tau_s)
        wait_s += (gap / period * (gap - 1) / 2 + self.admission_delay_steps) * tau_s
        first_s = self._request_s(laws) + working * wait_s + own_s
        most_taken = np.maximum(1.0, full)
        busy = rate * self._mixed_s(laws, most_taken, beside) / most_taken
        queue_s = self._queue_s(busy, rate, full)
        # Who comes during the last step is not met.
        met_s = first_s - self._request_s(laws) + queue_s + (self.steps - 1) * tau_s
        inside = np.maximum(_FEWEST, running * met_s / (self.steps * tau_s))
        # A number with an exponential law, as in a long queue; the mean of what is below `most`.
        present = np.maximum(running, -inside * np.expm1(-most / inside))
        _, tau_s, _ = mixed(present / self.steps)
        return first_s, queue_s, tau_s

    def _queue_s(self, busy: Array, rate: Array, servers: Array) -> Array:
        """Mean wait in a queue that is empty when the run begins, beyond the step in progress.

        For a long run it is that of M/G/k: x^2 (1 + cv^2) / (2 rate (1 - x)) for one server that
        is busy for the fraction x, times x^(sqrt(2 (k + 1)) - 2) for more (Sakasegawa, An
        approximation formula for L_q, Ann. Inst. Statist. Math. 29, 1977). Beyond x = 1 the queue
        grows for as long as requests come: T (x - 1) / 2 is the mean. What joins both is Akcelik's
        formula of a queue within a time T (Rouphail and Akcelik, Oversaturation delay estimates
        with consideration of peaking, Transportation Research Record 1365, 1992). One more x takes
        off the residual of what is in service, which the step in progress has.
        """
        spread = (2 * self.pairs / self.inputs - 1) / self.inputs  # 1 + cv^2 of prompts
        chance = spread * np.minimum(1.0, busy) ** (np.sqrt(2 * (servers + 1)) - 1)
        over = busy - 1
        rooted = np.sqrt(over**2 + 4 * chance * busy**2 / self._requests)
        return np.asarray(self._requests / rate / 4 * (over + rooted))

    def _loops(self, laws: StepLaws) -> RunTimes:
        """Closed loops of an engine that computes prompts beside those who decode."""
        running, tau_s, before_s = self._balanced(laws)
        # Where places are short the others wait; Little's law says how long.
        e2e_s = self.users * self.steps * tau_s / running
        tau_s = tau_s - before_s
        ttft_s = np.maximum(self._ttft_s(laws, running, tau_s), e2e_s - self.steps * tau_s)
        whole_s = ttft_s + self._answer_steps * tau_s
        return RunTimes(ttft_s, tau_s, running, self.users / whole_s, whole_s)

    def _balanced(self, laws: StepLaws) -> tuple[Array, Array, Array]:
        """B that solves B = C * D * tau / (ttft + D * tau), at most `most_running`.

        C are those users that have a place: they keep it while their prompts are computed.

        Returns:
            B, tau, and what of tau lies before first tokens.
        """
        placed = self._placed(laws.c)
        most = self.most_running(laws.c)
        others = self._others(laws)

        def off(running: Array) -> Array:
            """How many more than these would decode, were these to decode."""
            ttft_s, tau_s, _ = self._waiting(laws, running / self.steps * others, running)
            decode_s = self.steps * tau_s
            balanced = np.minimum(most, placed * decode_s / (ttft_s + decode_s))
            return np.asarray(balanced - running)

        running = _root(off, most)
        _, tau_s, before_s = self._waiting(laws, running / self.steps * others, running)
        return running, tau_s, before_s

    def _loops_in_step(self, laws: StepLaws) -> RunTimes:
        """Closed loops of users with equal answers, who end together; see `SteadyState`."""
        apart = laws.c["scheduling.separate_prefill"] > 0
        intake_s = laws.c["closed_loop.intake_s"]
        placed = np.minimum(self._placed(laws.c), np.maximum(1.0, self._decoding_beside(laws.c)))
        others, waiting = (placed - 1) / placed, self.users - placed
        taken = np.minimum(placed, self._group)
        one = np.ones_like(placed)
        plain_s = self._decode_s(laws, placed)
        outside_s = self._request_s(laws) + self._clump_s(laws, self._prompts_s(laws, one))
        # Prompts of one step at the start of the run, which come one after another.
        beside = np.where(apart, 0.0, placed / 2)
        begun = self._mixed_s(laws, one, beside) / np.maximum(intake_s, _INSTANT_S)
        begun = np.clip(begun, 1.0, taken)
        # Others end while a group is on its way back, unless those without a place are there.
        back_s = outside_s * np.maximum(0.0, 1 - waiting / taken)
        back = np.minimum(placed, begun * (1 + back_s / plain_s))
        group = np.where(apart, taken, np.maximum(np.minimum(taken, back), placed / self.steps))
        groups, queue = placed / group, np.where(apart, placed, back) / group
        beside = np.where(apart, 0.0, placed - group)
        group_s = self._mixed_s(laws, group, beside)
        parts = np.maximum(1.0, group * self.inputs / np.maximum(1.0, self.budget - beside))
        decoded_s = np.where(apart, 0.0, parts * plain_s)
        seen = np.where(apart, (queue + 1) / 2, queue - queue * (queue - 1) / (2 * groups))
        riding = np.where(apart, groups - seen, np.maximum(0.0, groups - seen))
        riding = np.where(apart, riding, np.minimum(riding, self.steps / parts))
        # All in one group: the first to come has a step alone, the others the next.
        first = (placed > 1) & (groups <= 1) & (intake_s + laws.c["closed_loop.clump_prompts"] > 0)
        rest_s = self._mixed_s(laws, np.maximum(1.0, placed - 1), np.where(apart, 0.0, 1.0))
        alone_s = self._prompts_s(laws, one)
        first_s = np.where(first, alone_s + others * rest_s, seen * group_s)
        first_s = first_s + others * np.where(apart, 0.0, plain_s / 2)
        mixing_s = riding * (group_s - decoded_s)
        mixing_s = np.where(first, (1 - others) * (rest_s - decoded_s), mixing_s)
        tau_s = plain_s + mixing_s / self.steps
        first_s = first_s + others * self._held_steps * tau_s
        decode_s = self.steps * tau_s
        whole_s = np.maximum(
            self.users / placed * (first_s + decode_s), outside_s + first_s + decode_s
        )
        burst_s, _ = self._burst(laws, placed, tau_s)
        burst_s = burst_s + self._warm_up_s(laws.c) + waiting / placed / 2 * (first_s + decode_s)
        ttft_s = (burst_s + (self.generations - 1) * (whole_s - decode_s)) / self.generations
        whole_s = ttft_s + self._answer_steps * tau_s
        running = self.users * self.steps * tau_s / whole_s
        return RunTimes(ttft_s, tau_s, running, self.users / whole_s, whole_s)

    def _loops_apart(self, laws: StepLaws) -> RunTimes:
        """Closed loops of an engine in which nobody decodes beside prompts.

        A steady state as `SteadyState` has it, after a burst whose groups wait for each other.
        """
        c, users = laws.c, self.users
        gap, most = self._gap_steps(c), self.most_running(c)
        placed = np.minimum(users, self._most_placed(c))
        placed = np.where(self._equal, np.minimum(placed, most), placed)
        others, taken = (placed - 1) / placed, np.minimum(placed, self._group)
        one_s, group_s = self._prompts_s(laws, np.ones_like(users)), self._prompts_s(laws, taken)
        prompts = c["closed_loop.clump_prompts"] * self._clump_share * (np.sqrt(users) - 1)
        ahead = (users + np.minimum(users, self._group)) / 2 - 1
        in_step = np.where(self._equal, 0.0, self._in_step(laws) * ahead)
        together = np.clip(in_step, 1.0, self._group)
        clump_s = prompts * one_s + in_step * self._prompts_s(laws, together) / together
        request_s = self._request_s(laws)
        before = placed / taken - 1  # groups that begin while one decodes
        # Those who come while the first prompt is computed begin before all others.
        early = np.minimum(0.5, one_s / np.maximum(2 * clump_s, one_s))
        early_s = np.where((before <= 0) & (clump_s > 0), early * (1 - early) * group_s, 0.0)

        def waiting(running: Array) -> tuple[Array, Array]:
            """Seconds from the queue to the first token, and between tokens."""
            plain_s = self._decode_s(laws, np.maximum(1.0, running))
            per_step = np.maximum(running / self.steps * others, _FEWEST / self.steps)
            period = gap + np.exp(-per_step * gap) / -np.expm1(-per_step)
            come = per_step * period
            come_s = self._prompts_s(laws, np.minimum(come, self._group))
            come_s = come_s * np.maximum(1.0, come / self._group)
            tau_s = plain_s + come_s / period
            held = gap / period  # share of prompts that come before the gap is over
            wait_s = (plain_s**2 + come_s**2 / period) / (2 * tau_s) + held * (gap - 1) * tau_s / 2
            own_s = self._prompts_s(laws, np.minimum(1 + held * per_step * gap, self._group))
            together_s = self._decode_s(laws, placed) + (before * group_s + early_s) / self.steps
            tau_s = np.where(self._equal, together_s, tau_s)
            first_s = np.where(self._equal, group_s - early_s, wait_s + own_s)
            return first_s + others * self._held_steps * tau_s, tau_s

        def off(running: Array) -> Array:
            first_s, tau_s = waiting(running)
            decode_s = self.steps * tau_s
            alone = users * decode_s / (request_s + clump_s + first_s + decode_s)
            return np.asarray(np.minimum(alone, placed * decode_s / (first_s + decode_s)) - running)

        running = _root(off, np.minimum(users, most))
        first_s, tau_s = waiting(running)
        decode_s = self.steps * tau_s
        # Where places are short the others wait; Little's law says how long.
        steady_s = np.maximum(users * decode_s / running - decode_s, request_s + clump_s + first_s)
        plain_s = self._decode_s(laws, np.maximum(1.0, running))
        each_s = group_s + np.where(self._gathers(c), np.minimum(gap, self.steps) * plain_s, 0.0)
        burst_s = request_s + c["closed_loop.intake_s"] * users / 2 + self._warm_up_s(c)
        burst_s = burst_s + group_s + np.maximum(0.0, users / taken - 1) / 2 * each_s
        ttft_s = (burst_s + (self.generations - 1) * steady_s) / self.generations
        whole_s = ttft_s + self._answer_steps * tau_s
        return RunTimes(ttft_s, tau_s, running, users / whole_s, whole_s)

    def _gathers(self, c: Mapping[str, Array]) -> Array:
        """Whether an engine lets so many decode steps pass between two groups of prompts."""
        return np.asarray(c["scheduling.admission_steps"] > 0)

    def _gap_steps(self, c: Mapping[str, Array]) -> Array:
        """Decode steps between two groups of prompts, at least."""
        ratio_steps = c["scheduling.waiting_ratio"] * self.steps
        return np.asarray(np.maximum(1.0, np.minimum(c["scheduling.admission_steps"], ratio_steps)))

    def _most_gathered(self, c: Mapping[str, Array]) -> Array:
        """Sequences that groups of prompts keep decoding.

        As many groups as are let in while one answer lasts; few that run let the next in before
        the gap is over. Groups of equal answers end whole.
        """
        few = np.ceil((self._group + 1) / c["scheduling.waiting_ratio"]) - 1
        gap = np.where(self._equal, c["scheduling.admission_steps"], self._gap_steps(c))
        joined = np.where(self._equal, few // self._group * self._group, few)
        groups = np.maximum(self._group * self.steps / np.maximum(1.0, gap), self._group + joined)
        return np.asarray(groups)

    def _prompts_s(self, laws: StepLaws, prompts: Array) -> Array:
        """Steps that compute prompts while nobody decodes."""
        return self._mixed_s(laws, prompts, 0 * prompts)

    def _others(self, laws: StepLaws) -> Array:
        """Share of prompts that are other users'; a user without a place sends none."""
        placed = self._placed(laws.c)
        return np.asarray((placed - 1) / placed)

    def _waiting(
        self, laws: StepLaws, per_step: Array, running: Array
    ) -> tuple[Array, Array, Array]:
        """Times while `per_step` prompts come per step.

        Returns:
            Time to the first token, that between two decode steps, and the part of it that a
            request waits for before its first token already, in a clump.
        """
        others = self._others(laws)
        decoding = np.maximum(1.0, running)
        none = 0 * decoding
        plain_s = laws.seconds(none, none, none, decoding, decoding * self.context)
        per_step = np.maximum(per_step, _FEWEST / self.steps)
        come = -np.expm1(-per_step)  # fraction of steps with a new prompt
        prompts = per_step / come
        left = np.maximum(1.0, self.budget - decoding * self.each)
        parts = np.maximum(1.0, prompts * self.inputs / left)
        part_s = self._mixed_s(laws, prompts, decoding, by_chance=True) / parts
        own_s = self._mixed_s(laws, 1 + per_step, running * others, by_chance=True)
        share = np.minimum(1.0, come * parts)
        # As many come while the own prompt is computed, for the first step after it.
        added_s = share * np.maximum(0.0, part_s - plain_s)
        base_s = plain_s + added_s * (1 - 1 / self.steps)
        tau_s = (base_s + np.sqrt(base_s**2 + 4 * added_s * own_s / self.steps)) / 2
        tau_s = np.minimum(part_s, tau_s)
        share = (tau_s - plain_s) / np.where(part_s > plain_s, part_s - plain_s, np.inf)
        squares = (1 - share) * plain_s**2 + share * part_s**2
        residual_s = others * squares / (2 * tau_s)
        mixing_s = np.maximum(0.0, tau_s - plain_s)
        before_s = np.minimum(self._clump_s(laws, own_s) / self.steps, mixing_s / 2)
        held_s = others * self._held_steps * (tau_s - before_s)
        return self._request_s(laws) + residual_s + held_s + own_s, tau_s, before_s

    def _in_step(self, laws: StepLaws) -> Array:
        """Share of later generations that come all at once, as the burst does."""
        window = np.sqrt(12) * self.spread
        shares = np.exp(-window / laws.c["closed_loop.together_steps"])
        return np.asarray(laws.c["scheduling.prefill_first"] * shares)

    def _clump_s(self, laws: StepLaws, prompt_s: Array) -> Array:
        """Wait for prompts that came just before, beyond that for evenly spread ones."""
        users = self._placed(laws.c)
        others: Array = self._clump_share * (np.sqrt(users) - 1)
        return np.asarray(laws.c["closed_loop.clump_prompts"] * others * prompt_s)

    def _request_s(self, laws: StepLaws) -> Array:
        return np.asarray(laws.c["host.request_s"] + laws.c["host.prompt_token_s"] * self.inputs)

    def _mixed_s(
        self, laws: StepLaws, prompts: Array, sequences: Array, *, by_chance: bool = False
    ) -> Array:
        """Steps that compute `prompts` prompts beside `sequences` decoding ones.

        Where prompts are computed apart, the sequences decode once for all of these steps.

        Args:
            by_chance: Whether `prompts` is the mean of those that come by chance.
        """
        tokens = prompts * self.inputs
        apart = laws.c["scheduling.separate_prefill"] > 0
        left = self.budget - np.where(apart, 0.0, sequences * self.each)
        steps = np.maximum(1.0, tokens / np.maximum(1.0, left))
        sequences = np.where(apart, sequences / steps, sequences)
        spread: Array | float = 0.0
        if by_chance:  # a step has whole prompts, one at least, each as long as it happens to be
            varied = 2 * self.pairs / self.inputs**2 - 1 + np.maximum(0.0, 1 - 1 / prompts)
            spread = np.where(steps > 1, 0.0, tokens * np.sqrt(np.maximum(0.0, varied) / prompts))
        each_s = laws.seconds(
            tokens / steps,
            prompts * self.pairs / steps,
            prompts / steps,
            sequences,
            sequences * self.context,
            spread,
        )
        return np.asarray(steps * each_s)

    def _ttft_s(self, laws: StepLaws, running: Array, tau_s: Array) -> Array:
        users = self._placed(laws.c)
        burst_s, burst_steps = self._burst(laws, users, tau_s)
        later = np.maximum(0.0, self.generations - 1)
        total = burst_s + self._warm_up_s(laws.c)
        one = np.ones_like(tau_s)
        clump_s = self._clump_s(laws, self._mixed_s(laws, one, 0 * one))
        taken = np.maximum(1.0, (self.budget - running) / self.inputs)
        steady = running / self.steps
        for low, high in _SLICES:
            generation = np.maximum(1.0, 0.5 + later * (low + high) / 2)
            window = np.sqrt(12 * generation) * self.spread + burst_steps
            coming = np.maximum(steady, users / np.maximum(1.0, window))
            ttft_s, *_ = self._waiting(laws, np.minimum(coming, taken), running)
            full_s = self._mixed_s(laws, taken, running)
            queue = np.maximum(0.0, users - window * taken) / 2  # in its mean, prompts ahead
            total = total + later * (high - low) * (ttft_s + queue / taken * full_s + clump_s)
        return np.asarray(total / self.generations)

    def _warm_up_s(self, c: Mapping[str, Array]) -> Array:
        experts = self._stack.experts
        mxfp4_s, other_s = c["closed_loop.warm_up_mxfp4_s"], c["closed_loop.warm_up_experts_s"]
        each_s = np.where(experts["mxfp4"] > 0, mxfp4_s[:, None], other_s[:, None])
        experts_s = np.where(experts["count"] > 0, each_s, 0.0).max(axis=1, initial=0.0)
        return np.asarray(self._cold * (c["closed_loop.warm_up_s"] + experts_s))

    def _burst(self, laws: StepLaws, users: Array, tau_s: Array) -> tuple[Array, Array]:
        """Mean time to first token when all users come at once, and its length in steps."""
        taken = np.clip(self.budget / self.inputs, 1.0, users)
        steps = users / taken
        decoding = users / 2 * (1 - 1 / steps)  # those that already decode, on average
        step_s = self._mixed_s(laws, taken, decoding)
        intake_s = laws.c["closed_loop.intake_s"] * users / 2
        return self._request_s(laws) + intake_s + step_s * (steps + 1) / 2, steps


def _root(off: Callable[[Array], Array], most: Array) -> Array:
    """B at which nothing is off, at most `most`.

    Secants, which stay within the bounds and move by half of what is off where they are flat.
    """
    running, last, missed = most, most, off(most)
    running = running + missed / 2
    for _ in range(_SECANTS):
        missing = off(running)
        slope = (missing - missed) / np.where(running == last, np.inf, running - last)
        step = np.where(slope < _FLAT, -missing / np.minimum(slope, _FLAT), missing / 2)
        last, missed = running, missing
        running = np.clip(running + step, _FEWEST, most)
    return running
