"""`servetune compare` on the command line."""

import html
import json
import re
from xml.etree import ElementTree as ET

import pytest

from servetune.cli.main import cli, main
from servetune.errors import ServetuneError, StoreError
from servetune.store import SCHEMA, TrialConfig, TrialRecord, write_record


@pytest.fixture
def sides(tmp_path):
    """Folders of three runs each: base, one that is equal, one that is 20% slower."""
    for name, slower in (("base", 1.0), ("same", 1.001), ("slow", 1.2)):
        for seed in (1, 2, 3, 4):
            rate = 1000 / slower * (1 + 0.003 * ((seed * len(name)) % 3))
            load = {"max_concurrency": 8, "seed": seed}
            made = TrialRecord(
                servetune_schema=SCHEMA,
                key=f"{seed}",
                config=TrialConfig(client_args=load),
                results={"completed": 900, "failed": 0, "output_throughput": rate},
                provenance={"started_at": f"{seed}{name}"},
            )
            path = tmp_path / name / str(seed) / "bench.jsonl"
            path.parent.mkdir(parents=True)
            write_record(path, made)
    return tmp_path


def status(*words):
    return cli.main(["compare", *map(str, words)], standalone_mode=False)


def test_the_exit_status_is_that_of_the_gate(sides, capsys):
    gate = ("--fail-on", "output_throughput<-5%")
    assert status(sides / "base", sides / "slow", *gate) == 1
    assert "gate failed: output_throughput<-5%" in capsys.readouterr().out
    assert status(sides / "base", sides / "same", *gate, "--strict") == 0
    assert status(sides / "base", sides / "slow") == 0
    rare = ("--fail-on", "error_rate>+0.0001")
    assert status(sides / "base", sides / "same", *rare) == 0
    assert "cannot tell: error_rate>+0.0001" in capsys.readouterr().out
    assert status(sides / "base", sides / "same", *rare, "--strict") == 1


def test_programs_get_json_and_a_job_its_summary(sides, capsys):
    junit = sides / "gate.xml"
    assert status(sides / "base", sides / "slow", "--json", "--junit", junit) == 0
    found = json.loads(capsys.readouterr().out)
    (only,) = found["configurations"]
    assert (only["base_runs"], only["paired"]) == (4, True)
    assert only["rows"][0]["verdict"] == "worse"
    assert ET.parse(junit).getroot().tag == "testsuites"
    assert status(f"{sides}/ba*/*/*.jsonl", sides / "slow", "--markdown", "-") == 0
    assert capsys.readouterr().out.startswith("# Comparison")
    assert status(sides / "base", "--plan-run", "--fail-on", "output_throughput<-5%") == 0
    assert "5 runs a side, 900 requests each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("base", "none"), "none is not there"),
        (("base", "slow", "--fail-on", "output_throughput>-5%"), "is no regression"),
        (("base", "slow", "--fail-on", "ttft>+5%"), "neither side has ttft>+5%"),
        (("base", "slow", "--json", "--markdown", "-"), "both for standard output"),
        (("base", "base"), "is on both sides"),
        (("base", "slow", "--tolerance", "0"), "tolerance"),
        (("base", "slow", "--out", "page.pdf"), "does not end in .html"),
        (("base", "--plan-run", "--out", "page.html"), "judges nothing that --out"),
        ((), "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(sides, monkeypatch, capsys, words, error):
    monkeypatch.chdir(sides)
    monkeypatch.setattr("sys.argv", ["servetune", "compare", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2
    assert error.lower() in told[0].lower()
    assert len(told) == 2
    assert told[1].startswith("hint: ")


def test_a_page_has_the_verdict_the_gate_and_every_change_without_a_network(sides, capsys):
    page = sides / "page.html"
    gate = ("--fail-on", "output_throughput<-5%")
    assert status(sides / "base", sides / "slow", *gate, "--out", page) == 1
    text = page.read_text(encoding="utf-8")
    assert "gate failed (1 failed" in text
    assert "output_throughput&lt;-5%" in text
    assert "<script" not in text
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", text)
    (drawn,) = re.findall(r'<svg class="worse".*?</svg>', text)  # errors are a share, not drawn
    assert 'aria-label="Output: worse: changed -1' in drawn
    assert "stroke-dasharray" in drawn  # the gate's threshold
    assert "tells from" in text
    again = sides / "again.html"
    status(sides / "base", sides / "slow", *gate, "--out", again)
    assert again.read_bytes() == page.read_bytes()
    hostile = sides / "<img src=x>"
    (sides / "slow").rename(hostile)
    status(sides / "base", hostile, "--out", page)
    assert "<img" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("harm", ["missing", "empty", "no answer"])
def test_a_server_that_was_down_is_an_error_in_the_reports_of_a_job(sides, capsys, harm):
    new = sides / "new" / "1" / "bench.jsonl"
    if harm != "missing":
        new.parent.mkdir(parents=True)
        new.touch()
    if harm == "no answer":
        none = {"completed": 0, "failed": 9}
        write_record(new, TrialRecord(config=TrialConfig(), results=none, status="failed"))
    files = {name: sides / f"gate.{name}" for name in ("xml", "md", "html")}
    words = ("--junit", files["xml"], "--markdown", files["md"], "--out", files["html"])
    gate = () if harm == "no answer" else ("--fail-on", "ttft:p99>+10%;output_throughput<-5%")
    with pytest.raises(ServetuneError) as refused:
        status(sides / "base", sides / "new", *words, *gate)
    assert refused.value.exit_code == 2
    root = ET.parse(files["xml"]).getroot()
    cases = list(root.iter("testcase"))
    assert root.get("errors") == str(len(cases)) == ("1" if harm == "no answer" else "2")
    assert {case.find("error").get("message") for case in cases} == {refused.value.message}
    for name in ("md", "html"):
        told = files[name].read_text(encoding="utf-8").replace("\\", "")
        assert f"not compared: {refused.value.message}" in html.unescape(told)
    capsys.readouterr()
    with pytest.raises(ServetuneError):
        status(sides / "base", sides / "new", "--markdown", "-")
    assert "not compared: " in capsys.readouterr().out


def test_files_beside_journals_are_no_side_unless_they_are_named(sides):
    for path in sides.glob("*/*/bench.jsonl"):
        (path.parent / "bench.timelines.jsonl").write_text('{"key": "1", "timeline": {}}\n')
        (path.parent / "bench.status.json").write_text("{}")
        (path.parent / "bench.json").write_bytes(path.read_bytes())
    assert status(f"{sides}/base/*/bench*", f"{sides}/same/*/*.json*") == 0
    with pytest.raises(StoreError, match=r"timelines of a run, and no trials") as refused:
        status(sides / "base", sides / "same" / "1" / "bench.timelines.jsonl")
    assert "give its journal, " in refused.value.hint
    with pytest.raises(StoreError, match=r"has timelines of a run"):
        status(sides / "base", f"{sides}/same/*/*.timelines.jsonl")
    with pytest.raises(StoreError, match=r"no journal, but other files such as"):
        status(sides / "base", f"{sides}/same/*/bench.t*")


def test_a_half_written_line_is_left_out_and_a_torn_file_is_said(sides, capsys):
    torn = sides / "base" / "4" / "bench.jsonl"
    whole = torn.read_bytes()
    torn.write_bytes(whole + whole[:80])
    assert status(sides / "base", sides / "slow") == 0
    torn.write_bytes(b"{]\n" + whole)
    with pytest.raises(StoreError, match=r"bench\.jsonl"):
        status(sides / "base", sides / "slow")


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
@pytest.mark.parametrize("new", ["slow", "missing"])
def test_a_journal_is_not_replaced_by_a_comparison(sides, option, new):
    journal = sides / "base" / "1" / "bench.jsonl"
    before = journal.read_bytes()
    with pytest.raises(ServetuneError, match="would replace") as refused:
        status(sides / "base", sides / new, option, journal)
    assert "name another file" in refused.value.hint
    assert journal.read_bytes() == before


def test_two_outputs_are_two_files(sides):
    page = sides / "p.html"
    with pytest.raises(ServetuneError, match="--junit and --out are one file"):
        status(sides / "base", sides / "slow", "--out", page, "--junit", page)
    assert not page.exists()


def test_a_gate_and_the_table_assume_the_same_of_runs_without_intervals(sides, capsys):
    one = (sides / "base" / "1", sides / "slow" / "1", "--fail-on", "output_throughput<-5%")
    assert status(*one) == 1
    assert "gate failed: output_throughput<-5%" in capsys.readouterr().out


def test_a_pattern_passes_over_what_is_no_run(sides, capsys):
    (sides / "base" / "log.err").write_text("WARNING started\n")
    (sides / "base" / "notes.txt").write_text("slower since Monday\n")
    gate = ("--fail-on", "output_throughput<-5%")
    assert status(f"{sides}/base/*", f"{sides}/slow/*", *gate) == 1
    assert "pairs with equal seeds" in capsys.readouterr().out
