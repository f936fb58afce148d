"""`servetune simulate --serve`: a simulated engine that answers HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from typing import Any

import click
import msgspec

from servetune.api.inputs import chosen_node
from servetune.cli import options
from servetune.cli.derive import DerivedCommand, Finite
from servetune.cli.output import echo
from servetune.engines import DEFAULT_ENGINE, engine, simulated_engines
from servetune.errors import InputError, NotSimulated, PlanError
from servetune.hardware import Node
from servetune.models import load_shape
from servetune.perf.sim import describe_scheduler
from servetune.plan import Plan

DEFAULT_PORT = 8000

FRACTION = Finite(min=0, max=1)


@click.command(
    "simulate --serve",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[serve] MODEL [ENGINE_ARGS]...")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(simulated_engines()),
    default=DEFAULT_ENGINE,
    show_default=True,
    help="Whose scheduler is played, whose arguments these are, whose defaults fill the rest.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Copies behind this one address, which take turns.",
)
@options.prefill_pool
@options.devices
@options.calibration
@click.option(
    "--speed",
    type=options.POSITIVE,
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="How many of the engine's seconds pass in one.",
)
@click.option(
    "--answer-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Length of a chat answer that nothing limits.",
)
@click.option(
    "--slow-start",
    "slow_start_s",
    type=options.NOT_NEGATIVE,
    default=0.0,
    metavar="S",
    help="Fault: keep the port closed for so long.",
)
@click.option(
    "--die-after",
    "die_after_s",
    type=options.NOT_NEGATIVE,
    default=None,
    metavar="S",
    help="Fault: end the process so long after it began to listen.",
)
@click.option("--oom-at-start", is_flag=True, help="Fault: run out of memory while starting.")
@click.option(
    "--oom-at-concurrency",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Fault: run out of memory when N sequences run at once.",
)
@click.option(
    "--error-rate",
    "error_fraction",
    type=FRACTION,
    default=0.0,
    metavar="FRACTION",
    help="Fault: answer this share of requests with status 500.",
)
@click.option(
    "--stall-rate",
    "stall_fraction",
    type=FRACTION,
    default=0.0,
    metavar="FRACTION",
    help="Fault: let this share of streams fall silent.",
)
@click.option(
    "--truncate-rate",
    "truncate_fraction",
    type=FRACTION,
    default=0.0,
    metavar="FRACTION",
    help="Fault: end this share of streams early, as if all were well.",
)
@click.option(
    "--disconnect-rate",
    "disconnect_fraction",
    type=FRACTION,
    default=0.0,
    metavar="FRACTION",
    help="Fault: lose this share of connections on the way.",
)
@click.option(
    "--stall-after",
    "after_tokens",
    type=click.IntRange(0),
    default=None,
    metavar="TOKENS",
    help="When streams with a fault break. [default: half-way]",
)
def serve_command(*, words: tuple[str, ...], **chosen: Any) -> int:
    """Serve MODEL as a real engine would, with simulated timing and filler for text.

    ENGINE_ARGS are the engine's own, such as --max-num-seqs 64 --tensor-parallel-size 2
    --host 127.0.0.1 --port 8000 --served-model-name NAME; --seed seeds the faults. No
    accelerator is needed: the machine named with --gpu or --instance is simulated.

    \b
    servetune simulate --serve Qwen/Qwen3-4B --gpu L4 --port 8000 --max-num-seqs 64
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    return serve(words, **chosen)


class Servable(DerivedCommand):
    """A command that `--serve` turns into `serve_command`, whatever else its own words are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--serve"],
                is_flag=True,
                expose_value=False,
                help="HTTP server that answers as the engine would; see simulate --serve --help.",
            )
        )

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of this command, or of the server's where `--serve` is among the words."""
        if "--serve" not in args:
            return super().make_context(info_name, args, parent, **extra)
        left = [word for word in args if word != "--serve"]
        return serve_command.make_context(f"{info_name} --serve", left, parent, **extra)


def serve(
    words: tuple[str, ...],
    *,
    engine_name: str = DEFAULT_ENGINE,
    gpu: str | None = None,
    num_gpus: int | None = None,
    instance_name: str | None = None,
    replicas: int = 1,
    prefill_replicas: int | None = None,
    kv_link: str | None = None,
    calibration_name: str | None = None,
    speed: float = 1.0,
    answer_tokens: int = 256,
    **faults: Any,
) -> int:
    """Serve until the process is told to stop.

    Args:
        words: The engine's own, as behind its command.
        engine_name: Engine whose arguments they are.
        gpu: Device type; the machine's own, or its processor, without any name.
        num_gpus: Number of GPUs; as many as the plan needs where a type alone is given.
        instance_name: Instead of `gpu`.
        replicas: Copies behind one address.
        prefill_replicas: Further ones that compute prompts for them.
        kv_link: Link over which KV caches are transferred.
        calibration_name: Name of a kept calibration.
        speed: Seconds of the engine per second of real time.
        answer_tokens: Length of a chat answer that nothing limits.
        faults: Fields of `simserver.Faults`.

    Returns:
        The exit code: 1 where the engine itself would refuse the plan, as a real one ends then.
    """
    from servetune.simserver import Faults, service_of
    from servetune.simserver.server_arguments import parse_server_arguments

    arguments = parse_server_arguments(words, engine_name=engine_name)
    if arguments.model is None:
        raise InputError("no model is named", hint="write it first, as for the engine itself")
    shape = load_shape(arguments.model)
    try:
        plan = _with_copies(arguments.plan(arguments.model), replicas, prefill_replicas, kv_link)
    except PlanError as error:
        return _refuse_to_start(error)
    if gpu and num_gpus is None:
        num_gpus = plan.device_count
    node = chosen_node(
        gpu=gpu,
        num_gpus=num_gpus,
        instance_name=instance_name,
        price_per_hour_usd=None,
        or_cpu=True,
    )
    calibration = None
    if calibration_name is not None:
        from servetune.prediction.calibrations import calibration_named

        calibration = calibration_named(calibration_name).require_for(shape=shape, node=node)
    try:
        service = service_of(
            plan,
            shape,
            node,
            calibration=calibration,
            names=arguments.names,
            tokenizer=arguments.tokenizer,
            answer_tokens=answer_tokens,
            capacity_blocks=arguments.capacity_blocks,
        )
    except NotSimulated:  # a real one would start: no word of its log is right
        raise
    except PlanError as error:
        return _refuse_to_start(error)
    chosen = msgspec.convert({**faults, "seed": arguments.seed or 0}, Faults)
    echo(_settings_line(engine_name, arguments.model, dict(arguments.settings)))
    _print_summary(plan, node, speed, chosen.text)
    if arguments.without_effect:
        echo(f"without effect on the simulation: {', '.join(arguments.without_effect)}")
    if not service.serving.vocabulary.exact:
        echo("text prompts are counted as 1.3 tokens a word: no tokenizer is at hand")
    from servetune.simserver import SimulatedServer

    server = SimulatedServer(
        service, speed=speed, faults=chosen, api_key=arguments.api_key, say=echo, die=_die
    )
    # A real server listens everywhere unless told otherwise; a simulation has no reason to.
    host, port = (
        arguments.host or "127.0.0.1",
        DEFAULT_PORT if arguments.port is None else arguments.port,
    )
    asyncio.run(_serve(server, host, port))
    return 0


def _settings_line(engine_name: str, model: str, settings: dict[str, Any]) -> str:
    """What was set, as the engine's own start-up log has it, so that it can be read back."""
    report = engine(engine_name).settings_report
    text = json.dumps if report.json_values else repr
    members = ", ".join(
        report.member.format(name=name, value=text(value))
        for name, value in ({report.model_name: model} | settings).items()
    )
    return report.line.format(settings=members)


def _with_copies(
    plan: Plan, replicas: int, prefill_replicas: int | None, kv_link: str | None
) -> Plan:
    options.require_handover(prefill_replicas, kv_link)
    link = (("kv_link", kv_link),) if kv_link is not None else ()
    return msgspec.structs.replace(
        plan, replicas=replicas, prefill_replicas=prefill_replicas, extra=(*plan.extra, *link)
    )


def _refuse_to_start(error: PlanError) -> int:
    """End as the real server does: its error in the log, and status 1."""
    echo(f"ValueError: {error.message}")
    if error.hint:
        echo(f"hint: {error.hint}")
    return 1


async def _serve(server: Any, host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(server.start(host, port))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    await starting
    echo(f"listening on http://{host}:{server.port}")
    gc.collect()
    gc.freeze()  # what stays for good need not be looked through while tokens are due
    await stopping
    await server.close()


def _print_summary(plan: Plan, node: Node, speed: float, faults: str) -> None:
    echo(
        f"SIMULATED engine: {plan.model} as {plan.label} on {node.label}, {speed:g}x real time; "
        "no model runs here, words are filler"
    )
    echo(f"as {describe_scheduler(plan)}")
    if faults:
        echo(f"with faults on demand: {faults}")


def _die(status: int) -> None:
    """End as a crashed process does: at once, whatever is in flight."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    from servetune.cli.main import main

    main(serve_command)
