"""Records of one run with the masks and columns that its summary needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from servetune.metrics.columns import BoolArray, Columns
from servetune.metrics.record import Record
from servetune.metrics.slo import Constraint
from servetune.units import MS_PER_S


class RunRecords:
    """Records of a run, their columns, and a mask of the complete answers."""

    def __init__(
        self,
        records: Sequence[Record],
        columns: Columns,
        whole: BoolArray,
        duration_s: float,
        limits: tuple[Constraint, ...],
    ) -> None:
        self.records = records
        self.columns = columns
        self.whole = whole
        self.duration_s = duration_s
        self.limits = limits
        every = bool(whole.all())
        self.answered = columns if every else columns.only(whole)
        self.answered_records = (
            records if every else [record for record, ok in zip(records, whole, strict=True) if ok]
        )

    @property
    def cut_off(self) -> BoolArray:
        """Mask of the requests still in flight when the run ended."""
        return np.array([record.outcome == "cancelled" for record in self.records], dtype=np.bool_)

    def good(self) -> BoolArray | None:
        """Mask of the complete answers that met the limits; `None` without limits."""
        return meets_all(self.answered, self.limits) if self.limits else None


def meets_all(columns: Columns, limits: Iterable[Constraint]) -> BoolArray:
    """Mask of the requests that met every limit; failed requests meet none.

    A limit on `ttft` or `itl` applies to each request's own first token or mean gap; the
    limits' statistics are ignored. A missing value, such as the gap in an answer of one
    token, meets any limit.
    """
    met = columns.whole.copy()
    for limit in limits:
        values_s = {
            "ttft": columns.ttft_s,
            "tpot": columns.tpot_s,
            "itl": columns.tpot_s,  # the mean gap of one request is its time per output token
            "e2e_latency": columns.e2e_s,
        }[limit.metric]
        met &= np.isnan(values_s) | limit.holds_each(values_s * MS_PER_S)
    return met
