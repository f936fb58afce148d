"""`servetune compare` on the command line."""

import json
from xml.etree import ElementTree as ET

import pytest

from servetune.cli.main import cli, main
from servetune.errors import StoreError
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


def test_a_half_written_line_is_left_out_and_a_torn_file_is_said(sides, capsys):
    torn = sides / "base" / "4" / "bench.jsonl"
    whole = torn.read_bytes()
    torn.write_bytes(whole + whole[:80])
    assert status(sides / "base", sides / "slow") == 0
    torn.write_bytes(b"{]\n" + whole)
    with pytest.raises(StoreError, match=r"bench\.jsonl"):
        status(sides / "base", sides / "slow")
