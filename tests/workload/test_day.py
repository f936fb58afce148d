"""Traffic of a day, out of shapes and files."""

import pytest

from servetune.errors import InputError, UnknownName
from servetune.workload.day import SHAPES, traffic_of


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_last_a_day_and_reach_their_peak_once_scaled(name):
    day = traffic_of(name, 40)
    assert day.lasts_s == 86_400
    assert day.peak_per_s == pytest.approx(40)
    assert day.windows().min() > 0


def test_clock_times_dates_and_seconds_mean_the_same(tmp_path):
    for number, (first, second) in enumerate(
        [("06:00", "07:30"), ("21600", "27000"), ("2026-11-24T06:00", "2026-11-24T07:30")]
    ):
        path = tmp_path / f"{number}.csv"
        path.write_text(f"time,rate\n{first},1\n{second},3\n")
        day = traffic_of(str(path), None)
        assert day.lasts_s == 5400
        assert day.windows(5400).tolist() == [2.0]
        assert day.largest_rise(2700) == pytest.approx(2, rel=0.01)
    assert traffic_of(str(path), 30).rates_per_s == (10, 30)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hour,requests\n1,2\n", "not time and rate"),
        ("time,rate\n0,1\n", "1 row of"),
        ("time,rate\n0,1\n10,-2\n", "line 3: '-2' is no rate"),
        ("time,rate\n0,1\n10,nan\n", "is no rate"),
        ("time,rate\n0,1\n10,1e9\n", "'1e9' is no rate from 0 to 10,000,000 requests per"),
        ("time,rate\n100,1\n100,2\n", "not after"),
        ("time,rate\n25:00,1\n", "is no time"),
        ("time,rate\n0,0\n3600,0\n", "every rate is 0"),
        ("time,rate\n0,1\n5,2\n", "spans 5 s"),
        ("time,rate\n0\n3600,2\n", "is no rate"),
        ("", "nothing"),
    ],
)
def test_a_malformed_file_is_an_error_with_its_place(tmp_path, text, words):
    path = tmp_path / "day.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        traffic_of(str(path), None)


def test_what_is_no_shape_and_no_file_is_an_error():
    with pytest.raises(UnknownName, match="offise"):
        traffic_of("offise", 3)
    with pytest.raises(InputError, match="not there"):
        traffic_of("nowhere/day.csv", 3)
    with pytest.raises(InputError, match="without a rate"):
        traffic_of("office", None)
