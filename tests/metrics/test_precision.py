import math

import numpy as np
import pytest
from msgspec.structs import replace

from servetune.errors import GrammarError, UnknownName
from servetune.metrics import PrecisionTarget, Record
from servetune.metrics.intervals import mean_interval
from servetune.metrics.precision import FIRST_CHECK


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("ttft:p99±5%", PrecisionTarget("ttft", "p99", 0.05)),
        ("ttft:p99+-5%", PrecisionTarget("ttft", "p99", 0.05)),
        (" e2e_latency : mean +/- 2.5 % ", PrecisionTarget("e2e_latency", "mean", 0.025)),
        ("itl±.5%", PrecisionTarget("itl", "mean", 0.005)),
        ("output_throughput±3%", PrecisionTarget("output_throughput", "mean", 0.03)),
    ],
)
def test_it_is_read_as_it_is_written(text, until):
    assert PrecisionTarget.parse(text) == until
    assert PrecisionTarget.parse(until.label) == until


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("ttft:p99", GrammarError, "cannot read"),
        ("ttft:p99±5", GrammarError, "cannot read"),
        ("ttft:p99<=5%", GrammarError, "cannot read"),
        ("ttft:std±5%", GrammarError, "std"),
        ("output_throughput:p99±5%", GrammarError, "p99"),
        ("ttft±0%", GrammarError, "not a valid precision"),
        ("ttft±100%", GrammarError, "not a valid precision"),
        ("tttf±5%", UnknownName, "tttf"),
        ("error_rate±5%", UnknownName, "error_rate"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(text, error, says):
    with pytest.raises(error, match=says) as caught:
        PrecisionTarget.parse(text)
    assert caught.value.hint


def run_of(ttfts_s):
    return [
        Record(
            index=index,
            input_tokens=10,
            output_tokens=2,
            due_s=0.1 * index,
            sent_s=0.1 * index,
            end_s=0.1 * index + 1.5 * ttft_s,
            chunk_times_s=(0.1 * index + ttft_s, 0.1 * index + 1.5 * ttft_s),
        )
        for index, ttft_s in enumerate(ttfts_s)
    ]


def test_looks_are_rare_and_the_verdict_does_not_change_between_them():
    records = run_of(np.random.default_rng(0).uniform(1, 1.05, 400))
    until = PrecisionTarget.parse("ttft±10%")
    before = until.met(records[: FIRST_CHECK - 1])
    assert (before.met, before.requests, before.next_check) == (False, 0, FIRST_CHECK)
    assert before.relative_half_width == math.inf
    first = until.met(records[:120])
    assert (first.met, first.requests, first.next_check) == (True, 100, 150)
    assert until.met(records[:149]) == first
    assert until.met(records[:150]).requests == 150


def test_failures_do_not_count_and_their_latencies_neither():
    good = run_of(np.full(100, 1.0))
    bad = [replace(record, outcome="timeout", end_s=99.0) for record in run_of(np.full(99, 9.0))]
    assert PrecisionTarget.parse("ttft±1%").met([*good, *bad]).requests == 100


@pytest.mark.parametrize("metric", ["ttft:p90", "tpot", "itl:median", "request_throughput"])
def test_every_metric_that_can_be_waited_for_gets_narrower(metric):
    records = run_of(np.random.default_rng(1).lognormal(0, 0.4, 4000))
    until = PrecisionTarget.parse(f"{metric}±50%")
    assert until.met(records).relative_half_width < 0.5
    assert until.met(records).relative_half_width < until.met(records[:100]).relative_half_width


def test_a_percentile_that_so_few_cannot_tell_is_not_met():
    progress = PrecisionTarget.parse("ttft:p99±99%").met(
        run_of(np.ones(120) + np.arange(120) * 1e-3)
    )
    assert progress.relative_half_width == math.inf
    assert not progress.met


@pytest.mark.slow
def test_the_interval_at_the_stop_holds_the_truth_although_it_was_looked_at_often():
    """150 runs, neighbours correlated: nominal 95 %, at least 88 % (two standard errors off 92)."""
    from scipy.signal import lfilter  # a second of every test process

    rng = np.random.default_rng(2)
    until = PrecisionTarget.parse("ttft:mean±5%")
    truth, held = math.exp(0.4**2 / 2), 0
    for _ in range(150):
        steps = rng.normal(size=3900)
        values = lfilter([0.8], [1, -0.6], steps)
        ttfts_s = np.exp(0.4 * values)
        records = run_of(ttfts_s)
        look = FIRST_CHECK
        while look < len(records):
            progress = until.met(records[:look])
            if progress.met:
                break
            look = progress.next_check
        interval = mean_interval(ttfts_s[:look])
        held += interval.low <= truth <= interval.high
    assert held / 150 >= 0.88


def test_a_check_uses_a_level_of_97_5_percent():
    """Student's t of 19 degrees (twenty batches) is 2.4334 at 98.75 % and 2.0930 at 97.5 %."""
    ttfts_s = np.random.default_rng(3).normal(1.0, 0.2, 100)
    progress = PrecisionTarget.parse("ttft±5%").met(run_of(ttfts_s))
    reported = mean_interval(ttfts_s)
    of_the_report = reported.half_width / ttfts_s.mean()
    assert progress.relative_half_width / of_the_report == pytest.approx(2.4334 / 2.0930, rel=1e-3)
