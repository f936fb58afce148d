"""The page in a real browser: what is drawn, and that choices are the command line's."""

from __future__ import annotations

import re
import shutil
import subprocess

import msgspec
import pytest
import report_records as factory

from servetune.metrics import Record, parse_constraints
from servetune.report import check_constraints, dashboard_html, picks, ranked, timeline_of
from servetune.search import PickDoubt, SearchSummary, parse_objectives
from servetune.store.schema import Failure, record_from_json

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
]
EVIL = "</script><script>document.documentElement.dataset.evil = 1</script>"


@pytest.fixture
def dom(tmp_path):
    """The document after its scripts ran, as text."""

    def load(text):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        run = subprocess.run(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--window-size=1400,2000",
                "--dump-dom",
                "--virtual-time-budget=3000",
                (tmp_path / "page.html").as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return run.stdout

    return load


def root_of(dom_text):
    return dict(re.findall(r'data-(\w+)="([^"]*)"', re.search(r"<html[^>]*>", dom_text)[0]))


def drawn_picks(dom_text):
    return dict(re.findall(r'data-pick="([^"]*)" data-key="([^"]*)"', dom_text))


def chosen_keys(records, limits):
    return {
        name: pick.chosen.key if pick.chosen else ""
        for name, pick in picks(records, limits).items()
    }


@pytest.mark.parametrize(
    "constraints",
    ["e2e_latency:p99<=60s;request_throughput>=5", "ttft:p97<200ms", "ttft<1ms;itl<=9ms"],
)
def test_the_browser_draws_every_trial_and_picks_as_the_command_line(dom, constraints):
    records, limits = factory.sweep(), parse_constraints(constraints)
    text = dom(dashboard_html(records, limits, title="t"))
    root = root_of(text)
    assert "error" not in root
    assert (root["ready"], root["points"], root["rows"]) == ("true", "25", "27")
    assert drawn_picks(text) == chosen_keys(records, limits)
    drawn = dict(re.findall(r'data-row="(\d+)" data-standing="(\w+)"', text))
    assert drawn == {
        str(i): "failed"
        if r.status == "failed"
        else "meets"
        if check_constraints(r, limits).meets_all
        else "misses"
        for i, r in enumerate(records)
    }
    assert text.count('data-simulated="true"') == 27
    assert len(re.findall(r'class="mark \w+ hollow" [^>]*data-trial', text)) == 25
    assert not re.search(
        r"NaN|undefined|\[object", re.sub(r"<script.*?</script>", "", text, flags=re.S)
    )


@pytest.mark.parametrize(
    ("objectives", "ladder"),
    [("throughput_per_gpu,ttft:p99,cost", False), ("ttft:p90", True)],
)
def test_the_browser_picks_for_other_objectives_as_the_command_line(dom, objectives, ladder):
    records, wanted = factory.sweep(), parse_objectives(objectives)
    limits = parse_constraints("e2e_latency:p99<=60s;itl<=" + ("9ms" if ladder else "90ms"))
    chosen = picks(records, limits, wanted, ladder=ladder)
    text = dom(dashboard_html(records, limits, title="t", chosen=chosen))
    assert "error" not in root_of(text)
    assert drawn_picks(text) == {name: pick.chosen.key for name, pick in chosen.items()}
    assert all(pick.feasible == (not ladder) for pick in chosen.values())


@pytest.mark.parametrize(
    "constraints",
    ["", "e2e_latency:p99<=60s;request_throughput>=5", "error_rate<=0.5", "ttft<1ms;itl<=9ms"],
)
@pytest.mark.parametrize("all_dirty", [False, True])
def test_the_browser_treats_failed_requests_as_the_command_line(dom, constraints, all_dirty):
    records, limits = factory.dirty_sweep(), parse_constraints(constraints)
    if all_dirty:
        records = [factory.failing(r, 14) if r.status == "ok" else r for r in records]
    text = dom(dashboard_html(records, limits, title="t"))
    assert "error" not in root_of(text)
    chosen = picks(records, limits)
    assert drawn_picks(text) == chosen_keys(records, limits)
    rows = [int(row) for row in re.findall(r'data-row="(\d+)" data-standing="(?!failed)', text)]
    assert [records[row].key for row in rows] == [r.key for r in ranked(records, limits)]
    for pick, card in zip(
        chosen.values(), re.findall(r"<article.*?data-pick=.*?</article>", text, re.S), strict=True
    ):
        left_out = [reason for reason in pick.reasons if reason.startswith("left out")]
        failed = [reason for reason in pick.reasons if "requests failed (" in reason]
        assert re.findall(r">(left out[^<>]*)<", card) == left_out
        assert re.findall(r">([^<>]*requests failed \([^<>]*)<", card) == failed
        assert (">47% failed<" in card) == any("(47%)" in reason for reason in failed)


def test_failed_requests_are_reported_in_the_table_the_tooltip_and_the_drawer(dom):
    records = factory.dirty_sweep()
    text = dom(
        opened(
            dashboard_html(records, (), title="t"),
            """
      document.querySelector('#scatter [data-trial="26"]').dispatchEvent(new Event('focus'));
      document.querySelector('[data-row="26"] .open').click();""",
        )
    )
    assert "error" not in root_of(text)
    row = re.search(r'<tr data-row="26".*?</tr>', text, re.S)[0]
    assert ">47% failed<" in row
    assert "<td>14/30</td>" in row
    assert "<td>2/1000</td>" in re.search(r'<tr data-row="0".*?</tr>', text, re.S)[0]
    assert "<td>0</td>" in re.search(r'<tr data-row="1".*?</tr>', text, re.S)[0]
    tip = re.search(r'<div id="tip".*?</div>', text, re.S)[0]
    assert "<dt>Failed requests</dt><dd>14/30, 47% failed</dd>" in tip
    drawer = re.search(r"<dialog[^>]*open[^>]*>(.*?)</dialog>", text, re.S)[1]
    assert "14 of 30 requests failed (47%)" in drawer
    assert re.search(r'aria-label="[^"]*, 47% failed, simulated"', text)
    clean = dom(dashboard_html(factory.sweep(), (), title="t"))
    assert not re.search(r"<th[^>]*><button[^>]*>Requests<br>failed", clean)
    assert re.search(r"<th[^>]*><button[^>]*>Requests<br>failed", text)


def test_hostile_data_and_added_scripts_do_not_run(dom):
    failed = factory.record(2, failure=Failure(kind="died", reason=EVIL, log_tail=EVIL))
    odd = msgspec.structs.replace(
        factory.record(), cmd=EVIL, metadata={"model_tag": EVIL, "framework": EVIL}
    )
    made = dashboard_html([odd, failed], (), title=EVIL)
    added = "<script>document.documentElement.dataset.evil = 1</script>"
    text = dom(made.replace("</body>", f"{added}</body>"))
    assert "evil" not in root_of(text)
    assert root_of(text)["ready"] == "true"
    assert "&lt;/script&gt;&lt;script&gt;" in text


def test_foreign_measured_and_empty_journals_draw_without_error(dom):
    foreign = [record_from_json(factory.foreign_json(users)) for users in (32, 64, 128)]
    bare = record_from_json({"config": {}, "results": {}})
    mixed = [*factory.measured(), *factory.sweep()[:6], *foreign, bare]
    text = dom(dashboard_html(mixed, (), title="t", comparison=foreign))
    assert "error" not in root_of(text)
    assert root_of(text)["points"] == "12"
    assert text.count("–") > 5
    empty = dom(dashboard_html([], (), title="t"))
    assert "error" not in root_of(empty)
    assert "This journal holds no trials yet" in empty


def opened(page, script):
    """The page with a script of the test's own, which its content policy would forbid."""
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return free.replace("</body>", f"<script>{script}</script></body>")


ALL_OFF = """
  const off = () => document.querySelector('.chip[data-on="true"] button');
  while (off()) off().click();
"""


def test_a_hurried_simulation_and_a_machine_without_a_name_are_reported(dom):
    records = [
        msgspec.structs.replace(
            each,
            results=each.results | {"simulated_speed": 50.0},
            metadata={k: v for k, v in each.metadata.items() if k != "instance_type"},
            provenance={"started_at": "2026-11-22T10:00:00.000+00:00"},
        )
        for each in (factory.record(), factory.record(users=64))
    ]
    text = dom(dashboard_html(records, (), title="t"))
    assert "At 50 times real time: latencies and costs are 1/50" in text
    assert "<dt>Price</dt><dd>$5.752 per hour</dd>" in text
    assert "<dt>Simulated</dt><dd>2026-11-22</dd>" in text
    slow = dom(dashboard_html([factory.record()], (), title="t"))
    assert "real time:" not in re.sub(r"<script.*?</script>", "", slow, flags=re.S)
    assert "<dt>Instance</dt><dd>ml.g6.12xlarge, $5.752 per hour</dd>" in slow


def test_where_all_failed_the_page_says_so_and_shows_only_why(dom):
    failed = [r for r in factory.sweep() if r.status == "failed"]
    text = dom(dashboard_html(failed, (), title="t"))
    root = root_of(text)
    assert "error" not in root
    assert root["failed"] == "all"
    assert "All 2 trials failed, so there is nothing to pick or draw." in text
    assert text.count('data-standing="failed"') == 2
    assert 'data-failed="' not in dom(dashboard_html(factory.sweep(), (), title="t"))


def test_lines_that_look_alike_are_named_by_their_hue(dom):
    few = [factory.record(tp, b, users) for tp in (1, 2) for b in (512, 1024) for users in (8, 64)]
    many = [
        factory.record(tp, 512 * b, users)
        for tp in (1, 2)
        for b in range(1, 10)
        for users in (8, 64)
    ]
    legend = r'id="load" class="plot".*?</section>'
    named = re.search(legend, dom(dashboard_html(few, (), title="t")), re.S)[0]
    assert "TP2 · batched tokens 1024" in named
    hued = re.search(legend, dom(dashboard_html(many, (), title="t")), re.S)[0]
    assert re.findall(r"</svg>([^<]+)</span>", hued) == ["TP 1", "TP 2"]
    assert "18 server configurations: point at a mark to name its own" in hued


def test_switching_constraints_off_changes_the_picks(dom):
    records = factory.sweep()
    limits = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")
    text = dom(
        opened(
            dashboard_html(records, limits, title="t"),
            ALL_OFF
            + """
      document.querySelectorAll('#table th button').forEach((b) => { b.click(); b.click(); });
      document.querySelectorAll('select').forEach((s) => { for (const o of s.options) {
        s.value = o.value; s.dispatchEvent(new Event('change')); } s.selectedIndex = 0;
        s.dispatchEvent(new Event('change')); });
      document.querySelector('[data-standing="failed"] .open').click();""",
        )
    )
    assert "error" not in root_of(text)
    assert drawn_picks(text) == chosen_keys(records, ())
    assert drawn_picks(text) != chosen_keys(records, limits)
    drawer = re.search(r"<dialog[^>]*open[^>]*>(.*?)</dialog>", text, re.S)[1]
    assert "torch.OutOfMemoryError" in drawer


def test_a_constraint_added_on_the_page_counts_and_the_csv_holds_all_trials(dom):
    records = factory.sweep()
    records[0] = msgspec.structs.replace(records[0], cmd="=1+1")
    limits = parse_constraints("e2e_latency:p99<=60s")
    text = dom(
        opened(
            dashboard_html(records, limits, title="t"),
            ALL_OFF
            + """
      const set = (id, value) => { const e = document.getElementById(id); e.value = value;
        e.dispatchEvent(new Event('change')); };
      document.getElementById('add-open').click();
      set('add-metric', 'e2e_latency'); set('add-statistic', 'p95');
      set('add-unit', 's'); set('add-value', '20');
      document.getElementById('add').requestSubmit();
      URL.createObjectURL = (blob) => { blob.text().then((csv) => {
        document.documentElement.dataset.csv = csv; }); return '#'; };
      document.getElementById('csv').click();""",
        )
    )
    root = root_of(text)
    assert "error" not in root
    assert drawn_picks(text) == chosen_keys(records, parse_constraints("e2e_latency:p95<=20s"))
    assert drawn_picks(text) != chosen_keys(records, ())
    lines = root["csv"].strip().splitlines()
    heads = lines[0].split(",")
    assert len(heads) == len(set(heads))
    assert "max_concurrency" in heads
    assert len(lines) == 28
    assert lines[0].startswith("key,status,simulated,standing,tensor_parallel_size")
    assert lines[1].endswith(",'=1+1")


def timeline(count):
    records = [
        Record(
            index=i,
            input_tokens=10,
            output_tokens=2,
            due_s=i * 0.01,
            sent_s=i * 0.01,
            end_s=i * 0.01 + 2,
            chunk_times_s=(i * 0.01 + 1, i * 0.01 + 2),
        )
        for i in range(count)
    ]
    return timeline_of(records, [one.due_s + 0.5 for one in records], [(0.0, 0.1), (1.0, 0.4)])


@pytest.mark.parametrize(("count", "drawn"), [(1, 1), (90, 90), (5000, 150)])
def test_requests_are_drawn_as_bars_up_to_what_stays_readable(dom, count, drawn):
    text = dom(dashboard_html([factory.record()], (), title="t", timeline=timeline(count)))
    assert "error" not in root_of(text)
    assert root_of(text)["bars"] == str(drawn)
    assert text.count('class="prefill"') == drawn + 1  # and one in the legend
    said = "All" if count == drawn else f"{drawn} of {count:,}"
    assert f"{said} " in re.search(r'id="timeline-note"[^>]*>([^<]*)', text)[1]


def test_later_requests_are_reached_by_turning_the_page(dom):
    page = dashboard_html([factory.record()], (), title="t", timeline=timeline(400))
    turn = "document.querySelector('[aria-label=\"Later requests\"]')"
    text = dom(opened(page, f"{turn}.click(); {turn}.click(); {turn}.click();"))
    assert "error" not in root_of(text)
    assert root_of(text)["bars"] == "100"  # the third page: 301 to 400
    assert ">301<" in text


def test_a_page_without_a_timeline_has_no_place_for_one(dom):
    text = dom(dashboard_html([factory.record()], (), title="t"))
    assert re.search(r'id="timeline-card"[^>]*hidden', text)


def test_a_pick_shows_how_sure_it_is_and_no_tick_where_that_is_not_settled(dom):
    records = factory.sweep()
    doubt = PickDoubt(
        key=chosen_keys(records, ())["throughput"],
        label="TP=4",
        objective="throughput",
        simulated=True,
        margin=0.02,
        best=0.41,
        regret=0.05,
        settles="TP=2",
    )
    search = SearchSummary(
        strategy="grid", seed=0, trial_count=27, total_count=27, stopped="", doubt=doubt
    )
    drawn = dom(dashboard_html(records, (), title="t", search=search))
    card = re.search(r'data-settled="false".*?</div>', drawn)[0]
    assert "? Not settled: within 2% of the best with a probability of 41%" in card
    assert "measuring TP=2 would settle most" in card
    assert "✓" not in card
    assert drawn.count("Rests on simulation alone.</p>") == 2  # the picks for latency and cost
