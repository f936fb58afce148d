"""Progress of `servetune bench`: how much is done, and the time left."""

import msgspec
import pytest

import servetune as st
from servetune.api.bench_progress import done_fraction, latencies, left_s, level_of
from servetune.api.bench_setup import prepared_load
from servetune.api.request import request_of
from servetune.loadgen import Progress
from servetune.metrics import Record


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


def ended(index, ttft_s, outcome="ok"):
    times_s = (ttft_s, ttft_s + 0.02, ttft_s + 0.04) if ttft_s is not None else ()
    return Record(
        index=index,
        input_tokens=8,
        output_tokens=len(times_s),
        due_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        chunk_times_s=times_s,
        outcome=outcome,
    )


def test_latencies_are_those_of_the_answers_that_ended_last():
    recent = (ended(0, 0.1), ended(1, 0.2), ended(2, 0.3), ended(3, 9.0, "timeout"))
    so_far = msgspec.structs.replace(progress(4, 1.0), recent=recent)
    assert dict(latencies(so_far)) == {
        "TTFT p50, p99": "200.0 ms, 298.0 ms",
        "TPOT p50, p99": "20.0 ms, 20.0 ms",
    }
    whole = msgspec.structs.replace(progress(1, 1.0), recent=(ended(0, None),))
    assert dict(latencies(whole)) == {"E2E p50, p99": "1.00 s, 1.00 s"}
    assert dict(latencies(progress(0, 1.0))) == {}


def test_a_level_is_named_by_its_users_or_its_rate():
    assert level_of(load(concurrency=8)) == "8 users"
    assert level_of(load(rate=2.5)) == "2.5 requests/s"
