"""Workload: requests to a server and their arrival."""

from __future__ import annotations

import functools
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from servetune.decoding import ready
from servetune.errors import InputError
from servetune.json_value import JsonMembers, JsonObject
from servetune.workload.arrivals import AllAtOnce, Arrivals, arrivals_of, parse_arrivals
from servetune.workload.counting import CHAT_APIS, Rows, TokenCounter
from servetune.workload.laws import Law, draw_pairs, parse_law
from servetune.workload.lengths import SHAREGPT, LengthLaws, Lengths, Observed
from servetune.workload.model_tokenizer import ModelTokenizer, load_model_tokenizer
from servetune.workload.parts import Adapter, Part, SharedPrefix
from servetune.workload.request import Request
from servetune.workload.sampler import Draft, hit_fraction, sampled
from servetune.workload.traces import Trace, trace_in

MOST_REQUESTS = 5_000_000
"""Requests of a run, and users at once: more is a typo, or more than memory holds."""


class TraceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recorded requests that are sent again: their times, lengths and shared beginnings.

    Attributes:
        path: CSV or JSON lines in one of the forms of `traces.FORMS`.
        time_scale: Factor on all times; 0.5 is twice the load.
    """

    path: str
    time_scale: float = 1.0


class Sample(msgspec.Struct, frozen=True):
    """Requests of a workload with the composition of their prompts.

    Attributes:
        drafts: All that are due before the run ends, in the order in which they are sent.
        rows: Rows of data sets, by number of the part.
    """

    drafts: tuple[Draft, ...]
    rows: Mapping[int, Rows]

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(draft.request for draft in self.drafts)


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Requests to a server and their arrival. Equal workloads have equal requests.

    Attributes:
        name: Name in messages and records: `random`, a data set's, a named workload's.
        summary: One line about what it stands for.
        parts: Kinds of requests; empty where there is a trace.
        adapters: LoRA adapters that requests are spread over.
        trace: Recorded requests instead of parts and arrivals.
        request_count: Number of requests, follow-up turns among them.
        arrivals: Law of due times of requests and of conversations.
        concurrency: Most requests in flight at once; `None` for no limit. With `AllAtOnce`
            this is a closed loop of that many users.
        think_s: Seconds that a user of a closed loop waits from an answer to the next request.
        duration_s: Seconds after which the run stops, whatever is in flight: no request is due
            later. `None` for a run that ends with its last answer.
        until: Precision at which a measured run stops, such as `ttft:p99±5%`.
        warmup_count: Requests before the run that are not counted.
        seed: Seed of lengths, arrivals, data sets' order and words.
        api: Route: `completions`, `chat`, ...
        stream: Whether answers are streamed.
        ignore_eos: Whether answers have exactly the requested length.
        tokenizer: Folder or file of the tokenizer that counts data sets and chat templates;
            `None` where lengths of words are estimates.
        extra_body: Further members of each request's JSON body, as JSON text.
        sampling: Way in which tokens are chosen, for predictions: `greedy`, or drawn from the
            likeliest alone (top-k, top-p), as requests say (`filtered`) or as the checkpoint does
            where the server reads it (`checkpoint`).
        penalties: Source of penalties on tokens that were there before, for predictions: none, the
            requests, or the checkpoint where the server reads it.
    """

    name: str = "random"
    summary: str = ""
    parts: tuple[Part, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    trace: TraceFile | None = None
    request_count: int = 1000
    arrivals: Arrivals = AllAtOnce()
    concurrency: int | None = None
    think_s: float = 0.0
    duration_s: float | None = None
    until: str | None = None
    warmup_count: int = 1
    seed: int = 1
    api: str = "completions"
    stream: bool = True
    ignore_eos: bool = True
    tokenizer: str | None = None
    extra_body: str = ""
    sampling: Literal["greedy", "filtered", "checkpoint"] = "greedy"
    penalties: Literal["none", "requests", "checkpoint"] = "none"

    def __post_init__(self) -> None:
        if bool(self.parts) == (self.trace is not None):
            raise InputError(
                f"workload {self.name} has {'both parts and a trace' if self.parts else 'no part'}",
                hint="it needs a [[part]], or a trace",
            )
        if self.request_count < 1:
            raise InputError(
                f"a run needs at least one request, got {self.request_count}",
                hint="request_count is 1 or more",
            )
        for name, count in (("requests", self.request_count), ("users", self.concurrency or 0)):
            if count > MOST_REQUESTS:
                shown = f"{count:,}" if count < 10**15 else f"10^{len(str(count)) - 1}"
                raise InputError(
                    f"{shown} {name} are more than a run can hold",
                    hint=f"at most {MOST_REQUESTS:,}; what should last longer has --duration",
                )
        if self.concurrency is not None and self.concurrency < 1:
            raise InputError(f"concurrency must be 1 or more, got {self.concurrency}")
        if self.warmup_count < 0:
            raise InputError(f"warm-up requests must be 0 or more, got {self.warmup_count}")
        for name, least in (("duration_s", 0.0), ("think_s", -1.0)):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > least):
                raise InputError(
                    f"{name} cannot be {seconds:g} s", hint="give a positive time, or none"
                )

    @staticmethod
    def of(lengths: LengthLaws, **members: Any) -> Workload:
        """Workload of random words with these lengths.

        Args:
            lengths: Laws of prompts and answers.
            members: Further attributes of the workload.
        """
        members.setdefault("name", "sharegpt" if lengths == SHAREGPT else "random")
        part = Part(input_tokens=lengths.input_tokens, output_tokens=lengths.output_tokens)
        return Workload(parts=(part,), **members)

    @property
    def closed_loop(self) -> bool:
        """Whether the next request waits for an answer rather than for a time."""
        return self.trace is None and isinstance(self.arrivals, AllAtOnce)

    @property
    def may_end_early(self) -> bool:
        """Whether a duration or a precision ends the run, with requests in flight."""
        return self.duration_s is not None or self.until is not None

    @property
    def imitated(self) -> bool:
        """Whether a data set's published lengths stand in for its words."""
        return any(_lengths_of(part) == SHAREGPT for part in self.parts)

    @property
    def has_dataset(self) -> bool:
        """Whether prompts are a data set's own words."""
        return any(part.dataset is not None for part in self.parts)

    @property
    def needs_chat(self) -> bool:
        """Whether only the chat route can carry it."""
        return any(part.needs_chat for part in self.parts)

    @functools.cached_property
    def lengths(self) -> Lengths:
        """Law of prompt and answer lengths, for predictions."""
        alone = self.parts[0] if len(self.parts) == 1 else None
        whole = alone and not alone.sessions and not (alone.prefix and alone.prefix.besides)
        law = _lengths_of(alone) if alone and whole else None
        if law is not None:
            return law
        drawn = [(each.input_tokens, each.output_tokens) for each in self.requests()]
        return Observed(name=self.name, pairs=tuple(drawn))

    def shared_tokens(self) -> float:
        """Mean tokens of a prompt that others of its kind begin with, too."""
        weights = sum(part.weight for part in self.parts)
        return sum(part.weight * part.shared_tokens() for part in self.parts) / (weights or 1.0)

    def shared_prefix(self) -> SharedPrefix | None:
        """What prompts have in common, for predictions; `None` for several parts and for turns."""
        alone = self.parts[0] if len(self.parts) == 1 else None
        return alone.shared_prefix() if alone and not alone.sessions else None

    def mean_turns(self) -> float:
        """Requests that follow from one arrival, on average: of conversations their turns."""
        requests = self.requests()
        return len(requests) / sum(request.follows is None for request in requests)

    @functools.cached_property
    def found_prefix(self) -> SharedPrefix | None:
        """What prompts find in a cache, for predictions: of several parts and turns their mean.

        Of these it is what a perfect cache finds in the requests one after another, as if each
        prompt began with so many tokens of one of as many beginnings as there are.
        """
        alone = self.parts[0] if len(self.parts) == 1 else None
        if alone and not alone.sessions and not alone.documents:
            return alone.shared_prefix()
        requests = self.requests()[:_FOUND_REQUESTS]
        tokens = hit_fraction(requests) * sum(each.input_tokens for each in requests)
        beginnings = {each.prefix[0] for each in requests if each.prefix}
        return SharedPrefix(tokens / len(requests), len(beginnings)) if tokens else None

    def longest_tokens(self) -> int:
        """Tokens of prompt and answer of the longest request together."""
        return max(each.input_tokens + each.output_tokens for each in self.requests())

    def requested_lengths(self) -> dict[int, int]:
        """Output tokens, by `Request.index`, that answers have with `ignore_eos`, else at most.

        Empty where answers have no tokens.
        """
        if self.api == "embeddings":
            return {}
        return {request.index: request.output_tokens for request in self.requests()}

    def requests(self) -> tuple[Request, ...]:
        """All requests in order of their due times.

        Raises:
            InputError: None is due before the run ends, arrivals end before all are due, or a
                file cannot be read.
        """
        return self._requests

    def sample(
        self, tokenizer: ModelTokenizer | None = None, *, template_tokens: int | None = None
    ) -> Sample:
        """Requests with the composition of their prompts.

        Args:
            tokenizer: Tokenizer in place of the one that is named.
            template_tokens: Tokens that the server's chat template adds, where they are known.
        """
        if tokenizer is None and template_tokens is None:
            return self._sample
        return self._sampled(tokenizer or self.model_tokenizer, template_tokens)

    @property
    def model_tokenizer(self) -> ModelTokenizer | None:
        """Tokenizer that is named, read from its files."""
        return load_model_tokenizer(self.tokenizer) if self.tokenizer else None

    @functools.cached_property
    def _requests(self) -> tuple[Request, ...]:
        alone = self.parts[0] if len(self.parts) == 1 else None
        if alone is None or not alone.is_plain or self.adapters or self.tokenizer:
            return self._sample.requests
        assert alone.input_tokens is not None
        assert alone.output_tokens is not None
        rng = np.random.default_rng(self.seed)  # the same draws as the sampler's, without drafts
        drawn = draw_pairs(alone.input_tokens, alone.output_tokens, self.request_count, rng)
        inputs, outputs = drawn[0].tolist(), drawn[1].tolist()
        requests = (
            Request(
                index=index, due_s=due_s, input_tokens=inputs[index], output_tokens=outputs[index]
            )
            for index, due_s in enumerate(self._due_times(self.request_count, rng))
        )
        return tuple(self._until_the_end(self._thinking(requests)))

    @functools.cached_property
    def _sample(self) -> Sample:
        return self._sampled(self.model_tokenizer, None)

    def _sampled(self, tokenizer: ModelTokenizer | None, template_tokens: int | None) -> Sample:
        if self.trace is not None:
            return Sample(tuple(self._traced(self.trace)), {})
        counter = TokenCounter(
            tokenizer, chat=self.api in CHAT_APIS, template_tokens=template_tokens
        )
        costs = [counter.cost(part) for part in self.parts]
        rows = {
            i: counter.rows_of(part, costs[i], self.request_count, self.seed)
            for i, part in enumerate(self.parts)
            if part.dataset is not None
        }
        rng = np.random.default_rng(self.seed)
        drafts = sampled(
            self.parts,
            self.request_count,
            rng,
            adapters=self.adapters,
            costs=costs,
            items={i: each.items for i, each in rows.items()},
        )
        heads = sum(draft.request.follows is None for draft in drafts)
        due_s = iter(self._due_times(heads, rng))
        timed, at_s = [], 0.0
        for draft in drafts:
            if draft.request.follows is None:
                at_s = next(due_s, math.inf)
            timed.append(msgspec.structs.replace(draft.request, due_s=at_s))
        kept = self._until_the_end(self._thinking(iter(timed)))
        return Sample(
            tuple(
                msgspec.structs.replace(draft, request=request)
                for draft, request in zip(drafts, kept, strict=False)
            ),
            rows,
        )

    def _traced(self, source: TraceFile) -> Iterator[Draft]:
        trace = self.recorded()
        prefixes = trace.prefixes() or ((),) * len(trace.pairs)
        requests = (
            Request(
                index=index,
                due_s=due_s,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                prefix=prefixes[index],
            )
            for index, (due_s, (input_tokens, output_tokens)) in enumerate(
                zip(trace.offsets_s, trace.pairs, strict=True)
            )
        )
        for request in self._until_the_end(requests):
            own = request.input_tokens - request.prefix_tokens
            yield Draft(request=request, part=0, shared=request.prefix, own_tokens=own)

    def recorded(self) -> Trace:
        """Requests of the trace, as many as are asked for.

        Raises:
            InputError: The trace cannot be read.
        """
        assert self.trace is not None
        return trace_in(self.trace.path, self.trace.time_scale, self.request_count)

    def _due_times(self, count: int, rng: np.random.Generator) -> list[float]:
        due_s = list(itertools.islice(self.arrivals.offsets_s(rng), count))
        if len(due_s) < count and self.duration_s is None:
            raise InputError(
                f"arrivals end after {len(due_s):,} of {count:,} requests",
                hint="ask for fewer, or give a duration to send what is due within it",
            )
        return due_s

    def _thinking(self, requests: Iterator[Request]) -> Iterator[Request]:
        """Requests whose users wait before they send them."""
        for request in requests:
            waits = self.think_s and (self.closed_loop or request.follows is not None)
            yield (msgspec.structs.replace(request, think_s=self.think_s) if waits else request)

    def _until_the_end(self, requests: Iterator[Request]) -> tuple[Request, ...]:
        """Requests that are due before the run ends."""
        last_s = math.inf if self.duration_s is None else self.duration_s
        due = tuple(each for each in requests if each.due_s <= last_s and each.due_s < math.inf)
        if not due:
            raise InputError(
                "no request is due"
                + (f" within {self.duration_s:g} s" if self.duration_s is not None else ""),
                hint="give a longer duration or a higher rate",
            )
        return due


def _lengths_of(part: Part) -> LengthLaws | None:
    if part.input_tokens is None or part.output_tokens is None:
        return None
    return LengthLaws(part.input_tokens, part.output_tokens)


#: Requests of which it is counted what a cache finds.
_FOUND_REQUESTS = 5000

#: Keys whose value is a law of token counts, written as a number, a text or a table.
LAW_KEYS = ("input_tokens", "output_tokens", "turns", "turn_tokens", "answer_tokens", "think_ms")


def workload_of(table: JsonMembers, *, where: str = "the workload") -> Workload:
    """Workload that tables of TOML or JSON describe.

    Args:
        table: Tables as `tomllib` gives them; parts are under `part`. The table `published` says
            how others measured it (`catalogue.Published`) and changes no request.
        where: Place of the tables, for messages.

    Raises:
        InputError: With the place of what has no meaning.
    """
    members = {
        "parts" if name == "part" else name: each
        for name, each in table.items()
        if name != "published"
    }
    members = _with_laws(members, where)
    try:
        if isinstance(members.get("arrivals"), str):
            members["arrivals"] = msgspec.to_builtins(parse_arrivals(members["arrivals"]))
        elif "arrivals" in members:
            members["arrivals"] = msgspec.to_builtins(arrivals_of(members["arrivals"]))
        return msgspec.convert(members, ready(Workload))
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}", hint="see docs/guides/workloads.md") from None
    except InputError as error:  # a value that refuses its members does not know where it stands
        raise InputError(f"{where}: {error}", hint=error.hint) from None


def one_part(input_tokens: str | int, output_tokens: str | int, **members: Any) -> Workload:
    """Workload of one part without a name; further members are those of `Part`."""
    part = {"input_tokens": input_tokens, "output_tokens": output_tokens, **members}
    return workload_of({"part": [part]})


def read_workload(path: str | Path) -> Workload:
    """Workload that a TOML file describes.

    Raises:
        InputError: The file cannot be read, with the line or the key.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the workload {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the workload {path} is not text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{path} is not TOML: {error}",
            hint="correct that place, or fit the log again where the file was cut off",
        ) from None
    table.setdefault("name", Path(path).stem)
    return workload_of(table, where=str(path))


def _with_laws(table: JsonMembers, where: str, key: str = "") -> JsonObject:
    """Table with every law of token counts read, and every JSON schema as text."""
    laws = (*LAW_KEYS, "tokens") if key == "documents" else LAW_KEYS
    read = dict(table)
    for name, value in table.items():
        if name in laws:
            read[name] = _law(value, f"{where}: {name}")
        elif name == "response_format" and isinstance(value, Mapping):
            read[name] = msgspec.json.encode(value).decode()
        elif isinstance(value, Mapping) and name != "arrivals":
            read[name] = _with_laws(value, where, name)
        elif isinstance(value, list | tuple):
            read[name] = [
                _with_laws(each, where, name) if isinstance(each, Mapping) else each
                for each in value
            ]
    return read


def _law(written: Law | str | float | JsonMembers | None, where: str) -> Law | JsonObject | None:
    if isinstance(written, Law) or written is None:
        return written
    try:
        table: JsonObject = msgspec.to_builtins(parse_law(written))
    except InputError as error:
        raise InputError(f"{where}: {error}", hint=error.hint) from None
    return table


def extra_members(text: str) -> JsonObject:
    """Members that a workload's `extra_body` adds to each request's body.

    Raises:
        InputError: The text is no JSON object.
    """
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(
            f"extra_body is not a JSON object: {error}",
            hint='write it like {"top_k": 1}',
        ) from error
