"""Suggestions for a trial's figures; hints to a reader, never verdicts.

The limits are those of SageMaker's benchmarks: a first token after more than 500 ms suggests a
smaller batch or a faster instance, inter-token gaps above 50 ms suggest tensor parallelism or
a faster backend, and a throughput that no longer grows with load suggests more replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from servetune.metrics import value_of
from servetune.metrics.results import JsonObject
from servetune.report.quantities import shown
from servetune.store.schema import TrialRecord

TTFT_LIMIT_MS = 500.0
ITL_LIMIT_MS = 50.0
#: Plateau: throughput gains less than this share from at least 1.5 times the load.
PLATEAU_GAIN_FRACTION = 0.05
PLATEAU_LOAD_RATIO = 1.5
#: Client settings that determine the load.
LOAD_SETTINGS = ("max_concurrency", "request_rate")


def suggestions(record: TrialRecord, records: Sequence[TrialRecord] = ()) -> list[str]:
    """Suggestions for one trial; other `records` of the run show whether it is saturated."""
    if record.status != "ok":
        return []
    found = []
    ttft_ms = value_of(record.results, "ttft")
    itl_ms = value_of(record.results, "itl")
    if ttft_ms is not None and ttft_ms > TTFT_LIMIT_MS:
        found.append(
            f"mean TTFT {shown(ttft_ms, 'ms')} is above 500 ms: "
            "a smaller batch or a faster instance may help"
        )
    if itl_ms is not None and itl_ms > ITL_LIMIT_MS:
        found.append(
            f"mean ITL {shown(itl_ms, 'ms')} is above 50 ms: "
            "more tensor parallelism or a faster backend may help"
        )
    plateau = _plateau(record, records)
    return [*found, plateau] if plateau else found


def load_of(record: TrialRecord, name: str) -> float | None:
    """Load setting as a number; `None` if infinite or not a number."""
    value = record.config.client_args.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < float("inf") else None


def _plateau(record: TrialRecord, records: Sequence[TrialRecord]) -> str | None:
    for name in LOAD_SETTINGS:
        load, reached = load_of(record, name), value_of(record.results, "output_throughput")
        if load is None or reached is None:
            continue
        lighter = [
            (other_load, throughput)
            for other in records
            if other.status == "ok"
            and _same_but_load(other, record, name)
            and (other_load := load_of(other, name)) is not None
            and other_load * PLATEAU_LOAD_RATIO <= load
            and (throughput := value_of(other.results, "output_throughput"))
        ]
        if lighter:
            before_load, before = max(lighter)
            gain = reached / before - 1
            if gain < PLATEAU_GAIN_FRACTION:
                return (
                    f"throughput has flattened ({gain:+.1%} from {name} {before_load:g} to "
                    f"{load:g}): scaling out may serve more than a higher load"
                )
    return None


def _same_but_load(one: TrialRecord, other: TrialRecord, load_name: str) -> bool:
    return (
        one.config.server_args == other.config.server_args
        and _without(one.config.client_args, load_name)
        == _without(other.config.client_args, load_name)
        and one.simulated == other.simulated
    )


def _without(settings: JsonObject, name: str) -> JsonObject:
    # num_prompts usually grows with the load and is not an independent setting.
    return {key: value for key, value in settings.items() if key not in (name, "num_prompts")}
