"""`servetune deploy` off SageMaker, as a user runs it on the journal of a sweep."""

import json

import pytest
import yaml
from msgspec import structs

import servetune as st
from servetune.api.bench_baseline import reproducing
from servetune.plan import Plan
from servetune.store import Journal, TrialConfig, TrialRecord, read_journal

MODEL = "Qwen/Qwen3-4B"
TOKEN = "hf_" + "Xy9" * 12


@pytest.fixture
def servetune(called):
    return called


def record(concurrency, *, key, latency_ms, gpu="NVIDIA L4", **results):
    plan = Plan(model=MODEL, tensor_parallel=2, max_num_seqs=128, prefix_caching=False)
    return TrialRecord(
        key=key,
        plan=plan,
        config=TrialConfig(server_args={"tensor_parallel_size": 2, "max_num_seqs": 128}),
        results={
            "max_concurrency": concurrency,
            "completed": 100,
            "output_throughput": 10.0 * concurrency,
            "median_e2e_latency_ms": latency_ms,
            "p99_ttft_ms": latency_ms / 2,
            **results,
        },
        metadata={"model_tag": MODEL, "gpu_type": gpu, "gpu_count": 4, "framework": "vllm"},
        provenance={"engine_version": "0.26.0"},
    )


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "tune.jsonl"
    with Journal(path) as journal:
        for concurrency, latency_ms in ((4, 100.0), (16, 150.0), (64, 450.0)):
            journal.append(record(concurrency, key=f"trial-{concurrency}", latency_ms=latency_ms))
    return path


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("kubernetes", "deployment.yaml"),
        ("kserve", "inferenceservice.yaml"),
        ("compose", "compose.yaml"),
        ("systemd", "qwen-qwen3-4b-1.service"),
        ("command", "serve-2.sh"),
        ("bentoml", "service.py"),
    ],
)
def test_each_target_gets_what_was_tuned_and_what_was_left_open(servetune, journal, target, file):
    ran = servetune("deploy", target, journal, "--out", "out")
    assert ran.returncode == 0, ran.stderr
    text = (journal.parent / "out" / file).read_text()
    for word in (
        "--tensor-parallel-size=2", "--max-num-seqs=128", "--no-enable-prefix-caching",
        "--max-num-batched-tokens=2048", "--gpu-memory-utilization=0.92", "--max-model-len=40960",
    ):  # fmt: skip
        assert word in text
    about = json.loads((journal.parent / "out" / "plan.json").read_text())
    assert about["image"] == "vllm/vllm-openai:v0.26.0"
    again = servetune("deploy", target, journal, "--out", "out")
    assert again.returncode == 0, again.stderr


def test_what_is_of_simulated_copies_reaches_no_engine(servetune, tmp_path):
    run = servetune(
        "simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--num-gpus", "2", "--replicas", "2",
        "--routing", "random", "--rate", "2", "--requests", "30", "--out", "sim",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert servetune("deploy", "compose", "sim/simulated.jsonl", "--out", "out").returncode == 0
    composed = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    assert len(composed["services"]) >= 2
    assert "routing" not in json.dumps(composed)
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["plan"]["routing"] == "random"


def test_what_was_simulated_of_a_release_is_deployed_as_that_release(servetune, tmp_path):
    run = servetune(
        "simulate", "--model", "Qwen/Qwen3-4B", "--gpu", "L4", "--concurrency", "2", "--requests",
        "4", "--engine-version", "0.27.0", "--out", "sim",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    ran = servetune("deploy", "command", "sim/simulated.jsonl", "--out", "out")
    assert ran.returncode == 0, ran.stderr
    about = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert (about["engine_version"], about["plan"]["engine_version"]) == ("0.27.0", None)
    assert "vllm==0.27.0" in (tmp_path / "out" / "README.md").read_text()
    ran = servetune("deploy", "sagemaker", "sim/simulated.jsonl", "--out", "endpoint")
    assert "the trial is of engine version 0.27.0, the nearest lmi image has" in ran.stdout


def test_copies_fill_the_machine_that_was_measured_unless_one_is_asked_for(servetune, journal):
    """A copy on two of four GPUs leaves two of them idle, and they are paid for."""
    ran = servetune("deploy", "compose", journal, "--out", "filled")
    assert ran.returncode == 0, ran.stderr
    filled = yaml.safe_load((journal.parent / "filled" / "compose.yaml").read_text())
    assert len(filled["services"]) == 2
    text = (journal.parent / "filled" / "README.md").read_text()
    assert "The trial had 1 copy; this has 2 copies to fill 4x L4 (`--copies` is their" in text
    assert "Expected are 1,279 output tokens/s: 2 copies on one machine do 99.9% of what" in text
    assert servetune("deploy", "compose", journal, "--out", "one", "--copies", "1").returncode == 0
    one = yaml.safe_load((journal.parent / "one" / "compose.yaml").read_text())
    assert len(one["services"]) == 1
    assert "The trial had" not in (journal.parent / "one" / "README.md").read_text()


def test_a_bundle_of_several_copies_is_proved_at_as_many_times_a_copys_load(servetune, journal):
    said = "2 copies on one machine, and the trial had 1: 2 times its load is sent"
    for target, urls, scaled in (
        ("kubernetes", ["http://127.0.0.1:1"], True),  # a Service is before both
        ("compose", ["http://127.0.0.1:1"], False),  # the address of one of them
        ("compose", ["http://127.0.0.1:1", "http://127.0.0.1:2"], True),
    ):
        assert servetune("deploy", target, journal, "--out", target).returncode == 0
        asked = servetune("bench", *urls, "--against", target, "--input-tokens", "20")
        assert (said in asked.stderr) == scaled, asked.stderr


def test_copies_fill_an_instance_of_sagemakers_as_components(servetune, journal):
    ran = servetune("deploy", "sagemaker", journal, "--out", "filled")
    assert ran.returncode == 0, ran.stderr
    assert "2 copies fill 1 ml.g6.12xlarge; --copies 1 leaves 2 of its 4 devices idle" in ran.stderr
    made = json.loads((journal.parent / "filled" / "deployment.json").read_text())
    (component,) = [step for step in made["steps"] if step["kind"] == "component"]
    assert component["request"]["RuntimeConfig"] == {"CopyCount": 2}
    needs = component["request"]["Specification"]["ComputeResourceRequirements"]
    assert needs["NumberOfAcceleratorDevicesRequired"] == 2
    assert "NumberOfCpuCoresRequired" not in needs
    folder = journal.parent / "filled"
    proof = st.Bench(baseline=structs.replace(st.Bench().baseline, against=folder))
    asked, expected = reproducing(
        structs.replace(proof, load=structs.replace(proof.load, input_tokens="20"))
    )
    users = expected.results["max_concurrency"]
    assert asked.levels()[0].load.concurrency == users
    (trial,) = read_journal(folder / "trial.jsonl")
    assert users == 2 * trial.results["max_concurrency"]
    each = ("--cpu-cores", "12", "--memory-mib", "40000")
    ran = servetune("deploy", "sagemaker", journal, "--out", "filled", *each)
    assert ran.returncode == 0, ran.stderr
    made = json.loads((journal.parent / "filled" / "deployment.json").read_text())
    (component,) = [step for step in made["steps"] if step["kind"] == "component"]
    needs = component["request"]["Specification"]["ComputeResourceRequirements"]
    assert (needs["NumberOfCpuCoresRequired"], needs["MinMemoryRequiredInMb"]) == (12.0, 40000)
    ran = servetune("deploy", "sagemaker", journal, "--dry-run", "--cpu-cores", "30")
    assert "2 copies of 30 cores need more than the 48 of ml.g6.12xlarge" in ran.stderr
    ran = servetune("deploy", "sagemaker", journal, "--out", "one", "--copies", "1")
    assert "copies fill" not in ran.stderr
    made = json.loads((journal.parent / "one" / "deployment.json").read_text())
    (component,) = [step for step in made["steps"] if step["kind"] == "component"]
    assert component["request"]["RuntimeConfig"] == {"CopyCount": 1}


#: Model of a trial and words of its deployment, by engine; the first that hub ids do not name.
WITHOUT_DEFAULTS = {
    "tensorrt-llm": (MODEL, ["--max_batch_size=64", "release:1.2.0"], "1.2.0"),
    "lmdeploy": (MODEL, ["--max-batch-size=64", "lmdeploy:v0.18.0"], "0.18.0"),
    "llama.cpp": ("/models/qwen.gguf", ["/models/served", "server-cuda-v0.5.0"], "0.5.0"),
    "transformers": (MODEL, ["--cb-max-batch-tokens=2048", "registry/own:1"], "5.23.0"),
    "max": (MODEL, ["--max-batch-size=64", "max-nvidia-full:26.7.0"], "26.7.0"),
    "mlc-llm": ("mlc-ai/Q-MLC", ["max_num_sequence=64", "registry/own:1"], "0.20.0"),
    "vllm-neuron": (MODEL, ["--max-num-seqs=64", "sdk2.32.0", "/dev/neuron0"], "0.24.0.1.1.0"),
}


@pytest.mark.parametrize("name", WITHOUT_DEFAULTS)
def test_an_engine_whose_defaults_are_not_described_is_deployed_as_it_was_tuned(
    servetune, tmp_path, name
):
    model, words, version = WITHOUT_DEFAULTS[name]
    chosen = {"max_num_batched_tokens": 2048} if name == "transformers" else {"max_num_seqs": 64}
    trial = record(16, key="trial-16", latency_ms=150.0)
    gpu = "AWS Trainium2" if name == "vllm-neuron" else "NVIDIA L4"
    metadata = {**trial.metadata, "framework": name, "model_tag": model, "gpu_type": gpu}
    about = {"metadata": metadata, "plan": Plan(model=model, engine=name, **chosen)}
    path = tmp_path / "own.jsonl"
    with Journal(path) as journal:
        journal.append(structs.replace(trial, provenance={"engine_version": version}, **about))
    image = ("--image", "registry/own:1") if "registry/own:1" in words else ()
    ran = servetune("deploy", "compose", path, "--out", "out", *image)
    assert ran.returncode == 0, ran.stderr
    text = (tmp_path / "out" / "compose.yaml").read_text()
    assert all(word in text for word in words)
    assert "are not described here: what the trial left open" in ran.stdout
    refused = servetune("deploy", "sagemaker", path, "--dry-run")
    assert refused.returncode != 0
    assert f"no container of SageMaker's runs {name}" in refused.stderr


@pytest.fixture
def tgi_journal(tmp_path):
    plan = Plan(model=MODEL, engine="tgi", max_model_len=8192)
    trial = record(16, key="trial-16", latency_ms=150.0)
    about = {"metadata": {**trial.metadata, "framework": "tgi"}, "plan": plan}
    config = TrialConfig(server_args={"max_total_tokens": 8192})
    path = tmp_path / "tgi.jsonl"
    with Journal(path) as journal:
        provenance = {"engine_version": "3.3.4"}
        journal.append(structs.replace(trial, config=config, provenance=provenance, **about))
    return path


@pytest.mark.parametrize(
    ("image", "own", "others"),
    [
        (None, "PREFILL_CHUNKING", "--max-batch-prefill-tokens"),
        ("registry/tgi:2.4.0", "--max-batch-prefill-tokens=8241", "PREFILL_CHUNKING"),
        ("registry/tgi:1.4.5", "--max-batch-prefill-tokens=4096", "PREFILL_CHUNKING"),
    ],
)
def test_tgi_is_told_the_defaults_of_the_version_that_ships(
    servetune, tgi_journal, image, own, others
):
    given = ("--image", image) if image else ()
    ran = servetune("deploy", "compose", tgi_journal, "--out", "out", *given)
    assert ran.returncode == 0, ran.stderr
    text = (tgi_journal.parent / "out" / "compose.yaml").read_text()
    assert own in text
    assert others not in text
    assert "--max-total-tokens=8192" in text
    assert ("works out max_num_batched_tokens" in ran.stdout) == (image is None)


def test_sagemakers_tgi_is_told_the_defaults_of_its_image(servetune, tgi_journal):
    ran = servetune("deploy", "sagemaker", tgi_journal, "--dry-run")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["PREFIX_CACHING"] == told["PREFILL_CHUNKING"] == "1"
    assert told["CUDA_MEMORY_FRACTION"] == "1.0"
    assert told["MAX_INPUT_TOKENS"] == "8191"
    assert not {"MAX_BATCH_PREFILL_TOKENS", "MAX_BATCH_SIZE"} & set(told)
    older = "2.4.0-tgi2.4.0-gpu-py311-cu124-ubuntu22.04"
    ran = servetune("deploy", "sagemaker", tgi_journal, "--dry-run", "--image-tag", older)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["MAX_BATCH_PREFILL_TOKENS"] == "8241"


@pytest.mark.parametrize("gpu", [None, "A10G"])
def test_what_the_server_settled_at_its_start_is_written_out_where_the_same_device_serves(
    servetune, tgi_journal, gpu
):
    (trial,) = read_journal(tgi_journal)
    settled = {"max_num_batched_tokens": 8242, "max_model_len": 4096, "chunked_prefill": False}
    results = trial.results | {"startup": {"settled": settled}}
    with Journal(tgi_journal, resume=True) as journal:
        journal.append(structs.replace(trial, key="later", results=results))
    given = ("--gpu", gpu) if gpu else ()
    ran = servetune("deploy", "compose", tgi_journal, "--out", "out", "--key", "later", *given)
    assert ran.returncode == 0, ran.stderr
    text = (tgi_journal.parent / "out" / "compose.yaml").read_text()
    assert ("--max-batch-prefill-tokens=8242" in text) == (gpu is None)
    assert "--max-total-tokens=8192" in text  # was asked for, and is no default to be settled
    assert ("PREFILL_CHUNKING: '0'" in text or 'PREFILL_CHUNKING: "0"' in text) == (gpu is None)


def test_the_bundle_holds_the_trial_that_a_benchmark_is_held_against(servetune, journal):
    assert servetune("deploy", "compose", journal, "--out", "out").returncode == 0
    out = journal.parent / "out"
    (trial,) = read_journal(out / "trial.jsonl")
    assert trial.key in json.loads((out / "plan.json").read_text())["evidence"]["source"]
    assert "trial.jsonl" in json.loads((out / "plan.json").read_text())["files"]
    assert "servetune bench http://ADDRESS:8000 --against BUNDLE" in (out / "README.md").read_text()
    unsaid = servetune("bench", "--against", "out")
    assert unsaid.returncode == 2
    assert "names no address of a server" in unsaid.stderr
    assert "servetune bench http://ADDRESS:PORT --against out" in unsaid.stderr
    asked = servetune("bench", "http://127.0.0.1:1", "--against", "out")
    assert "127.0.0.1:1" in asked.stderr  # the bundle's trial was taken, and the server asked


def test_the_saturation_point_comes_from_the_sweep_or_from_the_limits(servetune, journal):
    ran = servetune("deploy", "kubernetes", journal, "--out", "a", "--autoscaler", "keda")
    assert ran.returncode == 0, ran.stderr
    scaler = yaml.safe_load((journal.parent / "a" / "keda.yaml").read_text())
    # Twice 100 ms lies a sixth of the way from 16 to 64 users: 24, less a fifth.
    assert scaler["spec"]["triggers"][0]["metadata"]["threshold"] == "19"
    limited = ("--autoscaler", "hpa", "--constraints", "ttft:p99<=100ms")
    ran = servetune("deploy", "kubernetes", journal, "--out", "b", *limited)
    assert ran.returncode == 0, ran.stderr
    scaler = yaml.safe_load((journal.parent / "b" / "hpa.yaml").read_text())
    target = scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    assert target == "12"  # of 16


def test_hand_edits_in_an_overlay_survive_rendering_again(servetune, journal):
    overlay = journal.parent / "mine.yaml"
    overlay.write_text("kind: Deployment\nspec: {template: {spec: {priorityClassName: serving}}}\n")
    for out in ("a", "a"):
        ran = servetune("deploy", "kubernetes", journal, "--out", out, "--overlay", overlay)
        assert ran.returncode == 0, ran.stderr
        made = yaml.safe_load((journal.parent / out / "deployment.yaml").read_text())
        assert made["spec"]["template"]["spec"]["priorityClassName"] == "serving"
    for text, message in (
        ("kind: Ingress\n", "changes Ingress, which is not rendered"),
        ("- 1\n", "holds what is no object"),
        ("a: [\n", "is not YAML"),
    ):
        overlay.write_text(text)
        ran = servetune("deploy", "kserve", journal, "--out", "b", "--overlay", overlay)
        assert ran.returncode == 2
        assert message in ran.stderr
        assert "Traceback" not in ran.stderr


def test_a_dry_run_prints_and_writes_nothing(servetune, journal):
    ran = servetune("deploy", "compose", journal, "--out", "out", "--dry-run")
    assert ran.returncode == 0
    assert "--max-num-seqs=128" in ran.stdout
    assert not (journal.parent / "out").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("kubernetes", "--key", "nope"), 2, "no trial has the key nope"),
        (("kubernetes", "--constraints", "ttft:p99<=1ms"), 2, "no trial meets"),
        (("kubernetes", "--namespace", "a b"), 2, "not a name that Kubernetes takes"),
        (("compose", "--name", "A B"), 2, "not a name that every target takes"),
        (("compose", "--port", "99999"), 2, "port 99999 does not exist"),
        (("command", "--gpu", "Abacus"), 2, "Abacus"),
        (("bentoml", "--port", "9000"), 2, "port 8000, not 9000"),
        (("kserve", "--model-source", "/data/m"), 2, "cannot see the folder /data/m"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(servetune, journal, words, code, message):
    target, *more = words
    ran = servetune("deploy", target, journal, "--out", "out", *more)
    assert ran.returncode == code, ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (journal.parent / "out").exists()


def test_a_trial_without_a_device_needs_one_named(servetune, tmp_path):
    path = tmp_path / "t.jsonl"
    with Journal(path) as journal:
        journal.append(record(4, key="k", latency_ms=1.0, gpu="unknown"))
    ran = servetune("deploy", "command", path, "--out", "out")
    assert ran.returncode == 2
    assert "--gpu L4" in ran.stderr
    assert servetune("deploy", "command", path, "--out", "out", "--gpu", "L4").returncode == 0


def test_a_token_in_the_journal_or_the_environment_gets_nowhere(servetune, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = tmp_path / "t.jsonl"
    with Journal(path) as journal:
        journal.append(record(4, key="k", latency_ms=1.0, note=f"ran with {TOKEN}"))
    for target in ("kubernetes", "compose", "systemd", "command", "bentoml"):
        ran = servetune("deploy", target, path, "--out", target)
        assert ran.returncode == 0, ran.stderr
        written = "".join(file.read_text() for file in (tmp_path / target).iterdir())
        assert TOKEN not in written + ran.stdout + ran.stderr
