"""`servetune deploy ...` as a user types it, against the double."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked

pytest.importorskip("boto3", reason="boto3 is not installed (extra 'aws')")

from aws_kit import deployment
from doubles import FakeAws

from servetune.deploy.aws.state import StateFile, TakenOff
from servetune.deploy.cost import cost_of
from servetune.deploy.hosting import Hosting, Scaling

ROLE = "arn:aws:iam::123456789012:role/SageMakerExecution"
ENDPOINT = "servetune-Qwen-Qwen3-4B"
ONE = Scaling(minimum=1, maximum=2, requests_per_copy=50)


def trial(concurrency: int, tokens_per_s: float, **results: Any) -> dict[str, Any]:
    return {
        "config": {
            "client_args": {"max_concurrency": concurrency},
            "server_args": {
                "tensor_parallel_size": 1,
                "data_parallel_size": 4,
                "max_num_seqs": 64,
                "max_model_len": 4096,
                "max_num_batched_tokens": 8192,
            },
        },
        "results": {
            "max_concurrency": concurrency,
            "output_throughput": tokens_per_s,
            "request_throughput": tokens_per_s / 200,
            "median_e2e_latency_ms": 1000.0,
            "error_rate": 0.0,
            "completed": 500,
        }
        | results,
        "metadata": {
            "model_tag": "Qwen/Qwen3-4B",
            "framework": "vllm",
            "gpu_type": "L4",
            "gpu_count": 4,
            "instance_type": "ml.g6.12xlarge",
        },
        "provenance": {"engine_version": "0.22.1"},
    }


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Median latency doubles at 128 in flight."""
    lines = [
        trial(concurrency, tokens_per_s, median_e2e_latency_ms=latency_ms)
        for concurrency, tokens_per_s, latency_ms in (
            (16, 500.0, 1000.0), (64, 1200.0, 1400.0), (128, 1900.0, 2000.0), (256, 2000.0, 5000.0),
        )
    ]  # fmt: skip
    path = tmp_path / "sweep.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def double() -> Iterator[FakeAws]:
    fake = FakeAws(look_s=120.0)
    yield fake
    fake.close()


@pytest.fixture
def run(called: Any) -> Callable[..., Any]:
    """`servetune deploy` in a folder; without a double no AWS can be reached."""
    keep = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "PYTHONPATH", "SERVETUNE_HOME")
        if name in os.environ
    }
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"}

    def in_folder(folder: Path, *words: str, double: FakeAws | None = None, **environ: str) -> Any:
        env = keep | (double.environ if double else nowhere) | environ
        return called("deploy", *words, cwd=folder, env=env)

    return in_folder


def test_plan_tells_what_would_fail_and_what_it_costs_without_asking_anyone(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "sagemaker", "sweep.jsonl", "--plan", "--hours", "10")
    assert done.returncode == 0, done.stderr
    for part in (
        "3 requests satisfy",
        "is in the table, for us-east-1",
        "cu130 runs on al2023-ami-sagemaker-inference-gpu-4-1",
        "of weights on each",
        "enough from a slow hub",
        "$5.75 an hour",
        "$57.52 for 10 h",
    ):
        assert part in done.stdout, part
    assert "nothing was made" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.jsonl"]


def test_plan_asks_aws_only_when_told_to_and_then_only_reads(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--plan", double=double)
    assert double.calls == []
    double.control.quota["ml.g6.12xlarge"] = 0
    double.services.prices["ml.g6.12xlarge"] = 6.5
    done = run(tmp_path, "sagemaker", "sweep.jsonl", "--plan", "--ask-aws", double=double)
    assert done.returncode == 1
    assert "STOP  quota" in done.stdout
    assert "0 allowed, 0 in use, 1 wanted" in done.stdout
    assert "$6.50 an hour (AWS Price List, asked" in done.stdout
    assert double.operations() == []


def test_components_and_scaling_come_from_the_saturation_point(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    words = ("--out", "bundle", "--copies", "4", "--scale", "0:8", "--adapter",
             "fr=s3://bucket/fr.tar.gz")  # fmt: skip
    done = run(tmp_path, "sagemaker", "sweep.jsonl", *words)
    assert done.returncode == 0, done.stderr
    held = json.loads((tmp_path / "bundle" / "deployment.json").read_text())
    kinds = [step["kind"] for step in held["steps"]]
    assert kinds[:5] == ["model", "endpoint-config", "endpoint", "component", "adapter"]
    component = held["steps"][3]["request"]
    assert component["RuntimeConfig"] == {"CopyCount": 4}
    needs = component["Specification"]["ComputeResourceRequirements"]
    assert needs["NumberOfAcceleratorDevicesRequired"] == 1
    # 128 in flight on four copies, at 0.8 of it.
    assert held["hosting"]["scaling"]["requests_per_copy"] == 25.6
    variant = held["steps"][1]["request"]["ProductionVariants"][0]
    # Eight copies fill two instances; an update needs a place for a new one beside them.
    assert variant["ManagedInstanceScaling"] == {
        "Status": "ENABLED", "MinInstanceCount": 0, "MaxInstanceCount": 3,
    }  # fmt: skip
    env = held["steps"][0]["request"]["PrimaryContainer"]["Environment"]
    assert env["SERVING_MAX_WORKERS"] == "1"
    # Without these the adapter's component would not start.
    lora = {name: env[f"OPTION_{name}"] for name in ("ENABLE_LORA", "MAX_LORAS", "MAX_LORA_RANK")}
    assert lora == {"ENABLE_LORA": "true", "MAX_LORAS": "1", "MAX_LORA_RANK": "64"}
    assert "the trial took no adapters" in done.stderr
    assert "stay idle" not in done.stdout


def test_from_apply_to_delete_nothing_is_left(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    double.control.quota["ml.g6.12xlarge"] = 4
    made = run(
        tmp_path,
        "sagemaker",
        "sweep.jsonl",
        "--out",
        "b",
        "--copies",
        "4",
        "--no-such",
        double=double,
    )
    assert made.returncode == 2
    quick = ("--poll-s", "0", "--yes")
    rendered = run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--copies", "4")
    assert rendered.returncode == 0, rendered.stderr
    made = run(tmp_path, "apply", "b", *quick, double=double, SAGEMAKER_ROLE_ARN=ROLE)
    assert made.returncode == 0, made.stderr
    assert f"{ENDPOINT} is in service" in made.stdout
    assert "of 4 copies" in made.stderr
    assert (tmp_path / "b" / "state.json").exists()

    there = run(tmp_path, "status", "b", double=double)
    assert there.returncode == 0, there.stdout
    assert there.stdout.count("InService") == 2

    double.services.log_lines[f"/aws/sagemaker/Endpoints/{ENDPOINT}"] = [
        "INFO max_num_seqs=64", "using token hf_" + "Aa1" * 10,
    ]  # fmt: skip
    progress_text = run(tmp_path, "logs", ENDPOINT, double=double)
    assert "max_num_seqs=64" in progress_text.stdout
    assert "[redacted]" in progress_text.stdout
    assert "Aa1Aa1" not in progress_text.stdout

    left = run(tmp_path, "orphans", double=double)
    assert left.returncode == 0, left.stdout

    gone = run(tmp_path, "delete", "b", "--poll-s", "0", double=double)
    assert gone.returncode == 0, gone.stderr
    assert double.control.rows == {}
    assert not (tmp_path / "b" / "state.json").exists()
    again = run(tmp_path, "delete", ENDPOINT, "--poll-s", "0", double=double)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("words", "line", "hint"),
    [
        (("--region", "mars-1"), "mars-1", "ap-"),
        (("--instance", "ml.g6.13xlarge"), "ml.g6.13xlarge", "ml.g6.12xlarge"),
        (("--fallback", "ml.g6.99xlarge"), "ml.g6.99xlarge", ""),
        (("--image-tag", "newest"), "newest", "known tags"),
        (("--role-arn", "me"), "'me' is not the ARN of a role", "arn:aws:iam"),
        (("--role-arn", "arn:aws:iam::12:role/x"), "is not the ARN of a role", "arn:aws:iam"),
        (("--role-arn", ROLE.replace(":role/", ":user/")), "is not the ARN of a role", ""),
        (("--endpoint-name", "a_b"), "'a_b' (3 characters) is not a name", "a-b"),
        (("--container", "sglang"), "runs sglang, the plan is for vllm", "lmi, vllm, hf-vllm"),
        (("--copies", "1", "--adapter", "a b=s3://b/a.tar.gz"), "not a name that", "letters"),
        (("--copies", "1", "--adapter", f"{'n' * 64}=s3://bkt/a.tar.gz"), "not a name", ""),
        (("--model-source", "./here"), "cannot reach the model at './here'", "s3://"),
        (("--provision-timeout-s", "5"), "5 is not in the range 300<=x<=3600", ""),
        (("--endpoint-name", "n" * 64), "64 characters", "at most 63"),
        (("--instance", "ml.p5e.48xlarge"), "no public price of ml.p5e.48xlarge", "--price"),
        (("--max-cost", "10"), "above --max-cost $10.00", "last 1 h 44 min"),
        (("--scale", "many"), "'many' is no range", "1:4"),
        (("--scale", "0:2"), "asynchronous endpoints scale to zero", "--copies"),
        (
            ("--adapter", "a=s3://bucket/a.tar.gz"),
            "adapters need an inference component",
            "--copies",
        ),
        (("--copies", "1", "--adapter", "a=b"), "not an archive in S3", ".tar.gz"),
        (("--routing", "fastest"), "fastest", "least-outstanding"),
        (("--reservation-arn", "plan-7"), "'plan-7' is not the ARN of a training plan", "arn:"),
        (("--hf-token-secret", "hf_" + "x" * 30), "ARN of a secret, not a token", "secretsm"),
    ],
)
def test_bad_input_is_one_line_before_any_call(
    run: Any,
    sweep: Path,
    tmp_path: Path,
    double: FakeAws,
    words: tuple[str, ...],
    line: str,
    hint: str,
) -> None:
    role = () if "--role-arn" in words else ("--role-arn", ROLE)
    done = run(
        tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--apply", *role, *words, double=double
    )
    assert done.returncode == 2
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert line in errors[0]
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert double.calls == []
    assert not (tmp_path / "b").exists()
    assert "x" * 30 not in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("status", "n" * 64), "64 characters"),
        (("logs", "a_b"), "'a_b' (3 characters)"),
        (("delete", "--region", "mars-1", "endpoint"), "unknown AWS region 'mars-1'"),
        (("orphans", "--region", "mars-1"), "unknown AWS region 'mars-1'"),
        (("delete", "no/such/folder"), "no bundle in 'no/such/folder'"),
        (("apply", "nowhere"), "deployment.json is not there"),
    ],
)
def test_what_names_no_endpoint_is_one_line_before_any_call(
    run: Any, tmp_path: Path, double: FakeAws, words: tuple[str, ...], line: str
) -> None:
    done = run(tmp_path, *words, double=double)
    assert done.returncode == 2
    assert line in done.stderr
    assert len([text for text in done.stderr.splitlines() if text.startswith("error: ")]) == 1
    assert double.calls == []


def test_a_role_of_the_environment_is_looked_at_before_anything_else(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "sagemaker", "sweep.jsonl", "--plan", SAGEMAKER_ROLE_ARN="my-role")
    assert done.returncode == 2
    assert "'my-role' is not the ARN of a role" in done.stderr
    assert done.stdout == ""


def test_a_bundle_above_the_cost_that_is_allowed_is_not_even_written(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    words = ("sagemaker", "sweep.jsonl", "--out", "b", "--hours", "10", "--max-cost")
    refused = run(tmp_path, *words, "57")
    assert refused.returncode == 2
    assert "$57.52 for 10 h, above --max-cost $57.00" in refused.stderr
    assert not (tmp_path / "b").exists()
    assert run(tmp_path, *words, "58").returncode == 0


def test_apply_in_one_go_checks_aws_first_and_stops_at_an_empty_quota(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    double.control.quota["ml.g6.12xlarge"] = 0
    words = ("sagemaker", "sweep.jsonl", "--out", "b", "--apply", "--role-arn", ROLE)
    done = run(tmp_path, *words, double=double)
    assert done.returncode == 2
    assert "0 allowed" in done.stderr
    assert double.operations() == []


@pytest.mark.parametrize(
    "words",
    [
        ("apply", "b", "--role-arn", ROLE, "--yes"),
        pytest.param(("sagemaker", "sweep.jsonl", "--plan", "--ask-aws"), marks=pytest.mark.slow),
        pytest.param(("orphans",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_without_boto3_one_line_says_what_to_install(
    sweep: Path, run: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    for name in ("boto3", "botocore"):
        (tmp_path / "without").mkdir(exist_ok=True)
        (tmp_path / "without" / f"{name}.py").write_text(f"raise ImportError('no {name}')\n")
    path = os.pathsep.join(filter(None, (str(tmp_path / "without"), os.environ.get("PYTHONPATH"))))
    done = forked.run(
        [*forked.COMMAND, "deploy", *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 4, done.stderr
    assert "boto3 is not installed" in done.stderr
    assert "pip install 'servetune[aws]'" in done.stderr
    assert "Warning" not in done.stderr
    assert len([text for text in done.stderr.splitlines() if text.startswith("error: ")]) == 1


def test_an_update_is_rendered_into_the_same_folder_and_rolled_over(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    quick = ("--poll-s", "0", "--yes", "--role-arn", ROLE)
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    assert run(tmp_path, "apply", "b", *quick, double=double).returncode == 0
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--routing", "random")
    refused = run(tmp_path, "apply", "b", *quick, double=double)
    assert refused.returncode == 2
    assert "servetune deploy update" in refused.stderr
    drifted = run(tmp_path, "status", "b", double=double)
    assert "servetune deploy update makes it what its bundle says" in drifted.stderr
    done = run(tmp_path, "update", "b", *quick, double=double)
    assert done.returncode == 0, done.stderr
    assert "deleted endpoint-config" in done.stdout
    again = run(tmp_path, "update", "b", *quick, double=double)
    assert "is so already" in again.stdout


def test_drift_is_listed_line_by_line_and_apply_changes_it_back(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--instances", "2")
    made = ("apply", "b", "--poll-s", "0", "--role-arn", ROLE)
    assert run(tmp_path, *made, "--yes", double=double).returncode == 0
    double.control.scale(ENDPOINT, 5)
    found = run(tmp_path, "status", "b", double=double)
    assert found.returncode == 1
    assert f"DRIFT endpoint {ENDPOINT} has 5 instances instead of 2" in found.stdout
    assert "servetune deploy apply changes it back" in found.stderr
    refused = run(tmp_path, *made, double=double)
    assert refused.returncode == 2
    assert "is otherwise than its bundle says" in refused.stderr
    back = run(tmp_path, *made, "--yes", double=double)
    assert back.returncode == 0, back.stderr
    assert "has 2 instances" in back.stderr
    assert run(tmp_path, "status", "b", double=double).returncode == 0


def test_an_update_is_asked_for_with_the_price_of_old_and_new_together(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    words = ("sagemaker", "sweep.jsonl", "--out", "b")
    made = ("--poll-s", "0", "--role-arn", ROLE)
    run(tmp_path, *words)
    assert run(tmp_path, "apply", "b", *made, "--yes", double=double).returncode == 0
    run(tmp_path, *words, "--routing", "random")
    double.calls.clear()
    asked = run(tmp_path, "update", "b", *made, double=double)
    assert asked.returncode == 2
    assert "$5.75 an hour, $138.05 a day: 1 x ml.g6.12xlarge" in asked.stderr
    assert "up to $11.50 an hour during the update, with 1 more beside the old" in asked.stderr
    assert "nobody agreed to it" in asked.stderr
    dear = run(tmp_path, "update", "b", *made, "--yes", "--max-hourly", "6", double=double)
    assert dear.returncode == 2
    assert "$11.50 an hour during the update" in dear.stderr
    assert "above --max-hourly $6.00" in dear.stderr
    double.control.quota["ml.g6.12xlarge"] = 1
    full = run(tmp_path, "update", "b", *made, "--yes", double=double)
    assert full.returncode == 2
    assert "1 allowed, 0 in use, 2 wanted" in full.stderr
    assert double.operations() == []
    double.control.quota.clear()
    done = run(tmp_path, "update", "b", *made, "--yes", "--max-hourly", "12", double=double)
    assert done.returncode == 0, done.stderr


def test_the_last_command_says_when_an_endpoint_shall_end(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    made = ("b", "--poll-s", "0", "--yes", "--role-arn", ROLE)
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    assert run(tmp_path, "apply", *made, "--hours", "0.000001", double=double).returncode == 0
    assert "was asked to end" in run(tmp_path, "orphans", double=double).stdout
    kept = run(tmp_path, "update", *made, double=double)
    assert f"{ENDPOINT} was to end at" in kept.stderr
    assert "has no end now" in kept.stderr
    assert "nothing of servetune's is left over" in run(tmp_path, "orphans", double=double).stdout
    again = run(tmp_path, "update", *made, double=double)
    assert "was to end" not in again.stderr
    assert run(tmp_path, "apply", *made, "--hours", "0.000001", double=double).returncode == 0
    assert "was asked to end" in run(tmp_path, "orphans", double=double).stdout


def test_ctrl_c_says_that_scaling_is_off_and_what_puts_it_back(tmp_path: Path) -> None:
    from servetune.api.endpoints import _interruptible

    held = deployment(Hosting(instance_types=("ml.g6.12xlarge",), scaling=ONE))
    taken = TakenOff(target={**held.scaled, "MinCapacity": 1, "MaxCapacity": 2})
    StateFile(tmp_path).took_off((taken,))
    told: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        _interruptible(held, tmp_path, cost_of(held.hosting, {}), told.append, stands=True),
    ):
        raise KeyboardInterrupt
    assert told[-1].startswith(f"autoscaling of {taken.resource} is off since an update")
    assert told[-1].endswith(f"servetune deploy update {tmp_path} puts it back")


def test_a_deletion_says_what_it_could_not_look_at(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--copies", "1", "--scale", "0:2")
    made = ("apply", "b", "--poll-s", "0", "--yes", "--role-arn", ROLE)
    assert run(tmp_path, *made, double=double).returncode == 0
    double.denied = {"ListInferenceComponents", "DescribeAlarms", "DeleteAlarms"}
    gone = run(tmp_path, "delete", "b", "--poll-s", "0", double=double)
    assert gone.returncode == 1, gone.stderr
    assert f"endpoint {ENDPOINT} is gone; what stood beside it may be left:" in gone.stdout
    assert "DeleteAlarms was refused: User is not authorized" in gone.stdout
    assert "nothing of" not in gone.stdout
    assert double.control.rows == {}


def test_a_token_from_the_environment_is_sent_and_never_shown(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    token = "plain-word-token-4711"
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    words = ("apply", "b", "--role-arn", ROLE, "--poll-s", "0", "--yes")
    double.control.unhealthy = {token}  # it is in the model, and the container fails for it
    done = run(tmp_path, *words, "--hf-token-from-env", double=double, HF_TOKEN=token)
    assert done.returncode == 4
    (model,) = [row for (kind, _), row in double.control.rows.items() if kind == "Model"]
    assert model["request"]["PrimaryContainer"]["Environment"]["HF_TOKEN"] == token
    assert token not in done.stdout + done.stderr
    for path in (tmp_path / "b").iterdir():
        assert token not in path.read_text("utf-8"), path
    double.calls.clear()
    missing = run(tmp_path, *words, "--hf-token-from-env", double=double)
    assert missing.returncode == 2
    assert "HF_TOKEN is not set" in missing.stderr
    assert double.calls == []


def test_ctrl_c_ends_between_two_requests_and_leaves_a_state_to_go_on_from(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    fake = FakeAws(look_s=0.0)  # time stands still: it is Creating for ever
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    process = forked.Process(
        [*forked.COMMAND, "deploy", "apply", "b", "--role-arn", ROLE,
         "--poll-s", "0.01", "--yes"],
        cwd=tmp_path, env=os.environ | fake.environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "Creating" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        fake.close()
    assert f"{ENDPOINT} goes on without this command, and costs $5.75 an hour" in rest
    assert "servetune deploy delete b" in rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    held = json.loads((tmp_path / "b" / "state.json").read_text())
    assert [entry["kind"] for entry in held["entries"]] == ["model", "endpoint-config", "endpoint"]


def test_an_endpoint_in_service_is_no_orphan_unless_it_was_asked_to_end_and_goes_by_its_name(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    made = ("apply", "b", "--poll-s", "0", "--yes", "--role-arn", ROLE)
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--hours", "0.000001")
    assert run(tmp_path, *made, double=double).returncode == 0
    kept = run(tmp_path, "orphans", "--delete", double=double)
    assert kept.returncode == 0, kept.stdout
    assert "nothing of servetune's is left over" in kept.stdout

    asked = run(tmp_path, *made, "--hours", "0.000001", double=double)
    assert "shall end at" in asked.stderr
    found = run(tmp_path, "orphans", "--delete", "--poll-s", "0", double=double)
    assert found.returncode == 1
    assert "was asked to end at" in found.stdout
    assert "$5.75 an hour; in service" in found.stdout
    assert "--delete --name NAME" in found.stderr
    assert ("Endpoint", ENDPOINT) in double.control.rows

    wrong = run(tmp_path, "orphans", "--delete", "--name", "other", double=double)
    assert wrong.returncode == 2
    assert "'other' is none of the 1 orphans" in wrong.stderr
    named = ("orphans", "--delete", "--poll-s", "0", "--name", ENDPOINT)
    done = run(tmp_path, *named, double=double)
    assert done.returncode == 0, done.stderr
    assert double.control.rows == {}


def test_what_others_made_stands_apart_and_is_not_deleted(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    double.control.no_capacity = {"ml.g6.12xlarge"}
    made = ("apply", "b", "--poll-s", "0", "--yes", "--role-arn", ROLE)
    assert run(tmp_path, *made, double=double).returncode == 4
    double.caller = double.caller.replace("alice", "bob")
    found = run(tmp_path, "orphans", "--delete", double=double)
    assert found.returncode == 1
    assert found.stdout.startswith("made by others")
    assert "it failed; " in found.stdout
    assert "assumed-role/Developer/alice" in found.stdout
    assert double.operations()[-1].startswith("Create")
    double.caller = double.caller.replace("bob", "alice")
    done = run(tmp_path, "orphans", "--delete", "--poll-s", "0", double=double)
    assert done.returncode == 0, done.stdout
    assert double.control.rows == {}


def test_nothing_is_made_before_somebody_agreed_to_the_cost(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    words = ("sagemaker", "sweep.jsonl", "--out", "b", "--instances", "8")
    assert run(tmp_path, *words).returncode == 0
    for made in (("apply", "b"), (*words, "--apply")):
        refused = run(tmp_path, *made, "--role-arn", ROLE, double=double)
        assert refused.returncode == 2
        assert "$46.02 an hour, $1,104.38 a day: 8 x ml.g6.12xlarge" in refused.stderr
        assert "nobody agreed to it" in refused.stderr
        assert "--yes" in refused.stderr
    limited = run(tmp_path, "apply", "b", "--yes", "--max-hourly", "46", "--role-arn", ROLE,
                  double=double)  # fmt: skip
    assert limited.returncode == 2
    assert "$46.02 an hour for 8 instances at most, above --max-hourly $46.00" in limited.stderr
    day = run(tmp_path, "apply", "b", "--yes", "--max-cost", "1000", "--role-arn", ROLE,
              double=double)  # fmt: skip
    assert "$1,104.38 for 24 h, above --max-cost $1,000.00" in day.stderr
    assert double.operations() == []
    double.services.prices["ml.g6.12xlarge"] = 5.0  # that of today
    made = run(tmp_path, "apply", "b", "--yes", "--max-hourly", "40", "--role-arn", ROLE,
               "--poll-s", "0", double=double)  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "$40.00 an hour, $960.00 a day: 8 x ml.g6.12xlarge" in made.stderr
    again = run(tmp_path, "apply", "b", "--role-arn", ROLE, "--poll-s", "0", double=double)
    assert again.returncode == 0, again.stderr  # it stands: nothing more is spent


@pytest.mark.parametrize(
    ("answer", "status"), [("n", 2), pytest.param("y", 0, marks=pytest.mark.slow)]
)
def test_whoever_sits_at_a_terminal_is_asked(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws, answer: str, status: int
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b")
    master, terminal = os.openpty()
    process = forked.Process(
        [*forked.COMMAND, "deploy", "apply", "b", "--role-arn", ROLE, "--poll-s", "0"],
        cwd=tmp_path, env=os.environ | double.environ, stdin=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    shown = ""
    try:
        while True:
            try:
                part = os.read(master, 65536).decode()
            except OSError:  # its end, for a terminal
                break
            shown += part
            if "Make it? [y/N]" in part:
                os.write(master, f"{answer}\n".encode())
        assert process.wait(timeout=60) == status, shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert shown.index("$138.05 a day: 1 x ml.g6.12xlarge") < shown.index("Make it?")
    assert (("Endpoint", ENDPOINT) in double.control.rows) == (answer == "y")


def test_a_stack_is_rendered_beside_the_requests(run: Any, sweep: Path, tmp_path: Path) -> None:
    words = ("sagemaker", "sweep.jsonl", "--out", "b", "--as", "cloudformation")
    assert run(tmp_path, *words).returncode == 0
    held = json.loads((tmp_path / "b" / "template.json").read_text())
    assert {each["Type"] for each in held["Resources"].values()} == {
        "AWS::SageMaker::Model", "AWS::SageMaker::EndpointConfig", "AWS::SageMaker::Endpoint",
        "AWS::CloudWatch::Alarm",
    }  # fmt: skip
    readme = (tmp_path / "b" / "README.md").read_text()
    assert "cloudformation deploy --stack-name" in readme
    refused = run(tmp_path, *words, "--apply", "--role-arn", ROLE)
    assert refused.returncode == 2
    assert "leaves it to CloudFormation" in refused.stderr
    refused = run(tmp_path, *words, "--hf-token-from-env", HF_TOKEN="hf_" + "x" * 30)
    assert "a template carries no token" in refused.stderr
    assert run(tmp_path, *words[:-2]).returncode == 0
    assert not (tmp_path / "b" / "template.json").exists()


def test_a_jumpstart_model_is_looked_up_with_its_licence(
    run: Any, sweep: Path, tmp_path: Path, double: FakeAws
) -> None:
    uri = "s3://jumpstart-private-cache-prod-us-east-1/llama/v1.0.0/"
    double.control.hub = {
        "llama": {"HostingPrepackedArtifactUri": uri, "HostingEulaUri": "s3://jumpstart/eula.txt"}
    }
    words = ("sagemaker", "sweep.jsonl", "--out", "b", "--model-source", "jumpstart:llama")
    refused = run(tmp_path, *words, double=double)
    assert refused.returncode == 2
    assert "has a licence that you must accept" in refused.stderr
    done = run(tmp_path, *words, "--accept-eula", double=double)
    assert done.returncode == 0, done.stderr
    model = json.loads((tmp_path / "b" / "model.json").read_text())
    source = model["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert source["S3Uri"] == uri
    assert source["ModelAccessConfig"] == {"AcceptEula": True}
    assert double.operations() == []


def test_a_bundle_says_what_to_ask_and_against_which_trial(
    run: Any, sweep: Path, tmp_path: Path
) -> None:
    run(tmp_path, "sagemaker", "sweep.jsonl", "--out", "b", "--copies", "1")
    held = json.loads((tmp_path / "b" / "trial.jsonl").read_text())
    assert held["results"]["max_concurrency"] == 256
    nobody = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "SERVETUNE_HOME")
              if name in os.environ} | {"AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip

    def bench(*words: str) -> Any:
        return forked.run(
            [*forked.COMMAND, "bench", *words, "--dry-run"],
            cwd=tmp_path, env=nobody | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"},
        )  # fmt: skip

    shown = bench("--against", "b", "--input-tokens", "8")
    assert shown.returncode == 0, shown.stderr
    assert f"/endpoints/{ENDPOINT}/invocations-response-stream" in shown.stdout
    assert f"{ENDPOINT}-base" in shown.stdout
    assert '"model":"Qwen/Qwen3-4B"' in shown.stdout.replace('": "', '":"')
    (tmp_path / "empty").mkdir()
    refused = bench("--against", "empty")
    assert refused.returncode == 2
    assert "empty has no trial.jsonl" in refused.stderr
    assert "a bundle of servetune deploy" in refused.stderr
