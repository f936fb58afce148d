import asyncio
import time

from servetune.loadgen.instrument import LATE_S, Departures, LagMeter, p99_s, worst_s


async def test_a_loop_that_is_held_up_shows_in_its_lag():
    meter = LagMeter(interval_s=0.005)
    meter.start()
    await asyncio.sleep(0.02)
    time.sleep(0.08)  # noqa: ASYNC251 - the fault to be seen
    await asyncio.sleep(0.01)
    meter.stop()
    assert worst_s(meter.lags_s) >= 0.07
    count = len(meter.lags_s)
    await asyncio.sleep(0.02)
    assert len(meter.lags_s) == count


def test_departures_are_late_from_their_threshold_on_and_never_early():
    departures = Departures()
    departures.note(-0.5)
    departures.note(LATE_S)
    departures.note(LATE_S * 1.5, held=True)
    assert departures.lates_s == [0.0, LATE_S, LATE_S * 1.5]
    assert (departures.late_count, departures.held_count) == (1, 1)


def test_nothing_sampled_is_no_data():
    assert worst_s([]) is None
    assert p99_s([]) is None
    assert p99_s([1.0] * 99 + [3.0]) > 1.0
