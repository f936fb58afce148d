"""Provenance of a measured result: time, machine and releases."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

from servetune import __version__


def now_utc() -> str:
    """Wall-clock time to the millisecond, as ISO 8601 with its zone."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def provenance(*, started_at: str, seed: int, engine_version: str | None) -> dict[str, Any]:
    """Facts that are needed to believe a measurement, or to repeat it."""
    return {
        "started_at": started_at,
        "ended_at": now_utc(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "servetune": __version__,
        "engine_version": engine_version,
        "seed": seed,
    }
