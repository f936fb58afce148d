"""Suggestions for what to try next, from what the trials of a run showed; never verdicts.

A setting is judged by trials that differ in it alone. The limits of 500 ms to the first token
and 50 ms between tokens are those of SageMaker's benchmarks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import msgspec

from servetune.engines import ENGINES, engine
from servetune.metrics import Constraint, value_of
from servetune.report.quantities import shown
from servetune.report.ranking import setting_text, short_name, varying
from servetune.search import failed_requests
from servetune.store.schema import TrialRecord

TTFT_LIMIT_MS = 500.0
ITL_LIMIT_MS = 50.0
#: Plateau: throughput gains less than this share from at least 1.5 times the load.
PLATEAU_GAIN_FRACTION = 0.05
PLATEAU_LOAD_RATIO = 1.5
#: Difference in throughput that counts as none between trials.
EQUAL_FRACTION = 0.01
#: Client settings that determine the load.
LOAD_SETTINGS = ("max_concurrency", "request_rate")
#: Settings that are varied together, by name.
_Axis: TypeAlias = tuple[str, ...]


class _Values(msgspec.Struct, frozen=True):
    """Values of an axis that were tried with all else equal.

    Attributes:
        count: Number of different values.
        lowest_per_s: Lowest output tokens per second.
        fastest: Two fastest trials: output tokens per second, value as text, key.
    """

    count: int
    lowest_per_s: float
    fastest: list[tuple[float, str, str]]


class Evidence:
    """Trials of one run, found by what they have in common."""

    def __init__(
        self, records: Sequence[TrialRecord], constraints: tuple[Constraint, ...] = ()
    ) -> None:
        self._constraints = constraints
        sound = [record for record in records if _is_sound(record)]
        names = varying(sound)
        layout = tuple(name for name in names.server if name in _layout_settings())
        self._axes: list[_Axis] = [layout] if layout else []
        self._axes += [(name,) for name in names.server if name not in layout]
        self._load = next((name for name in LOAD_SETTINGS if name in names.client), None)
        self._differing_in: dict[tuple[_Axis, bytes], list[TrialRecord]] = {}
        self._values_of: dict[tuple[_Axis, bytes], _Values] = {}
        axes = [*self._axes, *([(self._load,)] if self._load else [])]
        for record in sound:
            for axis in axes:
                self._differing_in.setdefault((axis, _key(record, axis)), []).append(record)

    def suggestions(self, record: TrialRecord) -> list[str]:
        """Suggestions for one trial, each with the figures behind it."""
        if record.status != "ok":
            return []
        about_settings = [
            text for axis in self._axes if (text := self._about(axis, record)) is not None
        ]
        return [*self._about_limits(record), *about_settings, *self._about_load(record)]

    def _alike(self, record: TrialRecord, axis: _Axis) -> list[TrialRecord]:
        """Trials that differ from one in an axis at most."""
        return self._differing_in.get((axis, _key(record, axis)), [])

    def _about(self, axis: _Axis, record: TrialRecord) -> str | None:
        """Effect of a server setting at this trial's load; `None` where it was not varied."""
        mine, values = _rate(record), self._values(axis, record)
        other = next((each for each in values.fastest if each[2] != record.key), None)
        if other is None or not mine or not values.lowest_per_s:
            return None
        best_per_s, best, _ = other
        spread = values.fastest[0][0] / values.lowest_per_s - 1
        at = f" at {self._load_text(record)}" if self._load else ""
        if spread < EQUAL_FRACTION:
            names = ", ".join(map(short_name, axis))
            return (
                f"{names} changed nothing{at}: {spread:.1%} of the output tokens/s between "
                f"{values.count} values"
            )
        gain = best_per_s / mine - 1
        if gain > EQUAL_FRACTION:
            return f"{best} was faster{at}: {gain:+.0%} output tokens/s"
        if gain < -EQUAL_FRACTION:
            return f"{best} was slower{at}: {gain:+.0%} output tokens/s"
        return f"{best} was as fast{at}: {gain:+.1%} output tokens/s"

    def _values(self, axis: _Axis, record: TrialRecord) -> _Values:
        """Values of an axis among trials that differ in it at most, each group looked at once."""
        group = (axis, _key(record, axis))
        if group not in self._values_of:
            alike = self._differing_in.get(group, [])
            rates = [(_rate(each), _axis_text(axis, each), each.key) for each in alike]
            self._values_of[group] = _Values(
                count=len({text for _, text, _ in rates}),
                lowest_per_s=min((rate for rate, _, _ in rates), default=0.0),
                fastest=heapq.nlargest(2, rates, key=lambda each: each[0]),
            )
        return self._values_of[group]

    def _about_limits(self, record: TrialRecord) -> list[str]:
        """Long waits, where no trial of the run shows what would shorten them."""
        found = []
        ttft_ms, itl_ms = (value_of(record.results, name) for name in ("ttft", "itl"))
        if ttft_ms is not None and ttft_ms > TTFT_LIMIT_MS:
            lighter = self._shorter(record, self._lighter(), "ttft", ttft_ms)
            found.append(
                f"mean TTFT {shown(ttft_ms, 'ms')} is above 500 ms: "
                + (lighter or "a lighter load was not tried")
            )
        if itl_ms is not None and itl_ms > ITL_LIMIT_MS:
            split = next((axis for axis in self._axes if axis[0] in _layout_settings()), None)
            other = self._shorter(record, split, "itl", itl_ms)
            lighter = self._shorter(record, self._lighter(), "itl", itl_ms)
            untried = (
                "no other split of the GPUs was shorter"
                if split
                else ("other splits of the GPUs and lighter loads were not tried")
            )
            found.append(
                f"mean ITL {shown(itl_ms, 'ms')} is above 50 ms: {other or lighter or untried}"
            )
        return found

    def _lighter(self) -> _Axis | None:
        return (self._load,) if self._load else None

    def _shorter(
        self, record: TrialRecord, axis: _Axis | None, metric: str, than_ms: float
    ) -> str | None:
        """The trial with the shortest time among those that differ in one axis."""
        if axis is None:
            return None
        times = [
            (value, other)
            for other in self._alike(record, axis)
            if (value := value_of(other.results, metric)) is not None and value < than_ms
        ]
        if not times:
            return None
        value, other = min(times, key=lambda pair: pair[0])
        return f"with {_axis_text(axis, other)} it was {shown(value, 'ms')}"

    def _about_load(self, record: TrialRecord) -> list[str]:
        """Loads to try next with the same server."""
        if self._load is None or load_of(record, self._load) is None:
            return []
        loads = (
            (load_of(other, self._load), other) for other in self._alike(record, (self._load,))
        )
        tried = sorted(
            ((load, other) for load, other in loads if load is not None), key=lambda pair: pair[0]
        )
        flat = self._plateau(record, tried)
        if flat is not None:
            return [flat]
        held = [load for load, other in tried if self._holds(other)]
        if not held:
            return []
        most = max(held)
        missed = [load for load, other in tried if load > most]
        if missed and self._constraints:
            return self._between(most, min(missed))
        grown = self._growth(tried)
        if not missed and grown is not None:
            further = f"{_round(1.5 * most)} to {_round(2 * most)} {self._unit()}"
            return [f"throughput still grows ({grown}): try {further} next"]
        return []

    def _between(self, held: float, missed: float) -> list[str]:
        low, high = held + (missed - held) / 4, missed - (missed - held) / 4
        if self._load == "max_concurrency":
            if missed - held < 2:
                return []
            low, high = max(low, held + 1), min(high, missed - 1)  # numbers that were not tried
        edge = f"the constraints hold with {held:g} {self._unit()} and not with {missed:g}"
        ends = dict.fromkeys((_round(low), _round(high)))
        return [f"{edge}: try {' to '.join(ends)} next"]

    def _growth(self, tried: Sequence[tuple[float, TrialRecord]]) -> str | None:
        if len(tried) < 2:
            return None
        (before, lighter), (load, heaviest) = tried[-2:]
        gain = _rate(heaviest) / (_rate(lighter) or 1.0) - 1
        if gain < PLATEAU_GAIN_FRACTION:
            return None
        return f"{gain:+.0%} from {before:g} to {load:g}"

    def _plateau(
        self, record: TrialRecord, tried: Sequence[tuple[float, TrialRecord]]
    ) -> str | None:
        assert self._load is not None
        load, reached = load_of(record, self._load), _rate(record)
        assert load is not None
        lighter = [
            (other_load, rate)
            for other_load, other in tried
            if other_load * PLATEAU_LOAD_RATIO <= load and (rate := _rate(other))
        ]
        if not lighter or not reached:
            return None
        before_load, before = max(lighter)
        gain = reached / before - 1
        if gain >= PLATEAU_GAIN_FRACTION:
            return None
        return (
            f"throughput has flattened ({gain:+.1%} from {self._load} {before_load:g} to "
            f"{load:g}): scaling out may serve more than a higher load"
        )

    def _holds(self, record: TrialRecord) -> bool:
        return all(limit.holds(record.results) for limit in self._constraints)

    def _load_text(self, record: TrialRecord) -> str:
        assert self._load is not None
        return _axis_text((self._load,), record)

    def _unit(self) -> str:
        return "users" if self._load == "max_concurrency" else "requests/s"


def suggestions(
    record: TrialRecord,
    records: Sequence[TrialRecord] = (),
    constraints: tuple[Constraint, ...] = (),
) -> list[str]:
    """Suggestions for one trial; the other `records` of the run are the evidence."""
    return Evidence(records or [record], constraints).suggestions(record)


def load_of(record: TrialRecord, name: str) -> float | None:
    """Load setting as a number; `None` if infinite or not a number."""
    value = record.config.client_args.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < float("inf") else None


def _is_sound(record: TrialRecord) -> bool:
    if record.status != "ok":
        return False
    failed = failed_requests(record.results)
    return failed is None or not failed.beyond_tolerance


def _rate(record: TrialRecord) -> float:
    return value_of(record.results, "output_throughput") or 0.0


@cache
def _layout_settings() -> frozenset[str]:
    """Settings that lay a model over the GPUs, in every engine's words; sweeps tie them."""
    return frozenset(
        name
        for each in ENGINES
        for name, field in engine(each).words.fields.items()
        if field in ("tensor_parallel", "data_parallel", "pipeline_parallel")
    )


def _axis_text(axis: _Axis, record: TrialRecord) -> str:
    config = record.config
    settings = config.client_args if axis[0] in LOAD_SETTINGS else config.server_args
    return " ".join(setting_text(name, settings.get(name)) for name in axis)


def _round(value: float) -> str:
    return f"{round(value):d}" if value >= 10 else f"{value:.2g}"


def _key(record: TrialRecord, axis: _Axis) -> bytes:
    """Configuration apart from an axis; `num_prompts` usually grows with the load."""
    left_out = {*axis, "num_prompts"}
    sides = (record.config.server_args, record.config.client_args)
    rest = [{name: value for name, value in side.items() if name not in left_out} for side in sides]
    return msgspec.json.encode((record.simulated, rest), order="sorted")
