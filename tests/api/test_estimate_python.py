"""`estimate` and `calibrate` from Python: typed results that agree with the command line."""

import json

import pytest

import servetune as st
from servetune.errors import DoesNotFit, InputError, UnknownName

MODEL = "Qwen/Qwen3-4B"


def test_an_estimate_has_the_figures_that_the_command_prints(called):
    found = st.estimate(MODEL, gpu="L4", num_gpus=4)
    assert isinstance(found, st.Estimation)
    printed = called("estimate", "--model", MODEL, "--gpu", "L4", "--num-gpus", "4", "--json")
    answer = json.loads(printed.stdout)
    best = found.chosen.answer.best_throughput
    assert answer["chosen"]["answer"]["best_throughput"]["concurrency"] == best.concurrency
    text = called("estimate", "--model", MODEL, "--gpu", "L4", "--num-gpus", "4").stdout
    assert text == f"{found}\n"


def test_each_form_of_an_estimate_has_its_type():
    ranking = st.estimate(MODEL, gpu="L4", sweep=True, constraints="itl<=60ms", top=3)
    assert isinstance(ranking, st.Ranking)
    assert 0 < len(ranking.ranked) <= 3
    assert ranking.feasible
    machines = st.estimate(MODEL, gpu="all", constraints="itl<=60ms")
    assert isinstance(machines, st.MachineComparison)
    costs = [each.best.cost_per_million_tokens_usd for each in machines.usable]
    known = [cost for cost in costs if cost is not None]
    assert known == sorted(known)
    assert not st.estimate(MODEL, gpu="L4", sweep=True, constraints="itl<=0.01ms").feasible


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"gpu": "L4", "constraints": "ttft<=2s"}, ("--gpu", "L4", "--constraints", "ttft<=2s")),
        ({"gpu": "L4", "sweep": True, "top": 2}, ("--gpu", "L4", "--sweep", "--top", "2")),
        ({"instance": "all", "top": 2}, ("--instance", "all", "--top", "2")),
    ],
)
def test_values_for_json_are_plain_and_those_that_the_command_prints(called, options, form):
    written = json.dumps(st.estimate(MODEL, **options).to_json())
    printed = called("estimate", "--model", MODEL, *form, "--json").stdout
    assert json.loads(written) == json.loads(printed)


def test_frames_have_a_row_for_each_thing():
    pytest.importorskip("pandas")
    assert len(st.estimate(MODEL, gpu="L4").df) == len(st.estimate(MODEL, gpu="L4").curve)
    ranking = st.estimate(MODEL, gpu="L4", sweep=True, top=4)
    assert list(ranking.df["plan"]) == [one.swept.plan.label for one in ranking.ranked]


def test_a_table_is_predicted_from_python(tmp_path):
    source = tmp_path / "rows.csv"
    source.write_text(
        "model,gpu,engine,precision_weights,isl,osl,concurrency,tp\n"
        f"{MODEL},l4,vllm,bf16,512,128,4,1\nnobody/knows,l4,vllm,bf16,512,128,4,1\n"
    )
    found = st.estimate(st.Estimate(batch=source, out=tmp_path / "out.csv"))
    assert [bool(row["error"]) for row in found.rows] == [False, True]
    assert "1 of 2 rows predicted" in str(found)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpu": "L4", "num_gpus": 0}, InputError, "num_gpus: expected int >= 1"),
        ({"gpu": "nothing"}, UnknownName, "nothing"),
        ({"gpu": "L4", "engine": "none"}, UnknownName, "unknown engine 'none'"),
        ({"gpu": "L4", "instance": "ml.g6.12xlarge"}, InputError, "both name the machine"),
        ({"gpu": "L4", "plot": "x.png"}, InputError, "does not end in .html"),
        ({"gpu": "L4", "confidence": 2.0}, InputError, "confidence"),
    ],
)
def test_a_wrong_option_is_one_clear_error(options, error, message):
    with pytest.raises(error) as refusal:
        st.estimate(MODEL, **options)
    assert message in refusal.value.message


def test_a_model_that_does_not_fit_says_what_it_lacks():
    with pytest.raises(DoesNotFit) as refusal:
        st.estimate("deepseek-ai/DeepSeek-R1", gpu="L4")
    assert refusal.value.needed_bytes > refusal.value.available_bytes > 0


def test_runs_to_measure_are_suggested_from_python():
    found = st.calibrate(st.Calibrate(suggest=True, model=MODEL), gpu="L4", runs=2)
    assert isinstance(found, st.SuggestedRuns)
    assert len(found.suggested.runs) == 2
    assert found.suggested.doubt_after < found.suggested.doubt_before
    assert any("servetune calibrate" in command for command in found.commands)
    assert json.loads(json.dumps(found.to_json()))["node"]["name"] == found.node.name
