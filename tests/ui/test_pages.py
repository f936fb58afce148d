"""Pages over HTTP: who may read and order what, and an index of what is there."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from pages_client import first

from servetune.processes import ProcessMark
from servetune.store import Artifacts, RunningTrial, RunStatus, read_journal, write_status
from servetune.store.live import Order, take_order


def running(folder, stem="q", **more):
    """Write the status of a run of this very process."""
    trial = RunningTrial(key="k1", label="tensor_parallel_size=2", stage="measuring", errors=3)
    fields = {"run": "r1", "process": ProcessMark.own(), "running": (trial,), "done": 2, "of": 4}
    status = RunStatus(**{**fields, "written_unix_s": time.time(), **more})
    write_status(Artifacts(folder, stem), status)
    return status


def page_data(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


def test_the_page_of_a_run_follows_it_and_may_connect_to_its_own_server_alone(served, results):
    pages = served(results)
    [row] = pages.rows().values()
    status, headers, text = pages.ask(f"/runs/{row['key']}")
    assert status == 200
    data = page_data(text)
    assert len(data["trials"]) == 4
    assert data["live"]["events"].startswith(f"/runs/{row['key']}/events")
    assert data["live"]["control"] == f"/runs/{row['key']}/control"
    assert "connect-src 'self'" in re.search('Content-Security-Policy" content="(.*?)"', text)[1]
    assert headers["x-content-type-options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    offline = (results / "q.html").read_text()
    assert "connect-src 'self'" not in offline
    assert page_data(offline).get("live") is None


def test_a_single_file_is_the_whole_site(served, results):
    pages = served(results / "q.jsonl")
    status, headers, _ = pages.ask("/")
    assert status == 307
    assert pages.ask(headers["location"])[0] == 200


def test_a_summary_is_read_again_when_it_changes(served, results):
    pages, summary = served(results / "q.json"), json.loads((results / "q.json").read_text())
    key = pages.ask("/")[1]["location"].rpartition("/")[2]
    with pages.events(f"/runs/{key}/events") as events:
        assert len(first(events, "page")[1]["trials"]) == 4
        summary["test_results"] = summary["test_results"][:2]
        (results / "new").write_text(json.dumps(summary))
        (results / "new").replace(results / "q.json")
        assert len(first(events, "page")[1]["trials"]) == 2


def test_the_index_says_what_each_run_is(served, results):
    [row] = served(results).rows().values()
    assert (row["name"], row["standing"]) == ("results/q.jsonl", "ended")
    facts = row["facts"]
    assert (facts["model"], facts["machine"]) == ("Qwen/Qwen3-4B", "2 × NVIDIA L4")
    assert (facts["trials"], facts["failed"], facts["problem"]) == (4, 0, "")
    best = max(read_journal(results / "q.jsonl"), key=lambda one: one.results["output_throughput"])
    assert f"{best.results['output_throughput']:.0f}"[:3] in facts["pick"].replace(",", "")


def test_runs_that_come_later_show_up_the_newest_first(served, results):
    pages = served(results)
    with pages.events("/events") as events:
        assert [row["name"] for row in next(events)[2]] == ["results/q.jsonl"]
        (results / "deep" / "er").mkdir(parents=True)
        shutil.copy(results / "q.jsonl", results / "deep" / "er" / "later.jsonl")
        (results / "begun").mkdir()
        running(results / "begun", "bench")
        for _, _, rows in events:
            if len(rows) == 3 and all(row["read"] for row in rows):
                break
    assert {row["name"]: row["standing"] for row in rows} == {
        "results/begun/bench.jsonl": "running",
        "results/deep/er/later.jsonl": "ended",
        "results/q.jsonl": "ended",
    }
    assert rows[-1]["name"] == "results/q.jsonl"


def test_the_status_of_a_run_is_shown_with_its_page(served, results):
    running(results, best={"label": "x", "metric": "output throughput", "value": 5.0})
    pages = served(results)
    [row] = pages.rows().values()
    assert row["standing"] == "running"
    with pages.events(f"/runs/{row['key']}/events") as events:
        status = first(events, "status")[1]
        assert (status["label"], status["stage"]) == ("tensor_parallel_size=2", "measuring")
        assert (status["errors"], status["done"], status["of"]) == (3, 2, 4)
        assert (status["state"], status["best"]["value"]) == ("running", 5.0)
        (results / "q.status.json").unlink()
        status = first(events, "status")[1]
    assert (status["state"], status["label"], status["done"]) == ("ended", None, 2)


def test_a_reader_that_has_the_page_is_sent_no_page(served, results):
    pages = served(results)
    [row] = pages.rows().values()
    events_path = page_data(pages.ask(f"/runs/{row['key']}")[2])["live"]["events"]
    with pages.events(events_path) as events:
        assert next(events)[0] == "status"
        with (results / "q.jsonl").open("ab") as file:
            line = (results / "q.jsonl").read_bytes().splitlines()[0]
            file.write(line.replace(b'"key":"', b'"key":"other') + b"\n")
        name, version, data = next(events)
        assert (name, len(data["trials"])) == ("page", 5)
        assert data["live"]["events"] == events_path, "the page need not connect anew"
    with pages.events(events_path, **{"Last-Event-ID": version}) as events:
        assert next(events)[0] == "status"
        running(results)
        assert next(events)[0] == "status", "what is known is not sent again"


# who may order


def test_an_order_with_the_token_reaches_the_run(served, results):
    running(results)
    pages = served(results)
    [row] = pages.rows().values()
    for order, trial in ({"action": "stop"}, ""), ({"action": "put_off"}, "k1"):
        assert pages.post(row["key"], **order) == (202, {"accepted": order["action"]})
        assert take_order(Artifacts(results, "q"), "r1") == Order(
            run="r1", action=order["action"], trial=trial
        )


@pytest.mark.parametrize("token", ["", "wrong", "righ", "right ", "ríght", "x" * 3000])
def test_an_order_without_the_token_is_refused_and_writes_nothing(served, results, token):
    running(results)
    pages = served(results)
    [row] = pages.rows().values()
    status, answer = pages.post(row["key"], action="stop", token=token)
    assert status == 403
    assert "token" in answer["error"]
    assert not (results / "q.order.json").exists()


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '{"action": "stop"}', '{"action": "format", "token": "right"}', "x" * 5000],
)
def test_what_is_no_order_is_refused(served, results, body):
    running(results)
    pages = served(results)
    [row] = pages.rows().values()
    assert pages.ask(f"/runs/{row['key']}/control", "POST", body)[0] == 400
    assert not (results / "q.order.json").exists()


@pytest.mark.parametrize(
    ("status", "order", "reason"),
    [
        (None, {"action": "stop"}, "the run is not in progress"),
        ({"state": "ended"}, {"action": "stop"}, "the run is not in progress"),
        (
            {"refuses_put_off": "it is computed in one go"},
            {"action": "put_off"},
            "it is computed in one go",
        ),
        ({}, {"action": "put_off", "trial": "k9"}, "no such trial is running now"),
        ({"running": ()}, {"action": "put_off"}, "no such trial is running now"),
    ],
)
def test_an_order_that_cannot_be_obeyed_says_why(served, results, status, order, reason):
    if status is not None:
        running(results, **status)
    pages = served(results)
    [row] = pages.rows().values()
    assert pages.post(row["key"], **order) == (409, {"error": reason})
    assert not (results / "q.order.json").exists()


# what can be reached


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:{port}", 200), ("localhost:9", 200), ("[::1]", 200)),
        *(("evil.example", 421), ("127.0.0.1.evil.example", 421), ("evil.example:{port}", 421)),
        *(("localhost@evil.example", 421), ("[", 421), ("", 421)),
    ],
)
def test_other_names_of_the_server_are_not_answered(served, results, host, status):
    pages = served(results)
    host = host.format(port=pages.port)
    for path in ("/", "/events") if status != 200 else ("/",):
        assert pages.ask(path, Host=host)[0] == status


def test_an_order_from_a_page_of_another_site_is_refused(served, results):
    running(results)
    pages = served(results)
    [row] = pages.rows().values()
    path, body = f"/runs/{row['key']}/control", '{"action": "stop", "token": "right"}'
    for origin in ("https://evil.example", "null"):
        assert pages.ask(path, "POST", body, Origin=origin)[0] == 421
    assert pages.ask(path, "POST", body, Origin=pages.address)[0] == 202


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.jsonl", "/runs/../secret.jsonl", "/runs/%2e%2e%2fsecret.jsonl"),
        *("/runs/..%2f..%2fetc%2fpasswd", "/runs//etc/passwd", "/q.jsonl", "/runs/q.jsonl"),
        *("/runs/..%5csecret.jsonl/events", "/runs/%00", "//secret.jsonl", "/runs/"),
    ],
)
def test_no_path_leads_to_a_file(served, results, path):
    pages = served(results)
    pages.rows()
    status, _, text = pages.ask(path)
    assert status == 404
    assert "Qwen" not in text
    assert "root:" not in text


def test_links_out_of_the_folder_and_what_is_no_file_are_passed_over(served, results):
    (results / "out.jsonl").symlink_to(results.parent / "secret.jsonl")
    (results / "folder").symlink_to(results.parent)
    os.mkfifo(results / "pipe.jsonl")
    assert list(served(results).rows()) == ["results/q.jsonl"]


# bad input


def test_a_journal_whose_last_line_is_cut_opens_with_what_is_whole(served, results):
    whole = (results / "q.jsonl").read_bytes()
    (results / "q.jsonl").write_bytes(whole[:-100])
    pages = served(results)
    [row] = pages.rows().values()
    assert row["facts"]["trials"] == 3
    with pages.events(f"/runs/{row['key']}/events") as events:
        assert len(first(events, "page")[1]["trials"]) == 3
        (results / "q.jsonl").write_bytes(whole)
        assert len(first(events, "page")[1]["trials"]) == 4


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace(b'"servetune_schema":', b'"servetune_schema":99'), "schema 99"),
        (lambda text: b"<b>no json</b>\n" + text, "line 1: not JSON"),
    ],
)
def test_a_journal_that_cannot_be_read_says_so(served, results, change, problem):
    (results / "q.jsonl").write_bytes(change((results / "q.jsonl").read_bytes()))
    pages = served(results)
    [row] = pages.rows().values()
    assert problem in row["facts"]["problem"]
    status, _, text = pages.ask(f"/runs/{row['key']}")
    assert status == 422
    assert problem in text
    assert "<b>" not in text


def test_a_status_of_a_newer_servetune_says_so(served, results):
    (results / "q.status.json").write_text('{"schema": 99}')
    pages = served(results)
    [row] = pages.rows().values()
    with pages.events(f"/runs/{row['key']}/events") as events:
        status = first(events, "status")[1]
    assert (status["state"], "schema 99" in status["note"]) == ("lost", True)


def test_hostile_names_stay_data(served, results):
    evil = "</script><script>alert(1)</script>\u202e\x1b[31m"
    text = (results / "q.jsonl").read_text().replace("Qwen/Qwen3-4B", json.dumps(evil)[1:-1])
    (results / "q.jsonl").write_text(text)
    pages = served(results)
    [row] = pages.rows().values()
    page = pages.ask(f"/runs/{row['key']}")[2]
    assert "<script>alert" not in page
    with pages.events(f"/runs/{row['key']}/events") as events:
        data = first(events, "page")[1]
    assert "\x1b" not in data["header"]["model"]
    assert "\u202e" not in data["header"]["model"]
    assert "<script>alert" in data["header"]["model"]


# the command


def test_sources_that_are_not_there_are_refused(called, tmp_path):
    done = called("ui", "nowhere")
    assert done.returncode == 2
    assert "nowhere is not there" in done.stderr


def test_without_the_extra_one_error_says_what_to_install(called, tmp_path, monkeypatch):
    for name in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    done = called("ui", ".")
    assert done.returncode == 2
    assert "starlette and uvicorn, which are not installed" in done.stderr
    assert "pip install 'servetune[ui]'" in done.stderr


def test_nothing_of_http_is_imported_before_something_is_served():
    script = "import sys, servetune.api.pages; sys.exit('starlette' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("report", "--serve", "nowhere"),
        ("visualize", "nowhere"),
        ("visualize", "--data-file", "nowhere"),
        ("visualize", "--data-file=nowhere"),
    ],
)
def test_other_names_of_the_command_are_the_same(called, words):
    done = called(*words, "--port", "8080")
    assert "nowhere is not there" in done.stderr


def test_a_port_that_is_taken_is_named(called, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = called("ui", ".", "--port", port)
    assert done.returncode == 3
    assert f"port {port} is already in use" in done.stderr
