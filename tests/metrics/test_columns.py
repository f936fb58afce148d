import numpy as np
import pytest

from servetune.metrics import Record
from servetune.metrics.columns import columns_of


def test_the_laws_for_arrays_are_those_of_a_single_record():
    rng = np.random.default_rng(0)
    records = []
    for index in range(200):
        pieces = int(rng.integers(0, 5))
        due_s, wait_s = rng.random(2)
        times_s = due_s + wait_s + np.cumsum(rng.random(pieces))
        records.append(
            Record(
                index=index,
                input_tokens=3,
                output_tokens=pieces,
                due_s=due_s,
                sent_s=due_s + wait_s,
                end_s=due_s + wait_s + 9,
                chunk_times_s=tuple(times_s),
            )
        )
    columns = columns_of(records)
    for name in ("ttft_s", "e2e_s", "tpot_s"):
        one_by_one = [getattr(record, name) for record in records]
        expected = np.array([np.nan if value is None else value for value in one_by_one])
        np.testing.assert_array_equal(getattr(columns, name), expected)


def test_what_a_request_has_not_got_is_no_number():
    (alone,) = (Record(index=0, input_tokens=1, output_tokens=0, due_s=0.0, sent_s=0.5, end_s=2.0),)
    columns = columns_of([alone])
    for name in ("ttft_s", "tpot_s", "normalized_s", "output_rate_per_s", "connect_s"):
        assert np.isnan(getattr(columns, name)).all(), name
    assert columns.wait_s[0] == pytest.approx(0.5)


def test_a_user_sees_no_rate_where_all_came_at_once():
    record = Record(
        index=0,
        input_tokens=1,
        output_tokens=4,
        due_s=0.0,
        sent_s=0.0,
        end_s=2.0,
        chunk_times_s=(1.0,),
        chunk_tokens=(4,),
    )
    assert np.isnan(columns_of([record]).output_rate_per_s[0])
    assert columns_of([record]).normalized_s[0] == pytest.approx(0.5)
