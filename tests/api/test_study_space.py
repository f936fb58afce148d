"""Spaces of a study: conditional settings, forbidden combinations, and those chosen by itself."""

import msgspec
import pytest

import servetune as st
from servetune.api.request import checked, read_config
from servetune.api.study_setup import study_setup
from servetune.errors import InputError

MODEL = "Qwen/Qwen3-4B"
ON_L4 = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 2,
    "client_args": "num_prompts=10;random_input_len=64;random_output_len=8",
    "concurrency": [2, 4],
}
SPACE = {
    "server_args": {
        "tensor_parallel_size": [1, 2],
        "max_num_seqs": "logrange(64,256)",
        "kv_cache_dtype": "fp8 if tensor_parallel_size=1",
    },
    "forbid": ["tensor_parallel_size=2;max_num_seqs>64", "max_num_seqs=256;max_concurrency=2"],
}


def trials_of(found):
    return {
        (msgspec.json.encode(server.server_args), load["max_concurrency"])
        for server in found.planned
        for load in server.loads
    }


def test_a_study_runs_the_trials_that_conditions_leave_and_goes_on_with_them(tmp_path):
    summary = str(tmp_path / "q.json")
    planned = st.tune(MODEL, **ON_L4, **SPACE, dry_run=True)
    assert len(trials_of(planned)) == 7
    found = st.tune(MODEL, **ON_L4, **SPACE, output_json=summary)
    ran = {
        (msgspec.json.encode(trial.config.server_args), trial.config.client_args["max_concurrency"])
        for trial in found.trials
    }
    assert ran == trials_of(planned)
    repeated = checked(st.Study, read_config(found.artifacts.configuration, st.Study))
    assert repeated.forbid == tuple(SPACE["forbid"])
    again = st.tune(repeated, resume=True)
    assert len(again.trials) == len(found.trials) == 7


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"forbid": "tensor_parallel_size=[1,2]"}, "every combination is forbidden by"),
        ({"forbid": "tensor_parallel=2"}, "there is no setting tensor_parallel in the space"),
        ({"forbid": "max_concurrency>4"}, "max_concurrency>4 never holds"),
        ({"forbid": "tensor_parallel_size"}, "is no condition"),
        (
            {
                "forbid": "max_concurrency>4",
                "find": "max_concurrency",
                "concurrency": (),
                "constraints": "itl<=50ms",
            },
            "--find chooses max_concurrency, and a condition asks for it",
        ),
    ],
)
def test_a_space_that_contradicts_itself_is_refused_before_anything_starts(tmp_path, options, says):
    with pytest.raises(InputError, match=says):
        st.tune(
            MODEL,
            **{
                **ON_L4,
                "server_args": "tensor_parallel_size=[1,2]",
                "output_dir": tmp_path / "results",
                **options,
            },
        )
    assert not (tmp_path / "results").exists()


def test_a_grid_of_too_many_trials_may_be_cut_to_size_by_what_is_forbidden():
    settings = ";".join(f"{name}=range(1,101)" for name in ("max_num_seqs", "block_size", "seed"))
    study = checked(st.Study, {**ON_L4, "model": MODEL, "server_args": settings})
    with pytest.raises(InputError, match="the grid has 2,000,000 trials"):
        study_setup(study)
    cut = ["seed>1", "block_size!=16", "max_num_seqs>2"]
    setup = study_setup(msgspec.structs.replace(study, forbid=tuple(cut)))
    assert sum(len(group) for group in setup.groups) == 4


WEIGHTS = (MODEL, "Qwen/Qwen3-4B-AWQ", "Qwen/Qwen3-4B-FP8")
AUTO = {
    "engine": "simulated",
    "gpu": "L4",
    "num_gpus": 4,
    "space": "auto",
    "concurrency": 8,
    "client_args": "num_prompts=10;random_input_len=64;random_output_len=8",
}
CUT = (
    *("speculative_config!=None", "enable_prefix_caching=false", "max_num_batched_tokens<8192"),
    *("max_num_seqs!=256", "kv_cache_dtype=fp8", "pipeline_parallel_size>1"),
)


def test_a_study_runs_on_the_space_that_it_chose_less_what_is_forbidden(tmp_path):
    found = st.tune(MODEL, **AUTO, forbid=CUT, output_json=str(tmp_path / "q.json"))
    ran = {
        tuple(
            trial.config.server_args[name]
            for name in ("tensor_parallel_size", "data_parallel_size", "replicas", "model")
        )
        for trial in found.trials
    }
    layouts = ((1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (4, 1, 1))
    assert ran == {(*layout, weights) for layout in layouts for weights in WEIGHTS}
    assert len(found.trials) == 15
    repeated = checked(st.Study, read_config(found.artifacts.configuration, st.Study))
    assert repeated.space == "auto"


def test_plans_that_cannot_fit_are_left_out_and_counted(caplog):
    found = st.tune(
        "Qwen/Qwen3-30B-A3B",
        **{**AUTO, "gpu": "H100", "num_gpus": 2},
        server_args="gpu_memory_utilization=0.4;max_model_len=4096",
        forbid=["speculative_config!=None", "max_num_seqs!=256"],
        dry_run=True,
    )
    assert found.planned
    assert not any(server.problems for server in found.planned)
    [counted] = [text for text in caplog.messages if "do not fit" in text]
    left_out, whole = (int(word) for word in counted.split() if word.isdigit())
    assert whole - left_out == len(found.planned)


def test_drafts_of_a_simulation_are_said_to_be_assumed(caplog):
    st.tune(MODEL, **AUTO, dry_run=True)
    assert any("drafts are simulated as if 60% were right" in text for text in caplog.messages)


def test_trials_of_several_checkpoints_are_of_the_checkpoint_that_they_serve(tmp_path):
    options = {**ON_L4, "num_gpus": 1, "concurrency": 4, "output_json": str(tmp_path / "q.json")}
    found = st.tune(MODEL, **options, server_args={"model": list(WEIGHTS[:2])})
    rates = {trial.metadata.model: trial.results.output_throughput for trial in found.trials}
    assert rates[WEIGHTS[1]] > 1.3 * rates[MODEL]  # a third of the bytes
    assert {trial.plan.model for trial in found.trials} == set(WEIGHTS[:2])
    assert all(trial.metadata.model in str(trial.config.server_args) for trial in found.trials)
    alone = st.tune(WEIGHTS[1], **{**options, "output_json": str(tmp_path / "alone.json")})
    assert alone.trials.records[0].results.output_throughput == rates[WEIGHTS[1]]
    again = st.tune(MODEL, **options, server_args={"model": list(WEIGHTS)}, resume=True)
    assert len(again.trials) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"server_args": f"model=[{MODEL},Qwen/Qwen3-8B]"}, "Qwen/Qwen3-8B is no checkpoint of"),
        (
            {
                "engine": "vllm",
                "server_args": f"model={WEIGHTS[1]}",
                "server_cmd": "serve --port {port}",
            },
            "cannot be given the checkpoint Qwen/Qwen3-4B-AWQ",
        ),
    ],
)
def test_checkpoints_of_other_networks_or_that_no_server_is_given_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        st.tune(MODEL, **{**ON_L4, **options}, dry_run=True)
