"""Tiny runs computed by hand, where the tools' definitions disagree."""

import pytest
from msgspec.structs import replace

from servetune.errors import UnknownName
from servetune.metrics import Record, compat_results, parse_constraints, summarize


def run():
    """One answer of 5 tokens in three pieces, on a new connection, and one that broke off."""
    good = Record(
        index=0,
        input_tokens=20,
        output_tokens=5,
        due_s=0.0,
        connect_s=0.1,
        sent_s=0.5,
        chunk_times_s=(1.0, 1.45, 1.5),
        chunk_tokens=(1, 3, 1),
        end_s=1.6,
    )
    broken = Record(
        index=1,
        input_tokens=10,
        output_tokens=2,
        due_s=0.0,
        sent_s=0.4,
        chunk_times_s=(0.8, 1.0),
        end_s=2.4,
        outcome="truncated",
    )
    return [good, broken]


def test_ours_counts_from_due_by_token_and_takes_a_broken_stream_for_a_failure():
    results = summarize(run(), duration_s=2.4)
    assert results["mean_ttft_ms"] == pytest.approx(1000)
    assert results["mean_tpot_ms"] == pytest.approx(125)
    assert results["mean_itl_ms"] == pytest.approx(125)  # 3 x 150 and 50
    assert results["median_itl_ms"] == pytest.approx(150)
    assert (results["completed"], results["failed"]) == (1, 1)


def test_vllm_counts_from_before_connecting_by_chunk_and_takes_a_broken_stream_for_good():
    results = compat_results(
        run(), "vllm", limits=parse_constraints("ttft<=500ms;e2e_latency<=1.5s")
    )
    assert (results["completed"], results["failed"]) == (2, 0)
    assert results["duration"] == pytest.approx(2.0)
    assert results["mean_ttft_ms"] == pytest.approx((600 + 400) / 2)
    assert results["mean_e2el_ms"] == pytest.approx((1200 + 2000) / 2)
    assert results["mean_tpot_ms"] == pytest.approx((600 / 4 + 1600 / 1) / 2)
    # Chunks 450, 50 and 200 apart, and a role chunk before each answer.
    assert results["mean_itl_ms"] == pytest.approx(700 / 5)
    without_roles = compat_results(run(), "vllm", role_chunk=False)
    assert without_roles["mean_itl_ms"] == pytest.approx(700 / 3)
    assert results["output_throughput"] == pytest.approx(7 / 2.0)
    assert results["total_token_throughput"] == pytest.approx(37 / 2.0)
    assert results["request_goodput"] == 0.0
    assert results["max_concurrent_requests"] == 2
    # Seconds from 0.4 s: chunks at 0.8, 1.0, 1.0 and a role chunk twice; then 1.45 and 1.5.
    assert results["max_output_tokens_per_s"] == 5


def test_aiperf_ends_with_the_last_content_and_calls_the_mean_gap_itl():
    results = compat_results(run(), "aiperf", limits=parse_constraints("ttft<=700ms"))
    assert results["request_latency"]["avg"] == pytest.approx(1100)
    assert results["time_to_first_token"]["avg"] == pytest.approx(600)
    assert results["inter_token_latency"]["avg"] == pytest.approx(500 / 4)
    assert results["inter_chunk_latency"]["avg"] == pytest.approx(250)
    assert results["inter_chunk_latency"]["count"] == 2
    assert results["time_to_second_token"]["avg"] == pytest.approx(450)
    assert results["output_token_throughput_per_user"]["avg"] == pytest.approx(8)
    assert results["benchmark_duration"] == {"unit": "sec", "avg": pytest.approx(1.1)}
    assert results["output_token_throughput"]["avg"] == pytest.approx(5 / 1.1)
    assert results["request_count"]["avg"] == 1
    assert results["error_request_count"]["avg"] == 1
    assert results["good_request_count"]["avg"] == 1


def test_aiperf_counts_tokens_by_itself():
    counted = [replace(run()[0], counted_output_tokens=11)]
    results = compat_results(counted, "aiperf")
    assert results["output_sequence_length"]["avg"] == 11
    assert results["inter_token_latency"]["avg"] == pytest.approx(500 / 10)


def test_guidellm_has_the_first_token_in_its_tpot_and_counts_from_sent():
    results = compat_results(run(), "guidellm")

    def mean(name):
        return results[name]["successful"]["mean"]

    assert mean("time_to_first_token_ms") == pytest.approx(500)
    assert mean("time_per_output_token_ms") == pytest.approx(1000 / 5)
    assert mean("inter_token_latency_ms") == pytest.approx(500 / 4)
    assert mean("request_latency") == pytest.approx(1.1)
    assert results["request_totals"] == {
        "successful": 1,
        "incomplete": 0,
        "errored": 1,
        "total": 2,
    }


def test_guidellm_weighs_requests_by_their_tokens():
    short, long = (
        Record(
            index=index,
            input_tokens=1,
            output_tokens=tokens,
            due_s=0.0,
            sent_s=0.0,
            chunk_times_s=(1.0, last_s),
            chunk_tokens=(1, tokens - 1),
            end_s=last_s,
        )
        for index, (tokens, last_s) in enumerate([(2, 2.0), (10, 10.0)])
    )
    latency = compat_results([short, long], "guidellm")["inter_token_latency_ms"]["successful"]
    assert latency["count"] == 10
    assert latency["mean"] == pytest.approx(1000)
    tpot = compat_results([short, long], "guidellm")["time_per_output_token_ms"]["successful"]
    assert tpot["mean"] == pytest.approx((2 * 1000 + 10 * 1000) / 12)
    assert tpot["percentiles"]["p50"] == pytest.approx(1000)


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm"])
def test_a_run_without_an_answer_is_no_error(tool):
    refused = Record(
        index=0,
        input_tokens=1,
        output_tokens=0,
        due_s=0.0,
        sent_s=0.0,
        end_s=0.1,
        outcome="refused",
    )
    assert compat_results([refused], tool)
    assert compat_results([], tool)


def test_an_unknown_tool_is_refused_by_name():
    with pytest.raises(UnknownName, match="locust"):
        compat_results([], "locust")
