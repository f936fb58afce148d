"""Progress of `servetune bench`: how much is done, and the time left."""

import pytest

import servetune as st
from servetune.api.bench_setup import prepared_load
from servetune.api.request import request_of
from servetune.cli.bench_live import done_fraction, left_s
from servetune.loadgen import Progress


def load(**options):
    options = {"urls": ("http://127.0.0.1:9",), "model": "m", "input_tokens": "8"} | options
    return prepared_load(request_of(st.Bench, st.Bench(), options))


def progress(finished, elapsed_s):
    return Progress(
        elapsed_s=elapsed_s,
        request_count=40,
        finished_count=finished,
        failed_count=0,
        in_flight_count=2,
        output_tokens=0,
    )


def test_requests_that_ended_tell_the_time_left():
    run = load(requests=40)
    assert done_fraction(run, progress(10, 3.0)) == 0.25
    assert left_s(run, progress(10, 3.0)) == pytest.approx(9.0)
    assert left_s(run, progress(0, 3.0)) is None


def test_a_duration_tells_the_time_left_whatever_has_ended():
    run = load(duration_s=20.0)
    assert left_s(run, progress(0, 5.0)) == pytest.approx(15.0)
    assert done_fraction(run, progress(0, 21.0)) == 1.0  # the last answers are awaited


def test_a_precision_tells_no_end():
    assert done_fraction(load(until="ttft:p99±5%"), progress(10, 3.0)) is None
