"""Options of `servetune deploy sagemaker` that say how the endpoint is made up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
import msgspec

from servetune.cli.options import POSITIVE
from servetune.errors import InputError

__all__ = ["Wanted", "hosting_options", "split_adapter", "split_scale"]

Command = Callable[..., Any]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the options said, unread."""

    instances: int
    fallback: tuple[str, ...]
    copies: int | None
    memory_mib: int | None
    adapter: tuple[str, ...]
    scale: str | None
    requests_per_copy: float | None
    routing: str
    reservation_arn: str | None
    provision_timeout_s: int | None
    startup_timeout_s: int | None
    hours: float
    max_cost: float | None
    price_per_hour: float | None
    hf_token_secret: str | None
    hf_token_from_env: bool
    poll_s: float
    timeout_min: float | None


_OPTIONS = (
    click.option("--instances", type=click.IntRange(1), default=1, show_default=True),
    click.option(
        "--fallback",
        multiple=True,
        metavar="TYPE",
        help="Instance type to take when the first cannot be had; up to four, in order.",
    ),
    click.option(
        "--copies",
        type=click.IntRange(1),
        default=None,
        help="Serve by so many inference components' copies, each of one replica.",
    ),
    click.option(
        "--memory-mib",
        type=click.IntRange(128),
        default=None,
        help="Host memory that one copy reserves. [default: an even share]",
    ),
    click.option(
        "--adapter",
        multiple=True,
        metavar="NAME=s3://..tar.gz",
        help="A LoRA adapter on the component; repeatable.",
    ),
    click.option(
        "--scale",
        default=None,
        metavar="MIN:MAX",
        help="Autoscale copies (or instances, without --copies); MIN 0 scales to zero.",
    ),
    click.option(
        "--requests-per-copy",
        type=POSITIVE,
        default=None,
        help="In flight, at which a copy is added. [default: the measured knee less 20%]",
    ),
    click.option(
        "--routing",
        default="least-outstanding",
        show_default=True,
        help="random, kv-aware, or prefix-aware[:LENGTH[:CONCURRENCY]], too.",
    ),
    click.option(
        "--reservation-arn", default=None, help="Flexible Training Plan to take capacity from."
    ),
    click.option(
        "--provision-timeout-s",
        type=click.IntRange(300, 3600),
        default=None,
        help="How long to wait for capacity, of each type.",
    ),
    click.option("--startup-timeout-s", type=click.IntRange(60, 3600), default=None),
    click.option(
        "--hours",
        type=POSITIVE,
        default=24.0,
        show_default=True,
        help="How long the endpoint shall stand, for its cost and its tag.",
    ),
    click.option("--max-cost", type=POSITIVE, default=None, metavar="USD"),
    click.option("--price-per-hour", type=POSITIVE, default=None, metavar="USD"),
    click.option(
        "--hf-token-secret", default=None, metavar="ARN", help="Secrets Manager holds the token."
    ),
    click.option("--hf-token-from-env", is_flag=True, help="Take the token from HF_TOKEN."),
    click.option(
        "--poll-s",
        type=click.FloatRange(0),
        default=15.0,
        show_default=True,
        help="Between looks while --apply waits.",
    ),
    click.option(
        "--timeout-min",
        type=click.FloatRange(0),
        default=None,
        help="Longest wait of --apply. [default: from the deployment's own time-outs]",
    ),
)


def hosting_options(command: Command) -> Command:
    """Give a command these options, as one value `wanted`."""

    @functools.wraps(command)
    def with_wanted(**given: Any) -> Any:
        fields = {name: given.pop(name) for name in Wanted.__struct_fields__}
        return command(wanted=Wanted(**fields), **given)

    decorated: Command = with_wanted
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def split_scale(text: str) -> tuple[int, int]:
    """`1:4` as two numbers.

    Raises:
        InputError: It is something else.
    """
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal()):
        raise InputError(f"--scale '{text}' is no range", hint="write it like --scale 1:4")
    return int(least), int(most)


def split_adapter(text: str) -> tuple[str, str]:
    """`support=s3://bucket/support.tar.gz` as name and place.

    Raises:
        InputError: It is something else.
    """
    name, sign, place = text.partition("=")
    if not sign:
        raise InputError(
            f"--adapter '{text}' names no place",
            hint="write it like --adapter support=s3://bucket/support.tar.gz",
        )
    return name, place
