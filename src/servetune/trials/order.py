"""Order of trials: as written, at random, or so that no drift favours one configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

Order = Literal["grid", "random", "interleaved"]
ORDERS: tuple[Order, ...] = ("grid", "random", "interleaved")

T = TypeVar("T")


def ordered(
    groups: Sequence[Sequence[T]], order: Order = "grid", seed: int = 0
) -> list[tuple[int, list[T]]]:
    """Batches of trials, each with the number of its server configuration.

    - `grid` keeps the order as written.
    - `random` shuffles the configurations and the trials of each; a server still starts once.
    - `interleaved` takes one trial of each configuration, in an order drawn anew each time, then
      the next of each. A machine that grows warm or busy over the night then affects all alike. It
      costs a server start for nearly each trial.

    Args:
        groups: Trials by server configuration; empty ones are left out.
        order: Name of the order.
        seed: Seed of the random orders.
    """
    if order == "grid":
        return [(number, list(group)) for number, group in enumerate(groups) if group]
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    mixed = {number: list(group) for number, group in enumerate(groups) if group}
    for group in mixed.values():
        rng.shuffle(group)
    if order == "random":
        numbers = list(mixed)
        rng.shuffle(numbers)
        return [(number, mixed[number]) for number in numbers]
    batches: list[tuple[int, list[T]]] = []
    while mixed:
        numbers = list(mixed)
        rng.shuffle(numbers)
        for number in numbers:
            trial = mixed[number].pop(0)
            if batches and batches[-1][0] == number:  # the server is still there
                batches[-1][1].append(trial)
            else:
                batches.append((number, [trial]))
            if not mixed[number]:
                del mixed[number]
    return batches
