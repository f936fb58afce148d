"""How `tune` goes through its trials: order, side by side, retries, budgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from servetune.cli import options
from servetune.cli.output import echo
from servetune.errors import EngineError, InputError
from servetune.hardware import Node
from servetune.models import NetworkShape
from servetune.models.counting import weight_bytes
from servetune.servers.gpus import Card, DeviceMemory, none_can_be, visible_cards
from servetune.servers.launchers import find_strays, visible_devices
from servetune.trials import Budget, ExecutionPolicy, Trial, parse_duration_s
from servetune.trials.order import ORDERS, Order
from servetune.trials.retry import DEFAULT_RETRIES
from servetune.units import GB, format_bytes

__all__ = [
    "Asked",
    "course_of",
    "course_options",
    "note_leftovers",
    "ready_timeout_s",
    "require_own_servers",
    "require_this_machine",
]

#: A server that loads nothing may still import and compile for minutes.
LEAST_READY_S = 600.0
#: What a disk gives that is read for the first time; network storage is often no faster.
COLD_BYTES_PER_S = 0.2 * GB

Command = Callable[..., Any]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were written."""

    order: Order
    order_seed: int
    parallel: str
    budget: str | None
    max_cost_usd: float | None
    max_trial: str | None
    retries: int
    early_stop: bool
    cpus: str | None
    numa_node: int | None
    measure: int | None

    @property
    def budget_s(self) -> float | None:
        return None if self.budget is None else parse_duration_s(self.budget)

    @property
    def max_trial_s(self) -> float | None:
        return None if self.max_trial is None else parse_duration_s(self.max_trial)


def course_options(command: Command) -> Command:
    """The options; they reach the command together, as `asked`."""

    def gathered(**values: Any) -> Any:
        said = {name: values.pop(name) for name in Asked.__struct_fields__}
        return command(asked=Asked(**said), **values)

    gathered.__doc__ = command.__doc__
    gathered.__name__ = command.__name__
    gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


_OPTIONS = (
    click.option(
        "--order",
        type=click.Choice(ORDERS),
        default="grid",
        show_default=True,
        help="Of the trials: as written, by chance, or going round the server configurations "
        "so that a machine that changes over the night touches all alike.",
    ),
    click.option("--order-seed", type=int, default=0, show_default=True, help="Of --order."),
    click.option(
        "--parallel",
        metavar="auto|N",
        default="1",
        show_default=True,
        help="Servers under load at once, each on GPUs of its own.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0),
        default=DEFAULT_RETRIES,
        show_default=True,
        help="How often a start or trial that failed is tried again; the same cause twice is "
        "called broken.",
    ),
    click.option(
        "--early-stop/--no-early-stop",
        default=True,
        show_default=True,
        help="End a trial that plainly misses --constraints.",
    ),
    click.option(
        "--max-time-per-trial",
        "max_trial",
        metavar="TIME",
        default=None,
        help="End a trial's load after so long, with what it has: 90s, 5m.",
    ),
    click.option(
        "--budget", metavar="TIME", default=None, help="Of this call: 45m, 2h. The rest is kept."
    ),
    click.option(
        "--max-cost",
        "max_cost_usd",
        type=options.POSITIVE,
        metavar="USD",
        default=None,
        help="Of this call: the machine's price times the time.",
    ),
    click.option(
        "--server-cpus",
        "cpus",
        metavar="LIST",
        default=None,
        help="Cores that servers run on, such as 4-15 (taskset).",
    ),
    click.option(
        "--server-numa-node",
        "numa_node",
        type=click.IntRange(0),
        default=None,
        help="Whose cores and memory servers use (numactl).",
    ),
    click.option(
        "--measure",
        type=click.IntRange(1),
        metavar="N",
        default=None,
        help="Run N trials only: each the one that promises most throughput within --constraints "
        "after what those before it gave. All are predicted first.",
    ),
)


def course_of(
    asked: Asked,
    groups: Sequence[list[Trial]],
    node: Node,
    *,
    real: bool,
    own_program: bool = False,
    on_this_machine: bool = True,
) -> ExecutionPolicy:
    """The course that the options ask for.

    Args:
        asked: The options.
        groups: Trials that it goes through.
        node: Where.
        real: Whether an engine of this machine is started; a user's own command may reach
            devices that are elsewhere.
        own_program: Whether the user names the engine's program, which may be a stand-in.
        on_this_machine: Whether servers run here, not on a cluster's nodes.

    Raises:
        InputError: An option cannot be read.
        EngineError: A device that is needed is busy or not there.
    """
    parallel = _parallel(asked.parallel)
    if asked.measure is not None and parallel != 1:
        raise InputError(
            "--measure chooses one trial after the other, and --parallel runs several at once",
            hint="leave one of them out",
        )
    price = node.price.usd_per_hour if node.price else None
    on_gpus = node.device.architecture != "cpu"
    here = visible_cards() if on_gpus else []
    if real and on_gpus and node.device.vendor == "NVIDIA":
        if not here and not own_program and none_can_be():
            raise EngineError(
                f"the engine would run on {node.device.name}, and no GPU can be seen here",
                hint="leave --gpu and --instance out to run on the processor; servetune doctor "
                "says what is here",
            )
        _require_idle(here, node, groups)
    return ExecutionPolicy(
        order=asked.order,
        order_seed=asked.order_seed,
        parallel=parallel,
        budget=Budget(
            limit_s=asked.budget_s,
            max_cost_usd=asked.max_cost_usd,
            price_per_hour_usd=price,
        ),
        cpus=_cpus(asked.cpus),
        numa_node=asked.numa_node,
        memory=DeviceMemory(visible_cards) if here else None,
        most_devices=_seen(node, len(here)) if on_this_machine else None,
    )


def require_own_servers(asked: Asked) -> None:
    """Refuse, for a server that is there already, what only those of ours can have.

    Raises:
        InputError: Such an option is given.
    """
    for option, given in _about_placing(asked).items():
        if given:
            raise InputError(
                f"{option} is about servers that servetune starts, and --engine external starts "
                "none",
                hint="leave it out",
            )


def require_this_machine(asked: Asked, *, job: bool) -> None:
    """Refuse, for trials on a cluster, what is about one machine.

    Raises:
        InputError: Such an option is given.
    """
    for option, given in _about_placing(asked).items():
        if given:
            raise InputError(
                f"{option} is about this machine, and --cluster runs servers on others",
                hint="leave it out: as many run at once as the cluster has room for",
            )
    if asked.max_cost_usd is not None:
        raise InputError(
            "--max-cost counts one machine, and --cluster uses as many as have room",
            hint="limit the time, with --budget",
        )
    if asked.measure is not None:
        raise InputError(
            "--measure chooses one trial after the other, and --cluster runs many at once",
            hint="leave one of them out",
        )
    if job:
        raise InputError(
            "--job is a machine to itself, and --cluster joins others",
            hint="leave one of them out",
        )


def _about_placing(asked: Asked) -> dict[str, bool]:
    return {
        f"--parallel {asked.parallel}": asked.parallel.strip() != "1",
        "--server-cpus": asked.cpus is not None,
        "--server-numa-node": asked.numa_node is not None,
    }


def note_leftovers() -> None:
    """Name servers that an earlier servetune has left."""
    boxes, processes = find_strays()
    for box in boxes:
        echo(
            f"note: {box.label} was left by an earlier servetune (process {box.owner_pid}, which "
            f"has ended); end it with docker rm --force {box.name}"
        )
    for one in processes:
        echo(
            f"note: {one.label} was left by an earlier servetune (process {one.owner_pid}, which "
            f"has ended) and holds {format_bytes(one.resident_bytes)}; end it with "
            f"kill -9 {one.pid}"
        )


def ready_timeout_s(given_s: float | None, shape: NetworkShape | None) -> float:
    """How long a server may take: what the user says, else by the weights it has to read.

    Ten minutes for everything else, and the weights from a cold disk at 0.2 GB/s.
    """
    if given_s is not None:
        return given_s
    bytes_to_read = weight_bytes(shape) if shape is not None else 0.0
    return LEAST_READY_S + bytes_to_read / COLD_BYTES_PER_S


def _seen(node: Node, cards: int) -> int | None:
    """How many of the machine's devices servers may use; `None` where nobody can tell."""
    named = visible_devices(node.device.vendor)
    count = len(named) if named else cards
    if count and count < node.device_count:
        echo(f"note: servers use the {count} of {node.device_count} GPUs that can be seen here")
    return count or None


def _require_idle(here: Sequence[Card], node: Node, groups: Sequence[list[Trial]]) -> None:
    if not here:  # nobody tells
        return
    most = max((trial.plan.device_count for group in groups for trial in group), default=0)
    if most > len(here):
        raise EngineError(
            f"a plan needs {most} GPUs and {len(here)} can be seen here",
            hint="use a smaller tensor_parallel_size, or widen CUDA_VISIBLE_DEVICES",
        )
    busy = [card for card in here[: node.device_count] if not card.idle]
    if busy:
        raise EngineError(
            busy[0].label + (f", and {len(busy) - 1} more GPUs are busy" if busy[1:] else ""),
            hint="end what uses it, or choose others with CUDA_VISIBLE_DEVICES and --num-gpus",
        )


def _parallel(text: str) -> int | None:
    if text.strip().lower() == "auto":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise InputError(f"--parallel {text} is neither auto nor a number of servers")
    return int(text)


def _cpus(text: str | None) -> tuple[int, ...]:
    """`0-3,8` as numbers."""
    if text is None:
        return ()
    cpus: set[int] = set()
    try:
        for part in text.split(","):
            low, _, high = part.partition("-")
            cpus |= set(range(int(low), int(high or low) + 1))
    except ValueError:
        raise InputError(
            f"--server-cpus {text} is no list of cores", hint="write it like 0-3,8"
        ) from None
    missing = cpus - os.sched_getaffinity(0)
    if missing or not cpus:
        raise InputError(
            f"--server-cpus {text}: this process may not use "
            f"{', '.join(map(str, sorted(missing))) or 'any of these'}",
            hint=f"choose of {', '.join(map(str, sorted(os.sched_getaffinity(0))))}",
        )
    return tuple(sorted(cpus))
