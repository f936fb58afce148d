"""Schedule of a study: order, servers side by side, retries and budgets; options of `tune`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from servetune.api.notes import note
from servetune.errors import EngineError, InputError
from servetune.hardware import Node
from servetune.option import Count, NonNegativeCount, Positive, option
from servetune.servers.gpus import DeviceMemory, none_can_be, visible_cards
from servetune.servers.launchers import find_strays, visible_devices
from servetune.trials import Budget, ExecutionPolicy, Trial, parse_duration_s, require_idle_gpus
from servetune.trials.order import Order
from servetune.trials.retry import DEFAULT_RETRIES
from servetune.units import format_bytes


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Order, parallelism and limits of a study's trials."""

    group: ClassVar[str] = "Schedule"

    order: Annotated[
        Order,
        option(
            "Order of the trials: as written, random, or interleaved, which goes round the server "
            "configurations so that slow changes of the machine touch all alike."
        ),
    ] = "grid"
    order_seed: Annotated[int, option("Seed of a random order.", metavar="NUMBER")] = 0
    parallel: Annotated[
        str,
        option("Servers under load at once, each on GPUs of its own.", metavar="auto|N"),
    ] = "1"
    retries: Annotated[
        NonNegativeCount,
        option(
            "Number of times that a failed start or trial is repeated; the same cause twice ends "
            "it.",
            metavar="COUNT",
        ),
    ] = DEFAULT_RETRIES
    early_stop: Annotated[
        bool, option("Early end of a trial that plainly misses the constraints.")
    ] = True
    max_time_per_trial: Annotated[
        str | None,
        option("Time after which a trial's load ends with what it has: 90s, 5m.", metavar="TIME"),
    ] = None
    budget: Annotated[
        str | None,
        option("Time for this call: 45m, 2h. Trials left over stay for --resume.", metavar="TIME"),
    ] = None
    max_cost_usd: Annotated[
        Positive | None,
        option(
            "Cost of this call in dollars: the machine's price times the time.",
            "--max-cost",
            metavar="USD",
        ),
    ] = None
    server_cpus: Annotated[
        str | None,
        option("CPU cores that servers run on, such as 4-15 (taskset).", metavar="LIST"),
    ] = None
    server_numa_node: Annotated[
        NonNegativeCount | None,
        option("NUMA node whose cores and memory servers use (numactl).", metavar="NUMBER"),
    ] = None
    measure: Annotated[
        Count | None,
        option(
            "Number of trials to run instead of all: each the one with most throughput expected "
            "within the constraints, given those before it. All are predicted first.",
            metavar="COUNT",
        ),
    ] = None

    @property
    def budget_s(self) -> float | None:
        """Seconds that the call may take."""
        return None if self.budget is None else parse_duration_s(self.budget)

    @property
    def max_trial_s(self) -> float | None:
        """Seconds that the load of a trial may take."""
        if self.max_time_per_trial is None:
            return None
        return parse_duration_s(self.max_time_per_trial)

    def require_own_servers(self) -> None:
        """Refuse, for a server that runs already, options about placing servers.

        Raises:
            InputError: Such an option is given.
        """
        for name in self._about_placing():
            raise InputError(
                f"{name} is for servers that servetune starts, and --engine external starts none",
                hint="leave it out",
            )

    def require_this_machine(self, *, job: bool) -> None:
        """Refuse, for trials on a cluster, options about one machine.

        Raises:
            InputError: Such an option is given.
        """
        for name in self._about_placing():
            raise InputError(
                f"{name} is for this machine, and --cluster runs servers on others",
                hint="leave it out: as many run at once as the cluster has room for",
            )
        if self.max_cost_usd is not None:
            raise InputError(
                "--max-cost counts one machine, and --cluster uses as many as have room",
                hint="limit the time, with --budget",
            )
        if self.measure is not None:
            raise InputError(
                "--measure chooses one trial after the other, and --cluster runs many at once",
                hint="leave one of them out",
            )
        if job:
            raise InputError(
                "--job uses one machine, and --cluster joins others",
                hint="leave one of them out",
            )

    def policy(
        self,
        groups: Sequence[list[Trial]],
        node: Node,
        *,
        real: bool,
        own_program: bool = False,
        on_this_machine: bool = True,
    ) -> ExecutionPolicy:
        """Execution policy of the trials on a machine.

        Args:
            groups: Trials by server configuration.
            node: Machine.
            real: Whether an engine is started on this machine; a user's own command may use
                devices that are elsewhere.
            own_program: Whether the user names the engine's program, which may be a stand-in.
            on_this_machine: Whether servers run here, not on a cluster's nodes.

        Raises:
            InputError: An option cannot be read.
            EngineError: A device that is needed is busy or missing.
        """
        parallel = _server_count(self.parallel)
        if self.measure is not None and parallel != 1:
            raise InputError(
                "--measure chooses one trial after the other, and --parallel runs several at once",
                hint="leave one of them out",
            )
        on_gpus = node.device.architecture != "cpu"
        visible = visible_cards() if on_gpus else []
        if real and on_gpus and node.device.vendor == "NVIDIA":
            if not visible and not own_program and none_can_be():
                raise EngineError(
                    f"the engine would run on {node.device.name}, and no GPU is visible here",
                    hint="leave --gpu and --instance out to run on the processor; servetune doctor "
                    "says what is here",
                )
            require_idle_gpus(visible, node, groups)
        return ExecutionPolicy(
            order=self.order,
            order_seed=self.order_seed,
            parallel=parallel,
            budget=Budget(
                limit_s=self.budget_s,
                max_cost_usd=self.max_cost_usd,
                price_per_hour_usd=node.price.usd_per_hour if node.price else None,
            ),
            cpus=_cores(self.server_cpus),
            numa_node=self.server_numa_node,
            memory=DeviceMemory(visible_cards) if visible else None,
            most_devices=_usable_devices(node, len(visible)) if on_this_machine else None,
        )

    def _about_placing(self) -> tuple[str, ...]:
        """Options given that place servers on a machine's devices and cores."""
        given = {
            f"--parallel {self.parallel}": self.parallel.strip() != "1",
            "--server-cpus": self.server_cpus is not None,
            "--server-numa-node": self.server_numa_node is not None,
        }
        return tuple(name for name, is_given in given.items() if is_given)


def note_leftovers() -> None:
    """Note servers that an earlier servetune has left."""
    containers, processes = find_strays()
    for each in containers:
        note(
            f"note: {each.label} was left by an earlier servetune (process {each.owner_pid}, which "
            f"has ended); end it with docker rm --force {each.name}"
        )
    for one in processes:
        note(
            f"note: {one.label} was left by an earlier servetune (process {one.owner_pid}, which "
            f"has ended) and holds {format_bytes(one.resident_bytes)}; end it with "
            f"kill -9 {one.pid}"
        )


def _usable_devices(node: Node, visible_count: int) -> int | None:
    """Number of the machine's devices that servers may use; `None` where it is not known."""
    named = visible_devices(node.device.vendor)
    count = len(named) if named else visible_count
    if count and count < node.device_count:
        note(f"note: servers use the {count} of {node.device_count} GPUs that can be seen here")
    return count or None


def _server_count(text: str) -> int | None:
    """Number of servers at once; `None` for as many as there is room for."""
    if text.strip().lower() == "auto":
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise InputError(f"--parallel {text} is neither auto nor a number of servers")
    return int(text)


def _cores(text: str | None) -> tuple[int, ...]:
    """Core numbers of a list such as `0-3,8`."""
    if text is None:
        return ()
    cores: set[int] = set()
    try:
        for part in text.split(","):
            low, _, high = part.partition("-")
            cores |= set(range(int(low), int(high or low) + 1))
    except ValueError:
        raise InputError(
            f"--server-cpus {text} is no list of cores", hint="write it like 0-3,8"
        ) from None
    usable = os.sched_getaffinity(0)
    missing = cores - usable
    if missing or not cores:
        raise InputError(
            f"--server-cpus {text}: this process may not use "
            f"{', '.join(map(str, sorted(missing))) or 'any of these'}",
            hint=f"choose of {', '.join(map(str, sorted(usable)))}",
        )
    return tuple(sorted(cores))
