"""Workload: what is asked of a server, and when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.workload.arrivals import AllAtOnce, Arrivals
from servetune.workload.lengths import Lengths
from servetune.workload.prefixes import SharedPrefixes
from servetune.workload.request import Piece, Request

__all__ = ["Workload"]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a server, and when. The same value asks the same requests.

    Attributes:
        lengths: Law of prompt and answer lengths.
        request_count: Requests of the run.
        arrivals: Law of due times.
        max_concurrency: Most requests in flight at once; `None` for no limit. With
            `AllAtOnce` this makes a closed loop of that many users.
        warmup_count: Requests before the run that are not counted.
        seed: Of lengths, arrivals and prompts.
        ignore_eos: Whether answers have exactly the asked length.
        dataset: What the user called it (`random`, `sharegpt`, ...).
        dataset_path: File that the words come from, if any.
        imitated: Whether the data set's published figures stand in for its words.
        api: Route of the OpenAI API: `completions` or `chat`.
        duration_s: When the run stops, whatever is still on its way: no request is due
            later. `None` for a run that ends with its last answer.
        prefixes: What each prompt begins with, by request, as `Request.prefix`; empty where
            prompts share nothing.
        asked: Requests that were prepared; they are asked instead of any that `lengths` would
            draw, and `arrivals` says when each conversation begins. Empty otherwise.
        shared_prefixes: Law of what prompts begin with, beside and before their lengths; `None`
            where there is none, or where `prefixes` say it request by request.
        extra_body: Further members of each request's JSON body, as JSON text.
    """

    lengths: Lengths
    request_count: int
    arrivals: Arrivals = AllAtOnce()
    max_concurrency: int | None = None
    warmup_count: int = 1
    seed: int = 1
    ignore_eos: bool = True
    dataset: str = "random"
    dataset_path: str | None = None
    imitated: bool = False
    api: str = "completions"
    extra_body: str = ""
    duration_s: float | None = None
    prefixes: tuple[tuple[Piece, ...], ...] = ()
    asked: tuple[Request, ...] = ()
    shared_prefixes: SharedPrefixes | None = None

    def __post_init__(self) -> None:
        if self.request_count < 1:
            raise InputError(f"a run needs at least one request, got {self.request_count}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise InputError(f"max_concurrency must be 1 or more, got {self.max_concurrency}")
        if self.prefixes and self.shared_prefixes:
            raise InputError("what prompts begin with is said twice, one by one and by a law")
        if self.warmup_count < 0:
            raise InputError(f"warmup_requests must be 0 or more, got {self.warmup_count}")
        limit = self.duration_s
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InputError(
                f"a run lasts longer than {limit:g} s", hint="give a positive duration, or none"
            )

    @property
    def closed_loop(self) -> bool:
        """Whether the next request waits for an answer rather than for a time."""
        return isinstance(self.arrivals, AllAtOnce)

    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request together."""
        if self.asked:
            return max(each.input_tokens + each.output_tokens for each in self.asked)
        inputs, outputs = self.lengths.draw(self.request_count, np.random.default_rng(self.seed))
        return int((inputs + outputs).max()) + self.prefix_tokens

    @property
    def prefix_tokens(self) -> int:
        """Of every prompt, before the tokens that its length says; 0 without such a law."""
        return self.shared_prefixes.tokens if self.shared_prefixes else 0

    def forced_lengths(self) -> dict[int, int]:
        """Output tokens, by `Request.index`, of the answers that may have no other length.

        Empty where the server may end an answer by itself, or gives none.
        """
        if not self.ignore_eos or self.api == "embeddings":
            return {}
        return {request.index: request.output_tokens for request in self.requests()}

    def requests(self) -> tuple[Request, ...]:
        """All requests in order of their due times.

        Raises:
            InputError: None is due before the run ends, or arrivals end before all are.
        """
        rng = np.random.default_rng(self.seed)
        if self.asked:
            return self._due(self._asked_at(rng))
        inputs, outputs = self.lengths.draw(self.request_count, rng)
        due_s = list(itertools.islice(self.arrivals.offsets_s(rng), self.request_count))
        if len(due_s) < self.request_count and self.duration_s is None:
            raise InputError(
                f"arrivals end after {len(due_s):,} of {self.request_count:,} requests",
                hint="ask for fewer, or give a duration to send what comes within it",
            )
        prefixes = self.prefixes
        if self.shared_prefixes:
            prefixes = self.shared_prefixes.drawn(self.request_count, self.seed)
        drawn = (
            Request(
                index=i,
                due_s=due,
                input_tokens=int(tokens_in) + self.prefix_tokens,
                output_tokens=int(tokens_out),
                prefix=prefixes[i] if prefixes else (),
            )
            for i, (due, tokens_in, tokens_out) in enumerate(
                zip(due_s, inputs, outputs, strict=False)
            )
        )
        return self._due(drawn)

    def _asked_at(self, rng: np.random.Generator) -> Iterator[Request]:
        """What was prepared, with the times that the arrivals give to conversations."""
        offsets_s, due_s = self.arrivals.offsets_s(rng), 0.0
        for request in self.asked:
            if request.follows is None:
                due_s = next(offsets_s, math.inf)
            yield msgspec.structs.replace(request, due_s=due_s)

    def _due(self, requests: Iterator[Request]) -> tuple[Request, ...]:
        """Those of them that are due before the run ends."""
        last_s = math.inf if self.duration_s is None else self.duration_s
        asked = tuple(each for each in requests if each.due_s <= last_s and each.due_s < math.inf)
        if not asked:
            raise InputError(
                "no request is due"
                + (f" within {self.duration_s:g} s" if self.duration_s is not None else ""),
                hint="a longer duration or a higher rate",
            )
        return asked
