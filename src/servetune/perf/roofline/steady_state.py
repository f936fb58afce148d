"""Continuous batching in its steady state, by formula instead of by simulation.

| symbol | here |
|---|---|
| C | requests in flight on one copy of the model |
| I, D | mean prompt tokens; decode steps of a request, (mean output tokens - 1) / m |
| m | tokens gained per step: 1, or more where tokens are drafted (`drafting`) |
| B | sequences that decode at the same time, on average |
| tau | step time that a decoding sequence sees |

In a steady state each request brings one prompt and D decode steps, so B decoding sequences
mean B/D prompts per step; they come by chance, so 1 - exp(-B/D) of all steps have any. Those take
longer, or where prompts have steps of their own one comes before them in which nobody decodes, at
least `admission_steps` after the one before. A request waits for the step in progress, for its own
prefill step, then D steps; by Little's law C = rate * (ttft + D * tau) and B = rate * D * tau,
solved for B. The cache, `max_num_seqs`, the token budget and the engine's admission cap B; requests
beyond that wait, and their time follows from Little's law again.

Users with equal answers stay in step: they end together and their next prompts come together. An
engine that computes prompts apart then decodes without interruption. One that mixes them keeps the
groups that fit a step apart, except those that end before the first of them is back.

Prompts that begin alike find the beginning in the prefix cache, which holds it once for all that
run: only the rest is computed, with the attention over the beginning. That of decoding stays.

Measured closed loops wait for some more prompts (`clumps`), as in the simulator. Left to it: the
burst at the start of a run, any spread around means, and preemption (the formula serves up to 25%
more where the cache is the limit). `benchmarks/prediction/agreement.py` compares the two.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from servetune.engines.memory import Memory, caches_prefixes
from servetune.errors import PlanError
from servetune.perf.roofline.clumps import ended_meanwhile, missed_share, waiting_prompts
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.gathering import Gathering, Number, begun_share, whole_prompts
from servetune.perf.roofline.step import StepLaw
from servetune.plan.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload.lengths import Lengths
from servetune.workload.parts import SharedPrefix
from servetune.workload.workload import Workload

_LENGTH_SAMPLES = 512
#: Shares of the answers by length, the shortest first: the longest decide how a run ends.
ANSWER_SHARES = (*[1 / 16] * 12, *(0.5**n for n in range(3, 10)), 0.5**9)
#: Steps towards the number of running requests, and how near in it two of them are one answer.
_ROUNDS, _NEAR = 60, 1e-6
#: How near two numbers of sequences are one answer.
_NEAR_COUNT = 1e-6
#: Points of a normal law, in standard deviations, that have its mean and variance together.
_THIRDS = (-1.2247, 0.0, 1.2247)


class OperatingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Performance of a plan at one concurrency, all copies together.

    Attributes:
        concurrency: Requests in flight.
        running: Mean number of sequences that decode at the same time.
        ttft_ms: Mean, waiting for a place included.
        itl_ms: Mean gap between tokens, steps that carry prompts included.
        queued: Whether requests wait for a place before their prompt is begun.
    """

    concurrency: int
    running: float
    ttft_ms: float
    itl_ms: float
    e2e_ms: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    queued: bool


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of one steady state by measured runs.

    Attributes:
        step_factor: Factor on every time, including those of requests outside the device.
        first_token_factor: Further factor on times from a prompt's start to its first token;
            waiting for a place follows from Little's law all the same.
    """

    step_factor: float = 1.0
    first_token_factor: float = 1.0


_AS_PRICED = Correction()


#: Standard deviation over mean of lengths that are drawn evenly from none to the longest, and a
#: little more.
_EVEN_SPREAD = 0.6


class ComputedTokens(NamedTuple):
    """Tokens C of a prompt that a prefix cache lacks.

    Attributes:
        mean: Mean of C.
        pairs: Mean sum of their positions: each looks at all before it, those in the cache, too.
        own_pairs: Mean of C(C+1)/2, which says how much prompts differ.
    """

    mean: float
    pairs: float
    own_pairs: float


class LengthMoments(msgspec.Struct, frozen=True, kw_only=True):
    """The means of a law of lengths that step times depend on.

    Attributes:
        prompt_pairs: Mean of I(I+1)/2, which a long tail makes larger than that of the mean.
        context_tokens: Mean context of a decoding sequence, over the time it decodes.
        longest_tokens: Longest prompt and answer together.
        output_spread_tokens: Standard deviation of the answer's length.
        input_spread_tokens: Standard deviation of the length that a prompt has alone.
        reserved_tokens: Mean length of a decoding sequence's prompt and whole answer, over the
            time it decodes.
        shared_tokens: Mean tokens in whole blocks that a prompt has in common with others.
        shared_pairs: Mean of S(S+1)/2 over these.
        shared_products: Mean of their product with the length of their prompt.
        prefixes: Number of different beginnings of that length, equally frequent.
        answers: Mean length of each of `ANSWER_SHARES` of the answers, the shortest first; all are
            of the mean length if empty.
    """

    input_tokens: float
    output_tokens: float
    prompt_pairs: float
    context_tokens: float
    longest_tokens: int
    output_spread_tokens: float = 0.0
    input_spread_tokens: float = 0.0
    reserved_tokens: float = 0.0
    shared_tokens: float = 0.0
    shared_pairs: float = 0.0
    shared_products: float = 0.0
    prefixes: int = 1
    answers: tuple[float, ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether answers differ more than lengths drawn evenly from none to the longest do.

        Those of conversations do, and tables often state only their mean.
        """
        return self.output_spread_tokens > _EVEN_SPREAD * self.output_tokens

    def sequences_in(self, kv_tokens: float, tokens_each: float) -> float:
        """Sequences of so many tokens that a cache holds, each different beginning once.

        B of them have N (1 - (1 - 1/N)^B) of N beginnings, on average.
        """
        if not self.shared_tokens:
            return kv_tokens / tokens_each
        own = tokens_each - self.shared_tokens
        if kv_tokens <= self.shared_tokens + own:
            return kv_tokens / tokens_each
        absent = 1 - 1 / self.prefixes
        low, high = 1.0, kv_tokens / own
        while high - low > _NEAR_COUNT * low:
            count = (low + high) / 2
            held = count * own + self.shared_tokens * self.prefixes * (1 - absent**count)
            low, high = (count, high) if held <= kv_tokens else (low, count)
        return low

    def places(self, kv_tokens: float, *, whole_answers: bool) -> float:
        """Sequences that a cache holds, on average.

        Args:
            kv_tokens: Tokens that it holds.
            whole_answers: Whether a sequence is let in only when its whole answer has room.
        """
        if not whole_answers:
            return self.sequences_in(kv_tokens, self.context_tokens)
        whole_tokens = self.input_tokens + self.output_tokens
        if self.output_spread_tokens == 0:
            return float(np.floor(self.sequences_in(kv_tokens, whole_tokens)))
        # What is left beside them is too little for who waits first.
        return self.sequences_in(kv_tokens - whole_tokens / 2, self.reserved_tokens)

    def found_fraction(self, kv_tokens: float) -> float:
        """Share of prompts whose beginning a cache of this size has.

        The cache gives up what was used least recently. It goes back over the last T requests, by
        Che's approximation all that fit, so it has a beginning that one of these had (Che, Tung and
        Wang, Hierarchical web caching systems, IEEE JSAC 20, 2002). First uses are left out.
        """
        if not self.shared_tokens:
            return 0.0
        remembered = self.sequences_in(kv_tokens, self.input_tokens + self.output_tokens)
        if remembered < 1:
            return 0.0
        return float(1 - (1 - 1 / self.prefixes) ** remembered)

    def computed(self, kv_tokens: float) -> ComputedTokens:
        """Tokens of a prompt that such a cache lacks."""
        if not self.shared_tokens:
            return ComputedTokens(self.input_tokens, self.prompt_pairs, self.prompt_pairs)
        found = self.found_fraction(kv_tokens)
        both = self.shared_products - self.shared_pairs + self.shared_tokens
        return ComputedTokens(
            self.input_tokens - found * self.shared_tokens,
            self.prompt_pairs - found * self.shared_pairs,
            self.prompt_pairs - found * both,
        )


def length_moments(
    lengths: Lengths,
    seed: int = 1,
    shared: SharedPrefix | None = None,
    block_tokens: int | None = None,
) -> LengthMoments:
    """Moments of the law, from stratified draws where it is not a constant.

    Args:
        lengths: Law of lengths.
        seed: Seed of the draws.
        shared: Beginnings that prompts have in common, where a cache finds them again.
        block_tokens: Tokens of a block of that cache.
    """
    return _length_moments(lengths, seed, shared, block_tokens)


@functools.lru_cache(maxsize=1024)
def _length_moments(
    lengths: Lengths, seed: int, shared: SharedPrefix | None, block_tokens: int | None
) -> LengthMoments:
    drawn_in, drawn_out = lengths.draw(_LENGTH_SAMPLES, np.random.default_rng(seed))
    inputs, outputs = drawn_in.astype(float), drawn_out.astype(float)
    steps = np.maximum(outputs - 1, 0)
    context = inputs + (outputs + 1) / 2
    weights = steps if steps.any() else np.ones_like(steps)
    found = LengthMoments(
        input_tokens=float(inputs.mean()),
        output_tokens=float(outputs.mean()),
        prompt_pairs=float((inputs * (inputs + 1) / 2).mean()),
        context_tokens=float(np.average(context, weights=weights)),
        longest_tokens=int((drawn_in + drawn_out).max()),
        output_spread_tokens=float(outputs.std()),
        input_spread_tokens=float(inputs.std()),
        reserved_tokens=float(np.average(inputs + outputs, weights=weights)),
        answers=_by_share(np.sort(outputs)),
    )
    if shared is None:
        return found
    most = inputs - 1  # the last token of a prompt is computed always
    alike = most if shared.tokens is None else np.minimum(most, shared.tokens)
    alike -= alike % (block_tokens or 1)
    return msgspec.structs.replace(
        found,
        input_spread_tokens=float((inputs - alike).std()),
        shared_tokens=float(alike.mean()),
        shared_pairs=float((alike * (alike + 1) / 2).mean()),
        shared_products=float((alike * inputs).mean()),
        prefixes=shared.count,
    )


def _by_share(ordered: np.ndarray) -> tuple[float, ...]:
    """Mean of each of `ANSWER_SHARES` of whole numbers in rising order; none if all are equal."""
    if ordered[0] == ordered[-1]:
        return ()
    ends = np.rint(np.cumsum(ANSWER_SHARES) * len(ordered)).astype(int)
    starts = np.append(0, ends[:-1])
    return tuple((np.add.reduceat(ordered, starts) / (ends - starts)).tolist())


def moments_of(lengths: Lengths | LengthMoments) -> LengthMoments:
    """Moments of a law of lengths, which may be given as they are."""
    return lengths if isinstance(lengths, LengthMoments) else length_moments(lengths)


def workload_moments(workload: Workload, plan: Plan, divided: Memory) -> LengthMoments:
    """Moments of a workload's lengths, and of what its prompts have in common in a plan's cache.

    Args:
        workload: The workload.
        plan: Resolved plan.
        divided: Division of its memory.
    """
    shared = workload.found_prefix if caches_prefixes(plan, divided) else None
    return length_moments(workload.lengths, workload.seed, shared, plan.block_tokens)


class _Balance(msgspec.Struct, frozen=True):
    """Seconds of one copy's steady state with a given number of decoding sequences.

    Attributes:
        outside_s: Time before a request is in the engine's queue.
        first_s: Time from the engine's queue, where a place is free, to the first token.
        tau_s: Time between two decode steps.
        most_per_s: Requests per second that are served at most, where prompts are gathered.
    """

    outside_s: float
    first_s: float
    tau_s: float
    most_per_s: float = math.inf


#: Points of one law and one set of lengths, by what of a plan's limits they depend on.
KnownPoints: TypeAlias = dict[Hashable, OperatingPoint]


class SteadyState:
    """The steady state of a resolved plan under a step law, as a function of concurrency.

    Attributes:
        most_running: Largest B that cache, `max_num_seqs` and token budget allow, per copy.
        cached_fraction: Share of a prompt's tokens that the prefix cache has, on average.
        computed_tokens: Mean tokens of a prompt that are computed.
        computed_pairs: Mean of their positions' sum: each looks at all before it.
    """

    def __init__(
        self,
        law: StepLaw,
        plan: Plan,
        kv_tokens: float,
        moments: LengthMoments,
        known: KnownPoints | None = None,
    ) -> None:
        assert plan.max_num_seqs is not None
        assert plan.max_num_batched_tokens is not None
        if plan.prefill_replicas is not None:
            raise PlanError(
                "there is no formula for servers that only compute prompts",
                hint="simulate them with servetune simulate",
            )
        self.moments = moments
        found = moments.found_fraction(kv_tokens)
        self.cached_fraction = found * moments.shared_tokens / moments.input_tokens
        computed = moments.computed(kv_tokens)
        self.computed_tokens, self.computed_pairs, own_pairs = computed
        self._computed_spread_tokens = math.hypot(
            moments.input_spread_tokens, math.sqrt(found * (1 - found)) * moments.shared_tokens
        )
        self._known: KnownPoints = {} if known is None else known
        self._law = law
        self._budget = plan.max_num_batched_tokens
        # Each stage of a pipeline computes another batch: it serves like as many slower copies.
        self._stages = stages = plan.pipeline_parallel
        self._copies = plan.replicas * plan.data_parallel * stages
        self._gained = tokens_per_step(plan)
        self._decode_steps = (moments.output_tokens - 1) / self._gained
        c = law.coefficients
        self._scheduling = c.scheduling
        self._request_s = c.host.request_s + c.host.prompt_token_s * moments.input_tokens
        taken = self._budget / self.computed_tokens  # chunks of prompts fill a step
        if c.scheduling.separate_prefill:
            taken = math.floor(taken)
        self._prompts_taken = max(1.0, taken)
        self._lone_prompt_s: float | None = None
        self._gathering: Gathering | None = None
        whole_answers = c.scheduling.whole_answers or c.scheduling.known_answers
        cached = moments.places(kv_tokens, whole_answers=whole_answers)
        self._places = max(1.0, min(plan.max_num_seqs, cached) / stages)
        self.most_running = self._places
        spread = moments.output_spread_tokens / moments.output_tokens
        #: Steps that a prompt misses because they are composed when it comes.
        self._missed_steps = missed_share(spread) if law.composed_ahead else 0.0
        #: Whether all answers take equally many steps: users then stay in step.
        self._equal = moments.output_spread_tokens == 0 and self._gained == 1
        #: Whether prompts that follow from answers of one step come apart, however little.
        self._one_by_one = c.closed_loop.intake_s + c.closed_loop.clump_prompts > 0
        if self._decode_steps <= 0:
            return
        if c.scheduling.separate_prefill and c.scheduling.admission_steps:
            group = whole_prompts(self._budget, self.computed_tokens, own_pairs)
            self._gathering = Gathering(
                c.scheduling.admission_steps,
                c.scheduling.waiting_ratio,
                self._decode_steps,
                self._equal,
                np.minimum(group, self._places),
            )
            self.most_running = min(self._places, float(self._gathering.most_running))
            if self._equal:
                self._places = self.most_running
        if not c.scheduling.separate_prefill:
            each = law.tokens_each + self.computed_tokens / self._decode_steps
            beside = self._budget / each
            self.most_running = min(self._places, beside)
            if self._equal:  # those who decode, and the group whose prompts fill their steps
                group = self._budget / min(self.computed_tokens, self._budget)
                self._places = self.most_running = min(self._places, beside + group)

    def at(self, concurrency: int, correction: Correction = _AS_PRICED) -> OperatingPoint:
        """The steady state with `concurrency` requests in flight over all copies."""
        read = self._read(concurrency, correction)
        point = self._known.get(read)
        if point is None:
            state = self
            if self._stages > 1:
                users = concurrency * self._stages / self._copies
                state = self._with_law(self._law.with_batches(users))
            point = self._known[read] = state._at(concurrency, correction)
        return point

    def scattered(self, concurrency: int) -> float:
        """Factor on the time to the first token where users with equal answers fall out of step."""
        share = max(1.0, concurrency / self._copies)
        if not self._equal or self._decode_steps <= 0 or share <= 1:
            return 1.0
        running, balance = self._running(share, 1.0)
        placed = min(share, self._places)
        others, decoding = (placed - 1) / placed, max(1.0, running)
        per_step = running / self._decode_steps * others
        apart = self._scheduling.separate_prefill
        balanced = self._between_decodes if apart else self._among_decodes
        alone_s, _ = balanced(per_step, decoding, others)
        ttft_s = self.at(concurrency).ttft_ms / MS_PER_S
        return 1 - max(0.0, balance.first_s - alone_s) / max(ttft_s, balance.first_s)

    def _read(self, concurrency: int, correction: Correction) -> Hashable:
        """All that a point depends on besides the law, the lengths and the number of copies.

        Places beyond the users of a copy change nothing.
        """
        share = max(1.0, concurrency / self._copies)
        return (
            concurrency,
            correction,
            self._budget,
            self.computed_tokens,
            self.computed_pairs,
            self._computed_spread_tokens,
            min(share, self._places),
            self.most_running if self.most_running <= share else math.inf,
        )

    def _with_law(self, law: StepLaw) -> SteadyState:
        state = copy.copy(self)
        state._law, state._lone_prompt_s = law, None
        return state

    def _at(self, concurrency: int, correction: Correction) -> OperatingPoint:
        slower, first_factor = correction.step_factor, correction.first_token_factor
        share = max(1.0, concurrency / self._copies)
        busy_copies = min(concurrency, self._copies)
        if self._decode_steps <= 0:
            return self._prefill_only(concurrency, share, busy_copies, correction)
        running, balance = self._running(share, first_factor)
        decode_s = self._decode_steps * balance.tau_s
        e2e_s = max(
            share * decode_s / running,  # Little's law: waiting for a place is what is left
            balance.outside_s + balance.first_s + decode_s,
        )
        # Times that are all longer by one factor leave the number that decode as it is.
        return self._point(
            concurrency,
            share * decode_s / e2e_s * busy_copies,
            share / e2e_s / slower * busy_copies,
            (e2e_s - decode_s) * slower,
            balance.tau_s * slower,
            share > self._places
            or running >= min(self.most_running, balance.most_per_s * decode_s),
        )

    def _running(self, share: float, first_factor: float) -> tuple[float, _Balance]:
        """B that solves B = C * D * tau / (ttft + D * tau), at most `most_running`; its times.

        C are those who have a place, which they keep while their prompt is computed; while others
        wait for one, it is taken again at once.
        """
        high = min(share, self.most_running)
        count, balance = self._running_from(high, share, first_factor)
        surplus = count - high
        if surplus >= 0:
            return high, balance
        if self._equal:  # times do not depend on B there
            return high + surplus, balance
        # False position between two bounds; a bound that stays twice counts half (Illinois).
        low, deficit, last = 0.0, self._running_from(0.0, share, first_factor)[0], high
        stayed = 0
        for _ in range(_ROUNDS):
            here = (low * surplus - high * deficit) / (surplus - deficit)
            count, balance = self._running_from(here, share, first_factor)
            gap = count - here
            if abs(here - last) <= _NEAR * here:
                return here, balance
            last = here
            if gap >= 0:
                low, deficit = here, gap
                surplus = surplus / 2 if stayed > 0 else surplus
                stayed = 1
            else:
                high, surplus = here, gap
                deficit = deficit / 2 if stayed < 0 else deficit
                stayed = -1
        middle = (low + high) / 2
        return middle, self._balance(middle, share, first_factor)

    def _running_from(
        self, running: float, share: float, first_factor: float
    ) -> tuple[float, _Balance]:
        """How many decode with the times of `running` decoding ones, and these times."""
        balance = self._balance(running, share, first_factor)
        decode_s = self._decode_steps * balance.tau_s
        queue_s = balance.first_s + decode_s
        alone = share * decode_s / (balance.outside_s + queue_s)
        most = min(self._places / queue_s, balance.most_per_s)
        return min(alone, most * decode_s), balance

    def _balance(self, running: float, share: float, first_factor: float) -> _Balance:
        """Times that one request sees; alone, it never shares a step with a prompt."""
        placed = min(share, self._places)
        others = (placed - 1) / placed
        decoding = max(1.0, running)
        clump_s = self._clump_s(share)
        outside_s = self._request_s + clump_s
        most_per_s = math.inf
        if self._equal:
            first_s, tau_s = self._in_step(placed, clump_s, waiting=share - placed)
        elif self._gathering is not None:
            plain_s = self._decode_s(decoding)
            found = self._gathering.times(plain_s, self._alone_s, running, placed)
            first_s, tau_s = float(found.wait_s + found.own_s), float(found.tau_s)
            most_per_s = float(found.most_per_s)
        else:
            per_step = running / self._decode_steps * others
            apart = self._scheduling.separate_prefill
            balanced = self._between_decodes if apart else self._among_decodes
            first_s, tau_s = balanced(per_step, decoding, others)
        return _Balance(first_factor * outside_s, first_factor * first_s, tau_s, most_per_s)

    def _clump_s(self, share: float) -> float:
        """Wait before the engine's queue; see `clumps`."""
        mean_tokens, sd_tokens = self.moments.output_tokens, self.moments.output_spread_tokens
        clump, in_step = waiting_prompts(
            self._law.coefficients, share, mean_tokens, sd_tokens, self._prompts_taken
        )
        if self._lone_prompt_s is None:
            self._lone_prompt_s = self._prompts_s(1.0, 0.0)
        together = min(max(1.0, in_step), self._prompts_taken)
        each_s = self._prompts_s(together, 0.0) / together if in_step else 0.0
        return clump * self._lone_prompt_s + in_step * each_s

    def _in_step(self, placed: float, clump_s: float, waiting: float) -> tuple[float, float]:
        """Seconds to the first token and between tokens of users who stay in step.

        Args:
            placed: Users who have a place.
            clump_s: Seconds of the wait in a clump.
            waiting: Users who wait for a place.
        """
        taken, plain_s = min(placed, self._prompts_taken), self._decode_s(placed)
        if not self._scheduling.separate_prefill:
            parts = self._parts(taken, placed - taken)
            mixed_s = self._prompts_s(taken, placed - taken) / parts
            ended = ended_meanwhile(
                self._request_s, clump_s, plain_s, mixed_s, taken=taken, parts=parts
            )
            # Each of those who wait for a place is there for one of a group that ends.
            back = float(ended) * max(0.0, 1 - waiting / (taken + float(ended)))
            return self._in_step_mixed(placed, taken, plain_s, back, parts)
        group_s, before = self._prompts_s(taken, 0.0), placed / taken - 1
        begun = 1.0  # share of a group whose prompts begin together
        if self._gathering is not None:
            intake_s = self._law.coefficients.closed_loop.intake_s
            begun = float(begun_share(self._prompts_s(1.0, 0.0), intake_s, placed))
        if 1 < placed <= taken and self._one_by_one and begun >= 1:
            return self._in_step_once(placed, plain_s)
        if self._gathering is not None:
            seen_s = 2 * begun * (1 - begun) * group_s if before <= 0 else 0.0
            return group_s - seen_s, plain_s + (before * group_s + seen_s) / self._decode_steps
        tau_s = plain_s + before / 2 * group_s / self._decode_steps
        return group_s * (before + 2) / 2, tau_s

    def _in_step_once(self, placed: float, plain_s: float) -> tuple[float, float]:
        """The same for one group: the first to come has a step alone, the others the next."""
        apart = self._scheduling.separate_prefill
        others, decoded_s = (placed - 1) / placed, 0.0 if apart else plain_s
        rest_s = self._prompts_s(placed - 1, 0.0 if apart else 1.0)
        first_s = self._prompts_s(1.0, 0.0) + others * (rest_s + decoded_s / 2)
        return first_s, plain_s + (1 - others) * (rest_s - decoded_s) / self._decode_steps

    def _in_step_mixed(
        self, placed: float, taken: float, plain_s: float, ended: float, parts: float
    ) -> tuple[float, float]:
        """Seconds to the first token and between tokens where groups end one after another.

        Steps with prompts decode, too, so that a group begins as many steps after the group before
        as its prompts take: `parts`, if all are of one group that fits a step. While it is on its
        way back, `ended` others end as well.
        """
        intake_s = self._law.coefficients.closed_loop.intake_s
        begun = taken  # prompts of one step at the start of the run
        if intake_s:
            begun = min(taken, max(1.0, self._prompts_s(1.0, placed / 2) / intake_s))
        back = begun * min(placed / begun, 1 + ended)
        # One group decodes beside each step with prompts of others, and one has its own computed.
        group = max(min(taken, back), placed / (1 + self._decode_steps / parts))
        groups, queue = placed / group, max(1.0, back / group)  # its own step at the least
        if 1 < placed <= group and self._one_by_one:
            return self._in_step_once(placed, plain_s)
        seen = queue - queue * (queue - 1) / (2 * groups)  # before the first token
        group_s = self._prompts_s(group, placed - group)
        parts = self._parts(group, placed - group)  # all decode in each step of a group
        riding = min(max(0.0, groups - seen), self._decode_steps / parts)
        tau_s = plain_s + riding * (group_s - parts * plain_s) / self._decode_steps
        residual_s = plain_s / 2 * (placed - 1) / placed
        return residual_s + group_s * seen, tau_s

    def _among_decodes(
        self, per_step: float, decoding: float, others: float
    ) -> tuple[float, float]:
        """Seconds to the first token and between tokens where prompts share steps with decoding."""
        plain_s = self._decode_s(decoding)
        come = -math.expm1(-per_step)  # fraction of steps with a new prompt
        prompts = per_step / come if come else 1.0
        parts = self._parts(prompts, decoding)
        part_s = self._prompts_s(prompts, decoding) / parts
        own_s = self._prompts_s(1 + per_step, decoding * others)
        share = min(1.0, come * parts)
        # As many come while the own prompt is computed, for the first step after it.
        mixing_s = share * (part_s - plain_s)
        base_s = plain_s + mixing_s * (1 - 1 / self._decode_steps)
        first = 4 * mixing_s * own_s / self._decode_steps
        tau_s = min(part_s, (base_s + math.sqrt(base_s**2 + first)) / 2)
        share = (tau_s - plain_s) / (part_s - plain_s) if part_s > plain_s else share
        squares = (1 - share) * plain_s**2 + share * part_s**2
        residual_s = others * squares / (2 * tau_s)  # of the step in progress on arrival
        return residual_s + others * self._missed_steps * tau_s + own_s, tau_s

    def _between_decodes(
        self, per_step: float, decoding: float, others: float
    ) -> tuple[float, float]:
        """Seconds to the first token and between tokens where nobody decodes beside prompts."""
        plain_s = self._decode_s(decoding)
        if not per_step:
            return self._prompts_s(1.0, 0.0), plain_s
        period = 1 / -math.expm1(-per_step)  # steps from one group to the next
        group = per_step * period
        taken = min(group, self._prompts_taken)
        group_s = self._alone_s(taken) * group / taken
        tau_s = plain_s + group_s / period
        wait_s = (plain_s**2 + group_s**2 / period) / (2 * tau_s)
        step_s = tau_s * period / (period + group / taken)  # of those with prompts, too
        own = min(1 + per_step / period, self._prompts_taken)
        return wait_s + others * self._missed_steps * step_s + self._alone_s(own), tau_s

    def _alone_s(self, prompts: Number) -> float:
        """Seconds of the steps that compute `prompts` prompts while nobody decodes."""
        return self._prompts_s(float(prompts), 0.0)

    def _parts(self, prompts: float, sequences: float) -> float:
        """Steps that so many prompts take."""
        left = self._budget - sequences * self._law.tokens_each
        return max(1.0, prompts * self.computed_tokens / max(1.0, left))

    def _decode_s(self, sequences: float) -> float:
        return self._law.seconds(0, 0.0, 0, sequences, sequences * self.moments.context_tokens)

    def _prompts_s(self, prompts: float, sequences: float) -> float:
        """Seconds of the steps that compute `prompts` prompts beside `sequences` decoding ones.

        A prompt longer than the budget leaves takes several steps, each with all decoding
        sequences beside it. Small steps run as captured graphs, so where prompts differ the mean
        is over thirds of them by size.
        """
        steps = self._parts(prompts, sequences)
        tokens = prompts * self.computed_tokens / steps
        sizes: tuple[float, ...] = (1.0,)
        captured = self._law.captured_tokens - sequences
        if steps == 1 and 0.1 * captured < tokens < 10 * captured:
            sizes = self._sizes(prompts)
        return steps * math.fsum(
            self._law.seconds(
                size * tokens,
                size * prompts * self.computed_pairs / steps,
                prompts / steps,
                sequences,
                sequences * self.moments.context_tokens,
            )
            / len(sizes)
            for size in sizes
        )

    def _sizes(self, prompts: float) -> tuple[float, ...]:
        """Tokens over their mean in each third of groups of prompts, the smallest first."""
        mean_tokens, sd_tokens = self.computed_tokens, self._computed_spread_tokens
        if not sd_tokens:
            return (1.0,)
        # a gamma law's quantiles, by Wilson and Hilferty
        variance = ((sd_tokens / mean_tokens) ** 2 + max(0.0, 1 - 1 / prompts)) / prompts
        roots = [max(0.0, 1 - variance / 9 + z * math.sqrt(variance) / 3) for z in _THIRDS]
        mean = sum(root**3 for root in roots) / len(roots)
        return tuple(root**3 / mean for root in roots)

    def _prefill_only(
        self, concurrency: int, share: float, busy_copies: int, correction: Correction
    ) -> OperatingPoint:
        """Answers of one token: as many prompts per step as the budget takes."""
        factor = correction.step_factor * correction.first_token_factor
        prompts = min(share, max(1.0, self._budget / self.computed_tokens))
        step_s = factor * self._prompts_s(prompts, 0.0)
        request_s = factor * self._request_s
        rate = min(prompts / step_s, share / (request_s + step_s))
        queued = share > prompts
        return self._point(concurrency, 0.0, rate * busy_copies, share / rate, 0.0, queued)

    def _point(
        self,
        concurrency: int,
        running: float,
        rate_per_s: float,
        ttft_s: float,
        tau_s: float,
        queued: bool,
    ) -> OperatingPoint:
        e2e_s = ttft_s + max(0.0, self._decode_steps) * tau_s
        return OperatingPoint(
            concurrency=concurrency,
            running=running,
            ttft_ms=ttft_s * MS_PER_S,
            itl_ms=tau_s / self._gained * MS_PER_S,
            e2e_ms=e2e_s * MS_PER_S,
            requests_per_s=rate_per_s,
            input_tokens_per_s=rate_per_s * self.moments.input_tokens,
            output_tokens_per_s=rate_per_s * self.moments.output_tokens,
            queued=queued,
        )
