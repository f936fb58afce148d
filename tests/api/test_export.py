"""Trials as CSV, Parquet and Markdown, from Python and from the command line."""

import csv
import re
from pathlib import Path

import pytest

import servetune as st
from servetune.errors import InputError

PUBLISHED = Path(__file__).parents[2] / "examples/published/qwen3-4b-4xl4.jsonl"
GUIDE = Path(__file__).parents[2] / "docs/guides/report.md"


@pytest.fixture(scope="module")
def trials():
    return st.read(PUBLISHED, "ttft:p99<=2s")


def test_a_csv_has_a_row_per_trial_with_the_columns_of_the_frame(trials, tmp_path):
    trials.export(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(trials.df.columns) == list(trials.polars.columns)
    assert [row["key"] for row in rows] == [record.key for record in trials]
    assert float(rows[0]["output_throughput"]) == trials.records[0].results.output_throughput
    assert {row["meets_constraints"] for row in rows} <= {"True", "False"}


def test_the_guide_says_what_the_columns_are(trials):
    guide = GUIDE.read_text(encoding="utf-8")
    own = [name for name in trials.df.columns if not name.startswith(("server.", "client."))]
    results = trials.records[0].results.keys()
    assert [name for name in own if name not in results and f"`{name}`" not in guide] == []


def test_frames_of_both_kinds_hold_the_same(trials):
    pandas, polars = trials.df, trials.polars
    assert pandas.shape == polars.shape
    for name in ("key", "mean_ttft_ms", "server.tensor_parallel_size"):
        assert list(pandas[name]) == polars[name].to_list()


def test_parquet_is_read_back_by_both(trials, tmp_path):
    import pandas as pd
    import polars as pl

    trials.export(tmp_path / "t.parquet")
    assert list(pd.read_parquet(tmp_path / "t.parquet")["key"]) == list(trials.df["key"])
    assert pl.read_parquet(tmp_path / "t.parquet")["key"].to_list() == list(trials.df["key"])


def test_a_file_without_a_known_ending_is_refused_before_anything_is_written(trials, tmp_path):
    with pytest.raises(InputError, match="says no format") as refused:
        trials.export(tmp_path / "t.xlsx")
    assert ".csv, .parquet, .md" in refused.value.hint
    with pytest.raises(InputError):
        st.write_report(PUBLISHED, output_json=tmp_path / "r.json", export=[tmp_path / "t.xlsx"])
    assert list(tmp_path.iterdir()) == []


def test_report_exports_what_it_is_asked_for_and_writes_over_nothing(called, tmp_path):
    words = (
        "report",
        PUBLISHED,
        "--output-json",
        "r.json",
        "--export",
        "t.md",
        "--export",
        "t.csv",
    )
    done = called(*words)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^export +(\S+)$", done.stderr, re.M) == ["t.md", "t.csv"]
    text = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert text == st.read(PUBLISHED).to_markdown()
    assert "servetune deploy compose" in text
    again = called(*words)
    assert again.returncode == 2
    assert "t.md exists already" in again.stderr
    assert called(*words, "--force").returncode == 0


def test_a_frame_without_polars_names_what_to_install(trials, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="a data frame needs polars") as missing:
        _ = trials.polars
    assert missing.value.hint == "pip install 'servetune[polars]'"
