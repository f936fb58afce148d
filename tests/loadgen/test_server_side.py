import msgspec
import pytest

from servetune.loadgen.server_side import Series, ServerSide, increase, totals_of


def engine(times_s, **values):
    return Series(source="http://a", kind="engine", label="vllm", times_s=times_s, values=values)


def card(times_s, source="gpu0", **values):
    return Series(source=source, kind="gpu", times_s=times_s, values=values)


def test_a_counter_grows_over_restarts_and_holes():
    assert increase([10.0, 12.0, None, 15.0]) == 5.0
    assert increase([10.0, 12.0, 3.0, 4.0]) == 2.0 + 3.0 + 1.0
    assert increase([None, 4.0]) == 4.0
    assert increase([7.0]) == 0.0
    assert increase([None, None]) is None
    assert increase([]) is None


def test_gauges_have_peaks_and_means_over_time():
    told = totals_of([engine((0.0, 1.0, 5.0), running_count=(0.0, 4.0, 4.0))])
    assert told.max_running_count == 4
    assert told.mean_running_count == pytest.approx((2.0 + 16.0) / 5)


def test_servers_are_added_up_at_the_same_moments():
    one = engine((0.0, 2.0, 4.0), running_count=(8.0, 0.0, 0.0), prompt_tokens=(0.0, 5.0, 9.0))
    two = engine((1.0, 3.0, 5.0), running_count=(1.0, 2.0, 6.0), prompt_tokens=(1.0, 5.0, 8.0))
    told = totals_of([one, two])
    assert told.max_running_count == 9  # 8 + 1 at 1 s, not 8 + 6
    assert told.prompt_tokens == 9 + 7


def test_shares_are_averaged_not_added():
    one = engine((0.0, 1.0), kv_usage_fraction=(0.2, 0.4))
    two = engine((0.0, 1.0), kv_usage_fraction=(0.8, 0.8))
    told = totals_of([one, two])
    assert told.max_kv_usage_fraction == 0.8
    assert told.mean_kv_usage_fraction == pytest.approx((0.3 + 0.8) / 2)


def test_memory_of_cards_is_that_of_one_on_average_and_of_all_at_most():
    one = card((0.0, 10.0), memory_bytes=(2e9, 4e9), use_fraction=(0.2, 0.9))
    two = card((0.0, 10.0), "gpu1", memory_bytes=(5e9, 5e9), use_fraction=(0.4, 0.4))
    told = totals_of([one, two])
    assert told.mean_gpu_memory_bytes == pytest.approx((3e9 + 5e9) / 2)
    assert told.max_gpu_memory_bytes == 9e9
    assert told.max_gpu_use_fraction == 0.9


def test_energy_is_the_cards_counters_and_else_power_over_time():
    counted = card((0.0, 10.0), energy_j=(5000.0, 8000.0), power_w=(1.0, 1.0))
    drawn = card((0.0, 5.0, 10.0), "gpu1", power_w=(100.0, 300.0, 100.0))
    told = totals_of([counted, drawn, engine((0.0, 10.0), output_tokens=(0.0, 50_000.0))])
    assert told.energy_j == pytest.approx(3000 + 2000)
    assert told.output_tokens_per_joule == pytest.approx(10.0)
    assert told.gpu_count == 2
    assert told.mean_power_w == pytest.approx(1 + 200)
    assert totals_of([card((0.0,), power_w=(5.0,))]).energy_j is None


def test_a_run_is_cut_out_of_what_was_sampled():
    side = ServerSide(
        every_s=1.0,
        series=(
            engine((0.0, 1.0, 2.0, 3.0, 4.0), output_tokens=(0.0, 10.0, 40.0, 70.0, 70.0)),
            card((0.0, 1.0, 2.0, 3.0, 4.0), energy_j=(0.0, 50.0, 450.0, 850.0, 900.0)),
        ),
    )
    cut = side.within(1.25, 2.75)
    # Tokens between the words before and after it, energy drawn straight to its two ends.
    assert cut.totals.output_tokens == 60
    assert cut.totals.energy_j == pytest.approx(1.5 * 400)
    assert cut.series[1].times_s == (1.25, 2.0, 2.75)
    assert cut.since(1.25).series[1].times_s == (0.0, 0.75, 1.5)
    assert side.within(-5.0, 50.0).series == side.series
    assert side.within(1.0, 3.0).series[0].times_s == (1.0, 2.0, 3.0)


def test_a_hole_stays_a_hole_where_a_run_is_cut_out():
    cut = card((0.0, 1.0, 2.0), power_w=(10.0, None, 30.0)).within(0.5, 1.5)
    assert cut.values["power_w"] == (15.0, None, 25.0)


def test_nothing_said_is_no_data():
    told = totals_of([])
    assert all(getattr(told, name) is None for name in told.__struct_fields__)


def test_the_servers_side_goes_through_json():
    side = ServerSide(every_s=1.0, series=(engine((0.0,), running_count=(None,)),))
    assert msgspec.json.decode(msgspec.json.encode(side), type=ServerSide) == side
