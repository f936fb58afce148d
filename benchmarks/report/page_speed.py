"""How long the page of a long run takes to open, and to answer to what a reader does.

Run: python benchmarks/report/page_speed.py [--trials 10000]
Makes a page of simulated trials with different values, opens it from disk in headless Chromium, and
prints for each action the time from the event to the last change of the document.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "report"))
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import dashboard_html
from servetune.store.schema import TrialRecord

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")
_NEXT_CHANGE = """(quiet_ms) => { const start = performance.now(); let last = start, timer;
  window.settled = new Promise(done => {
    const end = () => { seen.disconnect(); done(last - start); };
    const seen = new MutationObserver(() => {
      last = performance.now(); clearTimeout(timer); timer = setTimeout(end, quiet_ms); });
    seen.observe(document.body, {subtree: true, childList: true, attributes: true});
    timer = setTimeout(end, 8000); }); }"""
#: Actions as scripts; each is done once, in this order.
ACTIONS = {
    "filter by text": "set('[aria-label=\"Find trials\"]', 'TP4', 'input')",
    "filter off": "set('[aria-label=\"Find trials\"]', '', 'input')",
    "other axis": "set('[aria-label=\"X: quantity\"]', 'ttft', 'change')",
    "axis back": "set('[aria-label=\"X: quantity\"]', 'e2e_latency', 'change')",
    "colour by a setting": "set('[aria-label=Colour]', 'tensor_parallel_size', 'change')",
    "limit off": "document.querySelector('.chip button').click()",
    "limit on": "document.querySelector('.chip button').click()",
    "limit moved": "document.querySelector('#tradeoff [data-limit]').dispatchEvent("
    "new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))",
    "table sorted": "document.querySelectorAll('#table th button')[6].click()",
    "table turned": "document.querySelector('[aria-label=\"Later trials\"]').click()",
    "trial selected": "document.querySelector('#table tbody tr').click()",
}
_SET = """const set = (where, value, event) => { const e = document.querySelector(where);
  e.value = value; e.dispatchEvent(new Event(event, {bubbles: true})); };"""


def many(count: int) -> Iterator[TrialRecord]:
    """Trials whose values differ by up to 30%, with distributions of their own."""
    base = factory.sweep()
    for i in range(count):
        row = base[i % len(base)]
        server_args = {**row.config.server_args, "block_size": i // len(base)}
        factor = 1 + 0.3 * ((i * 7919) % 1000) / 1000
        results = {
            name: value * factor if isinstance(value, float) and name != "error_rate" else value
            for name, value in row.results.items()
        }
        config = msgspec.structs.replace(row.config, server_args=server_args)
        yield msgspec.structs.replace(row, key=f"{i:016x}", config=config, results=results)


def answer_ms(page: Page, action: str) -> float:
    """Time from an action to the last change of the document that it causes."""
    page.evaluate(_NEXT_CHANGE, 250)
    page.evaluate(f"() => {{ {_SET} {action}; }}")
    return float(page.evaluate("window.settled"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    count = parser.parse_args().trials
    begun_s = time.monotonic()
    text = dashboard_html(list(many(count)), LIMITS, title="page_speed")
    found = {
        "trials": count,
        "made_s": round(time.monotonic() - begun_s, 1),
        "page_mb": round(len(text.encode()) / 1e6, 2),
    }
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder, "page.html")
        path.write_text(text, encoding="utf-8")
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        begun_s = time.monotonic()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        found["opened_s"] = round(time.monotonic() - begun_s, 2)
        page.wait_for_timeout(2000)
        found |= {f"{name}, ms": round(answer_ms(page, each)) for name, each in ACTIONS.items()}
        browser.close()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
