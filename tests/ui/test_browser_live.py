"""Served pages in a real browser: the index, a run's page, and what a page is told."""

import contextlib
import shutil

import pytest
from chromium import CHROMIUM, Chromium
from starlette.responses import HTMLResponse
from starlette.routing import Route
from test_pages import running

from servetune.store import Artifacts
from servetune.store.live import Order, take_order

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
]
EVIL = "<img src=x onerror=document.title=1></script><b>\u202e"

#: Page of the tests' own that does what the page of a run is to do with its two addresses.
FOLLOWER = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>
const told = {};
const events = new EventSource(new URLSearchParams(location.search).get('events'));
for (const name of ['page', 'status'])
  events.addEventListener(name, (event) => { (told[name] ??= []).push(JSON.parse(event.data)); });
const order = async (action, token) => {
  const control = new URLSearchParams(location.search).get('control');
  const answer = await fetch(control, { method: 'POST', body: JSON.stringify({ action, token }) });
  return [answer.status, await answer.json()];
};
</script>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all tests of this file."""
    with contextlib.closing(Chromium(tmp_path_factory.mktemp("profile"))) as browser:
        yield browser


@pytest.fixture
def quiet(browser, served):
    """The browser, whose page must write nothing to its console while the server lives."""
    browser.messages.clear()
    yield browser
    written = list(browser.messages)
    browser.open("about:blank")
    assert written == []


ROWS = "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)"


@pytest.mark.parametrize("width", [1300, pytest.param(390, marks=pytest.mark.slow)])
def test_the_index_lists_runs_as_text_and_the_search_narrows_them(quiet, served, results, width):
    (results / "two").mkdir()
    text = (results / "q.jsonl").read_text().replace("Qwen/Qwen3-4B", "other/<b>model</b>")
    (results / "two" / "<i>.jsonl").write_text(text)
    running(results / "two", "<i>")
    quiet.open(served(results).address, width=width)
    rows = quiet.await_value(ROWS, lambda rows: len(rows) == 2 and "being read" not in str(rows))
    assert "two/<i>.jsonl" in rows[0]
    assert "other/<b>model</b>" in rows[0]
    assert "running" in rows[0]
    assert "Qwen/Qwen3-4B" in rows[1]
    assert quiet.value("document.getElementById('count').textContent") == "2 runs"
    search = "document.getElementById('search')"
    quiet.value(f"{search}.value = 'QWEN ended'; {search}.dispatchEvent(new Event('input'))")
    assert ["Qwen/Qwen3-4B" in row for row in quiet.value(ROWS)] == [True]
    assert quiet.value("document.getElementById('count').textContent") == "1 of 2 runs"
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert quiet.value(overflow) <= 0
    shutil.rmtree(results / "two")
    quiet.await_value("document.getElementById('count').textContent", "1 run".__eq__)


def test_a_run_of_the_index_opens_its_page(quiet, served, results):
    pages = served(results)
    quiet.open(pages.address)
    quiet.await_value("document.querySelectorAll('tbody a').length")
    quiet.value("document.querySelector('tbody a').click()")
    quiet.await_value("location.pathname", lambda path: path.startswith("/runs/"))
    quiet.await_value("document.readyState", "complete".__eq__)
    assert "Qwen/Qwen3-4B" in quiet.await_value("document.body.innerText")


def test_a_page_follows_its_run_and_orders_it(quiet, served, results):
    status = running(results)
    pages = served(results)
    pages.app.routes.append(Route("/follow", lambda _: HTMLResponse(FOLLOWER)))
    [row] = pages.rows().values()
    address = f"/runs/{row['key']}"
    quiet.open(f"{pages.address}/follow?events={address}/events&control={address}/control")
    assert quiet.await_value("told.page?.at(-1).trials.length") == 4
    assert quiet.value("told.status.at(-1).label") == status.running[0].label
    with (results / "q.jsonl").open("ab") as file:
        line = (results / "q.jsonl").read_bytes().splitlines()[0]
        file.write(line.replace(b'"key":"', b'"key":"other') + b"\n")
    quiet.await_value("told.page.at(-1).trials.length", (5).__eq__)
    assert quiet.value("order('stop', 'right')") == [202, {"accepted": "stop"}]
    assert take_order(Artifacts(results, "q"), "r1") == Order(run="r1", action="stop")
    (results / "q.status.json").unlink()
    quiet.await_value("told.status.at(-1).state", "ended".__eq__)


def test_a_wrong_token_is_told_to_the_page(browser, served, results):
    running(results)
    pages = served(results)
    pages.app.routes.append(Route("/follow", lambda _: HTMLResponse(FOLLOWER)))
    [row] = pages.rows().values()
    address = f"/runs/{row['key']}"
    browser.open(f"{pages.address}/follow?events={address}/events&control={address}/control")
    browser.await_value("told.status?.length")
    status, answer = browser.value("order('stop', 'wrong')")
    assert status == 403
    assert "token" in answer["error"]
    assert not (results / "q.order.json").exists()
