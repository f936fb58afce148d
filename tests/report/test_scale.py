"""Long runs: what a page holds when not all fit, and what is made without holding all."""

import json
from importlib import import_module

import msgspec
import pytest
import report_records as factory

from servetune import api
from servetune.api.light import Lightener
from servetune.api.shared_options import GoalOptions
from servetune.api.trials import pick_from
from servetune.metrics import parse_constraints
from servetune.report import (
    dashboard_html,
    page_data_in,
    picks,
    selection,
    summary_json,
    summary_pieces,
)
from servetune.store import Journal

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def many(count):
    """The sweep again and again, each time with another block size."""
    rows = factory.sweep()
    for index in range(count):
        row = rows[index % len(rows)]
        server_args = {**row.config.server_args, "block_size": index // len(rows)}
        config = msgspec.structs.replace(row.config, server_args=server_args)
        yield msgspec.structs.replace(row, key=f"{index:016x}", config=config)


def data_of(page):
    return page_data_in(page)


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(import_module("servetune.report.page_data"), "MOST_TRIALS", 40)


@pytest.mark.slow
def test_a_page_stays_below_ten_megabytes_and_says_what_it_leaves_out(monkeypatch):
    records = list(many(4000))
    page = dashboard_html(records, LIMITS, title="t")
    assert len(page) < 10e6
    assert len(data_of(page)["trials"]) == 4000

    monkeypatch.setattr(import_module("servetune.report.page_data"), "MOST_BYTES", 2_000_000)
    page = dashboard_html(records, LIMITS, title="t")
    trials = data_of(page)["trials"]
    assert 500 < len(trials) < 1000
    assert data_of(page)["header"]["trial_count"] == 4000
    assert "3,500 further trials are in the summary" in page


def test_a_page_holds_its_picks_the_front_and_some_of_all_kinds(small_pages):
    records = list(many(300))
    data = data_of(dashboard_html(records, LIMITS, title="t"))
    keys = [trial["key"] for trial in data["trials"]]
    assert len(keys) == 40
    assert keys == sorted(keys)  # in the order of the run
    assert [trial["id"] for trial in data["trials"]] == list(range(40))
    for name, pick in picks(records, LIMITS).items():
        assert pick.chosen.key in keys, name
        assert pick.runner_up.key in keys, name
    assert {trial["status"] for trial in data["trials"]} == {"ok", "failed"}
    assert {trial["client"]["max_concurrency"] for trial in data["trials"]} == {
        record.config.client_args["max_concurrency"] for record in factory.sweep()
    }


def test_a_page_with_room_holds_all_in_their_order():
    records = factory.sweep()
    trials = data_of(dashboard_html(records, LIMITS, title="t"))["trials"]
    assert [trial["key"] for trial in trials] == [record.key for record in records]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 27])
def test_every_trial_has_its_turn_once(count):
    records = factory.sweep()[:count]
    order = list(selection.in_order_of_interest(records, (), picks(records, ()), ()))
    assert sorted(order) == list(range(count))


def test_a_sample_is_even_at_every_length():
    order = list(selection._evenly(list(range(1000))))
    assert sorted(order) == list(range(1000))
    for taken in (8, 64, 500):
        gaps = [b - a for a, b in zip(*[sorted(order[:taken])[i:] for i in (0, 1)], strict=False)]
        assert max(gaps) <= 2 * 1024 / taken


def test_a_summary_in_pieces_is_the_summary():
    records = factory.sweep()
    whole = json.loads(summary_json(records, LIMITS))
    assert len(list(summary_pieces(records, LIMITS))) == len(records) + 2
    assert whole["test_results"] == [json.loads(record.to_json()) for record in records]
    assert json.loads(summary_json([], ()))["test_results"] == []


@pytest.mark.parametrize(
    "constraints", [None, "e2e_latency:p97<=50s", "ttft:p50<=800ms;error_rate<=0.01"]
)
@pytest.mark.parametrize("objective", ["throughput", "latency", "cost"])
def test_a_recommendation_is_the_same_out_of_a_stream(tmp_path, constraints, objective):
    path = tmp_path / "q.jsonl"
    with Journal(path) as journal:
        for record in [*factory.dirty_sweep(), *factory.dirty_sweep()[:3]]:
            limits = [limit.to_json() for limit in LIMITS]
            journal.append(msgspec.structs.replace(record, constraints=limits))
    streamed = api.recommend(path, objective=objective, constraints=constraints)
    whole = pick_from(api.read(path, constraints), objective)
    assert msgspec.to_builtins(streamed.record) == msgspec.to_builtins(whole.record)
    assert (streamed.feasible, streamed.choice.reasons) == (whole.feasible, whole.choice.reasons)
    assert streamed.constraints == whole.constraints


def test_what_is_held_for_a_recommendation_is_small():
    light = Lightener(GoalOptions(constraints="ttft:p97<=1s").goal)
    kept = [light(record) for record in many(200)]
    assert max(len(record.to_json()) for record in kept) < 1000
    assert sum(len(record.to_json()) for record in many(200)) > 4 * sum(
        len(msgspec.json.encode(record.results)) for record in kept
    )
    loads = {id(record.config.client_args) for record in kept}
    assert len(loads) < 20  # equal settings are held once
