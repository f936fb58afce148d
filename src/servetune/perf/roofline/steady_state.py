"""Continuous batching in its steady state, by formula instead of by simulation.

| symbol | here |
|---|---|
| C | requests in flight on one copy of the model |
| I, D | mean prompt tokens; decode steps of a request, (mean output tokens - 1) / m |
| m | tokens gained per step: 1, or more where tokens are drafted (`drafting`) |
| B | sequences that decode at the same time, on average |
| tau | step time that a decoding sequence sees |

In a steady state each request brings one prompt and D decode steps, so B decoding sequences
mean B/D prompts per step. That share of steps carries a prompt and takes longer. A request
waits for the step in progress, for its own prefill step, then D steps; by Little's law
C = rate * (ttft + D * tau) and B = rate * D * tau, solved for B. The cache, `max_num_seqs`
and the token budget cap B; requests beyond that wait, and their time follows from Little's
law again.

Left to the simulator: the burst at the start of a run, any spread around means, preemption
(the formula serves up to 20% more where the cache is the limit), and users with equal
lengths, who march in step: their first tokens come later and their gaps are shorter than
here, with the same end-to-end latency.
"""

from __future__ import annotations

import msgspec
import numpy as np

from servetune.errors import PlanError
from servetune.perf.roofline.drafting import tokens_per_step
from servetune.perf.roofline.step import StepLaw
from servetune.plan.plan import Plan
from servetune.units import MS_PER_S
from servetune.workload.lengths import Lengths

_LENGTH_SAMPLES = 512
#: Steps towards the number of running requests, and how near in it two of them are one answer.
_ROUNDS, _NEAR = 60, 1e-9


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


class LengthMoments(msgspec.Struct, frozen=True, kw_only=True):
    """The means of a law of lengths that step times depend on.

    Attributes:
        prompt_pairs: Mean of I(I+1)/2, which a long tail makes larger than that of the mean.
        context_tokens: Mean context of a decoding sequence, over the time it decodes.
        longest_tokens: Longest prompt and answer together.
        output_spread_tokens: Standard deviation of the answer's length.
    """

    input_tokens: float
    output_tokens: float
    prompt_pairs: float
    context_tokens: float
    longest_tokens: int
    output_spread_tokens: float = 0.0


def length_moments(lengths: Lengths, seed: int = 1) -> LengthMoments:
    """Moments of the law, from stratified draws where it is not a constant."""
    drawn_in, drawn_out = lengths.draw(_LENGTH_SAMPLES, np.random.default_rng(seed))
    inputs, outputs = drawn_in.astype(float), drawn_out.astype(float)
    steps = np.maximum(outputs - 1, 0)
    context = inputs + (outputs + 1) / 2
    weights = steps if steps.any() else np.ones_like(steps)
    return LengthMoments(
        input_tokens=float(inputs.mean()),
        output_tokens=float(outputs.mean()),
        prompt_pairs=float((inputs * (inputs + 1) / 2).mean()),
        context_tokens=float(np.average(context, weights=weights)),
        longest_tokens=int((drawn_in + drawn_out).max()),
        output_spread_tokens=float(outputs.std()),
    )


class _Balance(msgspec.Struct, frozen=True):
    """Seconds of one copy's steady state with a given number of decoding sequences."""

    ttft_s: float
    tau_s: float


class SteadyState:
    """The steady state of a resolved plan under a step law, as a function of concurrency.

    Attributes:
        most_running: Largest B that cache, `max_num_seqs` and token budget allow, per copy.
    """

    def __init__(
        self,
        law: StepLaw,
        plan: Plan,
        kv_tokens: float,
        moments: LengthMoments,
    ) -> None:
        assert plan.max_num_seqs is not None
        assert plan.max_num_batched_tokens is not None
        if plan.prefill_replicas is not None:
            raise PlanError(
                "there is no formula for servers that only compute prompts",
                hint="simulate them with servetune simulate",
            )
        self.moments = moments
        self._law = law
        self._budget = plan.max_num_batched_tokens
        self._copies = plan.replicas * plan.data_parallel
        self._gained = tokens_per_step(plan)
        self._decode_steps = (moments.output_tokens - 1) / self._gained
        c = law.coefficients
        self._request_s = c.host.request_s + c.host.prompt_token_s * moments.input_tokens
        whole_tokens = moments.input_tokens + moments.output_tokens
        kept_tokens = moments.context_tokens + c.scheduling.whole_answers * (
            whole_tokens - moments.context_tokens
        )
        caps = [float(plan.max_num_seqs), kv_tokens / kept_tokens]
        if self._decode_steps > 0:
            each = law.tokens_each + moments.input_tokens / self._decode_steps
            caps.append(self._budget / each)
        if c.scheduling.admission_steps:
            taken = max(1.0, self._budget // moments.input_tokens)
            caps.append(taken * max(1.0, self._decode_steps / c.scheduling.admission_steps))
        self.most_running = max(1.0, min(caps))

    def at(self, concurrency: int, correction: Correction = _AS_PRICED) -> OperatingPoint:
        """The steady state with `concurrency` requests in flight over all copies."""
        slower, first_factor = correction.step_factor, correction.first_token_factor
        share = max(1.0, concurrency / self._copies)
        busy_copies = min(concurrency, self._copies)
        if self._decode_steps <= 0:
            return self._prefill_only(concurrency, share, busy_copies, correction)
        running = self._running(share, first_factor)
        balance = self._balance(running, share, first_factor)
        decode_s = self._decode_steps * balance.tau_s
        rate = running / decode_s
        e2e_s = share / rate  # Little's law: waiting for a place is what is left
        queued = running >= self.most_running
        ttft_s = max(e2e_s - decode_s, balance.ttft_s) if queued else balance.ttft_s
        # Times that are all longer by one factor leave the number that decode as it is.
        return self._point(
            concurrency,
            running * busy_copies,
            rate / slower * busy_copies,
            ttft_s * slower,
            balance.tau_s * slower,
            queued,
        )

    def _running(self, share: float, first_factor: float) -> float:
        """B that solves B = C * D * tau / (ttft + D * tau), at most `most_running`."""
        high = min(share, self.most_running)
        surplus = self._running_from(high, share, first_factor) - high
        if surplus >= 0:
            return high
        # False position between two bounds; a bound that stays twice counts half (Illinois).
        low, deficit, last = 0.0, self._running_from(0.0, share, first_factor), high
        stayed = 0
        for _ in range(_ROUNDS):
            here = (low * surplus - high * deficit) / (surplus - deficit)
            gap = self._running_from(here, share, first_factor) - here
            if abs(here - last) <= _NEAR * here:
                return here
            last = here
            if gap >= 0:
                low, deficit = here, gap
                surplus = surplus / 2 if stayed > 0 else surplus
                stayed = 1
            else:
                high, surplus = here, gap
                deficit = deficit / 2 if stayed < 0 else deficit
                stayed = -1
        return (low + high) / 2

    def _running_from(self, running: float, share: float, first_factor: float) -> float:
        balance = self._balance(running, share, first_factor)
        decode_s = self._decode_steps * balance.tau_s
        return share * decode_s / (balance.ttft_s + decode_s)

    def _balance(self, running: float, share: float, first_factor: float) -> _Balance:
        """Times that one request sees; alone, it never shares a step with a prompt."""
        others = (share - 1) / share
        prompts_per_step = running / self._decode_steps * others
        decoding = max(1.0, running)
        plain_s = self._decode_s(decoding)
        if prompts_per_step <= 1:
            mixed_s = self._mixed_s(1.0, decoding)
            tau_s = (1 - prompts_per_step) * plain_s + prompts_per_step * mixed_s
            squares = (1 - prompts_per_step) * plain_s**2 + prompts_per_step * mixed_s**2
        else:
            tau_s = self._mixed_s(prompts_per_step, decoding)
            squares = tau_s**2
        residual_s = others * squares / (2 * tau_s)  # of the step in progress on arrival
        own_s = self._mixed_s(max(1.0, prompts_per_step), running * others)
        first_s = first_factor * (self._request_s + residual_s + own_s)
        return _Balance(first_s, tau_s)

    def _decode_s(self, sequences: float) -> float:
        return self._law.seconds(0, 0.0, 0, sequences, sequences * self.moments.context_tokens)

    def _mixed_s(self, prompts: float, sequences: float) -> float:
        """Steps that compute `prompts` prompts beside `sequences` decoding ones.

        A prompt longer than the budget leaves takes several steps, each with all decoding
        sequences beside it.
        """
        if self._law.coefficients.scheduling.separate_prefill and sequences:
            return self._mixed_s(prompts, 0.0) + self._decode_s(sequences)
        tokens = prompts * self.moments.input_tokens
        left = self._budget - sequences * self._law.tokens_each
        steps = max(1.0, tokens / max(1.0, left))
        return steps * self._law.seconds(
            tokens / steps,
            prompts * self.moments.prompt_pairs / steps,
            prompts / steps,
            sequences,
            sequences * self.moments.context_tokens,
        )

    def _prefill_only(
        self, concurrency: int, share: float, busy_copies: int, correction: Correction
    ) -> OperatingPoint:
        """Answers of one token: as many prompts per step as the budget takes."""
        factor = correction.step_factor * correction.first_token_factor
        prompts = min(share, max(1.0, self._budget / self.moments.input_tokens))
        step_s = factor * self._mixed_s(prompts, 0.0)
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
