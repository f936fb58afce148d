"""Control sequences in logs, errors, names and journals: shown as text wherever they come out."""

import csv
import os
import pty
import re
import subprocess
import sys

import msgspec
import pytest

import forked
from servetune.errors import InputError
from servetune.metrics import Record
from servetune.report import as_text, dashboard_html, page_data_in, ranking_table
from servetune.store import Failure, record_from_json, write_requests_csv
from servetune.visible import visible

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
HOSTILE = {
    "OSC": CLIPBOARD,
    "OSC, C1": "\x9d52;c;cm0gLXJm\x9c",
    "DCS": '\x1bP$q"p\x1b\\',
    "CSI": "\x1b[2J\x1b[1;1H",
    "CSI, C1": "\x9b2J",
    "conceal": "\x1b[8m",
    "title": "\x1b]0;mine\x07",
    "override": "\u202efdp.exe",
    "isolate": "\u2066a\u2069",
    "mark": "\u200f\u061c",
    "bell": "\x07\x08\x00\x7f",
    "return": "done\rFAILED",
    "tag": "\U000e0041",
    "separator": "\u2028\u2029",
}
#: What no terminal or page may get; newline and tab may.
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0041]"
)


def trial(text):
    return record_from_json(
        {
            "config": {"client_args": {}, "server_args": {f"a{text}": text}},
            "results": {"output_throughput": 1.0, "backend": text},
            "metadata": {"model_tag": text, "gpu_type": text, "framework": text},
            "cmd": f"serve {text}",
        }
    )


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_control_character_is_shown_and_none_is_left(text):
    shown = visible(f"a {text} b")
    assert not CONTROL.search(shown)
    assert visible(shown) == shown
    assert shown.startswith(("a \\u", "a done\\u"))


@pytest.mark.parametrize("text", ["a\nb\tc", "é漢字😀 –…", "", "50%", "\u00a0"])
def test_other_text_stays(text):
    assert visible(text) == text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_tables_pages_and_errors_show_them(text):
    ended = trial(text)
    failed = msgspec.structs.replace(
        ended, status="failed", failure=Failure(kind="died", reason=text, log_tail=text)
    )
    for records in ([ended], [ended, failed]):
        assert not CONTROL.search(as_text(ranking_table(records, ())))
        page = dashboard_html(records, (), title=text)
        data = page_data_in(page)
        texts = [page, *_texts(data)]
        assert not any(CONTROL.search(each) for each in texts)
    error = InputError(f"no {text}", hint=text)
    assert not CONTROL.search(str(error) + error.hint)


def _texts(value):
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def on_a_terminal(*words, cwd):
    """What a command sends to a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*forked.COMMAND, *words], stdin=its, stdout=its, stderr=its, cwd=cwd, close_fds=True
    )
    os.close(its)
    sent = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        sent += piece
    process.wait(timeout=60)
    os.close(ours)
    return sent.decode(errors="replace")


def test_a_terminal_gets_no_control_sequence_of_a_journal(tmp_path):
    everything = " ".join(HOSTILE.values()).replace("\x00", "")
    (tmp_path / "q.jsonl").write_bytes(trial(everything).to_json() + b"\n")
    for words in (
        ("recommend", "q.jsonl"),
        ("report", "q.jsonl", "--force"),
        ("report", everything),
    ):
        sent = on_a_terminal(*words, cwd=tmp_path)
        assert "u001b]52;c;" in sent
        own = re.sub(r"\x1b\[[0-9;]*m", "", sent).replace("\r\n", "\n")  # colours of tables
        assert not CONTROL.search(own), words
        assert "\x1b[8m" not in sent


def test_a_log_of_a_server_reaches_the_terminal_as_text(sweep):
    code = (
        f"import sys; sys.stderr.write({(CLIPBOARD + 'RuntimeError: ' + CLIPBOARD)!r}); sys.exit(3)"
    )
    (sweep.folder / "dies.py").write_text(code)
    done = sweep.run(f"{sys.executable} dies.py {{port}}")
    assert done.returncode == 3
    assert not CONTROL.search(done.stdout + done.stderr)
    assert "u001b]52;c;" in done.stderr


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|'/c'!A1"]
)
def test_no_text_of_a_server_is_a_formula_in_a_spreadsheet(tmp_path, text):
    record = Record(
        index=0, input_tokens=1, output_tokens=1, due_s=-1.5, sent_s=0.0, end_s=1.0,
        outcome="http_status", status=500, detail=text, model=text,
    )  # fmt: skip
    path = tmp_path / "requests.csv"
    write_requests_csv(path, [record])
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    for name in ("detail", "model"):
        assert row[name][0] not in "=+-@\t\r\n"
        assert visible(text).lstrip("'") in row[name]
    assert row["due_s"] == "-1.5"  # a number stays one
