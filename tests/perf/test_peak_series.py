from servetune.perf.sim.peak_series import PeakSeries


def test_each_stretch_keeps_its_largest_value():
    gauge = PeakSeries(most=10, stretch_s=1.0)
    for now_s, value in ((0.1, 2.0), (0.9, 5.0), (0.5, 1.0), (3.0, 4.0)):
        gauge.note(now_s, value)
    assert gauge.points() == ((0.0, 5.0), (3.0, 4.0))


def test_a_long_run_takes_bounded_room_and_keeps_its_peak():
    gauge = PeakSeries(most=64, stretch_s=0.01)
    for i in range(100_000):
        gauge.note(i * 0.1, 9.0 if i == 4321 else 1.0)
    points = gauge.points()
    assert 32 <= len(points) <= 64
    peaks = [time_s for time_s, value in points if value == 9.0]
    width_s = points[1][0] - points[0][0]
    assert len(peaks) == 1
    assert 0 <= 432.1 - peaks[0] < width_s
