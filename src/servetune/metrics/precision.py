"""When to stop a run: as soon as the interval of one metric is narrow enough.

    until := metric [":" statistic] ("±" | "+-") number "%"

`ttft:p99±5%`: the half width of the 99th percentile's confidence interval is at most 5 % of
the percentile. Who looks after every request stops on the first interval that is narrow by
luck. So looks are rare, each at half as many requests again as the last one, and each asks
for a higher level (97.5 %) than the 95 % that the report states; a simulation in
`tests/metrics/test_precision.py` holds the coverage of the reported interval at the stop.
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
    rate_interval,
    ratio_interval,
)
from servetune.metrics.latency import Gaps, gaps_of
from servetune.metrics.record import Record
from servetune.metrics.slo import LATENCIES

__all__ = ["PrecisionProgress", "PrecisionTarget"]

#: Rates that can be waited for.
RATES = ("request_throughput", "input_throughput", "output_throughput")
FIRST_LOOK = 100
GROWTH = 1.5
LEVEL = 0.975

_UNTIL = re.compile(
    r"\s*(?P<metric>[A-Za-z_]\w*)\s*(:\s*(?P<statistic>[\w.]+)\s*)?(±|\+-|\+/-)\s*"
    r"(?P<percent>\d+(\.\d*)?|\.\d+)\s*%\s*"
)
_STATISTIC = re.compile(r"mean|median|p\d{1,2}(\.\d+)?")
_EXAMPLE = "write it like ttft:p99±5% (or ttft:p99+-5%)"


class PrecisionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is from narrow enough.

    Attributes:
        relative_half_width: Half of the interval's width over the value; infinite where
            the requests of the last look are too few to say.
        met: Whether that is narrow enough.
        requests: Answered requests at the last look; 0 before the first.
        next_look: With how many answered requests the next look comes.
    """

    relative_half_width: float
    met: bool
    requests: int
    next_look: int


class PrecisionTarget(msgspec.Struct, frozen=True):
    """A metric, and how well it shall be known.

    Attributes:
        metric: One of `LATENCIES` or of `RATES`.
        statistic: `mean`, `median` or a percentile such as `p99`; `mean` for rates.
        relative: Largest half width over the value.
    """

    metric: str
    statistic: str
    relative: float

    @classmethod
    def parse(cls, text: str) -> PrecisionTarget:
        """Read `--until`.

        Raises:
            GrammarError: The text does not follow the grammar.
            UnknownName: It does, but the metric is not known or has no interval.
        """
        match = _UNTIL.fullmatch(text)
        if match is None:
            raise GrammarError(f"cannot read '{text.strip()}'", text, 0, hint=_EXAMPLE)
        metric, statistic = match["metric"], match["statistic"] or "mean"
        if metric not in (*LATENCIES, *RATES):
            raise UnknownName("metric", metric, (*LATENCIES, *RATES))
        if not _STATISTIC.fullmatch(statistic) or (metric in RATES and statistic != "mean"):
            raise GrammarError(
                f"{metric} has no statistic '{statistic}' that can be waited for",
                text,
                match.start("statistic"),
                hint="use mean, median or a percentile such as p99; a throughput has a mean alone",
            )
        relative = float(match["percent"]) / 100
        if not 0 < relative < 1:
            raise GrammarError(
                f"{match['percent']}% is no width to wait for",
                text,
                match.start("percent"),
                hint="use more than 0% and less than 100%",
            )
        return cls(metric, statistic, relative)

    @property
    def label(self) -> str:
        """As a user would write it: `ttft:p99±5%`."""
        statistic = "" if self.metric in RATES else f":{self.statistic}"
        return f"{self.metric}{statistic}±{self.relative * 100:.12g}%"

    def met(self, records: Sequence[Record]) -> PrecisionProgress:
        """Whether the answered among some records are enough, as of the last look.

        A look is made of the first answers that ended, as many as it asks for; so the same
        run gives the same verdict however often it is asked.
        """
        ended = sorted(
            (record for record in records if record.outcome == "ok"),
            key=lambda record: record.end_s,
        )
        looked, following = _looks(len(ended))
        if not looked:
            return PrecisionProgress(
                relative_half_width=math.inf, met=False, requests=0, next_look=following
            )
        interval, value = self._interval(ended[:looked])
        width = math.inf
        if interval is not None and value:
            width = interval.half_width / abs(value)
        return PrecisionProgress(
            relative_half_width=width,
            met=width <= self.relative,
            requests=looked,
            next_look=following,
        )

    def _interval(self, ended: list[Record]) -> tuple[Interval | None, float | None]:
        ended = sorted(ended, key=lambda record: record.due_s)
        columns = columns_of(ended)
        if self.metric in RATES:
            return _rate(self.metric, columns)
        gaps = gaps_of(ended) if self.metric == "itl" else _values(self.metric, columns)
        if not len(gaps.seconds):
            return None, None
        if self.statistic == "mean":
            interval = ratio_interval(gaps.sums_s, gaps.counts.astype(np.float64), LEVEL)
            return interval, float(gaps.seconds.mean())
        percent = 50.0 if self.statistic == "median" else float(self.statistic[1:])
        interval = gap_percentile_interval(gaps, percent, LEVEL)
        return interval, float(np.percentile(gaps.seconds, percent))


def _looks(count: int) -> tuple[int, int]:
    """The last look at or before so many requests (0: none yet), and the one after it."""
    last, following = 0, FIRST_LOOK
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
    return rate_interval(columns.end_s, amounts, from_s, until_s, LEVEL), value
