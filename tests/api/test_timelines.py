"""Timelines of a sweep's trials: kept as trials end, shown for picks and front, never a cost."""

import json
import re

import pytest

import servetune as st
from servetune.api.timelines import TimelineKeeper, interesting_keys
from servetune.store import Journal, read_timelines
from servetune.trials import TrialRequests

SWEEP = {
    "engine": "simulated", "gpu": "L4", "num_gpus": 2, "requests": 12, "input_tokens": 64,
    "output_tokens": 8, "server_args": {"tensor_parallel_size": [1, 2]}, "concurrency": [1, 4, 8],
}  # fmt: skip
MODEL = "Qwen/Qwen3-4B"


def tuned(folder, **options):
    return st.tune(MODEL, **SWEEP | {"output_json": str(folder / "q.json")} | options)


def on_page(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return tuned(tmp_path_factory.mktemp("sweep"))


def test_every_trial_of_a_sweep_has_a_timeline(found):
    kept = read_timelines(found.artifacts.timelines)
    assert list(kept) == [record.key for record in found.trials]
    for record in found.trials:
        line = kept[record.key]
        assert (line["total"], line["seen_by_client"]) == (12, False)
        last_s = max(bar[4] for bar in line["bars"])
        assert last_s == pytest.approx(record.results["duration"], abs=1e-3)


def test_the_page_has_those_of_the_picks_and_the_front_or_as_it_is_told(found, tmp_path):
    wanted = set(interesting_keys(found.trials.records, found.trials.picks()))
    assert 0 < len(wanted) < len(found.trials)
    assert set(on_page(found.artifacts.dashboard)["timelines"]) == wanted
    for which, expected in (("all", {record.key for record in found.trials}), ("none", set())):
        made = st.write_report(
            found.artifacts.journal, output_json=tmp_path / which, page_timelines=which
        )
        assert set(on_page(made.artifacts.dashboard)["timelines"]) == expected


def test_a_run_of_one_trial_shows_its_timeline_as_a_single_one(tmp_path):
    one = tuned(tmp_path, server_args={}, concurrency=4)
    data = on_page(one.artifacts.dashboard)
    assert (data["timeline"]["total"], data["timelines"]) == (12, {})


def test_none_are_kept_or_those_of_the_picks(tmp_path):
    silent = tuned(tmp_path / "none", keep_timelines="none")
    assert not silent.artifacts.timelines.exists()
    few = tuned(tmp_path / "picks", keep_timelines="picks")
    wanted = interesting_keys(few.trials.records, few.trials.picks())
    assert sorted(read_timelines(few.artifacts.timelines)) == sorted(wanted)


def test_a_study_that_is_continued_keeps_the_earlier_ones(tmp_path):
    def stop(event):
        if event.done == 2:
            raise KeyboardInterrupt

    part = tuned(tmp_path, on_progress=stop)
    assert part.interrupted
    before = read_timelines(part.artifacts.timelines)
    whole = tuned(tmp_path, resume=True)
    after = read_timelines(whole.artifacts.timelines)
    assert len(before) < len(after) == 6
    assert before.items() <= after.items()


def test_a_measured_trial_has_what_the_client_saw(server, tmp_path):
    found = st.tune(
        "m", engine="external", url=server.url, gpu="L4", concurrency=[1, 2], requests=6,
        input_tokens=8, output_tokens=4, output_dir=tmp_path,
    )  # fmt: skip
    kept = read_timelines(found.artifacts.timelines)
    assert {record.key for record in found.trials} == kept.keys()
    assert all(line["seen_by_client"] and line["total"] == 6 for line in kept.values())


def test_a_folder_of_runs_is_still_a_folder_of_journals(found):
    assert len(st.read(found.artifacts.folder)) == len(found.trials)


def test_timelines_make_room_for_a_record(found, tmp_path, caplog):
    keeper = TimelineKeeper(tmp_path / "q.timelines.jsonl", resume=False)
    run = st.simulate(MODEL, gpu="L4", concurrency=2, requests=4, input_tokens=8, output_tokens=2)
    keeper.take(TrialRequests(key="k", records=run.run.records, admitted_s=run.run.admitted_s))
    assert list(read_timelines(tmp_path / "q.timelines.jsonl")) == ["k"]
    assert keeper.make_room()
    assert not (tmp_path / "q.timelines.jsonl").exists()
    assert "to make room" in caplog.text
    assert not keeper.make_room(), "there is nothing more to remove"
    keeper.take(TrialRequests(key="k", records=run.run.records, admitted_s=run.run.admitted_s))
    assert not (tmp_path / "q.timelines.jsonl").exists()


def test_a_file_that_cannot_be_written_costs_no_trial(tmp_path, caplog):
    (tmp_path / "q.timelines.jsonl").mkdir()
    found = tuned(tmp_path)
    assert (len(found.trials), found.status) == (6, 0)
    assert "trials from here on have no timeline" in caplog.text
    with Journal(found.artifacts.journal, resume=True) as journal:
        assert len(journal.records) == 6
