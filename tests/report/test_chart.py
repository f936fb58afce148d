"""The chart in a terminal: every trial at its place, front, pick and limits without colour."""

import io

import msgspec
import pytest
import report_records as factory
from rich.console import Console

from servetune.metrics import parse_constraints
from servetune.report import front_chart, picks
from servetune.search import parse_objectives


def drawn(records, limits="", *, width=80, objectives="", colour=None):
    constraints = parse_constraints(limits) if limits else ()
    chosen = picks(records, constraints, parse_objectives(objectives) if objectives else ())
    text = io.StringIO()
    terminal = Console(file=text, width=width, color_system=colour, force_terminal=bool(colour))
    terminal.print(front_chart(records, constraints, chosen))
    return text.getvalue()


def cells(text):
    """Lines of the chart itself, without the values beside them."""
    return [line.split("│", 1)[1] for line in text.splitlines() if "│" in line]


def test_each_server_configuration_has_a_letter_and_the_front_capitals():
    records = factory.sweep(failures=False)
    by_place = [
        msgspec.structs.replace(
            record,
            results=record.results
            | {
                "output_throughput": 100.0 * (place + 1),
                "p99_e2e_latency_ms": 1000.0 * (place + 1),
            },
        )
        for place, record in enumerate(records[::9])
    ]
    marks = "".join(cells(drawn(by_place)))
    assert {mark for mark in marks if mark.isalpha()} == {"A", "B", "C"}, "each is the best at once"
    worse = [
        msgspec.structs.replace(
            by_place[1], key="worse",
            results=by_place[1].results | {"p99_e2e_latency_ms": 2500.0},
        )
    ]  # fmt: skip
    marks = "".join(cells(drawn([*by_place, *worse])))
    assert sorted(mark for mark in marks if mark.isalpha()) == ["A", "B", "C", "b"]


def test_it_says_all_without_colour_in_eighty_columns():
    text = drawn(factory.sweep(), "e2e_latency:p99<=60s")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    picture = "\n".join(cells(text))
    assert "[" in picture
    assert "]" in picture
    assert "┊" in picture, "the limit on the latency that is drawn"
    assert "dashed: e2e_latency:p99<=60s" in text
    assert "[ ]: the pick, " in text
    assert "p99 end-to-end latency" in text
    assert "not drawn, without values: 2 of the trials" in text


def test_the_first_latency_that_is_limited_is_drawn_or_the_objectives():
    records = factory.sweep()
    assert "median TTFT" in drawn(records, "ttft:median<=2s")
    text = drawn(records, objectives="throughput_per_gpu,itl:p90")
    assert "output throughput per GPU" in text
    assert "p90 ITL" in text
    assert "╌" in "".join(cells(drawn(records, "output_throughput>=500")))


def test_a_wide_range_is_logarithmic():
    records = factory.sweep(failures=False)[:2]
    slow = records[1].results | {"p99_e2e_latency_ms": 1e7}
    records[1] = msgspec.structs.replace(records[1], results=slow)
    assert "latency, logarithmic" in drawn(records)


@pytest.mark.parametrize("width", [40, 57, 200])
def test_any_width_of_forty_columns_or_more_holds_it(width):
    lines = drawn(factory.sweep(), "ttft<=2s", width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    assert sum("│" in line for line in lines) == 16


def test_too_little_to_draw_is_said():
    assert "fewer than two trials" in drawn(factory.sweep()[:1])
    assert "it needs 40 columns" in drawn(factory.sweep(), width=30)


def test_more_configurations_than_letters_are_drawn():
    records = [
        msgspec.structs.replace(
            factory.record(4, 1000 + place, 8), key=str(place),
            results=factory.record().results | {"output_throughput": 100.0 + place},
        )
        for place in range(40)
    ]  # fmt: skip
    text = drawn(records)
    assert "and 28 further server configurations" in text


def test_the_command_draws_it_where_it_is_asked_for(called, tmp_path):
    journal = tmp_path / "q.jsonl"
    journal.write_bytes(b"\n".join(each.to_json() for each in factory.sweep()) + b"\n")
    plain = called("recommend", journal)
    chart = called("recommend", journal, "--chart")
    assert chart.stdout.endswith(plain.stdout)
    assert len(cells(chart.stdout)) == 16
    assert len(cells(called("report", journal, "--chart").stdout)) == 16
    both = called("recommend", journal, "--chart", "--json")
    assert both.returncode == 2
    assert "leave one of them out" in both.stderr
    assert called("recommend", journal, "--json").stdout.startswith("{")
