"""Results and progress in a notebook: drawn without a server, one output for each run."""

import re

import msgspec
import pytest

import servetune as st
from notebooks import executed, html_of, kinds
from servetune import api
from servetune.api.notebook import in_notebook

MODEL = "Qwen/Qwen3-4B"
SWEEP = {
    "engine": "simulated", "gpu": "L4", "num_gpus": 2, "requests": 12, "input_tokens": 64,
    "output_tokens": 8, "server_args": {"tensor_parallel_size": [1, 2]}, "concurrency": [1, 8],
    "constraints": "ttft:p99<=2s",
}  # fmt: skip
EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return st.tune(MODEL, **SWEEP, output_json=str(tmp_path_factory.mktemp("nb") / "q.json"))


def test_a_study_shows_its_pick_with_its_doubt_and_the_page(found):
    shown = found._repr_html_()
    before, frame, _ = re.split(r"(<iframe.*</iframe>)", shown, flags=re.S)
    pick = found.pick()
    assert pick.choice.chosen.label in before
    assert "by predictions alone" in before
    assert "rests on simulation alone" in before
    assert frame.count("srcdoc=") == 1
    assert "&quot;timelines&quot;" in frame
    assert found.trials._repr_html_() == shown


def test_a_single_run_shows_its_figures_and_its_timeline(server):
    run = st.simulate(MODEL, gpu="L4", concurrency=4, requests=20, constraints="ttft<=1ms")
    shown = run._repr_html_()
    assert "MISSES ttft" in shown
    assert "&quot;bars&quot;" in shown
    measured = st.bench(server.url, requests=4, input_tokens="8", output_tokens="4")
    assert "&quot;seen_by_client&quot;:true" in measured._repr_html_()
    assert measured.polars["chunk_times_s"].list.len().to_list() == [4] * 4
    assert [len(each) for each in measured.df["chunk_times_s"]] == [4] * 4
    planned = st.bench(server.url, requests=4, concurrency=2, dry_run=True)
    assert "<pre>" in planned._repr_html_()


def test_what_has_no_page_is_a_table(found):
    for result, words in (
        (st.estimate(MODEL, gpu="L4", num_gpus=4), "knee"),
        (st.estimate(MODEL, gpu="L4", num_gpus=4, sweep=True, top=3), "max_num_seqs"),
        (st.estimate(MODEL, instance="all", top=3), "can serve it"),
        (found.pick(), "Why"),
        (found.trials.recommend(), "best by throughput"),
        (st.doctor(), "memory"),
        (st.tune(MODEL, **SWEEP, dry_run=True), "server.tensor_parallel_size"),
    ):
        shown = result._repr_html_()
        assert words in shown
        assert "<iframe" not in shown
        assert len(shown) < 100_000


def test_every_result_of_the_library_that_lists_things_draws_itself():
    kinds_of_results = [getattr(api, name) for name in api.__all__]
    silent = [
        kind.__name__
        for kind in kinds_of_results
        if isinstance(kind, type) and hasattr(kind, "df") and not hasattr(kind, "_repr_html_")
    ]
    assert silent == []


def test_names_from_outside_are_text(found):
    record = found.trials.records[0]
    named = record.metadata.with_fields(model_tag=EVIL)
    evil = st.Trials(records=(msgspec.structs.replace(record, metadata=named, cmd=EVIL),))
    shown = evil._repr_html_()
    assert "&lt;img src=x" in shown
    assert "<img" not in shown
    assert "<script" not in shown


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A notebook that tunes, simulates, loads and fails, after its run."""
    tune = f"found = st.tune('{MODEL}', **{SWEEP!r}, output_json='q.json')"
    return executed(
        [
            "import servetune as st",
            f"{tune}\nfound",
            f"run = st.simulate('{MODEL}', gpu='L4', concurrency=4, requests=200)",
            tune.replace("q.json'", "r.json', on_progress=print"),
            "found.df.shape",
        ],
        tmp_path_factory.mktemp("notebook"),
    )


@pytest.mark.slow
def test_progress_is_one_output_that_is_renewed(cells):
    _, tuned, simulated, followed, _ = cells
    assert kinds(tuned) == ["display_data", "execute_result"]
    bar, result = tuned["outputs"]
    assert "4 of 4 trials" in html_of(bar)
    assert 'value="1.0000"' in html_of(bar)
    assert "[4/4]" in html_of(bar)
    assert "<iframe" in html_of(result)
    assert kinds(simulated) == ["display_data"]
    assert "200 of 200 requests simulated" in html_of(simulated["outputs"][0])
    assert set(kinds(followed)) == {"stream"}, "who follows the progress sees no bar"


@pytest.mark.slow
def test_a_result_has_text_for_those_who_show_no_html(cells):
    result = cells[1]["outputs"][1]["data"]
    assert set(result) == {"text/html", "text/plain"}
    assert "".join(result["text/plain"]).startswith("Throughput pick: TP2 · concurrency 8")


def test_a_program_that_is_no_notebook_sees_no_bar(found, capsys):
    st.tune(MODEL, **SWEEP, output_json=str(found.artifacts.folder / "again.json"))
    assert capsys.readouterr().out == ""
    assert not in_notebook()
