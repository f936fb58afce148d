"""`servetune bench`: send load to servers that run already, and say what they did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servetune.cli import bench_against, bench_aws_job, bench_sagemaker, options
from servetune.cli.main import INTERRUPTED, TARGET_MISSED
from servetune.cli.output import echo, print_json

if TYPE_CHECKING:
    from servetune.errors import ServerRefused
    from servetune.trials import Bench, Benched

__all__ = ["bench"]

APIS = ("completions", "chat", "responses", "embeddings", "tgi", "sglang")
#: Of a run without any word about it, as users of SageMaker's benchmark know it.
DEFAULT_INPUT_TOKENS = "550"
DEFAULT_OUTPUT_TOKENS = "150"
DEFAULT_REQUESTS = 100
#: Statuses that may mean a route that is not there, or a model that is not.
NO_SUCH_ROUTE = (404, 405, 501)


Command = Callable[..., Any]


def _group(*choices: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def decorate(command: Command) -> Command:
        for choice in reversed(choices):
            command = choice(command)
        return command

    return decorate


_TARGET = _group(
    click.argument("urls", nargs=-1, metavar="[URL..]"),
    click.option("--model", default=None, help="[default: the first that the server names]"),
    click.option(
        "--api",
        type=click.Choice(APIS),
        default=None,
        help="[default: completions; chat where conversations are asked or there is nothing else]",
    ),
    click.option(
        "--api-key-env",
        default=None,
        metavar="NAME",
        help="Environment variable that holds the API key.",
    ),
    click.option(
        "--cafile",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="Certificates to trust instead of the system's.",
    ),
    click.option(
        "--routing",
        type=click.Choice(("round_robin", "least_outstanding")),
        default=None,
        help="Over several URLs. [default: round_robin]",
    ),
    click.option("--no-stream", is_flag=True, help="Whole answers: no time to first token."),
    click.option("--temperature", type=options.NOT_NEGATIVE, default=0.0, show_default=True),
    click.option(
        "--stop-at-eos",
        is_flag=True,
        help="Let answers end where the model ends them, shorter than asked.",
    ),
    click.option("--min-tokens", is_flag=True, help="Send min_tokens as well as ignore_eos."),
    click.option("--extra-body", default="", metavar="JSON", help="Members over each body."),
)

_SAGEMAKER = _group(*bench_sagemaker.OPTIONS, *bench_aws_job.OPTIONS)

_AGAINST = _group(*bench_against.OPTIONS)

_WORDS = _group(
    click.option("--workload", default=None, metavar="NAME|FILE", help="A named workload."),
    click.option(
        "--input-tokens",
        default=None,
        metavar="LAW",
        help=f"1024, or kind=normal,mean=1024,std=200. [default: {DEFAULT_INPUT_TOKENS}]",
    ),
    click.option(
        "--output-tokens",
        default=None,
        metavar="LAW",
        help=f"Likewise. [default: {DEFAULT_OUTPUT_TOKENS}]",
    ),
    click.option("--dataset", default=None, metavar="FILE", help="JSON(L), CSV, Parquet, hf:NAME."),
    click.option("--prompt-column", default=None, metavar="NAME", help="[default: found by name]"),
    click.option("--output-column", default=None, metavar="NAME", help="Answers, or their tokens."),
    click.option("--turns", default=None, metavar="LAW", help="Conversations of so many turns."),
    click.option("--turn-tokens", default=None, metavar="LAW", help="That each further turn adds."),
    click.option(
        "--think-time",
        "think_s",
        type=options.NOT_NEGATIVE,
        default=None,
        metavar="S",
        help="From an answer to the next question of its user.",
    ),
    click.option(
        "--shared-prefix",
        type=click.IntRange(min=1),
        default=None,
        metavar="TOKENS",
        help="Of --input-tokens, what prompts begin with alike.",
    ),
    click.option(
        "--prefixes",
        type=click.IntRange(min=1),
        default=None,
        metavar="COUNT",
        help="Different ones. [default: 1]",
    ),
    click.option("--lora", multiple=True, metavar="NAME[=WEIGHT]", help="Adapters to spread over."),
    click.option("--tokenizer", default=None, metavar="FOLDER", help="[default: the model's]"),
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="Replay requests: Mooncake JSONL, Azure or BurstGPT CSV, or what --out wrote.",
    ),
    click.option(
        "--time-scale",
        type=options.POSITIVE,
        default=None,
        metavar="FACTOR",
        help="On the trace's times; 0.5 is twice the load.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True),
)

_WHEN = _group(
    click.option(
        "--concurrency",
        "-c",
        type=click.IntRange(min=1),
        default=None,
        metavar="USERS",
        help="Who each wait for their answer; with --rate or --trace the most in flight. "
        "[default: 10 without --rate]",
    ),
    click.option(
        "--rate",
        type=options.POSITIVE,
        default=None,
        metavar="PER_S",
        help="Requests per second, whether or not the server keeps up.",
    ),
    click.option(
        "--arrivals",
        default=None,
        metavar="LAW",
        help="poisson (the default with --rate), constant, or any law in full "
        "(docs/guides/arrivals.md).",
    ),
    click.option(
        "--num-prompts",
        "--requests",
        "-n",
        "request_count",
        type=click.IntRange(min=1),
        default=None,
        metavar="COUNT",
        help=f"[default: {DEFAULT_REQUESTS}]",
    ),
    click.option(
        "--duration",
        "duration_s",
        type=options.POSITIVE,
        default=None,
        metavar="S",
        help="Nothing is sent after so long.",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=options.NOT_NEGATIVE,
        default=None,
        metavar="S",
        help="For what is in flight when --duration or --until ends the run. [default: 30]",
    ),
    click.option("--until", default=None, metavar="ttft:p99±5%", help="Stop when known so well."),
    click.option(
        "--warmup",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        metavar="COUNT",
        help="Requests before the load, unlike it in words, that are not counted.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=options.POSITIVE,
        default=600.0,
        show_default=True,
        metavar="S",
        help="Of each request.",
    ),
    click.option(
        "--max-failures",
        type=click.IntRange(min=1),
        default=None,
        metavar="COUNT",
        help="End the run when so many fail one after another.",
    ),
    click.option(
        "--max-error-rate",
        type=options.NOT_NEGATIVE,
        default=None,
        metavar="FRACTION",
        help="End it when more of the last hundred failed.",
    ),
    click.option(
        "--cold",
        is_flag=True,
        help="Connect when requests are due, not before the clock starts.",
    ),
    click.option("--keep-saturated", is_flag=True, help="Go on though the queue grows."),
    click.option(
        "--processes",
        default="auto",
        show_default=True,
        metavar="N|auto",
        help="That send; auto adds one when those that run are busy.",
    ),
    click.option(
        "--cluster",
        default=None,
        metavar="auto|ADDRESS",
        help="Send from the nodes of a Ray cluster, each with --processes of its own.",
    ),
)

_TELL = _group(
    options.constraints,
    click.option("--slo", metavar="LIMITS", default="", help="Limits on single requests."),
    click.option(
        "--compat",
        type=click.Choice(("vllm", "aiperf", "guidellm")),
        default=None,
        help="Also the figures as that tool defines and names them.",
    ),
    click.option("--strict-length", is_flag=True, help="An answer of another length is a failure."),
    click.option(
        "--scrape-every",
        "scrape_s",
        type=options.NOT_NEGATIVE,
        default=1.0,
        show_default=True,
        metavar="S",
        help="Of the server's metrics and this machine; 0 for never.",
    ),
    click.option(
        "--dcgm", "dcgm_url", default=None, metavar="URL", help="A DCGM exporter's metrics."
    ),
    click.option("--trace-headers", is_flag=True, help="Send a W3C traceparent with each request."),
    click.option("--otel", "otel_endpoint", default=None, metavar="URL", help="Export spans."),
    click.option(
        "--out",
        "out_dir",
        type=click.Path(path_type=Path),
        default=None,
        metavar="DIR",
        help="Journal, summary, dashboard, and every request with its token times.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The record as data, on stdout."),
    click.option("--quiet", is_flag=True, help="No progress."),
    click.option("--dry-run", is_flag=True, help="Prepare, show one request, send nothing."),
)


@click.command()
@_TARGET
@_SAGEMAKER
@_WORDS
@_WHEN
@_AGAINST
@_TELL
def bench(**said: Any) -> int:
    """Send load to servers that run already, timed to the token, and say what they did.

    \b
    servetune bench http://localhost:8000 -c 32 -n 1000 --input-tokens 1024 --output-tokens 256
    servetune bench http://localhost:8000 --rate 4 --duration 300 --workload rag_document_qa
    servetune bench --sagemaker my-endpoint --component my-model --model Qwen/Qwen3-4B -c 64
    servetune bench --against bundle          # what a bundle deployed, against its trial
    servetune bench URL1 URL2 --routing least_outstanding --until "ttft:p99±5%"
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    from servetune.cli.bench_inputs import asked_of, dry_run_text
    from servetune.cli.bench_outputs import export, require_free, write_outputs

    if said["out_dir"] is not None:
        require_free(said["out_dir"])
    said = bench_against.with_bundle(said)
    bench_aws_job.require_alone(said)
    if said["via_aws_job"] or said["recommendations"]:
        return bench_aws_job.run(said)
    trial = bench_against.earlier_trial(said)
    if trial is not None:
        said = bench_against.as_before(said, trial)
    asked = asked_of(said)
    if said["dry_run"]:
        print(dry_run_text(asked))
        return 0
    asked, benched = _run(asked, said)
    from servetune.metrics import unmet
    from servetune.report import bench_table, console
    from servetune.report.baseline import baseline_table

    compared = None
    if trial is not None and benched.record.status == "ok":
        compared, benched = bench_against.compare(said, trial, benched)
    record = benched.record
    if said["as_json"]:
        print_json(record)
    else:
        console().print(bench_table(record, asked.constraints))
        if compared is not None:
            console().print(baseline_table(compared))
    if said["out_dir"] is not None:
        write_outputs(said["out_dir"], asked, benched)
    if said["otel_endpoint"]:
        export(said["otel_endpoint"], asked, benched)
    if benched.result.interrupted:
        return INTERRUPTED
    if record.status != "ok" or benched.result.aborted_reason:
        return 3
    missed = compared is not None and compared.missed
    missed = missed or bool(asked.constraints and unmet(asked.constraints, record.results))
    return TARGET_MISSED if missed else 0


def _run(asked: Bench, said: dict[str, Any]) -> tuple[Bench, Benched]:
    """The run, on the chat route where nobody named one and the server has no other.

    What was asked in the end comes back with what came of it.
    """
    from servetune.cli.bench_inputs import asked_of
    from servetune.cli.bench_outputs import Live
    from servetune.errors import ServerRefused, ServetuneError
    from servetune.trials import bench as run_bench

    shown = not said["quiet"] and not said["as_json"]

    def run(asked: Bench) -> Benched:
        with Live(asked, enabled=shown) as live:
            return run_bench(asked, on_progress=live.show)

    try:
        return asked, run(asked)
    except ServerRefused as refusal:
        if refusal.status not in NO_SUCH_ROUTE:
            raise
        if said["api"] is None and said["trace"] is None and asked.workload.api == "completions":
            try:
                chat = asked_of({**said, "api": "chat"})
                benched = run(chat)
            except ServetuneError:  # it is something else, such as the model's name
                pass
            else:
                echo("note: the server has no /v1/completions, /v1/chat/completions was asked")
                return chat, benched
        raise _with_routes(refusal) from None


def _with_routes(refusal: ServerRefused) -> ServerRefused:
    routes = "--api says which route is asked (chat, completions, ...)"
    refusal.hint = f"{refusal.hint}; {routes}" if refusal.hint else routes
    return refusal
