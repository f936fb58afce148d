from array import array

import numpy as np
import pytest

from servetune.metrics import Record, latency
from servetune.metrics.latency import arrivals_of, gaps_between, gaps_of


def record(times, tokens=(), **more):
    fields = {
        "index": 0,
        "input_tokens": 1,
        "output_tokens": sum(tokens) or len(times),
        "due_s": 0.0,
        "sent_s": 0.0,
        "end_s": times[-1] if len(times) else 1.0,
        "chunk_times_s": array("d", times),
        "chunk_tokens": array("q", tokens),
    }
    return Record(**{**fields, **more})


def test_gaps_of_several_requests_never_reach_from_one_to_the_next():
    gaps = gaps_of([record((1.0, 1.1)), record((5.0,)), record(()), record((2.0, 2.3, 2.4))])
    np.testing.assert_allclose(gaps.seconds, [0.1, 0.3, 0.1])
    assert gaps.counts.tolist() == [1, 0, 0, 2]


def test_the_sum_of_gaps_is_the_time_from_first_to_last_token_whatever_the_pieces():
    rng = np.random.default_rng(2)
    for _ in range(50):
        times_s = np.cumsum(rng.random(8))
        tokens = [*rng.integers(0, 4, 7), 2]  # pieces without a token among them
        (seconds, counts) = gaps_of([record(times_s, tokens)])
        assert seconds.sum() == pytest.approx(times_s[-1] - times_s[0])
        assert counts[0] == len(seconds) == sum(tokens[1:])


def test_pieces_are_counted_alike_in_small_batches_and_in_one(monkeypatch):
    rng = np.random.default_rng(3)
    records = []
    for _ in range(40):
        pieces = int(rng.integers(1, 9))
        tokens = tuple(rng.integers(0, 3, pieces)) if rng.random() < 0.5 else ()
        records.append(record(np.cumsum(rng.random(pieces)), tokens))
    whole = gaps_of(records)
    monkeypatch.setattr(latency, "_BATCH_CHUNKS", 7)
    batched = gaps_of(records)
    np.testing.assert_array_equal(whole.seconds, batched.seconds)
    np.testing.assert_array_equal(whole.counts, batched.counts)


def test_a_window_keeps_the_gaps_that_end_within():
    arrivals = arrivals_of([record((1.0, 2.0, 3.0, 4.0)), record((2.5, 3.5), (1, 2))])
    gaps = gaps_between(arrivals, 3.0, 4.0)
    np.testing.assert_allclose(gaps.seconds, [1.0, 0.5, 0.5])
    assert gaps.counts.tolist() == [1, 2]


def test_an_answer_that_did_not_stream_came_when_it_ended():
    whole = record((), end_s=4.0, output_tokens=30)
    arrivals = arrivals_of([record((1.0, 2.0)), whole])
    assert arrivals.times_s.tolist() == [1.0, 2.0, 4.0]
    assert arrivals.tokens.tolist() == [1, 1, 30]
    assert gaps_between(arrivals).counts.tolist() == [1, 0]


def test_pieces_may_be_packed_in_any_width():
    record = Record(
        index=0,
        input_tokens=1,
        output_tokens=4,
        due_s=0.0,
        sent_s=0.0,
        end_s=2.0,
        chunk_times_s=array("d", (1.0, 2.0)),
        chunk_tokens=array("i", (2, 2)),
    )
    packed = arrivals_of([record])
    assert gaps_of([record]).seconds.tolist() == [0.5, 0.5]
    assert packed.tokens.tolist() == [2, 2]
