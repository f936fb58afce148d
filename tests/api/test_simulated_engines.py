"""Studies that simulate SGLang and TGI, in these engines' own words."""

import json
import shlex

import pytest

import servetune as st
from servetune.engines import simulated_engines, simulated_studies
from servetune.errors import InputError, PlanError

MODEL = "Qwen/Qwen3-4B"
ON = {"gpu": "L4", "num_gpus": 2}
LOAD = "num_prompts=12;max_concurrency=[2,4];random_input_len=64;random_output_len=16"
SWEEPS = {
    "simulated-sglang": "tp_size=[1,2];mem_fraction_static=0.8;max_running_requests=[2,64]",
    "simulated-tgi": "num_shard=[1,2];max_batch_prefill_tokens=4096;max_batch_size=[2,64]",
}
PROGRAMS = {
    "simulated-sglang": "sglang serve --model-path Qwen/Qwen3-4B",
    "simulated-tgi": "text-generation-launcher --model-id Qwen/Qwen3-4B",
}


@pytest.fixture(scope="module", params=SWEEPS)
def swept(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    found = st.tune(
        MODEL,
        engine=request.param,
        **ON,
        server_args=SWEEPS[request.param],
        client_args=LOAD,
        output_json=str(folder / "q.json"),
    )
    return request.param, found


def test_every_engine_that_is_simulated_can_be_tuned(swept):
    assert tuple(simulated_studies().values()) == simulated_engines()
    assert tuple(simulated_studies()) == ("simulated", *SWEEPS)


def test_records_name_the_engine_and_say_that_it_was_simulated(swept):
    name, found = swept
    engine = simulated_studies()[name]
    assert (len(found.trials), found.status, found.simulated) == (8, 0, True)
    for record in found.trials:
        assert (record.metadata["framework"], record.simulated) == (engine, True)
        assert record.cmd.startswith(PROGRAMS[name])
        assert record.plan.engine == engine
    written = json.loads(found.artifacts.summary.read_text())
    assert written["metadata"]["framework"] == engine
    assert written["metadata"]["simulated"] is True
    assert "simulated" in found.artifacts.dashboard.read_text().lower()


def test_settings_are_read_in_the_engines_words(swept):
    _, found = swept
    rates = {
        (r.plan.tensor_parallel, r.plan.max_num_seqs, r.config.client_args["max_concurrency"]): (
            r.results["output_throughput"]
        )
        for r in found.trials
    }
    assert rates[2, 64, 4] > rates[1, 64, 4]
    assert rates[2, 64, 4] > 1.2 * rates[2, 2, 4], "two sequences at once and two more wait"
    assert rates[2, 64, 2] == pytest.approx(rates[2, 2, 2])


def test_a_trial_is_what_simulate_says_of_the_plan(swept):
    name, found = swept
    trial = found.trials.records[-1]
    settings = ";".join(f"{k}={v}" for k, v in trial.config.server_args.items())
    load = ";".join(f"{k}={v}" for k, v in trial.config.client_args.items())
    alone = st.simulate(
        MODEL, engine=simulated_studies()[name], **ON, server_args=settings, client_args=load
    )
    assert alone.record.results == trial.results
    assert alone.record.metadata["framework"] == trial.metadata["framework"]


def test_a_real_study_does_not_continue_a_simulated_one(swept):
    name, found = swept
    asked = {
        **ON,
        "server_args": SWEEPS[name],
        "client_args": LOAD,
        "output_json": str(found.artifacts.summary),
        "resume": True,
    }
    again = st.tune(MODEL, engine=name, **asked)
    assert again.trials.records == found.trials.records
    with pytest.raises(InputError, match="the journal holds simulated trials"):
        st.tune(MODEL, engine=simulated_studies()[name], server_cmd="sleep {port}", **asked)


def test_the_pick_is_deployed_as_the_engine_that_was_simulated(swept, called):
    name, found = swept
    shown = called("deploy", "systemd", str(found.artifacts.journal), "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert f"\n{PROGRAMS[name]}" in shown.stdout
    assert "the expected performance is SIMULATED" in shown.stdout


WRONG = [
    ("simulated-sglang", "max_num_seqs=8", "SGLang calls it max_running_requests"),
    ("simulated-sglang", "max_running_request=8", "did you mean max_running_requests"),
    ("simulated-tgi", "tensor_parallel_size=2", "TGI calls it num_shard"),
    ("simulated-tgi", "max_batch_prefil_tokens=8", "did you mean max_batch_prefill_tokens"),
    ("simulated-tgi", "data_parallel_size=2", "one copy per server"),
    ("tgi", "tensor_parallel_size=4", "TGI calls it num_shard"),
    ("tgi", "max_batch_prefil_tokens=8", "did you mean max_batch_prefill_tokens"),
    ("tgi", "enable_prefix_caching=true", "--server-env PREFIX_CACHING"),
    ("sglang", "gpu_memory_utilization=0.8", "SGLang calls it mem_fraction_static"),
    ("vllm", "num_shard=2", "vLLM calls it tensor_parallel_size"),
]


@pytest.mark.parametrize(("engine", "settings", "hint"), WRONG)
def test_another_engines_word_is_refused_with_the_right_one(engine, settings, hint):
    asked = {**ON, "engine": engine, "server_args": settings, "dry_run": True}
    with pytest.raises(PlanError, match=settings.partition("=")[0]) as refused:
        st.tune(MODEL, **asked)
    assert hint in refused.value.hint
    [planned] = st.tune(MODEL, **asked, allow_unknown=True).planned
    option = f"--{settings.partition('=')[0].replace('_', '-')}"
    assert any(word.startswith(option) for word in shlex.split(planned.command))


def test_releases_of_an_engine_are_compared(tmp_path):
    """Steps of vLLM before 0.14 are not composed ahead."""
    found = st.tune(
        MODEL,
        engine="simulated",
        **ON,
        server_args="engine_version=[0.10,0.32]",
        client_args="num_prompts=12;max_concurrency=4;random_input_len=64;random_output_len=16",
        output_json=str(tmp_path / "releases.json"),
    )
    earlier, later = found.trials
    assert (earlier.plan.engine_version, later.plan.engine_version) == ("0.10", "0.32")
    assert earlier.key != later.key
    assert "engine_version" not in earlier.cmd
    rates = [trial.results["output_throughput"] for trial in (earlier, later)]
    assert rates[0] < 0.99 * rates[1]


@pytest.mark.parametrize(
    ("engine", "release", "error", "said"),
    [
        ("simulated", "main", InputError, "main is no release of vLLM"),
        ("vllm", "0.11.0", PlanError, "engine_version is a setting of simulated engines"),
    ],
)
def test_a_release_that_cannot_be_is_refused_before_anything_runs(
    tmp_path, engine, release, error, said
):
    with pytest.raises(error, match=said):
        st.tune(
            MODEL,
            engine=engine,
            **ON,
            server_args=f"engine_version={release}",
            client_args=LOAD,
            output_json=str(tmp_path / "q.json"),
        )
