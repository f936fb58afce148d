"""AWS's jobs as a back end, against a double over HTTP and the real boto3."""

import json
import os
import signal
import subprocess
import time

import boto3
import pytest
from botocore.config import Config
from doubles import FakeAws
from doubles.jobs import EXPORT, archive, export

import forked
from servetune.deploy.aws import jobs
from servetune.deploy.aws.job_archive import levels_of, results_of
from servetune.deploy.aws.jobs import BenchmarkJob, job_parameters
from servetune.deploy.containers import parse_environment
from servetune.errors import InputError, LoadError, ServetuneError
from servetune.store import read_journal
from servetune.workload.presets import preset, preset_names

ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
MODEL = "Qwen/Qwen3-4B"


@pytest.fixture
def aws():
    """The doubles, with an endpoint of two components in service; time passes by looking."""
    double = FakeAws(look_s=120.0)
    double.control.stand("my-endpoint", "model-1", "model-2")
    double.control.stand("plain-endpoint")
    yield double
    double.close()


@pytest.fixture
def clients(aws):
    session = boto3.session.Session("x", "y", region_name="us-east-1")
    config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    made = [
        session.client(name, endpoint_url=aws.url, config=config) for name in ("sagemaker", "s3")
    ]
    yield made
    for client in made:
        client.close()


def job(levels=(1, 4, 8), **more):
    parameters, _ = job_parameters(preset("agent_tool_calling"), model=MODEL, concurrencies=levels)
    usual = {
        "endpoint": "plain-endpoint", "role_arn": ROLE, "output": "s3://bucket/bench",
        "parameters": parameters,
    }  # fmt: skip
    return BenchmarkJob(concurrencies=tuple(levels), model=MODEL, **(usual | more))


def wait(client, question, **more):
    return jobs.wait(client, question.name, sleep=lambda _: None, **more)


def test_a_sweep_is_one_job_and_gives_a_trial_for_each_level(aws, clients):
    client, s3 = clients
    question = job(endpoint="my-endpoint", components=("model-1",))
    assert jobs.start(client, question) is True
    seen = []
    ended = wait(client, question, on_status=lambda each, _: seen.append(each.status))
    assert seen == ["InProgress", "InProgress", "Completed"]
    records = jobs.trials_of(question, jobs.fetch_archive(s3, ended.output), arn=ended.arn)
    assert aws.operations(reading=True).count("CreateAIBenchmarkJob") == 1
    assert [record.results["max_concurrency"] for record in records] == [1, 4, 8]
    last = records[-1].results
    assert last["mean_ttft_ms"] == 48.0
    assert last["p99_ttft_ms"] == 57.0
    assert last["std_ttft_ms"] == 2.0
    assert last["mean_e2e_latency_ms"] == 1500.0  # seconds there
    assert last["output_throughput"] == 800.0
    assert (last["completed"], last["failed"], last["error_rate"]) == (100, 0, 0.0)
    assert last["total_output_tokens"] == 15000
    assert len({record.key for record in records}) == 3
    assert not records[0].simulated
    said = aws.jobs.workloads[question.name]["parameters"]
    assert said["concurrency"] == [1, 4, 8]
    target = aws.jobs.jobs[question.name]["asked"]["BenchmarkTarget"]["Endpoint"]
    assert target["InferenceComponents"] == [{"Identifier": "model-1"}]


def test_an_endpoint_of_components_must_name_one_and_it_must_serve(aws, clients):
    client, _ = clients
    with pytest.raises(LoadError, match="Inference Component Name"):
        jobs.start(client, job(endpoint="my-endpoint"))
    with pytest.raises(LoadError, match="gone of account not found"):
        jobs.start(client, job(endpoint="gone"))
    assert aws.jobs.workloads == {}  # no workload is left of a job that was refused


def test_the_same_question_finds_its_own_job_and_pays_once(aws, clients):
    client, _ = clients
    question = job()
    jobs.start(client, question)
    assert jobs.start(client, question) is False
    wait(client, question)
    assert jobs.start(client, question) is False
    assert aws.operations(reading=True).count("CreateAIBenchmarkJob") == 3
    assert len(aws.jobs.jobs) == 1
    assert job((1, 4)).name != question.name
    assert job(output="s3://bucket/other").name != question.name
    assert len(job(endpoint="e" * 63).name) <= 63


def test_force_takes_a_running_job_away_first(aws, clients):
    client, _ = clients
    question = job()
    jobs.start(client, question)
    assert jobs.start(client, question, force=True, poll_s=0.001) is True
    order = aws.operations()
    assert order == [
        "CreateAIWorkloadConfig", "CreateAIBenchmarkJob", "StopAIBenchmarkJob",
        "DeleteAIBenchmarkJob", "DeleteAIWorkloadConfig", "CreateAIWorkloadConfig",
        "CreateAIBenchmarkJob",
    ]  # fmt: skip


def test_clean_leaves_nothing_and_may_be_done_twice(aws, clients):
    client, _ = clients
    question = job()
    jobs.start(client, question)
    taken = jobs.clean(client, question.name, sleep=lambda _: None)
    assert taken == [f"job {question.name}", f"workload {question.name}"]
    assert not aws.jobs.jobs
    assert not aws.jobs.workloads
    assert jobs.clean(client, question.name) == []
    assert jobs.describe(client, question.name) is None


def test_a_throttled_description_is_asked_for_again(aws, clients):
    client, _ = clients
    question = job()
    jobs.start(client, question)
    aws.throttled["DescribeAIBenchmarkJob"] = 3
    assert wait(client, question).status == "Completed"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("failed", "failed: the endpoint did not answer"),
        ("stopped", "was stopped"),
        ("no_object", "completed and left no output.tar.gz"),
        ("truncated", "truncated"),
        ("lacks_level", "has no concurrency_8/profile_export_aiperf.json"),
    ],
)
def test_a_job_that_ends_badly_says_how(aws, clients, fault, message):
    client, s3 = clients
    aws.jobs.fault = fault
    question = job()
    jobs.start(client, question)

    def read():
        ended = wait(client, question)
        return jobs.trials_of(question, jobs.fetch_archive(s3, ended.output))

    with pytest.raises(LoadError, match=message):
        read()


def test_the_wait_has_an_end(aws, clients):
    client, _ = clients
    aws.jobs.job_s = 1e12
    question = job()
    jobs.start(client, question)
    clock = iter(range(0, 10**6, 1000))
    with pytest.raises(LoadError, match="has not ended after"):
        wait(client, question, limit_s=5000, now_s=lambda: float(next(clock)))


def test_a_prefix_with_two_archives_is_refused(aws, clients):
    _, s3 = clients
    for name in ("a", "b"):
        aws.s3.put("bucket", f"bench/x/{name}/output.tar.gz", b"")
    with pytest.raises(LoadError, match="left 2 output"):
        jobs.fetch_archive(s3, "s3://bucket/bench/x/")
    aws.s3.objects.clear()
    aws.s3.put("bucket", "bench/x/not-output.tar.gz", b"")
    with pytest.raises(LoadError, match="left no output"):
        jobs.fetch_archive(s3, "s3://bucket/bench/x/")


# archives


def test_levels_are_matched_by_their_whole_path():
    decoy = {f"old/concurrency_4/{EXPORT}": export(99), f"concurrency_44/{EXPORT}": export(44)}
    with pytest.raises(LoadError, match="has no concurrency_4/"):
        levels_of(archive(decoy | {f"concurrency_1/{EXPORT}": export(1)}), (1, 4))
    good = decoy | {f"./concurrency_4/{EXPORT}": export(4), f"concurrency_1/{EXPORT}": export(1)}
    assert [level.concurrency for level in levels_of(archive(good), (1, 4))] == [1, 4]


def test_a_search_is_seen_by_its_history_first():
    members = {
        "search_history.json": {"boundary_summary": {"feasible_max": None}},
        EXPORT: export(1),
        f"search_iter_0001/profile_runs/run_0000/{EXPORT}": export(8),
        f"search_iter_0000/profile_runs/run_0000/{EXPORT}": export(4),
    }
    levels = levels_of(archive(members), (1,))
    assert [level.member[:16] for level in levels] == ["search_iter_0000", "search_iter_0001"]
    assert levels[0].boundary == {"feasible_max": None}
    with pytest.raises(LoadError, match="no step"):
        levels_of(archive({"search_history.json": {}}), (1,))


@pytest.mark.parametrize("keep", [0, 1, 10, 30, 60, 100, 150])
def test_an_archive_cut_anywhere_is_an_error_and_never_a_shorter_table(keep):
    raw = archive({f"concurrency_{n}/{EXPORT}": export(n) for n in (1, 2)})
    with pytest.raises(LoadError):
        levels_of(raw[:keep], (1, 2))


def test_every_cut_is_an_error():
    raw = archive({f"concurrency_{n}/{EXPORT}": export(n) for n in (1, 2)})
    whole = [level.concurrency for level in levels_of(raw, (1, 2))]
    for keep in range(0, len(raw), 7):
        try:
            found = [level.concurrency for level in levels_of(raw[:keep], (1, 2))]
        except LoadError:
            continue
        assert found == whole  # only padding behind the last member was cut


def test_metrics_are_renamed_and_their_units_known():
    (level,) = levels_of(archive({EXPORT: export(4, failed=5, std="stddev")}), (4,))
    results = results_of(level)
    assert results["std_ttft_ms"] == 2.0
    assert results["error_rate"] == pytest.approx(0.05)
    odd = export(1)
    odd["request_latency"]["unit"] = "fortnights"
    (level,) = levels_of(archive({EXPORT: odd}), (1,))
    with pytest.raises(LoadError, match="fortnights"):
        results_of(level)
    with pytest.raises(LoadError, match="not JSON"):
        levels_of(archive({EXPORT: b"{"}), (1,))


# workloads


#: shared/spec/workloads.md: input tokens, output tokens.
PUBLISHED = {
    "multi_turn_chat": (550, 150),
    "rag_document_qa": (2048, 256),
    "agent_tool_calling": (800, 100),
    "long_context_scaling": (8192, 512),
    "production_traffic_mix": (1024, 200),
    "shared_system_prompt": (300, 150),
    "default": (550, 150),
    "jumpstart_256": (256, 256),
    "qwen3_walkthrough": (1024, 512),
    "replica_study": (1000, 50),
    "sharegpt": (302, 196),
}


@pytest.mark.parametrize("name", preset_names())
def test_a_job_asks_for_the_published_lengths_of_every_named_workload(name):
    input_tokens, output_tokens = PUBLISHED[name]
    load, _ = job_parameters(preset(name), model=MODEL, concurrencies=[8])
    assert load.prompt_input_tokens_mean == pytest.approx(input_tokens, rel=0.01)
    assert load.output_tokens_mean == pytest.approx(output_tokens, rel=0.01)


def test_prompts_of_a_conversation_spread_as_its_turns_do():
    """130, 410, 690 and 970 tokens: a deviation of 313, and those of the laws."""
    load, notes = job_parameters(preset("multi_turn_chat"), model=MODEL, concurrencies=[8])
    assert load.prompt_input_tokens_stddev == pytest.approx(313, rel=0.03)
    assert "no conversations (each turn is a prompt of its own)" in notes[0]


@pytest.mark.parametrize("name", preset_names())
def test_every_named_workload_can_be_said(name):
    load, notes = job_parameters(preset(name), model=MODEL, concurrencies=[8])
    parameters = job(parameters=load).spec()["parameters"]
    assert parameters["concurrency"] == 8
    known = {
        "prompt_input_tokens_mean", "prompt_input_tokens_stddev", "output_tokens_mean",
        "output_tokens_stddev", "concurrency", "request_count", "streaming", "tokenizer",
        "extra_inputs", "random_seed",
    }  # fmt: skip
    assert parameters.keys() == known  # the service refuses keys that it does not know
    if name == "shared_system_prompt":
        assert "shared prefixes" in notes[0]


def test_lengths_are_the_laws():
    load, _ = job_parameters(preset("agent_tool_calling"), model=MODEL, concurrencies=[1])
    assert abs(load.prompt_input_tokens_mean - 800) <= 2
    assert abs(load.prompt_input_tokens_stddev - 29) <= 2
    assert load.streaming is False


def test_a_token_is_named_by_its_arn_or_not_at_all():
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf-AbCdEf"
    assert job(secret_arn=arn).spec()["secrets"] == {"hf_token": arn}
    with pytest.raises(InputError, match="ARN of a secret, not a token"):
        job(secret_arn="hf_" + "a1" * 17)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"role_arn": "me"}, "not the ARN of a role"),
        ({"output": "bucket"}, "names no S3 prefix"),
        ({"endpoint": "a_b"}, "not a name that SageMaker takes"),
        ({"components": ("x" * 64,)}, "not a name that SageMaker takes"),
    ],
)
def test_what_the_service_would_refuse_is_refused_before(more, message):
    with pytest.raises(ServetuneError, match=message):
        job(**more)


# recommendations

PROPOSED = {
    "AIRecommendationJobStatus": "Completed",
    "Recommendations": [
        {
            "RecommendationDescription": "for throughput",
            "OptimizationDetails": [{"OptimizationType": "KernelTuning"}],
            "DeploymentConfiguration": {
                "ImageUri": "1.dkr.ecr.x.amazonaws.com/djl-inference:0.36.0-lmi28.0.0-cu130",
                "InstanceType": "ml.g6.12xlarge",
                "InstanceCount": 2,
                "CopyCountPerInstance": 2,
                "EnvironmentVariables": {
                    "HF_MODEL_ID": "/opt/ml/model",
                    "OPTION_TENSOR_PARALLEL_DEGREE": "2",
                    "OPTION_MAX_ROLLING_BATCH_SIZE": "64",
                },
            },
            "ExpectedPerformance": [
                {"Metric": "throughput", "Stat": "avg", "Value": "1234.5", "Unit": "tokens/s"},
                {"Metric": "ttft-ms", "Stat": "p99", "Value": "250", "Unit": "ms"},
                {"Metric": "mystery", "Value": "n/a"},
            ],
        }
    ],
}


def test_recommendations_become_candidates_that_say_whose_figures_they_are(aws, clients):
    client, _ = clients
    aws.jobs.recommendations = {"rec": PROPOSED}
    (record,) = jobs.recommended_trials(
        client, "rec", model=MODEL, plan_of=lambda _, env: parse_environment("lmi", env)
    )
    assert record.plan.tensor_parallel == 2
    assert record.plan.max_num_seqs == 64
    assert record.plan.replicas == 4
    assert record.plan.model == MODEL
    assert record.results["output_throughput"] == 1234.5
    assert record.results["p99_ttft_ms"] == 250.0
    assert record.simulated
    assert record.metadata["instance_type"] == "ml.g6.12xlarge"
    assert len(record.metadata["expected_performance"]) == 3


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"AIRecommendationJobStatus": "InProgress"}, "is InProgress"),
        ({"AIRecommendationJobStatus": "Failed", "FailureReason": "why"}, "is Failed: why"),
        ({"AIRecommendationJobStatus": "Completed"}, "recommends nothing"),
    ],
)
def test_recommendations_that_are_none_are_an_error(aws, clients, said, message):
    aws.jobs.recommendations = {"rec": said}
    with pytest.raises(LoadError, match=message):
        jobs.recommended_trials(clients[0], "rec", model=MODEL, plan_of=None)
    with pytest.raises(LoadError, match="ResourceNotFound"):
        jobs.recommended_trials(clients[0], "gone", model=MODEL, plan_of=None)


# the command


WORDS = (
    "--via-aws-job", "--sagemaker", "plain-endpoint", "--workload", "multi_turn_chat", "--model",
    MODEL, "--role-arn", ROLE, "--output-s3", "s3://bucket/bench", "--region", "us-east-1",
    "--concurrency", "1,4", "--poll-every", "0.05",
)  # fmt: skip


@pytest.fixture
def environment(aws):
    return os.environ | aws.environ


def test_the_command_runs_a_job_and_writes_a_journal(aws, servetune, environment, tmp_path):
    ran = servetune("bench", *WORDS, "--out", "out", env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "concurrency 4" in ran.stdout
    assert "have no conversations" in ran.stderr
    records = read_journal(tmp_path / "out" / "bench.jsonl")
    assert [record.results["max_concurrency"] for record in records] == [1, 4]
    status = servetune("bench", *WORDS, "--status", env=environment)
    assert status.stdout.split()[1] == "Completed"
    assert "concurrency 4: output 400" in status.stdout  # the figures, without another wait
    figures = servetune("bench", *WORDS, "--status", "--json", env=environment)
    assert [each["results"]["max_concurrency"] for each in json.loads(figures.stdout)] == [1, 4]
    again = servetune("bench", *WORDS, "--json", env=environment)
    assert len(json.loads(again.stdout)) == 2
    assert len(aws.jobs.jobs) == 1
    cleaned = servetune("bench", *WORDS, "--clean", env=environment)
    assert "took away job" in cleaned.stdout
    gone = servetune("bench", *WORDS, "--status", env=environment)
    assert gone.returncode == 3
    assert "there is no job" in gone.stderr


def test_a_bucket_that_is_not_there_is_said_before_the_job_is_paid_for(aws, servetune, environment):
    ran = servetune("bench", *WORDS, "--output-s3", "s3://elsewhere/bench", env=environment)
    assert ran.returncode == 3
    assert "there is no bucket 'elsewhere'" in ran.stderr
    assert "aws s3 mb" in ran.stderr
    assert aws.jobs.jobs == {}
    aws.allowed["HeadBucket"] = 0
    ran = servetune("bench", *WORDS, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "may not be looked at" in ran.stderr


def test_ctrl_c_leaves_the_job_and_the_same_command_finds_it(aws, servetune, environment, tmp_path):
    aws.jobs.job_s = 1e12
    process = forked.Process(
        [*forked.COMMAND, "bench", *WORDS],
        env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while aws.operations(reading=True).count("DescribeAIBenchmarkJob") < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on" in errors
    aws.jobs.job_s = 0.0
    ran = servetune("bench", *WORDS, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "exists already" in ran.stderr
    assert aws.operations(reading=True).count("StopAIBenchmarkJob") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--via-aws-job",), "--via-aws-job needs --sagemaker"),
        ((*WORDS, "--concurrency", "1,1"), "names a level twice"),
        ((*WORDS, "--concurrency", "0"), "0 is not in the range"),
        ((*WORDS, "--region", "mars"), "'mars' is not an AWS region"),
        ((*WORDS, "--workload", "nothing"), "unknown workload"),
        ((*WORDS, "--role-arn", "x"), "not the ARN of a role"),
        ((*WORDS, "--rate", "4"), "--rate is for our own load"),
        ((*WORDS, "http://x"), "a URL is for our own load"),
        (("http://x", "--force"), "--force is for --via-aws-job"),
        (("--recommendations", "r", "--region", "us-east-1"), "do not name their model"),
    ],
)
def test_bad_input_is_one_line_before_any_call(aws, servetune, environment, words, message):
    ran = servetune("bench", *words, env=environment)
    assert ran.returncode == 2, ran.stderr
    assert message in ran.stderr
    assert aws.calls == []


def test_recommendations_are_imported_as_a_journal(aws, servetune, environment, tmp_path):
    aws.jobs.recommendations = {"rec": PROPOSED}
    ran = servetune(
        "bench", "--recommendations", "rec", "--model", MODEL, "--region", "us-east-1",
        "--out", "out", env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (record,) = read_journal(tmp_path / "out" / "bench.jsonl")
    assert record.plan.max_num_seqs == 64
    assert "TP2" in ran.stdout
