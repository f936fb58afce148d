"""Runs of this machine: what registers by itself, and what is done with it by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import servetune as st
from servetune.errors import InputError, StoreError
from servetune.store import read_journal
from servetune.store.catalogue import catalogue_path
from servetune.store.register import register_path


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def tune(path="q.json", **more):
    return st.tune(
        "Qwen/Qwen3-4B",
        engine="simulated",
        gpu="L4",
        num_gpus=2,
        server_args="tensor_parallel_size=[1,2]",
        client_args="num_prompts=10;max_concurrency=4;random_input_len=64;random_output_len=8",
        output_json=path,
        **more,
    )


def test_a_study_registers_and_is_shown_with_its_pick(tmp_path):
    found = tune()
    [row] = st.list_runs().runs
    assert (row.path, row.verb, row.state) == (str(tmp_path / "q.jsonl"), "tune", "ended")
    assert (row.model, row.engine, row.machine) == ("Qwen/Qwen3-4B", "simulated", "2x NVIDIA L4")
    assert (row.trials, row.failed, row.simulated) == (2, 0, True)
    assert row.workload
    shown = st.show_run(row.run[:4])
    assert shown.pick.record.key == row.pick_key == found.pick().record.key
    assert [each.key for each in shown.trials] == [each.key for each in found.trials]
    assert "SIMULATED" in str(shown)
    assert "TP2" in row.pick
    # The pick of the register and that of the journal are the same.
    catalogue_path().unlink()
    assert st.list_runs().runs == (row,)


def test_a_study_that_goes_on_is_the_same_run():
    tune()
    again = tune(resume=True)
    [row] = st.list_runs().runs
    assert (row.state, row.trials) == ("ended", len(again.trials))


def test_an_interrupted_study_and_one_that_fails_say_so(monkeypatch):
    def ctrl_c(event):
        raise KeyboardInterrupt

    assert tune("i.json", on_progress=ctrl_c).interrupted

    def broken(event):
        raise RuntimeError("no more")

    with pytest.raises(InputError):
        tune("f.json", on_progress=broken)
    states = {Path(row.path).stem: row.state for row in st.list_runs().runs}
    assert states == {"i": "interrupted", "f": "failed"}


@pytest.mark.parametrize("harm", ["no folder", "locked", "newer catalogue"])
def test_no_run_is_lost_to_the_catalogue(tmp_path, monkeypatch, caplog, harm):
    tune("first.json")
    st.list_runs()
    if harm == "no folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("SERVETUNE_HOME", str(tmp_path / "file" / "home"))
    elif harm == "locked":
        import fcntl

        monkeypatch.setattr("servetune.store.register._PATIENCE_S", 0.05)
        held = os.open(register_path(), os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
    else:
        import sqlite3

        with sqlite3.connect(catalogue_path()) as db:
            db.execute("PRAGMA user_version = 9")
        db.close()
    assert len(tune().trials) == 2
    if harm == "locked":
        os.close(held)
    assert len(read_journal(tmp_path / "q.jsonl")) == 2
    # One line, and none at all where the register alone is written.
    told = [each for each in caplog.messages if "catalogue" in each]
    assert len(told) == (0 if harm == "newer catalogue" else 1)


def test_runs_are_chosen_by_what_they_are():
    tune()
    st.simulate("Qwen/Qwen3-4B", gpu="A100", requests=5, concurrency=2, out="sim")
    st.tag_run("q.jsonl", tags=["release=1.2", "baseline"])

    def named(**options):
        return [row.verb for row in st.list_runs(**options).runs]

    assert named() == ["simulate", "tune"]
    assert named(machine="a100") == ["simulate"]
    assert named(tag="release=1.2") == named(tag=["baseline", "release"]) == ["tune"]
    assert named(tag="release=1.3") == named(only_status="failed") == named(model="llama") == []
    assert named(model="qwen/*", since="1h", only_status="ended", engine="simul") == [
        "simulate",
        "tune",
    ]
    assert named(since="2999-01-01") == []
    for wrong in ({"since": "monday"}, {"tag": "a b"}):
        with pytest.raises(InputError):
            st.list_runs(**wrong)


def test_a_name_stands_for_a_journal_wherever_one_is_taken(tmp_path):
    tune()
    tune("r.json")
    st.tag_run("q.jsonl", tags=["baseline"])
    by_name = st.recommend("baseline")
    assert by_name.record == st.recommend("q.jsonl").record
    assert st.read("baseline").source == tmp_path / "q.jsonl"
    assert st.write_report("baseline", force=True).artifacts.summary == tmp_path / "q.json"
    assert st.render("baseline", dry_run=True).trial.key == by_name.record.key
    st.tag_run("r.jsonl", tags=["baseline"])
    with pytest.raises(InputError, match="'baseline' is 2 runs"):
        st.recommend("baseline")
    (tmp_path / "baseline").mkdir()  # what is there goes before any name
    with pytest.raises(StoreError, match="holds no journal"):
        st.read("baseline")
    with pytest.raises(StoreError, match="nosuch is not there"):
        st.recommend("nosuch")


def test_tags_are_set_and_taken_away():
    tune()
    assert st.tag_run("q.jsonl", tags=["x=1", "y"]) == {"x": "1", "y": ""}
    assert st.tag_run("x=1", tags=["x=2"], untag=["y"]) == {"x": "2"}
    assert st.tag_run("x") == {"x": "2"}
    begin = st.list_runs().runs[0].run[:3]
    for wrong in ({"untag": ["z"]}, {"tags": ["=1"]}, {"tags": ["x=\x1b[2J"]}, {"tags": [begin]}):
        with pytest.raises(InputError):
            st.tag_run("x", **wrong)
    assert st.tag_run("x") == {"x": "2"}


def test_a_run_is_removed_with_its_own_files_and_no_others(tmp_path):
    tune("results/q.json")
    tune("results/q2.json")
    st.tag_run("results/q.jsonl", tags=["old"])
    others = {"q2.jsonl", "q2.json", "q2.html", "q2.toml", "q2.timelines.jsonl", "q.txt", "q.logs"}
    (tmp_path / "results" / "q.txt").touch()
    (tmp_path / "results" / "q.logs").symlink_to(tmp_path / "home")
    with pytest.raises(InputError, match=r"nobody agreed to remove run .* and delete 6 files"):
        st.remove_run("old", files=True)
    with pytest.raises(InputError, match="not agreed"):
        st.remove_run("old", files=True, confirm=lambda _: False)
    assert len(st.remove_run("old", files=True, yes=True)) == 6
    assert {path.name for path in (tmp_path / "results").iterdir()} == others
    assert register_path().is_file()
    assert [row.path for row in st.list_runs().runs] == [str(tmp_path / "results" / "q2.jsonl")]
    st.remove_run("results/q2.jsonl", confirm=lambda _: True)
    assert st.list_runs().runs == ()
    assert st.rebuild_runs("results").found_runs == 1  # its files stayed


def test_files_that_only_bear_the_name_of_a_runs_stay_and_are_named(tmp_path, caplog):
    tune("q.json")
    foreign = {
        "q.html": "<title>mine</title>",
        "q.status.json": "{}",
        "q.requests.csv": "name,salary\n",
        "q.server.json": "[]",
        "q.requests.jsonl": '{"prompt": "mine"}\n',
        "q.logs/diary.log": "",
    }
    (tmp_path / "q.logs").mkdir()
    (tmp_path / "q.logs" / "server-001-copy2-3.log").touch()
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    gone = st.remove_run("q.jsonl", files=True, yes=True)
    assert {path.name for path in gone} == {
        "q.jsonl", "q.json", "q.toml", "q.timelines.jsonl", "server-001-copy2-3.log",
    }  # fmt: skip
    assert {name: (tmp_path / name).read_text() for name in foreign} == foreign
    assert all(str(tmp_path / name) in caplog.text for name in foreign)


def test_everything_is_made_again_from_the_journals_alone(tmp_path):
    tune("results/q.json")
    st.tag_run("results/q.jsonl", tags=["baseline"])
    (tmp_path / "results" / "requests.log.jsonl").write_text('{"prompt": "no journal"}\n')
    st.render("results/q.jsonl", target="compose", out=tmp_path / "results" / "bundle")
    before = st.list_runs().runs[0]
    register_path().unlink()
    made = st.rebuild_runs("results")
    assert (made.runs, made.found_runs, made.deployments, made.found_deployments) == (1, 1, 1, 1)
    [row] = st.list_runs().runs
    for name in (
        "path",
        "model",
        "trials",
        "pick",
        "pick_key",
        "best",
        "tags",
        "state",
        "workload",
    ):
        assert getattr(row, name) == getattr(before, name), name
    assert st.rebuild_runs("results").found_runs == 0
    assert st.show_run(f"../{tmp_path.name}/results/q.jsonl").run == row
    with pytest.raises(StoreError, match="is no folder"):
        st.rebuild_runs("nosuch")
    assert st.rebuild_runs(["nosuch", "results"]).missing == ("nosuch",)


def test_a_bench_that_is_kept_registers_with_the_levels_of_one_run(server):
    url = server.url
    options = {"requests": 6, "input_tokens": 16, "output_tokens": 4, "processes": 1}
    st.bench(url, concurrency=(1, 2), out="b", **options)
    [row] = st.list_runs().runs
    assert (row.verb, row.engine, row.trials, row.state) == ("bench", "external", 2, "ended")
    levels = [read_journal(path)[0] for path in Path("b").glob("*-users/bench.jsonl")]
    assert {each.provenance["run"] for each in levels} == {row.run}
    register_path().unlink()
    made = st.rebuild_runs(".")  # the levels are no runs of their own
    assert [each.path for each in st.list_runs().runs] == [row.path]
    assert made.runs == 1
    assert len(st.remove_run(row.run, files=True, yes=True)) > 15
    assert not any(path.is_file() for path in Path("b").rglob("*"))


def test_help_and_the_start_of_a_run_need_no_database():
    code = (
        "import sys; sys.argv = ['servetune', 'tune', '--help']\n"
        "from servetune.cli.main import main\n"
        "import servetune.api.study, servetune.api.benchmark\n"
        "assert 'sqlite3' not in sys.modules, 'sqlite3 is imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
