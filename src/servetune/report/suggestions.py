"""Reading aids: what figures like these usually suggest. Suggestions, never verdicts.

The limits are those that users of SageMaker's benchmarks already know: a first token
after more than 500 ms asks for a smaller batch or a faster instance, gaps above 50 ms for
tensor parallelism or a faster backend, and a throughput that no longer grows with load
for more replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servetune.metrics import value_of
from servetune.report.quantities import shown
from servetune.store.schema import TrialRecord

__all__ = ["LOAD_SETTINGS", "load_of", "suggestions"]

TTFT_LIMIT_MS = 500.0
ITL_LIMIT_MS = 50.0
#: Less gain than this from at least half as much load again counts as a plateau.
PLATEAU_GAIN_FRACTION = 0.05
PLATEAU_LOAD_RATIO = 1.5
#: Client settings that say how much load there is.
LOAD_SETTINGS = ("max_concurrency", "request_rate")


def suggestions(record: TrialRecord, records: Sequence[TrialRecord] = ()) -> list[str]:
    """Sentences about one trial; `records` of the same run show whether it is saturated."""
    if record.status != "ok":
        return []
    said = []
    ttft_ms = value_of(record.results, "ttft")
    itl_ms = value_of(record.results, "itl")
    if ttft_ms is not None and ttft_ms > TTFT_LIMIT_MS:
        said.append(
            f"mean TTFT {shown(ttft_ms, 'ms')} is above 500 ms: "
            "a smaller batch or a faster instance may help"
        )
    if itl_ms is not None and itl_ms > ITL_LIMIT_MS:
        said.append(
            f"mean ITL {shown(itl_ms, 'ms')} is above 50 ms: "
            "more tensor parallelism or a faster backend may help"
        )
    plateau = _plateau(record, records)
    return [*said, plateau] if plateau else said


def load_of(record: TrialRecord, name: str) -> float | None:
    """The load setting as a number; `None` for `inf` and for what is not one."""
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


def _without(settings: dict[str, Any], name: str) -> dict[str, Any]:
    # num_prompts usually grows with the load and is no setting of its own.
    return {key: value for key, value in settings.items() if key not in (name, "num_prompts")}
