"""`servetune runs export` and `runs sql` as a user types them."""

import json

import pytest

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
        "1 trials in lake: 1 written",
        "1 simulated trials left out: --simulated",
        "1 failed trials left out: --failed",
    ]
    assert "trace.jsonl begins with no trial and is left out" in done.stderr
    everything = called("runs", "export", "results", "--to", "lake", "--simulated", "--failed")
    assert "3 trials in lake: 2 written" in everything.stdout
    asked = "SELECT target, kind, status FROM results ORDER BY ALL"
    found = called("runs", "sql", asked, "lake", "--json")
    assert [tuple(each.values()) for each in json.loads(found.stdout)] == [
        ("local", "measured", "failed"),
        ("local", "measured", "ok"),
        ("simulated", "simulated", "ok"),
    ]


def test_sql_reads_journals_and_says_how_many_results_are_simulated(results, called):
    asked = "SELECT kind, output_token_throughput_tps AS speed FROM results WHERE speed > 1"
    found = called("runs", "sql", asked, "results", "--out", "a.csv")
    assert "2 rows from 3 results in 1 files, 1 of them simulated (column kind)" in found.stderr
    assert (results.parent / "a.csv").read_text() == "kind,speed\nmeasured,300.0\nsimulated,300.0\n"
    again = called("runs", "sql", asked, "results", "--out", "a.csv")
    assert (again.returncode, again.stderr.splitlines()[0]) == (2, "error: a.csv exists already")
    shown = called("runs", "sql", "SELECT outcome, input_tokens FROM requests", "results")
    assert shown.stdout.split() == ["outcome", "input_tokens", "ok", "5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "results", "--to", "lake", "--glue", "d"], "Glue knows files in S3 alone"),
        (["export", "results", "--to", "s3://bucket/p", "--glue", "D-1"], "'D-1' names no table"),
        (["export", "results", "--to", "s3://bucket"], "names no prefix in S3"),
        (["export", "gone.jsonl", "--to", "lake"], "gone.jsonl is not there"),
        (["export", "results"], "missing option '--to'"),
        (["export", "results", "--to", "results/q.jsonl"], "cannot write results/q.jsonl"),
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
