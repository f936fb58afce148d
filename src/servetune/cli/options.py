"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["constraints", "machine"]

Command = Callable[..., Any]


def machine(command: Command) -> Command:
    """The machine that plans run on."""
    for option in reversed(
        (
            click.option(
                "--gpu", default=None, help="GPU type, such as L4. [default: what is here]"
            ),
            click.option(
                "--num-gpus",
                "--gpus",
                "num_gpus",
                type=click.IntRange(min=1),
                default=None,
                help="How many of them.",
            ),
            click.option(
                "--instance",
                "instance_name",
                default=None,
                help="SageMaker instance type instead of --gpu, such as ml.g6.12xlarge.",
            ),
            click.option(
                "--price-per-hour",
                "price_per_hour_usd",
                type=click.FloatRange(min=0),
                default=None,
                metavar="USD",
                help="What the whole machine costs. [default: known]",
            ),
        )
    ):
        command = option(command)
    return command


def constraints(command: Command) -> Command:
    """What a configuration must hold."""
    return click.option(
        "--constraints",
        default=None,
        metavar="LIMITS",
        help='What a configuration must hold: "e2e_latency:p99<=60s;request_throughput>=5".',
    )(command)
