"""The page in a real browser: what is drawn, and that choices are the command line's.

One browser serves the whole module. Every page is opened from disk without a network, and may
neither write to the console nor break.
"""

from __future__ import annotations

import json
import re
from importlib import resources

import msgspec
import pytest
import report_records as factory

from servetune.metrics import Record, parse_constraints
from servetune.plan import Plan
from servetune.report import (
    Live,
    check_constraints,
    dashboard_html,
    page_data,
    page_json,
    picks,
    ranked,
    timeline_of,
)
from servetune.search import PickDoubt, SearchSummary, parse_objectives
from servetune.store import read_journal
from servetune.store.schema import Failure, record_from_json

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]
AXE = resources.files("axe_playwright_python") / "axe.min.js"
EVIL = "</script><script>document.documentElement.dataset.evil = 1</script>"
LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")


def page_of(records, limits=LIMITS, **more):
    return dashboard_html(records, limits, title="t", **more)


def root_of(page):
    return page.evaluate("({...document.documentElement.dataset})")


def drawn_picks(page):
    return page.eval_on_selector_all(
        "[data-pick]", "all => Object.fromEntries(all.map(e => [e.dataset.pick, e.dataset.key]))"
    )


def chosen_keys(records, limits):
    return {
        name: pick.chosen.key if pick.chosen else ""
        for name, pick in picks(records, limits).items()
    }


def texts(page, selector):
    return page.eval_on_selector_all(selector, "all => all.map(e => e.textContent)")


def words(page, selector):
    return " ".join(texts(page, f"{selector} text"))


def change(page):
    """Waits until what was changed is drawn."""
    page.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


def table_keys(page, records):
    rows = page.eval_on_selector_all("[data-row]", "all => all.map(e => +e.dataset.row)")
    return [records[row].key for row in rows]


@pytest.mark.parametrize(
    "constraints",
    [
        "e2e_latency:p99<=60s;request_throughput>=5",
        pytest.param("ttft:p97<200ms", marks=pytest.mark.slow),
        pytest.param("ttft<1ms;itl<=9ms", marks=pytest.mark.slow),
    ],
)
def test_the_browser_draws_every_trial_and_picks_as_the_command_line(show, constraints):
    records, limits = factory.sweep(), parse_constraints(constraints)
    page = show(page_of(records, limits))
    root = root_of(page)
    assert "error" not in root
    assert (root["points"], root["rows"]) == ("25", "27")
    assert drawn_picks(page) == chosen_keys(records, limits)
    drawn = page.eval_on_selector_all(
        "[data-row]",
        "all => Object.fromEntries(all.map(e => [e.dataset.row, e.dataset.standing]))",
    )
    assert drawn == {
        str(i): "failed"
        if r.status == "failed"
        else "meets"
        if check_constraints(r, limits).meets_all
        else "misses"
        for i, r in enumerate(records)
    }
    assert page.locator('[data-simulated="true"]').count() == 27
    assert page.locator("#tradeoff .mark[data-standing]").count() == 25
    assert not re.search(r"NaN|undefined|\[object", page.inner_text("#app"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objectives", "ladder"),
    [("throughput_per_gpu,ttft:p99,cost", False), ("ttft:p90", True)],
)
def test_the_browser_picks_for_other_objectives_as_the_command_line(show, objectives, ladder):
    records, wanted = factory.sweep(), parse_objectives(objectives)
    limits = parse_constraints("e2e_latency:p99<=60s;itl<=" + ("9ms" if ladder else "90ms"))
    chosen = picks(records, limits, wanted, ladder=ladder)
    page = show(page_of(records, limits, chosen=chosen))
    assert drawn_picks(page) == {name: pick.chosen.key for name, pick in chosen.items()}
    assert all(pick.feasible == (not ladder) for pick in chosen.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constraints", "all_dirty"),
    [
        ("", True),
        ("e2e_latency:p99<=60s;request_throughput>=5", False),
        ("error_rate<=0.5", True),
        ("ttft<1ms;itl<=9ms", False),
    ],
)
def test_the_browser_treats_failed_requests_as_the_command_line(show, constraints, all_dirty):
    records, limits = factory.dirty_sweep(), parse_constraints(constraints)
    if all_dirty:
        records = [factory.failing(r, 14) if r.status == "ok" else r for r in records]
    page = show(page_of(records, limits))
    chosen = picks(records, limits)
    assert drawn_picks(page) == chosen_keys(records, limits)
    keys = table_keys(page, records)[: len(ranked(records, limits))]
    assert keys == [r.key for r in ranked(records, limits)]
    for pick, card in zip(chosen.values(), page.locator("[data-pick]").all(), strict=True):
        said = card.locator("li").all_inner_texts()
        for kind in ("left out", "requests failed ("):
            assert [each for each in said if kind in each] == [r for r in pick.reasons if kind in r]
        failing = any("(47%)" in reason for reason in pick.reasons if "requests failed" in reason)
        assert (card.locator(".failed-tag").count() == 1) == failing


def with_intervals(records, half_fraction):
    """Measured records whose output throughput is known to a part of it."""
    for each in records:
        rate = each.results.output_throughput
        ends = [rate * (1 - half_fraction), rate * (1 + half_fraction)]
        results = {**each.results, "intervals": {"output_throughput": ends}}
        yield msgspec.structs.replace(each, results=results, simulated=False)


@pytest.mark.slow
@pytest.mark.parametrize("half_fraction", [0.002, 0.02])
def test_ties_are_the_command_lines_and_stand_beside_the_sign(show, half_fraction):
    records = list(with_intervals(factory.sweep(failures=False), half_fraction))
    chosen = picks(records, LIMITS)
    page = show(page_of(records))
    for name in ("throughput", "cost"):
        card = page.locator(f'[data-pick="{name}"]')
        ties = [each.key for each in chosen[name].ties]
        assert (card.get_attribute("data-ties") or "").split() == ties
        assert ("A tie with" in card.locator(".verdict").inner_text()) == bool(ties)
    assert bool(chosen["throughput"].ties) == (half_fraction == 0.02)
    settled = page.locator('[data-pick="throughput"] .doubt').get_attribute("data-settled")
    assert settled == ("false" if half_fraction == 0.02 else "true")
    assert "(95%)" in page.locator('[data-pick="throughput"] .ends').inner_text()
    assert page.locator("#tradeoff .whisker").count() == 27


@pytest.mark.slow
def test_repeats_of_a_study_are_one_candidate_as_for_the_command_line(show):
    twice = []
    for each in factory.sweep(failures=False)[18:]:
        for seed, scale in ((1, 1.0), (2, 0.9)):
            results = {**each.results, "output_throughput": each.results.output_throughput * scale}
            client = {**each.config.client_args, "seed": seed}
            config = msgspec.structs.replace(each.config, client_args=client)
            key = f"{each.key[:14]}{seed:02d}"
            twice.append(
                msgspec.structs.replace(each, key=key, config=config, results=results, plan=PLAN)
            )
    data = page_data(twice, LIMITS, title="t")
    assert [len(each.keys) for each in data.repeats] == [2] * 9
    assert drawn_picks(show(page_of(twice))) == chosen_keys(twice, LIMITS)


PLAN = Plan(model=factory.MODEL, tensor_parallel=4)


@pytest.mark.slow
def test_failed_requests_are_reported_in_the_table_the_hover_box_and_the_details(show):
    page = show(page_of(factory.dirty_sweep(), ()))
    row = page.locator('[data-row="26"]')
    assert row.locator(".failed-tag").inner_text() == "47% failed"
    assert "14/30" in row.inner_text()
    assert "2/1000" in page.locator('[data-row="0"]').inner_text()
    row.get_by_role("button", name="Details").click()
    assert "14 of 30 requests failed (47%)" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.locator("#tradeoff .cursor").focus()
    for _ in range(26):
        page.keyboard.press("ArrowRight")
        if "47% failed" in page.inner_text("#tip"):
            break
    assert "14/30, 47% failed" in page.inner_text("#tip")
    heads = " ".join(texts(page, "#table th"))
    assert "Requestsfailed" in heads
    clean = show(page_of(factory.sweep(), ()))
    assert "Requestsfailed" not in " ".join(texts(clean, "#table th"))


HOSTILE = [
    EVIL,
    "quote \" ' ` & <b>bold</b>",
    "\x1b[31mred\x1b[0m",
    "\u202eabc\u2066",
    "{{script}}",
]


@pytest.mark.parametrize(
    "text",
    [EVIL, *(pytest.param(text, marks=pytest.mark.slow) for text in HOSTILE if text != EVIL)],
)
def test_hostile_text_stays_text(show, text):
    failed = factory.record(
        2, failure=Failure(kind="died", reason=text, log_tail=f"{text}\n{EVIL}")
    )
    odd = msgspec.structs.replace(
        factory.record(), cmd=text, metadata={"model_tag": text, "framework": text}
    )
    html = dashboard_html([odd, failed], (), title=text)
    page = show(html)
    assert "evil" not in root_of(page)
    assert page.locator("#app b:has-text('bold')").count() == 0
    shown = page.inner_text("#title")
    assert (text if text.isprintable() else "\\u") in shown
    page.locator('[data-standing="failed"] .open').click()
    assert EVIL in page.inner_text("dialog")
    assert "evil" not in root_of(page)


@pytest.mark.slow
def test_an_added_script_does_not_run(browser, tmp_path):
    added = "<script>document.documentElement.dataset.evil = 1</script>"
    (tmp_path / "p.html").write_text(page_of([factory.record()]).replace("</body>", added))
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((tmp_path / "p.html").as_uri())
        page.wait_for_selector("html[data-ready]")
        assert "evil" not in root_of(page)


@pytest.mark.slow
def test_foreign_measured_and_empty_journals_draw_without_error(show):
    foreign = [record_from_json(factory.foreign_json(users)) for users in (32, 64, 128)]
    bare = record_from_json({"config": {}, "results": {}})
    mixed = [*factory.measured(), *factory.sweep()[:6], *foreign, bare]
    page = show(page_of(mixed, (), comparison=foreign))
    assert root_of(page)["points"] == "12"
    assert page.inner_text("#trials").count("–") > 5
    assert "This journal holds no trials yet" in show(page_of([], ())).inner_text("#app")


@pytest.mark.slow
def test_a_journal_whose_last_line_is_cut_shows_what_is_whole(show, tmp_path):
    lines = [json.dumps(json.loads(r.to_json())) for r in factory.sweep()[:5]]
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(lines)[: -len(lines[-1]) // 2], encoding="utf-8")
    page = show(page_of(list(read_journal(path)), ()))
    assert root_of(page)["rows"] == "4"


def test_data_of_a_newer_schema_are_said_to_be_newer(show):
    html = page_of([factory.record()]).replace('{"schema":1,', '{"schema":99,')
    page = show(html, broken=True)
    assert "have version 99" in page.inner_text("#broken")
    assert not page.locator("#app").is_visible()


@pytest.mark.slow
def test_a_limit_that_is_dragged_changes_the_picks(show):
    records = factory.sweep()
    page = show(page_of(records))
    before = drawn_picks(page)
    knob = page.locator("#tradeoff .limit-handle.vertical .knob").bounding_box()
    page.mouse.move(knob["x"] + 3, knob["y"] + 30)
    page.mouse.down()
    page.mouse.move(knob["x"] - 70, knob["y"] + 60, steps=4)
    page.mouse.up()
    change(page)
    value = float(page.locator("#tradeoff .limit-handle.vertical").get_attribute("aria-valuenow"))
    assert 10_000 < value < 55_000
    limits = parse_constraints(f"e2e_latency:p99<={value}ms;request_throughput>=5")
    assert drawn_picks(page) == chosen_keys(records, limits)
    assert drawn_picks(page) != before
    again = show(page_of(records), anchor="#" + page.url.partition("#")[2])
    assert drawn_picks(again) == drawn_picks(page)


@pytest.mark.slow
def test_a_limit_moves_by_the_arrow_keys_and_keeps_the_focus(show):
    page = show(page_of(factory.sweep()))
    handle = page.locator("#tradeoff .limit-handle.vertical")
    handle.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
        change(page)
        change(page)
    assert float(handle.get_attribute("aria-valuenow")) < 60_000
    assert page.evaluate("document.activeElement.dataset.limit") == "0"


@pytest.mark.slow
def test_limits_are_switched_changed_and_added_and_the_csv_holds_all_trials(show, tmp_path):
    records = factory.sweep()
    records[0] = msgspec.structs.replace(records[0], cmd="=1+1")
    page = show(page_of(records))
    for chip in page.locator(".chip button[aria-pressed]").all():
        chip.click()
    assert drawn_picks(page) == chosen_keys(records, ())
    page.click("#add-open")
    page.select_option('[aria-label="Metric"]', "e2e_latency")
    page.select_option('[aria-label="Statistic"]', "p95")
    page.select_option('[aria-label="Unit"]', "s")
    page.fill('[aria-label="Value"]', "20")
    page.keyboard.press("Enter")
    wanted = parse_constraints("e2e_latency:p95<=20s")
    page.wait_for_selector(".chip:nth-of-type(4)")
    assert drawn_picks(page) == chosen_keys(records, wanted) != chosen_keys(records, ())
    page.click('[aria-label="Change E2E p95 ≤ 20 s"]')
    page.fill('[aria-label="Value"]', "5")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=E2E p95 ≤ 5 s")
    wanted = parse_constraints("e2e_latency:p95<=5s")
    assert drawn_picks(page) == chosen_keys(records, wanted)
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text(encoding="utf-8").strip().splitlines()
    heads = lines[0].split(",")
    assert len(heads) == len(set(heads))
    assert "max_concurrency" in heads
    assert len(lines) == 28
    assert lines[0].startswith("key,status,simulated,standing,tensor_parallel_size")
    assert lines[1].endswith(",'=1+1")


@pytest.mark.slow
def test_axes_change_the_chart_and_the_address_reopens_the_view(show):
    page = show(page_of(factory.sweep()))
    assert "End-to-end latency, p99 (s)" in words(page, "#tradeoff .frame")
    page.select_option('[aria-label="X: quantity"]', "ttft")
    page.select_option('[aria-label="X: statistic"]', "median")
    page.select_option('[aria-label="Y: scale"]', "on")
    page.select_option('[aria-label="Colour"]', "tensor_parallel_size")
    change(page)
    titles = words(page, "#tradeoff .frame")
    assert "Time to first token, median" in titles
    assert "Output throughput (tokens/s, log scale)" in titles
    colours = page.eval_on_selector_all(
        "#tradeoff .mark[data-standing]",
        "all => [...new Set(all.map(e => e.getAttribute('stroke')))]",
    )
    assert sorted(colours) == ["var(--c0)", "var(--c1)", "var(--c2)"]
    again = show(page_of(factory.sweep()), anchor="#" + page.url.partition("#")[2])
    assert words(again, "#tradeoff .frame") == titles


@pytest.mark.slow
def test_an_area_is_zoomed_and_left_again(show):
    page = show(page_of(factory.sweep()))
    before = words(page, "#tradeoff .frame")
    box = page.locator("#tradeoff .ground").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 150, steps=4)
    page.mouse.up()
    change(page)
    assert words(page, "#tradeoff .frame") != before
    assert 0 < page.locator("#tradeoff .mark[data-standing]").count() < 25
    page.get_by_role("button", name="Show all").click()
    change(page)
    assert words(page, "#tradeoff .frame") == before


@pytest.mark.slow
def test_filters_change_every_chart_and_the_table(show):
    page = show(page_of(factory.sweep()))
    before = page.locator("#load .mark").count()
    page.locator(".filters summary", has_text="TP").click()
    for value in ("1", "2"):
        page.locator(".filters details[open] label", has_text=value).first.click()
    change(page)
    assert root_of(page)["points"] == "9"
    assert root_of(page)["rows"] == "9"
    assert page.locator("#load .mark").count() == 9 < before
    assert "9 of 27 trials shown" in page.inner_text(".filters")
    again = show(page_of(factory.sweep()), anchor="#" + page.url.partition("#")[2])
    assert root_of(again)["rows"] == "9"
    assert drawn_picks(again) == chosen_keys(factory.sweep(), LIMITS)


@pytest.mark.slow
def test_coinciding_points_are_told_apart_and_listed(show):
    same = [factory.record(4, 8192, 32, key=f"{i:016x}") for i in range(3)]
    many = [factory.record(2, 8192, 64, key=f"{i:015x}a") for i in range(12)]
    page = show(page_of([*same, *many], ()))
    places = page.eval_on_selector_all(
        "#tradeoff .mark[data-standing]", "all => all.map(e => e.getAttribute('d'))"
    )
    assert len(set(places)) == 4  # three beside each other, and one that stands for twelve
    assert words(page, "#tradeoff .badge") == "12"
    page.locator("#tradeoff .cursor").focus()
    assert "2 further trials" in page.inner_text("#tip")


@pytest.mark.slow
def test_trials_are_compared_with_intervals_of_their_differences(show):
    records = list(with_intervals(factory.sweep(failures=False), 0.01))
    page = show(page_of(records))
    for row in (26, 25, 0):
        page.locator(f'[data-row="{row}"] input').check()
    assert page.inner_text("#h-selected") == "3 trials compared"
    row = page.locator("#differences tr", has_text="Output").inner_text()
    near, far = re.findall(r"\(([^)]*)\)", row)
    assert re.fullmatch(r"[+−][\d.]+% to [+−][\d.]+%", near)
    assert far.count("−") == 2
    assert "not told apart" not in row.split(")")[1]
    again = show(page_of(records), anchor="#" + page.url.partition("#")[2])
    assert again.inner_text("#h-selected") == "3 trials compared"


@pytest.mark.slow
def test_columns_are_chosen_rows_sorted_and_commands_whole(show):
    long = "vllm serve " + " ".join(f"--an-option-with-a-name-{i}=value" for i in range(40))
    records = [msgspec.structs.replace(r, cmd=long) for r in factory.sweep()]
    page = show(page_of(records, ()), width=1000)
    page.locator("#trials summary", has_text="Columns").click()
    page.locator("#trials .menu label", has_text="Launch command").click()
    page.keyboard.press("Escape")
    assert page.locator('[data-row="3"] code').inner_text() == long
    for block in page.locator("pre, #table code").all():
        assert block.evaluate("e => e.scrollWidth <= e.clientWidth + 1 || e.clientWidth === 0")
        assert block.evaluate("e => e.scrollHeight <= e.clientHeight + 1 || e.clientHeight === 0")
    head = page.locator("#table th button", has_text="TTFT p99")
    head.focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("TTFT p99")
    ok = [r for r in records if r.status == "ok"]
    least = min(ok, key=lambda r: r.results["p99_ttft_ms"])
    assert table_keys(page, records)[0] == least.key
    page.keyboard.press("Enter")
    most = max(ok, key=lambda r: r.results["p99_ttft_ms"])
    assert table_keys(page, records)[0] == most.key


@pytest.mark.slow
def test_a_long_table_is_turned_page_by_page(show):
    records = [factory.record(4, 8192, users) for users in range(1, 131)]
    page = show(page_of(records, ()))
    assert page.locator("[data-row]").count() == 50
    later = page.get_by_role("button", name="Later trials").first
    later.click()
    later.click()
    assert page.locator("[data-row]").count() == 30
    assert "101–130 of 130" in page.inner_text("#trials")
    assert later.is_disabled()


@pytest.mark.slow
def test_every_figure_is_saved_as_a_picture_and_as_a_drawing(show, tmp_path):
    page = show(page_of(factory.sweep()))
    for card in page.locator("section.figure").all():
        name = card.get_attribute("id")
        saved = {}
        for kind in ("SVG", "PNG"):
            with page.expect_download() as download:
                card.get_by_role("button", name=f"as {kind}").click()
            saved[kind] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[kind])
        drawing = saved["SVG"].read_text(encoding="utf-8")
        assert drawing.startswith("<svg"), name
        assert "var(" not in drawing, name
        assert "rgb(" in drawing, name
        assert saved["PNG"].read_bytes()[:4] == b"\x89PNG", name


@pytest.mark.slow
def test_summary_and_commands_are_copied(show):
    records = factory.sweep()
    page = show(page_of(records))
    page.evaluate("navigator.clipboard.writeText = async (t) => { window.copied = t; }")
    page.click("#summary")
    said = page.evaluate("window.copied")
    assert said.startswith("## Qwen/Qwen3-4B")
    assert "| Throughput pick | TP4" in said
    assert "simulated: no model ran" in said
    card = page.locator('[data-pick="throughput"]')
    card.get_by_role("button", name="Copy launch command").click()
    key = chosen_keys(records, LIMITS)["throughput"]
    assert page.evaluate("window.copied") == next(r.cmd for r in records if r.key == key)
    card.get_by_role("button", name="Copy deploy command").click()
    command = page.evaluate("window.copied")
    assert command.startswith(f"servetune deploy sagemaker t.json --key {key} --constraints ")
    limits = parse_constraints(re.search(r"--constraints '(.*?)'", command)[1])
    assert limits == LIMITS


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(show):
    page = show(page_of(factory.sweep()))
    wanted = page.evaluate(
        """[...document.querySelectorAll('button, select, input, summary, a[href], [tabindex="0"]')]
        .filter(e => e.checkVisibility() && !e.disabled).length"""
    )
    reached, hidden = 0, []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """(() => { const e = document.activeElement;
            if (!e || e === document.body) return null;
            const s = getComputedStyle(e), k = e.querySelector?.('.knob');
            const seen = s.outlineStyle !== 'none' || s.strokeWidth > '2'
              || (k && getComputedStyle(k).stroke !== 'none');
            return [e.outerHTML.slice(0, 90), seen]; })()"""
        )
        if at is None:
            break
        reached += 1
        hidden += [] if at[1] else [at[0]]
    assert reached >= wanted
    assert hidden == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_serious(show, scheme):
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_of(MIXED))
    page = show(free, scheme=scheme)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (each["id"], [node["html"][:120] for node in each["nodes"]][:4])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


MIXED = [*factory.sweep(), *factory.measured()]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_theme_of_the_system_until_one_is_chosen(show, scheme):
    page = show(page_of(factory.sweep()), scheme=scheme)
    assert root_of(page)["theme"] == scheme
    page.click("#theme")
    assert root_of(page)["theme"] != scheme


@pytest.mark.parametrize("count", [1, pytest.param(27, marks=pytest.mark.slow)])
def test_nothing_is_cut_on_a_narrow_screen(show, count):
    records = factory.sweep()[:count]
    more = {"timeline": timeline(90)} if count == 1 else {}
    page = show(page_of(records, **more), width=390, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    beyond = page.evaluate(
        """[...document.querySelectorAll('#app *')].filter(e => e.checkVisibility()
        && !e.closest('.scroll, .offscreen, .menu-body, .skip'))
        .filter(e => e.getBoundingClientRect().right > 390.5 || e.getBoundingClientRect().left < 0)
        .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert beyond == []


@pytest.mark.slow
def test_a_printed_study_fits_one_page(show):
    page = show(page_of(factory.sweep()))
    made = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", made)) == 1


@pytest.mark.slow
def test_a_hurried_simulation_and_a_machine_without_a_name_are_reported(show):
    records = [
        msgspec.structs.replace(
            each,
            results=each.results | {"simulated_speed": 50.0},
            metadata={k: v for k, v in each.metadata.items() if k != "instance_type"},
            provenance={"started_at": "2026-11-22T10:00:00.000+00:00"},
        )
        for each in (factory.record(), factory.record(users=64))
    ]
    text = show(page_of(records, ())).inner_text("#app")
    assert "At 50 times real time: latencies and costs are 1/50" in text
    assert "Price\n$5.752 per hour" in text
    assert "Simulated\n2026-11-22" in text
    slow = show(page_of([factory.record()], ())).inner_text("#app")
    assert "real time:" not in slow
    assert "Instance\nml.g6.12xlarge, $5.752 per hour" in slow


@pytest.mark.slow
def test_where_all_failed_the_page_says_so_and_shows_only_why(show):
    failed = [r for r in factory.sweep() if r.status == "failed"]
    page = show(page_of(failed, ()))
    assert root_of(page)["failed"] == "all"
    assert "All 2 trials failed, so there is nothing to pick or draw." in page.inner_text("#app")
    assert page.locator('[data-standing="failed"]').count() == 2
    assert page.locator("section.figure").count() == 0
    assert "failed" not in root_of(show(page_of(factory.sweep(), ())))


@pytest.mark.slow
def test_lines_that_look_alike_are_named_by_their_hue_and_knees_are_marked(show):
    few = [factory.record(tp, b, users) for tp in (1, 2) for b in (512, 1024) for users in (8, 64)]
    many = [
        factory.record(tp, 512 * b, users)
        for tp in (1, 2)
        for b in range(1, 10)
        for users in (8, 64, 256)
    ]
    assert "TP2 · batched tokens 1024" in show(page_of(few, ())).inner_text("#load")
    page = show(page_of(many, ()))
    hued = [each for each in texts(page, "#load .legend span") if each.startswith("TP")]
    assert hued == ["TP 1", "TP 2"]
    assert "18 server configurations: point at a mark to name its own" in page.inner_text("#load")
    assert page.locator("#load .plot > svg .knee").count() == 18


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


@pytest.mark.slow
@pytest.mark.parametrize(("count", "drawn"), [(1, 1), (90, 90), (5000, 150)])
def test_requests_are_drawn_as_bars_up_to_what_stays_readable(show, count, drawn):
    page = show(page_of([factory.record()], (), timeline=timeline(count)))
    assert root_of(page)["bars"] == str(drawn)
    assert page.locator("#timeline .bars .prefill").count() == drawn + 1  # and one in the legend
    said = "All" if count == drawn else f"{drawn} of {count:,}"
    assert page.inner_text("#timeline-note").startswith(f"{said} ")


@pytest.mark.slow
def test_later_requests_are_reached_by_turning_the_page(show):
    page = show(page_of([factory.record()], (), timeline=timeline(400)))
    for _ in range(3):
        page.get_by_role("button", name="Later requests").click()
    change(page)
    assert root_of(page)["bars"] == "100"  # the third page: 301 to 400
    assert "301" in texts(page, "#timeline text")


def test_a_single_run_has_a_page_of_its_own(show):
    page = show(page_of([factory.measured()[0]]))
    assert page.locator("[data-pick], #tradeoff, #load, #timeline").count() == 0
    assert "Output throughput\n1,093 tok/s" in page.inner_text("#run")
    assert "tensor_parallel_size" in page.inner_text("#trials")
    assert page.locator("#selected .plot svg[aria-label]").count() == 1


@pytest.mark.slow
def test_a_pick_shows_how_sure_it_is_and_no_tick_where_that_is_not_settled(show):
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
    page = show(page_of(records, (), search=search))
    card = page.locator('[data-pick="throughput"] .doubt')
    assert card.get_attribute("data-settled") == "false"
    said = card.inner_text()
    assert "? Not settled: within 2% of the best with a probability of 41%" in said
    assert "measuring TP=2 would settle most" in said
    assert "✓" not in said
    others = page.locator('.pick:not([data-pick="throughput"]) .verdict').all_inner_texts()
    assert [each.strip() for each in others] == ["? Rests on simulation alone."] * 2


@pytest.mark.slow
def test_a_page_that_follows_a_run_is_renewed_and_gives_orders(browser, tmp_path):
    """The server's part is played by Playwright's routes: events as text, and what was posted."""
    live = Live(events="/events", control="/control")
    first, second = factory.sweep()[:4], factory.sweep()[:9]
    status = {"label": "TP4", "stage": "load", "throughput": 812.0, "elapsed_s": 12.0, "errors": 3,
              "best": {"label": "TP2", "metric": "output throughput", "value": 700.0},
              "regret_fraction": 0.04, "time_left_s": 90.0, "done": 9, "of": 27,
              "state": "running", "running": [{"key": "k1", "label": "TP4", "stage": "load"}],
              }  # fmt: skip
    data = page_json(page_data(second, LIMITS, title="t", live=live)).decode()
    events = f"event: page\ndata: {data}\n\nevent: status\ndata: {json.dumps(status)}\n\n"
    posted = []

    def control(route):
        posted.append(route.request.post_data_json)
        route.fulfill(status=200 if posted[-1]["token"] == "right" else 403, body="{}")

    with browser.new_context() as context:
        context.route("**/page", lambda route: route.fulfill(
            content_type="text/html", body=page_of(first, live=live)))  # fmt: skip
        context.route("**/events", lambda route: route.fulfill(
            content_type="text/event-stream", body=events))  # fmt: skip
        context.route("**/control", control)
        page = context.new_page()
        page.goto("http://localhost:1/page")
        page.wait_for_selector("html[data-rows='9']")
        bar = page.locator(".live")
        page.wait_for_selector("text=812 tok/s")
        for said in ("9 of 27 trials", "Failed requests\n3", "TP2, output throughput 700",
                     "Regret so far\n4.0%", "Time left\n90.0 s"):  # fmt: skip
            assert said in bar.inner_text()
        for word, answer in (("wrong", "The token is not that"), ("right", "The run stops")):
            bar.get_by_role("button", name="Stop the run").click()
            bar.locator("input").fill(word)
            page.keyboard.press("Enter")
            page.wait_for_selector(f"text={answer}")
        bar.get_by_role("button", name="Put off this trial").click()
        page.wait_for_selector("text=is put off")
    assert posted == [
        {"action": "stop", "token": "wrong", "trial": ""},
        {"action": "stop", "token": "right", "trial": ""},
        {"action": "put_off", "token": "right", "trial": "k1"},
    ]


@pytest.mark.slow
def test_ten_thousand_trials_are_drawn_filtered_and_picked(show):
    base = factory.sweep(failures=False)
    records = []
    for i in range(10_000):
        row = base[i % 27]
        config = msgspec.structs.replace(
            row.config, server_args={**row.config.server_args, "block_size": i // 27}
        )
        factor = 1 + 0.3 * ((i * 7919) % 1000) / 1000
        slim = {
            name: value * factor if isinstance(value, float) and name != "error_rate" else value
            for name, value in row.results.items()
            if name != "quantiles"
        }
        records.append(msgspec.structs.replace(row, key=f"{i:016x}", config=config, results=slim))
    page = show(page_of(records))
    assert root_of(page)["points"] == "10000"
    assert page.locator("#tradeoff canvas").count() == 1
    assert drawn_picks(page) == chosen_keys(records, LIMITS)
    page.fill('[aria-label="Find trials"]', "TP4")
    four = sum(r.config.server_args["tensor_parallel_size"] == 4 for r in records)
    page.wait_for_selector(f"html[data-rows='{four}']")
