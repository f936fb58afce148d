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
is waited for before the first token no longer lies between tokens. Under an engine that computes
prompts first a share exp(-w / together_steps) of later generations comes all at once, as the
burst does, w the window of generation 1 without the burst's length (zero for equal answers);
users in step wait for half of the others' prompts before their first token, so only the other
half lies between their tokens. An engine that delays admission adds `admission_delay_steps` of tau.

Users without a place wait for one and change nothing else; those who have one keep it while
their prompt is computed. Where prompts fill every step (few tokens to answer), fewer decode
than have a place, and the others' prompts come all the same.

Checked against the simulator in tests/perf/test_closed_loop.py. Left to it: percentiles,
preemption, and arrivals that are no closed loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from servetune.perf.roofline.clumps import clump_share
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.steady_state import LengthMoments
from servetune.perf.roofline.step_laws import Array, PlanBatch, StepLaws
from servetune.plan.plan import Plan
from servetune.units import MS_PER_S

#: Rounds of the fixed point for B; each shrinks the error by the share of time that a
#: request spends before its first token, a half at the very worst that still decodes.
_ROUNDS = 12
#: Shares of the generations after the first at whose middles their waiting is read.
_SLICES = ((0.0, 1 / 9), (1 / 9, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0))


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


class ClosedLoops:
    """R runs in array form; parts that do not depend on coefficients are computed once.

    Args:
        stack: Work and machines of the R plans.
        plans: Resolved.
        kv_tokens: Tokens that one copy's cache holds, per run.
        moments: Moments of the lengths, per run.
        concurrency: Requests in flight, all copies together, per run.
        request_count: Requests of the run, all copies together, per run.
        admission_delay_steps: `ClosedLoopRun.admission_delay_steps`, per run; none where not given.
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
        admission_delay_steps: Sequence[float] | None = None,
    ) -> None:
        self._stack = stack
        self.copies = np.array([plan.replicas * plan.data_parallel for plan in plans], float)
        self.concurrency = np.asarray(concurrency, float)
        self.budget = np.array([plan.max_num_batched_tokens for plan in plans], float)
        places = np.array([plan.max_num_seqs for plan in plans], float)
        self.inputs = np.array([m.input_tokens for m in moments])
        self.outputs = np.array([m.output_tokens for m in moments])
        self.pairs = np.array([m.prompt_pairs for m in moments])
        self.context = np.array([m.context_tokens for m in moments])
        self.gained = np.array([tokens_per_step(plan) for plan in plans])
        self.spread = np.array([m.output_spread_tokens for m in moments]) / self.gained
        self.each = np.array([1 + (plan.draft_tokens or 0) for plan in plans], float)
        self._clump_share = clump_share(self.spread * self.gained / self.outputs)
        self.steps = np.maximum(1.0, (self.outputs - 1) / self.gained)
        self.users = np.maximum(1.0, self.concurrency / self.copies)
        self.busy_copies = np.minimum(self.concurrency, self.copies)
        self.generations = np.maximum(1.0, np.asarray(request_count, float) / self.concurrency)
        self.admission_delay_steps = np.asarray(
            admission_delay_steps or np.zeros(len(plans)), float
        )
        self.kv_tokens = np.asarray(kv_tokens, float)
        self._places = places
        self._full_steps = self.budget / (self.each + self.inputs / self.steps)

    def most_running(self, c: Mapping[str, Array]) -> Array:
        """Sequences of one copy that decode at the same time at most, shape (R,).

        Those that have a place; fewer, less than one even, where prompts fill every step.
        """
        return np.asarray(np.minimum(self._placed(c), self._full_steps))

    def _placed(self, c: Mapping[str, Array]) -> Array:
        """Users of one copy that have a place at the same time, their prompts computed or not.

        Where the engine reserves whole answers a sequence keeps all of its place from the start.
        """
        whole = self.inputs + self.outputs
        kept = self.context + c["scheduling.whole_answers"] * (whole - self.context)
        places = np.minimum(self._places, self.kv_tokens / kept)
        return np.asarray(np.minimum(self.users, np.maximum(1.0, places)))

    def times_s(self, c: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Mean time to first token, mean gap, sequences running per copy; each (R,)."""
        laws = StepLaws(self._stack, c)
        running, tau_s = self._balanced(laws)
        ttft_s = self._ttft_s(laws, running, tau_s)
        # Where places are short the others wait; Little's law says how long.
        e2e_s = self.users * self.steps * tau_s / running
        short = self.users > self.most_running(c)
        waiting_s = np.where(short, e2e_s - self.steps * tau_s, 0.0)
        return np.maximum(ttft_s, waiting_s), tau_s / self.gained, running

    def points(self, c: Mapping[str, Array]) -> list[RunPoint]:
        """One point per run."""
        ttft_s, tau_s, running = self.times_s(c)
        e2e_s = ttft_s + np.maximum(0.0, self.outputs - 1) * tau_s
        rate = self.users / e2e_s * self.busy_copies * self.outputs
        queued = self.users > self.most_running(c)
        return [
            RunPoint(
                ttft_ms=float(ttft_s[i] * MS_PER_S),
                tpot_ms=float(tau_s[i] * MS_PER_S),
                e2e_ms=float(e2e_s[i] * MS_PER_S),
                output_tokens_per_s=float(rate[i]),
                running=float(running[i] * self.busy_copies[i]),
                queued=bool(queued[i]),
            )
            for i in range(len(tau_s))
        ]

    def _balanced(self, laws: StepLaws) -> tuple[Array, Array]:
        """B that solves B = C * D * tau / (ttft + D * tau), at most `most_running`, and tau.

        C are those users that have a place: they keep it while their prompts are computed.
        """
        placed = self._placed(laws.c)
        most = np.minimum(placed, self._full_steps)
        running = most
        others = self._others(laws)
        for _ in range(_ROUNDS):
            per_step = running / self.steps * others
            ttft_s, tau_s = self._waiting(laws, per_step, running)
            decode_s = self.steps * tau_s
            balanced = np.minimum(most, placed * decode_s / (ttft_s + decode_s))
            running = (running + balanced) / 2
        _, tau_s = self._waiting(laws, running / self.steps * others, running)
        return running, tau_s

    def _others(self, laws: StepLaws) -> Array:
        """Share of prompts that are other users'; a user without a place sends none."""
        placed = self._placed(laws.c)
        return np.asarray((placed - 1) / placed)

    def _waiting(self, laws: StepLaws, per_step: Array, running: Array) -> tuple[Array, Array]:
        """Times to the first token and between tokens while `per_step` prompts come per step."""
        others = self._others(laws)
        decoding = np.maximum(1.0, running)
        none = 0 * decoding
        plain_s = laws.seconds(none, none, none, decoding, decoding * self.context)
        prompts = np.maximum(1.0, per_step)
        mixed_s = self._mixed_s(laws, prompts, decoding)
        share = np.minimum(1.0, per_step)
        tau_s = (1 - share) * plain_s + share * mixed_s
        squares = (1 - share) * plain_s**2 + share * mixed_s**2
        residual_s = others * squares / (2 * tau_s)
        own_s = self._mixed_s(laws, prompts, running * others)
        mixing_s = np.maximum(0.0, tau_s - plain_s)
        clumped_s = np.minimum(self._clump_s(laws, own_s) / self.steps, mixing_s / 2)
        in_step = self._in_step(laws)
        tau_s = tau_s - (1 - in_step) * clumped_s - in_step * mixing_s / 2
        held_s = others * self.admission_delay_steps * tau_s
        return self._request_s(laws) + residual_s + held_s + own_s, tau_s

    def _in_step(self, laws: StepLaws) -> Array:
        """Share of later generations that come all at once, as the burst does."""
        window = np.sqrt(12) * self.spread
        shares: Array = np.exp(-window / laws.c["closed_loop.together_steps"])
        shares[laws.c["scheduling.prefill_first"] == 0] = 0.0
        return shares

    def _clump_s(self, laws: StepLaws, prompt_s: Array) -> Array:
        """Wait for prompts that came just before, beyond that for evenly spread ones."""
        users = self._placed(laws.c)
        others: Array = self._clump_share * (np.sqrt(users) - 1)
        return np.asarray(laws.c["closed_loop.clump_prompts"] * others * prompt_s)

    def _request_s(self, laws: StepLaws) -> Array:
        return np.asarray(laws.c["host.request_s"] + laws.c["host.prompt_token_s"] * self.inputs)

    def _mixed_s(self, laws: StepLaws, prompts: Array, sequences: Array) -> Array:
        """Steps that compute `prompts` prompts beside `sequences` decoding ones."""
        tokens = prompts * self.inputs
        left = self.budget - sequences * self.each
        steps = np.maximum(1.0, tokens / np.maximum(1.0, left))
        each_s = laws.seconds(
            tokens / steps,
            prompts * self.pairs / steps,
            prompts / steps,
            sequences,
            sequences * self.context,
        )
        return np.asarray(steps * each_s)

    def _ttft_s(self, laws: StepLaws, running: Array, tau_s: Array) -> Array:
        users = self._placed(laws.c)
        burst_s, burst_steps = self._burst(laws, users, tau_s)
        later = np.maximum(0.0, self.generations - 1)
        total = burst_s + laws.c["closed_loop.warm_up_s"]
        in_step = self._in_step(laws)
        one = np.ones_like(tau_s)
        clump_s = self._clump_s(laws, self._mixed_s(laws, one, 0 * one))
        taken = np.maximum(1.0, (self.budget - running) / self.inputs)
        steady = running / self.steps
        for low, high in _SLICES:
            generation = np.maximum(1.0, 0.5 + later * (low + high) / 2)
            window = np.sqrt(12 * generation) * self.spread + burst_steps
            coming = np.maximum(steady, users / np.maximum(1.0, window))
            ttft_s, _ = self._waiting(laws, np.minimum(coming, taken), running)
            full_s = self._mixed_s(laws, taken, running)
            queue = np.maximum(0.0, users - window * taken) / 2  # in its mean, prompts ahead
            scattered_s = ttft_s + queue / taken * full_s
            mean_s = in_step * burst_s + (1 - in_step) * (scattered_s + clump_s)
            total = total + later * (high - low) * mean_s
        return np.asarray(total / self.generations)

    def _burst(self, laws: StepLaws, users: Array, tau_s: Array) -> tuple[Array, Array]:
        """Mean time to first token when all users come at once, and its length in steps."""
        taken = np.clip(self.budget / self.inputs, 1.0, users)
        steps = users / taken
        decoding = users / 2 * (1 - 1 / steps)  # those that already decode, on average
        step_s = self._mixed_s(laws, taken, decoding)
        intake_s = laws.c["closed_loop.intake_s"] * users / 2
        return self._request_s(laws) + intake_s + step_s * (steps + 1) / 2, steps
