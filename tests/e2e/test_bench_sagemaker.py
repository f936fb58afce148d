"""`servetune bench --sagemaker` and `--against` as a user runs them, against real servers."""

import asyncio
import json
import os

import msgspec
import pytest
from sagemaker_runtime import ACCESS_KEY, SECRET_KEY, TOKEN, SageMakerRuntime

from servetune.testing import Behaviour, running_server

STEADY = Behaviour(ttft_s=0.03, itl_s=0.004)
# Gaps that a busy machine's late wake-ups, of some 5 ms through two processes, do not double.
UNHURRIED = Behaviour(ttft_s=0.03, itl_s=0.015)
LOAD = ("-c", "4", "-n", "60", "--input-tokens", "20", "--output-tokens", "10", "--quiet")


@pytest.fixture
def aws(tmp_path):
    """An environment with somebody's credentials and no way to the outside."""
    return {
        **os.environ,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_LOGS": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_COLOR": "1",
    }


async def asked(servetune, *words, **options):
    return await asyncio.to_thread(servetune, "bench", *words, **options)


@pytest.mark.timed
async def test_an_endpoint_reproduces_what_its_server_did(servetune, aws, tmp_path):
    async with running_server(UNHURRIED) as server:
        direct = await asked(servetune, server.url, *LOAD, "--out", "direct")
        assert direct.returncode == 0, direct.stderr
        with SageMakerRuntime(server.port) as runtime:
            there = ("--sagemaker", "my-endpoint", "--component", "model-1",
                     "--region", "us-east-1", "--endpoint-url", runtime.url)  # fmt: skip
            ran = await asked(
                servetune, *there, "--against", "direct/bench.jsonl", "--tolerance", "1",
                "--quiet", "--out", "there", env=aws,
            )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "reproduced" in ran.stdout
    assert "as trial" in ran.stderr  # the load came from the record
    assert runtime.refused == []
    assert runtime.asked[0]["x-amzn-sagemaker-inference-component"] == "model-1"
    record = json.loads((tmp_path / "there" / "bench.jsonl").read_text())
    assert record["results"]["completed"] == 60
    before = json.loads((tmp_path / "direct" / "bench.jsonl").read_text())
    assert record["metadata"]["seed"] == before["metadata"]["seed"]  # the same requests
    assert record["results"]["prepared"]["words_seed"] != 1  # in words that no cache has
    assert record["results"]["against"]["reproduced"] is True
    assert record["results"]["sagemaker"]["throttled"] == 0
    assert record["metadata"]["urls"] == [
        f"{runtime.url}/endpoints/my-endpoint/invocations-response-stream"
    ]
    everything = "".join(
        path.read_text("utf-8", "replace") for path in (tmp_path / "there").iterdir()
    )
    for secret in (SECRET_KEY, TOKEN):
        assert secret not in everything + ran.stdout + ran.stderr


VLLM_SAID = (
    {"max_num_seqs": 128, "tensor_parallel_size": 2},
    "non-default args: {'model_tag': 'fake', 'max_num_seqs': 2}\n",
    ("max_num_seqs is 2, the trial had 128 (says the start-up log)", "tensor_parallel was left"),
)
TGI_LOG = """INFO text_generation_launcher: Args {
    num_shard: Some(
        2,
    ),
    max_batch_size: None,
    max_total_tokens: None,
}
INFO text_generation_router: Maximum total tokens defaulted to 4096
"""
TGI_SAID = (
    {"max_batch_size": 128, "num_shard": 2, "max_total_tokens": 8192},
    TGI_LOG,
    ("max_model_len is 4096, the trial had 8192 (says the start-up log)", "max_num_seqs was left"),
)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("engine", "said"),
    [("vllm", VLLM_SAID), pytest.param("tgi", TGI_SAID, marks=pytest.mark.slow)],
    ids=["vllm", "tgi"],
)
async def test_a_slower_server_is_a_regression_with_a_named_difference(
    servetune, tmp_path, engine, said
):
    asked_for, log, differences = said
    async with running_server(STEADY) as server:
        before = await asked(servetune, server.url, *LOAD, "--out", "before")
    assert before.returncode == 0, before.stderr
    line = json.loads((tmp_path / "before" / "bench.jsonl").read_text())
    line["config"]["server_args"] = asked_for
    line["metadata"]["framework"] = engine
    (tmp_path / "trial.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "engine.log").write_text(log)
    slower = msgspec.structs.replace(STEADY, itl_s=0.02)
    async with running_server(slower) as server:
        ran = await asked(
            servetune, server.url, "--against", "trial.jsonl", "--engine-log", "engine.log",
            "--quiet", "--json",
        )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    compared = json.loads(ran.stdout)["results"]["against"]
    assert compared["regressed"] is True
    assert "worse" in compared["verdict"]
    for words in differences:
        assert any(words in line for line in compared["differences"])


async def test_throttles_are_reported_by_name(servetune, aws):
    async with running_server(STEADY) as server:
        with SageMakerRuntime(server.port) as runtime:
            runtime.throttle_every = 5
            ran = await asked(
                servetune, "--sagemaker", "e", "--model", "fake", "--region", "us-east-1",
                "--endpoint-url", runtime.url, *LOAD, env=aws,
            )  # fmt: skip
    assert ran.returncode == 3, ran.stderr  # one request in five failed
    assert "ThrottlingException: Rate exceeded" in ran.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no server is named"),
        (("http://x", "--sagemaker", "e"), "both name the server"),
        (("--sagemaker", "e", "--region", "mars", "--model", "m"), "'mars' is not an AWS region"),
        (("--sagemaker", "a_b", "--model", "m"), "not the name of an endpoint"),
        (("--sagemaker", "e"), "by which name an endpoint's model is known"),
        (("--sagemaker", "e", "--component", "c", "--adapter", "a"), "both name a component"),
        (("http://x", "--component", "c"), "is for SageMaker endpoints"),
        (("http://x", "--trial", "k"), "is for --against"),
        (("http://x", "--against", "gone.jsonl"), "gone.jsonl is not there"),
        (("--sagemaker", "e", "--model", "m", "--region", "us-east-1", "--api-key-env", "K"),
         "signed with AWS credentials"),
        (("--sagemaker", "e", "--model", "m", "--region", "us-east-1", "--openai-route"),
         "needs a bearer token"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_before_any_call(servetune, aws, words, message):
    ran = servetune("bench", *words, env=aws)
    assert ran.returncode == 2, ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
