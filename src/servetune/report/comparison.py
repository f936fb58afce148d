"""Comparison of predicted and measured results of the same configuration."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from servetune.metrics.results import ResultFields
from servetune.report.quantities import QUANTITIES, quantity_value
from servetune.report.ranking import label_of, varying
from servetune.store.schema import PredictionInterval, TrialRecord

#: Quantity and statistic of each row of a comparison.
COMPARED: tuple[tuple[str, str], ...] = (
    ("output_throughput", "mean"),
    ("request_throughput", "mean"),
    ("ttft", "mean"),
    ("ttft", "p99"),
    ("itl", "mean"),
    ("itl", "p99"),
    ("tpot", "mean"),
    ("e2e_latency", "mean"),
    ("e2e_latency", "p99"),
)

#: Settings that do not identify a configuration: addresses, files and output options.
NOT_COMPARED = frozenset(
    {
        "host",
        "port",
        "base_url",
        "model",
        "tokenizer",
        "dataset_path",
        "output_file",
        "output_details",
        "disable_tqdm",
        "backend",
        "served_model_name",
    }
)


class PredictionPair(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured results of one configuration, under the journal's field names."""

    label: str
    key: str
    predicted: ResultFields
    measured: ResultFields
    interval: PredictionInterval | None = None


class QuantityError(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction error of one quantity.

    Attributes:
        error_fraction: Relative error, predicted / measured - 1; `None` without both values.
        low: Lower end of the prediction's interval; `None` where it has none.
        high: Upper end.
        inside: Whether the measured value is inside; `None` where that is not known.
    """

    quantity: str
    statistic: str
    predicted: float | None
    measured: float | None
    error_fraction: float | None
    low: float | None = None
    high: float | None = None
    inside: bool | None = None


def pairs_within(records: Sequence[TrialRecord]) -> list[PredictionPair]:
    """Pairs from measured records that contain their own prediction."""
    names = varying(records)
    return [
        PredictionPair(
            label=label_of(record, names),
            key=record.key,
            predicted=record.predicted,
            measured=record.results,
            interval=record.interval,
        )
        for record in records
        if record.predicted and record.status == "ok" and not record.simulated
    ]


def pairs_between(
    predicted: Sequence[TrialRecord], measured: Sequence[TrialRecord]
) -> list[PredictionPair]:
    """Pairs of each measured record and the prediction of the same configuration.

    Two records have the same configuration if every setting that both name is equal (at least
    one is), and so are model and GPU where both name them. A measured record that matches
    several predictions equally well is ambiguous and left out.
    """
    usable = [record for record in predicted if record.status == "ok"]
    names = varying(usable)
    pairs = []
    for record in measured:
        if record.status != "ok":
            continue
        shared = [(_shared_settings(candidate, record), candidate) for candidate in usable]
        most = max((count for count, _ in shared), default=0)
        best = [candidate for count, candidate in shared if count == most]
        if most and len(best) == 1:
            pairs.append(
                PredictionPair(
                    label=label_of(best[0], names),
                    key=best[0].key,
                    predicted=best[0].results,
                    measured=record.results,
                    interval=best[0].interval,
                )
            )
    return pairs


def quantity_errors(pair: PredictionPair) -> list[QuantityError]:
    """Errors of one pair for the rows of `COMPARED`."""
    gaps = []
    for name, statistic in COMPARED:
        predicted = quantity_value(pair.predicted, name, statistic)
        measured = quantity_value(pair.measured, name, statistic)
        low, high = _ends(pair, name, statistic, predicted)
        gaps.append(
            QuantityError(
                quantity=QUANTITIES[name].name,
                statistic=statistic,
                predicted=predicted,
                measured=measured,
                error_fraction=(
                    predicted / measured - 1 if predicted is not None and measured else None
                ),
                low=low,
                high=high,
                inside=None
                if low is None or high is None or measured is None
                else low <= measured <= high,
            )
        )
    return gaps


def _ends(
    pair: PredictionPair, name: str, statistic: str, predicted: float | None
) -> tuple[float, float] | tuple[None, None]:
    """Ends of the interval of a predicted mean; those of a percentile are not known.

    Requests that arrive at a rate are answered at that rate, whatever each takes.
    """
    if pair.interval is None or predicted is None or statistic != "mean":
        return None, None
    if name.endswith("throughput") and pair.measured.get("request_rate") is not None:
        return None, None
    return pair.interval.ends(name, predicted) or (None, None)


def median_errors(pairs: Sequence[PredictionPair]) -> dict[tuple[str, str], float | None]:
    """Median absolute relative error of each row of `COMPARED` over all pairs."""
    errors: dict[tuple[str, str], list[float]] = {compared: [] for compared in COMPARED}
    for pair in pairs:
        for gap in quantity_errors(pair):
            if gap.error_fraction is not None:
                errors[gap.quantity, gap.statistic].append(abs(gap.error_fraction))
    return {compared: median(found) if found else None for compared, found in errors.items()}


def _shared_settings(one: TrialRecord, other: TrialRecord) -> int:
    """Number of equal settings that both records name; 0 if any of those differs."""
    if not _same_model(one, other) or not _same_gpu(one, other):
        return 0
    count = 0
    for mine, theirs in (
        (one.config.server_args, other.config.server_args),
        (one.config.client_args, other.config.client_args),
    ):
        for name in (mine.keys() & theirs.keys()) - NOT_COMPARED:
            if mine[name] != theirs[name]:
                return 0
            count += 1
    return count


def _same_model(one: TrialRecord, other: TrialRecord) -> bool:
    mine, theirs = one.metadata.model, other.metadata.model
    return not mine or not theirs or mine == theirs


def _same_gpu(one: TrialRecord, other: TrialRecord) -> bool:
    """Whether one name's words are all in the other's: `L4` is `NVIDIA L4` but not `L40`."""
    mine, theirs = (
        set(str(record.metadata.gpu_type or "").lower().split()) - {"unknown"}
        for record in (one, other)
    )
    return mine <= theirs or theirs <= mine
