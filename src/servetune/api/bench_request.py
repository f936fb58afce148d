"""Request of the verb bench: load, servers, measurements and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from servetune.api.aws_region import REGION
from servetune.api.request import Request, fields_of
from servetune.api.shared_options import (
    API_KEY_ENV,
    CAFILE,
    MLFLOW,
    PROCESSES,
    TRACE_HEADERS,
    AnswerLimits,
    Limits,
)
from servetune.errors import InputError
from servetune.metrics import TOOLS
from servetune.option import (
    Count,
    FleetCount,
    NonNegative,
    NonNegativeCount,
    Positive,
    argument,
    option,
)
from servetune.workload import LoadOptions


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that take the load."""

    group: ClassVar[str] = "Server"

    urls: Annotated[
        tuple[str, ...], argument("Addresses of servers that run already.", metavar="[URL..]")
    ] = ()
    model: Annotated[
        str | None,
        option("Model that requests ask for.", metavar="NAME", default="the first that is served"),
    ] = None
    api_key_env: Annotated[str | None, API_KEY_ENV] = None
    cafile: Annotated[Path | None, CAFILE] = None
    routing: Annotated[
        str | None,
        option(
            "Rule that chooses the server for each request, over several URLs.",
            choices=("round-robin", "least-outstanding"),
            default="round-robin",
        ),
    ] = None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints of Amazon SageMaker."""

    group: ClassVar[str] = "SageMaker"

    sagemaker: Annotated[
        str | None,
        option(
            "SageMaker endpoint instead of URLs.",
            "--sagemaker",
            "--endpoint",
            metavar="ENDPOINT",
        ),
    ] = None
    component: Annotated[
        str | None,
        option("Inference component of the endpoint.", metavar="NAME", default="its only one"),
    ] = None
    adapter: Annotated[
        str | None,
        option(
            "Inference component that is a LoRA adapter.",
            "--adapter-component",
            "--adapter",
            metavar="NAME",
        ),
    ] = None
    region: Annotated[str | None, REGION] = None
    profile: Annotated[
        str | None, option("AWS profile.", metavar="NAME", default="that of boto3")
    ] = None
    endpoint_url: Annotated[
        str | None, option("Address of SageMaker's runtime, or of a double.", metavar="URL")
    ] = None
    route: Annotated[
        str | None,
        option("Path inside the container, sent as a custom attribute.", metavar="PATH"),
    ] = None
    openai_route: Annotated[
        bool,
        option(
            "OpenAI-compatible route of SageMaker; the bearer token is in SAGEMAKER_BEARER_TOKEN."
        ),
    ] = False
    via_aws_job: Annotated[
        bool, option("Benchmark job of SageMaker that sends the load; needs --sagemaker.")
    ] = False
    role_arn: Annotated[
        str | None, option("ARN of the IAM role that the benchmark job runs as.", metavar="ARN")
    ] = None
    output_s3: Annotated[
        str | None, option("S3 prefix of the benchmark job's results.", metavar="s3://..")
    ] = None
    secret_arn: Annotated[
        str | None, option("Secret with the hub's token, for gated tokenizers.", metavar="ARN")
    ] = None
    only_status: Annotated[
        bool, option("Status of the benchmark job, and nothing else.", "--status")
    ] = False
    force: Annotated[bool, option("Permission to repeat a benchmark job that is there.")] = False
    clean: Annotated[bool, option("Deletion of the benchmark job and its workload.")] = False
    poll_s: Annotated[
        Positive,
        option("Seconds between two looks at AWS.", "--poll-s", "--poll-every", hidden=True),
    ] = 15.0
    recommendations: Annotated[
        str | None,
        option("AWS recommendation job whose proposals become candidates.", metavar="JOB"),
    ] = None


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """Sender processes, time-outs and early end of a load."""

    group: ClassVar[str] = "Sending"

    grace_s: Annotated[
        NonNegative | None,
        option(
            "Seconds for requests in flight when --duration or --until ends the run.",
            "--grace",
            metavar="S",
            default="30",
        ),
    ] = None
    request_timeout_s: Annotated[
        Positive,
        option(
            "Time limit of each request, in seconds.", "--request-timeout", "--timeout", metavar="S"
        ),
    ] = 600.0
    max_failures: Annotated[
        Count | None,
        option("Failures one after another that end the run.", metavar="COUNT"),
    ] = None
    cold: Annotated[
        bool, option("Connections that are opened when requests are due, not before the start.")
    ] = False
    keep_saturated: Annotated[
        bool, option("Continuation of an open loop that the server cannot follow.")
    ] = False
    processes: Annotated[str, PROCESSES] = "auto"
    cluster: Annotated[
        str | None,
        option(
            "Ray cluster whose nodes send, each with --processes of its own.",
            metavar="auto|ADDRESS",
        ),
    ] = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Earlier trial that the run should reproduce."""

    group: ClassVar[str] = "Baseline"

    against: Annotated[
        Path | None,
        option(
            "Journal, summary or bundle with the trial to reproduce; exit status 1 if worse. A "
            "bundle also names the endpoint.",
            metavar="FILE|BUNDLE",
            of_run=True,
        ),
    ] = None
    trial: Annotated[
        str | None, option("Key of the trial in --against.", metavar="KEY", default="by load")
    ] = None
    copies: Annotated[
        FleetCount | None,
        option(
            "Number of copies behind the addresses; they get as many times a copy's load.",
            metavar="COUNT",
            default="those of the bundle, else one an address",
        ),
    ] = None
    machines: Annotated[
        FleetCount | None,
        option(
            "Number of machines that the copies are on; copies on one share its host.",
            metavar="COUNT",
            default="by the bundle or the addresses, else by the trial's machine",
        ),
    ] = None
    tolerance: Annotated[
        Positive, option("Relative difference treated as noise.", metavar="FRACTION")
    ] = 0.05
    engine_log: Annotated[
        Path | None,
        option("Log of the server's start, with the engine's settings.", metavar="FILE"),
    ] = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements and files of a load test."""

    group: ClassVar[str] = "Results"

    slo: Annotated[
        str,
        option(
            "Limits on single requests, for goodput: ttft<=500ms;tpot<=50ms.",
            metavar="LIMITS",
            default="the latencies of --constraints",
        ),
    ] = ""
    compat: Annotated[
        str | None,
        option(
            "Tool whose definitions and names the figures are given in as well.",
            choices=tuple(TOOLS),
        ),
    ] = None
    scrape_s: Annotated[
        NonNegative,
        option(
            "Seconds between samples of the server's metrics and of this machine; 0 for none.",
            "--scrape-every",
            metavar="S",
        ),
    ] = 1.0
    dcgm_url: Annotated[
        str | None, option("Metrics address of a DCGM exporter.", "--dcgm", metavar="URL")
    ] = None
    trace_headers: Annotated[bool, TRACE_HEADERS] = False
    otel_endpoint: Annotated[
        str | None,
        option(
            "OpenTelemetry collector that gets each request as a span, and histograms.",
            "--otel",
            metavar="URL",
        ),
    ] = None
    out: Annotated[
        Path | None,
        option(
            "Folder for journal, summary, dashboard, and every request with its token times.",
            "--out",
            metavar="DIR",
        ),
    ] = None
    mlflow: Annotated[str | None, MLFLOW] = None
    quiet: Annotated[bool, option("Absence of progress lines.")] = False
    dry_run: Annotated[bool, option("First request as text; nothing is sent.")] = False


class Bench(Request, frozen=True, kw_only=True):
    """Load for servers that run already."""

    verb: ClassVar[str] = "bench"
    most_used: ClassVar[tuple[str, ...]] = (
        "model",
        "concurrency",
        "rate",
        "requests",
        "duration_s",
        "input_tokens",
        "output_tokens",
        "workload",
        "constraints",
        "out",
    )

    server: Server = Server()
    endpoint: Endpoint = Endpoint()
    load: LoadOptions = LoadOptions()
    sending: Sending = Sending()
    baseline: Baseline = Baseline()
    limits: Limits = Limits()
    answers: AnswerLimits = AnswerLimits()
    results: Results = Results()
    seed: Annotated[
        NonNegativeCount | None,
        option(
            "Seed of lengths, arrivals and words.",
            group=LoadOptions.group,
            metavar="NUMBER",
            default="another one in each run, so that no server has seen its prompts",
        ),
    ] = None
    concurrency: Annotated[
        tuple[Count, ...],
        option(
            "Concurrent users; each sends its next request when the last is answered. With a rate "
            "or a trace, most requests in flight. Several, such as 1,8,32, are levels that run one "
            "after another.",
            "--concurrency",
            "--max-concurrency",
            "-c",
            group=LoadOptions.group,
            metavar="USERS",
            default="10 without a rate",
        ),
    ] = ()
    rate: Annotated[
        tuple[Positive, ...],
        option(
            "Requests per second, whether or not the server keeps up. Several, such as 1,2,4, are "
            "levels that run one after another.",
            "--rate",
            "--request-rate",
            group=LoadOptions.group,
            metavar="PER_S",
        ),
    ] = ()
    words_seed: Annotated[
        int | None, option("Seed of random words, where it is not --seed.", hidden=True)
    ] = None

    def levels(self) -> tuple[Bench, ...]:
        """The request at each of its levels; itself where it names one or none.

        Raises:
            InputError: Users and rates both have levels, or a level is named twice.
        """
        if len(self.concurrency) > 1 and len(self.rate) > 1:
            raise InputError(
                "--concurrency and --rate both have several levels",
                hint="give one of them a single value",
            )
        for name, values in (("--concurrency", self.concurrency), ("--rate", self.rate)):
            if len(set(values)) < len(values):
                raise InputError(f"{name} names a level twice", hint="leave one of them out")
        users = self.concurrency or (self.load.concurrency,)
        rates = self.rate or (self.load.rate,)
        return tuple(self._at(each, rate) for each in users for rate in rates)

    def _at(self, users: int | None, rate: float | None) -> Bench:
        return msgspec.structs.replace(
            self,
            concurrency=() if users is None else (users,),
            rate=() if rate is None else (rate,),
            load=msgspec.structs.replace(self.load, concurrency=users, rate=rate),
        )


def values_of(request: Bench) -> dict[str, Any]:
    """Value of every option by its name."""
    return {each.name: each.value(request) for each in fields_of(Bench)}
