"""What `servetune bench` prints, from records: every line in 80 columns, nothing hidden."""

import io

import pytest
from rich.console import Console

from servetune.metrics import Record, parse_constraints, summarize
from servetune.report import bench_table
from servetune.store.schema import SCHEMA, TrialConfig, TrialRecord

INSTRUMENT = {"verdict": "instrument: kernel's clock; sent 0.05 ms late (p99), 0.1% of median TTFT"}


def requests(count=120, *, streamed=True, failed=0):
    """Requests of a steady server, one every 50 ms, the last ones refused."""
    made = []
    for i in range(count):
        due_s = i * 0.05
        times_s = tuple(due_s + 0.1 + 0.01 * j for j in range(20))
        ok = i < count - failed
        made.append(
            Record(
                index=i,
                input_tokens=100,
                output_tokens=20 if ok else 0,
                due_s=due_s,
                sent_s=due_s + 0.001,
                end_s=times_s[-1] if ok else due_s + 0.01,
                chunk_times_s=times_s if ok and streamed else (),
                outcome="ok" if ok else "http_status",
                status=200 if ok else 503,
                detail="" if ok else "too busy\x1b[31m [bold]now[/bold]",
            )
        )
    return made


def record(records=None, *, simulated=False, model="m", **results):
    records = requests() if records is None else records
    end_s = max((each.end_s for each in records), default=0.0)
    figures = summarize(records, duration_s=end_s) | {
        "not_sent": 0,
        "interrupted": False,
        "ended_reason": None,
        "aborted_reason": None,
        "saturation": None,
        "instrument": INSTRUMENT,
        "server": None,
        "prepared": {"exact": True, "template": "none", "notes": []},
    }
    return TrialRecord(
        servetune_schema=SCHEMA,
        key="k",
        status="ok" if figures["completed"] else "failed",
        simulated=simulated,
        config=TrialConfig(client_args={}),
        results=figures | results,
        constraints=[],
        metadata={"model_tag": model, "urls": ["http://127.0.0.1:8000"], "framework": "external"},
    )


def printed(told, constraints="", width=80):
    paper = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    paper.print(bench_table(told, parse_constraints(constraints)))
    return paper.file.getvalue()


def test_the_figures_stand_in_eighty_columns_without_being_cut():
    wide, narrow = printed(record(), width=200), printed(record(), width=80)
    strip = str.rstrip
    assert list(map(strip, wide.splitlines())) == list(map(strip, narrow.splitlines()))
    assert "…" not in narrow


def test_each_latency_has_its_row_and_stands_from_due_and_from_sent():
    text = printed(record())
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "100.0 ms" in rows["TTFT"]
    assert "10.0 ms" in rows["TPOT"]
    assert "290.0 ms" in rows["E2E"]
    assert "99.0 ms" in rows["TTFT from sent"]
    assert "289.0 ms" in rows["E2E from sent"]


def test_answers_in_one_piece_have_no_rows_of_dashes():
    text = printed(record(requests(streamed=False)))
    assert "TTFT" not in text.replace("median TTFT", "")
    assert "–" not in text


def test_intervals_below_ten_percent_have_a_decimal():
    results = {"intervals": {"mean_ttft_ms": [99.0, 101.0], "median_ttft_ms": [80.0, 120.0]}}
    text = printed(record(**results))
    assert "100.0 ms ±1.0%" in text
    assert "100.0 ms ±20%" in text


def test_a_latency_that_is_too_correlated_is_named_with_what_would_tell():
    line = " ".join(printed(record(correlated=["tpot", "itl"])).split())
    assert "no ± for TPOT, ITL: fewer than 20 independent stretches" in line
    assert "too correlated to tell; a longer run" in line
    assert "no ±" not in printed(record())


def test_failures_are_reported_in_the_servers_words_and_nothing_else():
    text = printed(record(requests(failed=7)))
    assert "113 of 120 answered" in text
    assert "FAILED 7 x HTTP 503 Service Unavailable: too busy" in text
    assert "[bold]now[/bold]" in text


def test_a_run_without_one_answer_shows_no_latencies():
    text = printed(record(requests(5, failed=5)))
    assert "0 of 5 answered" in text
    assert "from due" not in text
    assert "steady" not in text


def test_many_kinds_of_failures_do_not_push_the_figures_away():
    failures = [{"outcome": f"kind{i}", "count": 1, "sample": "s"} for i in range(9)]
    text = printed(record(failures=failures))
    assert "kind4" in text
    assert "kind5" not in text
    assert "FAILED in 4 more ways" in text


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ({"ended_reason": "60 s were over"}, "ended: 60 s were over"),
        ({"aborted_reason": "it died", "not_sent": 12}, "ABORTED: it died; 12 requests were not"),
        ({"interrupted": True}, "INTERRUPTED: results up to the interruption"),
        (
            {"saturation": {"saturated": True, "words": "the queue grew by 9/s"}},
            "SATURATED: the queue grew by 9/s",
        ),
        (
            {"until": {"label": "ttft:p99±5%", "reached": False, "relative_half_width": 0.08}},
            "NOT REACHED: ttft:p99±5% (±8.0% so far); send more requests",
        ),
        ({"wrong_length": {"count": 3}}, "3 answers do not have the requested length"),
        ({"goodput": 1.5, "goodput_fraction": 0.25}, "1.5 requests/s within limits, 25.0% of"),
        ({"prepared": {"notes": ["rows come again"]}}, "note: rows come again"),
        ({"prepared": {"exact": False, "template": "unknown"}}, "prompt lengths are approximate"),
        (
            {"server": {"scrape_count": 9, "max_running_count": 4, "max_kv_usage_fraction": 0.5}},
            "4 running at most, KV cache 50.0%",
        ),
        (
            {"server": {"prefix_queries_tokens": 200, "prefix_hits_tokens": 50, "energy_j": 9.0}},
            "25% of prompt tokens cached, 9 J",
        ),
    ],
)
def test_what_a_reader_must_know_is_reported(results, line):
    assert line in printed(record(**results))


def test_a_saturated_run_is_called_that_once():
    words = "arrivals 40/s, served 9/s"
    text = printed(
        record(saturation={"saturated": True, "words": words}, ended_reason=f"saturated: {words}")
    )
    assert text.count(words) == 1


def test_gauges_of_a_server_that_was_not_looked_at_meanwhile_are_not_shown():
    text = printed(record(server={"scrape_count": 2, "max_running_count": 0}))
    assert "running" not in text


def test_a_simulated_server_is_named_first():
    text = printed(record(simulated=True, simulated_speed=4.0))
    assert text.startswith("SIMULATED: the server simulates an engine, 4 times as fast")


def test_limits_are_judged_each_in_a_line():
    text = printed(record(), "ttft:p99<=50ms;tpot<1s;cost_per_million_tokens<1")
    assert "holds tpot<1s: 10.0 ms" in text
    assert "MISSES ttft:p99<=50ms: 100.0 ms" in text
    assert "not known: cost_per_million_tokens<1: –" in text


def test_a_models_name_moves_no_cursor():
    assert "\x1b" not in printed(record(model="evil\x1b[2Jname"))


@pytest.mark.parametrize(
    ("hits", "shared", "warned"), [(990, 0.0, True), (40, 0.0, False), (500, 0.48, False)]
)
def test_prompts_that_the_server_had_seen_are_a_warning(hits, shared, warned):
    made = record(
        server={"prefix_queries_tokens": 1000, "prefix_hits_tokens": hits},
        prepared={"exact": True, "template": "none", "hit_fraction": shared},
    )
    text = printed(made)
    assert ("PREFIX CACHE: 99% of the prompt tokens" in " ".join(text.split())) is warned
