"""Workloads: the catalogue, checks of files, samples, and workloads fitted to request logs."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from servetune.api.frames import TableRow, Tabular
from servetune.api.notes import note, progress
from servetune.api.request import Request, request_of
from servetune.errors import InputError, ServetuneError
from servetune.json_value import JsonObject
from servetune.option import Count, NonNegativeCount, Positive, argument, option
from servetune.store import write_text
from servetune.workload.arrivals import AllAtOnce, arrivals_from, format_arrivals
from servetune.workload.catalogue import (
    BUILT_IN,
    Entry,
    Problem,
    described_keys,
    entry,
    problems_in,
)
from servetune.workload.fitting import TOKENS_PER_S, FittedWorkload, fit_workload
from servetune.workload.model_tokenizer import load_model_tokenizer, tokenizer_path
from servetune.workload.options import ARRIVALS
from servetune.workload.prepare import prepare
from servetune.workload.presets import known_workloads
from servetune.workload.request import Request as PromptRequest
from servetune.workload.request_log import (
    CHARACTERS_PER_TOKEN,
    Counting,
    LogForm,
    RequestLog,
    read_log,
    time_of,
)
from servetune.workload.sampler import hit_fraction
from servetune.workload.workload import Workload
from servetune.workload.written import settings_of, workload_text

#: Requests by which the figures of a workload are shown; a long one is not made whole.
_SHOWN_REQUESTS = 4000

NAME = argument("Workload by name, or a TOML file with one.", metavar="NAME|FILE")


class Workloads(Request, frozen=True, kw_only=True):
    """Workloads that can be asked by name."""

    verb: ClassVar[str] = "workloads list"


class WorkloadsShow(Request, frozen=True, kw_only=True):
    """Settings of a workload, what each means, and the commands that use it."""

    verb: ClassVar[str] = "workloads show"

    name: Annotated[str, NAME]


class WorkloadsValidate(Request, frozen=True, kw_only=True):
    """Errors of a workload's file."""

    verb: ClassVar[str] = "workloads validate"

    file: Annotated[Path, argument("TOML file with a workload.", metavar="FILE")]


class WorkloadsSample(Request, frozen=True, kw_only=True):
    """Requests of a workload as they would be sent."""

    verb: ClassVar[str] = "workloads sample"

    name: Annotated[str, NAME]
    requests: Annotated[
        Count | None,
        option(
            "Number of requests, follow-up turns among them.",
            "--requests",
            "--num-prompts",
            "-n",
            metavar="COUNT",
            default="5, with --out all of the workload",
        ),
    ] = None
    rate: Annotated[
        Positive | None,
        option(
            "Requests per second, whether or not the server keeps up.",
            "--rate",
            "--request-rate",
            metavar="PER_S",
            default="arrivals of the workload",
        ),
    ] = None
    arrivals: Annotated[str | None, ARRIVALS] = None
    seed: Annotated[
        NonNegativeCount, option("Seed of lengths, arrivals and words.", metavar="NUMBER")
    ] = 1
    text: Annotated[bool, option("Words of the prompts as well.")] = False
    tokenizer: Annotated[
        str | None,
        option("Tokenizer that counts words.", metavar="FOLDER", default="estimates"),
    ] = None
    out: Annotated[
        Path | None,
        option(
            "Trace of the requests to write, JSON lines that --trace of bench and simulate reads.",
            metavar="FILE",
        ),
    ] = None


class WorkloadsFit(Request, frozen=True, kw_only=True):
    """Workload learnt from a log of a user's own requests, without its text."""

    verb: ClassVar[str] = "workloads fit"

    log: Annotated[
        Path,
        argument(
            "Log of requests: OpenAI-style JSON lines, SageMaker data capture (file or folder), "
            "vLLM's log, Mooncake, Azure or BurstGPT trace; .gz is read, too.",
            metavar="LOG",
        ),
    ]
    out: Annotated[
        Path,
        option(
            "TOML file to write; --workload FILE of the other commands uses it.", metavar="FILE"
        ),
    ]
    log_format: Annotated[
        LogForm | None,
        option("Form of the log's lines.", "--format", default="detected"),
    ] = None
    tokenizer: Annotated[
        str | None,
        option(
            "Tokenizer that counts words.",
            metavar="FOLDER",
            default=f"{CHARACTERS_PER_TOKEN:g} characters a token",
        ),
    ] = None
    characters_per_token: Annotated[
        Positive,
        option(
            "Characters of a token where neither usage nor a tokenizer tells.", metavar="NUMBER"
        ),
    ] = CHARACTERS_PER_TOKEN
    since: Annotated[
        str | None,
        option("Time from which requests are taken, as the log writes times.", metavar="TIME"),
    ] = None
    until_time: Annotated[
        str | None,
        option("Time up to which requests are taken.", "--until-time", metavar="TIME"),
    ] = None
    answer_tokens_per_s: Annotated[
        Positive | None,
        option(
            "Tokens per second of an answer whose end the log does not have, for think times.",
            metavar="NUMBER",
            default=f"read from when next turns come, else {TOKENS_PER_S:g}",
        ),
    ] = None


class CatalogueRow(msgspec.Struct, frozen=True, kw_only=True):
    """Workload of the catalogue in a row.

    Attributes:
        name: Name to ask it by.
        source: `built-in`, or the path of its file.
        concurrency: Users, or most requests in flight; `None` for no limit.
        arrivals: Law of arrivals in one line; `None` for a closed loop.
        input_tokens: Mean tokens of a prompt, with its history.
        output_tokens: Mean tokens of an answer.
        stream: Whether answers are streamed.
        summary: Traffic that it stands for.
        error: Reason why its file cannot be read; empty where it can.
    """

    name: str
    source: str
    concurrency: int | None = None
    arrivals: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    stream: bool | None = None
    summary: str = ""
    error: str = ""


class Catalogue(Tabular, frozen=True, kw_only=True):
    """Workloads that can be asked by name.

    Attributes:
        rows: One per workload, servetune's first.
    """

    rows: tuple[CatalogueRow, ...]

    def as_rows(self) -> Iterable[TableRow]:
        """One row per workload."""
        return self.rows

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            if row.error:
                lines.append(f"{row.name:<24} {row.source}: {row.error}")
                continue
            load = f"{row.concurrency} users" if row.arrivals is None else _law_name(row.arrivals)
            tokens = f"{row.input_tokens:,.0f} in, {row.output_tokens:,.0f} out"
            kind = "" if row.stream else "not streamed"
            own = "" if row.source == BUILT_IN else f" ({row.source})"
            lines.append(
                f"{row.name:<24} {load:<10} {tokens:<20} {kind:<13} {row.summary}{own}".rstrip()
            )
        return "\n".join(lines)


def _law_name(text: str) -> str:
    return text.partition(",")[0].removeprefix("kind=")


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Setting of a workload.

    Attributes:
        key: Key with its tables, such as `part[1].input_tokens`.
        value: Value as a file has it.
        meaning: Meaning in words.
    """

    key: str
    value: str
    meaning: str


class WorkloadDescription(Tabular, frozen=True, kw_only=True):
    """Workload with the meaning of its settings.

    Attributes:
        row: The workload as the catalogue has it.
        settings: Settings that differ from the defaults.
        prefix_hit_fraction: Share of prompt tokens that a perfect prefix cache would find.
        published: Publication that it is from, in words; empty without one.
        constraints: Limits that were published with it.
        commands: Command lines that use it.
    """

    row: CatalogueRow
    settings: tuple[SettingRow, ...]
    prefix_hit_fraction: float
    published: str = ""
    constraints: str = ""
    commands: tuple[str, ...] = ()

    def as_rows(self) -> Iterable[TableRow]:
        """One row per setting."""
        return self.settings

    def __str__(self) -> str:
        row = self.row
        load = f"{row.concurrency} users, each asks when answered"
        if row.arrivals is not None:
            load = row.arrivals if len(row.arrivals) <= 70 else f"{row.arrivals[:70]}..."
        kind = "streamed" if row.stream else "not streamed"
        found = f"{self.prefix_hit_fraction:.0%}"
        tokens = f"{row.input_tokens:,.0f} in, {row.output_tokens:,.0f} out"
        lines = [
            f"{row.name}: {row.summary}",
            f"  source   {row.source}",
            f"  load     {load}",
            f"  tokens   {tokens} on average; {kind}",
            f"  shared   {found} of prompt tokens, which a perfect prefix cache finds",
        ]
        if self.published:
            lines.append(f"  after    {self.published}")
        if self.constraints:
            lines.append(f"  limits   {self.constraints}")
        lines += ["", "Settings"]
        for setting in self.settings:
            value = " ".join(setting.value.split())
            value = value if len(value) <= 60 else f"{value[:57]}..."
            lines += [f"  {setting.key} = {value}", f"      {setting.meaning}"]
        lines += ["", "Commands", *(f"  {each}" for each in self.commands)]
        return "\n".join(lines)


class WorkloadCheck(Tabular, frozen=True, kw_only=True):
    """Errors of a workload's file.

    Attributes:
        file: The file.
        problems: Errors in the order of its lines; empty where it can be used.
    """

    file: str
    problems: tuple[Problem, ...]

    @property
    def valid(self) -> bool:
        """Whether it can be used."""
        return not self.problems

    def as_rows(self) -> Iterable[TableRow]:
        """One row per error."""
        return self.problems

    def __str__(self) -> str:
        if self.valid:
            return f"{self.file} is a workload"
        lines = []
        for each in self.problems:
            place = f"{self.file}:{each.line}" if each.line else self.file
            key = f" {each.key}:" if each.key else ""
            lines.append(f"{place}:{key} {each.message}")
            if each.hint:
                lines.append(f"    hint: {each.hint}")
        return "\n".join(lines)


class SampledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a workload.

    Attributes:
        index: Number in the workload, from 0.
        due_s: Time from the start in seconds; of a later turn that at which its conversation
            begins. 0 in a closed loop, which has no times.
        session: Number of its conversation, where it has several turns.
        turn: Number of its turn, from 0.
        think_s: Seconds from the answer before it.
        input_tokens: Tokens of the prompt, with its history.
        output_tokens: Tokens of the answer.
        shared_tokens: Tokens that a perfect prefix cache would find.
        text: Words of the prompt, where they were asked for.
    """

    index: int
    due_s: float
    session: int | None
    turn: int
    think_s: float
    input_tokens: int
    output_tokens: int
    shared_tokens: int
    text: str | None = None


class WorkloadSample(Tabular, frozen=True, kw_only=True):
    """Requests of a workload as they would be sent.

    Attributes:
        workload: The workload.
        rows: One per request.
        out: Trace that was written.
    """

    workload: Workload
    rows: tuple[SampledRequest, ...]
    out: Path | None = None

    def as_rows(self) -> Iterable[TableRow]:
        """One row per request."""
        return self.rows

    def __str__(self) -> str:
        head = f"{'request':>7} {'due s':>9} {'session':>7} {'turn':>4} {'think s':>7} "
        lines = [head + f"{'in':>7} {'shared':>7} {'out':>6}"]
        for row in self.rows:
            session = "" if row.session is None else str(row.session)
            think = f"{row.think_s:.3g}" if row.turn else ""
            lines.append(
                f"{row.index:>7} {row.due_s:>9.3f} {session:>7} {row.turn or '':>4} {think:>7} "
                f"{row.input_tokens:>7,} {row.shared_tokens:>7,} {row.output_tokens:>6,}"
            )
            if row.text is not None:
                lines.append(row.text)
        return "\n".join(lines)


class FittedLog(Tabular, frozen=True, kw_only=True):
    """Workload fitted to a log, and what was read of it.

    Attributes:
        fitted: The workload, and what was found.
        form: Form of the log's lines.
        unreadable: Number of lines that could not be read.
        examples: First of these, by line and reason.
        unanswered: Number of requests that failed or have no answer.
        outside: Number of requests before `since` or after `until_time`.
        out: File that was written.
    """

    fitted: FittedWorkload
    form: str
    unreadable: int
    examples: tuple[str, ...]
    unanswered: int
    outside: int
    out: Path

    def as_rows(self) -> Iterable[TableRow]:
        """One row per part of the workload."""
        return [
            {
                "part": part.name,
                "share": part.weight / sum(each.weight for each in self.fitted.workload.parts),
                "turns": part.sessions is not None,
                "shared_tokens": part.prefix.node_tokens() if part.prefix else 0.0,
            }
            for part in self.fitted.workload.parts
        ]

    def __str__(self) -> str:
        fitted = self.fitted
        law = format_arrivals(fitted.workload.arrivals)
        lines = [
            f"{fitted.requests:,} requests over {fitted.span_s:,.0f} s, read as {self.form}",
            f"  arrivals   {law if len(law) <= 90 else law[:87] + '...'}",
        ]
        if fitted.conversations:
            lines.append(f"  turns      {fitted.conversations:,} conversations of several")
        for row in self.as_rows():
            assert isinstance(row, dict)
            shared = f", {row['shared_tokens']:,.0f} tokens shared" if row["shared_tokens"] else ""
            lines.append(f"  part       {row['part']}: {row['share']:.1%} of requests{shared}")
        lines += [f"  note       {each}" for each in fitted.found]
        if self.unanswered:
            lines.append(f"  left out   {self.unanswered:,} that failed or have no length")
        if self.outside:
            lines.append(f"  left out   {self.outside:,} outside of the time asked for")
        if self.unreadable:
            lines.append(f"  unreadable {self.unreadable:,} lines, such as")
            lines += [f"             {each}" for each in self.examples]
        return "\n".join(lines)


def list_workloads(request: Workloads | None = None, /, **options: object) -> Catalogue:
    """Workloads that can be asked by name: servetune's, and those in the user's folders.

    Example:
        >>> import servetune as st
        >>> st.list_workloads().rows[0].name
        'agent_tool_calling'
    """
    request_of(Workloads, request, options)
    return Catalogue(rows=tuple(_listed(name) for name in known_workloads()))


def _listed(name: str) -> CatalogueRow:
    """Row of a workload; one that cannot be read hides no other."""
    try:
        return _row(entry(name))
    except ServetuneError as error:
        return CatalogueRow(name=name, source="your file", error=error.message)


def _row(found: Entry) -> CatalogueRow:
    workload = found.workload
    requests = _first_requests(workload)
    return CatalogueRow(
        name=found.name,
        source=found.source,
        concurrency=workload.concurrency,
        arrivals=None if workload.closed_loop else format_arrivals(workload.arrivals),
        input_tokens=_mean([each.input_tokens for each in requests]),
        output_tokens=_mean([each.output_tokens for each in requests]),
        stream=workload.stream,
        summary=workload.summary,
    )


def _first_requests(workload: Workload) -> tuple[PromptRequest, ...]:
    count = min(workload.request_count, _SHOWN_REQUESTS)
    return msgspec.structs.replace(workload, request_count=count, duration_s=None).requests()


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 1)


def show_workload(
    request: WorkloadsShow | str | Path | None = None, /, **options: object
) -> WorkloadDescription:
    """Settings of a workload with what each means, and the commands that use it.

    Args:
        request: The request, or the name or file of a workload.
        options: Fields of `WorkloadsShow`.

    Raises:
        UnknownName: It is no name, and no file.
        InputError: The file cannot be read.
    """
    request = request_of(WorkloadsShow, request, options)
    found = entry(request.name)
    published = found.published
    settings = tuple(
        SettingRow(
            key=".".join(filter(None, (each.place, each.key))),
            value=each.value,
            meaning="Law of arrivals (docs/guides/arrivals.md)."
            if (each.place, each.key) == ("arrivals", "kind")
            else described_keys(each.kind).get(each.key, ""),
        )
        for each in settings_of(found.workload)
    )
    return WorkloadDescription(
        row=_row(found),
        settings=settings,
        prefix_hit_fraction=hit_fraction(_first_requests(found.workload)),
        published=published.source,
        constraints=published.constraints,
        commands=tuple(_commands(request.name, found)),
    )


def _commands(name: str, found: Entry) -> Iterator[str]:
    published = found.published
    load = f"--workload {shlex.quote(name)}"
    limits = f" --constraints {shlex.quote(published.constraints)}" if published.constraints else ""
    levels = ",".join(map(str, published.concurrency))
    users = f" -c {levels}" if levels else ""
    yield f"servetune bench http://localhost:8000 {load}{users}{limits}"
    yield f"servetune simulate --model MODEL --gpu GPU {load}{limits}"
    yield f"servetune tune --model MODEL {load}{users}{limits}"


def validate_workload(
    request: WorkloadsValidate | str | Path | None = None, /, **options: object
) -> WorkloadCheck:
    """Every error of a workload's file, with its line, its key and what to do.

    Args:
        request: The request, or the file.
        options: Fields of `WorkloadsValidate`.

    Raises:
        InputError: There is no such file, or it is not text.
    """
    if isinstance(request, str):
        request = Path(request)
    request = request_of(WorkloadsValidate, request, options)
    return WorkloadCheck(file=str(request.file), problems=problems_in(request.file))


def sample_workload(
    request: WorkloadsSample | str | Path | None = None, /, **options: object
) -> WorkloadSample:
    """Requests of a workload as they would be sent; with `out` also as a trace.

    Args:
        request: The request, or the name or file of a workload.
        options: Fields of `WorkloadsSample`.

    Raises:
        UnknownName: It is no name, and no file.
        InputError: Its requests cannot be made.
        StoreError: The trace cannot be written.
    """
    request = request_of(WorkloadsSample, request, options)
    workload = entry(request.name).workload
    arrivals = workload.arrivals
    if request.rate is not None or request.arrivals is not None:
        arrivals = arrivals_from(request.rate, request.arrivals)
    shown = request.requests or (workload.request_count if request.out else 5)
    workload = msgspec.structs.replace(
        workload,
        request_count=shown,
        arrivals=arrivals,
        seed=request.seed,
        duration_s=None,
        tokenizer=tokenizer_path(request.tokenizer, "") or workload.tokenizer,
    )
    requests = workload.requests()
    texts = _texts(workload) if request.text else [None] * len(requests)
    rows = tuple(_sampled(requests, texts))
    if request.out is not None:
        if isinstance(arrivals, AllAtOnce):
            note("note: a closed loop has no times, all are due at 0; --rate gives them")
        write_text(request.out, "".join(_trace_lines(requests)))
        progress(f"trace      {request.out}, {len(requests):,} requests; --trace reads it")
    return WorkloadSample(workload=workload, rows=rows, out=request.out)


def _texts(workload: Workload) -> list[str | None]:
    found: list[str | None] = []
    for prompt in prepare(workload).prompts:
        text = prompt.text
        if text is None and prompt.messages is not None:
            text = "\n".join(f"{each['role']}: {each['content']}" for each in prompt.messages)
        found.append(text)
    return found


def _sampled(
    requests: Sequence[PromptRequest], texts: Sequence[str | None]
) -> Iterator[SampledRequest]:
    from servetune.workload.sampler import PerfectCache

    cache = PerfectCache()
    for request, text in zip(requests, texts, strict=True):
        shared = min(cache.look_up(request.prefix), request.input_tokens - 1)
        if request.answer_id is not None and request.prefix_tokens == request.input_tokens:
            cache.look_up((*request.prefix, (request.answer_id, request.output_tokens)))
        yield SampledRequest(
            index=request.index,
            due_s=request.due_s,
            session=request.session,
            turn=request.turn,
            think_s=request.think_s,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            shared_tokens=shared,
            text=text,
        )


def _trace_lines(requests: Sequence[PromptRequest]) -> Iterator[str]:
    """Lines of a trace; a later turn is due when its answer, at a usual speed, was read."""
    due_s: dict[int, float] = {}
    for request in requests:
        at_s = request.due_s
        if request.follows is not None:
            answered = requests[request.follows].output_tokens / TOKENS_PER_S
            at_s = due_s[request.follows] + answered + request.think_s
        due_s[request.index] = at_s
    for request in sorted(requests, key=lambda each: due_s[each.index]):
        row: JsonObject = {
            "due_s": round(due_s[request.index], 6),
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
        }
        if request.prefix:
            row["prefix"] = request.prefix
        yield msgspec.json.encode(row).decode() + "\n"


def fit_log(request: WorkloadsFit | str | Path | None = None, /, **options: object) -> FittedLog:
    """Learn a workload from a log of requests and write it; no text and no hash is kept.

    Args:
        request: The request, or the log.
        options: Fields of `WorkloadsFit`.

    Raises:
        InputError: The log cannot be read, has too few requests, or a time is none.
        StoreError: The file cannot be written.
    """
    if isinstance(request, str):
        request = Path(request)
    request = request_of(WorkloadsFit, request, options)
    log = _read(request)
    name = request.out.name.removesuffix(".toml")
    fitted = fit_workload(log, name=name, tokens_per_s=request.answer_tokens_per_s)
    comments = ["Learnt by servetune workloads fit; it holds no text.", *fitted.found]
    write_text(request.out, workload_text(fitted.workload, comments))
    return FittedLog(
        fitted=fitted,
        form=log.form,
        unreadable=log.unreadable,
        examples=log.examples,
        unanswered=log.unanswered,
        outside=log.outside,
        out=request.out,
    )


def _read(request: WorkloadsFit) -> RequestLog:
    path = tokenizer_path(request.tokenizer, "")
    counting = Counting(
        tokenizer=load_model_tokenizer(path) if path else None,
        characters_per_token=request.characters_per_token,
    )
    return read_log(
        request.log,
        form=request.log_format,
        counting=counting,
        since_s=_time(request.since, "--since", -math.inf),
        until_s=_time(request.until_time, "--until-time", math.inf),
    )


def _time(written: str | None, name: str, default: float) -> float:
    if written is None:
        return default
    with contextlib.suppress(ValueError):
        return time_of(written)
    raise InputError(
        f"{name} '{written}' is no time",
        hint="write 2026-05-01T12:00:00, or seconds as the log has them",
    )
