"""Metrics of one rank of the engine: the numbers that a real server shows under `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

# Upper ends of the default engine's buckets (v1/metrics/buckets.py, read in November 2026).
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
_ANSWERS = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

#: Histograms by their names without a prefix, to the ends of their buckets; lengths in tokens
#: have ends by the model's context.
_HISTOGRAMS: Mapping[str, Sequence[float]] = MappingProxyType(
    {
        "request_prompt_tokens": (),
        "request_generation_tokens": (),
        "iteration_tokens_total": _STEP_TOKENS,
        "request_max_num_generation_tokens": (),
        "request_params_n": _ANSWERS,
        "request_params_max_tokens": (),
        "time_to_first_token_seconds": _FIRST_TOKEN_S,
        "inter_token_latency_seconds": _TOKEN_GAP_S,
        "request_time_per_output_token_seconds": _TOKEN_GAP_S,
        "e2e_request_latency_seconds": _REQUEST_S,
        "request_queue_time_seconds": _REQUEST_S,
        "request_inference_time_seconds": _REQUEST_S,
        "request_prefill_time_seconds": _REQUEST_S,
        "request_decode_time_seconds": _REQUEST_S,
        "request_num_preemptions": _PREEMPTIONS,
        "request_prefill_kv_computed_tokens": (),
    }
)


class Histogram:
    """Counts of observations by bucket, as Prometheus wants them, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @classmethod
    def added(cls, parts: Sequence[Histogram]) -> Histogram:
        """Sum of histograms with equal buckets."""
        whole = cls(parts[0].bounds)
        whole.counts = [
            sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)
        ]
        whole.sum = sum(part.sum for part in parts)
        return whole

    def note(self, value: float, count: int = 1) -> None:
        """The same value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one request, in the engine's seconds.

    Attributes:
        sent_s: Arrival at the server.
        queued_s: Arrival in the scheduler's queue.
        admitted_s: First admission to a batch.
        first_token_s: First token.
        ended_s: Last token.
    """

    sent_s: float
    queued_s: float
    admitted_s: float
    first_token_s: float
    ended_s: float


class EngineMetrics:
    """Counters, gauges and histograms of one rank; seconds are the engine's own.

    Args:
        longest_tokens: Context of the model, which the buckets of lengths end with.
        draft_tokens: Drafted for every step of decoding.

    Attributes:
        prompt_tokens: Prompt tokens of requests whose prefill has ended.
        cached_tokens: Prompt tokens that were found in the prefix cache.
        brought_tokens: Prompt tokens that another engine computed and transferred.
        drafts: Number of verified drafts.
        accepted: Number of accepted tokens, by position in the draft.
        finished: Requests that ended, by reason.
        rejections: Requests that a limit refused, by its setting; those of all ranks in the first.
        histograms: Histograms by their names without a prefix.
    """

    def __init__(self, longest_tokens: int = 1_000_000, draft_tokens: int = 0) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage_fraction = 0.0
        self.preemptions = 0
        self.steps = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.brought_tokens = 0
        self.generation_tokens = 0
        self.drafts = 0
        self.accepted = [0] * draft_tokens
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.rejections: dict[str, int] = {}
        tokens = _one_two_five(longest_tokens)
        self.histograms = {
            name: Histogram(bounds or tokens) for name, bounds in _HISTOGRAMS.items()
        }

    def _note(self, histogram: str, value: float, count: int = 1) -> None:
        self.histograms[histogram].note(value, count)

    def note_step(self, tokens: int) -> None:
        """A step with so many tokens, as a real server counts: of whole prompts and of answers."""
        if tokens:
            self._note("iteration_tokens_total", tokens)

    def note_gaps(self, gap_s: float, count: int, tokens: int) -> None:
        """Count gaps between tokens: `count` sequences got `tokens` in all, `gap_s` after the last.

        Tokens that came at once are one gap, as a real server counts.
        """
        self.generation_tokens += tokens
        self._note("inter_token_latency_seconds", gap_s, count)

    def note_draft(self, accepted: int) -> None:
        """Count a verified draft and its accepted tokens."""
        self.drafts += 1
        for place in range(accepted):
            self.accepted[place] += 1

    def note_first(
        self, prompt_tokens: int, ttft_s: float, *, cached_tokens: int = 0, brought_tokens: int = 0
    ) -> None:
        """A prompt is through."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.brought_tokens += brought_tokens
        self.generation_tokens += 1
        self._note("time_to_first_token_seconds", ttft_s)

    def note_end(
        self,
        prompt_tokens: int,
        output_tokens: int,
        times: RequestTimes,
        *,
        max_tokens: int,
        computed_tokens: int,
        preemptions: int,
    ) -> None:
        """A request has all its tokens.

        Args:
            prompt_tokens: Tokens of the prompt.
            output_tokens: Tokens of the answer.
            times: Times of the request.
            max_tokens: Largest answer that it allowed.
            computed_tokens: Tokens of the prompt that were computed here.
            preemptions: Number of times it lost its cache.
        """
        decode_s = times.ended_s - times.first_token_s
        if output_tokens > 1:
            self._note("request_time_per_output_token_seconds", decode_s / (output_tokens - 1))
        for name, value in {
            "e2e_request_latency_seconds": times.ended_s - times.sent_s,
            "request_queue_time_seconds": times.admitted_s - times.queued_s,
            "request_prefill_time_seconds": times.first_token_s - times.admitted_s,
            "request_inference_time_seconds": times.ended_s - times.admitted_s,
            "request_decode_time_seconds": decode_s,
            "request_prompt_tokens": prompt_tokens,
            "request_generation_tokens": output_tokens,
            "request_max_num_generation_tokens": output_tokens,
            "request_params_n": 1,
            "request_params_max_tokens": max_tokens,
            "request_prefill_kv_computed_tokens": computed_tokens,
            "request_num_preemptions": preemptions,
        }.items():
            self._note(name, value)


def _one_two_five(most: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on, not above `most`."""
    found = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
    return tuple(value for value in found if value <= most)
