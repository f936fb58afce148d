"""Runs side by side: their requests, places and the steps of their prompts, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from servetune.perf.roofline.clumps import clump_share
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.gathering import Gathering, whole_prompts
from servetune.perf.roofline.steady_state import ANSWER_SHARES, LengthMoments
from servetune.perf.roofline.step_laws import Array, PlanBatch, StepLaws
from servetune.plan.plan import Plan

#: Runs of which something holds; shape (R,).
Mask: TypeAlias = NDArray[np.bool_]
#: How the requests of a run come: `closed`, each user's next after the answer to the last; `open`,
#: at a rate; all at once as one `static` batch, as an `offline` list that is worked off, or as a
#: `burst` whose requests are timed one by one.
Protocol: TypeAlias = Literal["closed", "open", "static", "offline", "burst"]


class RunTimes(NamedTuple):
    """Means of R runs, one copy each; seconds, each of shape (R,).

    Attributes:
        tpot_s: Gap between tokens, steps with others' prompts included.
        running: Sequences decoding at the same time.
        requests_per_s: Requests over the run's time; in closed loops users over the mean time of a
            request, that of the steady state where some wait for a place (`endings.over_the_run`
            has the rate of the whole run).
        e2e_s: Mean time of a request; of the whole run where all come at once.
        scattered_s: Time to the first token where users of a closed loop with equal answers do not
            stay in step; `ttft_s` in all other runs.
    """

    ttft_s: Array
    tpot_s: Array
    running: Array
    requests_per_s: Array
    e2e_s: Array
    scattered_s: Array

    def blended(self, share: Array, other: RunTimes) -> RunTimes:
        """Means of which the other's have a share."""
        return RunTimes(*(a + share * (b - a) for a, b in zip(self, other, strict=True)))

    def where(self, mask: Mask, other: RunTimes) -> RunTimes:
        """These means, and the other's where the mask is true."""
        return RunTimes(*(np.where(mask, b, a) for a, b in zip(self, other, strict=True)))


#: Fewest sequences that decode at the same time, on average, in a run.
FEWEST = 1e-6


class Runs:
    """R runs in array form; parts that do not depend on coefficients are computed once.

    Attributes, each of shape (R,); of one copy where `copies` has no say, each stage of a pipeline
    being one:
        copies: Copies of the model, times the stages of each.
        busy_copies: Those that have a request.
        users: Requests in flight, of open loops those of the cap; no more than the run has.
        requests: Requests of the run.
        generations: Requests that one user sends.
        inputs: Tokens of a prompt that the prefix cache lacks.
        pairs: Mean sum of their positions.
        varied_inputs: Squared coefficient of variation of their number.
        steps: Decode steps of a request, one at least.
        answer_steps: Those of answers of one token, too: zero.
        gained: Tokens gained per step.
        each: Tokens that a decoding sequence takes of a step's budget.
        spread: Standard deviation of decode steps.
        varied: Its square over that of the mean, at most that of an exponential law.
        equal: Whether all answers take equally many steps: users then stay in step.
        clumped: Requests that come shortly before one of an open loop, and as many after it,
            beyond those who come by chance; none where the loop is capped.
        paced: Whether it is an open loop with a limit of requests in flight: a closed one whose
            users come at its rate, not all at once.
        group: Prompts of the mean length that one step takes whole, one at least.
        whole_prompts: Prompts that one step takes on average if it takes none in part.

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
        dispersions: `PlannedRun.dispersion`, per run; 1 if omitted.
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
        dispersions: Sequence[float] | None = None,
        capped: Sequence[bool] | None = None,
        warmed: Sequence[bool] | None = None,
        admission_delay_steps: Sequence[float] | None = None,
    ) -> None:
        self.stack = stack
        kinds = protocols or ["closed"] * len(plans)
        self.at_a_rate = np.array([kind == "open" for kind in kinds])
        self.capped = np.array(capped or np.zeros(len(plans)), bool)
        self.at_once = np.array([kind in ("static", "offline", "burst") for kind in kinds])
        #: Whether answers are streamed over HTTP; static batches and lists are not.
        self.streams = np.array([kind not in ("static", "offline") for kind in kinds], float)
        self.cold = 1.0 - np.asarray(warmed or np.zeros(len(plans)), float)
        self.timed_each = np.array([kind == "burst" for kind in kinds])
        # Each stage computes another batch, so a pipeline serves like as many slower copies; the
        # one batch that comes at once stays together.
        stages = np.array(
            [
                1 if kind == "static" else plan.pipeline_parallel
                for kind, plan in zip(kinds, plans, strict=True)
            ],
            float,
        )
        self.stages = stages
        self.copies = stages * [plan.replicas * plan.data_parallel for plan in plans]
        self.rate_per_s = np.asarray(rates_per_s or np.zeros(len(plans)), float) / self.copies
        count = np.asarray(request_count, float)
        in_flight = np.asarray(concurrency, float)
        # Of a list each copy of the model has a request at a time at least.
        in_flight = np.where(self.at_once, np.maximum(in_flight, self.copies / stages), in_flight)
        in_flight = np.where(self.at_a_rate, in_flight, np.minimum(in_flight, count))
        self.concurrency = in_flight
        self.budget = np.array([plan.max_num_batched_tokens for plan in plans], float)
        self.seats = np.array([plan.max_num_seqs for plan in plans], float) / stages
        self.kv_tokens = np.asarray(kv_tokens, float) / stages
        caches = list(zip(moments, kv_tokens, strict=True))
        self.cached, self.whole_cached = (
            np.array([m.places(kv, whole_answers=whole) for m, kv in caches]) / stages
            for whole in (False, True)
        )
        computed = [m.computed(kv) for m, kv in caches]
        self.inputs, self.pairs, own_pairs = map(np.array, zip(*computed, strict=True))
        self.varied_inputs = (2 * own_pairs / self.inputs - 1) / self.inputs - 1
        self._prompt_tokens = np.array([m.input_tokens for m in moments])
        self.outputs = np.array([m.output_tokens for m in moments])
        self.context = np.array([m.context_tokens for m in moments])
        self.gained = np.array(
            [tokens_per_step(plan) if plan.draft_tokens else 1.0 for plan in plans]
        )
        self.spread = np.array([m.output_spread_tokens for m in moments]) / self.gained
        self.each = np.array([1 + (plan.draft_tokens or 0) for plan in plans], float)
        self.clump_share = clump_share(self.spread * self.gained / self.outputs)
        self.steps = np.maximum(1.0, (self.outputs - 1) / self.gained)
        self.answer_steps = np.maximum(0.0, self.outputs - 1) / self.gained
        self._moments = moments
        self.users = np.maximum(1.0, self.concurrency / self.copies)
        free = self.at_a_rate & ~self.capped
        self.paced = self.at_a_rate & self.capped
        self.busy_copies = np.where(free, self.copies, np.minimum(self.concurrency, self.copies))
        self.generations = np.maximum(1.0, count / self.concurrency)
        self.admission_delay_steps = np.asarray(
            admission_delay_steps or np.zeros(len(plans)), float
        )
        self.held_steps = np.where(free, 0.0, self.admission_delay_steps)
        self.requests = count / np.where(self.at_once, self.busy_copies, self.copies)
        # A client with a limit holds back what comes in a burst; copies get a random part of one.
        dispersion = np.asarray(dispersions or np.ones(len(plans)), float)
        clumped = np.minimum(dispersion - 1, np.maximum(0.0, count - 1)) / 2 / self.copies
        self.clumped = np.where(self.capped, 0.0, clumped)
        self.group = np.maximum(1.0, self.budget // self.inputs)
        self.whole_prompts = np.asarray(whole_prompts(self.budget, self.inputs, own_pairs))
        self.equal = (self.spread == 0) & (self.gained == 1)
        self.varied = np.minimum(1.0, (self.spread / self.steps) ** 2)

    @property
    def answers(self) -> Array:
        """Decode steps of each of `ANSWER_SHARES` of the answers, shape (R, J)."""
        alike = len(ANSWER_SHARES)
        tokens = np.array([m.answers or (m.output_tokens,) * alike for m in self._moments])
        return np.asarray(np.maximum(0.0, tokens - 1) / self.gained[:, None])

    def most_running(self, c: Mapping[str, Array]) -> Array:
        """Sequences of one copy that decode at the same time at most, shape (R,).

        Those that have a place; fewer, less than one even, where prompts fill every step that
        they share, and where an engine gathers prompts as many as it has let in.
        """
        most = np.minimum(self.placed(c), self.decoding_beside(c))
        return np.where(self.gathers(c), np.minimum(most, self.gathering(c).most_running), most)

    def decoding_beside(self, c: Mapping[str, Array]) -> Array:
        """Sequences that can decode beside the prompts that they bring, if these share steps."""
        filling = self.budget / (self.each + self.inputs / self.steps)
        return np.asarray(np.where(self.apart(c), np.inf, filling))

    def placed(self, c: Mapping[str, Array]) -> Array:
        """Users of one copy that have a place at the same time, their prompts computed or not.

        Where the engine reserves whole answers a sequence keeps all of its place from the start.
        """
        return np.asarray(np.minimum(self.users, self.most_placed(c)))

    def most_placed(self, c: Mapping[str, Array]) -> Array:
        cached = np.where(self.reserves(c), self.whole_cached, self.cached)
        return np.asarray(np.maximum(1.0, np.minimum(self.seats, cached)))

    def reserves(self, c: Mapping[str, Array]) -> Mask:
        """Whether a sequence is let in only when its whole answer has room."""
        return np.asarray((c["scheduling.whole_answers"] > 0) | (c["scheduling.known_answers"] > 0))

    def rooms(self, c: Mapping[str, Array]) -> Array:
        """Tokens of cache that an answer of each of `ANSWER_SHARES` reserves, shape (R, J).

        Relative to the mean of decoding sequences, among which long answers are the most frequent;
        one where an engine does not reserve whole answers.
        """
        held = np.array([m.reserved_tokens or 1.0 for m in self._moments])
        tokens = self._prompt_tokens[:, None] + 1 + self.answers * self.gained[:, None]
        return np.where(self.reserves(c)[:, None], tokens / held[:, None], 1.0)

    def apart(self, c: Mapping[str, Array]) -> Mask:
        """Whether prompts are computed in steps of their own."""
        return np.asarray(c["scheduling.separate_prefill"] > 0)

    def gathers(self, c: Mapping[str, Array]) -> Mask:
        """Whether an engine lets so many decode steps pass between two groups of prompts."""
        return np.asarray(self.apart(c) & (c["scheduling.admission_steps"] > 0))

    def gathering(self, c: Mapping[str, Array]) -> Gathering:
        """How prompts are gathered, where the engine does so."""
        after, ratio = c["scheduling.admission_steps"], c["scheduling.waiting_ratio"]
        group = np.minimum(self.whole_prompts, self.most_placed(c))
        return Gathering(after, ratio, self.steps, self.equal, group)

    def decode_s(self, laws: StepLaws, users: Array, spread: Array | float = 0.0) -> Array:
        """Steps that decode so many on average; `spread` is the standard deviation."""
        none = 0 * users
        return laws.seconds(none, none, none, users, users * self.context, spread)

    def prompts_s(self, laws: StepLaws, prompts: Array) -> Array:
        """Steps that compute prompts while nobody decodes."""
        return self.mixed_s(laws, prompts, 0 * prompts)

    def mixed_s(
        self,
        laws: StepLaws,
        prompts: Array,
        sequences: Array,
        *,
        by_chance: bool = False,
        spread: Array | float = 0.0,
    ) -> Array:
        """Steps that compute `prompts` prompts beside `sequences` decoding ones.

        Where prompts are computed apart, the sequences decode once for all of these steps.

        Args:
            by_chance: Whether `prompts` is the mean of one and those that come by chance.
            spread: Standard deviation of the number that decodes.
        """
        tokens = prompts * self.inputs
        apart = self.apart(laws.c)
        left = self.budget - np.where(apart, 0.0, sequences * self.each)
        steps = np.maximum(1.0, tokens / np.maximum(1.0, left))
        sequences = np.where(apart, sequences / steps, sequences)
        if by_chance:
            others = np.maximum(0.0, prompts - 1)
            # A normal law reaches too far where most often there are no others.
            others = others * np.minimum(1.0, others)
            varied = np.maximum(0.0, self.varied_inputs) * prompts + others
            spread = np.where(steps > 1, 0.0, np.sqrt(varied * self.inputs**2 + spread**2))
        each_s = laws.seconds(
            tokens / steps,
            prompts * self.pairs / steps,
            prompts / steps,
            sequences,
            sequences * self.context,
            spread,
        )
        return np.asarray(steps * each_s)

    def request_s(self, laws: StepLaws) -> Array:
        tokens_s = laws.c["host.prompt_token_s"] * self._prompt_tokens
        return np.asarray(laws.c["host.request_s"] + tokens_s)

    def clump_s(self, laws: StepLaws, prompt_s: Array) -> Array:
        """Wait for prompts that came just before, beyond that for evenly spread ones."""
        users = self.placed(laws.c)
        others: Array = self.clump_share * (np.sqrt(users) - 1)
        return np.asarray(laws.c["closed_loop.clump_prompts"] * others * prompt_s)
