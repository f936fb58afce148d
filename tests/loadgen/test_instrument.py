from array import array

import pytest

from servetune.loadgen.instrument import LATE_S, instrument_of, verdict_of
from servetune.loadgen.sender_pool import SendStatistics


def statistics(lateness_s=(), lags_s=(), **known):
    return SendStatistics(lateness_s=array("d", lateness_s), lags_s=array("d", lags_s), **known)


def test_late_departures_are_counted_and_the_worst_is_reported():
    told = instrument_of(
        statistics([0.0, LATE_S / 2, LATE_S * 2, LATE_S * 3], [0.001, 0.004]), stamped_by="kernel"
    )
    assert told.late_count == 2
    assert told.sent_late_max_s == pytest.approx(LATE_S * 3)
    assert told.loop_lag_max_s == 0.004


def test_nothing_sampled_is_nothing_told():
    told = instrument_of(statistics(), stamped_by="kernel")
    assert told.sent_late_max_s is None
    assert told.loop_lag_p99_s is None
    assert (told.stamp_error_s, told.departure_error_s) == (0.0, 0.0)


def test_a_slow_loop_shifts_only_the_stamps_that_the_process_takes():
    slow = statistics([0.0], [0.02])
    assert instrument_of(slow, stamped_by="kernel").stamp_error_s == 0.0
    assert instrument_of(slow, stamped_by="process").stamp_error_s == pytest.approx(0.02)


def test_the_verdict_names_a_client_that_was_late_or_had_no_time_left():
    results = {"median_ttft_ms": 50.0, "median_itl_ms": 10.0}
    good = instrument_of(statistics([0.0001], [0.02]), stamped_by="kernel")
    assert verdict_of(good, results).trusted
    late = instrument_of(statistics([0.02]), stamped_by="kernel")
    assert verdict_of(late, results).words.startswith("THE CLIENT WAS LATE")
    stamps = instrument_of(statistics([0.0], [0.002]), stamped_by="process")
    assert not verdict_of(stamps, results).trusted
    busy = instrument_of(statistics([0.0], busy_fraction=0.97), stamped_by="kernel")
    assert verdict_of(busy, results).words.startswith("THE CLIENT WAS THE LIMIT")
