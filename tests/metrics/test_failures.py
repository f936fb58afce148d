import pytest

from servetune.metrics import Record, RequestedLengths, summarize


def record(index=0, **more):
    fields = {
        "input_tokens": 4,
        "output_tokens": 3,
        "due_s": 0.0,
        "sent_s": 0.0,
        "end_s": 1.2,
        "chunk_times_s": (1.0, 1.1, 1.2),
    }
    return Record(index=index, **{**fields, **more})


def test_each_kind_of_failure_keeps_three_different_samples():
    details = ["a", "a", "b", "c", "d"]
    failed = [record(i, outcome="timeout", detail=detail) for i, detail in enumerate(details)]
    results = summarize([*failed, record(9, outcome="refused", detail="x")], duration_s=2.0)
    timeouts, refused = results["failures"]
    assert (timeouts["outcome"], timeouts["count"]) == ("timeout", 5)
    assert timeouts["samples"] == ["a", "b", "c"]
    assert timeouts["sample"] == "a"
    assert refused == {"outcome": "refused", "count": 1, "sample": "x", "samples": ["x"]}


def test_a_wrong_length_is_counted_and_is_no_failure_unless_asked():
    records = [record(i, output_tokens=tokens) for i, tokens in enumerate([3, 2, 3])]
    asked = {0: 3, 1: 3}  # the last one was free to stop
    results = summarize(records, duration_s=2.0, requested=RequestedLengths(output_tokens=asked))
    assert results["wrong_length"] == {
        "count": 1,
        "samples": ["request 1: asked 3 tokens, got 2"],
    }
    assert (results["failed"], results["failures"]) == (0, [])
    strict = summarize(
        records,
        duration_s=2.0,
        requested=RequestedLengths(output_tokens=asked),
        wrong_length_fails=True,
    )
    assert (strict["completed"], strict["failed"]) == (2, 1)
    assert strict["error_rate"] == pytest.approx(1 / 3)
    assert strict["failures"][0]["outcome"] == "wrong_length"
    assert strict["total_output_tokens"] == 6
    assert summarize(records, duration_s=2.0)["wrong_length"] is None


def test_token_counts_are_compared_where_both_are_there():
    records = [
        record(0, counted_output_tokens=3),
        record(1, counted_output_tokens=5),
        record(2),
        record(3, counted_output_tokens=9, outcome="timeout"),
    ]
    assert summarize(records, duration_s=2.0)["token_check"] == {
        "requests": 2,
        "server_tokens": 6,
        "counted_tokens": 8,
        "largest_difference": 2,
        "equal_fraction": 0.5,
    }
    assert summarize([record()], duration_s=2.0)["token_check"] is None
