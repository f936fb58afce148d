from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

# The factory beside these tests is no package of its own.
sys.path.insert(0, str(Path(__file__).parent))

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: Addresses that a page may load: itself, and what it makes.
FILES = ("file:", "data:", "blob:")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page from disk; what it says to the console or asks of a network fails the test."""
    said, contexts = [], []

    def load(text, *, width=1400, height=1000, scheme="light", anchor="", broken=False):
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(FILES) else said.append(r.url))
        context.set_offline(True)
        page.goto(path.as_uri() + anchor)
        page.wait_for_selector(
            "html[data-error]" if broken else "html[data-ready]", state="attached"
        )
        return page

    yield load
    for context in contexts:
        context.close()
    assert said == []
