"""What was found is shipped, proved, and taken away again: no AWS, real boto3, real processes.

Each command is the one a user types. AWS is `tests/deploy/doubles`; behind an endpoint runs the
engine that the deployed model's environment describes, and nothing else says what it shall be.
"""

import json

import pytest
from doubles.fleet import Fleet
from ship_kit import (
    ENDPOINT,
    INSTANCE,
    MODEL,
    PLANTED,
    ROLE,
    Shell,
    doubles,
    seen_secrets,
    standing,
)

from servetune.store import read_journal

#: Answers so long that most steps have no prompt, also where a busy machine scatters the prompts:
#: with 24 tokens the median ITL was at times one of steps with a prompt, half as long again.
CONCURRENCY, REQUESTS, OUTPUT_TOKENS = 64, 320, 72
#: A machine that does other things meanwhile is no other server; a smaller batch is.
TOLERANCE = ("--tolerance", "0.4")


@pytest.fixture
def double():
    fake = doubles()
    yield fake
    fake.close()


@pytest.fixture
def shell(servetune, double, called):
    return Shell(servetune, double, called)


@pytest.fixture
def fleet(double, tmp_path):
    folder = tmp_path / "containers"
    folder.mkdir()
    with Fleet(double, folder) as made:
        yield made


def tuned(shell):
    """A sweep in which the batch size that nobody may lose on the way is the better one."""
    shell(
        "tune", "--engine", "simulated", "--model", MODEL, "--instance", INSTANCE,
        "--server-args", "tensor_parallel_size=4;max_num_seqs=[32,128];max_model_len=4096",
        "--client-args",
        f"dataset_name=random;random_input_len=128;random_output_len={OUTPUT_TOKENS};"
        f"num_prompts={REQUESTS};max_concurrency={CONCURRENCY}",
        "--output-json", "q.json",
    )  # fmt: skip


def deployed(shell, *more):
    return shell(
        "deploy", "sagemaker", "q.json", "--out", "b", "--apply", "--yes", "--poll-s", "0", *more,
    )  # fmt: skip


def compared(tmp_path, folder):
    (record,) = read_journal(tmp_path / folder / "bench.jsonl")
    return record.results["against"]


def kept_time(container):
    """Whether the simulated engine was as fast as it meant to be."""
    return not any("behind its own clock" in line for line in container.lines())


@pytest.mark.timed
@pytest.mark.slow  # test_ship_real.py has the same with a real engine, in CI
def test_from_a_sweep_to_a_proved_endpoint_and_back_to_nothing(shell, double, fleet, tmp_path):
    tuned(shell)
    picked = shell("recommend", "q.json")
    assert "sequences 128" in picked.stdout
    made = deployed(shell, "--copies", "1", "--scale", "1:4", "--hf-token-from-env")
    states = [line.split(": ")[-1] for line in made.stderr.splitlines() if ENDPOINT in line]
    assert states.index("Creating") < states.index("InService")
    assert "servetune bench --against b" in made.stderr

    (model,) = [row for (kind, _), row in double.control.rows.items() if kind == "Model"]
    sent = model["request"]["PrimaryContainer"]["Environment"]
    assert sent["HF_TOKEN"] == PLANTED["HF_TOKEN"]  # it is where it must be, and nowhere else
    container = fleet.start(ENDPOINT, f"{ENDPOINT}-base")
    assert "--max-num-seqs=128" in container.command
    double.services.say(f"/aws/sagemaker/InferenceComponents/{ENDPOINT}-base",
                      ["loaded with HF_TOKEN=" + PLANTED["HF_TOKEN"]])  # fmt: skip
    proved = shell("bench", "--against", "b", *TOLERANCE, "--quiet", "--out", "proof", code=None)
    against = compared(tmp_path, "proof")
    calm = kept_time(container)
    if calm:
        assert proved.returncode == 0, proved.stdout
        assert "\nreproduced" in proved.stdout
        assert against["reproduced"] is True
        assert against["differences"] == []
    (record,) = read_journal(tmp_path / "proof" / "bench.jsonl")
    assert record.results["completed"] == REQUESTS
    assert record.results["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    assert record.results["sagemaker"]["failures_by_name"] == {}

    job = (
        "bench", "--via-aws-job", "--sagemaker", ENDPOINT, "--component", f"{ENDPOINT}-base",
        "--workload", "default", "--model", MODEL, "--concurrency", "1,8", "--role-arn", ROLE,
        "--output-s3", "s3://bucket/bench", "--region", "us-east-1", "--poll-every", "0.05",
    )  # fmt: skip
    shell(*job, "--out", "theirs")
    theirs = read_journal(tmp_path / "theirs" / "bench.jsonl")
    assert [each.results["max_concurrency"] for each in theirs] == [1, 8]
    assert {"mean_ttft_ms", "output_throughput"} <= theirs[0].results.keys() & record.results.keys()
    shell(*job, "--clean")

    (access,) = double.runtime.secrets
    good, double.runtime.secrets = double.runtime.secrets, {access: ("another", "token")}
    refused = shell("bench", "--against", "b", "--quiet", code=3)  # AWS repeats what was signed
    assert "X-Amz-Security-Token:[" in refused.stderr
    double.runtime.secrets = good

    told = shell("deploy", "logs", "b")
    assert "[redacted]" in told.stdout
    shell("deploy", "status", "b")
    shell("deploy", "delete", "b", "--poll-s", "0")
    assert standing(double) == []
    left = shell("deploy", "orphans", "--region", "us-east-1")
    assert ENDPOINT not in left.stdout
    fleet.close()
    (tmp_path / "containers").rename(tmp_path.parent / f"{tmp_path.name}-containers")
    assert seen_secrets(tmp_path, shell.said) == []
    if not calm:
        pytest.skip("all but the figures was checked: this machine is too busy to keep a clock by")


def _lost_on_the_way(double, fleet):
    """Somebody's own model of that name: what it leaves out, LMI sets to 32."""
    (model,) = [row for (kind, _), row in double.control.rows.items() if kind == "Model"]
    del model["request"]["PrimaryContainer"]["Environment"]["OPTION_MAX_ROLLING_BATCH_SIZE"]


def _dropped_by_the_image(double, fleet):
    """An image that goes its own way, whatever it was told."""
    fleet.overrides = {"SM_VLLM_MAX_NUM_SEQS": "32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("container", "mishap", "source"),
    [
        ("lmi", _lost_on_the_way, "what its container was given"),
        ("vllm", _dropped_by_the_image, "the start-up log"),
        ("hf-vllm", _dropped_by_the_image, "the start-up log"),
    ],
)
def test_a_container_with_another_setting_is_found_out_and_named(
    shell, double, fleet, tmp_path, container, mishap, source
):
    tuned(shell)
    deployed(shell, "--container", container)
    # A log outlives its endpoint: this was said before it was made.
    group = f"/aws/sagemaker/Endpoints/{ENDPOINT}"
    double.services.log_lines[group] = ["non-default args: {'max_num_seqs': 7}"]
    double.services.said_s[group, 0] = 1.0
    mishap(double, fleet)
    fleet.start(ENDPOINT)
    proved = shell("bench", "--against", "b", *TOLERANCE, "--quiet", "--out", "proof", code=1)
    assert "not reproduced" in proved.stdout
    named = f"max_num_seqs is 32, the trial had 128 (says {source})"
    assert named in " ".join(proved.stdout.split())
    against = compared(tmp_path, "proof")
    assert against["regressed"] is True
    assert against["differences"] == [named]


ELSEWHERE = {
    "sglang": ("max_running_requests=128;context_length=4096", "MAX_RUNNING_REQUESTS"),
    "tgi": ("max_batch_size=128;max_total_tokens=4096;max_input_tokens=2048", "MAX_BATCH_SIZE"),
}


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("engine", ELSEWHERE)
def test_what_was_simulated_for_another_engine_is_shipped_and_proved_as_that_engine(
    shell, double, fleet, tmp_path, engine
):
    settings, decisive = ELSEWHERE[engine]
    # Few users: many who end together come back scattered, and a scheduler that computes prompts
    # first then has them apart or together by chance.
    shell(
        "simulate", "--engine", engine, "--model", MODEL, "--instance", INSTANCE,
        "--tensor-parallel", "4", "--server-args", settings, "--concurrency", "16",
        "--requests", "96", "--input-len", "128", "--output-len", str(OUTPUT_TOKENS),
        "--out", "s",
    )  # fmt: skip
    shell(
        "deploy",
        "sagemaker",
        "s/simulated.jsonl",
        "--out",
        "b",
        "--apply",
        "--yes",
        "--poll-s",
        "0",
    )
    prove = ("bench", "--against", "b", *TOLERANCE, "--quiet", "--out")
    container = fleet.start(ENDPOINT)
    proved = shell(*prove, "proof", code=None)
    against = compared(tmp_path, "proof")
    assert not any("max_num_seqs" in line for line in against["differences"])
    if kept_time(container):
        assert proved.returncode == 0, proved.stdout
        assert against["differences"] == []
        assert against["reproduced"] is True

    fleet.close()
    (name,) = [key for key in fleet.log_of(ENDPOINT) if key.endswith(decisive)]
    fleet.overrides = {name: "4"}  # an image that goes its own way
    fleet.start(ENDPOINT)
    shell(*prove, "again", code=1)
    named = "max_num_seqs is 4, the trial had 128 (says the start-up log)"
    assert compared(tmp_path, "again")["differences"] == [named]
    shell("deploy", "delete", "b", "--poll-s", "0")
    assert standing(double) == []


LOAD = ("-c", "4", "-n", "20", "--input-tokens", "32", "--output-tokens", "12", "--warmup", "0",
        "--quiet", "--model", MODEL, "--region", "us-east-1", "--sagemaker", ENDPOINT)  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "more", "kind", "words"),
    [
        ({"break_after": 3, "break_every": 4}, (), "model_error",
         "ModelStreamError ContainerFailed"),
        pytest.param(
            {"limit_s": 0.001}, (), "time_limit", "InvocationTimeLimit: ModelStreamError",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"limit_s": 0.001}, ("--no-stream",), "time_limit", "InvocationTimeLimit: ModelError",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_what_fails_on_the_way_is_counted_by_its_name(
    shell, double, fleet, tmp_path, fault, more, kind, words
):
    """A stream that breaks half-way, and an answer that comes after SageMaker's own limit."""
    tuned(shell)
    deployed(shell)
    fleet.start(ENDPOINT)
    wrong = shell("bench", *LOAD, "--model", "wrong", "--warmup", "1", code=3).stderr
    assert "give the name of the model in the container" in wrong
    for name, value in fault.items():
        setattr(double.runtime, name, value)
    # More failed than --max-error-rate.
    ran = shell("bench", *LOAD, *more, "--out", "run", code=3)
    assert words in ran.stdout
    (record,) = read_journal(tmp_path / "run" / "bench.jsonl")
    account, failed = record.results["sagemaker"], record.results["failed"]
    assert account[kind] == failed > 0
    assert sum(account[each] for each in ("throttled", "time_limit", "model_error", "other")) == (
        failed
    )
    if kind == "model_error":  # what came before the break is kept
        lines = (tmp_path / "run" / "bench.requests.jsonl").read_text().splitlines()
        broken = [json.loads(line) for line in lines if "ModelStreamError" in line]
        assert len(broken) == failed
        assert record.results["completed"] == 20 - failed


@pytest.mark.slow
def test_an_endpoint_is_swept_in_one_command_that_names_no_component(
    shell, double, fleet, tmp_path
):
    """What the study of several replicas needed nine commands for, by load and by rate."""
    tuned(shell)
    deployed(shell, "--copies", "1")
    fleet.start(ENDPOINT, f"{ENDPOINT}-base")
    sweep = (
        "bench", "--endpoint", ENDPOINT, "--region", "us-east-1", "-n", "16", "--quiet",
        "--input-tokens", "32", "--output-tokens", "8", "--constraints", "ttft:p50<=10s",
    )  # fmt: skip
    ran = shell(*sweep, "-c", "1,2,4,8", "--out", "users")
    assert f"component={ENDPOINT}-base, model={MODEL}" in ran.stderr
    records = read_journal(tmp_path / "users" / "bench.jsonl")
    assert [record.results.max_concurrency for record in records] == [1, 2, 4, 8]
    assert all(record.results["completed"] == 16 for record in records)
    assert {record.metadata.model for record in records} == {MODEL}
    assert "knee: " in ran.stdout
    assert "largest within ttft:p50<=10s: 8, and more was not tried" in ran.stdout
    assert (tmp_path / "users" / "bench.html").stat().st_size > 10_000
    ran = shell(*sweep, "--rate", "20,40", "--out", "rates")
    records = read_journal(tmp_path / "rates" / "bench.jsonl")
    assert [record.config.client_args["request_rate"] for record in records] == [20, 40]
    assert "largest within ttft:p50<=10s: " in ran.stdout
    base = double.control.rows["InferenceComponent", f"{ENDPOINT}-base"]
    for name in ("other", "third"):
        request = {**base["request"], "InferenceComponentName": name}
        double.control.rows["InferenceComponent", name] = {**base, "request": request}
    refused = shell(*sweep, "-c", "1,2", code=2).stderr
    assert f"has 3 components: other, {ENDPOINT}-base, third" in refused
    assert "--component other" in refused


def test_quota_no_capacity_and_a_sick_container_end_with_a_line_and_the_next_run_goes_on(
    shell, double
):
    tuned(shell)
    double.control.quota[INSTANCE] = 0
    assert "0 allowed" in shell(*_deploy(), code=2).stderr
    assert double.operations() == []
    double.control.quota[INSTANCE] = 4
    double.control.no_capacity = {INSTANCE}
    assert "InsufficientInstanceCapacity" in shell(*_deploy(), code=4).stderr
    double.control.no_capacity = set()
    double.control.unhealthy = {"Qwen3-4B"}
    double.throttled["DescribeEndpoint"] = 2
    sick = shell(*_deploy(), code=4).stderr
    assert "ping health check" in sick
    assert "servetune deploy logs" in sick
    double.control.unhealthy = set()
    shell(*_deploy())
    shell("deploy", "delete", "b", "--poll-s", "0")
    assert standing(double) == []


def _deploy():
    return ("deploy", "sagemaker", "q.json", "--out", "b", "--apply", "--yes", "--poll-s", "0")


JOB = (
    "bench", "--via-aws-job", "--sagemaker", "theirs", "--workload", "default", "--model", MODEL,
    "--concurrency", "1,8", "--role-arn", ROLE, "--output-s3", "s3://bucket/bench", "--region",
    "us-east-1", "--poll-every", "0.02",
)  # fmt: skip


def test_a_job_without_a_whole_result_is_an_error_and_force_runs_it_anew(shell, double, tmp_path):
    double.control.stand("theirs")
    double.jobs.fault = "no_object"
    assert "left no output.tar.gz" in shell(*JOB, code=3).stderr
    double.jobs.fault = "truncated"
    assert "truncated" in shell(*JOB, "--force", code=3).stderr
    assert "truncated" in shell(*JOB, code=3).stderr  # it is read again, not run again
    double.jobs.fault = ""
    shell(*JOB, "--force", "--out", "records")
    assert len(read_journal(tmp_path / "records" / "bench.jsonl")) == 2
    shell(*JOB, "--clean")
    assert (double.jobs.jobs, double.jobs.workloads) == ({}, {})


def test_what_aws_recommends_stands_beside_our_own_trials_and_can_be_shipped(shell, double):
    tuned(shell)
    environment = {
        "HF_MODEL_ID": "/opt/ml/model",
        "OPTION_TENSOR_PARALLEL_DEGREE": "2",
        "OPTION_MAX_ROLLING_BATCH_SIZE": "96",
        "OPTION_MAX_MODEL_LEN": "4096",
    }
    double.jobs.recommendations["theirs"] = {
        "AIRecommendationJobStatus": "Completed",
        "Recommendations": [
            {
                "DeploymentConfiguration": {
                    "ImageUri": "1.dkr.ecr.x.amazonaws.com/djl-inference:0.36.0-lmi28.0.0-cu130",
                    "InstanceType": INSTANCE,
                    "InstanceCount": 1,
                    "CopyCountPerInstance": 2,
                    "EnvironmentVariables": environment,
                },
                "ExpectedPerformance": [
                    {"Metric": "throughput", "Stat": "avg", "Value": "4321", "Unit": "tokens/s"}
                ],
            }
        ],
    }
    shell("bench", "--recommendations", "theirs", "--model", MODEL, "--region", "us-east-1",
          "--out", "rec")  # fmt: skip
    picked = shell("recommend", "rec/bench.jsonl")
    assert "4,321" in picked.stdout
    shown = shell("deploy", "sagemaker", "rec/bench.jsonl", "--dry-run")
    rendered = json.loads(shown.stdout)
    assert rendered["OPTION_MAX_ROLLING_BATCH_SIZE"] == "96"
    assert rendered["OPTION_TENSOR_PARALLEL_DEGREE"] == "2"
    assert rendered["SERVING_MAX_WORKERS"] == "2"
