"""deploy.py as users run it: a process of its own, on a written bundle."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import FakeAws

from servetune.deploy import Evidence, render_sagemaker, write
from servetune.hardware.device import Device, Link, Node, Price
from servetune.plan.plan import Plan

ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
TOKEN = "hf_" + "Q1w2" * 9
NAME = "servetune-Qwen-Qwen3-4B"

needs_boto3 = pytest.mark.skipif(
    importlib.util.find_spec("boto3") is None, reason="boto3 is not installed (extra 'aws')"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    device = Device(
        name="L4", vendor="nvidia", architecture="ada", memory_bytes=24e9,
        memory_bytes_per_s=300e9, bf16_flops=121e12,
    )  # fmt: skip
    node = Node(
        name="ml.g6.12xlarge",
        device=device,
        device_count=4,
        link=Link(name="pcie4", bytes_per_s=32e9, peer_to_peer=False),
        price=Price(usd_per_hour=5.752, region="us-east-1", source="list", date="2026-09-27"),
    )
    bundle = render_sagemaker(
        Plan(model="Qwen/Qwen3-4B", tensor_parallel=4, max_num_seqs=128, max_model_len=4096),
        instance=node,
        region="us-east-1",
        evidence=Evidence(simulated=True, concurrency=128, results={"output_throughput": 1500.0}),
    )
    write(bundle, tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def double() -> Iterator[FakeAws]:
    fake = FakeAws(look_s=120.0)
    yield fake
    fake.close()


def run(
    folder: Path, *words: str, double: FakeAws | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run deploy.py; nothing of the caller's AWS settings reaches it."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    keep["PYTHONDONTWRITEBYTECODE"] = "1"
    if double is not None:
        keep |= double.environ
    return subprocess.run(
        [sys.executable, *([] if double else ["-S"]), "deploy.py", *words],
        cwd=folder,
        env=keep | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def asked(double: FakeAws, operation: str) -> Any:
    """The last request of an operation."""
    return [request for _, name, request in double.calls if name == operation][-1]


# Without AWS: `-S` leaves every installed package out, boto3 among them


def test_plan_needs_nothing_and_shows_what_would_be_created(folder: Path) -> None:
    done = run(folder, "plan")
    assert done.returncode == 0, done.stderr
    for part in (
        NAME,
        "ml.g6.12xlarge",
        "al2023-ami-sagemaker-inference-gpu-4-1",
        "OPTION_MAX_ROLLING_BATCH_SIZE=128",
        "$5.7520 per hour",
        "2026-09-27",
        "SIMULATED",
        "nothing was created",
    ):
        assert part in done.stdout


def test_create_dry_run_is_the_plan(folder: Path) -> None:
    assert run(folder, "create", "--dry-run").stdout == run(folder, "plan").stdout


def test_help_is_there_for_every_verb(folder: Path) -> None:
    done = run(folder, "--help")
    assert done.returncode == 0
    for verb in ("plan", "create", "status", "invoke", "delete"):
        assert verb in done.stdout
        assert run(folder, verb, "--help").returncode == 0


def test_the_script_compiles_and_can_be_executed(folder: Path) -> None:
    script = folder / "deploy.py"
    compile(script.read_text("utf-8"), "deploy.py", "exec")
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    ("words", "environ", "message", "hint"),
    [
        (("create",), {}, "no execution role", "SAGEMAKER_ROLE_ARN"),
        (("create", "--role-arn", "me"), {}, "'me' is not the ARN", "arn:aws:iam::"),
        (("status", "--region", "eu-west-1"), {}, "rendered for us-east-1", "render it again"),
        (("status",), {}, "boto3 is not installed", "pip install boto3"),
    ],
)
def test_wrong_use_is_one_line_and_a_hint(
    folder: Path, words: tuple[str, ...], environ: dict[str, str], message: str, hint: str
) -> None:
    done = run(folder, *words, **environ)
    assert done.returncode == 2
    error, help_line = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert help_line.startswith("hint: ")
    assert hint in help_line


def test_a_damaged_bundle_is_said(folder: Path) -> None:
    (folder / "model.json").write_text("{")
    done = run(folder, "plan")
    assert done.returncode == 2
    assert "cannot read model.json" in done.stderr


# Against the double


@needs_boto3
def test_create_status_invoke_delete_from_nothing_to_nothing(folder: Path, double: FakeAws) -> None:
    quick = ("--poll-s", "0")
    before = run(folder, "status", double=double)
    assert before.returncode == 1
    assert before.stdout.count("not there") == 3

    made = run(folder, "create", *quick, double=double, SAGEMAKER_ROLE_ARN=ROLE)
    assert made.returncode == 0, made.stderr
    assert f"{NAME} is in service" in made.stdout
    assert "Creating" in made.stderr
    assert "InService" in made.stderr
    assert double.operations() == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]
    sent = asked(double, "CreateModel")
    assert sent["ExecutionRoleArn"] == ROLE
    env = json.loads((folder / "environment.json").read_text())
    assert sent["PrimaryContainer"]["Environment"] == env
    assert env["OPTION_MAX_ROLLING_BATCH_SIZE"] == "128"

    there = run(folder, "status", double=double)
    assert there.returncode == 0
    assert "InService" in there.stdout

    answer = run(folder, "invoke", "--prompt", "Hi", "--max-tokens", "5", double=double)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "Hello world\n"
    assert "first token after" in answer.stderr
    assert "3 tokens" in answer.stderr
    sent = asked(double, "invocations-response-stream")
    assert (sent["model"], sent["stream"], sent["max_tokens"]) == ("Qwen/Qwen3-4B", True, 5)

    double.calls.clear()
    gone = run(folder, "delete", *quick, double=double)
    assert gone.returncode == 0, gone.stderr
    assert double.operations() == ["DeleteEndpoint", "DeleteEndpointConfig", "DeleteModel"]
    assert double.control.rows == {}

    again = run(folder, "delete", *quick, double=double)
    assert again.returncode == 0
    assert "nothing of" in again.stdout


@needs_boto3
def test_create_goes_on_where_an_interrupted_one_stopped(folder: Path, double: FakeAws) -> None:
    run(folder, "create", "--no-wait", "--role-arn", ROLE, double=double)
    del double.control.rows["Endpoint", NAME]
    double.calls.clear()
    done = run(folder, "create", "--poll-s", "0", "--role-arn", ROLE, double=double)
    assert done.returncode == 0, done.stderr
    assert double.operations() == ["CreateEndpoint"]


@needs_boto3
def test_a_failed_endpoint_ends_with_its_reason_and_can_be_deleted(
    folder: Path, double: FakeAws
) -> None:
    double.control.no_capacity = {"ml.g6.12xlarge"}
    done = run(folder, "create", "--poll-s", "0", "--role-arn", ROLE, double=double)
    assert done.returncode == 4
    assert "InsufficientInstanceCapacity" in done.stderr
    assert "python deploy.py delete" in done.stderr
    assert run(folder, "delete", "--poll-s", "0", double=double).returncode == 0
    assert double.control.rows == {}


@needs_boto3
def test_delete_waits_for_an_endpoint_that_is_being_created(folder: Path, double: FakeAws) -> None:
    double.control.create_s = 1200
    run(folder, "create", "--no-wait", "--role-arn", ROLE, double=double)
    assert "Creating" in run(folder, "status", double=double).stdout
    done = run(folder, "delete", "--poll-s", "0", double=double)
    assert done.returncode == 0, done.stderr
    assert double.control.rows == {}


@needs_boto3
def test_an_endpoint_with_other_settings_is_not_touched(folder: Path, double: FakeAws) -> None:
    run(folder, "create", "--poll-s", "0", "--role-arn", ROLE, double=double)
    rows = double.control.rows
    running = rows["Endpoint", NAME]["request"]
    rows["EndpointConfig", "another"] = rows["EndpointConfig", running["EndpointConfigName"]]
    running["EndpointConfigName"] = "another"
    double.calls.clear()
    done = run(folder, "create", "--role-arn", ROLE, double=double)
    assert done.returncode == 4
    assert "other settings (another)" in done.stderr
    assert double.operations() == []


@needs_boto3
def test_waiting_ends_at_the_time_out_and_says_that_it_goes_on(
    folder: Path, double: FakeAws
) -> None:
    double.control.create_s = 1e12
    words = ("create", "--poll-s", "0.01", "--timeout-min", "0.0001", "--role-arn", ROLE)
    done = run(folder, *words, double=double)
    assert done.returncode == 4
    assert "still Creating" in done.stderr


@needs_boto3
def test_what_aws_refuses_is_told_without_a_traceback(folder: Path, double: FakeAws) -> None:
    model = json.loads((folder / "model.json").read_text())
    model["ModelName"] = "under_score"
    (folder / "model.json").write_text(json.dumps(model))
    done = run(folder, "create", "--role-arn", ROLE, double=double)
    assert done.returncode == 4
    assert "does not match" in done.stderr
    assert "Traceback" not in done.stderr


@needs_boto3
def test_a_token_is_used_only_when_asked_for_and_is_never_shown_or_kept(
    folder: Path, double: FakeAws
) -> None:
    words = ("create", "--no-wait", "--role-arn", ROLE)
    run(folder, *words, double=double, HF_TOKEN=TOKEN)
    assert TOKEN not in json.dumps(double.calls)
    run(folder, "delete", "--poll-s", "0", double=double)

    done = run(folder, *words, "--hf-token-from-env", double=double, HF_TOKEN=TOKEN)
    created = asked(double, "CreateModel")
    assert created["PrimaryContainer"]["Environment"]["HF_TOKEN"] == TOKEN
    assert TOKEN not in done.stdout + done.stderr
    for path in folder.iterdir():
        assert TOKEN not in path.read_text("utf-8")

    missing = run(folder, *words, "--hf-token-from-env", double=double)
    assert missing.returncode == 2
    assert "HF_TOKEN is not set" in missing.stderr


@needs_boto3
def test_calling_an_endpoint_that_is_not_there_is_one_line(folder: Path, double: FakeAws) -> None:
    done = run(folder, "invoke", double=double)
    assert done.returncode == 4
    assert "not found" in done.stderr
    assert "Traceback" not in done.stderr
