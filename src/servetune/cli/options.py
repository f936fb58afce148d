"""Options that several verbs share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from servetune.errors import InputError, UnknownName

__all__ = [
    "NOT_NEGATIVE",
    "POSITIVE",
    "calibration",
    "constraints",
    "devices",
    "drafts",
    "machine",
    "prefill_pool",
    "require_handover",
]

Command = Callable[..., Any]


class Finite(click.FloatRange):
    """A range of numbers that `nan` and `inf` are not in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


POSITIVE = Finite(min=0, min_open=True)
NOT_NEGATIVE = Finite(min=0)

#: More devices than any node has.
MOST_DEVICES = 1024


#: More drafts per step than any method that vLLM knows gains by.
MOST_DRAFTS = 64

#: Who drafts, in vLLM's words (`SpeculativeMethod` of 0.32, 2026-11), which also has
#: `<family>_mtp` for many families of models.
DRAFT_METHODS = (
    "ngram",
    "ngram_gpu",
    "suffix",
    "mtp",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "dflash",
    "dspark",
)


def _known_method(
    _context: click.Context, _option: click.Parameter, name: str | None
) -> str | None:
    if name is None or name in DRAFT_METHODS or name.endswith("_mtp"):
        return name
    raise UnknownName("draft method", name, DRAFT_METHODS)


def machine(command: Command) -> Command:
    """The machine that plans run on, and what it costs."""
    return devices(
        click.option(
            "--price-per-hour",
            "price_per_hour_usd",
            type=NOT_NEGATIVE,
            default=None,
            metavar="USD",
            help="What the whole machine costs. [default: known]",
        )(command)
    )


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
                "--instances",
                "instance_name",
                default=None,
                help="Instance instead of --gpu: ml.g6.12xlarge (SageMaker), g6.12xlarge (EC2).",
            ),
        )
    ):
        command = option(command)
    return command


def drafts(command: Command) -> Command:
    """Tokens drafted ahead of each step."""
    for option in reversed(
        (
            click.option(
                "--draft-tokens",
                type=click.IntRange(1, MOST_DRAFTS),
                default=None,
                metavar="COUNT",
                help="Tokens drafted ahead of each step (speculative decoding).",
            ),
            click.option(
                "--draft-method",
                default=None,
                callback=_known_method,
                metavar="NAME",
                help="Who drafts, in vLLM's words: ngram, mtp, eagle. [default: a layer, as mtp]",
            ),
            click.option(
                "--draft-acceptance",
                "draft_acceptance_fraction",
                type=click.FloatRange(0, 1),
                default=None,
                metavar="FRACTION",
                help="Share of drafted tokens that are right. [default: 0.6, an assumption]",
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
            "no cache travels where every copy computes its prompts itself",
            hint="say with --prefill-replicas how many copies compute them, or leave --kv-link out",
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


def constraints(command: Command) -> Command:
    """What a configuration must hold."""
    return click.option(
        "--constraints",
        default=None,
        metavar="LIMITS",
        help='What a configuration must hold: "e2e_latency:p99<=60s;request_throughput>=5".',
    )(command)
