"""Answers of a server about itself: its models, and its Prometheus metrics before and after."""

from __future__ import annotations

import contextlib
import re

import msgspec

from servetune.engines.metrics import COUNTERS, GAUGES, Samples, read_engine
from servetune.errors import LoadError
from servetune.loadgen.server_side import Series, ServerMetrics, account

_LINE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
        (?P<labels>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?
        \s+(?P<value>\S+)""",
    re.VERBOSE,
)


def parse_metrics(text: str) -> dict[str, float]:
    r"""Samples of Prometheus' text format; comments and lines of other formats are passed over.

    Example:
        >>> parse_metrics('# TYPE a gauge\na{engine="0"} 2\nb 1e3 1700000000\n')
        {'a{engine="0"}': 2.0, 'b': 1000.0}
    """
    samples = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        samples[match["name"] + (match["labels"] or "")] = value
    return samples


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


def parse_models(text: str) -> tuple[str, ...]:
    """Names of the models in an answer of `/v1/models`."""
    try:
        return tuple(model.id for model in msgspec.json.decode(text, type=_Models).data)
    except msgspec.MsgspecError as error:
        raise LoadError(f"the server's list of models cannot be read: {error}") from error


def models_are_simulated(text: str) -> bool:
    """Whether an answer of `/v1/models` comes from servetune's simulated engine."""
    with contextlib.suppress(msgspec.MsgspecError):
        models = msgspec.json.decode(text, type=_Models).data
        return any(model.owned_by == "servetune-simulated" for model in models)
    return False


class _Version(msgspec.Struct):
    speed: float = 1.0


def parse_speed(text: str) -> float:
    """Engine's seconds per second, from an answer of `/version`; 1 where it has none."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=_Version).speed
    return 1.0


def server_metrics(before: Samples, after: Samples, *between: Samples) -> ServerMetrics:
    """Metrics between two scrapes, of any engine that has metric names.

    Args:
        before: Scrape before the load.
        after: Scrape when it was over.
        between: Scrapes meanwhile; gauges are only as true as these are frequent.
    """
    readings = [read_engine(samples) for samples in (before, *between, after)]
    series = Series(
        source="",
        kind="engine",
        label=next((each.engine for each in readings if each.engine), ""),
        times_s=tuple(float(i) for i in range(len(readings))),
        values={name: tuple(getattr(r, name) for r in readings) for name in (*GAUGES, *COUNTERS)},
    )
    return account((series,), timed=False)
