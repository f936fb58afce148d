"""Evidence: what is known of a Plan's performance, and how it came to be known."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from servetune.engines import DEFAULT_ENGINE
from servetune.hardware.device import Node
from servetune.secret import redacted


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The trial that a Plan rests on.

    Attributes:
        results: Results of the trial, under the journal's names.
        simulated: Whether no real server answered.
        concurrency: Requests in flight during the trial.
        engine: Engine that ran, or was simulated.
        engine_version: Version of it; `None` where no real engine ran.
        hardware: Machine on which the trial ran, such as `4x NVIDIA L4`.
        workload: Requests that were sent, for a reader.
        source: Place of the trial: journal and key.
    """

    results: dict[str, Any] = {}
    simulated: bool = False
    concurrency: int | None = None
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    hardware: str = ""
    workload: str = ""
    source: str = ""

    @property
    def measured_version(self) -> str | None:
        """Version of the engine that was really measured."""
        return None if self.simulated else self.engine_version

    def public(self) -> Evidence:
        """The evidence as JSON can hold it, without credentials that a command line had."""
        plain = json.loads(msgspec.json.encode(self))  # non-finite numbers become null
        return msgspec.convert(redacted(plain), Evidence)


def usd_per_million_tokens(node: Node, evidence: Evidence | None) -> float | None:
    """Cost of a million output tokens at the trial's throughput, `None` without a price."""
    per_s = evidence.results.get("output_throughput") if evidence else None
    if node.price is None or not isinstance(per_s, int | float):
        return None
    if not math.isfinite(per_s) or per_s <= 0:
        return None
    return node.price.usd_per_hour / 3600 / per_s * 1e6
