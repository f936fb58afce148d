"""How sure a pick is, in summary and page, and what was predicted beside what was measured."""

import json
import re

import msgspec
import pytest
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import (
    dashboard_html,
    pairs_within,
    picks,
    quantity_errors,
    search_in_summary,
    summary_pieces,
)
from servetune.search import PickDoubt, Rival, SearchSummary
from servetune.store import PredictionInterval

LIMITS = parse_constraints("e2e_latency:p99<=60s")
INTERVAL = PredictionInterval(
    low_factor=0.8, high_factor=1.25, ttft_low_factor=0.5, ttft_high_factor=2.0
)


def search_of(records, *, best=0.78, figures=None):
    key = picks(records, LIMITS)["throughput"].chosen.key
    other = next(record.key for record in records if record.key != key)
    doubt = PickDoubt(
        key=key,
        label="TP=4",
        objective="throughput",
        simulated=True,
        margin=0.02,
        best=best,
        regret=0.01,
        rivals=(Rival(key=other, label="TP=2", best=0.2),),
        settles="TP=2",
    )
    return SearchSummary(
        strategy="guided",
        seed=0,
        trial_count=len(records),
        total_count=40,
        stopped="12 were to be run (--max-trials)",
        figures=figures or {},
        doubt=doubt,
    )


def data_of(page):
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(raw)


def measured(**factors):
    predicted = factory.results(4, 8192, 32)
    actual = {**predicted, **{name: predicted[name] * by for name, by in factors.items()}}
    record = factory.record(simulated=False, predicted=predicted)
    return msgspec.structs.replace(record, results=actual, interval=INTERVAL)


def test_a_summary_says_what_the_search_did_and_it_is_read_back():
    records = factory.sweep()
    search = search_of(records)
    text = "".join(summary_pieces(records, LIMITS, search=search))
    assert json.loads(text)["search"]["doubt"]["best"] == 0.78
    assert search_in_summary(text) == search
    assert search_in_summary(text[: text.index('"test_results"') + 200]) == search


def test_a_summary_of_an_earlier_state_of_the_journal_is_not_taken():
    records = factory.sweep()
    text = "".join(summary_pieces(records, LIMITS, search=search_of(records)))
    assert search_in_summary(text, len(records)) is not None
    assert search_in_summary(text, len(records) + 1) is None


@pytest.mark.parametrize(
    "text", ["{}", "[]", "no JSON", '{"search": {"strategy": "of tomorrow"}}', '{"metadata": 3}']
)
def test_of_a_file_that_says_nothing_of_a_search_nothing_is_invented(text):
    assert search_in_summary(text) is None


def test_numbers_that_json_has_not_are_left_out_of_a_summary():
    records = factory.sweep()
    search = search_of(records, figures={"regret": float("nan"), "confidence": 0.5})
    text = "".join(summary_pieces(records, LIMITS, search=search))
    assert search_in_summary(text).figures == {"confidence": 0.5}


@pytest.mark.parametrize(("best", "settled"), [(0.78, True), (0.5, True), (0.49, False)])
def test_the_page_has_the_doubt_in_the_words_of_the_command_line(best, settled):
    records = factory.sweep()
    search = search_of(records, best=best)
    page = dashboard_html(records, LIMITS, title="t", search=search)
    doubt = data_of(page)["search"]["doubt"]
    assert doubt["settled"] is settled
    assert doubt["verdict"] == (
        f"within 2% of the best with a probability of {best:.0%} by predictions alone"
    )
    assert doubt["open"] == ["may be better: TP=2 (20%)", "measuring TP=2 would settle most"]
    assert f"TP=4 is {doubt['verdict']}" in page[: page.index('id="data"')]  # without scripts


def test_a_measurement_is_inside_or_outside_of_what_was_predicted():
    [pair] = pairs_within([measured(mean_ttft_ms=1.9, mean_tpot_ms=1.3)])
    gaps = {(gap.quantity, gap.statistic): gap for gap in quantity_errors(pair)}
    assert gaps["ttft", "mean"].inside is True
    assert gaps["tpot", "mean"].inside is False
    assert gaps["output_throughput", "mean"].inside is True
    assert gaps["output_throughput", "mean"].low == pytest.approx(
        pair.predicted["output_throughput"] / 1.25
    )
    assert gaps["ttft", "p99"].inside is None  # the factors are of means


def test_a_rate_has_no_interval_where_requests_arrive_at_one():
    record = measured()
    record = msgspec.structs.replace(record, results={**record.results, "request_rate": 4.0})
    [pair] = pairs_within([record])
    rates = [gap.inside for gap in quantity_errors(pair) if "throughput" in gap.quantity]
    assert rates == [None, None]
