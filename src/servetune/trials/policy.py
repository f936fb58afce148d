"""Execution policy of a study: which trials run, in which order and place, and when they end."""

from __future__ import annotations

import msgspec

from servetune.search.strategies import StrategyName
from servetune.servers.gpus import DeviceMemory
from servetune.trials.budget import Budget
from servetune.trials.order import Order


class ExecutionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Search strategy, order, parallelism and limits of a study's trials.

    Attributes:
        strategy: Name of the search strategy.
        margin: Share of its worth by which a trial is better than another, for a guided search.
        confidence: Probability that the pick is within the margin at which such a search ends, or
            that a largest load is right.
        drift_check: Whether a reference trial is measured again now and then (`drift`).
        max_trials: Trials to run, those of earlier calls among them; `None` for no limit.
        order: Order of a grid's trials; see `order.ordered`.
        seed: Seed of a random order, or of the strategy.
        parallel: Servers under load at once; `None` for as many as there is room for.
        budget: Time and money; `None` for no limit.
        cpus: Cores that servers are pinned to.
        numa_node: NUMA node whose cores and memory servers use.
        memory: Memory of the devices that are really here; `None` where nothing reports it.
        most_devices: Devices of the machine that this process may use; `None` for all.
    """

    strategy: StrategyName = "grid"
    margin: float = 0.02
    confidence: float = 0.95
    drift_check: bool = True
    max_trials: int | None = None
    order: Order = "grid"
    seed: int = 0
    parallel: int | None = 1
    budget: Budget | None = None
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None
    memory: DeviceMemory | None = None
    most_devices: int | None = None
