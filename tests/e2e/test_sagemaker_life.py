"""A sweep becomes an endpoint that answers, and goes again: no AWS, real boto3, real processes."""

import asyncio
import json
import os

import pytest
from doubles import FakeAws

from servetune.hardware import node
from servetune.models import load_shape
from servetune.plan import Plan
from servetune.simserver import Faults, SimulatedServer, service_of

MODEL = "Qwen/Qwen3-4B"
ENDPOINT = "servetune-Qwen-Qwen3-4B"
ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"


@pytest.fixture
def double():
    fake = FakeAws(look_s=120.0)
    fake.control.quota["ml.g6.12xlarge"] = 4
    yield fake
    fake.close()


async def test_from_a_sweep_to_an_answering_endpoint_and_back_to_nothing(
    servetune, tmp_path, double
):
    tuned = servetune(
        "tune", "--engine", "simulated", "--model", MODEL, "--instance", "ml.g6.12xlarge",
        "--server-args", "tensor_parallel_size=[1,4];max_num_seqs=256;max_model_len=4096",
        "--client-args",
        "dataset_name=random;random_input_len=256;random_output_len=32;num_prompts=100;"
        "max_concurrency=[8,64]",
        "--output-json", "q.json",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    study = servetune("deploy", "study", "q.jsonl", "--instances", "1")
    assert "TP1 x 4" in study.stdout

    environ = os.environ | double.environ | {"SAGEMAKER_ROLE_ARN": ROLE}
    chosen = next(
        json.loads(line)["key"]
        for line in (tmp_path / "q.jsonl").read_text().splitlines()
        if json.loads(line)["config"]["server_args"]["tensor_parallel_size"] == 1
    )
    render = (
        "deploy", "sagemaker", "q.json", "--key", chosen, "--out", "b", "--copies", "4",
        "--scale", "1:8",
    )  # fmt: skip
    planned = servetune(*render[:5], "--plan", *render[7:], "--max-hourly", "12")
    assert planned.returncode == 0, planned.stdout
    made = servetune(*render, env=environ)
    assert made.returncode == 0, made.stderr
    applied = servetune("deploy", "apply", "b", "--yes", "--poll-s", "0", env=environ)
    assert applied.returncode == 0, applied.stderr
    assert "Creating" in applied.stderr

    await _ask_it(double)

    again = servetune("deploy", "apply", "b", "--yes", "--poll-s", "0", env=environ)
    assert again.returncode == 0, again.stderr
    assert set(double.control.made.values()) == {1}

    # Somebody changes the scaling by hand, and autoscaling makes copies.
    (target,) = double.services.targets.values()
    target["MaxCapacity"] = 80
    base = double.control.rows["InferenceComponent", f"{ENDPOINT}-base"]
    base |= {"copies": 7, "had": 7}
    drifted = servetune("deploy", "status", "b", env=environ)
    assert drifted.returncode == 1
    assert [line for line in drifted.stdout.splitlines() if line.startswith("DRIFT")] == [
        f"DRIFT scalable-target inference-component/{ENDPOINT}-base MaxCapacity is 80 instead of 8"
    ]
    back = servetune("deploy", "apply", "b", "--yes", "--poll-s", "0", env=environ)
    assert back.returncode == 0, back.stderr
    assert servetune("deploy", "status", "b", env=environ).returncode == 0
    assert servetune(*render, "--routing", "random", env=environ).returncode == 0
    updated = servetune("deploy", "update", "b", "--yes", "--poll-s", "0", env=environ)
    assert updated.returncode == 0, updated.stderr
    assert base["copies"] == 7
    assert servetune("deploy", "orphans", env=environ).returncode == 0

    gone = servetune("deploy", "delete", "b", "--poll-s", "0", env=environ)
    assert gone.returncode == 0, gone.stderr
    assert double.control.rows == double.services.targets == double.services.policies == {}


async def _ask_it(double):
    """A stream through the endpoint, from an engine that plays the deployed plan."""
    shape = load_shape(MODEL, catalogue_first=True)
    plan = Plan(model=MODEL, max_num_seqs=256, max_model_len=4096)
    service = service_of(plan, shape, node(gpu="L4", count=1), names=(MODEL,))
    server = SimulatedServer(
        service, speed=5.0, faults=Faults(), api_key=None, say=lambda _: None, die=lambda _: None
    )
    await server.start("127.0.0.1", 0)
    try:
        double.runtime.upstream = f"http://127.0.0.1:{server.port}"
        pieces = await asyncio.to_thread(_stream, double)
    finally:
        await server.close()
    events = b"".join(pieces).strip().split(b"\n\n")
    assert events[-1] == b"data: [DONE]"
    said = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert {each["model"] for each in said} == {MODEL}
    assert sum(bool(each["choices"][0]["delta"].get("content")) for each in said) == 16


def _stream(double):
    client = double.clients()("sagemaker-runtime")
    body = {
        "model": MODEL, "stream": True, "max_tokens": 16, "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me a story"}],
    }  # fmt: skip
    with pytest.raises(client.exceptions.ClientError, match="Inference Component Name"):
        client.invoke_endpoint_with_response_stream(
            EndpointName=ENDPOINT, Body=json.dumps(body), ContentType="application/json"
        )
    answer = client.invoke_endpoint_with_response_stream(
        EndpointName=ENDPOINT,
        InferenceComponentName=f"{ENDPOINT}-base",
        Body=json.dumps(body),
        ContentType="application/json",
    )
    return [event["PayloadPart"]["Bytes"] for event in answer["Body"]]
