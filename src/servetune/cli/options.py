"""Options of `servetune simulate --serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from servetune.cli.derive import Finite
from servetune.errors import InputError

Command = Callable[..., Any]


POSITIVE = Finite(min=0, min_open=True)
NOT_NEGATIVE = Finite(min=0)

#: More devices than any node has.
MOST_DEVICES = 1024


def devices(command: Command) -> Command:
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
                type=click.IntRange(1, MOST_DEVICES),
                default=None,
                help="How many of them.",
            ),
            click.option(
                "--instance",
                "instance_name",
                default=None,
                help="Instance instead of --gpu: ml.g6.12xlarge (SageMaker), g6.12xlarge (EC2).",
            ),
        )
    ):
        command = option(command)
    return command


def prefill_pool(command: Command) -> Command:
    """Copies that compute prompts for those that decode."""
    for option in reversed(
        (
            click.option(
                "--prefill-replicas",
                type=click.IntRange(1, 1024),
                default=None,
                metavar="COUNT",
                help="Further copies that compute prompts; the replicas then only decode.",
            ),
            click.option(
                "--kv-link",
                type=click.Choice(("node", "network")),
                default=None,
                help="With --prefill-replicas: what carries the caches. [default: node]",
            ),
        )
    ):
        command = option(command)
    return command


def require_handover(prefill_replicas: int | None, kv_link: str | None) -> None:
    """Refuse a link for caches that do not travel.

    Raises:
        InputError: There is one, and no copy computes prompts for others.
    """
    if kv_link is not None and prefill_replicas is None:
        raise InputError(
            "--kv-link needs separate copies for prompts",
            hint="give their number with --prefill-replicas, or leave --kv-link out",
        )


def calibration(command: Command) -> Command:
    """A correction that `servetune calibrate` kept."""
    return click.option(
        "--calibration",
        "calibration_name",
        default=None,
        metavar="NAME",
        help="Correct predictions by what was measured; see servetune calibrate.",
    )(command)
