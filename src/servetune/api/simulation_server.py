"""HTTP server with the timing of a simulated engine."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec

from servetune.api.inputs import chosen_node
from servetune.api.notes import progress
from servetune.api.request import Request, request_of
from servetune.api.shared_options import Calibrated, Copies, Devices, SimulatedEngine
from servetune.engines import DEFAULT_ENGINE, check_weights, engine
from servetune.errors import InputError
from servetune.hardware import Node
from servetune.models import load_shape
from servetune.option import Count, Positive, argument, option
from servetune.perf.sim import describe_scheduler
from servetune.plan import Plan
from servetune.simserver import Faults, SimulatedServer, service_of
from servetune.simserver.server_arguments import ServerArguments, parse_server_arguments

DEFAULT_PORT = 8000


class SimulationServer(Request, frozen=True, kw_only=True):
    """A server that answers as an engine would, with simulated timing and filler for text."""

    verb: ClassVar[str] = "simulate --serve"
    first: ClassVar[str] = "words"
    group: ClassVar[str] = "Server"
    defaults: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"num_gpus": "with --gpu as many as the plan needs, else all"}
    )

    words: Annotated[
        tuple[str, ...],
        argument(
            "Model and arguments of the engine's own server.",
            metavar="[serve] MODEL [ENGINE_ARGS]...",
        ),
    ] = ()
    engine: SimulatedEngine = DEFAULT_ENGINE
    copies: Copies = Copies()
    machine: Devices = Devices()
    correction: Calibrated = Calibrated()
    speed: Annotated[
        Positive, option("Seconds of the engine that pass in a real one.", metavar="FACTOR")
    ] = 1.0
    answer_tokens: Annotated[
        Count,
        option("Tokens of a chat answer that nothing limits.", metavar="TOKENS"),
    ] = 256
    faults: Faults = Faults()


def serve_simulation(request: SimulationServer | str | None = None, /, **options: object) -> None:
    """Serve until the process is told to stop (SIGINT, SIGTERM); for the main thread.

    What it serves, its address and its log are progress (`logging`, level INFO).

    Args:
        request: The request, or the model; arguments of its server are further `words`.
        options: Fields of `SimulationServer`.

    Raises:
        PlanError: The engine itself would not start with this plan, or it cannot be simulated.
        InputError: Options contradict or cannot be read.
        PortBusy: Another server listens there.
    """
    request = request_of(SimulationServer, request, options)
    _require_process_of_its_own()
    arguments = parse_server_arguments(request.words, engine_name=request.engine)
    if arguments.model is None:
        raise InputError("no model is named", hint="write it first, as for the engine itself")
    shape = load_shape(arguments.model)
    plan = _with_copies(arguments.plan(arguments.model), request.copies)
    check_weights(plan, shape)
    node = _node(request.machine, plan)
    kept = request.correction.kept()
    service = service_of(
        plan,
        shape,
        node,
        calibration=kept.require_for(shape=shape, node=node) if kept else None,
        names=arguments.names,
        tokenizer=arguments.tokenizer,
        answer_tokens=request.answer_tokens,
        capacity_blocks=arguments.capacity_blocks,
    )
    for line in _first_lines(request, arguments, plan, node):
        progress(line)
    if not service.serving.vocabulary.exact:
        progress("text prompts are counted as 1.3 tokens a word: there is no tokenizer")
    server = SimulatedServer(
        service,
        speed=request.speed,
        faults=request.faults,
        fault_seed=arguments.seed or 0,
        api_key=arguments.api_key,
        say=progress,
        die=_die,
    )
    # A real server listens everywhere unless told otherwise; a simulation has no reason to.
    host = arguments.host or "127.0.0.1"
    asyncio.run(_serve(server, host, DEFAULT_PORT if arguments.port is None else arguments.port))


def _require_process_of_its_own() -> None:
    """Refuse to serve inside a program that does something else.

    Raises:
        InputError: It is called from a thread, or while an event loop runs, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # none runs
        if threading.current_thread() is threading.main_thread():
            return
    raise InputError(
        "a simulated server ends by a signal, so it needs a process of its own",
        hint='start it with subprocess.Popen(["servetune", "simulate", "--serve", MODEL, ..])',
    )


def _with_copies(plan: Plan, copies: Copies) -> Plan:
    copies.require_agreement()
    return msgspec.structs.replace(
        plan,
        replicas=copies.replicas,
        prefill_replicas=copies.prefill_replicas,
        routing=copies.routing,
        kv_link=copies.kv_link,
    )


def _node(machine: Devices, plan: Plan) -> Node:
    """The machine of the options; with a type of GPU alone, as many as the plan needs."""
    counted = machine.num_gpus is not None or not machine.gpu
    return chosen_node(
        gpu=machine.gpu,
        num_gpus=machine.num_gpus if counted else plan.device_count,
        instance_name=machine.instance,
        price_per_hour_usd=None,
        or_cpu=True,
    )


def _first_lines(
    request: SimulationServer, arguments: ServerArguments, plan: Plan, node: Node
) -> Iterator[str]:
    """Lines of the log before the server listens."""
    yield _settings_line(request.engine, plan.model, dict(arguments.settings))
    yield (
        f"SIMULATED engine: {plan.model} as {plan.label} on {node.label}, {request.speed:g}x real "
        "time; no model runs here, words are filler"
    )
    yield f"as {describe_scheduler(plan)}"
    if request.faults.text:
        yield f"with faults on demand: {request.faults.text}"
    if arguments.without_effect:
        yield f"without effect on the simulation: {', '.join(arguments.without_effect)}"


def _settings_line(engine_name: str, model: str, settings: dict[str, object]) -> str:
    """Settings as the engine's own start-up log has them, so that they can be read back."""
    report = engine(engine_name).settings_report
    text = json.dumps if report.json_values else repr
    members = ", ".join(
        report.member.format(name=name, value=text(value))
        for name, value in ({report.model_name: model} | settings).items()
    )
    return report.line.format(settings=members)


async def _serve(server: SimulatedServer, host: str, port: int) -> None:
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
    progress(f"listening on http://{host}:{server.port}")
    gc.collect()
    gc.freeze()  # what stays for good need not be looked through while tokens are due
    await stopping
    await server.close()


def _die(status: int) -> None:
    """End as a crashed process does: at once, whatever is in flight."""
    sys.stderr.flush()
    os._exit(status)
