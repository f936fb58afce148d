"""Two runs of the same load beside each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.report import console
from servetune.report.baseline import baseline_table, compare_with_baseline

BASE = {
    "max_concurrency": 32,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 51200,
    "total_output_tokens": 6400,
    "output_throughput": 1000.0,
    "mean_ttft_ms": 100.0,
    "p99_ttft_ms": 300.0,
    "mean_e2e_latency_ms": 900.0,
    "intervals": {
        "output_throughput": [980.0, 1020.0],
        "mean_ttft_ms": [95.0, 105.0],
        "p99_ttft_ms": [250.0, None],
        "mean_e2e_latency_ms": [880.0, 920.0],
    },
}


def run(**changed):
    intervals = dict(BASE["intervals"])
    results = {**BASE, **changed}
    for field, ends in intervals.items():
        if field in changed:
            was, now = BASE[field], changed[field]
            intervals[field] = [None if end is None else end * now / was for end in ends]
    return {**results, "intervals": intervals}


def verdicts(compared):
    return {row.field: row.verdict for row in compared.rows}


def test_the_same_run_reproduces_itself():
    compared = compare_with_baseline(BASE, BASE)
    assert {f: v for f, v in verdicts(compared).items() if v != "same"} == {
        "p99_ttft_ms": "unknown"
    }
    assert compared.reproduced
    assert not compared.missed
    assert compared.words == ("reproduced; too few independent requests to compare p99 TTFT (+0%)")


def test_intervals_that_overlap_are_the_same_and_others_have_a_direction():
    compared = compare_with_baseline(BASE, run(output_throughput=800.0, mean_ttft_ms=108.0))
    assert verdicts(compared)["output_throughput"] == "worse"
    assert verdicts(compared)["mean_ttft_ms"] == "unknown"  # 8% ± 7%, one of four rows
    assert compared.words == "not reproduced: Output is worse"
    assert compared.regressed
    better = compare_with_baseline(BASE, run(mean_ttft_ms=50.0))
    assert better.words == "not reproduced: mean TTFT is better"
    assert not better.reproduced
    assert not better.missed


def test_a_small_difference_is_close_however_sure_both_runs_are():
    exact = {**BASE, "intervals": {"output_throughput": [999.9, 1000.1]}}
    slower = {**exact, "output_throughput": 970.0, "intervals": {"output_throughput": [969, 971]}}
    assert verdicts(compare_with_baseline(exact, slower))["output_throughput"] == "close"
    assert compare_with_baseline(exact, slower).reproduced
    assert (
        verdicts(compare_with_baseline(exact, slower, tolerance=0.02))["output_throughput"]
        == "worse"
    )


def test_an_older_record_has_a_band_instead_of_an_interval():
    old = {name: value for name, value in BASE.items() if name != "intervals"}
    assert (
        verdicts(compare_with_baseline(old, run(output_throughput=960.0)))["output_throughput"]
        == "same"
    )
    assert (
        verdicts(compare_with_baseline(old, run(output_throughput=880.0)))["output_throughput"]
        == "worse"
    )


def test_too_few_requests_cannot_tell_a_tail():
    far = run(p99_ttft_ms=600.0)
    assert verdicts(compare_with_baseline(BASE, far))["p99_ttft_ms"] == "unknown"


def test_an_interval_that_overlaps_with_anything_does_not_say_that_it_is_the_same():
    vague = {**BASE, "intervals": {**BASE["intervals"], "output_throughput": [-402.0, 1627.0]}}
    assert (
        verdicts(compare_with_baseline(BASE, {**vague, "output_throughput": 610.0}))[
            "output_throughput"
        ]
        == "unknown"
    )
    # Nor where it hardly differs: what an interval of twice the figure holds was not shown.
    assert verdicts(compare_with_baseline(BASE, vague))["output_throughput"] == "unknown"
    for low, high, verdict in ((905.0, 1105.0, "unknown"), (915.0, 1090.0, "same")):
        edge = {**BASE, "intervals": {**BASE["intervals"], "output_throughput": [low, high]}}
        assert verdicts(compare_with_baseline(BASE, edge))["output_throughput"] == verdict
    far = run(output_throughput=100.0)
    far["intervals"]["output_throughput"] = [20.0, 180.0]  # vague, and far away all the same
    assert verdicts(compare_with_baseline(BASE, far))["output_throughput"] == "worse"


def test_failures_are_shares_with_intervals_of_their_own():
    failing = run(completed=70, failed=30)
    assert verdicts(compare_with_baseline(BASE, failing))["error_rate"] == "worse"
    assert verdicts(compare_with_baseline(BASE, run()))["error_rate"] == "same"
    one = run(completed=99, failed=1)  # of which the interval reaches from 0.2% to 5%
    assert verdicts(compare_with_baseline(BASE, one))["error_rate"] == "unknown"
    many, more = run(completed=9000, failed=1000), run(completed=8990, failed=1010)
    assert verdicts(compare_with_baseline(many, more))["error_rate"] == "same"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_concurrency": 64}, "concurrency 64 was 32"),
        ({"total_input_tokens": 102400}, "prompts have 1024 tokens on average, and had 512"),
        ({"total_output_tokens": 3200}, "answers have 32 tokens on average, and had 64"),
    ],
)
def test_another_load_is_no_comparison(changed, words):
    compared = compare_with_baseline(BASE, run(**changed))
    assert words in compared.words
    assert compared.missed
    assert not compared.reproduced
    assert not compared.concluded


def test_runs_that_tell_of_no_rate_or_latency_are_not_called_reproduced():
    vague = {**BASE, "intervals": {"mean_ttft_ms": [1.0, 1000.0]}}
    compared = compare_with_baseline(vague, {**vague, "mean_ttft_ms": 150.0})
    assert verdicts(compared)["error_rate"] == "same"
    assert not compared.reproduced
    assert not compared.concluded
    assert not compared.missed  # nor is it shown to be missed
    assert compared.words.startswith("cannot tell whether it is reproduced: too few")
    assert "mean TTFT (+50%)" in compared.words


def test_more_failures_alone_are_a_regression_that_was_told():
    vague = {**BASE, "intervals": {"mean_ttft_ms": [1.0, 1000.0]}}
    compared = compare_with_baseline(vague, {**vague, "completed": 40, "failed": 60,
                                             "total_input_tokens": 20480,
                                             "total_output_tokens": 2560})  # fmt: skip
    assert compared.words == "not reproduced: Errors is worse"
    assert compared.concluded
    assert not compared.reproduced
    gone = compare_with_baseline(BASE, {"completed": 0, "failed": 100, "max_concurrency": 32})
    assert gone.regressed


def test_nothing_in_common_is_a_miss():
    compared = compare_with_baseline({}, BASE)
    assert compared.words == "nothing can be compared"
    assert not compared.concluded
    assert compared.missed


@given(
    factor=st.floats(0.2, 5.0),
    field=st.sampled_from(["output_throughput", "mean_ttft_ms", "mean_e2e_latency_ms"]),
)
@settings(max_examples=150, deadline=None)
def test_who_is_worse_one_way_is_better_the_other_way(factor, field):
    other = run(**{field: BASE[field] * factor})
    turned = {"worse": "better", "better": "worse", "same": "same", "close": "close"}
    turned["unknown"] = "unknown"
    there = verdicts(compare_with_baseline(BASE, other))[field]
    back = verdicts(compare_with_baseline(other, BASE))[field]
    assert back == turned[there] or {there, back} == {"close", "worse"} or "better" in {there, back}
    if there == "worse":
        assert factor < 1 if field == "output_throughput" else factor > 1


def test_the_table_names_the_verdict_and_the_differences():
    compared = compare_with_baseline(
        BASE, run(output_throughput=500.0), key="abc", differences=["x is 1"]
    )
    screen = console()
    with screen.capture() as shown:
        screen.print(baseline_table(compared))
    assert "abc" in shown.get()
    assert "-50.0%" in shown.get()
    assert "x is 1" in shown.get()
    told = compared.to_json()
    assert told["regressed"] is True
    assert told["verdict"] == "not reproduced: Output is worse"
