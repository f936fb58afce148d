"""`servetune runs export` and `runs sql` as a user types them."""

import json

import pytest
from rich.console import Console

from servetune.api import QueryAnswer, export_runs, query_runs
from servetune.cli.runs_sql import show
from servetune.errors import StoreError
from servetune.store import TrialConfig, TrialRecord, read_requests, write_requests_parquet

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra 'parquet')")
pytest.importorskip("duckdb", reason="DuckDB is not installed (extra 'sql')")


@pytest.fixture
def results(tmp_path):
    """Folder with a journal of a measured, a failed and a simulated trial, and a trace."""
    lines = [
        {
            "config": {"client_args": {"max_concurrency": 8}, "server_args": {}},
            "results": {"output_throughput": 300.0} if status == "ok" else {},
            "metadata": {"model_tag": "Qwen/Qwen3-4B", "gpu_type": "NVIDIA L4", "gpu_count": 1},
            "key": f"{status}{simulated}",
            "status": status,
            "simulated": simulated,
        }
        for status, simulated in (("ok", False), ("failed", False), ("ok", True))
    ]
    (tmp_path / "results").mkdir()
    journal = tmp_path / "results" / "q.jsonl"
    journal.write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "results" / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 5}\n')
    request = {"index": 0, "due_s": 0.0, "sent_s": 0.0, "admitted_s": 0.0, "first_token_s": 0.1,
               "end_s": 0.5, "input_tokens": 5, "output_tokens": 2, "outcome": "ok"}  # fmt: skip
    (tmp_path / "results" / "q.requests.jsonl").write_text(json.dumps(request) + "\n")
    return journal.parent


def test_measured_trials_are_exported_and_what_is_left_out_is_told(results, called):
    done = called("runs", "export", "results", "--to", "lake")
    assert done.stdout.splitlines() == [
        "1 trial in lake: 1 written",
        "1 simulated trial left out: --simulated",
        "1 failed trial left out: --failed",
    ]
    assert "trace.jsonl begins with no trial and is left out" in done.stderr
    everything = called("runs", "export", "results", "--to", "lake", "--simulated", "--failed")
    assert "3 trials in lake: 2 written" in everything.stdout
    (results / "copy.jsonl").write_bytes((results / "q.jsonl").read_bytes())
    copied = called("runs", "export", "results", "--to", "new", "--simulated", "--dry-run")
    assert "2 trials in new: 2 files would be written" in copied.stdout
    (results / "copy.jsonl").unlink()
    asked = "SELECT target, kind, status FROM results ORDER BY ALL"
    found = called("runs", "sql", asked, "lake", "--json")
    assert [tuple(each.values()) for each in json.loads(found.stdout)] == [
        ("local", "measured", "failed"),
        ("local", "measured", "ok"),
        ("simulated", "simulated", "ok"),
    ]


def test_a_dry_run_tells_of_files_that_the_export_removes_and_of_none_of_other_tables(
    results, called
):
    for lake in ("lakes", "lakes/prod"):
        called("runs", "export", "results", "--to", lake)
    words = ["runs", "export", "results", "--to", "lakes", "--deployment-target", "url"]
    lake = results.parent / "lakes"
    before = sorted(lake.rglob("*"))
    planned = called(*words, "--dry-run")
    assert sorted(lake.rglob("*")) == before
    verbs = [" ".join(line.split()[:2]) for line in planned.stderr.splitlines()[1:]]
    assert verbs == ["would write", "would remove"]
    assert "1 trial in lakes: 1 file would be written, 1 removed" in planned.stdout
    assert "1 written, 1 removed" in called(*words).stdout
    assert len(list(lake.glob("prod/model=*/instance=*/target=local/*.parquet"))) == 1
    again = called(*words, "--dry-run")
    assert "0 files would be written, 1 unchanged" in again.stdout


def test_side_files_that_a_pattern_matches_are_passed_over_by_export_and_sql(results, tmp_path):
    (results / "trace.jsonl").unlink()
    (results / "q.timelines.jsonl").write_text('{"key": "ok", "timeline": {}}\n')
    pattern = str(results / "q*.jsonl")
    named = sorted(results.glob("q*.jsonl"))  # as a shell has expanded it
    assert len(named) == 3
    for sources in ([pattern], named):
        lake = export_runs(sources, to=str(tmp_path / "lake"), simulated=True, failed=True)
        assert lake.trials == 3
        asked = "SELECT count(*) FROM results"
        assert query_runs(asked, sources=tuple(map(str, sources))).rows == ((3,),)
    for name, content in (("timelines", "timelines"), ("requests", "requests")):
        with pytest.raises(StoreError, match=f"has {content} of a run, and no trials") as refused:
            export_runs(results / f"q.{name}.jsonl", to=str(tmp_path / "lake"))
        assert refused.value.hint.endswith("q.jsonl")


def test_folders_of_repeats_are_exported_and_queried_without_their_requests(results, monkeypatch):
    bench = results.parent / "bb"
    line = (results / "q.jsonl").read_text().splitlines()[0]
    for name in ("1", "2"):
        (bench / name).mkdir(parents=True)
        record = json.loads(line) | {"provenance": {"started_at": f"2026-11-2{name}T00:00:00Z"}}
        (bench / name / "bench.jsonl").write_text(json.dumps(record) + "\n")
        requests, _ = read_requests(results / "q.requests.jsonl")
        write_requests_parquet(bench / name / "bench.requests.parquet", requests)
    asked = "SELECT count(*) FROM results"
    monkeypatch.chdir(bench)
    for sources in ((str(bench),), (), (str(bench / "*"),), ("1/*", "2/*"), ("1", "2")):
        assert query_runs(asked, sources=sources).rows == ((2,),)
    lake = export_runs(bench, to=str(bench / "lake"))
    assert (lake.trials, len(lake.files)) == (2, 2)
    assert query_runs(asked).rows == ((2,),)  # in journals and in the lake, once
    with pytest.raises(StoreError, match="has requests of a run, and no trials") as refused:
        query_runs(asked, sources=("1/bench.requests.parquet",))
    assert refused.value.hint == "give its journal, 1/bench.jsonl"


def test_of_a_retried_trial_an_older_copy_of_the_journal_adds_no_failure(tmp_path):
    def line(status, hour):
        made = TrialRecord(
            key="k",
            config=TrialConfig(),
            status=status,
            results={"output_throughput": 9.0} if status == "ok" else {},
            provenance={"started_at": f"2026-11-24T{hour:02}:00:00+00:00"},
        )
        return made.to_json() + b"\n"

    (tmp_path / "a-grown.jsonl").write_bytes(line("failed", 1) + line("ok", 2))
    (tmp_path / "b-older.jsonl").write_bytes(line("failed", 1))
    lake = export_runs(tmp_path, to=str(tmp_path / "lake"), failed=True)
    assert (lake.trials, lake.failed_left_out) == (1, 0)
    for sources in ("lake", "."):
        found = query_runs("SELECT status FROM results", sources=(str(tmp_path / sources),))
        assert found.rows == (("ok",),)


def test_sql_reads_journals_and_says_how_many_results_are_simulated(results, called):
    asked = "SELECT kind, output_token_throughput_tps AS speed FROM results WHERE speed > 1"
    found = called("runs", "sql", asked, "results", "--out", "a.csv")
    assert "2 rows from 3 results in 1 file, 1 of them simulated (column kind)" in found.stderr
    assert (results.parent / "a.csv").read_text() == "kind,speed\nmeasured,300.0\nsimulated,300.0\n"
    again = called("runs", "sql", asked, "results", "--out", "a.csv")
    assert (again.returncode, again.stderr.splitlines()[0]) == (2, "error: a.csv exists already")
    shown = called("runs", "sql", "SELECT outcome, input_tokens FROM requests", "results")
    assert shown.stdout.split() == ["outcome", "input_tokens", "ok", "5"]
    commented = called("runs", "sql", "-- which\nSELECT * FROM results LIMIT 1", "results")
    assert "output_token_throughput_tps" in commented.stdout.splitlines()[0]  # a whole wide line


def test_a_terminal_shows_a_wide_answer_value_by_value_and_a_long_one_in_part(capsys):
    wide = QueryAnswer(columns=("a", "long"), rows=((1, "x" * 100), (2, None)))
    show(wide, Console(force_terminal=True, width=60, color_system=None))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()][-3:] == [
        "row 2", "  a     2", "  long  –",
    ]  # fmt: skip
    many = QueryAnswer(columns=("a",), rows=tuple((i,) for i in range(1500)))
    show(many, Console(force_terminal=True, width=60, color_system=None))
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1001
    assert "the first 1,000 of 1,500 rows; --out FILE has all of them" in told.err


def test_a_run_is_named_in_queries_and_exports_and_others_are_rebuilt_beside_a_missing_one(
    results, called, monkeypatch
):
    monkeypatch.setenv("SERVETUNE_HOME", str(results.parent / "home"))
    made = called("runs", "rebuild", "results", "missing")
    assert made.returncode == 2
    assert made.stdout.startswith("1 run (1 journal found), 0 deployments")
    assert "missing is no folder" in made.stderr
    called("runs", "tag", "results/q.jsonl", "baseline")
    assert "1 row from 3 results" in called("runs", "sql", "SELECT 1", "baseline").stderr
    assert "1 trial in lake" in called("runs", "export", "baseline", "--to", "lake").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "results", "--to", "lake", "--glue", "d"], "Glue knows files in S3 alone"),
        (["export", "results", "--to", "s3://bucket/p", "--glue", "D-1"], "'D-1' names no table"),
        (["export", "results", "--to", "s3://bucket"], "names no prefix in S3"),
        (["export", "gone.jsonl", "--to", "lake"], "gone.jsonl is not there"),
        (["export", "results"], "missing option '--to'"),
        (["export", "results", "--to", ""], "--to is empty"),
        (["export", "results", "--to", "results/q.jsonl"], "cannot write results/q.jsonl"),
        (["export", "results", "--to", "results/q.jsonl", "--dry-run"], "Not a directory"),
        (["sql", "DROP VIEW results", "results"], "DROP is no statement that only reads"),
        (["sql", "SELECT 1", "results/q.jsonl", "--athena"], "Athena reads its own tables"),
        (["sql", "SELECT 1", "empty"], "empty holds no journal"),
        (["sql", "SELECT 1", "results", "--out", "a.txt"], "says no format of an answer"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_next_step(results, called, words, message):
    (results.parent / "empty").mkdir()
    done = called("runs", *words)
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")
    assert done.returncode == 2
