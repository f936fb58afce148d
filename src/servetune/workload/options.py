"""Load options that verbs share, and the workload that they describe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, get_type_hints

import msgspec
import numpy as np

from servetune.errors import InputError
from servetune.option import Count, NonNegative, NonNegativeCount, Positive, members, option
from servetune.workload.apis import APIS
from servetune.workload.arrivals import AllAtOnce, Arrivals, Poisson, Scheduled, arrivals_from
from servetune.workload.counting import CHAT_APIS
from servetune.workload.headers import header_of
from servetune.workload.laws import Always, parse_law
from servetune.workload.model_tokenizer import tokenizer_path
from servetune.workload.parts import Adapter, DataSet, Level, Part, Prefix, Sessions
from servetune.workload.prepare import ID_APIS
from servetune.workload.presets import known_workloads, preset
from servetune.workload.traces import trace_in
from servetune.workload.workload import MOST_REQUESTS, TraceFile, Workload

DEFAULT_INPUT_TOKENS = "550"
DEFAULT_OUTPUT_TOKENS = "150"
"""Lengths of the workload without a name, which `bench` sends; its records carry them."""

STUDY_INPUT_TOKENS = "1024"
STUDY_OUTPUT_TOKENS = "512"
STUDY_REQUESTS = 1000
"""Defaults of a study and of its client arguments, as other load clients have them."""

DEFAULT_TURN_TOKENS = "64"
DEFAULT_CONCURRENCY = 10
DEFAULT_REQUESTS = 100

REQUESTS_WORDS = (
    f"{DEFAULT_REQUESTS} or two for each user, for a quick look; tune and simulate send "
    f"{STUDY_REQUESTS}"
)
STUDY_REQUESTS_WORDS = (
    f"{STUDY_REQUESTS}, so that ten lie beyond the 99th percentile; bench sends {DEFAULT_REQUESTS}"
)
"""Default numbers of requests in words, with the reason why they differ."""

MOST_UNTIL = 20_000
"""Requests of a run that ends at a precision; a tail is known to 5 % long before, or never."""

MOST_FOR_DURATION = 50_000
"""Requests of a closed loop that ends after a time: bodies of 200 MB."""

QUICK_TOKEN_S, QUICK_ANSWER_S = 0.002, 0.02
"""Seconds of a fast server's answer: they decide how many requests a closed loop may need."""


ARRIVALS = option(
    "Law of arrivals: poisson (with a rate), constant, gamma, or in full "
    "kind=NAME,key=value (docs/guides/arrivals.md).",
    metavar="LAW",
)
"""Declaration of `--arrivals`."""

SHARED_PREFIX = option(
    "Tokens at the beginning of each prompt that it shares with others; part of its length.",
    "--shared-prefix",
    metavar="TOKENS",
)
"""Declaration of the option `--shared-prefix`."""

PREFIXES = option("Number of different shared prefixes.", metavar="COUNT", default="1")
"""Declaration of the option `--prefixes`."""

DISTINCT_PROMPTS = option(
    "Number of different prompts, asked again and again in random order.",
    metavar="COUNT",
    default="all different",
)
"""Declaration of the option `--distinct-prompts`."""


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Load: what is asked of a server, and when."""

    group: ClassVar[str] = "Load"

    workload: Annotated[
        str | None,
        option(
            "Workload by name, or a TOML file with one.", metavar="NAME|FILE", known=known_workloads
        ),
    ] = None
    input_tokens: Annotated[
        str | None,
        option(
            "Length of prompts in tokens: 1024, or a law such as kind=normal,mean=1024,std=200.",
            "--input-tokens",
            "--input-len",
            metavar="LAW",
            default=DEFAULT_INPUT_TOKENS,
        ),
    ] = None
    output_tokens: Annotated[
        str | None,
        option(
            "Length of answers in tokens, as a number or a law.",
            "--output-tokens",
            "--output-len",
            metavar="LAW",
            default=DEFAULT_OUTPUT_TOKENS,
        ),
    ] = None
    dataset: Annotated[
        str | None,
        option("Data set of prompts: JSON, JSON lines, CSV, Parquet or hf:NAME.", metavar="FILE"),
    ] = None
    prompt_column: Annotated[
        str | None,
        option("Column of the data set's prompts.", metavar="NAME", default="found by name"),
    ] = None
    output_column: Annotated[
        str | None,
        option(
            "Column of the data set's answers, or of their tokens.",
            metavar="NAME",
            default="found by name",
        ),
    ] = None
    dataset_min_tokens: Annotated[
        Count | None,
        option("Least tokens of a data set's prompt and answer; others are left out."),
    ] = None
    dataset_max_tokens: Annotated[
        Count | None,
        option("Most tokens of a data set's prompt and answer together; others are left out."),
    ] = None
    turns: Annotated[
        str | None, option("Turns of a conversation, as a number or a law.", metavar="LAW")
    ] = None
    turn_tokens: Annotated[
        str | None,
        option(
            "Tokens that a user adds in each further turn, as a number or a law.",
            metavar="LAW",
            default=DEFAULT_TURN_TOKENS,
        ),
    ] = None
    think_s: Annotated[
        NonNegative | None,
        option(
            "Seconds from an answer to the next question of its user.",
            "--think-time",
            metavar="S",
        ),
    ] = None
    shared_prefix_tokens: Annotated[Count | None, SHARED_PREFIX] = None
    prefixes: Annotated[Count | None, PREFIXES] = None
    distinct_prompts: Annotated[Count | None, DISTINCT_PROMPTS] = None
    adapters: Annotated[
        tuple[str, ...],
        option("LoRA adapters that requests are spread over.", "--lora", metavar="NAME[=WEIGHT]"),
        members("{}={}".format),
    ] = ()
    tokenizer: Annotated[
        str | None,
        option("Tokenizer that counts words.", metavar="FOLDER", default="the model's"),
    ] = None
    trace: Annotated[
        str | None,
        option(
            "Trace of requests to send again: Mooncake JSONL, Azure or BurstGPT CSV, or what "
            "--out wrote.",
            metavar="FILE",
        ),
    ] = None
    time_scale: Annotated[
        Positive | None,
        option("Factor on the trace's times; 0.5 is twice the load.", metavar="FACTOR"),
    ] = None
    seed: Annotated[
        NonNegativeCount, option("Seed of lengths, arrivals and words.", metavar="NUMBER")
    ] = 1
    concurrency: Annotated[
        Count | None,
        option(
            "Concurrent users; each sends its next request when the last is answered. With a rate "
            "or a trace, most requests in flight.",
            "--concurrency",
            "--max-concurrency",
            "-c",
            metavar="USERS",
            default="10 without a rate",
        ),
    ] = None
    rate: Annotated[
        Positive | None,
        option(
            "Requests per second, whether or not the server keeps up.",
            "--rate",
            "--request-rate",
            metavar="PER_S",
        ),
    ] = None
    arrivals: Annotated[str | None, ARRIVALS] = None
    requests: Annotated[
        Count | None,
        option(
            "Number of requests, follow-up turns among them.",
            "--requests",
            "--num-prompts",
            "-n",
            metavar="COUNT",
            default=REQUESTS_WORDS,
        ),
    ] = None
    duration_s: Annotated[
        Positive | None,
        option("Seconds after which no request is sent.", "--duration", metavar="S"),
    ] = None
    until: Annotated[
        str | None,
        option(
            "Precision at which the run stops, such as ttft:p99±5%.", metavar="METRIC:STATISTIC±%"
        ),
    ] = None
    warmup: Annotated[
        NonNegativeCount,
        option(
            "Requests before the load, with other words, that are not counted.", metavar="COUNT"
        ),
    ] = 1
    api: Annotated[
        str | None,
        option(
            "Route of the server's API.",
            choices=tuple(APIS),
            default="completions; chat where only that carries the workload",
        ),
    ] = None
    no_stream: Annotated[
        bool, option("Whole answers instead of streamed ones: no time to first token.")
    ] = False
    stop_at_eos: Annotated[
        bool, option("Answers that end where the model ends them, shorter than asked.")
    ] = False
    temperature: Annotated[NonNegative, option("Temperature of sampling.", metavar="NUMBER")] = 0.0
    min_tokens: Annotated[
        bool, option("Request member min_tokens, sent in addition to ignore_eos.")
    ] = False
    header: Annotated[
        tuple[str, ...],
        option(
            "Header of each request; '$VARIABLE' in it is read from the environment. May be "
            "repeated.",
            metavar="NAME:VALUE",
        ),
        members("{}: {}".format),
    ] = ()
    extra_body: Annotated[
        str, option("Further members of each request's JSON body.", metavar="JSON")
    ] = ""

    def to_workload(self, model: str = "") -> Workload:
        """Workload that the options mean.

        Args:
            model: Name or folder of the model; a folder's tokenizer is used where none is named.

        Raises:
            InputError: Options contradict one another, or a file cannot be read.
            UnknownName: There is no such workload or law.
        """
        require_agreement(self)
        tokenizer = tokenizer_path(self.tokenizer, model)
        if self.trace is not None:
            return self._replay(tokenizer)
        workload = preset(self.workload) if self.workload else self._described()
        adapters = _adapters(self.adapters) or workload.adapters
        arrivals = workload.arrivals
        if self.rate is not None or self.arrivals is not None:
            arrivals = arrivals_from(self.rate, self.arrivals)
        api = self.api or ("chat" if workload.needs_chat else workload.api)
        if workload.needs_chat and api not in CHAT_APIS:
            raise InputError(
                f"{workload.name} has conversations, tools or pictures, which --api {api} does not "
                "carry",
                hint="use the chat route",
            )
        users = self.concurrency
        if users is None and isinstance(arrivals, AllAtOnce):
            users = workload.concurrency or DEFAULT_CONCURRENCY
        changed = msgspec.structs.replace(
            workload,
            adapters=adapters,
            arrivals=arrivals,
            concurrency=users,
            think_s=0.0 if self.turns else self.think_s or workload.think_s,
            duration_s=self.duration_s or workload.duration_s,
            until=self.until or workload.until,
            warmup_count=self.warmup,
            seed=self.seed,
            api=api,
            stream=workload.stream and not self.no_stream,
            ignore_eos=workload.ignore_eos and not self.stop_at_eos,
            tokenizer=tokenizer or workload.tokenizer,
            extra_body=self.extra_body or workload.extra_body,
        )
        return msgspec.structs.replace(changed, request_count=self._request_count(changed))

    def _described(self) -> Workload:
        """Workload of one part, by the options about lengths."""
        name = Path(self.dataset).stem if self.dataset else "random"
        return Workload(name=name, parts=(self._part(),), request_count=DEFAULT_REQUESTS)

    def _part(self) -> Part:
        if self.dataset is not None:
            dataset = DataSet(
                path=self.dataset,
                prompt_column=self.prompt_column,
                output_column=self.output_column,
                min_tokens=self.dataset_min_tokens or 1,
                max_total_tokens=self.dataset_max_tokens,
            )
            law = parse_law(self.output_tokens) if self.output_tokens else None
            return Part(dataset=dataset, output_tokens=law)
        inputs = parse_law(self.input_tokens or DEFAULT_INPUT_TOKENS)
        outputs = parse_law(self.output_tokens or DEFAULT_OUTPUT_TOKENS)
        prefix = sessions = None
        if self.shared_prefix_tokens is not None:
            if isinstance(inputs, Always) and inputs.tokens <= self.shared_prefix_tokens:
                raise InputError(
                    f"prompts of {inputs.tokens} tokens have no room for a shared prefix of "
                    f"{self.shared_prefix_tokens} and words of their own",
                    hint="--input-tokens is the whole prompt: give "
                    f"{self.shared_prefix_tokens + 100} or more",
                )
            level = Level(tokens=self.shared_prefix_tokens, branches=self.prefixes or 1)
            prefix = Prefix(levels=(level,))
        if self.turns is not None:
            sessions = Sessions(
                turns=parse_law(self.turns),
                turn_tokens=parse_law(self.turn_tokens or DEFAULT_TURN_TOKENS),
                think_s=self.think_s or 0.0,
            )
        return Part(
            input_tokens=inputs,
            output_tokens=Always(1) if self.api == "embeddings" else outputs,
            prefix=prefix,
            sessions=sessions,
            distinct=self.distinct_prompts,
        )

    def _replay(self, tokenizer: str | None) -> Workload:
        """Workload of recorded requests."""
        assert self.trace is not None
        api = self.api or "completions"
        if api not in ID_APIS or api == "embeddings":
            raise InputError(
                f"a trace has lengths and no text, and {api} takes only text",
                hint="leave --api out: prompts are token ids, which /v1/completions takes",
            )
        source = TraceFile(path=self.trace, time_scale=self.time_scale or 1.0)
        trace = trace_in(source.path, source.time_scale, self.requests)
        if self.requests is not None:
            trace = trace.first(self.requests)
        return Workload(
            name="trace",
            trace=source,
            request_count=len(trace.pairs),
            concurrency=self.concurrency,
            duration_s=self.duration_s,
            until=self.until,
            warmup_count=self.warmup,
            seed=self.seed,
            api=api,
            stream=not self.no_stream,
            ignore_eos=not self.stop_at_eos,
            extra_body=self.extra_body,
        )

    def _request_count(self, workload: Workload) -> int:
        """Number of requests: as given, else as many as the duration needs, else the default."""
        if self.requests is not None:
            return self.requests
        users = workload.concurrency or DEFAULT_CONCURRENCY
        if workload.duration_s is None:
            counted = _counted(workload.arrivals)
            if counted is not None:
                return counted
            if workload.until:
                return MOST_UNTIL
            each_twice = 2 * users if workload.closed_loop and not self.workload else 0
            return max(workload.request_count, each_twice)
        if not workload.closed_loop:
            return _due_within(workload.arrivals, workload.duration_s)
        answer_s = QUICK_ANSWER_S + QUICK_TOKEN_S * _shortest_answers(workload) + workload.think_s
        needed = int(users * workload.duration_s / answer_s)
        return max(1000, users, min(MOST_FOR_DURATION, needed))


def _counted(arrivals: Arrivals) -> int | None:
    """Number of arrivals that a law has; `None` for one without end."""
    match arrivals:
        case Scheduled():
            return max(1, len(arrivals.times_s))
        case Poisson():
            return arrivals.count
    return None


def _due_within(arrivals: Arrivals, duration_s: float) -> int:
    """Requests that are due within a time, with six standard deviations to spare.

    What a law with rare long gaps counts beyond its rate from a start at an arrival is added;
    requests that are due later are not sent.
    """
    counted = _counted(arrivals)
    if counted is not None:
        return counted
    mean = (arrivals.mean_rate_per_s(duration_s) or 0.0) * duration_s
    dispersion = arrivals.dispersion
    surplus = 6 * math.sqrt(mean * max(1.0, dispersion)) + dispersion + 10
    return min(MOST_REQUESTS, max(1, math.ceil(mean + surplus)))


def _shortest_answers(workload: Workload) -> float:
    """Mean tokens of the answers of the part whose answers are shortest."""
    rng = np.random.default_rng(0)
    laws = [part.output_tokens for part in workload.parts]
    means = [float(law.draw(100, rng).mean()) for law in laws if law is not None]
    return min(means, default=0.0)


def _adapters(named: tuple[str, ...]) -> tuple[Adapter, ...]:
    adapters = []
    for text in named:
        name, _, weight = text.partition("=")
        try:
            if not name:
                raise ValueError
            adapters.append(Adapter(name=name, weight=float(weight or 1)))
        except ValueError:
            raise InputError(
                f"cannot read the adapter '{text}'", hint="write NAME or NAME=2"
            ) from None
    return tuple(adapters)


#: Option, options of which it needs one, and a hint.
_NEEDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("turn_tokens", ("turns",), "--turns 4 asks conversations"),
    ("prefixes", ("shared_prefix_tokens",), "--shared-prefix 512 makes prompts begin alike"),
    ("time_scale", ("trace",), "without a trace, --rate gives the requests per second"),
    ("prompt_column", ("dataset",), "--dataset names the file that has columns"),
    ("output_column", ("dataset",), "--dataset names the file that has columns"),
    ("dataset_min_tokens", ("dataset",), "--dataset names the file with prompts"),
    ("dataset_max_tokens", ("dataset",), "--dataset names the file with prompts"),
)

#: Option, what it decides, options that would decide it as well, and a hint.
_EXCLUDES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "trace",
        "a trace has its own requests and times",
        (
            "workload", "dataset", "input_tokens", "output_tokens", "turns", "turn_tokens",
            "think_s", "shared_prefix_tokens", "prefixes", "distinct_prompts", "prompt_column",
            "output_column",
            "adapters", "rate", "arrivals",
        ),
        "leave it out; --time-scale 0.5 replays the trace twice as fast",
    ),
    (
        "workload",
        "a workload has its own prompts and lengths",
        (
            "dataset", "input_tokens", "output_tokens", "turns", "turn_tokens",
            "shared_prefix_tokens", "prefixes", "distinct_prompts", "prompt_column",
            "output_column",
        ),
        "leave it out, or write a workload of your own (docs/guides/workloads.md)",
    ),
    (
        "dataset",
        "a data set has its own prompts",
        (
            "input_tokens", "turns", "turn_tokens", "shared_prefix_tokens", "prefixes",
            "distinct_prompts",
        ),
        "leave it out; --output-tokens may stay",
    ),
    (
        "distinct_prompts",
        "prompts that are asked again are alike from end to end",
        ("shared_prefix_tokens", "turns"),
        "leave one of the two out",
    ),
)  # fmt: skip


def require_agreement(options: LoadOptions) -> None:
    """Refuse options about something that is not there, and options that contradict each other.

    Raises:
        InputError: The first such option, and what to do.
    """
    for name, needed, hint in _NEEDS:
        if _given(options, name) and not any(_given(options, other) for other in needed):
            others = " or ".join(spelling(other) for other in needed)
            raise InputError(f"{spelling(name)} has no meaning without {others}", hint=hint)
    for name, claim, rivals, hint in _EXCLUDES:
        for other in rivals:
            if _given(options, name) and _given(options, other):
                raise InputError(
                    f"{claim}: {spelling(name)} and {spelling(other)} contradict each other",
                    hint=hint,
                )
    for text in options.header:
        header_of(text)
    if options.stop_at_eos and options.min_tokens:
        raise InputError(
            "answers that end where the model ends them have no length of their own: "
            "--stop-at-eos and --min-tokens contradict each other",
            hint="leave one of them out",
        )
    if options.turns and options.api not in (None, *CHAT_APIS):
        raise InputError(
            f"--turns makes conversations, which --api {options.api} does not carry",
            hint="give --api chat, or leave it out",
        )
    if options.api == "embeddings" and options.output_tokens:
        raise InputError("embeddings have no output tokens", hint="leave --output-tokens out")
    waits = options.think_s and not options.turns and not options.workload
    if waits and not isinstance(arrivals_from(options.rate, options.arrivals), AllAtOnce):
        raise InputError(
            "--think-time is between an answer and its user's next request, and requests that "
            "come at a rate wait for no answer",
            hint="leave --rate out, or give --turns for conversations",
        )


#: Text between the values of an option that has several, where they are one client argument.
_SEPARATORS = {"adapters": ",", "header": "\n"}


def joined(name: str, values: Sequence[str]) -> str:
    """Values of an option as one client argument; a header may hold commas and semicolons."""
    return _SEPARATORS[name].join(values)


def separated(name: str, text: str) -> tuple[str, ...]:
    """Values of an option from its client argument."""
    return tuple(text.split(_SEPARATORS[name]))


def spelling(name: str) -> str:
    """Option as a user writes it: `--duration` of `duration_s`.

    Example:
        >>> spelling("shared_prefix_tokens")
        '--shared-prefix'
    """
    annotation = get_type_hints(LoadOptions, include_extras=True)[name]
    declared = (each.extra or {} for each in annotation.__metadata__)
    [names] = [each["option"].names for each in declared if "option" in each]
    return str(names[0]) if names else "--" + name.replace("_", "-")


def _given(options: LoadOptions, name: str) -> bool:
    return getattr(options, name) not in (None, False, ())
