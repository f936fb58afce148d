"""Finished trials from Python: read, chosen from, made a frame and a page."""

import json

import pytest

import servetune as st
from servetune.errors import InputError, StoreError


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """Six simulated trials, two of which hold the constraint."""
    from servetune.cli.main import main

    folder = tmp_path_factory.mktemp("trials")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [
            "servetune", "tune", "--engine", "simulated", "--model", "Qwen/Qwen3-4B",
            "--gpu", "L4", "--num-gpus", "4", "--constraints", "e2e_latency:mean<=13s",
            "--server-args", "tensor_parallel_size=[1,2,4]",
            "--client-args", "max_concurrency=[8,64];num_prompts=64",
            "--output-json", str(folder / "q.json"),
        ])  # fmt: skip
        with pytest.raises(SystemExit):
            main()
    return folder / "q.jsonl"


def test_importing_the_package_imports_no_room():
    import subprocess
    import sys

    code = "import sys, servetune; print([m for m in sys.modules if m.startswith('servetune.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_name_of_the_library_is_there():
    for name in dir(st):
        assert getattr(st, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = st.nothing


def test_a_pick_is_the_same_from_python_and_from_the_command_line(journal, servetune):
    pick = st.recommend(str(journal), objective="latency")
    assert pick.feasible
    assert pick.record.key == pick.choice.chosen.key
    printed = servetune("recommend", journal, "--objective", "latency", "--json")
    assert json.loads(printed.stdout)["record"]["key"] == pick.record.key
    assert servetune("recommend", journal, "--objective", "latency").stdout == f"{pick}\n"


def test_how_sure_the_pick_is_comes_back_from_the_summary_beside_the_journal(journal):
    pick = st.recommend(str(journal))
    assert pick.search.doubt.key == pick.record.key
    assert pick.search.doubt.verdict in str(pick)
    assert pick.to_json()["search"]["strategy"] == "grid"
    assert st.recommend(str(journal.with_suffix(".json"))).search == pick.search


@pytest.mark.parametrize("goal", [{"objective": "latency"}, {"constraints": "ttft<=9s"}])
def test_the_doubt_of_another_goal_is_not_said(journal, goal):
    assert st.recommend(str(journal), **goal).search is None


def test_a_journal_alone_says_nothing_of_a_search(journal, tmp_path):
    (tmp_path / "q.jsonl").write_bytes(journal.read_bytes())
    pick = st.recommend(str(tmp_path / "q.jsonl"))
    assert pick.search is None
    assert "probability" not in str(pick)


def test_a_report_keeps_what_the_search_said(journal, tmp_path, servetune):
    made = servetune("report", journal.with_suffix(".json"), "--output-json", tmp_path / "r.json")
    search = st.read(tmp_path / "r.json").search
    assert search == st.read(journal).search
    assert search.doubt.verdict in made.stdout
    assert search.doubt.verdict in (tmp_path / "r.html").read_text("utf-8")


def test_no_trial_that_holds_the_constraints_is_reported(journal):
    pick = st.recommend(journal, constraints="e2e_latency:mean<=1ms")
    assert not pick.feasible
    assert not st.read(journal, "e2e_latency:mean<=1ms").recommend().feasible


@pytest.mark.parametrize("source", [5, [5], None])
def test_what_is_no_file_is_one_clear_error(source):
    with pytest.raises(InputError, match="is no file of trials") as refusal:
        st.read(source)
    assert refusal.value.hint == "give a path, or a list of them"


def test_a_frame_has_a_row_for_each_trial(journal):
    pandas = pytest.importorskip("pandas")
    frame = st.read(journal).df
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(st.read(journal)) == 6
    assert set(frame["server.tensor_parallel_size"]) == {1, 2, 4}
    assert (frame["output_throughput"] > 0).all()


def test_a_report_from_python_is_the_page_of_the_command_line(journal, tmp_path):
    made = st.write_report(journal, output_json=tmp_path / "again.json")
    assert made.artifacts.dashboard.read_text().startswith("<!doctype html>")
    first = json.loads((journal.with_suffix(".json")).read_text())
    assert json.loads(made.artifacts.summary.read_text()) == first
    with pytest.raises(InputError, match="exists already"):
        st.write_report(journal, output_json=tmp_path / "again.json")


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(StoreError, match="is not there"):
        st.read(tmp_path / "none.jsonl")


def test_a_price_given_later_changes_costs_and_is_named(called, journal):
    shown = called("recommend", journal, "--objective", "cost", "--price-per-hour", "2").stdout
    assert "price: $2.00 per hour for the whole machine, given by the user" in shown
    cheap = st.read(journal, rent=st.Rent(price_per_hour_usd=2.0))
    dear = st.read(journal, rent=st.Rent(instance="ml.p5.48xlarge"))
    for low, high in zip(cheap, dear, strict=True):
        rate = low.results.output_throughput
        assert low.results["cost_per_million_tokens"] == pytest.approx(2 / 3600 / rate * 1e6)
        assert high.results["cost_per_hour"] > 20
        assert "AWS" in high.metadata.price_source


def test_an_instance_that_does_not_exist_is_refused(called, journal):
    done = called("report", journal, "--instance", "ml.g6.13xlarge")
    assert done.returncode == 2
    assert "ml.g6.12xlarge" in done.stderr


def timeline_of_page(path):
    page = path.read_text(encoding="utf-8")
    text = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    return json.loads(text)["timeline"]


def test_a_report_keeps_the_timelines_of_the_page_that_it_renews(called, tmp_path):
    simulated = called(
        "simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "-c", "4", "-n", "40",
        "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert simulated.returncode == 0, simulated.stderr
    [journal] = [p for p in (tmp_path / "run").glob("*.jsonl") if "requests" not in p.name]
    page = journal.with_suffix(".html")
    before = timeline_of_page(page)
    assert before["kv"]
    assert called("report", str(journal)).returncode == 0
    assert timeline_of_page(page) == before
    page.unlink()  # the file of requests has all but the use of the cache
    assert called("report", str(tmp_path / "run")).returncode == 0
    again = timeline_of_page(tmp_path / "run" / "report.html")
    assert again == {**before, "kv": []}


def test_a_folder_and_several_sources_are_one_report(called, journal, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(journal.read_bytes())
    lines = journal.read_bytes().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[:2]))
    assert len(st.read([tmp_path / "b.jsonl", tmp_path / "a.jsonl"])) == 6
    assert len(st.read(tmp_path)) == 6
    done = called("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()
    empty = tmp_path / "empty"
    empty.mkdir()
    done = called("report", str(empty))
    assert done.returncode == 2
    assert "holds no journal" in done.stderr


def test_of_equal_trials_the_search_doubts_the_one_that_is_picked(tmp_path):
    found = st.tune(
        "Qwen/Qwen3-4B",
        engine="simulated",
        gpu="L4",
        server_args="max_num_seqs=[256,128,64,32]",
        client_args="num_prompts=4;max_concurrency=2;random_output_len=16",
        output_json=tmp_path / "q.json",
    )
    assert len({record.results.output_throughput for record in found.trials}) == 1
    assert found.search.doubt.key == found.pick().record.key
