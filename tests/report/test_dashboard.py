from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import msgspec
import report_records as factory

from servetune.metrics import parse_constraints
from servetune.report import Live, dashboard_html
from servetune.store.schema import Failure, record_from_json

LIMITS = parse_constraints("e2e_latency:p99<=60s;request_throughput>=5")
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Outline(HTMLParser):
    """Elements in order, those with an id, and every address."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.addresses, self.tags = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.tags.append(tag)
        if "id" in named:
            self.ids.append(f"{tag}#{named['id']}")
        self.addresses += [named[n] for n in ("src", "href", "action", "data") if named.get(n)]


def page(records, **more):
    return dashboard_html(records, LIMITS, title="Qwen3-4B", **more)


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_loads_nothing_from_anywhere():
    text = page(factory.sweep())
    assert Outline(text).addresses == []
    without_names = re.sub(r"http://www\.w3\.org/[\w/]+", "", text)  # names, never fetched
    assert not re.search(r"https?:|//cdn|@import|url\(|XMLHttp|sendBeacon|WebSocket", without_names)
    assert "connect-src 'none'" in text


def test_only_a_page_that_follows_a_run_may_ask_and_only_its_own_server():
    live = Live(events="events", control="control")
    assert "connect-src 'self'" in page(factory.sweep(), live=live)
    assert data_of(page(factory.sweep(), live=live))["live"] == {
        "events": "events",
        "control": "control",
    }
    assert data_of(page(factory.sweep()))["live"] is None


def test_the_policy_names_the_only_script_and_style_by_digest():
    text = page(factory.sweep())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    script = re.search(r"<script>(.*?)</script>", text, re.S)[1]
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    for body in (script, style):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_no_style_or_handler_attributes_that_the_policy_would_block():
    assert not re.search(r"<[a-z][^>]*\s(style|on\w+)=", page(factory.sweep()))


def test_markup_in_data_stays_text():
    failure = Failure(kind="died", reason=EVIL, log_tail=f"log {EVIL}")
    record = factory.record(failure=failure)
    odd = msgspec.structs.replace(
        record, cmd=EVIL, metadata={**record.metadata, "model_tag": EVIL, "gpu_type": EVIL}
    )
    plain = page([factory.record(failure=Failure(kind="died", reason="r", log_tail="l"))])
    text = dashboard_html([odd, factory.record(2)], LIMITS, title=EVIL)
    assert Outline(text).tags.count("script") == Outline(plain).tags.count("script") == 2
    assert "img" not in Outline(text).tags
    assert "<script>alert" not in text
    assert data_of(text)["trials"][0]["failure"]["log_tail"] == f"log {EVIL}"


def test_a_name_of_a_placeholder_in_data_is_not_replaced():
    record = factory.record()
    odd = msgspec.structs.replace(record, metadata={"model_tag": "{{script}}"})
    assert data_of(page([odd]))["header"]["model"] == "{{script}}"


def test_equal_arguments_give_equal_pages():
    assert page(factory.sweep()) == page(factory.sweep())


def test_27_trials_stay_below_350_kilobytes():
    assert len(page(factory.sweep()).encode()) < 350_000


def test_without_a_script_the_findings_are_a_plain_table():
    static = re.search(r"<noscript>(.*?)</noscript>", page(factory.sweep()), re.S)[1]
    assert static.count("<tr>") == 28
    assert "SIMULATED: all 27 trials were simulated" in static
    assert "Throughput pick: TP4" in static
    assert "failed: the server ran out of GPU memory" in static
    assert "misses e2e_latency:p99&lt;=60s" in static


def test_without_a_script_failed_requests_are_a_column_and_a_reason():
    def static(records):
        return re.search(r"<noscript>(.*?)</noscript>", page(records), re.S)[1]

    text = static(factory.dirty_sweep())
    assert text.count("<td>14/30, 47% failed</td>") == 3
    assert "trials with more than 1% failed requests" in text
    widths = {row.count("<td>") + row.count("<th>") for row in re.findall(r"<tr>.*?</tr>", text)}
    assert len(widths) == 1
    assert "Failed requests" not in static(factory.sweep())


def test_an_empty_journal_makes_a_page():
    text = page([])
    assert data_of(text)["trials"] == []
    assert "No trials yet" in text


def test_foreign_records_show_dashes_and_never_nan():
    text = page([record_from_json(factory.foreign_json(users)) for users in (32, 64)])
    static = re.search(r"<noscript>(.*?)</noscript>", text, re.S)[1]
    assert "<td>–</td>" in static
    assert "nan" not in static.lower()
    assert "NaN" not in json.dumps(data_of(text))


def test_the_page_without_scripts_has_the_columns_of_the_table():
    page = dashboard_html(factory.sweep(), (), title="t")
    heads = re.findall(r"<th>(.*?)</th>", page)
    assert heads == [
        "Configuration",
        "Output throughput",
        "Request throughput",
        "TTFT mean",
        "TTFT p99",
        "ITL mean",
        "E2E p99",
        "Cost per million output tokens",
        "Standing",
    ]
