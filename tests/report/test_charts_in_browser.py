"""Further charts in a real browser: they draw what Python computed, and answer to keys."""

from __future__ import annotations

import math
import random
from importlib import resources

import msgspec
import pytest
import report_records as factory
from test_estimate_page import FIGURE, HEADING, MACHINES

from servetune.metrics import parse_constraints
from servetune.report import dashboard_html, estimate_page, picks
from servetune.report.comparison import pairs_within, quantity_errors
from servetune.report.importance import importances
from servetune.report.progress import progress_of
from servetune.report.ranking import varying
from servetune.report.run_differences import run_differences
from servetune.store.schema import PredictionInterval

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("charts")]
AXE = resources.files("axe_playwright_python") / "axe.min.js"
LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")
INTERVAL = PredictionInterval(
    low_factor=0.9, high_factor=1.12, ttft_low_factor=0.6, ttft_high_factor=1.7
)


def measured(scale=1.0, seed=1):
    """The sweep as it is measured: with noise, intervals, predictions and times of start."""
    rng = random.Random(seed)
    made = []
    for number, record in enumerate(factory.sweep()):
        started = {"started_at": f"2026-11-20T21:{number:02}:00+00:00"}
        changes = {"simulated": False, "provenance": started}
        if record.status == "ok":
            settings = record.config.server_args, record.config.client_args
            tp, batched = settings[0]["tensor_parallel_size"], settings[0]["max_num_batched_tokens"]
            users = settings[1]["max_concurrency"]
            noise = scale * math.exp(rng.gauss(0, 0.08))
            results = factory.results(tp, batched, users, scale=noise)
            results["intervals"] = {
                name: [value * 0.93, value * 1.08]
                for name, value in results.items()
                if name.endswith("_ms") or "throughput" in name
            }
            changes |= {"results": results, "interval": INTERVAL}
            changes |= {"predicted": factory.results(tp, batched, users)}
        made.append(msgspec.structs.replace(record, **changes))
    return made


def page_of(records, limits=LIMITS, **more):
    return dashboard_html(records, limits, title="t", **more)


def labels(page, chart):
    """Names of a chart's marks, as a screen reader reads them."""
    return page.eval_on_selector_all(
        f"#{chart} svg [role=img][aria-label]",
        "all => all.map(e => e.getAttribute('aria-label'))",
    )


def tip_of(page):
    return page.locator("[role=tooltip]").inner_text()


def test_importance_is_pythons_for_the_metric_that_is_chosen(show):
    records = factory.sweep()
    page = show(page_of(records))
    for metric in (("output_throughput", "mean"), ("ttft", "p99")):
        page.locator("#importance select").select_option(":".join(metric))
        [found] = importances(records, varying(records), [metric])
        drawn = labels(page, "importance")
        assert len(drawn) == 3
        for each, words in zip(found.settings, drawn, strict=True):
            assert words.startswith(f"{each.short}: ")
            percents = each.share_fraction * 100
            share = f"{percents:.0f}%" if percents >= 1 else f"{percents:.1f}%"
            assert share in words or "nothing" in words
            assert ("changes it by" in words) == (each.standing == "matters")


def test_a_setting_without_effect_is_said_to_change_nothing(show):
    records = [
        msgspec.structs.replace(
            record, results=factory.results(tp, 8192, users), key=f"{tp} {batched} {users}"
        )
        for tp in (1, 2, 4)
        for batched in (4096, 8192, 16384)
        for users in (32, 64, 128)
        for record in [factory.record(tp, batched, users)]
    ]
    page = show(page_of(records))
    assert "batched tokens: changed nothing: 0%" in labels(page, "importance")


def test_progress_follows_the_limits(show):
    records = measured()
    page = show(page_of(records))
    objectives = {name: pick.objectives[0] for name, pick in picks(records, LIMITS).items()}

    def best_number(limits):
        steps = progress_of(records, limits, objectives)["throughput"].steps
        return next(step.number for step in steps if step.regret_fraction == 0)

    said = f"The best of 27 trials was number {best_number(LIMITS)};"
    assert said in page.inner_text("#progress")
    other = parse_constraints("e2e_latency:p99<=30s")
    assert best_number(other) != best_number(LIMITS)
    page.evaluate("location.hash = 'limits=e2e_latency,p99,<=,30000,1,0'")
    words = f"The best of 27 trials was number {best_number(other)};"
    page.wait_for_function(
        "words => document.getElementById('progress').innerText.includes(words)", arg=words
    )
    page.locator("#progress select[data-choice=over]").select_option("time")
    assert "Start of the trial since the first one" in page.text_content("#progress svg")


def test_a_measured_value_outside_its_interval_is_another_mark(show):
    records = measured()
    page = show(page_of(records))
    errors = [
        error
        for pair in pairs_within(records)
        for error in quantity_errors(pair)
        if error.quantity == "output_throughput"
    ]
    drawn = labels(page, "predicted")
    assert len(drawn) == len(errors) == 25
    outside = sum(error.inside is False for error in errors)
    assert 0 < outside < 25
    assert sum("measured outside" in words for words in drawn) == outside
    assert f"{25 - outside} of 25 measured values are inside" in page.inner_text("#predicted")


def test_differences_of_runs_are_told_apart_as_in_python(show):
    here, there = measured(1.0, 1), measured(0.9, 2)
    page = show(page_of(here, comparison=there))
    found = [one for one in run_differences(here, there) if one.quantity == "output_throughput"]
    drawn = labels(page, "differences")
    assert len(drawn) == len(found) == 25
    for one, words in zip(found, drawn, strict=True):
        verdict = "within the sampling intervals" if not one.told_apart else (
            "better" if one.change_fraction > 0 else "worse"
        )  # fmt: skip
        assert words.startswith(f"{one.label}: ")
        assert verdict in words
    assert {"better", "within"} <= {words.split(", ")[-1].split()[0] for words in drawn}


def test_the_heat_map_has_the_best_of_each_cell_and_selects_it_by_keys(show):
    records = factory.sweep()
    page = show(page_of(records))
    drawn = labels(page, "heatmap")
    assert len(drawn) == 9
    first = page.locator("#heatmap .cell").first
    first.focus()
    page.keyboard.press("ArrowRight")
    assert tip_of(page).startswith("concurrency 64, TP 1")
    page.keyboard.press("Enter")
    ok = [
        record
        for record in records
        if record.status == "ok"
        and record.config.server_args["tensor_parallel_size"] == 1
        and record.config.client_args["max_concurrency"] == 64
    ]
    best = max(ok, key=lambda record: record.results.output_throughput)
    page.wait_for_function("key => location.hash.includes(key)", arg=best.key)
    page.locator("#heatmap select[data-choice=down]").select_option("server.max_num_batched_tokens")
    assert any("batched tokens 16384" in words for words in labels(page, "heatmap"))


def test_every_chart_gives_exact_values_on_hover_and_by_keys(show):
    page = show(page_of(measured(1.0, 1), comparison=measured(0.9, 2)))
    for chart in ("importance", "heatmap", "progress", "predicted", "differences", "parallel"):
        marks = page.locator(f"#{chart} svg [role=img][tabindex]")
        assert page.locator(f"#{chart} svg [tabindex='0']").count() == 1, chart  # one tab stop
        marks.first.focus()
        before = tip_of(page)
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.getAttribute('tabindex')") == "-1"
        assert tip_of(page) != before, chart
        page.evaluate("document.activeElement.blur()")
        assert page.locator("[role=tooltip]").is_hidden()
    dot = page.locator("#progress .mark").nth(3)
    dot.scroll_into_view_if_needed()
    dot.hover(force=True)
    assert "Trial 4: " in tip_of(page)


def test_distributions_of_selected_trials_lie_over_each_other(show):
    records = factory.sweep()
    keys = [records[0].key, records[26].key]
    page = show(page_of(records), anchor=f"#sel={','.join(keys)}&load=ttft:p99")
    assert page.locator("#selected svg .curve").count() == 2
    dashes = page.eval_on_selector_all(
        "#selected svg .curve", "all => all.map(e => e.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2
    drawn = [words for words in labels(page, "selected") if "99% within" in words]
    assert len(drawn) == 2
    page.locator("#selected svg [role=img]").first.focus()
    assert tip_of(page).count("TP") >= 2  # both trials at one percent


def test_an_estimate_is_the_page_with_its_figures(show):
    page = show(estimate_page(HEADING, roofline=FIGURE, machines=MACHINES))
    assert "nothing was run" in page.inner_text("#app")
    assert "No trials" not in page.inner_text("#app")
    assert labels(page, "roofline") == ["prefill, up: 60% of the step"]
    dot = page.locator("#roofline .roof-dot").bounding_box()
    roof = page.locator("#roofline .roof").bounding_box()
    assert dot["y"] + dot["height"] / 2 > roof["y"]  # no rate is above the device's
    assert len(labels(page, "curves")) == 3
    assert labels(page, "steps") == [
        "a prefill, up: 12.0 ms, 60%",
        "a prefill, waiting: 8.00 ms, 40%",
    ]
    assert labels(page, "machines") == ["a: $1.25 · TP1, 8 users"]
    assert "Does not fit: b" in page.inner_text("#machines")
    page.locator("#curves [role=img]").first.focus()
    page.keyboard.press("ArrowRight")
    assert tip_of(page).split("\n")[0] == "2 users"
    assert "160 ms to 260 ms" in tip_of(page).replace("160 to", "160 ms to")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_estimate_has_no_serious_fault_of_accessibility(show, scheme):
    page = show(estimate_page(HEADING, roofline=FIGURE, machines=MACHINES), scheme=scheme)
    found = page.evaluate(f"{AXE.read_text()}; axe.run()")
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []


CUT_TEXTS = """() => [...document.querySelectorAll('.chart-figure svg')].flatMap((picture) => {
  const frame = picture.getBoundingClientRect();
  return [...picture.querySelectorAll('text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
      || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  }).map((text) => `${picture.getAttribute('aria-label')}: ${text.textContent}`);
})"""


@pytest.mark.parametrize(("kind", "width"), [("study", 390), ("study", 1400), ("estimate", 390)])
def test_no_word_of_a_chart_is_cut(show, kind, width):
    text = (
        page_of(measured(1.0, 1), comparison=measured(0.9, 2))
        if kind == "study"
        else estimate_page(HEADING, roofline=FIGURE, machines=MACHINES)
    )
    page = show(text, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".chart-figure svg").count() >= 4
    assert page.evaluate(CUT_TEXTS) == []


def test_a_chart_without_data_says_why(show):
    records = [msgspec.structs.replace(record, simulated=False) for record in factory.sweep()[:3]]
    page = show(page_of(records))
    assert "3 successful trials are too few: 4 are needed" in page.inner_text("#importance")
    assert "no trial was both predicted and measured" in page.inner_text("#predicted")
