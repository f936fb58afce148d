"""Precision target: a stop rule that ends a run once one metric is known well enough.

    target := metric [":" statistic] ("±" | "+-") number "%"

`ttft:p99±5%`: the half width of the 99th percentile's confidence interval is at most 5 % of
the percentile. Checking after every request would stop on the first interval that is narrow
by chance. So checks are rare, each at 1.5 times the requests of the last one, and use a higher
level (97.5 %) than the 95 % of the report; a simulation in `tests/metrics/test_precision.py`
verifies the coverage of the reported interval at the stop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from servetune.errors import GrammarError, UnknownName
from servetune.metrics.columns import Columns, columns_of, known
from servetune.metrics.intervals import (
    Interval,
    gap_percentile_interval,
    ratio_interval,
    stretches_of,
    throughput_intervals,
)
from servetune.metrics.latency import Gaps, gaps_of
from servetune.metrics.record import Record
from servetune.metrics.slo import LATENCIES

#: Rates that a target may name.
RATES = ("request_throughput", "input_throughput", "output_throughput")
FIRST_CHECK = 100
GROWTH = 1.5
LEVEL = 0.975

_UNTIL = re.compile(
    r"\s*(?P<metric>[A-Za-z_]\w*)\s*(:\s*(?P<statistic>[\w.]+)\s*)?(±|\+-|\+/-)\s*"
    r"(?P<percent>\d+(\.\d*)?|\.\d+)\s*%\s*"
)
_STATISTIC = re.compile(r"mean|median|p\d{1,2}(\.\d+)?")
_EXAMPLE = "write it like ttft:p99±5% (or ttft:p99+-5%)"


class PrecisionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Precision reached so far.

    Attributes:
        relative_half_width: Half the interval's width over the value; infinite with too few
            requests.
        met: Whether the target is reached.
        requests: Complete answers at the last check; 0 before the first.
        next_check: Complete answers at which the next check is due.
    """

    relative_half_width: float
    met: bool
    requests: int
    next_check: int


class PrecisionTarget(msgspec.Struct, frozen=True):
    """Metric and the precision at which a run may stop.

    Attributes:
        metric: One of `LATENCIES` or of `RATES`.
        statistic: `mean`, `median` or a percentile such as `p99`; `mean` for rates.
        relative: Largest half width of the interval, as a share of the value.
    """

    metric: str
    statistic: str
    relative: float

    @classmethod
    def parse(cls, text: str) -> PrecisionTarget:
        """Target from the text of `--until`.

        Raises:
            GrammarError: The text does not follow the grammar.
            UnknownName: The metric is unknown or has no interval.
        """
        match = _UNTIL.fullmatch(text)
        if match is None:
            raise GrammarError(f"cannot read '{text.strip()}'", text, 0, hint=_EXAMPLE)
        metric, statistic = match["metric"], match["statistic"] or "mean"
        if metric not in (*LATENCIES, *RATES):
            raise UnknownName("metric", metric, (*LATENCIES, *RATES))
        if not _STATISTIC.fullmatch(statistic) or (metric in RATES and statistic != "mean"):
            raise GrammarError(
                f"{metric} has no statistic '{statistic}' with a confidence interval",
                text,
                match.start("statistic"),
                hint="use mean, median or a percentile such as p99; a throughput has a mean alone",
            )
        relative = float(match["percent"]) / 100
        if not 0 < relative < 1:
            raise GrammarError(
                f"{match['percent']}% is not a valid precision",
                text,
                match.start("percent"),
                hint="use more than 0% and less than 100%",
            )
        return cls(metric, statistic, relative)

    @property
    def label(self) -> str:
        """Text in the grammar: `ttft:p99±5%`."""
        statistic = "" if self.metric in RATES else f":{self.statistic}"
        return f"{self.metric}{statistic}±{self.relative * 100:.12g}%"

    def met(self, records: Sequence[Record]) -> PrecisionProgress:
        """Precision of some records as of the last check.

        A check uses the earliest answers up to its number of requests, so the same run gives
        the same verdict however often this is called.
        """
        ended = sorted(
            (record for record in records if record.outcome == "ok"),
            key=lambda record: record.end_s,
        )
        checked, following = _checks(len(ended))
        if not checked:
            return PrecisionProgress(
                relative_half_width=math.inf, met=False, requests=0, next_check=following
            )
        interval, value = self._interval(ended[:checked])
        width = math.inf
        if interval is not None and value:
            width = interval.half_width / abs(value)
        return PrecisionProgress(
            relative_half_width=width,
            met=width <= self.relative,
            requests=checked,
            next_check=following,
        )

    def _interval(self, ended: list[Record]) -> tuple[Interval | None, float | None]:
        ended = sorted(ended, key=lambda record: record.due_s)
        columns = columns_of(ended)
        if self.metric in RATES:
            return _rate(self.metric, columns)
        gaps = gaps_of(ended) if self.metric == "itl" else _values(self.metric, columns)
        if not len(gaps.seconds):
            return None, None
        stretches = stretches_of(columns).get(self.metric)
        if self.statistic == "mean":
            counts = gaps.counts.astype(np.float64)
            interval = ratio_interval(gaps.sums_s, counts, LEVEL, stretches=stretches)
            return interval, float(gaps.seconds.mean())
        percent = 50.0 if self.statistic == "median" else float(self.statistic[1:])
        interval = gap_percentile_interval(gaps, percent, LEVEL, stretches=stretches)
        return interval, float(np.percentile(gaps.seconds, percent))


def _checks(count: int) -> tuple[int, int]:
    """Requests of the last check at or before `count` (0 before the first), and of the next."""
    last, following = 0, FIRST_CHECK
    while following <= count:
        last, following = following, math.ceil(following * GROWTH)
    return last, following


def _values(metric: str, columns: Columns) -> Gaps:
    values_s = known(
        {"ttft": columns.ttft_s, "tpot": columns.tpot_s, "e2e_latency": columns.e2e_s}[metric]
    )
    return Gaps(values_s, np.ones(len(values_s), dtype=np.int64))


def _rate(metric: str, columns: Columns) -> tuple[Interval | None, float | None]:
    amounts = {
        "request_throughput": np.ones(len(columns)),
        "input_throughput": columns.input_tokens,
        "output_throughput": columns.output_tokens,
    }[metric]
    from_s, until_s = float(columns.due_s.min()), float(columns.end_s.max())
    if not until_s > from_s:
        return None, None
    value = float(amounts.sum()) / (until_s - from_s)
    return throughput_intervals(columns, {metric: amounts}, from_s, until_s, LEVEL).get(
        metric
    ), value
