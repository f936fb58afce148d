import itertools

import pytest
import report_records as factory

from servetune.metrics import Record
from servetune.report import dashboard_html, timeline_of
from servetune.report.timeline import MOST_BARS


def record(index, due_s, end_s, *, first_s=None, outcome="ok"):
    return Record(
        index=index,
        input_tokens=10,
        output_tokens=2,
        due_s=due_s,
        sent_s=due_s,
        end_s=end_s,
        chunk_times_s=() if first_s is None else (first_s, end_s),
        outcome=outcome,
    )


def test_a_bar_has_the_four_times_of_its_request():
    made = timeline_of([record(0, 1.0, 4.0, first_s=2.5)], [1.5], [(0.0, 0.25)])
    assert made["bars"] == [[0, 1.0, 1.5, 2.5, 4.0, 10, 2, True]]
    assert made["duration_s"] == 4.0
    assert made["kv"] == [[0.0, 0.25]]


def test_a_request_that_was_never_taken_up_only_waited():
    cut = record(0, 1.0, 4.0, outcome="cancelled")
    made = timeline_of([cut], [None], [])
    assert made["bars"] == [[0, 1.0, None, None, 4.0, 10, 2, False]]
    assert max(made["curves"]["running"]) == 0.0
    width_s = made["curves"]["width_s"]
    assert sum(made["curves"]["waiting"]) * width_s == pytest.approx(3.0)


def test_curves_hold_all_the_time_that_requests_waited_and_ran():
    records = [record(i, 0.1 * i, 0.1 * i + 3.0, first_s=0.1 * i + 1.0) for i in range(300)]
    admitted_s = [one.due_s + 0.5 for one in records]
    curves = timeline_of(records, admitted_s, [])["curves"]
    assert sum(curves["waiting"]) * curves["width_s"] == pytest.approx(300 * 0.5, rel=1e-3)
    assert sum(curves["running"]) * curves["width_s"] == pytest.approx(300 * 2.5, rel=1e-3)
    middle = len(curves["running"]) // 2
    assert curves["running"][middle] == pytest.approx(25, abs=1)  # 10/s times 2.5 s


def test_of_many_requests_an_even_choice_is_drawn_with_both_ends():
    count = 10 * MOST_BARS
    records = [record(i, float(i), i + 2.0, first_s=i + 1.0) for i in range(count)]
    made = timeline_of(records, [one.due_s for one in records], [])
    drawn = [bar[0] for bar in made["bars"]]
    assert len(drawn) == MOST_BARS
    assert (drawn[0], drawn[-1], made["total"]) == (0, count - 1, count)
    steps = {later - earlier for earlier, later in itertools.pairwise(drawn)}
    assert steps <= {10, 11}


def test_the_largest_page_stays_small():
    records = [record(i, i * 0.12345, i + 2.0, first_s=i + 1.0) for i in range(MOST_BARS)]
    made = timeline_of(records, [one.due_s for one in records], [(i, 0.5) for i in range(1000)])
    page = dashboard_html([factory.record()], (), title="t", timeline=made)
    assert len(page.encode()) < 400_000
