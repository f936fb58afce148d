"""Equal words and an equal seed ask equal requests, whoever reads the words."""

import json

import msgspec
import pytest

import servetune as st
from servetune.api.bench_setup import prepared_load
from servetune.api.request import checked
from servetune.api.simulation import simulated_trial
from servetune.api.study_setup import study_setup
from servetune.hardware import instance
from servetune.models import load_shape
from servetune.search import Space, parse_settings
from servetune.trials import StudyContext, trials_of
from servetune.trials.trial import prompts_for
from servetune.workload import CLIENT_ARGS, LoadOptions, load_options
from servetune.workload.prepare import prepare

MODEL = "Qwen/Qwen3-4B"


@pytest.fixture
def files(tmp_path):
    rows = [{"prompt": "word " * (5 + i), "answer": "word " * (3 + i % 7)} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    line = '{{"timestamp": {}, "input_length": 1100, "output_length": 5, "hash_ids": [7, {}, 9]}}'
    (tmp_path / "trace.jsonl").write_text("\n".join(line.format(i * 50, i % 3) for i in range(20)))
    return tmp_path


#: Options of `bench`, and the same words as client arguments of `tune` and `simulate`.
WORDS = {
    "lengths of a range": (
        {"input_tokens": "kind=uniform,max=200,ratio=0.5,as=sglang",
         "output_tokens": "kind=uniform,min=10,max=20",
         "concurrency": 4, "requests": 50},
        "random_input_len=200;random_output_len=20;random_range_ratio=0.5",
    ),
    "normal lengths": (
        {"input_tokens": "kind=normal,mean=200,std=150", "output_tokens": "20",
         "concurrency": 4, "requests": 50},
        "random_input_len=200;random_input_sd=150;random_output_len=20",
    ),
    "fields of the options": (
        {"input_tokens": "kind=lognormal,median=90,sigma=0.4", "output_tokens": "9",
         "concurrency": 4, "requests": 50},
        "input_tokens=kind=lognormal,median=90,sigma=0.4;output_tokens=9",
    ),
    "a rate": (
        {"input_tokens": "kind=uniform,min=5,max=50", "output_tokens": "9", "rate": 3.0,
         "requests": 50, "seed": 8},
        "input_tokens=kind=uniform,min=5,max=50;output_tokens=9;request_rate=3;seed=8",
    ),
    "bursts for a time": (
        {"input_tokens": "100", "output_tokens": "kind=uniform,min=2,max=9",
         "arrivals": "kind=gamma,rate_per_s=9,burstiness=0.3", "duration_s": 10.0},
        ";".join(("input_tokens=100", "output_tokens=kind=uniform,min=2,max=9",
                  "arrivals=kind=gamma,rate_per_s=9,burstiness=0.3", "duration_s=10")),
    ),
    "users for a time": (
        {"input_tokens": "kind=uniform,min=5,max=50", "output_tokens": "20", "concurrency": 4,
         "duration_s": 6.0},
        "input_tokens=kind=uniform,min=5,max=50;output_tokens=20;duration_s=6",
    ),
    "shared prefixes": (
        {"input_tokens": "150", "output_tokens": "9", "shared_prefix_tokens": 50, "prefixes": 3,
         "concurrency": 4, "requests": 50},
        "random_input_len=100;random_output_len=9;random_prefix_len=50;num_prefixes=3",
    ),
    "conversations": (
        {"input_tokens": "60", "output_tokens": "9", "turns": "kind=uniform,min=1,max=4",
         "turn_tokens": "20", "think_s": 0.5, "concurrency": 4, "requests": 50},
        "input_tokens=60;output_tokens=9;turns=kind=uniform,min=1,max=4;turn_tokens=20;think_s=0.5",
    ),
    "users who think": (
        {"input_tokens": "60", "output_tokens": "9", "think_s": 0.5, "concurrency": 4,
         "requests": 50},
        "input_tokens=60;output_tokens=9;think_s=0.5",
    ),
    "a named workload": (
        {"workload": "rag_document_qa", "concurrency": 4, "requests": 50},
        "workload=rag_document_qa",
    ),
    "a mix at a rate": (
        {"workload": "production_traffic_mix", "rate": 5.0, "requests": 60},
        "workload=production_traffic_mix;rate=5;requests=60",
    ),
    "a data set": (
        {"dataset": "rows.jsonl", "concurrency": 4, "requests": 50},
        "dataset=rows.jsonl",
    ),
    "a trace with shared blocks": (
        {"trace": "trace.jsonl", "time_scale": 0.5},
        "dataset_name=trace;dataset_path=trace.jsonl;time_scale=0.5",
    ),
    "adapters": (
        {"input_tokens": "60", "output_tokens": "9", "adapters": ("a=3", "b"), "concurrency": 4,
         "requests": 50},
        "input_tokens=60;output_tokens=9;lora=a=3,b",
    ),
}  # fmt: skip


def trial_of(client, *, simulated):
    run = StudyContext(
        model=MODEL,
        engine="simulated" if simulated else "vllm",
        simulated=simulated,
        shape=load_shape(MODEL, catalogue_first=True),
        node=instance("ml.g6.12xlarge"),
    )
    space = Space(
        server=parse_settings("tensor_parallel_size=1", types={}),
        client=parse_settings(client, types=CLIENT_ARGS),
    )
    (group,) = trials_of(space, run)
    return group[0], run


@pytest.mark.parametrize("words", WORDS)
def test_bench_tune_and_simulate_ask_the_same(words, files, monkeypatch):
    monkeypatch.chdir(files)
    options, client = WORDS[words]
    if "concurrency" in options:
        client += ";max_concurrency=4" + (";num_prompts=50" if "requests" in options else "")
    elif words == "a rate":
        client += ";num_prompts=50"
    benched = LoadOptions(**options).to_workload(MODEL)
    prepared = prepare(benched, vocab_size=4096)
    simulated, _ = trial_of(client, simulated=True)
    measured, run = trial_of(client, simulated=False)
    assert prepared.requests == benched.requests()
    assert simulated.workload.requests() == benched.requests()
    assert measured.workload == simulated.workload
    prompts = prompts_for(measured, run, seed=5)
    assert [p.token_count for p in prompts] == [p.token_count for p in prepared.prompts]
    assert [p.model for p in prompts] == [p.model for p in prepared.prompts]
    for attribute in ("concurrency", "duration_s", "until", "api", "ignore_eos", "closed_loop"):
        assert getattr(benched, attribute) == getattr(measured.workload, attribute)


@pytest.mark.parametrize("words", WORDS)
def test_the_same_options_ask_the_same_of_every_verb(words, files, monkeypatch):
    monkeypatch.chdir(files)
    options = {**WORDS[words][0], "seed": 5}
    server = {"urls": "http://127.0.0.1:9", "model": MODEL, "dry_run": True}
    benched = prepared_load(checked(st.Bench, {**options, **server})).workload
    study = checked(
        st.Study, {"model": MODEL, "engine": "simulated", "gpu": "L4", "num_gpus": 1, **options}
    )
    ((tuned,),) = study_setup(study).groups
    simulated = simulated_trial(checked(st.Simulation, {"model": MODEL, "gpu": "L4", **options}))[0]
    assert tuned.workload.requests() == simulated.workload.requests() == benched.requests()
    for attribute in ("concurrency", "duration_s", "api", "ignore_eos", "closed_loop"):
        assert getattr(simulated.workload, attribute) == getattr(benched, attribute)
        assert getattr(tuned.workload, attribute) == getattr(benched, attribute)


@pytest.mark.parametrize(
    "words", ["a rate", "adapters", "a data set", "a trace with shared blocks"]
)
def test_a_simulation_plays_the_requests_that_bench_sends(words, files, monkeypatch):
    monkeypatch.chdir(files)
    options = WORDS[words][0]
    requests = LoadOptions(**options).to_workload(MODEL).requests()
    records = st.simulate(MODEL, gpu="L4", **options).run.records
    assert [one.input_tokens for one in records] == [one.input_tokens for one in requests]
    assert [one.output_tokens for one in records] == [one.output_tokens for one in requests]
    if "concurrency" not in options:
        assert [one.due_s for one in records] == [one.due_s for one in requests]


def test_every_option_about_load_is_a_client_argument():
    assert set(LoadOptions.__struct_fields__) <= CLIENT_ARGS.keys()
    values = {"concurrency": 3, "requests": 7, "shared_prefix_tokens": 9, "seed": 4, "warmup": 0}
    read = load_options({**values, "input_tokens": "40", "output_tokens": "4"})
    assert read == LoadOptions(**values, input_tokens="40", output_tokens="4")
    assert msgspec.json.decode(msgspec.json.encode(read), type=LoadOptions) == read
