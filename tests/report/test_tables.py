from __future__ import annotations

import io

import msgspec
import pytest
import report_records as factory
from report_golden import assert_golden
from rich.console import Console

from servetune.metrics import parse_constraints
from servetune.report import (
    comparison_table,
    console,
    picks,
    ranking_table,
    recommendation_text,
    simulated_notice,
)
from servetune.store.schema import TrialConfig, record_from_json

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def printed(renderable, *, width=None):
    file = io.StringIO()
    out = console(file) if width is None else Console(file=file, width=width)
    out.print(renderable)
    return file.getvalue()


def test_the_ranking_reads_as_before():
    text = printed(ranking_table(factory.sweep(), LIMITS))
    assert_golden("ranking.txt", "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def test_into_a_file_goes_no_colour_and_no_broken_line(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = printed(ranking_table(factory.sweep(), LIMITS))
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 160
    assert "…" not in text


def test_on_a_terminal_no_color_holds(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    file = Terminal()
    console(file).print(ranking_table(factory.sweep(), LIMITS))
    assert "\x1b[3" not in file.getvalue().replace("\x1b[3m", "")  # italics are no colour


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_narrow_terminal_shows_fewer_columns_and_says_so(width):
    text = printed(ranking_table(factory.sweep(), LIMITS), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert " not fit here; the dashboard shows all" in text
    ranking = text.split("Trials in order of merit")[1].split("Failed trials")[0]
    assert ranking.count(" 2 of 2") + ranking.count(" 1 of 2") + ranking.count(" 0 of 2") == 25


def test_constraints_are_reported_in_words_and_not_by_colour_alone():
    text = printed(ranking_table(factory.sweep(), LIMITS))
    assert "✓ meets all 2" in text
    assert "✗ misses E2E p99, request_throughput" in text


def test_a_limit_on_what_was_not_measured_is_not_met():
    text = printed(ranking_table([factory.record()], parse_constraints("goodput>=1")))
    assert "✗ goodput not measured" in text


def test_all_simulated_is_one_clear_line_and_mixed_is_a_column():
    assert simulated_notice(factory.sweep()) == (
        "SIMULATED: all 27 trials were simulated, no model ran"
    )
    both = [*factory.sweep(), *factory.measured()]
    assert simulated_notice(both).startswith("SIMULATED: 27 of 30")
    assert " measured" in printed(ranking_table(both, LIMITS))
    assert simulated_notice(factory.measured()) == ""
    assert "SIMULATED" not in printed(ranking_table(factory.measured(), LIMITS))


def test_a_hurried_server_is_reported_with_what_that_does_to_the_figures():
    hurried = [
        msgspec.structs.replace(each, results=each.results | {"simulated_speed": 50.0})
        for each in (factory.record(), factory.record(users=64))
    ]
    assert simulated_notice(hurried) == (
        "SIMULATED: all 2 trials were simulated, no model ran; at 50 times real time: latencies "
        "and costs are 1/50 of the engine's, rates 50 times"
    )
    in_time = msgspec.structs.replace(hurried[0], results=factory.record().results)
    assert "real time" not in simulated_notice([in_time])


def test_picks_that_miss_are_said_to():
    records = factory.sweep(failures=False)
    said = "no trial meets every constraint: each pick is the nearest miss"
    assert said in printed(ranking_table(records, parse_constraints("itl<=1ms")))
    assert said not in printed(ranking_table(records, parse_constraints("itl<=1s")))


def test_failed_trials_are_listed_with_their_reason():
    text = printed(ranking_table(factory.sweep(), LIMITS))
    assert "Failed trials: 2" in text
    assert text.count("the server ran out of GPU memory while it loaded") == 2


def test_failed_requests_are_a_column_only_where_there_are_some():
    assert "requests" not in printed(ranking_table(factory.sweep(), LIMITS)).replace(
        "request_throughput", ""
    )
    text = printed(ranking_table(factory.dirty_sweep(), LIMITS))
    assert text.count("14/30, 47% failed") == 3
    assert "2/1000" in text
    assert max(len(line) for line in text.splitlines()) <= 160
    assert "left out of the picks: 3 trials with more than 1% failed requests" in text


@pytest.mark.parametrize("width", [None, 100])
def test_a_pick_with_failed_requests_says_so(width):
    records = [factory.failing(factory.record(4, 8192, users), 14) for users in (32, 64)]
    told = printed(ranking_table(records, ()), width=width)
    before_the_ranking = told.split("Trials in order of merit")[0]
    assert before_the_ranking.count("47% failed") == 3
    text = recommendation_text(picks(records, ())["throughput"])
    assert text.splitlines()[0].endswith("  (47% failed)")
    assert "  - 14 of 30 requests failed (47%): its figures are of the others" in text


def test_missing_values_are_dashes():
    foreign = [record_from_json(factory.foreign_json(users)) for users in (32, 64)]
    text = printed(ranking_table(foreign, LIMITS))
    assert "–" in text
    assert "nan" not in text.lower()


def test_names_with_brackets_are_text_and_not_markup():
    record = factory.record()
    odd = [
        msgspec.structs.replace(
            record, config=TrialConfig(server_args={"x": value}, client_args={})
        )
        for value in ("[/bold]", "[red]a")
    ]
    assert "[/bold]" in printed(ranking_table(odd, ()))


def test_an_empty_journal_has_a_sentence():
    assert printed(ranking_table([], LIMITS)).strip() == "no trials in this journal"


def test_a_run_without_any_result_still_shows_why():
    failed = [r for r in factory.sweep() if r.status == "failed"]
    text = printed(ranking_table(failed, LIMITS))
    assert "all trials failed, so there is nothing to rank" in text
    assert "Picks" not in text
    assert "out_of_memory" in text


def test_the_comparison_shows_nine_quantities_with_the_error():
    measured = [record_from_json(factory.foreign_json(32))]
    fast = [
        msgspec.structs.replace(r, results=factory.results(4, 8192, 32, scale=1.25))
        for r in [factory.record(4, 8192, 32)]
    ]
    text = printed(comparison_table(fast, measured))
    assert text.count("%") == 9
    assert "+25.0%" in text
    for name in ("output throughput", "mean TTFT", "p99 ITL", "mean TPOT", "p99 E2E"):
        assert name in text


def test_a_comparison_without_a_match_says_so_and_tells_what_is_left_out():
    stranger = record_from_json(factory.foreign_json(33))
    known = record_from_json(factory.foreign_json(32))
    assert "no measured record has a configuration" in printed(
        comparison_table(factory.sweep(), [stranger])
    )
    assert "1 measured record(s) match no single" in printed(
        comparison_table(factory.sweep(), [stranger, known])
    )


def test_a_recommendation_is_plain_text():
    text = recommendation_text(picks(factory.sweep(), LIMITS)["throughput"])
    assert text.startswith("Throughput pick: TP4 · batched tokens 16384 · concurrency 64\n  - ")
    nearest = recommendation_text(picks(factory.sweep(), parse_constraints("ttft<1ms"))["cost"])
    assert "(misses a constraint)" in nearest.splitlines()[0]
    assert recommendation_text(picks([], LIMITS)["cost"]).startswith(
        "Cheapest per million tokens: none"
    )


def test_a_long_list_of_trials_is_cut_at_twenty_and_counted():
    records = [
        msgspec.structs.replace(factory.record(users=users), key=f"k{users}")
        for users in range(1, 301)
    ]
    text = printed(ranking_table(records, ()))
    assert "280 further trials are in the dashboard and the summary" in text
    assert " 20 " in text
    assert "\n 21 " not in text
