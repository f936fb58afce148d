import numpy as np
import pytest

from servetune.metrics import Record, RequestedLengths, parse_constraints, summarize
from servetune.metrics.latency import itl_gaps_s
from servetune.metrics.summary import failures_of


def record(
    index=0, *, due_s=0.0, sent_s=None, times=(1.0, 1.1, 1.3), tokens=(), outcome="ok", **more
):
    fields = {
        "index": index,
        "input_tokens": 10,
        "due_s": due_s,
        "sent_s": due_s if sent_s is None else sent_s,
        "chunk_times_s": tuple(times),
        "chunk_tokens": tuple(tokens),
        "output_tokens": sum(tokens) or len(times),
        "end_s": times[-1] if times else due_s,
        "outcome": outcome,
    }
    return Record(**{**fields, **more})


def test_latencies_count_from_due_and_not_from_sent():
    results = summarize([record(due_s=0.5, sent_s=0.8)], duration_s=2.0)
    assert results["mean_ttft_ms"] == pytest.approx(500)
    assert results["mean_ttft_from_sent_ms"] == pytest.approx(200)
    assert results["mean_e2e_latency_ms"] == pytest.approx(800)
    assert results["mean_wait_before_send_ms"] == pytest.approx(300)


def test_tpot_is_the_time_after_the_first_token_over_the_other_tokens():
    results = summarize([record(times=(1.0, 1.1, 1.3))], duration_s=2.0)
    assert results["mean_tpot_ms"] == pytest.approx(150)
    assert results["mean_itl_ms"] == pytest.approx(150)
    assert results["quantiles"]["itl_ms"]["50"] == pytest.approx(150)


def test_a_piece_of_several_tokens_counts_as_that_many_gaps():
    gaps_s = itl_gaps_s([record(times=(1.0, 1.2, 1.3), tokens=(1, 4, 1))])
    np.testing.assert_allclose(gaps_s, [0.05, 0.05, 0.05, 0.05, 0.1])
    assert gaps_s.sum() == pytest.approx(0.3)


def test_failed_requests_are_counted_with_their_reasons_and_never_dropped():
    failed = [record(i, times=(), outcome="timeout", detail="after 5 s") for i in (1, 2)]
    results = summarize([record(), *failed], duration_s=2.0)
    assert (results["completed"], results["failed"]) == (1, 2)
    assert results["error_rate"] == pytest.approx(2 / 3)
    assert results["failures"] == [
        {"outcome": "timeout", "count": 2, "sample": "after 5 s", "samples": ["after 5 s"]}
    ]
    assert results["request_throughput"] == pytest.approx(0.5)


def test_nothing_answered_gives_no_number_rather_than_zero():
    results = summarize([record(times=(), outcome="refused")], duration_s=1.0)
    assert results["mean_ttft_ms"] is None
    assert results["p99_itl_ms"] is None
    assert results["error_rate"] == 1.0


def test_littles_law_ties_concurrency_to_throughput_and_latency():
    records = [record(i, due_s=i * 0.1, times=(i * 0.1 + 0.2, i * 0.1 + 0.7)) for i in range(50)]
    results = summarize(records, duration_s=5.6)
    expected = results["request_throughput"] * results["mean_e2e_latency_ms"] / 1000
    assert results["concurrency"] == pytest.approx(expected, rel=1e-12)


def test_goodput_judges_each_request_by_itself():
    fast, slow = record(0, times=(0.1, 0.2)), record(1, times=(5.0, 5.1))
    results = summarize(
        [fast, slow], duration_s=2.0, per_request_limits=parse_constraints("ttft<=1s")
    )
    assert results["goodput"] == pytest.approx(0.5)
    assert summarize([fast], duration_s=2.0)["goodput"] is None


def test_asked_percentiles_are_exact():
    records = [record(i, times=(i / 1000, i / 1000 + 1)) for i in range(1, 1001)]
    results = summarize(records, duration_s=1.0, further_percentiles=(97.5,))
    expected = np.percentile(np.arange(1, 1001), 97.5)
    assert results["quantiles"]["ttft_ms"]["97.5"] == pytest.approx(expected)


def test_a_request_is_good_only_where_it_meets_every_limit():
    late = record(times=(2.0, 2.1, 2.2))  # TTFT 2 s, TPOT 0.1 s
    slow = record(1, times=(1.0, 2.0, 3.0))  # TTFT 1 s, TPOT 1 s
    good = record(2, times=(1.0, 1.1, 1.2))
    for limits in ("ttft<=1.5s;tpot<=0.5s", "tpot<=0.5s;ttft<=1.5s"):
        results = summarize(
            [late, slow, good], duration_s=2.0, per_request_limits=parse_constraints(limits)
        )
        assert results["goodput"] == pytest.approx(0.5)
        assert results["goodput_fraction"] == pytest.approx(1 / 3)
    on_the_limit = summarize(
        [good], duration_s=2.0, per_request_limits=parse_constraints("ttft<=1s")
    )
    assert on_the_limit["goodput"] == pytest.approx(0.5)


def test_three_samples_of_wrong_lengths_are_kept():
    requested = dict.fromkeys(range(5), 99)
    results = summarize(
        [record(i) for i in range(5)],
        duration_s=2.0,
        requested=RequestedLengths(output_tokens=requested),
    )
    assert results["wrong_length"]["count"] == 5
    assert len(results["wrong_length"]["samples"]) == 3


def test_failures_of_one_kind_are_told_apart_by_their_http_status():
    def refused(index, status):
        return Record(
            index=index, input_tokens=1, output_tokens=0, due_s=0.0, sent_s=0.0, end_s=0.1,
            outcome="http_status", status=status, detail=f"says {status}",
        )  # fmt: skip

    found = failures_of([refused(0, 503), refused(1, 429), refused(2, 429)])
    assert [(each["status"], each["count"], each["sample"]) for each in found] == [
        (429, 2, "says 429"),
        (503, 1, "says 503"),
    ]
