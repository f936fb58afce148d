"""Limits on what a configuration may do: options that verbs share."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from servetune.option import option


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration must hold."""

    group: ClassVar[str] = "Limits"

    constraints: Annotated[
        str | None,
        option(
            'Limits that a configuration must hold, such as "e2e_latency:p99<=60s;'
            'request_throughput>=5".',
            metavar="LIMITS",
        ),
    ] = None
